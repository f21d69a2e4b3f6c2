"""Memory footprint of a collected batch by configuration and observation size.

Each benchmark collects one batch from a single environment with a random policy. Bytes are those of
the tensors in the batch. The sampling time is that of drawing slices from a tensor storage with
one batch, without restoring a next observation that the configuration dropped.
"""

import functools
import statistics
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import GymEnv, GymWrapper, TransformedEnv
from torchrl.envs.transforms import NextObservationDelta, NextStateReconstructor, StepCounter

from benchmarks import measure, metrics

ROOT = Path(__file__).parents[2]
FRAMES = 200
SLICE_STEPS = 10
SAMPLE_FRAMES = 100
EPISODE_STEPS = 40
RESIDENT_FRAMES = 2000
SEED = 0

METRICS = metrics.declare(f"""
bytes [B, exact] Bytes in the batch: Sum over the tensors of the batch, as its bytes() method counts
    them.
bytes_per_frame [B, exact] Bytes per frame: Bytes in the batch divided by its frames.
saving [%, exact] Saving: Bytes saved against the default configuration of the same environment.
collect_time [s] Collection time: Wall time of collecting one batch.
sample_time [s] Sampling time: Wall time of drawing one sample of slices from a buffer with one
    batch.
peak_memory [B] Peak memory: Most bytes that torch's allocator holds at once while a collector is
    built and fills its first batch. Memory that NumPy owns is not counted.
resident_peak [B] Peak resident memory: Growth of a fresh process's peak resident memory while a
    collector is built and collects one batch of {RESIDENT_FRAMES} frames. Everything counts:
    tensors, NumPy, the interpreter.
resident_saving [%] Saving of peak resident memory: Peak resident memory saved against the median of
    the default configuration of the same environment.
restore_time [s] Sampling time with restoring: Wall time of drawing one sample of slices whose next
    observation a transform of the buffer puts back.
""")

# name: (title, transform of the environment, arguments of the collector)
CONFIGURATIONS = {
    "default": ("default", None, {}),
    "compact": ("compact_obs=True", None, {"compact_obs": True}),
    "delta": ("NextObservationDelta, float16", NextObservationDelta, {}),
    "compact-delta": ("compact_obs=True and delta", NextObservationDelta, {"compact_obs": True}),
    "no-traj-ids": ("track_traj_ids=False", None, {"track_traj_ids": False}),
    "step-counter": ("StepCounter", StepCounter, {}),
    "compact-step-counter": (
        "compact_obs=True and StepCounter",
        StepCounter,
        {"compact_obs": True},
    ),
}
RESIDENT_ENVIRONMENT = "uint8-4x84x84"
# name: (shape, type) of the observation; no entry: a real environment
SHAPES = {
    "float32-4": ((4,), np.float32),
    "float32-64": ((64,), np.float32),
    "float32-256": ((256,), np.float32),
    "float32-1024": ((1024,), np.float32),
    "uint8-84x84": ((84, 84), np.uint8),
    "uint8-4x84x84": ((4, 84, 84), np.uint8),
}
CASES = [(name, "cartpole") for name in CONFIGURATIONS]
CASES += [(name, shape) for shape in SHAPES for name in ("default", "compact", "delta")]


