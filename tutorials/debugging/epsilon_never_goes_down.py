"""
Epsilon never goes down
=======================

The exploration is set up to decay, but the agent explores as much at the end of the training as at
its start.

:Subsystem: exploration
:Effect: silent
:Cause: Neither the collector nor the loss calls ``EGreedyModule.step``. Your own training loop has
   to.
:Fix: Call ``egreedy.step(batch.numel())`` after each batch.
:Source: :source:`torchrl.modules.EGreedyModule.step`
:Behind it: this page
:Threads: none found
:Also called: eps stays 1.0, epsilon-greedy does not anneal, annealing_num_steps has no effect,
   sigma_init, AdditiveGaussianModule, DQN acts randomly
"""

# %%
# Break it
# --------
#
# Epsilon should decay over the frames of the four batches that are collected.

import torch
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector
from torchrl.envs import GymEnv
from torchrl.modules import MLP, EGreedyModule, QValueActor


def train(steps_epsilon):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    network = MLP(in_features=4, out_features=2, num_cells=[8])
    actor = QValueActor(network, in_keys=["observation"], spec=env.action_spec)
    explore = EGreedyModule(
        spec=env.action_spec, eps_init=1.0, eps_end=0.05, annealing_num_steps=200
    )
    collector = Collector(
        env,
        TensorDictSequential(actor, explore),
        frames_per_batch=50,
        total_frames=-1,
        auto_register_policy_transforms=False,
    )
    batches = []
    for batch in collector:
        batches.append(batch)
        if steps_epsilon:
            explore.step(batch.numel())
        if len(batches) == 4:
            break
    collector.shutdown()
    return {"batch": batches, "policy": collector.policy}


broken = train(steps_epsilon=False)

# %%
# Check it
# --------


def check(explore):
    return {
        "started at": explore.eps_init.item(),
        "is at": round(explore.eps.item(), 3),
    }


unhealthy = check(broken["policy"][-1])
print(unhealthy)
assert unhealthy["is at"] == unhealthy["started at"], (
    "no longer reproduces: something else than the training loop lowers epsilon"
)

# %%
# Fix it
# ------
#
# ``step()`` advances the decay by one frame, or by as many as you pass. ``AdditiveGaussianModule``
# and ``OrnsteinUhlenbeckProcessModule`` have the same method. If the collector acts with a copy of
# the policy, call ``collector.update_policy_weights_()`` afterward:
# :doc:`/tutorials/debugging/collector_keeps_its_own_policy`.

fixed = train(steps_epsilon=True)
healthy = check(fixed["policy"][-1])
print(healthy)
assert healthy["is at"] < 0.1, "the fix does not work: epsilon did not reach its end"
