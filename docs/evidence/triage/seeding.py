"""Which seed repeats what; for the triage page.

Each cell compares two runs that share one seed and nothing else: before it is set, every generator
of random numbers is given a new state.
"""

import json
import os
import random

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import numpy as np
import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.data import (
    LazyTensorStorage,
    PrioritizedSampler,
    RandomSampler,
    TensorDictReplayBuffer,
)
from torchrl.envs import GymEnv
from torchrl.modules import OneHotCategorical, ProbabilisticActor

SEED = 7
N_FRAMES = 500  # more than a random episode has
N_SAMPLED = 32

DRAWN = {
    "weights": "Initial weights of a network",
    "start": "First observation",
    "later": "Observation after an episode has ended",
    "actions": "Actions that a policy samples",
    "rows": "Rows that a replay buffer samples",
    "prioritized": "Rows that a prioritized buffer samples",
}
SEEDS = {
    "none": "nothing",
    "torch": "``torch.manual_seed``",
    "python": "``random.seed``",
    "numpy": "``numpy.random.seed``",
    "env": "``env.set_seed``",
    "collector": "``collector.set_seed``",
    "collector, reset": "``collector.set_seed``, then ``collector.reset``",
    "all": "``torch.manual_seed``, ``numpy.random.seed``, then ``env.set_seed``",
}


def forget():
    """Give every generator a state that no other run has."""
    for generator in (torch, random, np.random):
        generator.seed()


def pipeline(seeded):
    """What a run draws when *seeded* alone is set, as early as a program can."""
    forget()
    if seeded in ("torch", "all"):
        torch.manual_seed(SEED)
    if seeded == "python":
        random.seed(SEED)
    if seeded in ("numpy", "all"):
        np.random.seed(SEED)
    env = GymEnv("CartPole-v1")
    if seeded in ("env", "all"):
        env.set_seed(SEED)
    linear = torch.nn.Linear(4, 2)
    weights = linear.weight.detach().clone()
    with torch.no_grad():  # a policy that does not depend on its weights
        linear.weight.zero_()
        linear.bias.zero_()
    policy = ProbabilisticActor(
        TensorDictModule(linear, ["observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
    )
    options = {"auto_register_policy_transforms": False, "total_frames": -1}
    collector = Collector(env, policy, frames_per_batch=N_FRAMES, **options)
    if seeded.startswith("collector"):
        collector.set_seed(SEED)
    if seeded == "collector, reset":
        collector.reset()
    batch = next(iter(collector)).clone()
    collector.shutdown()
    ends = batch["next", "done"].squeeze(-1).nonzero().squeeze(-1)
    assert len(ends), "no episode ends in a batch"
    return {
        "weights": weights,
        "start": batch["observation"][0],
        "later": batch["observation"][ends[0] + 1],
        "actions": batch["action"].argmax(-1),
        "rows": rows_from(RandomSampler(), batch),
        "prioritized": rows_from(PrioritizedSampler(N_FRAMES, alpha=0.7, beta=0.9), batch),
    }


def rows_from(sampler, batch):
    """Which rows of the batch *sampler* draws."""
    replay_buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(N_FRAMES), sampler=sampler)
    replay_buffer.extend(batch)
    return replay_buffer.sample(N_SAMPLED)["index"].clone()


def repeats(seeded):
    """Which of DRAWN two runs have in common."""
    first, second = pipeline(seeded), pipeline(seeded)
    return {name: torch.equal(first[name], second[name]) for name in DRAWN}


def main():
    found = {seeded: repeats(seeded) for seeded in SEEDS}
    assert not any(found["none"].values()), "two runs without a seed agree"
    assert not any(found["python"].values()), "TorchRL draws from Python's generator"
    of_numpy = [name for name, hit in found["numpy"].items() if hit]
    assert of_numpy == ["prioritized"], "something else draws from numpy.random"
    assert not found["torch"]["prioritized"], "a prioritized sampler draws from torch's generator"
    assert not found["torch"]["start"], "torch.manual_seed repeats the environment"
    assert not found["collector"]["start"], "collector.set_seed comes before the first reset"
    for name in ("weights", "actions", "rows", "prioritized"):
        assert not found["collector"][name], "collector.set_seed seeds more than the environment"
    assert found["collector"]["later"], "collector.set_seed seeds no later episode"
    assert all(found["all"].values()), "both seeds together do not repeat the run"
    columns = ["Set", *DRAWN.values()]
    rows = [[SEEDS[s], *("yes" if hit else "no" for hit in found[s].values())] for s in SEEDS]
    print(json.dumps({"table": {"columns": columns, "rows": rows}}))


if __name__ == "__main__":
    main()
