"""
Evaluation still takes random actions
=====================================

The agent is evaluated with ``env.rollout(100, policy)``. Its return stays below what the values
predict, and differs from run to run.

:Subsystem: exploration
:Effect: silent
:Cause: Outside of ``set_exploration_type(...)``, the exploration type is ``None``. Modules that
   change the action to explore treat ``None`` like ``RANDOM``.
:Fix: Evaluate under ``set_exploration_type(ExplorationType.DETERMINISTIC)``.
:Source: :source:`torchrl.modules.EGreedyModule.forward`
:Behind it: :term:`exploration type`
:Threads: none found
:Also called: noisy evaluation, epsilon-greedy in eval, test return too low, EGreedyModule
"""

# %%
# Break it
# --------
#
# The network always prefers action 0, so any other action in the rollout comes from exploration.

from contextlib import nullcontext

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.envs import ExplorationType, GymEnv, set_exploration_type
from torchrl.modules import EGreedyModule, QValueModule


def prefer_the_first(observation):
    values = torch.tensor([1.0, 0.0])
    return values.expand(*observation.shape[:-1], 2).clone()


def evaluate(context):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    policy = TensorDictSequential(
        TensorDictModule(prefer_the_first, ["observation"], ["action_value"]),
        QValueModule(spec=env.action_spec),
        EGreedyModule(spec=env.action_spec, eps_init=0.5, eps_end=0.5),
    )
    with context:
        batch = env.rollout(100, policy, break_when_any_done=False)
    return {"eval_env": env, "policy": policy, "batch": batch}


broken = evaluate(nullcontext())

# %%
# Check it
# --------
#
# Run the policy over the same observations without exploration, and compare the actions.


def check(batch, policy):
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        best = policy(batch.select(*policy.in_keys))["action"]
    explored = (best != batch["action"]).any(-1)
    return {"steps": len(batch), "explored": int(explored.sum())}


unhealthy = check(broken["batch"], broken["policy"])
print(unhealthy)
assert unhealthy["explored"] > 10, (
    "no longer reproduces: a rollout without a context does not explore"
)

# %%
# Why
# ---
#
# Exploration modules and stochastic policies treat ``None`` differently. An
# :class:`~torchrl.modules.EGreedyModule` explores, and so do the modules that add noise to actions.
# A :class:`~torchrl.modules.ProbabilisticActor` falls back to its ``default_interaction_type``,
# which is deterministic unless you change it.
#
# Fix it
# ------
#
# Set the type around the rollout. A :class:`~torchrl.collectors.Collector` ignores this context:
# pass ``exploration_type`` to it.

fixed = evaluate(set_exploration_type(ExplorationType.DETERMINISTIC))
healthy = check(fixed["batch"], fixed["policy"])
print(healthy)
assert healthy["explored"] == 0, "the fix does not work: the rollout explores"
