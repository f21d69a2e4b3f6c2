"""
Actions leave their bounds, or reach only a part of them
========================================================

The environment gets actions outside its bounds, or the policy never pushes as hard as it could.
Nothing raises.

:Subsystem: exploration
:Effect: silent
:Cause: A distribution does not take its bounds from the ``spec`` of the actor. ``TanhNormal``
   covers -1 to 1 by default, and ``Normal`` has no bounds.
:Fix: Give ``TanhNormal`` the bounds of the environment: ``distribution_kwargs={"low": space.low,
   "high": space.high}``, with ``space = env.action_spec_unbatched.space``.
:Source: :source:`torchrl.modules.TanhNormal`, :source:`torchrl.modules.ProbabilisticActor`
:Behind it: :doc:`/how-to/dict_and_hybrid_spaces`
:Threads: :thread:`1643`
:Also called: action out of bounds, action space of the environment is ignored, actions are clipped,
   rescale actions, low and high of TanhNormal, torque is never used, Box with other bounds
"""

# %%
# Break it
# --------
#
# The pendulum takes a torque from -2 to 2.

import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch.distributions import Normal
from torchrl.envs import (
    DoubleToFloat,
    ExplorationType,
    GymEnv,
    TransformedEnv,
    set_exploration_type,
)
from torchrl.modules import ProbabilisticActor, TanhNormal

env = TransformedEnv(GymEnv("Pendulum-v1"), DoubleToFloat())


def act(distribution_class, **options):
    torch.manual_seed(0)
    env.set_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), NormalParamExtractor())
    policy = ProbabilisticActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=distribution_class,
        **options,
    )
    with set_exploration_type(ExplorationType.RANDOM):
        batch = env.rollout(200, policy).detach()
    return {"env": env, "policy": policy, "batch": batch}


broken = act(TanhNormal)

# %%
# Check it
# --------
#
# Compare the smallest and the largest action of a batch with the bounds.


def check(batch, env):
    space, action = env.action_spec.space, batch["action"]
    sides = {"bounds": (space.low, space.high), "actions": (action.min(), action.max())}
    return {k: [round(float(one), 1) for one in both] for k, both in sides.items()}


unhealthy = check(broken["batch"], env)
print(unhealthy)
assert unhealthy == {"bounds": [-2, 2], "actions": [-1, 1]}, (
    "no longer reproduces: the policy knows the bounds"
)

# %%
# Actions from a ``Normal`` can go beyond the bounds. This environment clips them, but another
# environment may compute with them. The batch holds the actions before the clip.

outside = check(act(Normal)["batch"], env)
print(outside)
assert outside["actions"][1] > 2, "no longer reproduces: the spec bounds a Normal"

# %%
# Fix it
# ------
#
# Clipping the actions of a ``Normal`` is no fix if you store the clipped action with its
# log-probability, which belongs to the action before the clip.

space = env.action_spec_unbatched.space
fixed = act(TanhNormal, distribution_kwargs={"low": space.low, "high": space.high})
healthy = check(fixed["batch"], env)
print(healthy)
assert healthy["actions"] == healthy["bounds"], "the fix does not work"
