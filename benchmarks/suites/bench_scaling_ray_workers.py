"""Remote collectors of Ray by their number: frames per second, and updates of the weights.

One machine plays the cluster. A step of the environment waits and computes next to nothing, so that
more collectors than cores do not slow each other down. Each collector adds as many frames to a
batch, so whatever a batch takes longer with more of them is the work of the learner. An update
follows each batch.
"""

import functools
import os
import time

import pytest
import torch
from torchrl.collectors import Collector

from benchmarks import measure, metrics
from benchmarks.interleaved import report
from benchmarks.suites import bench_scaling_ray as rays
from benchmarks.suites import bench_weight_sync as local

WORKERS = (1, 2, 4, 8)
FRAMES = 20  # of each collector in a batch
STEP_MS = 10
ROUNDS = 20
WARMUP_ROUNDS = 3

METRICS = metrics.declare("""
round_time [s] Time of a batch: Wall time of one batch, without the update.
frames_per_second [1] Frames per second: Frames of a batch, divided by its wall time.
waiting_share [%] Share of the waiting: Time that the steps of a collector wait in a batch, divided
    by the wall time of the batch.
update_time [s] Time of an update: Wall time of one call of update_policy_weights_, until every
    collector has acknowledged it.
""")


class Waiting(local.Nothing):
    """An environment whose steps wait."""

    def _step(self, tensordict):
        time.sleep(STEP_MS / 1000)
        return super()._step(tensordict)


def make_env():
    torch.set_num_threads(measure.THREADS)
    return Waiting()


@pytest.fixture(scope="module")
def ray():
    """Ray with room for all collectors, stopped at the end."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rays, "CPUS", max(WORKERS))
        rays.start(ray)
    yield ray
    ray.shutdown()


def make_collector(workers):
    return Collector(
        make_env,
        local.make_policy(local.SIZES["20kb"], local.TENSORS),
        backend="ray",
        num_collectors=workers,
        sync=True,
        frames_per_batch=FRAMES * workers,
        total_frames=rays.MANY_FRAMES,
        backend_options={
            "collector_kwargs": {"auto_register_policy_transforms": False},
            "remote_configs": {"num_cpus": 1, "num_gpus": 0, "memory": 200 * 1024**2},
        },
    )


@functools.cache
def timed(workers):
    """The seconds of batches and of updates."""
    collector = make_collector(workers)
    collector.update_policy_weights_()
    batches, spent = iter(collector), []
    for _ in range(WARMUP_ROUNDS + ROUNDS):
        marks = [time.perf_counter()]
        assert next(batches).numel() == FRAMES * workers
        marks.append(time.perf_counter())
        collector.update_policy_weights_()
        marks.append(time.perf_counter())
        spent.append((marks[1] - marks[0], marks[2] - marks[1]))
    collector.shutdown()
    return [list(part) for part in zip(*spent[WARMUP_ROUNDS:], strict=True)]


@pytest.mark.parametrize("workers", WORKERS)
def bench_workers(benchmark, ray, workers):
    batches, updates = timed(workers)
    report(
        benchmark,
        batches,
        WARMUP_ROUNDS,
        f"w{workers}",
        "round_time",
        title=f"{workers} remote collectors",
        parameters={
            "workers": workers,
            "frames": FRAMES * workers,
            "step_ms": STEP_MS,
            "kilobytes": local.SIZES["20kb"] // 1000,
        },
        sampled={
            "frames_per_second": [FRAMES * workers / one for one in batches],
            "waiting_share": [0.1 * FRAMES * STEP_MS / one for one in batches],
            "update_time": updates,
        },
    )
