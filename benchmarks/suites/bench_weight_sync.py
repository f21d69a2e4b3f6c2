"""Latency of update_policy_weights_, by scheme, size of the model and topology.

A policy writes one of its own parameters into every frame, so each round knows which weights
collected the batch: after an update, every frame of the next batch has to come from the new ones.
What is timed is the call alone, while the workers wait (or, in async, collect). Each round follows
a plain copy of the same tensors within one process, and *time against a plain copy* is the ratio.
The weights come "from elsewhere" where they are a TensorDict that no worker can see, as after
training on another device; "in place" means the module that the collector was given.
"""

import contextlib
import functools
import multiprocessing
import time
from typing import NamedTuple

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from torchrl.data import Binary, Composite, Unbounded
from torchrl.envs import EnvBase
from torchrl.weight_update import MultiProcessWeightSyncScheme, SharedMemWeightSyncScheme

from benchmarks import measure, metrics

ROUNDS = 30
WARMUP_ROUNDS = 5
FRAMES = 2  # of each worker in a batch
BUSY_FRAMES = 400  # in the topology whose worker collects during the update
ASYNC_BATCHES = 4  # within so many, a batch of the new weights has to arrive
SIZES = {"20kb": 20_000, "4mb": 4_000_000, "16mb": 16_000_000}
TENSORS = 8
MANY_TENSORS = 200
SCHEMES = {"shared": SharedMemWeightSyncScheme, "pipe": MultiProcessWeightSyncScheme}
NO_WAIT = {"shared-nowait": functools.partial(SharedMemWeightSyncScheme, sync=False)}
TITLES = {"shared": "shared memory", "shared-nowait": "shared memory, sync=False", "pipe": "pipe"}

METRICS = metrics.declare("""
update_time [s] Time of an update: Wall time of one call of update_policy_weights_, until every
    worker has acknowledged it; with sync=False until it returns.
time_vs_copy [1] Time against a plain copy: Time of an update divided by that of copying the same
    tensors once within the process, right before.
model_bytes [B, exact] Bytes of the weights: Bytes in the parameters of the policy.
arrives_without_call [1, exact] Arrives without a call: 1 where the workers act with a parameter
    that was changed in place, although nobody has called update_policy_weights_; else 0.
""")


class Case(NamedTuple):
    """One configuration."""

    scheme: str  # "shared", "shared-nowait", "pipe", or "none" within one process
    topology: str  # "copy", "sync" or "async"
    workers: int
    size: str
    origin: str  # "inplace" or "elsewhere"
    tensors: int = TENSORS

    @property
    def key(self):
        workers = f"-w{self.workers}" if self.workers else ""
        tensors = "" if self.tensors == TENSORS else f"-t{self.tensors}"
        return f"{self.scheme}-{self.topology}{workers}-{self.size}-{self.origin}{tensors}"


BASE = Case("shared", "sync", 2, "4mb", "elsewhere")


def cases():
    """One thing varies at a time around the base case, but for scheme and size."""
    found = [
        BASE._replace(scheme=scheme, size=size, origin=origin)
        for scheme in SCHEMES
        for size in SIZES
        for origin in ("inplace", "elsewhere")
    ]
    for scheme in SCHEMES:
        case = BASE._replace(scheme=scheme)
        found += [case._replace(workers=n) for n in (1, 4)]
        found += [case._replace(topology="async", workers=1)]
        found += [case._replace(tensors=MANY_TENSORS)]
    found += [BASE._replace(scheme=scheme) for scheme in NO_WAIT]
    found += [Case("none", "copy", 0, size, "inplace") for size in SIZES]
    return found


class Marked(nn.Module):
    """Acts with its parameter ``marker``; the other parameters are only there to be sent."""

    def __init__(self, size, tensors):
        super().__init__()
        self.marker = nn.Parameter(torch.zeros(1))
        numbers = size // torch.float32.itemsize // tensors
        self.rest = nn.ParameterList(torch.zeros(numbers) for _ in range(tensors))

    def forward(self, observation):
        return observation + self.marker.detach()


class Nothing(EnvBase):
    """An environment that costs next to nothing and observes zero."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((1,)))
        self.action_spec = Unbounded((1,))
        self.reward_spec = Unbounded((1,))
        flag = Binary(1, dtype=torch.bool)
        self.full_done_spec = Composite(done=flag, terminated=flag.clone())

    def _reset(self, tensordict=None, **options):
        return self.full_done_spec.zero().update(self.observation_spec.zero())

    def _step(self, tensordict):
        return self._reset().set("reward", torch.zeros(1))

    def _set_seed(self, seed):
        """Nothing here is random."""


def make_policy(size, tensors, device="cpu"):
    return TensorDictModule(Marked(size, tensors).to(device), ["observation"], ["action"])


def one_thread():
    """What each worker builds first."""
    torch.set_num_threads(measure.THREADS)
    return Nothing()


@contextlib.contextmanager
def quick_start():
    """Workers that share one import of TorchRL: what is timed does not depend on how they start."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("forkserver", force=True)
    multiprocessing.set_forkserver_preload(["torchrl.collectors", "torchrl.envs"])
    try:
        yield
    finally:
        multiprocessing.set_start_method(before, force=True)


