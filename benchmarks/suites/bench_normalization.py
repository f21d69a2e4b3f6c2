"""What a VecNormV2 costs, whose statistics the environments of several workers share.

Every way collects as many frames of CartPole with the same policy. Nothing is normalized, or by
fixed numbers (ObservationNorm), by statistics that each environment keeps for itself, or by
statistics in shared memory behind one lock, as the guide to normalizing across workers has them.
Ways are timed in turn. In one process nobody else wants the lock, and processor time is counted;
two workers, started by "spawn", wait for it and for each other.
"""

import contextlib
import functools
import multiprocessing
import time

import pytest
import torch
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.envs import EnvCreator, GymEnv, ObservationNorm, TransformedEnv, VecNormV2
from torchrl.modules import MLP, QValueActor

from benchmarks import interleaved, measure, metrics

FRAMES = 400  # of a batch, of all workers together
WORKERS = 2
ROUNDS, WARMUP_ROUNDS = 40, 5
OBSERVED = 4
QUIET = {"auto_register_policy_transforms": False, "total_frames": -1}
WAYS = {
    "none": "Nothing is normalized",
    "fixed": "ObservationNorm",
    "own": "VecNormV2, statistics of each environment",
    "shared": "VecNormV2, statistics of all",
}

METRICS = metrics.declare(f"""
batch_time [s] Time of a batch: Wall time of a batch of {FRAMES} frames.
processor_time [s] Processor time: Processor time of this process for the batch.
vs_none [1] Time against nothing normalized: Time of a batch, divided by that without
    normalization in the same turn; of the processor in one process, by the clock with workers.
vs_own [1] Time against statistics of its own: The same, divided by that of a VecNormV2 whose
    statistics no other environment shares.
""")


def make_env(way):
    torch.set_num_threads(measure.THREADS)
    key = {"in_keys": ["observation"], "out_keys": ["normed"]}
    zeros, ones = torch.zeros(OBSERVED), torch.ones(OBSERVED)
    transforms = {
        "none": lambda: None,
        "fixed": lambda: ObservationNorm(loc=zeros, scale=ones, **key),
        "own": lambda: VecNormV2(**key, decay=1.0),
    }
    env = TransformedEnv(GymEnv("CartPole-v1"), transforms["own" if way == "shared" else way]())
    env.set_seed(0)
    return env


def make_policy(way):
    torch.manual_seed(0)
    net = MLP(in_features=OBSERVED, out_features=2, num_cells=[64])
    seen = "observation" if way == "none" else "normed"
    return QValueActor(net, in_keys=[seen], spec=GymEnv("CartPole-v1").action_spec)


def creator_of(way):
    """What makes the environments of *way*, and the tensor that counts their observations."""
    make = functools.partial(make_env, way)
    if way != "shared":
        return make, None
    creator = EnvCreator(make)
    states = [state for state in creator.state_dict().values() if isinstance(state, dict)]
    tensors = {key: state[key] for state in states for key in state}
    for tensor in tensors.values():
        tensor.share_memory_().zero_()
    (count,) = [tensor for key, tensor in tensors.items() if key.startswith("count")]
    return creator, count


class Running:
    """A collector of one way, with its batches."""

    def __init__(self, way, workers):
        make, self.count = creator_of(way)
        policy, common = make_policy(way), {"frames_per_batch": FRAMES, **QUIET}
        if workers:
            self.collector = MultiSyncCollector([make] * workers, policy, **common)
        else:
            self.collector = Collector(make, policy, **common)
        self.batches = iter(self.collector)

    def next(self):
        assert next(self.batches).numel() == FRAMES


@contextlib.contextmanager
def spawning():
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


@functools.cache
def timed(workers):
    """Wall and processor seconds of a batch of each way, in turn, and rows counted for a frame."""
    with spawning():
        running = {way: Running(way, workers) for way in WAYS}
        spent = {way: [] for way in WAYS}
        for turn in range(WARMUP_ROUNDS + ROUNDS):
            if turn == 1:  # the environments have begun
                before = int(running["shared"].count)
            for way, one in running.items():
                begin = time.perf_counter(), time.process_time()
                one.next()
                if turn >= WARMUP_ROUNDS:
                    wall, processor = time.perf_counter() - begin[0], time.process_time() - begin[1]
                    spent[way].append((wall, processor))
        after = int(running["shared"].count)
        for one in running.values():
            one.collector.shutdown()
    return spent, (after - before) / (FRAMES * (WARMUP_ROUNDS + ROUNDS - 1))


@pytest.mark.parametrize("workers", [0, WORKERS])
@pytest.mark.parametrize("way", WAYS)
def bench_batch(benchmark, device, way, workers):
    if device.type == "cuda":
        pytest.skip("environments on the CPU and processes are measured")
    spent, counted = timed(workers)
    wall, processor = ([pair[i] for pair in spent[way]] for i in (0, 1))
    which = 0 if workers else 1

    def against(base):
        return [
            ours[which] / other[which] for ours, other in zip(spent[way], spent[base], strict=True)
        ]

    sampled = {"vs_none": against("none"), "vs_own": against("own")}
    if not workers:
        sampled["processor_time"] = processor
    if way == "shared":
        assert 1 <= counted < 1.2  # every frame of every worker, and the resets
    interleaved.report(
        benchmark,
        wall,
        WARMUP_ROUNDS,
        f"{way}-w{workers}",
        "batch_time",
        title=WAYS[way],
        parameters={"way": WAYS[way], "workers": workers, "frames": FRAMES},
        sampled=sampled,
    )
