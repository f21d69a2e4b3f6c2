"""Recurrent PPO on CartPole without velocities: the recipe, what it rests on, and sb3-contrib.

Solved means that the mean return of the last 20 finished training episodes is 195 at the end of an
iteration. Each training is a process of its own with one thread; the contenders take turns, seed by
seed. Seconds begin before environments and networks are made, and after the imports. A training
stops when it is solved: later points of its curve repeat the last value. One that is never solved
stops after 100 000 frames, and that is its time. The interquartile mean leaves out the fastest and
the slowest of the five seeds; its interval is a bootstrap over seeds.
"""

import contextlib
import functools
from unittest import mock

import pytest

from benchmarks.recipes.recurrent_ppo_cartpole_contenders import THRESHOLD
from benchmarks.suites import bench_recipe_ppo_cartpole as feed_forward

CHILD = "benchmarks.recipes.recurrent_ppo_cartpole_contenders"
AT = {"frames": (8192, 16384, 32768, 65536), "seconds": (10, 20, 40, 80)}
CONTENDERS = {
    "torchrl-recipe": "TorchRL, GRU",
    "torchrl-unscaled": "TorchRL, rewards as they are",
    "torchrl-memoryless": "TorchRL, no memory",
    "sb3-zoo": "SB3, LSTM",
}
METRICS = feed_forward.METRICS
SEEDS = feed_forward.SEEDS
train_all = feed_forward.trained.__wrapped__


@functools.cache
def trained():
    """What each contender came to, by seed."""
    with mock.patch.multiple(feed_forward, CHILD=CHILD, CONTENDERS=CONTENDERS):
        return train_all()


@contextlib.contextmanager
def recurrent():
    """The benchmarks of the feed-forward recipe are of the recurrent one."""
    with mock.patch.multiple(feed_forward, trained=trained, CONTENDERS=CONTENDERS):
        yield


@pytest.mark.parametrize("way", CONTENDERS)
def bench_training(benchmark, device, way):
    with recurrent():
        feed_forward.bench_training(benchmark, device, way)
    benchmark.extra_info["parameters"]["threshold"] = THRESHOLD


@pytest.mark.parametrize(("axis", "at"), [(axis, at) for axis in AT for at in AT[axis]])
@pytest.mark.parametrize("way", CONTENDERS)
def bench_curve(benchmark, device, way, axis, at):
    with recurrent():
        feed_forward.bench_curve(benchmark, device, way, axis, at)
