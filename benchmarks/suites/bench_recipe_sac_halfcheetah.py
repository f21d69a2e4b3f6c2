"""SAC on HalfCheetah until a return is reached: the recipe, and Stable-Baselines3.

Reached means that the mean return of the last 4 finished training episodes is at least that. Each
training is a process of its own with one thread; two run at a time, the contenders in turns, seed
by seed. Seconds begin before environments and networks are made, and after the imports. A training
stops when it is there: later points of its curve repeat the last value. One that does not get there
stops after the most frames that it may take, and that is its time. A knob is timed on iterations of
the recipe with and without it, in turns in one process.
"""

import functools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
import torch
from torchrl.collectors import Collector
from torchrl.objectives import SACLoss

from benchmarks import interleaved, metrics
from benchmarks.recipes import sac_halfcheetah
from benchmarks.recipes.sac_halfcheetah_contenders import EPISODES, PARTS, THRESHOLD
from benchmarks.suites.bench_recipe_ppo_cartpole import changed, value_at

ROOT = Path(__file__).parents[2]
SEEDS, AT_ONCE = 3, 2
ROUNDS, WARMUP_ROUNDS = 10, 2
AT = {"frames": (4000, 8000, 12000, 16000, 20000, 24000), "seconds": (120, 240, 360, 480, 600)}
CHILD = "benchmarks.recipes.sac_halfcheetah_contenders"

CONTENDERS = {
    "torchrl-recipe": "TorchRL, recipe",
    "sb3-wide": "SB3, as the recipe",
    "sb3-default": "SB3, defaults",
}
METRICS = metrics.declare("""
time_to_threshold [s] Time to the threshold: Wall time until the return is reached, without imports;
    each round is a seed.
cpu_to_threshold [s] Processor time to the threshold: The same in seconds of the processor.
frames_to_threshold [1] Frames to the threshold: Frames until the return is reached.
solved [1] Solved: Share of the seeds that reached the return in time.
frames_per_second [1] Frames per second: Frames to the threshold, divided by their wall time.
import_time [s] Time of the imports: Wall time from the start of the process to the first line that
    makes anything; mostly that of torch, and where its files have been read before.
peak_memory [B] Peak memory: Highest resident memory of the process, with its libraries.
collect_time [s] Collection: Wall time of collecting 1000 frames.
sample_time [s] Sampling: Wall time of sampling from the buffer, for 1000 frames; in TorchRL with
    the writing.
update_time [s] Update: Wall time of the updates for 1000 frames.
episode_return [1] Return of an episode: Mean return of the last 4 finished episodes; each round is
    a seed.
iteration_time [s] Time of an iteration: Wall time of one iteration of the recipe.
time_vs_recipe [1] Time against the recipe: Time of an iteration, divided by that of the recipe in
    the same turn; above one, the change costs time.
""")


def train(seed, way):
    """What one contender came to, in a process of its own."""
    variables = os.environ | {"OMP_NUM_THREADS": "1", "RL_WARNINGS": "False"}
    command = [sys.executable, "-m", CHILD, way, str(seed)]
    options = {"cwd": ROOT, "env": variables, "capture_output": True, "text": True}
    child = subprocess.run(command, check=False, **options)
    assert child.returncode == 0, child.stderr
    found = json.loads(child.stdout.splitlines()[-1])
    print(way, seed, found["points"][-1], file=sys.stderr, flush=True)
    return found


@functools.cache
def trained():
    """What each contender came to, by seed."""
    turns = [(seed, way) for seed in range(SEEDS) for way in CONTENDERS]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(turns, pool.map(train, *zip(*turns, strict=True)), strict=True))
    return {way: [found[seed, way] for seed in range(SEEDS)] for way in CONTENDERS}


def check(device):
    """Skip what needs MuJoCo, and what no GPU takes part in."""
    pytest.importorskip("mujoco")
    if device.type == "cuda":
        pytest.skip("the environment and the networks are on the CPU")


