"""Frames of SAC on HalfCheetah: the recipe, compiled or not, Stable-Baselines3, SBX and Tianshou.

Each training is a process of its own with one thread, and ends after 3072 frames, of which the
first 1024 have random actions; two run at a time, the contenders in turns, seed by seed. All have
the hyperparameters of the recipe. Seconds begin after the imports. Functions that JAX or PyTorch
compiles are compiled in the first 1280 frames. Tianshou has an interpreter of its own, which uv
puts together, for it requires pandas, and tensordict is faster where pandas is installed.
"""

import functools
import importlib.metadata
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks import interleaved, metrics
from benchmarks.recipes.sac_halfcheetah_peers_contenders import FRAMES, RANDOM

ROOT = Path(__file__).parents[2]
SEEDS, AT_ONCE, FIRST = 5, 2, 1280
CHILD = "benchmarks.recipes.sac_halfcheetah_peers_contenders"
TIANSHOU = "2.0.1"

CONTENDERS = {
    "torchrl-recipe": "TorchRL, recipe",
    "torchrl-compiled": "TorchRL, loss compiled",
    "sb3-wide": "SB3",
    "sbx-wide": "SBX",
    "tianshou-wide": "Tianshou",
}
METRICS = metrics.declare("""
later_cpu [s] 1000 frames: Processor time of 1000 frames after the first 1280; each round is a seed.
later_time [s] 1000 frames, wall time: Wall time of the same frames, with two trainings at a time.
first_cpu [s] First 1280 frames: Processor time until 1280 frames, 256 of them with updates; what is
    compiled, is compiled here.
import_time [s] Time of the imports: Wall time from the start of the process to the first line that
    makes anything.
peak_memory [B] Peak memory: Highest resident memory of the process, with its libraries.
""")


def interpreter(way):
    """The command of a contender's Python."""
    if way != "tianshou-wide":
        return [sys.executable]
    version = importlib.metadata.version
    packages = [f"tianshou=={TIANSHOU}", f"torch=={version('torch')}"]
    packages += [f"gymnasium[mujoco]=={version('gymnasium')}", f"mujoco=={version('mujoco')}"]
    with_them = [word for package in packages for word in ("--with", package)]
    uv = Path(sys.executable).with_name("uv")
    return [str(uv), "run", "--isolated", "--no-project", "--quiet", *with_them, "python"]


def train(seed, way):
    """What one contender came to, in a process of its own."""
    variables = os.environ | {"OMP_NUM_THREADS": "1", "RL_WARNINGS": "False"}
    command = [*interpreter(way), "-m", CHILD, way, str(seed)]
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


@pytest.mark.parametrize("way", CONTENDERS)
def bench_frames(benchmark, device, way):
    pytest.importorskip("sbx")
    if device.type == "cuda":
        pytest.skip("the environment and the networks are on the CPU")
    runs = trained()[way]
    firsts = [next(point for point in run["points"] if point[0] >= FIRST) for run in runs]
    spent = [
        [1000 * (late - early) / (run["points"][-1][0] - first[0]) for early, late in pairs]
        for run, first in zip(runs, firsts, strict=True)
        for pairs in [zip(first[1:3], run["points"][-1][1:3], strict=True)]
    ]
    parameters = {"contender": CONTENDERS[way], "seeds": SEEDS, "at_once": AT_ONCE}
    parameters |= {"frames": FRAMES, "random": RANDOM, "first": FIRST}
    interleaved.report(
        benchmark,
        [cpu for _, cpu in spent],
        0,
        way,
        "later_cpu",
        title=CONTENDERS[way],
        parameters=parameters | ({"version": TIANSHOU} if way == "tianshou-wide" else {}),
        sampled={
            "later_time": [wall for wall, _ in spent],
            "first_cpu": [cpu for _, _, cpu, _ in firsts],
            "import_time": [run["imports"] for run in runs],
            "peak_memory": [run["memory"] for run in runs],
        },
    )
