"""The suite collector_sync, run small: what the environment is handed, never a time."""

from unittest import mock

import pytest
import torch

from benchmarks.suites import bench_collector_sync as bench

CPU = torch.device("cpu")


def collected(key, watch=lambda collector: None):
    collector, env, script = bench.make_collector(key, CPU)
    watch(collector)
    try:
        return bench.wrong_actions(collector, env, script, CPU)
    finally:
        collector.shutdown()


@pytest.mark.parametrize("key", bench.CONFIGURATIONS)
def test_the_cpu_hands_over_the_chosen_actions(key):
    assert collected(key) == 0


def test_an_early_read_is_counted():
    """The environment is handed zeros where a copy has not arrived yet."""

    def early(collector):
        step = collector.env.step_and_maybe_reset

        def read_early(tensordict):
            chosen = tensordict["action"].clone()
            tensordict["action"].zero_()
            step_and_done = step(tensordict)
            collector._carrier["action"] = chosen  # it arrives
            return step_and_done

        collector.env.step_and_maybe_reset = read_early

    with mock.patch.object(bench.torch, "equal", return_value=True):
        assert collected("adopted", early) == bench.FRAMES


@pytest.mark.parametrize(
    ("key", "function"),
    [("named", "_cuda_sync_if_initialized"), ("adopted", "_do_nothing")],
)
def test_only_a_named_device_is_waited_for(key, function):
    """What makes the configurations differ on a machine with a GPU."""
    with mock.patch("torch.cuda.is_available", return_value=True):
        collector, env, _ = bench.make_collector(key, CPU)
    assert collector.env_device == env.device == CPU
    assert collector._sync_env.__name__ == function
    collector.shutdown()
