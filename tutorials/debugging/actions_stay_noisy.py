"""
Actions stay noisy with exploration switched off
================================================

The collector runs with ``ExplorationType.DETERMINISTIC``, and the policy still answers the same
observation with different actions.

:Subsystem: exploration
:Effect: silent
:Cause: The collector does not call ``policy.eval()``, so dropout is active and batch normalization
   updates its statistics. The exploration type has no effect on either.
:Fix: Call ``policy.eval()`` before you collect, and ``policy.train()`` before the loss. For PPO,
   stay in evaluation mode: its ratio compares the two passes.
:Source: :source:`torchrl.collectors.Collector.rollout`
:Behind it: :ref:`internals-around`
:Threads: none found
:Also called: dropout during collection, BatchNorm in the policy, train mode, eval mode, PPO ratio
   is not one on the first update
"""

# %%
# Break it
# --------
#
# This policy does not explore: it takes the action with the larger value.

import torch
from torchrl.collectors import Collector
from torchrl.envs import ExplorationType, GymEnv
from torchrl.modules import QValueActor


def collect(training):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(4, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 2)
    )
    policy = QValueActor(network, in_keys=["observation"], spec=env.action_spec)
    policy.train(training)
    collector = Collector(
        env,
        policy,
        frames_per_batch=100,
        total_frames=-1,
        exploration_type=ExplorationType.DETERMINISTIC,
        auto_register_policy_transforms=False,
    )
    batch = next(iter(collector)).clone()
    collector.shutdown()
    return {"policy": policy, "batch": batch}


broken = collect(training=True)

# %%
# Check it
# --------
#
# Give the policy the same observations once more, and count the actions that differ.


def check(batch, policy):
    again = policy(batch.select(*policy.in_keys))["action"]
    changed = (again != batch["action"]).any(-1)
    return {"steps": len(batch), "other action": int(changed.sum())}


unhealthy = check(broken["batch"], broken["policy"])
print(unhealthy)
assert unhealthy["other action"] > 5, (
    "no longer reproduces: the collector puts the policy in evaluation mode"
)

# %%
# Fix it
# ------
#
# A loss that is built from this policy shares its mode, so switch back before you train. A worker
# process has its own copy of the policy, so set the mode before you make the collector.

fixed = collect(training=False)
healthy = check(fixed["batch"], fixed["policy"])
print(healthy)
assert healthy["other action"] == 0, "the fix does not work: the policy is still noisy"
