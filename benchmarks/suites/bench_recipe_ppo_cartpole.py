"""PPO on CartPole until it is solved: the recipe, TorchRL's plain style, and Stable-Baselines3.

Solved means that the mean return of the last 20 finished training episodes is 475 at the end of an
iteration. Each training is a process of its own with one thread; the contenders take turns, seed by
seed. Seconds begin before environments and networks are made, and after the imports. A training
stops when it is solved: later points of its curve repeat the last value. The interquartile mean
leaves out the fastest and the slowest of the five seeds; its interval is a bootstrap over seeds.
A knob is timed on iterations of the recipe with and without it, in turns in one process.
"""

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from torchrl.collectors import Collector
from torchrl.envs import GymEnv, RewardSum, SerialEnv, TransformedEnv
from torchrl.objectives import ClipPPOLoss

from benchmarks import interleaved, metrics
from benchmarks.recipes import ppo_cartpole

ROOT = Path(__file__).parents[2]
SEEDS = 5
RESAMPLES = 10_000
ROUNDS, WARMUP_ROUNDS = 15, 2
AT = {"frames": (4096, 8192, 16384, 24576, 32768), "seconds": (10, 20, 30, 40, 60)}
CHILD = "benchmarks.recipes.ppo_cartpole_contenders"

CONTENDERS = {
    "torchrl-plain": "TorchRL, plain",
    "torchrl-zoo": "TorchRL, 8 x 32",
    "torchrl-recipe": "TorchRL, recipe",
    "sb3-default": "SB3, defaults",
    "sb3-zoo": "SB3, 8 x 32",
    "sb3-wide": "SB3, 32 x 8",
}
METRICS = metrics.declare("""
time_to_threshold [s] Time to the threshold: Wall time until CartPole is solved, without imports;
    each round is a seed.
cpu_to_threshold [s] Processor time to the threshold: The same in seconds of the processor.
time_iqm [s, summary] Wall time: Interquartile mean of the time to the threshold, over the seeds.
time_iqm_low [s, summary] Wall time from: Lower end of the 95 percent interval of that mean.
time_iqm_high [s, summary] Wall time to: Upper end of that interval.
cpu_iqm [s, summary] Processor time: Interquartile mean of the processor time to the threshold.
cpu_iqm_low [s, summary] From: Lower end of the 95 percent interval of that mean.
cpu_iqm_high [s, summary] To: Upper end of that interval.
frames_to_threshold [1] Frames to the threshold: Frames until CartPole is solved.
solved [1] Solved: Share of the seeds that reached the threshold within 100 000 frames.
frames_per_second [1] Frames per second: Frames to the threshold, divided by their wall time.
import_time [s] Time of the imports: Wall time from the start of the process to the first line that
    makes anything; mostly that of torch, and where its files have been read before.
peak_memory [B] Peak memory: Highest resident memory of the process, with its libraries.
collect_time [s] Collection: Wall time of collecting 1000 frames.
advantage_time [s] Advantage: Wall time of the advantages of 1000 frames.
update_time [s] Update: Wall time of the updates on 1000 frames.
episode_return [1] Return of an episode: Mean return of the last 20 finished episodes; each round is
    a seed.
iteration_time [s] Time of an iteration: Wall time of one iteration of the recipe.
time_vs_recipe [1] Time against the recipe: Time of an iteration, divided by that of the recipe in
    the same turn; above one, the change costs time.
""")


@functools.cache
def trained():
    """What each contender came to, by seed."""
    found = {way: [] for way in CONTENDERS}
    variables = os.environ | {"OMP_NUM_THREADS": "1", "RL_WARNINGS": "False"}
    for seed in range(SEEDS):
        for way in CONTENDERS:
            command = [sys.executable, "-m", CHILD, way, str(seed)]
            options = {"cwd": ROOT, "env": variables, "capture_output": True, "text": True}
            child = subprocess.run(command, check=False, **options)
            assert child.returncode == 0, child.stderr
            found[way].append(json.loads(child.stdout.splitlines()[-1]))
            print(way, seed, found[way][-1]["points"][-1], file=sys.stderr, flush=True)
    return found


def interquartile_mean(values):
    """The mean without the lowest and the highest quarter, rounded down, along the last axis."""
    cut = values.shape[-1] // 4
    return np.sort(values)[..., cut : values.shape[-1] - cut].mean(-1)


def estimate(values, name):
    """The interquartile mean with its interval: percentiles of a bootstrap over seeds."""
    values = np.array(values)
    drawn = np.random.default_rng(0).choice(values, (RESAMPLES, len(values)))
    low, high = np.percentile(interquartile_mean(drawn), (2.5, 97.5))
    whole = interquartile_mean(values)
    ends = {name: whole, f"{name}_low": low, f"{name}_high": high}
    return {metric: [float(value)] for metric, value in ends.items()}


def value_at(points, axis, at):
    """The return that a training had shown by *at*; None before its first episodes."""
    column = {"frames": 0, "seconds": 1}[axis]
    past = [point[-1] for point in points if point[column] <= at]
    return past[-1] if past else None


