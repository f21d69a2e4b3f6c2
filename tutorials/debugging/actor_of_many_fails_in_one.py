"""
A policy for many environments fails in a single one
====================================================

The policy works in a batched environment. When it explores in a single environment, for example in
an evaluation, it raises an error about shapes, although its network accepts any number of
environments.

:Subsystem: exploration
:Effect: loud
:Cause: The spec of the batched environment has a dimension for the environments. ``EGreedyModule``
   draws its random actions from this spec. The module can expand a spec to more dimensions, but
   cannot reduce it to fewer.
:Fix: Give ``EGreedyModule`` the spec ``env.action_spec_unbatched``.
:Source: :source:`torchrl.modules.EGreedyModule.forward`
:Behind it: this page
:Threads: none found
:Also called: Action spec shape does not match the action shape, EGreedyModule, SerialEnv,
   ParallelEnv, evaluation environment, num_envs
"""

# %%
# Break it
# --------
#
# .. redirect-from::
#    tutorials/debugging/actor_of_many_fails_in_one.html#the-policy-of-many-environments-fails-in-one

import torch
from tensordict.nn import TensorDictSequential
from torchrl.envs import ExplorationType, GymEnv, SerialEnv, set_exploration_type
from torchrl.modules import EGreedyModule, QValueActor


def make_env():
    return GymEnv("CartPole-v1")


def evaluate(unbatched):
    torch.manual_seed(0)
    env = SerialEnv(4, make_env)
    spec = env.action_spec_unbatched if unbatched else env.action_spec
    actor = QValueActor(torch.nn.Linear(4, 2), in_keys=["observation"], spec=spec)
    policy = TensorDictSequential(actor, EGreedyModule(spec=spec, eps_init=0.2))
    env.rollout(3, policy)
    result = {"policy": policy, "eval_env": make_env()}
    try:
        result["eval_env"].rollout(3, policy)
    except ValueError as error:
        result["error"] = error
    return result


broken = evaluate(unbatched=False)
error = broken.get("error", "nothing was raised")
print(f"{type(error).__name__}: {error}")
assert "does not match the action shape" in str(error), f"no longer reproduces: {error}"

# %%
# Check it
# --------
#
# The spec must not have more dimensions than the action of one environment.


def check(policy, env):
    spec = policy[-1].spec["action"]
    return {"of the spec": spec.ndim, "of the action": env.action_spec.ndim}


unhealthy = check(broken["policy"], broken["eval_env"])
print(unhealthy)
assert unhealthy["of the spec"] > unhealthy["of the action"], "no longer reproduces"

# %%
# You should evaluate without exploration. The module then does not use its spec, and nothing is
# raised.

with set_exploration_type(ExplorationType.DETERMINISTIC):
    broken["eval_env"].rollout(3, broken["policy"])

# %%
# Fix it
# ------

fixed = evaluate(unbatched=True)
healthy = check(fixed["policy"], fixed["eval_env"])
print(healthy)
assert healthy["of the spec"] == healthy["of the action"], "the fix does not work"
assert "error" not in fixed, f"the fix does not work: {fixed['error']}"
