"""
The actions stay random however long I train
============================================

The loss goes down and the weights change, but the agent in the collector acts as it did at the
start.

:Subsystem: collectors
:Effect: silent
:Cause: A collector that gets neither ``policy`` nor ``policy_factory`` acts with a
   ``RandomPolicy``.
:Fix: Pass the policy that you train as ``policy``.
:Source: :source:`torchrl.collectors.Collector._init_policy`
:Behind it: :doc:`/reference/collectors_basics`
:Threads: none found
:Also called: policy=None, RandomPolicy, return does not improve, agent never improves, DQN learns
   nothing, forgot the policy
"""

# %%
# Break it
# --------
#
# DQN can learn from random actions, so the loss finds all that it needs in the batches.

import torch
from torchrl.collectors import Collector
from torchrl.envs import GymEnv
from torchrl.modules import QValueActor, RandomPolicy
from torchrl.objectives import DQNLoss


def make(pass_policy):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    network = torch.nn.Linear(4, 2)
    actor = QValueActor(network, in_keys=["observation"], spec=env.action_spec)
    collector = Collector(
        env,
        policy=actor if pass_policy else None,
        frames_per_batch=20,
        total_frames=-1,
        auto_register_policy_transforms=False,
    )
    loss = DQNLoss(actor, action_space=env.action_spec, delay_value=True)
    return {"collector": collector, "loss_module": loss}


broken = make(pass_policy=False)

# %%
# Check it
# --------


def check(collector):
    return {"acts at random": isinstance(collector.policy, RandomPolicy)}


unhealthy = check(broken["collector"])
print(unhealthy)
assert unhealthy["acts at random"], "no longer reproduces: a policy is required"

# %%
# Fix it
# ------

fixed = make(pass_policy=True)
healthy = check(fixed["collector"])
print(healthy)
assert not healthy["acts at random"], "the fix does not work: the actions are random"