@pytest.mark.parametrize("way", CONTENDERS)
def bench_training(benchmark, device, way):
    check(device)
    runs = trained()[way]
    frames, seconds, cpu, _ = zip(*(run["points"][-1] for run in runs), strict=True)
    parts = {
        f"{part}_time": [1000 * run["parts"][part] / n for run, n in zip(runs, frames, strict=True)]
        for part in PARTS
    }
    parameters = {"contender": CONTENDERS[way], "seeds": SEEDS, "at_once": AT_ONCE}
    interleaved.report(
        benchmark,
        seconds,
        0,
        way,
        "time_to_threshold",
        title=CONTENDERS[way],
        parameters=parameters | {"threshold": THRESHOLD, "episodes": EPISODES},
        sampled={
            "cpu_to_threshold": list(cpu),
            "frames_to_threshold": list(frames),
            "frames_per_second": [n / s for n, s in zip(frames, seconds, strict=True)],
            "solved": [sum(run["solved"] for run in runs) / SEEDS],
            "import_time": [run["imports"] for run in runs],
            "peak_memory": [run["memory"] for run in runs],
            **parts,
        },
    )


@pytest.mark.parametrize(("axis", "at"), [(axis, at) for axis in AT for at in AT[axis]])
@pytest.mark.parametrize("way", CONTENDERS)
def bench_curve(benchmark, device, way, axis, at):
    check(device)
    runs = trained()[way]
    values = [value_at(run["points"], axis, at) for run in runs]
    if None in values:
        pytest.skip(f"no {EPISODES} episodes of {CONTENDERS[way]} after {at} {axis} in some seed")
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


KNOBS = {  # title, name in the recipe, what replaces it
    "recipe": ("the recipe", None, None),
    "one-env": ("one environment, 32 steps", None, ["--envs", "1", "--steps", "32"]),
    "ids": ("with trajectory ids", "Collector", changed(Collector, track_traj_ids=True)),
    "loop": ("deactivate_vmap=True", "SACLoss", changed(SACLoss, deactivate_vmap=True)),
    "one-by-one": ("a sample for each update", None, None),
    "not-fused": ("Adam without fused", None, None),
}


class Changed(sac_halfcheetah.Run):
    """The recipe with one thing changed, beyond its random frames."""

    def __init__(self, knob):
        self.knob = knob
        _, name, other = KNOBS[knob]
        arguments = [] if name or other is None else other
        options = sac_halfcheetah.parse(["--random", "256", "--frames", "100000", *arguments])
        with mock.patch.object(sac_halfcheetah, name or "Collector", other if name else Collector):
            super().__init__(options, 0)
        if knob == "not-fused":
            self.optimizer = torch.optim.Adam(self.parameters, sac_halfcheetah.LR)
        self.batches = iter(self.collector)
        while not self.learning:
            self.iterate()

    def draw(self, updates):
        if self.knob == "one-by-one":
            return [self.buffer.sample(sac_halfcheetah.BATCH) for _ in range(updates)]
        return super().draw(updates)


@functools.cache
def timed(device):
    torch.set_num_threads(1)
    runs = {knob: Changed(knob) for knob in KNOBS}
    spent = interleaved.rounds(
        device, {knob: run.iterate for knob, run in runs.items()}, ROUNDS, WARMUP_ROUNDS
    )
    for run in runs.values():
        run.collector.shutdown()
    return spent


@pytest.mark.parametrize("knob", KNOBS)
def bench_knob(benchmark, device, knob):
    check(device)
    spent = timed(device)
    ratios = [ours / base for ours, base in zip(spent[knob], spent["recipe"], strict=True)]
    options = sac_halfcheetah.parse([])
    frames = options.envs * options.steps
    interleaved.report(
        benchmark,
        spent[knob],
        WARMUP_ROUNDS,
        f"knob-{knob}",
        "iteration_time",
        title=KNOBS[knob][0],
        parameters={"knob": KNOBS[knob][0], "frames": frames, "ratio": options.ratio},
        sampled={} if knob == "recipe" else {"time_vs_recipe": ratios},
    )
