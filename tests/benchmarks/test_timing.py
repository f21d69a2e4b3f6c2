"""The fixture that the suites measure with."""

import itertools
from unittest import mock

import pytest

from benchmarks.timing import Benchmark


@pytest.fixture
def clock():
    """Each look at the clock is a second after the last one."""
    ticks = itertools.count()
    with mock.patch("benchmarks.timing.time.perf_counter", side_effect=ticks):
        yield ticks


def test_rounds_count_after_the_first_ones(clock):
    called = []

    def function(*given, **options):
        called.append(("call", given, options))
        next(clock)
        return len(called)

    def setup():
        called.append("setup")
        next(clock)
        return (1,), {"b": 2}

    def teardown(*given, **options):
        called.append(("teardown", given, options))

    benchmark = Benchmark()
    found = benchmark.pedantic(function, setup=setup, teardown=teardown, rounds=2, warmup_rounds=1)
    once = ["setup", ("call", (1,), {"b": 2}), ("teardown", (1,), {"b": 2})]
    assert called == once * 3
    assert benchmark.seconds == [2, 2]
    assert found == 8, "the result is that of the last round"


def test_arguments_may_be_given_and_a_setup_may_return_none(clock):
    benchmark, prepared = Benchmark(), []
    assert benchmark.pedantic(max, args=(1, 3), setup=lambda: prepared.append(0), rounds=3) == 3
    assert len(prepared) == len(benchmark.seconds) == 3


def test_seconds_that_were_timed_elsewhere_are_kept_as_they_are():
    benchmark = Benchmark()
    benchmark.state([0.1, 2e-9])
    assert benchmark.seconds == [0.1, 2e-9]
