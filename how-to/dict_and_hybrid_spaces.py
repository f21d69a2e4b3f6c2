"""
Use dict observations and hybrid actions
========================================

Wrap the environment as it is: each part of its action becomes an entry. Give each part a head and a
distribution, and join them with ``CompositeDistribution``. Join the parts of the observation with
``CatTensors``. PPO takes the product of the probabilities.
"""

# %%
# .. fold:: Imports, and an environment of your own with dicts

import gymnasium as gym
import numpy as np
import torch

torch.set_num_threads(1)
torch.manual_seed(0)


class Rover(gym.Env):
    """Drive to the middle: a gear, and a push in two directions."""

    observation_space = gym.spaces.Dict(
        position=gym.spaces.Box(-2, 2, (2,)), battery=gym.spaces.Box(0, 1, (1,))
    )
    action_space = gym.spaces.Dict(
        gear=gym.spaces.Discrete(3), push=gym.spaces.Box(-1, 1, (2,))
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self.battery = np.ones(1, np.float32)
        return self.observed(), {}

    def step(self, action):
        moved = self.position + 0.1 * action["gear"] * action["push"]
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
    TransformedEnv,
    set_exploration_type,
)
from torchrl.modules import (
    MLP,
    OneHotCategorical,
    ProbabilisticActor,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

PARTS = ["position", "battery"]
HEADS = {"gear": OneHotCategorical, "push": TanhNormal}


def make_env():
    join = CatTensors(PARTS, "observation", sort=False)  # else by name
    env = TransformedEnv(GymWrapper(Rover()), Compose(join, StepCounter(20)))
    env.set_seed(0)
    return env


def make_actor(env, heads=HEADS):
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
        out_keys=list(heads),
        spec=env.action_spec,
        distribution_class=CompositeDistribution,
        distribution_kwargs={"distribution_map": heads},
        return_log_prob=True,
    )


env = make_env()
actor = make_actor(env)
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

for name in ("observation", *HEADS, *(f"{head}_log_prob" for head in HEADS)):
    print(f"{name:<14} {tuple(batch[name].shape)}")

# %%
# Why it is right
# ---------------
#
# Given the observation, the parts are drawn independently, so their probabilities multiply. PPO
# adds the logarithms before it computes the ratio. Plain PyTorch gives the same loss:

with loss.actor_network_params.to_module(loss.actor_network), torch.no_grad():
    now = loss.actor_network.get_dist(batch).log_prob(batch.select(*HEADS))
change = sum(now[f"{head}_log_prob"] - batch[f"{head}_log_prob"] for head in HEADS)
ratio, gain = change.exp().unsqueeze(-1), batch["advantage"]
expected = -torch.min(ratio * gain, ratio.clip(0.8, 1.2) * gain).mean()
torch.testing.assert_close(loss(batch)["loss_objective"].detach(), expected)
print(f"largest ratio {ratio.max():.2f}; the loss is that of the product")

# %%
# A part that depends on another one, such as a push for each gear, needs a policy that draws them
# one after the other: a ``ProbabilisticTensorDictSequential``. DQN
# has a value for each action, so every part has to be discrete. Leave
# ``set_composite_lp_aggregate`` at its default: if the actor stores the sum of the logarithms, PPO
# raises. :claim:`composite-sum-raises-in-ppo`
#
# ``CatTensors`` joins in the order of names, unless you pass ``sort=False``:

env = TransformedEnv(GymWrapper(Rover()), CatTensors(PARTS, "observation"))
print("first number after a reset:", env.reset()["observation"][0].item(), "(battery)")
assert env.reset()["observation"][0] == 1

# %%
# Weights and statistics that were saved under another order load without an error, and are wrong.
# To keep the parts apart, let the network read several ``in_keys``.
#
# Where it goes wrong without an error
# ------------------------------------
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    ``Normal`` for a part that has bounds. Nothing clips what it draws, so your environment gets
#    actions outside its space: :doc:`/reference/doctor_numbers`.


def rollout(actor, how="RANDOM"):
    with set_exploration_type(ExplorationType[how]):
        return make_env().rollout(200, actor, break_when_any_done=False)


for push in (torch.distributions.Normal, TanhNormal):
    rows = rollout(make_actor(make_env(), HEADS | {"push": push}))
    outside = (rows["push"].abs() > 1).any(-1)
    print(
        f"{push.__name__}: {outside.float().mean():.0%} of the pushes are out of bounds"
    )
    assert outside.any() == (push is not TanhNormal)

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    Batches of ``env.rollout(actor)``. By default a rollout is deterministic, here in every part:
#    :ref:`symptom-stochastic-policy-does-not-sample`.

for how in ("DETERMINISTIC", "RANDOM"):  # the first is the default of rollout
    rows = rollout(actor, how)
    likely = rows["gear"].argmax(-1) == rows["params", "gear", "logits"].argmax(-1)
    print(f"{how}: {likely.float().mean():.0%} of the gears are the most likely one")
    assert likely.all() == (how == "DETERMINISTIC")

# %%
# What it costs
# -------------
#
# The actor also writes what its heads computed. Drop that before you store a batch, because the
# loss computes it anew:

lean = batch.exclude("hidden", "params")
again = loss(lean)["loss_objective"]
torch.testing.assert_close(again, loss(batch)["loss_objective"])
for name, rows in {"with": batch, "without": lean}.items():
    print(f"{rows.bytes() // len(rows)} bytes a row {name} it")
assert lean.bytes() < batch.bytes()

# %%
# Related: :doc:`/reference/data_layout` for who writes which key, and
# :doc:`/performance/recipes/ppo_cartpole` for PPO to the end.
