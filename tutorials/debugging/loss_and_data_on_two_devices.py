"""
Loss and data are on two devices
================================

Collecting and storing work. The first call of the loss ends in a ``RuntimeError`` about devices.

:Subsystem: devices
:Effect: loud
:Cause: A batch stays on the device where the collector or the storage put it, and a loss module
   does not move it.
:Fix: Call ``loss_module(batch.to(device))``, or give the storage of the buffer the device of
   the loss.
:Source: :source:`torchrl.objectives.LossModule`
:Behind it: :doc:`/reference/collectors_basics`
:Threads: :thread:`433`, :thread:`477`, :thread:`2518`
:Also called: Expected all tensors to be on the same device, but found at least two devices,
   cuda:0 and cpu, storing_device
"""

# %%
# Break it
# --------
#
# The ``meta`` device, which every machine has, stands in for a GPU: it refuses CPU tensors as a GPU
# does. With CUDA and the CPU, the message of a linear layer begins with "Expected all tensors to be
# on the same device".

import torch
from torchrl.collectors import Collector
from torchrl.envs import GymEnv
from torchrl.modules import MLP, QValueActor
from torchrl.objectives import DQNLoss


def train(device):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    network = MLP(in_features=4, out_features=2, num_cells=[8])
    policy = QValueActor(network, in_keys=["observation"], spec=env.action_spec)
    loss_module = DQNLoss(policy, delay_value=False, action_space=env.action_spec)
    options = {"auto_register_policy_transforms": False}
    collector = Collector(env, policy, frames_per_batch=8, total_frames=-1, **options)
    batch = next(iter(collector)).to(device)
    collector.shutdown()
    made = {"loss_module": loss_module, "batch": batch}
    try:
        loss_module(batch)
    except RuntimeError as error:
        return {**made, "error": error}
    return made


broken = train(device="meta")
error = broken.get("error")
assert error, "no longer reproduces: nothing is raised"
print(f"{type(error).__name__}: {error}")
assert "device" in str(error), "no longer reproduces: another error"

# %%
# Check it
# --------
#
# Compare the devices of the weights and of the tensors in the batch. A ``batch.device`` of ``None``
# is fine.


def check(loss_module, batch):
    weights = {str(weight.device) for weight in loss_module.parameters()}
    return {
        "loss": weights,
        "batch": {str(leaf.device) for leaf in batch.values(True, True)},
    }


unhealthy = check(broken["loss_module"], broken["batch"])
print(unhealthy)
assert unhealthy["loss"] != unhealthy["batch"], (
    "no longer reproduces: the devices agree"
)

# %%
# Fix it
# ------
#
# Move each batch to the device of the loss after you sample it. With a
# :class:`~torchrl.data.LazyTensorStorage` on that device, samples are already there, but the whole
# storage takes device memory.

fixed = train(device="cpu")
assert "error" not in fixed, "the fix does not work"
healthy = check(fixed["loss_module"], fixed["batch"])
print(healthy)
assert healthy["loss"] == healthy["batch"], "the fix does not work"
