"""
Use dict observations and hybrid actions
========================================

Wrap the environment as it is: each part of a dict action becomes an entry. Give each part a head
and a distribution, tell ``TanhNormal`` the bounds, and join the distributions with
``CompositeDistribution``. Join the parts of the observation with ``CatTensors``. PPO multiplies the
probabilities of the parts. ``MultiDiscrete`` actions, masks and goals have sections of their own.
"""

# %%
# .. fold:: Imports, and an environment of your own with dicts

import gymnasium as gym
import numpy as np
import torch
import torchrl

torchrl.logger.setLevel("ERROR")  # it announces each storage
torch.set_num_threads(1)
torch.manual_seed(0)


class Rover(gym.Env):
    """Drive to the middle: a gear, and a push in two directions."""

    observation_space = gym.spaces.Dict(
        position=gym.spaces.Box(-2, 2, (2,)), battery=gym.spaces.Box(0, 1, (1,))
    )
    action_space = gym.spaces.Dict(
        gear=gym.spaces.Discrete(3), push=gym.spaces.Box(-0.5, 0.5, (2,))
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self.battery = np.ones(1, np.float32)
        return self.observed(), {}

    def step(self, action):
        moved = self.position + 0.2 * action["gear"] * action["push"]
        self.position = moved.clip(-2, 2).astype(np.float32)
        self.battery -= np.float32(0.01)
        return self.observed(), -float(abs(self.position).sum()), False, False, {}

    def observed(self):
        return {"position": self.position.copy(), "battery": self.battery.copy()}


# %%
# Copy this, with your environment in place of ``Rover()``.

from tensordict.nn import (
    CompositeDistribution,
    NormalParamExtractor,
    TensorDictModule,
    TensorDictSequential,
)
from torchrl.collectors import Collector
from torchrl.envs import (
    CatTensors,
    Compose,
    ExplorationType,
    GymWrapper,
    StepCounter,
    ToTensorImage,
    TransformedEnv,
    set_exploration_type,
)
from torchrl.modules import (
    MLP,
    ConvNet,
    OneHotCategorical,
    ProbabilisticActor,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

PARTS = ["position", "battery"]
ACTIONS = ["gear", "push"]


def make_env():
    join = CatTensors(PARTS, "observation", sort=False)  # else by name
    env = TransformedEnv(GymWrapper(Rover()), Compose(join, StepCounter(20)))
    env.set_seed(0)
    return env


def make_actor(env, distribution=TanhNormal, **bounds):
    body = torch.nn.Sequential(torch.nn.Linear(3, 64), torch.nn.Tanh())
    gear = torch.nn.Linear(64, 3)
    push = torch.nn.Sequential(torch.nn.Linear(64, 4), NormalParamExtractor())
    net = TensorDictSequential(
        TensorDictModule(body, ["observation"], ["hidden"]),
        TensorDictModule(gear, ["hidden"], [("params", "gear", "logits")]),
        TensorDictModule(
            push, ["hidden"], [("params", "push", name) for name in ("loc", "scale")]
        ),
    )
    return ProbabilisticActor(
        net,
        in_keys=["params"],
        out_keys=ACTIONS,
        spec=env.action_spec,
        distribution_class=CompositeDistribution,
        distribution_kwargs={
            "distribution_map": {"gear": OneHotCategorical, "push": distribution},
            "extra_kwargs": {"push": bounds},
        },
        return_log_prob=True,
    )


env = make_env()
space = env.action_spec["push"].space  # else TanhNormal reaches from -1 to 1
actor = make_actor(env, low=space.low, high=space.high)
critic = ValueOperator(MLP(3, 1, num_cells=[64]), in_keys=["observation"])
advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
loss = ClipPPOLoss(actor, critic)
optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
options = {"frames_per_batch": 200, "total_frames": 400}
collector = Collector(env, actor, auto_register_policy_transforms=False, **options)
for batch in collector:
    advantage(batch)
    for _ in range(4):
        losses = loss(batch)
        names = ("loss_objective", "loss_critic", "loss_entropy")
        sum(losses[name] for name in names).backward()
        optimizer.step()
        optimizer.zero_grad()
collector.shutdown()

# %%
# Each part of the action has an entry, and so has the logarithm of its probability:

for name in ("observation", *ACTIONS, *(f"{part}_log_prob" for part in ACTIONS)):
    print(f"{name:<14} {tuple(batch[name].shape)}")

# %%
# Why it is right
# ---------------
#
# Given the observation, the parts are drawn independently, so their probabilities multiply. PPO
# adds the logarithms before it computes the ratio. Plain PyTorch gives the same loss:

with loss.actor_network_params.to_module(loss.actor_network), torch.no_grad():
    now = loss.actor_network.get_dist(batch).log_prob(batch.select(*ACTIONS))
change = sum(now[f"{part}_log_prob"] - batch[f"{part}_log_prob"] for part in ACTIONS)
ratio, gain = change.exp().unsqueeze(-1), batch["advantage"]
expected = -torch.min(ratio * gain, ratio.clip(0.8, 1.2) * gain).mean()
torch.testing.assert_close(loss(batch)["loss_objective"].detach(), expected)
print(f"largest ratio {ratio.max():.2f}; the loss is that of the product")

# %%
# If one part depends on another, such as a push for each gear, use a
# ``ProbabilisticTensorDictSequential``, which draws them one after the other. With DQN, every part
# has to be discrete, because DQN needs a value for each action. Leave
# ``set_composite_lp_aggregate`` at its default: if the actor stores the sum of the logarithms, PPO
# raises.
# :claim:`composite-sum-raises-in-ppo`
#
# ``gear`` is one-hot because, by default, ``GymWrapper`` encodes a ``Discrete`` space this way, in
# observations too. With ``categorical_action_encoding=True``, the gear is a number. Then use
# ``Categorical`` from ``torch.distributions``, with the same head. Your environment gets a number
# in both cases.

numbered = GymWrapper(Rover(), categorical_action_encoding=True)
for one in (GymWrapper(Rover()), numbered):
    print("a gear:", one.rand_action()["gear"].tolist())

# %%
# ``CatTensors`` joins the entries in alphabetical order, unless you pass ``sort=False``:

by_name = TransformedEnv(GymWrapper(Rover()), CatTensors(PARTS, "observation"))
first = by_name.reset()["observation"][0].item()
print(f"first number after a reset: {first} (battery)")
assert first == 1

# %%
# If the order changes, saved weights and statistics still load without an error, but belong to
# other entries. To keep the parts apart, let the network read several ``in_keys``.
#
# Images and tuples
# -----------------
#
# An image cannot be joined with vectors. Keep its entry, scale it with ``ToTensorImage``, and give
# it a network of its own. An ``MLP`` joins its ``in_keys``. ``GymWrapper`` stacks the parts of a
# ``Tuple`` if their spaces are equal. Otherwise it raises, so give the parts names first, as here.


class Seeing(gym.ObservationWrapper):
    """Rover with a camera. Position and battery come as a tuple."""

    camera = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    state = gym.spaces.Tuple([Rover.observation_space[part] for part in PARTS])
    observation_space = gym.spaces.Dict(camera=camera, state=state)

    def observation(self, seen):
        return {"camera": self.camera.sample(), "state": tuple(seen.values())}


def name_parts(seen):
    return {"camera": seen["camera"], **dict(zip(PARTS, seen["state"], strict=True))}


try:
    GymWrapper(Seeing(Rover())).reset()
    raise AssertionError("a tuple works by now")
except NotImplementedError as error:  # without it, the line above raises
    print("tuple:", error)
named = gym.spaces.Dict(camera=Seeing.camera, **Rover.observation_space)
named = gym.wrappers.TransformObservation(Seeing(Rover()), name_parts, named)
join = CatTensors(PARTS, "observation", sort=False)
env = TransformedEnv(
    GymWrapper(named), Compose(join, ToTensorImage(in_keys=["camera"]))
)
eye = ConvNet(num_cells=[16, 32], kernel_sizes=5, strides=3)
body = TensorDictSequential(  # in place of the body above
    TensorDictModule(eye, ["camera"], ["seen"]),
    TensorDictModule(MLP(out_features=64), ["seen", "observation"], ["hidden"]),
)
print("hidden:", tuple(body(env.rollout(5))["hidden"].shape))

# %%
# Several choices in one action: MultiDiscrete
# --------------------------------------------
#
# ``GymWrapper`` keeps a ``MultiDiscrete`` action in one entry. With
# ``categorical_action_encoding=True``, the entry has one number for each choice. A distribution
# that draws all of them:


class Choices(torch.distributions.Independent):
    """Independent choices of *sizes* options; *logits* has the options of all in one row."""

    def __init__(self, logits, sizes):
        parts = []
        for part in logits.split(sizes, dim=-1):  # what pads it has probability zero
            missing = (0, max(sizes) - part.shape[-1])
            parts.append(torch.nn.functional.pad(part, missing, value=-torch.inf))
        one_each = torch.distributions.Categorical(logits=torch.stack(parts, dim=-2))
        super().__init__(one_each, 1)


# %%
# .. fold:: A rover with three gears and four directions


class Stepping(gym.ActionWrapper):
    action_space = gym.spaces.MultiDiscrete([3, 4])

    def action(self, choices):
        assert choices in self.action_space
        angle = choices[1] * np.pi / 2
        push = np.array([np.cos(angle), np.sin(angle)]) / 2
        return {"gear": choices[0], "push": push}


# %%

env = GymWrapper(Stepping(Rover()), categorical_action_encoding=True)
join = CatTensors(PARTS, "observation", sort=False)
env = TransformedEnv(env, Compose(join, StepCounter(20)))
sizes = [3, 4]
chooser = ProbabilisticActor(
    TensorDictModule(MLP(3, sum(sizes)), ["observation"], ["logits"]),
    in_keys=["logits"],
    spec=env.action_spec,
    distribution_class=Choices,
    distribution_kwargs={"sizes": sizes},
    return_log_prob=True,
)
with set_exploration_type(ExplorationType.RANDOM), torch.no_grad():
    rows = advantage(env.rollout(200, chooser, break_when_any_done=False))
losses = ClipPPOLoss(chooser, critic)(rows)
print("action", tuple(rows["action"].shape), "of", rows["action"].amax(0).tolist())

expected = torch.zeros(len(rows))
for choice, logits in enumerate(rows["logits"].split(sizes, dim=-1)):
    chosen = rows["action"][:, choice, None]
    expected += logits.log_softmax(-1).gather(-1, chosen).squeeze(-1)
torch.testing.assert_close(rows["action_log_prob"], expected)
assert all(losses[name].isfinite() for name in names)

# %%
# The log-probability is the sum of those of the choices, as PPO needs it. Without
# ``categorical_action_encoding``, the action is one-hot, in a row of ``sum(sizes)`` numbers, or of
# shape ``(choices, options)`` if all choices have equally many options.

for space in ([3, 4], [3, 3]):
    Stepping.action_space = gym.spaces.MultiDiscrete(space)
    print(space, "one-hot:", tuple(GymWrapper(Stepping(Rover())).action_spec.shape))

# %%
# Forbidden actions and goals
# ---------------------------
#
# .. fold:: A walk on a line, with a goal, and a mask of the steps that are allowed


class Walk(gym.Env):
    place = gym.spaces.Box(0, 4, (1,))
    observation_space = gym.spaces.Dict(
        achieved_goal=place, desired_goal=place, action_mask=gym.spaces.MultiBinary(2)
    )
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.goal = 2, self.np_random.choice([0, 4])
        return self.observed(), {}

    def step(self, action):
        self.at += 2 * int(action) - 1
        assert 0 <= self.at <= 4
        reached = self.at == self.goal
        return self.observed(), float(reached), bool(reached), False, {}

    def observed(self):
        at, goal = (np.array([one], np.float32) for one in (self.at, self.goal))
        mask = np.array([self.at > 0, self.at < 4], np.int8)
        return {"achieved_goal": at, "desired_goal": goal, "action_mask": mask}


# %%
# Let the environment return the mask, where true means allowed. ``ActionMask`` makes random actions
# obey it. The policy has to read it as well:

from torchrl.envs import ActionMask, DTypeCastTransform
from torchrl.modules import MaskedOneHotCategorical

to_bool = DTypeCastTransform(torch.int8, torch.bool, in_keys=["action_mask"])
masked = Compose(to_bool, ActionMask(), StepCounter(8))
env = TransformedEnv(GymWrapper(Walk()), masked)
env.set_seed(0)
goals = ["achieved_goal", "desired_goal"]
walker = ProbabilisticActor(
    TensorDictModule(MLP(out_features=2), goals, ["logits"]),
    in_keys={"logits": "logits", "mask": "action_mask"},
    spec=env.action_spec,
    distribution_class=MaskedOneHotCategorical,
)
for policy in (None, walker):
    with set_exploration_type(ExplorationType.RANDOM):
        walk = env.rollout(200, policy, break_when_any_done=False)
    assert (walk["action"].bool() & walk["action_mask"]).any(-1).all()
print("no forbidden action in", 2 * len(walk), "steps")

# %%
# If an environment has goals, ``HERReplayBuffer`` (hindsight experience replay) relabels a share
# of each sample: by default, a row's goal becomes what that row or a later one of its episode has
# achieved, and your function computes the new reward. The policy must read both goals, as above.

from torchrl.data import HERReplayBuffer, LazyTensorStorage


def reward_of(rows):
    return (rows["next", "achieved_goal"] == rows["desired_goal"]).float()


for share in (0.0, 0.8):
    hindsight = HERReplayBuffer(
        reward_of, her_ratio=share, storage=LazyTensorStorage(200), batch_size=500
    )
    hindsight.extend(walk)
    reached = hindsight.sample()["next", "reward"].mean()
    print(f"{share:.0%} relabeled: the goal is reached in {reached:.0%} of the rows")

# %%
# Where it goes wrong without an error
# ------------------------------------
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    ``Normal`` for a part that has bounds, or a ``TanhNormal`` without these bounds. By default,
#    nothing clips these actions, so your environment can get actions outside its space:
#    :ref:`symptom-actions-and-bounds-differ`.


def rollout(actor, how="RANDOM"):
    with set_exploration_type(ExplorationType[how]):
        return make_env().rollout(200, actor, break_when_any_done=False)


actors = {
    "Normal": make_actor(make_env(), torch.distributions.Normal),
    "TanhNormal without bounds": make_actor(make_env()),
    "TanhNormal with bounds": actor,
}
for name, one in actors.items():
    outside = (rollout(one)["push"].abs() > 0.5).any(-1)
    print(f"{name}: {outside.float().mean():.0%} of the pushes are out of bounds")
    assert outside.any() == (one is not actor)

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    Training on batches of ``env.rollout(actor)``. By default, a rollout is deterministic, here in
#    every part of the action: :ref:`symptom-stochastic-policy-does-not-sample`.

for how in ("DETERMINISTIC", "RANDOM"):  # the first is the default of rollout
    rows = rollout(actor, how)
    likely = rows["gear"].argmax(-1) == rows["params", "gear", "logits"].argmax(-1)
    print(f"{how}: {likely.float().mean():.0%} of the gears are the most likely one")
    assert likely.all() == (how == "DETERMINISTIC")

# %%
# What it costs
# -------------
#
# The actor also writes the output of its body and its heads. Drop it before you store a batch,
# because the loss computes it again:

lean = batch.exclude("hidden", "params")
again = loss(lean)["loss_objective"]
torch.testing.assert_close(again, loss(batch)["loss_objective"])
for name, rows in {"with": batch, "without": lean}.items():
    print(f"{rows.bytes() // len(rows)} bytes a row {name} it")
assert lean.bytes() < batch.bytes()

# %%
# Related: :doc:`/reference/data_layout` for who writes which key, and
# :doc:`/performance/recipes/ppo_cartpole` for a whole training run with PPO.
