"""Checklist: one PPO iteration as people write it first, and with each item of the checklist.

An iteration collects, computes advantages and trains, on CartPole-v1 and on a synthetic environment
of 84 x 84 pixels. "alone" has one item; "with all above" has this item and those before it in the
order of this suite; both in rounds that go through all ways in turn, and divided by the round of
"before". Where an item must not change what is learned, the data and the parameters after two
iterations are compared with those of "before"; where it does, the frames and gradient steps are.
"""

import functools
import os
from typing import NamedTuple

os.environ.setdefault("RL_WARNINGS", "False")

import gymnasium
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import (
    Binary,
    Bounded,
    Composite,
    LazyTensorStorage,
    OneHot,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
    Unbounded,
)
from torchrl.envs import (
    DoubleToFloat,
    EnvBase,
    GymEnv,
    GymWrapper,
    RewardSum,
    StepCounter,
    ToTensorImage,
)
from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.utils import ValueEstimators
from torchrl.objectives.value.functional import vec_generalized_advantage_estimate

from benchmarks import metrics
from benchmarks.interleaved import report, rounds

GAMMA, LMBDA = 0.99, 0.95
SEED = 0
ROUNDS, WARMUP_ROUNDS = 7, 1
COUNT = 8  # of environments that step together
ITERATIONS = 2  # of the comparison of what is learned
PARAMETER_TOLERANCE = 1e-4  # the optimizer's step is 3e-4

METRICS = metrics.declare("""
iteration_time [s] Time of an iteration: Wall time of collecting, advantages and training.
gain [1] Times faster, alone: Time of "before" in the same round, divided by the time with this item
    alone.
gain_with_all_above [1] Times faster, with all above: Time of "before" in the same round, divided by
    the time with this item and those before it.
bytes_per_frame [B, exact] Bytes per frame: Bytes of the collected batch with this item alone,
    divided by its frames.
parameter_difference [1, exact] Largest difference of a parameter: Largest absolute difference of a
    parameter to that of "before", after two iterations from the same seed.
gradient_steps [1, exact] Gradient steps: Steps of the optimizer in one iteration.
""")


# -- Environments ----------------------------------------------------------------

ENDS = ("done", "terminated")


class Dot(EnvBase):
    """A dot falls on a paddle that moves; pixels of *count* of them, or of one without a batch.

    The episode ends when the dot lands, with a reward of one if the paddle is there.
    """

    SIZE, DEPTH, WIDTH, FALL = 84, 4, 12, 4

    def __init__(self, count=None):
        shape = () if count is None else (count,)
        super().__init__(batch_size=shape)
        pixels = (*shape, self.SIZE, self.SIZE, self.DEPTH)
        self.observation_spec = Composite(
            pixels=Bounded(0, 255, pixels, dtype=torch.uint8), shape=shape
        )
        self.action_spec = OneHot(3, shape=(*shape, 3))
        self.reward_spec = Unbounded((*shape, 1))
        ends = {key: Binary(1, shape=(*shape, 1), dtype=torch.bool) for key in ENDS}
        self.done_spec = Composite(ends, shape=shape)
        self.frames = torch.zeros(pixels, dtype=torch.uint8)
        self.row = self.column = self.paddle = torch.zeros(shape, dtype=torch.int64)
        self.place = torch.arange(self.SIZE)

    def _set_seed(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def covered(self, start, width):
        """Which places of a row lie in [start, start + width), for each environment."""
        start = start.unsqueeze(-1)
        return (self.place >= start) & (self.place < start + width)

    def draw(self):
        """The last four pictures, the newest last, in a tensor of its own."""
        dot = self.covered(self.row, 8).unsqueeze(-1) & self.covered(self.column, 8).unsqueeze(-2)
        newest = dot.to(torch.uint8) * 255
        newest[..., -4:, :] = self.covered(self.paddle, self.WIDTH).unsqueeze(-2) * 128
        self.frames = torch.cat([self.frames[..., 1:], newest.unsqueeze(-1)], -1)
        return self.frames

    def _reset(self, tensordict=None):
        mask = torch.ones(*self.batch_size, 1, dtype=torch.bool)
        if tensordict is not None:
            mask = tensordict.get("_reset", mask)
        mask = mask.squeeze(-1)
        column, paddle = torch.randint(
            self.SIZE - self.WIDTH, (2, *self.batch_size), generator=self.generator
        )
        self.row = torch.where(mask, torch.zeros_like(self.row), self.row)
        self.column = torch.where(mask, column, self.column)
        self.paddle = torch.where(mask, paddle, self.paddle)
        kept = self.frames * ~mask[..., None, None, None]
        # Those that go on keep their four pictures: a partial reset draws nothing for them.
        self.frames = kept
        drawn = self.draw()
        self.frames = torch.where(mask[..., None, None, None], drawn, kept)
        ends = {key: torch.zeros(*self.batch_size, 1, dtype=torch.bool) for key in ENDS}
        return TensorDict({"pixels": self.frames, **ends}, self.batch_size)

    def _step(self, tensordict):
        move = tensordict["action"].to(torch.int64).argmax(-1) - 1
        self.paddle = (self.paddle + 6 * move).clamp(0, self.SIZE - self.WIDTH)
        self.row = self.row + self.FALL
        landed = self.row >= self.SIZE - self.WIDTH
        caught = landed & ((self.paddle - self.column).abs() < self.WIDTH)
        return TensorDict(
            {
                "pixels": self.draw(),
                "reward": caught.float().unsqueeze(-1),
                **{key: landed.unsqueeze(-1).clone() for key in ENDS},
            },
            self.batch_size,
        )


class Scaled(nn.Module):
    """Bytes, height x width x channel, to what ToTensorImage makes of them."""

    def forward(self, pixels):
        if pixels.dtype is torch.uint8:
            pixels = pixels.permute(*range(pixels.ndim - 3), -1, -3, -2).float().div(255)
        return pixels


class Convolutions(nn.Module):
    """A small network; leading dimensions are a batch."""

    def __init__(self, outputs, device):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(Dot.DEPTH, 8, 8, 4, device=device),
            nn.ReLU(),
            nn.Conv2d(8, 16, 4, 2, device=device),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(1296, 64, device=device),
            nn.ReLU(),
            nn.Linear(64, outputs, device=device),
        )
        self.scaled = Scaled()

    def forward(self, pixels):
        pixels = self.scaled(pixels)
        found = self.layers(pixels.reshape(-1, *pixels.shape[-3:]))
        return found.reshape(*pixels.shape[:-3], -1)


