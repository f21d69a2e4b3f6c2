"""The suite saving, run small."""

from unittest import mock

import pytest

from benchmarks.suites import bench_saving as suite
from tests.support.suites import CPU, noted

SMALL = {"state": 64, "pixels": 40}


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    monkeypatch.setattr(suite, "ROWS", SMALL)
    monkeypatch.setattr(suite, "ROUNDS", 1)
    monkeypatch.setattr(suite, "WARMUP_ROUNDS", 0)


def saved_bytes(folder, way, content):
    folder.mkdir()
    (size,) = noted(suite.bench_run, CPU, folder, way, content)["sampled"]["saved_bytes"]
    return size


def test_a_save_has_the_rows_wherever_the_buffer_is(tmp_path):
    alone = saved_bytes(tmp_path / "none", "none", "state")
    for way in ("copied", "mapped"):
        for content in SMALL:
            size = saved_bytes(tmp_path / f"{way}-{content}", way, content)
            assert size - alone > suite.make_rows(content).bytes()
    assert suite.make_rows("pixels").bytes() > SMALL["pixels"] * 84 * 84


@pytest.mark.parametrize(("way", "content"), suite.CASES)
def test_one_run_times_the_save_and_the_load(tmp_path, way, content):
    said = noted(suite.bench_run, CPU, tmp_path, way, content)
    assert said["key"] == (way if way == "none" else f"{way}-{content}")
    assert said["metrics"] == {"save_time", "load_time", "saved_bytes"}
    assert len(said["sampled"]["load_time"]) == suite.ROUNDS


@pytest.mark.parametrize("way", ["none", "copied", "mapped"])
def test_a_run_that_loads_nothing_fails_the_suite(tmp_path, way):
    with mock.patch.object(suite.Run, "load"), pytest.raises((AssertionError, KeyError)):
        noted(suite.bench_run, CPU, tmp_path, way, "state")
