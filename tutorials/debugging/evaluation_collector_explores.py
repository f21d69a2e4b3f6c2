"""
The collector explores although exploration is off
==================================================

The whole evaluation runs under ``set_exploration_type(ExplorationType.DETERMINISTIC)``, but the
evaluation collector still takes random actions.

:Subsystem: exploration
:Effect: silent
:Cause: While it collects, a collector sets its own exploration type, ``RANDOM`` by default. This
   overrides the type that is set around the collector.
:Fix: Pass ``exploration_type=ExplorationType.DETERMINISTIC`` to the collector.
:Source: :source:`torchrl.collectors.Collector.rollout`
:Behind it: :ref:`internals-around`
:Threads: none found
:Also called: set_exploration_type has no effect, context manager ignored, evaluation collector is
   noisy, Evaluator
"""

# %%
# Break it
# --------
#
# .. redirect-from::
#    tutorials/debugging/evaluation_collector_explores.html#the-collector-explores-although-it-is-switched-off
#
# The policy takes either action with almost the same probability. Without exploration it always
# takes the first one.

import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import ExplorationType, GymEnv, set_exploration_type
from torchrl.modules import OneHotCategorical, ProbabilisticActor


def toss(observation):
    logits = torch.tensor([0.1, 0.0])
    return logits.expand(*observation.shape[:-1], 2).clone()


def make(**options):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    policy = ProbabilisticActor(
        TensorDictModule(toss, ["observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
    )
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        collector = Collector(
            env,
            policy,
            frames_per_batch=100,
            total_frames=-1,
            auto_register_policy_transforms=False,
            **options,
        )
    return {"collector": collector, "eval_env": env}


broken = make()

# %%
# Check it
# --------
#
# Collect a batch in the evaluation's context, and count how often the second action occurs.


def check(collector):
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        actions = collector.next()["action"]
    return {"steps": len(actions), "second action": int(actions[:, 1].sum())}


unhealthy = check(broken["collector"])
print(unhealthy)
assert unhealthy["second action"] > 10, (
    "no longer reproduces: the collector obeys the exploration type around it"
)

# %%
# Fix it
# ------

fixed = make(exploration_type=ExplorationType.DETERMINISTIC)
healthy = check(fixed["collector"])
print(healthy)
assert healthy["second action"] == 0, "the fix does not work: the collector explores"