class World(NamedTuple):
    """An environment, its network and the sizes of an iteration."""

    title: str
    key: str
    env: type
    frames: int
    epochs: int
    minibatch: int

    def network(self, outputs, device):
        if self.key == "pixels":
            return Convolutions(outputs, device)
        return MLP(4, outputs, num_cells=(64, 64), activation_class=nn.Tanh, device=device)


def cartpole(count=None):
    """Gymnasium's loop over *count* environments in this process, or one environment."""
    if count is None:
        return GymEnv("CartPole-v1")
    mode = gymnasium.vector.AutoresetMode.SAME_STEP  # GymWrapper refuses the default
    makers = [functools.partial(gymnasium.make, "CartPole-v1")] * count
    return GymWrapper(gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode))


WORLDS = {
    "cartpole": World("CartPole", "observation", cartpole, frames=128, epochs=2, minibatch=32),
    "pixels": World("84 x 84 pixels", "pixels", Dot, frames=64, epochs=1, minibatch=16),
}


# -- The items -------------------------------------------------------------------


class Item(NamedTuple):
    title: str
    worlds: tuple = ("cartpole", "pixels")
    same: bool = True  # the parameters have to come out as before


ITEMS = {
    "batched-env": Item("Eight environments in one, not one", same=False),
    "bytes": Item("Pixels stay uint8 until the network", ("pixels",)),
    "whole-batches": Item("One batch of all frames, not four", same=False),
    "masked-log": Item("Episode returns read with a mask"),
    "lean-env": Item("No transform that nothing reads"),
    "no-validation": Item("validate_args=False"),
    "index": Item("Minibatches by index, no replay buffer"),
    "fused": Item("Adam(fused=True)"),
    "vectorized": Item("GAE with vectorized=True"),
    "no-graph": Item("Advantages without a graph"),
    "shifted": Item("GAE with shifted=True"),
    "no-ids": Item("track_traj_ids=False"),
    "compact": Item("compact_obs=True, next values by shifting", same=False),
    "log-once": Item("Losses read once an iteration"),
}
BEFORE, AFTER = "before", "after"


def items_of(world):
    return [name for name, item in ITEMS.items() if world in item.worlds]


