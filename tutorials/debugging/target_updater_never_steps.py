"""
The target network has an updater and never changes
===================================================

The loss has a target updater, and TorchRL does not warn. But the Q-values stay near the size of the
next reward, as if the target network were frozen.

:Subsystem: value estimation and losses
:Effect: silent
:Cause: Once it is created, an updater changes the target network only in its ``step()``. The
   training loop does not call it, and neither the loss nor the optimizer calls it for you.
:Fix: Call ``target_updater.step()`` after each ``optimizer.step()``.
:Source: :source:`torchrl.objectives.TargetNetUpdater`
:Behind it: :doc:`/tutorials/debugging/q_values_stop_improving`
:Threads: none found
:Also called: updater.step() not called, forgot target_updater.step(), HardUpdate has no effect,
   SoftUpdate has no effect, frozen target network
"""

# %%
# Break it
# --------
#
# DQN has a ``HardUpdate``, which should replace the weights of the target network every few steps.

import copy
import warnings

import torch
from torchrl.collectors import Collector
from torchrl.envs import GymEnv
from torchrl.modules import MLP, QValueActor
from torchrl.objectives import DQNLoss, HardUpdate

torch.set_num_threads(1)  # the networks are tiny
torch.manual_seed(0)
env = GymEnv("CartPole-v1")
env.set_seed(0)
collector = Collector(env, None, frames_per_batch=100, total_frames=-1)
batch = next(iter(collector)).clone()
collector.shutdown()


def make_loss():
    torch.manual_seed(0)
    network = MLP(in_features=4, out_features=2, num_cells=[16])
    actor = QValueActor(network, in_keys=["observation"], spec=env.action_spec)
    loss = DQNLoss(actor, action_space="one-hot", delay_value=True)
    updater = HardUpdate(loss, value_network_update_interval=2)
    return {"loss_module": loss, "target_updater": updater}


def train_step(loss_module, target_updater=None):
    optimizer = torch.optim.SGD(loss_module.parameters(), lr=0.05)
    loss_module(batch.clone())["loss"].backward()
    optimizer.step()
    if target_updater is not None:
        target_updater.step()


broken = make_loss()

# %%
# Check it
# --------


def check(loss, take_a_step, steps=10):
    changes = 0
    for _ in range(steps):
        before = copy.deepcopy(loss.target_value_network_params)
        take_a_step()
        changes += bool((loss.target_value_network_params != before).any())
    return {"training steps": steps, "target changed": changes}


with warnings.catch_warnings():
    warnings.simplefilter("error")  # TorchRL does not warn
    unhealthy = check(broken["loss_module"], lambda: train_step(broken["loss_module"]))
print(unhealthy)
assert unhealthy["target changed"] == 0, (
    "no longer reproduces: the loss or its updater acts without step()"
)

# %%
# Fix it
# ------
#
# ``HardUpdate`` copies the weights one call later than its interval says
# (:ref:`performance-networks-target`). So an interval of two changes the target in fewer than half
# of the steps.

fixed = make_loss()
healthy = check(fixed["loss_module"], lambda: train_step(**fixed))
print(healthy)
assert healthy["target changed"] > 1, "the fix does not work"
