"""A collector on Ray: start-up, first update, latency of updates, and time of a batch.

One machine plays the cluster: two remote collectors in a local Ray. The policy and the environment
are those of the suite weight_sync, so each round knows which weights collected the batch. Each
update follows a plain copy of the same tensors within the process. With the small policy each batch
follows one of a MultiSyncCollector with two workers, the same environment and as many frames.
"""

import contextlib
import os
import time
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from torchrl.collectors import Collector, MultiSyncCollector

from benchmarks import measure, metrics
from benchmarks.suites import bench_weight_sync as local

ROOT = Path(__file__).parents[2]
WORKERS = 2
FRAMES = 400  # of all workers together
ROUNDS = 20
WARMUP_ROUNDS = 3
SIZES = ("20kb", "16mb")
MANY_FRAMES = 10**6  # Ray's collector wants a number

SHARED = ("update_time", "time_vs_copy", "model_bytes", "arrives_without_call")
METRICS = metrics.declare("""
start_time [s] Start of Ray: Wall time of ray.init on this machine, once.
construction_time [s] Construction: Wall time of making the collector: two actors, which import
    TorchRL.
first_update_time [s] First update: Wall time of the first call of update_policy_weights_, which
    connects sender and receivers; once.
first_batch_time [s] First batch: Wall time of the first batch, after the first update; once.
batch_time [s] Time of a batch: Wall time of one batch of the collector on Ray.
time_vs_multisync [1] Time against MultiSyncCollector: Time of a batch divided by that of
    MultiSyncCollector for the same frames, right before.
""") | {name: local.METRICS[name] for name in SHARED}


def start(ray):
    """Start a local Ray whose workers find this module."""
    ray.init(
        num_cpus=WORKERS,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={
            "env_vars": {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(measure.THREADS)}
        },
    )


@pytest.fixture(scope="module")
def ray():
    """Ray, stopped at the end."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    ray = pytest.importorskip("ray")
    yield ray
    ray.shutdown()


@pytest.fixture
def running(ray):
    """A local Ray that runs."""
    if not ray.is_initialized():
        start(ray)


def timed(function):
    begin = time.perf_counter()
    result = function()
    return result, time.perf_counter() - begin


def make_collector(policy):
    return Collector(
        local.one_thread,
        policy,
        backend="ray",
        num_collectors=WORKERS,
        sync=True,
        frames_per_batch=FRAMES,
        total_frames=MANY_FRAMES,
        backend_options={
            "remote_configs": {"num_cpus": 0.9, "num_gpus": 0, "memory": 500 * 1024**2}
        },
    )


@contextlib.contextmanager
def multisync():
    """The batches of two local workers."""
    with local.quick_start():
        collector = MultiSyncCollector(
            [local.one_thread] * WORKERS,
            local.make_policy(local.SIZES["20kb"], local.TENSORS),
            frames_per_batch=FRAMES,
            total_frames=-1,
            auto_register_policy_transforms=False,
        )
    try:
        yield iter(collector)
    finally:
        collector.shutdown()


def bench_start(benchmark, ray):
    benchmark.pedantic(start, args=(ray,), rounds=1)
    assert ray.cluster_resources()["CPU"] == WORKERS
    measure.note(
        benchmark,
        "start",
        "start_time",
        title="Start of a local Ray",
        parameters={"cpus": WORKERS},
    )
    benchmark.extra_info["warmup_rounds"] = 0


def against_multisync(batches):
    """Seconds of batches on Ray, and their ratios to those of local workers.

    Both kinds of workers are idle between two batches, so they may take turns.
    """
    seconds, ratios = [], []
    with multisync() as others:
        assert next(others).numel() == FRAMES
        for _ in range(WARMUP_ROUNDS + ROUNDS):
            _, plain = timed(lambda: next(others))
            batch, ours = timed(lambda: next(batches))
            assert batch.numel() == FRAMES
            seconds.append(ours)
            ratios.append(ours / plain)
    return {
        "batch_time": seconds[WARMUP_ROUNDS:],
        "time_vs_multisync": ratios[WARMUP_ROUNDS:],
    }


@pytest.mark.parametrize("size", SIZES)
def bench_ray(benchmark, device, running, size):
    policy = local.make_policy(local.SIZES[size], local.TENSORS)
    marker = policy.module.marker
    weights = TensorDict.from_module(policy).data
    target = weights.clone()
    case = local.Case("ray", "sync", WORKERS, size, "inplace")
    copy, update, marked = [], [], [1.0]
    collector, construction = timed(lambda: make_collector(policy))
    with torch.no_grad():
        marker.fill_(marked[0])
    _, first_update = timed(collector.update_policy_weights_)
    batches = iter(collector)
    batch, first_batch = timed(lambda: next(batches))
    assert batch["action"].unique().tolist() == marked
    assert batch.numel() == FRAMES
    by_itself = local.arrives_without_call(case, policy, batches)

    def prepare():
        if marked[0] > 1:
            local.expect(case, batches, marked[0])
        marked[0] += 10.0
        with torch.no_grad():
            marker.fill_(marked[0])
        copy.append(timed(lambda: target.update_(weights))[1])

    def send():
        update.append(timed(collector.update_policy_weights_)[1])

    benchmark.pedantic(send, setup=prepare, rounds=ROUNDS, warmup_rounds=WARMUP_ROUNDS)
    local.expect(case, batches, marked[0])
    compared = against_multisync(batches) if size == SIZES[0] else {}
    collector.shutdown()
    ratios = [ours / plain for ours, plain in zip(update, copy, strict=True)]
    measure.note(
        benchmark,
        f"update-w{WORKERS}-{size}",
        "update_time",
        title=f"RayWeightSyncScheme, {WORKERS} remote collectors, {size}",
        parameters={
            "scheme": "ray",
            "workers": WORKERS,
            "kilobytes": local.SIZES[size] // 1000,
            "tensors": local.TENSORS,
            "frames": FRAMES,
        },
        exact={"model_bytes": weights.bytes(), "arrives_without_call": int(by_itself)},
        sampled={
            "construction_time": [construction],
            "first_update_time": [first_update],
            "first_batch_time": [first_batch],
            "time_vs_copy": ratios[WARMUP_ROUNDS:],
            **compared,
        },
    )
    benchmark.extra_info["warmup_rounds"] = WARMUP_ROUNDS
