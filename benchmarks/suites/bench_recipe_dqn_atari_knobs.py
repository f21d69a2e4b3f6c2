"""Knobs of DQN on Atari: an iteration of the recipe with and without each, in turns in one process.

An iteration collects a batch, and makes its updates, on one thread.
"""

import functools
from unittest import mock

import pytest
import torch
from torch import nn
from torchrl.objectives import DQNLoss

from benchmarks import interleaved, metrics
from benchmarks.recipes import dqn_atari
from benchmarks.suites.bench_recipe_ppo_cartpole import changed

ROUNDS, WARMUP_ROUNDS = 20, 2
GAME = dqn_atari.parse([]).game
METRICS = metrics.declare("""
iteration_time [s] Time of an iteration: Wall time of one iteration of the recipe.
time_vs_recipe [1] Time against the recipe: Time of an iteration, divided by that of the recipe in
    the same turn; above one, the change costs time.
""")


class ChannelsFirst(dqn_atari.Network):
    def forward(self, pixels):
        return nn.Sequential.forward(self, pixels / 255)


KNOBS = {  # title, name in the recipe, what replaces it
    "recipe": ("the recipe", None, None),
    "channels-first": ("channels first", "Network", ChannelsFirst),
    "not-double": ("double_dqn=False", "DQNLoss", changed(DQNLoss, double_dqn=False)),
    "one-by-one": ("a sample for each update", None, None),
    "not-fused": ("Adam without fused", None, None),
}


class Changed(dqn_atari.Run):
    """The recipe with one thing changed, beyond its random frames."""

    def __init__(self, knob):
        _, name, other = KNOBS[knob]
        options = dqn_atari.parse(["--frames", "4000"])
        one_by_one = mock.patch.object(dqn_atari.Run, "updates", 1)  # the buffer draws for one
        other = mock.patch.object(dqn_atari, name or "DQNLoss", other or DQNLoss)
        with one_by_one if knob == "one-by-one" else other:
            super().__init__(options, 0)
        if knob == "not-fused":
            self.optimizer = torch.optim.Adam(self.parameters, dqn_atari.LR, eps=1e-4)
        if knob == "one-by-one":
            draw, each = self.buffer.sample, range(self.updates)
            self.buffer.sample = lambda: torch.cat([draw() for _ in each])
        self.batches = iter(self.collector)
        while not self.progress["updates"]:
            self.iterate()


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
        parameters={"knob": KNOBS[knob][0], "game": GAME},
        sampled={} if knob == "recipe" else {"time_vs_recipe": ratios},
    )