@contextlib.contextmanager
def collecting(case, policy, device):
    """A collector of *case*, and what shuts it down."""
    options = {"total_frames": -1, "auto_register_policy_transforms": False}
    if case.topology == "copy":
        # "cpu:0" and "cpu" are unequal, so the collector copies, as it does for a GPU.
        to = "cpu:0" if device.type == "cpu" else device
        collector = Collector(
            Nothing(), policy, policy_device=to, frames_per_batch=FRAMES, **options
        )
        schemes = {}
    else:
        kind = MultiSyncCollector if case.topology == "sync" else MultiAsyncCollector
        frames = FRAMES * case.workers if case.topology == "sync" else BUSY_FRAMES
        schemes = {"policy": (SCHEMES | NO_WAIT)[case.scheme]()}
        if device.type == "cuda":
            options |= {"policy_device": device, "env_device": "cpu", "storing_device": "cpu"}
        collector = kind(
            [one_thread] * case.workers,
            policy,
            frames_per_batch=frames,
            weight_sync_schemes=schemes,
            **options,
        )
    try:
        yield collector
    finally:
        collector.shutdown()
        for scheme in schemes.values():
            scheme.shutdown()


def acted(batches):
    """The markers in the next batch."""
    return next(batches)["action"].unique().tolist()


def arrives_without_call(case, policy, batches):
    """Whether a change in place reaches the workers by itself."""
    with torch.no_grad():
        policy.module.marker.add_(1)
    rounds = ASYNC_BATCHES if case.topology == "async" else 1
    found = [acted(batches) for _ in range(rounds)]
    return [policy.module.marker.item()] in found


def expect(case, batches, marker):
    """Fail unless the next batch is wholly of *marker*; in async, unless one soon is."""
    seen = []
    for _ in range(ASYNC_BATCHES if case.topology == "async" else 1):
        seen.append(acted(batches))
        if seen[-1] == [marker]:
            return
    raise AssertionError(f"{case.key}: the weights are {marker}, the batches are of {seen}")


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.key)
def bench_update(benchmark, device, case):
    # One process copies from the CPU to the device; workers get what is on the device already.
    home = "cpu" if case.topology == "copy" else device
    policy = make_policy(SIZES[case.size], case.tensors, home)
    elsewhere = make_policy(SIZES[case.size], case.tensors, home)
    trained = policy if case.origin == "inplace" else elsewhere
    marker = trained.module.marker
    weights = TensorDict.from_module(elsewhere).data
    target = weights.clone().to(device)
    update, copy, marked = [], [], [0.0]
    with quick_start(), collecting(case, policy, device) as collector:
        batches = iter(collector)
        assert acted(batches) == [0.0]
        by_itself = arrives_without_call(case, policy, batches)

        def prepare():
            if marked[0]:
                expect(case, batches, marked[0])
            marked[0] += 10.0  # far from what came without a call
            with torch.no_grad():
                marker.fill_(marked[0])
            begin = time.perf_counter()
            measure.settled(device, lambda: target.update_(weights))
            copy.append(time.perf_counter() - begin)

        def send():
            begin = time.perf_counter()
            if case.origin == "inplace":
                collector.update_policy_weights_()
            else:
                collector.update_policy_weights_(weights)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            update.append(time.perf_counter() - begin)

        benchmark.pedantic(send, setup=prepare, rounds=ROUNDS, warmup_rounds=WARMUP_ROUNDS)
        expect(case, batches, marked[0])
    ratios = [ours / plain for ours, plain in zip(update, copy, strict=True)]
    sampled = {} if case.topology == "async" else {"time_vs_copy": ratios[WARMUP_ROUNDS:]}
    measure.note(
        benchmark,
        case.key,
        "update_time",
        title=title_of(case),
        parameters={
            "scheme": case.scheme,
            "topology": case.topology,
            "workers": case.workers,
            "kilobytes": SIZES[case.size] // 1000,
            "origin": case.origin,
            "tensors": case.tensors,
            "frames": BUSY_FRAMES if case.topology == "async" else FRAMES,
            "second_device": "simulated" if device.type == "cpu" else "cuda",
        },
        exact={
            "model_bytes": weights.bytes(),
            "arrives_without_call": int(by_itself),
        },
        sampled=sampled,
    )
    benchmark.extra_info["warmup_rounds"] = WARMUP_ROUNDS


def title_of(case):
    kilobytes = SIZES[case.size] // 1000
    size = f"{kilobytes} kB" if kilobytes < 1000 else f"{kilobytes // 1000} MB"
    if case.tensors != TENSORS:
        size += f" in {case.tensors} tensors"
    if case.topology == "copy":
        return f"one process, a copy on a second device, {size}"
    workers = f"{case.workers} worker" + "s" * (case.workers > 1)
    if case.topology == "async":
        workers += " that collects"
    origin = "in place" if case.origin == "inplace" else "from elsewhere"
    return f"{TITLES[case.scheme]}, {workers}, {size}, {origin}"
