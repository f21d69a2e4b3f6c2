"""
One worker of several never updates
===================================

Training changes the policy. Most workers of a multi-process collector use the new weights, but one
still acts as it did in the first batch.

:Subsystem: multi-process and weight sync
:Effect: silent
:Cause: The ``policy_device`` of that worker is not the device of your policy, so the worker has a
   copy of the policy. The default weight-sync scheme shares memory with the other workers, and
   never updates the copy.
:Fix: Pass ``weight_sync_schemes={"policy": MultiProcessWeightSyncScheme()}``, and call
   ``collector.update_policy_weights_()`` after the optimizer steps.
:Source: :source:`torchrl.weight_update.SharedMemWeightSyncScheme`
:Behind it: :ref:`performance-weight_sync-one-worker`
:Threads: :thread:`3587`
:Also called: one worker keeps old weights, policy_device list, workers on several GPUs, some
   workers stale, mixed devices, part of each batch is from the initial policy
"""

# %%
# Break it
# --------
#
# TorchRL treats ``cpu`` and ``cpu:0`` as different devices. So ``cpu:0`` stands in for a second
# device such as ``cuda:0``.
#
# .. fold:: Imports, environment, policy, and how a collector starts and ends

import multiprocessing
import warnings
from multiprocessing import resource_sharer

import torch
from torchrl.collectors import MultiSyncCollector
from torchrl.envs import GymEnv
from torchrl.modules import MLP, QValueActor
from torchrl.weight_update import (
    MultiProcessWeightSyncScheme,
    SharedMemWeightSyncScheme,
)

warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)


def make_env():
    return GymEnv("CartPole-v1")


def batch_after_an_update(scheme):
    """The batch after a step of an optimizer and the call, and the policy."""
    torch.manual_seed(0)
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("fork", force=True)
    network = MLP(in_features=4, out_features=2, num_cells=[8])
    policy = QValueActor(network, in_keys=["observation"], spec=make_env().action_spec)
    collector = MultiSyncCollector(
        [make_env] * 2,
        policy,
        policy_device=["cpu", "cpu:0"],
        env_device="cpu",
        storing_device="cpu",
        frames_per_batch=40,
        total_frames=-1,
        auto_register_policy_transforms=False,
        weight_sync_schemes={"policy": scheme},
    )
    try:
        batches = iter(collector)
        next(batches)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(0.1)
        collector.update_policy_weights_()
        batch = next(batches).clone()
    finally:
        collector.shutdown()
        scheme.shutdown()
        resource_sharer.stop()
        multiprocessing.set_start_method(before, force=True)
    return {"collector": collector, "policy": policy, "batch": batch}


# %%

broken = batch_after_an_update(SharedMemWeightSyncScheme())  # the default

# %%
# Check it
# --------
#
# Run the updated policy on the batch, and compare its action values with those of each worker. The
# first dimension of the batch is the workers.


def check(batch, policy):
    again = policy(batch.clone())["action_value"]
    same = torch.isclose(again, batch["action_value"], atol=1e-5).all(-1)
    return {"acted with these weights": same.all(-1).tolist()}


unhealthy = check(broken["batch"], broken["policy"])
print(unhealthy)
assert unhealthy["acted with these weights"] == [True, False], (
    "no longer reproduces: the step arrives in both workers"
)

# %%
# Fix it
# ------

fixed = batch_after_an_update(MultiProcessWeightSyncScheme())
healthy = check(fixed["batch"], fixed["policy"])
print(healthy)
assert all(healthy["acted with these weights"]), "the fix does not work"

# %%
# Each call takes longer than with shared memory: :doc:`/performance/weight_sync`.
