"""The suite multi_step, run small."""

import functools
from unittest import mock

import pytest

from benchmarks.suites import bench_multi_step as suite
from tests.support.suites import CPU, noted


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch):
    monkeypatch.setattr(suite, "ROUNDS", 2)
    monkeypatch.setattr(suite, "CAPACITY", 400)
    suite.timed.cache_clear()
    yield
    suite.timed.cache_clear()


def test_each_number_of_steps_is_timed_against_no_transform():
    keys = {}
    for steps in (None, *suite.STEPS):
        said = noted(suite.bench_extend, CPU, steps)
        keys[said["key"]] = said["metrics"]
    both = {"extend_time", "time_vs_plain"}
    assert keys == {
        "extend-plain": {"extend_time"},
        **{f"extend-n{steps}": both for steps in suite.STEPS},
    }


def test_another_discount_fails_the_suite():
    other = functools.partial(suite.MultiStepTransform, gamma=0.5)

    def make(gamma, **options):
        return other(**options)

    with mock.patch.object(suite, "MultiStepTransform", make), pytest.raises(AssertionError):
        noted(suite.bench_extend, CPU, 3)
