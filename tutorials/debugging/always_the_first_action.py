"""
The environment always takes the first action
=============================================

The policy chooses different actions and the batch holds them, but the environment behaves as if it
always got action 0. The return does not rise.

:Subsystem: environments
:Effect: silent
:Cause: The policy writes the index of an action where the environment expects a one-hot vector. The
   environment looks for the largest entry. In a single number, this is entry 0.
:Fix: Use :class:`~torchrl.modules.OneHotCategorical`, or make the environment with
   ``categorical_action_encoding=True``.
:Source: :source:`torchrl.data.OneHot.to_numpy`
:Behind it: :doc:`/reference/data_layout`
:Threads: :thread:`894`, :thread:`2572`, :thread:`1629`
:Also called: Categorical and one-hot mixed up, action ignored, policy has no effect, argmax
"""

# %%
# Break it
# --------
#
# :class:`~torchrl.envs.GymEnv` encodes discrete actions as one-hot vectors unless it is told
# otherwise. PyTorch's ``Categorical`` gives an index.

import torch
from tensordict.nn import TensorDictModule
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.envs import GymEnv
from torchrl.modules import OneHotCategorical, ProbabilisticActor


def collect(distribution):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    logits = TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["logits"])
    policy = ProbabilisticActor(
        logits, in_keys=["logits"], distribution_class=distribution
    )
    collector = Collector(
        env,
        policy,
        frames_per_batch=100,
        total_frames=-1,
        auto_register_policy_transforms=False,
    )
    batch = next(iter(collector)).clone()
    collector.shutdown()
    return {"batch": batch, "env": env}


broken = collect(Categorical)
chosen = broken["batch"]["action"]
speed = [
    part["observation"][:, 1] for part in (broken["batch"]["next"], broken["batch"])
]
print("actions:", chosen.unique().tolist())
print("cart pushed to the right:", int((speed[0] > speed[1]).sum()), "times")
assert chosen.unique().tolist() == [0, 1], "no longer reproduces: one action is drawn"
assert not (speed[0] > speed[1]).any(), (
    "no longer reproduces: the second action arrives"
)

# %%
# Check it
# --------
#
# Compare the shape of the policy's action with the spec of the environment.


def check(batch, env):
    shape = tuple(batch["action"].shape[batch.ndim :])
    return {"action": shape, "expected": tuple(env.action_spec_unbatched.shape)}


unhealthy = check(**broken)
print(unhealthy)
assert unhealthy["action"] != unhealthy["expected"], (
    "no longer reproduces: shapes agree"
)

# %%
# :source:`torchrl.data.OneHot.to_numpy` takes the ``argmax`` of the last dimension, and by default
# ``GymEnv`` does not check the action first. The opposite mistake, a one-hot vector where an index
# is expected, raises here because CartPole checks its actions. An environment without such a check
# may accept the vector.

other = GymEnv("CartPole-v1", categorical_action_encoding=True)
try:
    other.step(other.reset().set("action", torch.tensor([0, 1])))
except AssertionError as error:
    print(f"{type(error).__name__}: {error}")
else:
    raise AssertionError("no longer reproduces: a one-hot vector passes for an index")

# %%
# Fix it
# ------

fixed = collect(OneHotCategorical)
healthy = check(**fixed)
print(healthy)
assert healthy["action"] == healthy["expected"], "the fix does not work"
pushed = (
    fixed["batch"]["next", "observation"][:, 1] > fixed["batch"]["observation"][:, 1]
)
assert torch.equal(pushed, fixed["batch"]["action"].argmax(-1) == 1), (
    "the fix does not work"
)