@pytest.mark.parametrize("way", CONTENDERS)
def bench_training(benchmark, device, way):
    if device.type == "cuda":
        pytest.skip("the networks are too small for a GPU")
    runs = trained()[way]
    frames, seconds, cpu, _ = zip(*(run["points"][-1] for run in runs), strict=True)
    parts = {
        f"{part}_time": [1000 * run["parts"][part] / n for run, n in zip(runs, frames, strict=True)]
        for part in ("collect", "advantage", "update")
    }
    interleaved.report(
        benchmark,
        seconds,
        0,
        way,
        "time_to_threshold",
        title=CONTENDERS[way],
        parameters={"contender": CONTENDERS[way], "seeds": SEEDS, "threshold": 475, "episodes": 20},
        sampled={
            "cpu_to_threshold": list(cpu),
            "frames_to_threshold": list(frames),
            "frames_per_second": [n / s for n, s in zip(frames, seconds, strict=True)],
            "solved": [sum(run["solved"] for run in runs) / SEEDS],
            "import_time": [run["imports"] for run in runs],
            "peak_memory": [run["memory"] for run in runs],
            **parts,
            **estimate(seconds, "time_iqm"),
            **estimate(cpu, "cpu_iqm"),
        },
    )


@pytest.mark.parametrize(("axis", "at"), [(axis, at) for axis in AT for at in AT[axis]])
@pytest.mark.parametrize("way", CONTENDERS)
def bench_curve(benchmark, device, way, axis, at):
    if device.type == "cuda":
        pytest.skip("the networks are too small for a GPU")
    runs = trained()[way]
    values = [value_at(run["points"], axis, at) for run in runs]
    if None in values:
        pytest.skip(f"no episode of {CONTENDERS[way]} has ended after {at} {axis} in some seed")
    assert all(1 <= value <= 500 for value in values)
    interleaved.report(
        benchmark,
        [run["points"][-1][1] for run in runs],
        0,
        f"{way}-{axis}-{at}",
        "time_to_threshold",
        title=f"{CONTENDERS[way]}, after {at} {axis}",
        parameters={"contender": CONTENDERS[way], axis: at, "seeds": SEEDS},
        sampled={"episode_return": [round(value, 1) for value in values]},
    )


# -- Knobs -----------------------------------------------------------------------


def serial_env(count, seed):
    env = TransformedEnv(SerialEnv(count, lambda: GymEnv("CartPole-v1")), RewardSum())
    env.set_seed(seed)
    return env


def changed(make, **options):
    """*make* with other keyword arguments."""
    return lambda *arguments, **named: make(*arguments, **(named | options))


KNOBS = {  # title, where, and what replaces it
    "recipe": ("the recipe", None, None),
    "batched-env": ("SerialEnv in place of SyncVectorEnv", "make_env", serial_env),
    "ids": ("with trajectory ids", "Collector", changed(Collector, track_traj_ids=True)),
    "not-fused": ("Adam without fused", None, {"fused": False, "foreach": None}),
    "functional": ("functional=True", "ClipPPOLoss", changed(ClipPPOLoss, functional=True)),
    "explained": (
        "log_explained_variance=True",
        "ClipPPOLoss",
        changed(ClipPPOLoss, log_explained_variance=True),
    ),
    "no-lookup": ("without tensordict's search for pandas", None, None),
}


class Changed(ppo_cartpole.Run):
    """The recipe with one thing changed."""

    def __init__(self, knob):
        self.knob = knob
        _, name, other = KNOBS[knob]
        options = ppo_cartpole.parse(["--frames", str(10**9)])
        if name:
            with mock.patch.object(ppo_cartpole, name, other):
                super().__init__(options, 0)
        else:
            super().__init__(options, 0)
        self.batches = iter(self.collector)

    def make_optimizer(self):
        optimizer = super().make_optimizer()
        if isinstance(other := KNOBS[self.knob][2], dict):
            optimizer = torch.optim.Adam(self.parameters, **(optimizer.defaults | other))
        return optimizer

    def turn(self):
        if self.knob == "no-lookup":
            with mock.patch.object(importlib.util, "find_spec", return_value=None):
                return self.iterate()
        return self.iterate()


@functools.cache
def timed(device):
    torch.set_num_threads(1)
    runs = {knob: Changed(knob) for knob in KNOBS}
    spent = interleaved.rounds(
        device, {knob: run.turn for knob, run in runs.items()}, ROUNDS, WARMUP_ROUNDS
    )
    for run in runs.values():
        run.collector.shutdown()
    return spent


@pytest.mark.parametrize("knob", KNOBS)
def bench_knob(benchmark, device, knob):
    if device.type == "cuda":
        pytest.skip("the networks are too small for a GPU")
    spent = timed(device)
    ratios = [ours / base for ours, base in zip(spent[knob], spent["recipe"], strict=True)]
    interleaved.report(
        benchmark,
        spent[knob],
        WARMUP_ROUNDS,
        f"knob-{knob}",
        "iteration_time",
        title=KNOBS[knob][0],
        parameters={"knob": KNOBS[knob][0], "frames": 256, "epochs": ppo_cartpole.EPOCHS},
        sampled={} if knob == "recipe" else {"time_vs_recipe": ratios},
    )
