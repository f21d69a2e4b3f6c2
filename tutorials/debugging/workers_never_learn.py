"""
The workers act with their first weights forever
================================================

Training changes the policy, and the batches of a multi-process collector look the same from the
first to the last. Nothing is raised.

:Subsystem: multi-process and weight sync
:Effect: silent
:Cause: With ``policy_factory`` each worker makes a policy of its own, and without
   ``weight_sync_schemes`` nothing sends it weights.
:Fix: Pass ``policy`` and ``weight_sync_schemes`` beside ``policy_factory``, and call
   ``update_policy_weights_()`` after the optimizer steps.
:Decided in: :source:`torchrl.collectors.MultiCollector._setup_multi_weight_sync`
:Behind it: :doc:`/reference/collectors_basics`
:Threads: :thread:`3032`, :thread:`3729`, :thread:`3587`
:Also called: stale weights, frozen policy, policy_factory, return stays flat
"""

# %%
# Break it
# --------
#
# One worker, which makes its policy itself. The processes are forked, because that is quick; under
# "spawn" the same happens.

import contextlib
import multiprocessing
import warnings
from multiprocessing import resource_sharer

import torch
from torchrl.collectors import MultiSyncCollector
from torchrl.envs import GymEnv
from torchrl.modules import MLP, QValueActor
from torchrl.weight_update import MultiProcessWeightSyncScheme


def make_env():
    return GymEnv("CartPole-v1")


def make_policy():
    torch.manual_seed(0)
    network = MLP(in_features=4, out_features=2, num_cells=[8])
    spec = GymEnv("CartPole-v1").action_spec
    return QValueActor(network, in_keys=["observation"], spec=spec)


@contextlib.contextmanager
def collector_of(**options):
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("fork", force=True)
    with warnings.catch_warnings():  # Python 3.12 and later warn of "fork" by itself
        warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
        collector = MultiSyncCollector(
            [make_env],
            policy_factory=make_policy,
            frames_per_batch=20,
            total_frames=-1,
            **options,
        )
    try:
        yield collector
    finally:
        collector.shutdown()
        for scheme in options.get("weight_sync_schemes", {}).values():
            scheme.shutdown()
        resource_sharer.stop()
        multiprocessing.set_start_method(before, force=True)


def train(sends):
    policy, options = make_policy(), {}
    if sends:
        schemes = {"policy": MultiProcessWeightSyncScheme()}
        options = {"policy": policy, "weight_sync_schemes": schemes}
    with collector_of(auto_register_policy_transforms=False, **options) as collector:
        batches = iter(collector)
        next(batches)
        with torch.no_grad():  # stands for the steps of an optimizer
            for parameter in policy.parameters():
                parameter.add_(0.1)
        if sends:
            collector.update_policy_weights_()
        batch = next(batches).clone()
    return {"collector": collector, "policy": policy, "batch": batch}


broken = train(sends=False)

# %%
# Check it
# --------
#
# Give the batch to the trained policy: with the same weights it computes what the worker wrote.


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
# ``update_policy_weights_()`` raises an error on this collector:

try:
    broken["collector"].update_policy_weights_(broken["policy"])
except RuntimeError as error:
    print(f"{type(error).__name__}: {error}")
else:
    raise AssertionError("no longer reproduces: the call finds a way to the workers")

# %%
# Given ``policy=`` alone, the collector puts the weights in shared memory, and a worker on the CPU
# sees each optimizer step without a call.
#
# Fix it
# ------
#
# The collector reads the weights from the policy that you train, and the scheme sends them.

fixed = train(sends=True)
healthy = check(fixed["batch"], fixed["policy"])
print(healthy)
assert healthy["acted with these weights"] == healthy["steps"], "the fix does not work"