class Pipeline:
    """PPO with some items of the checklist."""

    def __init__(self, world, items, device):
        self.world, self.has, self.device = WORLDS[world], frozenset(items), device
        self.make_networks()
        self.make_collector()
        self.make_advantage()
        self.parameters = [p for p in self.loss.parameters() if p.requires_grad]
        fused = {"fused": True} if "fused" in self.has else {}
        self.optimizer = torch.optim.Adam(self.parameters, 3e-4, **fused)
        self.buffer, self.shuffle = None, torch.Generator().manual_seed(SEED)
        if "index" not in self.has:
            self.buffer = TensorDictReplayBuffer(
                storage=LazyTensorStorage(self.frames, device=device),
                sampler=SamplerWithoutReplacement(),
                batch_size=self.world.minibatch,
                generator=self.shuffle,
            )
        self.steps, self.returns, self.losses = 0, [], []

    @property
    def frames(self):
        """Frames of a batch; an iteration collects those of the world in any case."""
        return self.world.frames // (1 if "whole-batches" in self.has else 4)

    def make_networks(self):
        torch.manual_seed(SEED)
        actions, key = {"observation": 2, "pixels": 3}[self.world.key], self.world.key
        network = self.world.network(actions, self.device)
        options = {}
        if "no-validation" in self.has:
            options = {"distribution_kwargs": {"validate_args": False}}
        self.actor = ProbabilisticActor(
            TensorDictModule(network, [key], ["logits"]),
            in_keys=["logits"],
            distribution_class=OneHotCategorical,
            return_log_prob=True,
            **options,
        )
        self.critic = ValueOperator(self.world.network(1, self.device), in_keys=[key])
        self.loss = ClipPPOLoss(self.actor, self.critic)

    def make_env(self):
        env = self.world.env(COUNT if "batched-env" in self.has else None)
        env.set_seed(SEED)
        transforms = [RewardSum()]
        if "lean-env" not in self.has:
            transforms += [DoubleToFloat(), StepCounter()]
        if self.world.key == "pixels" and "bytes" not in self.has:
            transforms.append(ToTensorImage(in_keys=["pixels"]))
        for transform in transforms:  # those of a vector environment come first
            env = env.append_transform(transform)
        return env

    def make_collector(self):
        options = {}
        if "no-ids" in self.has:
            options["track_traj_ids"] = False
        if "compact" in self.has:
            options["compact_obs"] = True
        if self.device.type != "cpu":
            options |= {"policy_device": self.device, "env_device": "cpu"}
            options["storing_device"] = self.device
        self.collector = Collector(
            self.make_env(),
            self.actor,
            frames_per_batch=self.frames,
            total_frames=-1,
            auto_register_policy_transforms=False,
            **options,
        )

    def make_advantage(self):
        options = {"gamma": GAMMA, "lmbda": LMBDA}
        if "vectorized" in self.has:
            options["vectorized"] = True
        if "shifted" in self.has:
            options["shifted"] = True
        self.loss.make_value_estimator(ValueEstimators.GAE, **options)

    # -- One iteration

    def iterate(self):
        for _ in range(self.world.frames // self.frames):
            batch = self.collector.rollout()
            self.log_returns(batch)
            batch = self.advantages(batch)
            if self.buffer is not None:
                self.buffer.extend(batch.reshape(-1))
            for _ in range(self.world.epochs):
                for minibatch in self.minibatches(batch):
                    self.step(minibatch)
        if "log-once" in self.has:
            self.losses = torch.stack(self.losses).sum(-1).tolist()
        losses, self.losses = self.losses, []
        return losses

    def log_returns(self, batch):
        """Append the return of each episode that ended."""
        if "compact" in self.has:  # RewardSum's entry under next is gone as well
            total = batch["episode_reward"] + batch["next", "reward"]
            batch = batch.copy()
            batch["next", "episode_reward"] = total
        if "masked-log" in self.has:
            ended = batch["next", "done"]
            self.returns += batch["next", "episode_reward"][ended].tolist()
            return
        for frame in batch.reshape(-1):
            if frame["next", "done"].item():
                self.returns.append(frame["next", "episode_reward"].item())

    def advantages(self, batch):
        if "compact" in self.has:
            return self.advantages_without_next(batch)
        if "no-graph" in self.has:
            with torch.no_grad():
                return self.loss.value_estimator(batch)
        return self.loss.value_estimator(batch).detach()

    @torch.no_grad()
    def advantages_without_next(self, batch):
        """The next value is that of the following row; the last row takes its own."""
        value = self.critic(batch.select(self.world.key))["state_value"]
        following, next_ = torch.cat([value[..., 1:, :], value[..., -1:, :]], -2), batch["next"]
        ends = next_["done"], next_["terminated"]
        arguments = GAMMA, LMBDA, value, following, next_["reward"], *ends
        advantage, target = vec_generalized_advantage_estimate(*arguments)
        return batch.update({"advantage": advantage, "value_target": target, "state_value": value})

    def minibatches(self, batch):
        size = self.world.minibatch
        if self.buffer is None:
            batch = batch.reshape(-1)
            order = torch.randperm(self.frames, generator=self.shuffle)
            for index in order.split(size):
                yield batch[index.to(batch["action"].device)]
            return
        for _ in range(self.frames // size):
            yield self.buffer.sample()

    def step(self, minibatch):
        found = self.loss(minibatch)
        parts = [found[key] for key in ("loss_objective", "loss_critic", "loss_entropy")]
        sum(parts).backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        if "log-once" in self.has:
            self.losses.append(torch.stack([part.detach() for part in parts]))
        else:
            self.losses.append(sum(part.item() for part in parts))


# -- What is learned -------------------------------------------------------------


def learned(world, items, device):
    """Run from the seed; return what the comparison needs."""
    pipeline = Pipeline(world, items, device)
    torch.manual_seed(SEED)
    losses = [loss for _ in range(ITERATIONS) for loss in pipeline.iterate()]
    batch = pipeline.collector.rollout()
    size = sum(
        leaf.numel() * leaf.element_size()
        for leaf in batch.values(include_nested=True, leaves_only=True)
    )
    parameters = [parameter.detach().clone() for parameter in pipeline.parameters]
    pipeline.collector.shutdown()
    assert size % batch.numel() == 0
    return {
        "losses": losses,
        "returns": pipeline.returns,
        "parameters": parameters,
        "steps": pipeline.steps // ITERATIONS,
        "bytes": size // batch.numel(),
    }


def compare(world, items, device, before):
    """Assert that the items leave alone what they must leave alone."""
    ours = learned(world, items, device)
    pairs = zip(ours["parameters"], before["parameters"], strict=True)
    difference = max((a - b).abs().max().item() for a, b in pairs)
    assert all(torch.isfinite(torch.tensor(ours["losses"])))
    assert ours["steps"] == before["steps"], (items, ours["steps"], before["steps"])
    if all(ITEMS[name].same for name in items):
        assert difference < PARAMETER_TOLERANCE, (world, items, difference)
        assert ours["returns"] == before["returns"], items
        torch.testing.assert_close(ours["losses"], before["losses"], rtol=1e-3, atol=1e-4)
    return {
        "parameter_difference": difference,
        "gradient_steps": ours["steps"],
        "bytes_per_frame": ours["bytes"],
    }


# -- Timing ----------------------------------------------------------------------


class Measured:
    """All ways of one world: before, each item alone, each with all above it."""

    def __init__(self, world, device):
        names = items_of(world)
        ways = {(BEFORE, BEFORE): ()}
        ways |= {("alone", name): (name,) for name in names}
        ways |= {("above", name): names[: i + 1] for i, name in enumerate(names)}
        del ways["above", names[0]]  # the first alone
        before = learned(world, (), device)
        self.exact = {way: compare(world, items, device, before) for way, items in ways.items()}
        pipelines = {way: Pipeline(world, items, device) for way, items in ways.items()}
        torch.manual_seed(SEED)
        calls = {way: pipeline.iterate for way, pipeline in pipelines.items()}
        self.spent = rounds(device, calls, ROUNDS, WARMUP_ROUNDS)
        for pipeline in pipelines.values():
            pipeline.collector.shutdown()

    def gains(self, way):
        pairs = zip(self.spent[BEFORE, BEFORE], self.spent[way], strict=True)
        return [before / ours for before, ours in pairs]


measured = functools.lru_cache(maxsize=None)(Measured)


def cases():
    for world in WORLDS:
        for name in (BEFORE, *items_of(world), AFTER):
            yield world, name


@pytest.mark.parametrize(("world", "name"), list(cases()))
def bench_item(benchmark, device, world, name):
    found, names = measured(world, device), items_of(world)
    if name == BEFORE:
        way, sampled, title, same = (BEFORE, BEFORE), {}, "Before", True
    elif name == AFTER:
        way, title, same = ("above", names[-1]), "After: all items", False
        sampled = {"gain_with_all_above": found.gains(way)}
    else:
        way, title, same = ("alone", name), ITEMS[name].title, ITEMS[name].same
        above = ("above", name) if name != names[0] else way
        sampled = {"gain": found.gains(way), "gain_with_all_above": found.gains(above)}
    described = WORLDS[world]
    report(
        benchmark,
        found.spent[way],
        WARMUP_ROUNDS,
        f"{world}-{name}",
        "iteration_time",
        title=title,
        parameters={
            "world": described.title,
            "item": name,
            "same_result": same,
            "frames": described.frames,
            "epochs": described.epochs,
            "minibatch": described.minibatch,
        },
        exact=found.exact[way],
        sampled=sampled,
    )
