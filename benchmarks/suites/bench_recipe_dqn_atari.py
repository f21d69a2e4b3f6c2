"""DQN on an Atari game: the recipe, with priorities, Stable-Baselines3, and play at random.

Each training is a process of its own with one thread, and takes the same number of frames, which
are steps of the agent, four of the game each. Two run at a time, the contenders in turns, seed by
seed. Seconds begin before games and networks are made, and after the imports. A score is that of
whole training episodes, with the random actions of the exploration in it. Rewards are clipped for
learning and not in the score. Stable-Baselines3 has the network and the numbers of the recipe, but
for double DQN, and games, wrappers and buffer of its own.
"""

import functools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks import interleaved, metrics
from benchmarks.recipes import dqn_atari

ROOT = Path(__file__).parents[2]
CHILD = "benchmarks.recipes.dqn_atari_contenders"
OPTIONS = dqn_atari.parse([])
SEEDS, AT_ONCE = 3, 2
PIECES = 5  # of a training, whose scores make its curve

CONTENDERS = {
    "torchrl-recipe": "TorchRL, recipe",
    "torchrl-prioritized": "TorchRL, with priorities",
    "sb3": "SB3, as the recipe",
    "random": "at random",
}
METRICS = metrics.declare("""
wall_time [s] Wall time: Wall time of the frames, without imports; each round is a seed.
cpu_time [s] Processor time: The same in seconds of the processor.
frames_per_second [1] Frames per second: Frames, divided by their processor time.
last_score [1] Score at the end: Mean score of the episodes that ended in the last fifth of the
    frames; each round is a seed.
episode_score [1] Score: Mean score of the episodes that ended in a fifth of the frames; each round
    is a seed.
episodes [1] Episodes: Episodes that ended.
import_time [s] Time of the imports: Wall time from the start of the process to the first line that
    makes anything.
peak_memory [B] Peak memory: Highest resident memory of the process, with its libraries and buffer.
million_rows [B] Buffer of a million rows: Bytes of a row of the buffer, times a million.
collect_time [s] Collection: Wall time of collecting 1000 frames.
store_time [s] Storing: Wall time of writing 1000 frames to the buffer.
sample_time [s] Sampling: Wall time of the samples for 1000 frames.
update_time [s] Update: Wall time of the updates on 1000 frames.
""")


def train(seed, way):
    """What one contender came to, in a process of its own."""
    variables = os.environ | {"OMP_NUM_THREADS": "1", "RL_WARNINGS": "False"}
    command = [sys.executable, "-m", CHILD, way, str(seed)]
    options = {"cwd": ROOT, "env": variables, "capture_output": True, "text": True}
    child = subprocess.run(command, check=False, **options)
    assert child.returncode == 0, child.stderr
    found = json.loads(child.stdout.splitlines()[-1])
    print(way, seed, found["cpu"], last_score(found), file=sys.stderr, flush=True)
    return found


@functools.cache
def trained():
    """What each contender came to, by seed."""
    turns = [(seed, way) for seed in range(SEEDS) for way in CONTENDERS]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(turns, pool.map(train, *zip(*turns, strict=True)), strict=True))
    return {way: [found[seed, way] for seed in range(SEEDS)] for way in CONTENDERS}


def score_between(run, begin, end):
    """The mean score of the episodes that ended after *begin* frames and by *end*."""
    scores = [score for frames, score in run["episodes"] if begin < frames <= end]
    return sum(scores) / len(scores) if scores else None


def last_score(run):
    return score_between(run, run["frames"] * (PIECES - 1) / PIECES, run["frames"])


def parameters(way, **varied):
    title, game = CONTENDERS[way], OPTIONS.game
    said = {"contender": title, "game": game, "seeds": SEEDS, "at_once": AT_ONCE} | varied
    return {"title": ", ".join([title, *map(str, varied.values())]), "parameters": said}


@pytest.mark.parametrize("way", CONTENDERS)
def bench_training(benchmark, device, way):
    if device.type == "cuda":
        pytest.skip("the networks are too small for a GPU")
    runs = trained()[way]
    parts = {
        f"{part}_time": [1000 * run["parts"][part] / run["frames"] for run in runs]
        for part in runs[0]["parts"]
    }
    interleaved.report(
        benchmark,
        [run["seconds"] for run in runs],
        0,
        way,
        "wall_time",
        **parameters(way, frames=runs[0]["frames"]),
        sampled={
            "cpu_time": [run["cpu"] for run in runs],
            "frames_per_second": [run["frames"] / run["cpu"] for run in runs],
            "last_score": [last_score(run) for run in runs],
            "episodes": [len(run["episodes"]) for run in runs],
            "import_time": [run["imports"] for run in runs],
            "peak_memory": [run["memory"] for run in runs],
            **({"million_rows": [1e6 * runs[0]["row_bytes"]]} if parts else {}),
            **parts,
        },
    )


@pytest.mark.parametrize("piece", range(1, PIECES + 1))
@pytest.mark.parametrize("way", [way for way in CONTENDERS if way != "random"])
def bench_curve(benchmark, device, way, piece):
    if device.type == "cuda":
        pytest.skip("the networks are too small for a GPU")
    runs = trained()[way]
    end = OPTIONS.frames * piece // PIECES
    scores = [score_between(run, end - OPTIONS.frames // PIECES, end) for run in runs]
    if None in scores:
        pytest.skip(f"no episode of {CONTENDERS[way]} has ended by {end} frames in some seed")
    interleaved.report(
        benchmark,
        [run["seconds"] for run in runs],
        0,
        f"{way}-frames-{end}",
        "wall_time",
        **parameters(way, frames=end),
        sampled={"episode_score": scores},
    )
