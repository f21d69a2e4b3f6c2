"""
Values are too low in a task with a time limit
==============================================

Episodes are cut by a time limit, and the critic learns that no reward follows. With positive
rewards, value targets near the limit are far below the return that the policy would still get.

:Subsystem: value estimation and losses
:Effect: silent
:Cause: The batch has lost ``("next", "terminated")``. The value estimator then reads ``done`` in
   its place, so each time limit counts as a termination with no reward after it.
:Fix: Keep ``("next", "terminated")`` wherever you select, exclude or copy keys.
:Source: :source:`torchrl.objectives.value.GAE.forward`,
   :source:`torchrl.objectives.value.TD0Estimator.value_estimate`
:Behind it: :ref:`layout-flags`
:Threads: :thread:`2773`
:Also called: bootstrap at truncation, time limit treated as terminal, terminated missing,
   partial episode bootstrapping
"""

# %%
# Break it
# --------
#
# A ``select`` keeps what the loss seems to need, such as the reward and ``done``. The critic
# returns the same number for each state, so the targets are easy to judge.

import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import GymEnv
from torchrl.objectives.value import GAE

LIMIT = 8  # steps
VALUE = 20.0  # what the critic says of each state


def select_keys(*flags):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    options = {
        "frames_per_batch": 200,
        "total_frames": -1,
        "max_frames_per_traj": LIMIT,
    }
    collector = Collector(env, None, **options)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    kept = [("next", key) for key in ("observation", "reward", *flags)]
    critic = TensorDictModule(
        lambda observation: torch.full_like(observation[..., :1], VALUE),
        in_keys=["observation"],
        out_keys=["state_value"],
    )
    estimator = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    return {
        "batch": batch.select("observation", "action", *kept),
        "value_estimator": estimator,
    }


broken = select_keys("done", "truncated")

# %%
# Check it
# --------
#
# Where an episode was cut, the target of the last step should include the value of the next
# observation. Count the targets that are only the reward.


def check(batch, estimator):
    after, cut = estimator(batch.clone()), batch["next", "truncated"]
    alone = torch.isclose(after["value_target"][cut], batch["next", "reward"][cut])
    return {
        "cut by the limit": int(cut.sum()),
        "of these nothing follows": int(alone.sum()),
    }


unhealthy = check(broken["batch"], broken["value_estimator"])
print(unhealthy)
assert unhealthy["cut by the limit"] > 10, "the limit cuts no episode"
assert unhealthy["of these nothing follows"] == unhealthy["cut by the limit"], (
    "no longer reproduces: without terminated, the estimator bootstraps at time limits"
)

# %%
# Fix it
# ------
#
# ``terminated`` says that the task itself ended, and decides whether the next value counts.
# ``done`` decides where a trajectory stops. If ``terminated`` is missing, the estimators read
# ``done`` instead, without a warning.

fixed = select_keys("done", "terminated", "truncated")
healthy = check(fixed["batch"], fixed["value_estimator"])
print(healthy)
assert healthy["cut by the limit"] == unhealthy["cut by the limit"]
assert healthy["of these nothing follows"] == 0, "the fix does not work"
