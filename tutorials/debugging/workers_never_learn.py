"""
The workers act with their first weights forever
================================================

Training changes the policy, but the workers of a multi-process collector act as they did in the
first batch.

:Subsystem: multi-process and weight sync
:Effect: silent
:Cause: With ``policy_factory`` and no ``policy``, each worker makes its own policy, and by default
   nothing sends it the trained weights.
:Fix: Pass ``policy=policy`` and ``weight_sync_schemes={"policy": MultiProcessWeightSyncScheme()}``
   beside ``policy_factory``. Call ``collector.update_policy_weights_()`` after the optimizer steps.
:Source: :source:`torchrl.collectors.MultiCollector._setup_multi_weight_sync`
:Behind it: :doc:`/reference/collectors_basics`
:Threads: :thread:`3032`, :thread:`3729`, :thread:`3587`
:Also called: stale weights, frozen policy, policy_factory, return stays flat
"""

# %%
# Break it
# --------
#
# ``running(...)`` starts a ``MultiSyncCollector`` and shuts it down at the end. The worker is
# started with ``fork``, because that is quick. With ``spawn``, the result is the same.
#
# .. fold:: Imports, environment, policy, and how a collector starts and ends

import contextlib
import multiprocessing
import warnings
from multiprocessing import resource_sharer

import torch
from torchrl.collectors import MultiSyncCollector
from torchrl.envs import GymEnv
from torchrl.modules import MLP, QValueActor
from torchrl.weight_update import MultiProcessWeightSyncScheme

FRAMES = {"frames_per_batch": 20, "total_frames": -1}


def make_env():
    return GymEnv("CartPole-v1")


def make_policy():
    torch.manual_seed(0)
    network = MLP(in_features=4, out_features=2, num_cells=[8])
    spec = GymEnv("CartPole-v1").action_spec
    return QValueActor(network, in_keys=["observation"], spec=spec)


def optimizer_step(policy):
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1)


@contextlib.contextmanager
def running(**options):
    """A MultiSyncCollector with these options."""
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("fork", force=True)
    options |= FRAMES | {"auto_register_policy_transforms": False}
    with warnings.catch_warnings():  # Python 3.12 and later warn of "fork"
        warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
        collector = MultiSyncCollector([make_env], **options)
    try:
        yield collector
    finally:
        collector.shutdown()
        for scheme in options.get("weight_sync_schemes", {}).values():
            scheme.shutdown()
        resource_sharer.stop()
        multiprocessing.set_start_method(before, force=True)


# %%

policy = make_policy()
with running(policy_factory=make_policy) as collector:
    batches = iter(collector)
    next(batches)
    optimizer_step(policy)
    batch = next(batches).clone()

broken = {"collector": collector, "policy": policy, "batch": batch}

# %%
# Check it
# --------
#
# Run the trained policy on the batch. If the worker has the same weights, both compute the same
# action values.


def check(batch, policy):
    again = policy(batch.clone())["action_value"]
    same = torch.isclose(again, batch["action_value"], atol=1e-5).all(-1)
    return {"steps": batch.numel(), "acted with these weights": int(same.sum())}


unhealthy = check(broken["batch"], broken["policy"])
print(unhealthy)
assert unhealthy["acted with these weights"] == 0, (
    "no longer reproduces: weights arrive"
)

# %%
# Calling ``update_policy_weights_()`` does not help here. Without a scheme it raises:

try:
    broken["collector"].update_policy_weights_(broken["policy"])
except RuntimeError as error:
    print(f"{type(error).__name__}: {error}")
else:
    raise AssertionError("no longer reproduces: the call finds a way to the workers")

# %%
# Fix it
# ------
#
# The collector reads the weights from the policy that you train, and the scheme sends them.

policy = make_policy()
schemes = {"policy": MultiProcessWeightSyncScheme()}
with running(
    policy=policy, policy_factory=make_policy, weight_sync_schemes=schemes
) as collector:
    batches = iter(collector)
    next(batches)
    optimizer_step(policy)
    collector.update_policy_weights_()
    batch = next(batches).clone()

fixed = {"collector": collector, "policy": policy, "batch": batch}
healthy = check(fixed["batch"], fixed["policy"])
print(healthy)
assert healthy["acted with these weights"] == healthy["steps"], "the fix does not work"

# %%
# On the CPU, you need none of this if you pass ``policy=`` without ``policy_factory``. The
# collector then puts the weights in shared memory, so workers use the new ones after each optimizer
# step. If the policy is on one device and the workers are on another, see
# :doc:`collector_keeps_its_own_policy`.
