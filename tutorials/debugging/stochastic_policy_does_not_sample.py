"""
A stochastic policy takes no random action
==========================================

PPO trains on batches of ``env.rollout`` and gets stuck. Each action in these batches is the most
likely one, or the center of a continuous distribution.

:Subsystem: exploration
:Effect: silent
:Cause: Outside of ``set_exploration_type``, a ``ProbabilisticActor`` uses its own default, which is
   deterministic. By default, a collector sets ``RANDOM``; ``env.rollout`` does not.
:Fix: Call ``env.rollout`` under ``set_exploration_type(ExplorationType.RANDOM)``, or use a
   collector.
:Source: :source:`torchrl.modules.SafeProbabilisticModule.__init__`
:Behind it: :term:`exploration type`
:Threads: :thread:`2175`
:Also called: actor does not explore, rollout is deterministic, always the same action,
   ProbabilisticActor, default_interaction_type, actions equal the mean
"""

# %%
# Break it
# --------
#
# The policy is not trained, so the less likely action should be frequent, too.

from contextlib import nullcontext

import torch
from tensordict.nn import TensorDictModule
from torchrl.envs import ExplorationType, GymEnv, set_exploration_type
from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss


def collect(context):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    policy = ProbabilisticActor(
        TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    loss = ClipPPOLoss(
        policy, ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"])
    )
    with context, torch.no_grad():
        batch = env.rollout(100, policy, break_when_any_done=False)
    return {"policy": policy, "loss_module": loss, "batch": batch}


broken = collect(nullcontext())

# %%
# Check it
# --------
#
# Count the actions that differ from the most likely one, and compute the expected count.


def check(batch):
    unlikely = (batch["logits"].argmax(-1) != batch["action"].argmax(-1)).sum()
    expected = (1 - batch["logits"].softmax(-1).max(-1).values).sum()
    return {"not the most likely": int(unlikely), "expected": round(expected.item())}


unhealthy = check(broken["batch"])
print(unhealthy)
assert unhealthy["expected"] > 10, "the policy of this page should be undecided"
assert unhealthy["not the most likely"] == 0, (
    "no longer reproduces: a rollout without a context samples"
)

# %%
# Fix it
# ------
#
# ``ProbabilisticActor(..., default_interaction_type=ExplorationType.RANDOM)`` also works. But then
# the policy also samples in an evaluation without ``set_exploration_type``.

fixed = collect(set_exploration_type(ExplorationType.RANDOM))
healthy = check(fixed["batch"])
print(healthy)
assert healthy["not the most likely"] > 10, "the fix does not work: nothing is sampled"