class Observations(gymnasium.Env):
    """Episodes of fixed length whose observations count the steps."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, shape, dtype):
        high = 255 if dtype is np.uint8 else np.inf
        low = 0 if dtype is np.uint8 else -np.inf
        self.observation_space = gymnasium.spaces.Box(low, high, shape, dtype)
        self.steps = 0

    def _observe(self):
        space = self.observation_space
        return np.full(space.shape, self.steps, space.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        self.steps += 1
        return self._observe(), 1.0, self.steps == EPISODE_STEPS, False, {}


def make_env(name, device):
    if name in SHAPES:
        return GymWrapper(Observations(*SHAPES[name]), device=device)
    return GymEnv("CartPole-v1", device=device)


def make_collector(configuration, environment, device, frames=FRAMES):
    torch.manual_seed(SEED)
    _, transform, arguments = CONFIGURATIONS[configuration]
    env = make_env(environment, device)
    env = TransformedEnv(env, transform()) if transform else env
    env.set_seed(SEED)
    return Collector(env, frames_per_batch=frames, total_frames=-1, device=device, **arguments)


def first_batch(configuration, environment, device, frames=FRAMES):
    collector = make_collector(configuration, environment, device, frames)
    try:
        return next(iter(collector))
    finally:
        collector.shutdown()


def note(benchmark, configuration, environment, timing, **values):
    observation = make_env(environment, "cpu").observation_spec["observation"]
    kind = str(observation.dtype).removeprefix("torch.")
    size = "×".join(map(str, observation.shape))
    name = "CartPole-v1" if environment == "cartpole" else f"{kind} {size}"
    measure.note(
        benchmark,
        f"{configuration}-{environment}",
        timing,
        title=f"{name}: {CONFIGURATIONS[configuration][0]}",
        parameters={
            "configuration": CONFIGURATIONS[configuration][0],
            "environment": name,
            "frames": FRAMES,
            "observation_bytes": observation.shape.numel() * observation.dtype.itemsize,
            "observation_dtype": kind,
        },
        **values,
    )


@pytest.mark.parametrize(("configuration", "environment"), CASES)
def bench_collect(benchmark, device, configuration, environment):
    default = first_batch("default", environment, device)
    batch = first_batch(configuration, environment, device)
    size, full = batch.bytes(), default.bytes()
    peaks = measure.peaks(device, lambda: first_batch(configuration, environment, device))

    collector = make_collector(configuration, environment, device)
    batches = iter(collector)
    last = measure.timed(benchmark, device, lambda: next(batches))
    collector.shutdown()

    assert last.numel() == FRAMES
    assert last.bytes() == size, "the size of a batch does not depend on what is in it"
    assert size % FRAMES == 0
    torch.testing.assert_close(batch["observation"], default["observation"])
    kept = ("next", "observation") in batch.keys(include_nested=True)
    assert kept == ("compact" not in configuration and restored(configuration, environment))
    note(
        benchmark,
        configuration,
        environment,
        "collect_time",
        exact={
            "bytes": size,
            "bytes_per_frame": size // FRAMES,
            "saving": 100 * (full - size) / full,
        },
        sampled={"peak_memory": peaks, **resident(configuration, environment, device)},
    )


def resident(configuration, environment, device):
    """Peaks of fresh processes, where the batch outweighs the noise of the interpreter."""
    if environment != RESIDENT_ENVIRONMENT or device.type != "cpu":
        return {}
    found = resident_peaks(configuration, environment)
    full = statistics.median(resident_peaks("default", environment))
    return {
        "resident_peak": found,
        "resident_saving": [100 * (full - size) / full for size in found],
    }


@functools.cache
def resident_peaks(configuration, environment):
    module = f"benchmarks.suites.{Path(__file__).stem}"
    command = [sys.executable, "-m", module, configuration, environment]
    found = []
    for _ in range(measure.MEMORY_ROUNDS):
        run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        found.append(int(run.stdout))
    return found


def resident_growth(configuration, environment):
    """Print what one process needs; a small batch first loads what is loaded late."""
    torch.set_num_threads(measure.THREADS)
    first_batch(configuration, environment, "cpu", SLICE_STEPS)
    before = measure.resident_memory("VmRSS")
    batch = first_batch(configuration, environment, "cpu", RESIDENT_FRAMES)
    assert batch.numel() == RESIDENT_FRAMES
    print(measure.resident_memory("VmHWM") - before)


def restored(configuration, environment):
    """Whether the batch keeps the next observation itself: the delta leaves integers alone."""
    return "delta" not in configuration or environment.startswith("uint8")


@pytest.mark.parametrize(("configuration", "environment"), CASES)
def bench_sample(benchmark, device, configuration, environment):
    batch = first_batch(configuration, environment, device)
    # Known truth to compare a sample with: its place in the batch.
    batch["place"] = torch.arange(FRAMES, device=device)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(FRAMES, device=device),
        sampler=SliceSampler(slice_len=SLICE_STEPS, end_key=("next", "done"), strict_length=False),
        batch_size=SAMPLE_FRAMES,
    )
    buffer.extend(batch)
    sample = measure.timed(benchmark, device, buffer.sample)

    assert len(sample) > 0
    for key in ("observation", "action"):
        torch.testing.assert_close(sample[key], batch[key][sample["place"]], rtol=0, atol=0)
    note(benchmark, configuration, environment, "sample_time")


# configuration: (transform that restores, configuration with the truth, tolerance)
RESTORING = {
    "compact-step-counter": (
        lambda: NextStateReconstructor(step_count_key="step_count"),
        "step-counter",
        0,
    ),
    # A buffer has no spec to infer the keys from: without in_keys nothing is restored.
    "delta": (lambda: NextObservationDelta(in_keys=["observation"]), "default", 1e-3),
}


@pytest.mark.parametrize("configuration", RESTORING)
def bench_restore(benchmark, device, configuration):
    transform, complete, tolerance = RESTORING[configuration]
    batch = first_batch(configuration, "cartpole", device)
    truth = first_batch(complete, "cartpole", device)["next", "observation"]
    batch["place"] = torch.arange(FRAMES, device=device)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(FRAMES, device=device),
        sampler=SliceSampler(
            slice_len=SLICE_STEPS, traj_key=("collector", "traj_ids"), strict_length=False
        ),
        batch_size=SAMPLE_FRAMES,
        transform=transform(),
    )
    buffer.extend(batch)
    sample = measure.timed(benchmark, device, buffer.sample)

    restored = sample["next", "observation"]
    known = restored.isfinite().all(-1)
    assert known.any()
    torch.testing.assert_close(
        restored[known], truth[sample["place"]][known], rtol=0, atol=tolerance
    )
    note(benchmark, configuration, "cartpole", "restore_time")


if __name__ == "__main__":
    resident_growth(*sys.argv[1:])
