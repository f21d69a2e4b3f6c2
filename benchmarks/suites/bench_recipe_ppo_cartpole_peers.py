"""PPO on CartPole until it is solved: the recipe, and Stable-Baselines3, SBX and Tianshou.

As in the suite of the recipe: solved means that the mean return of the last 20 finished training
episodes is 475 at the end of an iteration, each training is a process of its own with one thread,
the contenders take turns, seed by seed, and seconds begin after the imports. Functions that JAX
compiles are compiled in these seconds. Tianshou has an interpreter of its own, which uv puts
together, for it requires pandas, and tensordict is faster where pandas is installed.
"""

import functools
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import interleaved, metrics
from benchmarks.suites.bench_recipe_ppo_cartpole import estimate

ROOT = Path(__file__).parents[2]
SEEDS = 5
CHILD = "benchmarks.recipes.ppo_cartpole_peers_contenders"
TIANSHOU = "2.0.1"

CONTENDERS = {
    "torchrl-recipe": "TorchRL, recipe",
    "sb3-wide": "SB3, 32 x 8",
    "sbx-wide": "SBX, 32 x 8",
    "sbx-default": "SBX, defaults",
    "tianshou-wide": "Tianshou, 32 x 8",
}
METRICS = metrics.declare("""
time_to_threshold [s] Time to the threshold: Wall time until CartPole is solved, without imports;
    each round is a seed.
cpu_to_threshold [s] Processor time to the threshold: The same in seconds of the processor.
cpu_iqm [s, summary] Processor time: Interquartile mean of the processor time to the threshold.
cpu_iqm_low [s, summary] From: Lower end of the 95 percent interval of that mean.
cpu_iqm_high [s, summary] To: Upper end of that interval.
frames_to_threshold [1] Frames to the threshold: Frames until CartPole is solved.
first_cpu [s] First iteration: Processor time until the first iteration ends; what is compiled, is
    compiled here.
later_cpu [s] 1000 frames: Processor time of 1000 frames after the first iteration.
solved [1] Solved: Share of the seeds that reached the threshold within 100 000 frames.
import_time [s] Time of the imports: Wall time from the start of the process to the first line that
    makes anything.
peak_memory [B] Peak memory: Highest resident memory of the process, with its libraries.
""")


def interpreter(way):
    """The command of a contender's Python."""
    if way != "tianshou-wide":
        return [sys.executable]
    packages = [f"tianshou=={TIANSHOU}", f"torch=={importlib.metadata.version('torch')}"]
    with_them = [word for package in packages for word in ("--with", package)]
    uv = Path(sys.executable).with_name("uv")
    return [str(uv), "run", "--isolated", "--no-project", "--quiet", *with_them, "python"]


@functools.cache
def trained():
    """What each contender came to, by seed."""
    found = {way: [] for way in CONTENDERS}
    variables = os.environ | {"OMP_NUM_THREADS": "1", "RL_WARNINGS": "False"}
    for seed in range(SEEDS):
        for way in CONTENDERS:
            command = [*interpreter(way), "-m", CHILD, way, str(seed)]
            options = {"cwd": ROOT, "env": variables, "capture_output": True, "text": True}
            child = subprocess.run(command, check=False, **options)
            assert child.returncode == 0, child.stderr
            found[way].append(json.loads(child.stdout.splitlines()[-1]))
            print(way, seed, found[way][-1]["points"][-1], file=sys.stderr, flush=True)
    return found


@pytest.mark.parametrize("way", CONTENDERS)
def bench_training(benchmark, device, way):
    pytest.importorskip("sbx")
    if device.type == "cuda":
        pytest.skip("the networks are too small for a GPU")
    runs = trained()[way]
    frames, seconds, cpu, _ = zip(*(run["points"][-1] for run in runs), strict=True)
    begun, _, first, _ = zip(*(run["points"][0] for run in runs), strict=True)
    later = zip(frames, begun, cpu, first, strict=True)
    parameters = {"contender": CONTENDERS[way], "seeds": SEEDS, "threshold": 475, "episodes": 20}
    interleaved.report(
        benchmark,
        seconds,
        0,
        way,
        "time_to_threshold",
        title=CONTENDERS[way],
        parameters=parameters | ({"version": TIANSHOU} if way == "tianshou-wide" else {}),
        sampled={
            "cpu_to_threshold": list(cpu),
            "frames_to_threshold": list(frames),
            "first_cpu": list(first),
            "later_cpu": [1000 * (end - start) / (n - m) for n, m, end, start in later],
            "solved": [sum(run["solved"] for run in runs) / SEEDS],
            "import_time": [run["imports"] for run in runs],
            "peak_memory": [run["memory"] for run in runs],
            **estimate(cpu, "cpu_iqm"),
        },
    )
