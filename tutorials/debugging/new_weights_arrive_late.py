"""
The batch after an update is from old weights
=============================================

An on-policy loss is unstable, although you call ``update_policy_weights_()`` after each batch. With
``track_policy_version=True``, you see that the batch after a call is at least partly from the old
weights.

:Subsystem: multi-process and weight sync
:Effect: silent
:Cause: The workers of :class:`~torchrl.collectors.MultiAsyncCollector` collect while you train, so
   the next batch is complete or partly complete when the new weights arrive.
:Fix: Use :class:`~torchrl.collectors.MultiSyncCollector`, or a loss that corrects for data of older
   policies.
:Source: :source:`torchrl.collectors.MultiAsyncCollector.iterator`
:Behind it: :doc:`/reference/collectors_basics`
:Threads: :thread:`3032`
:Also called: off-policy data in PPO, stale batch, policy_version, asynchronous collection, ratio
   is not one
"""

# %%
# Break it
# --------
#
# There is one worker, started by ``fork`` because that is the quickest way. The loop waits until
# the worker has its next batch ready, as if training took longer than collecting.

import multiprocessing
import time
import warnings
from multiprocessing import resource_sharer

import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import MultiAsyncCollector, MultiSyncCollector
from torchrl.envs import GymEnv
from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.weight_update import SharedMemWeightSyncScheme


def make_env():
    return GymEnv("CartPole-v1")


def collect(kind):
    torch.manual_seed(0)
    logits = TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["logits"])
    policy = ProbabilisticActor(
        logits,
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"])
    scheme = SharedMemWeightSyncScheme()  # the default, named to be shut down below
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("fork", force=True)
    with warnings.catch_warnings():  # Python 3.12 and later warn of "fork" by itself
        warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
        collector = kind(
            [make_env],
            policy,
            frames_per_batch=20,
            total_frames=-1,
            track_policy_version=True,
            weight_sync_schemes={"policy": scheme},
            auto_register_policy_transforms=False,
        )
    batches, give_up = [], time.monotonic() + 20
    try:
        for batch in collector:
            batches.append(batch.clone().reshape(-1))
            if len(batches) == 4:
                break
            while kind is MultiAsyncCollector and collector.queue_out.empty():
                assert time.monotonic() < give_up, "the worker has stopped"
                time.sleep(0.01)
            collector.update_policy_weights_()
    finally:
        collector.shutdown()
        scheme.shutdown()
        resource_sharer.stop()
        multiprocessing.set_start_method(before, force=True)
    loss_module = ClipPPOLoss(policy, critic)
    return {"collector": collector, "loss_module": loss_module, "batch": batches}


broken = collect(MultiAsyncCollector)

# %%
# Check it
# --------
#
# There is one update between two batches, so both printed lists should have the same numbers.


def check(batches):
    acted = [batch["next", "policy_version"].unique().tolist() for batch in batches]
    return {"updates before": list(range(len(batches))), "versions that acted": acted}


unhealthy = check(broken["batch"])
print(unhealthy)
late = [[0], [0], [1], [2]]
assert unhealthy["versions that acted"] == late, "no longer reproduces: no lag of one"

# %%
# If training is quicker than collecting, the update arrives in the middle of a batch. This batch
# then holds both versions. Read ``("next", "policy_version")``, the version that chose the action.
# The entry at the root is the version of the step before.
#
# Fix it
# ------
#
# ``MultiSyncCollector`` starts a batch only when the loop asks for it. So nothing is collected
# while you train.

fixed = collect(MultiSyncCollector)
healthy = check(fixed["batch"])
print(healthy)
assert healthy["versions that acted"] == [[0], [1], [2], [3]], "the fix does not work"
