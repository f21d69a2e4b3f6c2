"""Checks: devices."""

from __future__ import annotations

import copy

import torch

from torchrl_doctor.followers import followed, weights_of_workers
from torchrl_doctor.looks import trained_weights
from torchrl_doctor.objects import batches_of, is_multi_process, repeats, says
from torchrl_doctor.private import private
from torchrl_doctor.verdicts import APPLIES, applies, check, clear, undecided


@check("collector_keeps_its_own_policy", "The collector never sees the trained policy")
def collector_keeps_its_own_policy(
    collector, policy=None, batch=None, loss_module=None, since=None
):
    acts = getattr(collector, "policy", None)
    if is_multi_process(collector):
        if any(getattr(collector, "policy_factory", None) or []):
            return None  # workers_never_learn
        learns = policy if isinstance(policy, torch.nn.Module) else acts
        known = isinstance(learns, torch.nn.Module)
        # Workers that share memory with the main process get the weights of its own policy.
        schemes = private(collector, "_weight_sync_schemes", None) or {}
        shared = {type(one).__name__ for one in schemes.values()} == {"SharedMemWeightSyncScheme"}
        found = followed(since, "collector.trained", ["collector.policy"]) if since else None
        if shared and found is not None and found.state == APPLIES:
            return found
        return weights_of_workers(collector, learns, batch, since, loss_module) if known else None
    if not isinstance(acts, torch.nn.Module):
        return None
    ours, theirs = trained_weights(policy, acts, collector, loss_module), acts.state_dict()
    if ours is None or not ours or not ours.keys() <= theirs.keys():
        return None
    if all(ours[name].data_ptr() == theirs[name].data_ptr() for name in ours):
        return None
    if since and (found := followed(since, "collector.trained", ["collector.policy"])):
        return found
    batches = batches_of(batch)
    if all(torch.equal(ours[name].cpu(), theirs[name].cpu()) for name in ours):
        if batches and repeats(acts, batches[0]) is False:
            return clear("the collector's copy has new weights, and they are those of the policy")
        return undecided("the collector's copy has the weights of the policy so far; train first")
    if len(batches) < 2:
        which = "give a list of batches, or look twice (since=)"
        return undecided(f"the collector's copy has other weights; {which}")
    first, last = (repeats(acts, rows) for rows in (batches[0], batches[-1]))
    if first is None or last is None:
        return undecided("the batches do not hold what the policy computed")
    if not first and last:
        return clear("the copy acts as in the last batch, and otherwise than in the first")
    if not first:
        return undecided("the copy computes neither the first batch again nor the last")
    learned = copy.deepcopy(acts)
    learned.load_state_dict(ours, strict=False)
    if repeats(learned, batches[0]):
        return undecided("weights differ, and both compute what the first batch holds")
    return applies("the copy acts as in the first batch; the policy has other weights by now")


@check("loss_and_data_on_two_devices", "Loss and data are on two devices")
def loss_and_data_on_two_devices(loss_module=None, batch=None, sample=None, error=None):
    if isinstance(error, RuntimeError) and is_about_two_devices(str(error)):
        return applies(str(error).partition("\n")[0][:100])
    data = sample if sample is not None else batches_of(batch)[0] if batch is not None else None
    if loss_module is None or data is None:
        return None
    weights = {weight.device.type for weight in loss_module.parameters()}
    leaves = {leaf.device.type for leaf in data.values(True, True) if hasattr(leaf, "device")}
    if leaves - weights:  # a loop may move each batch before the loss sees it
        return None
    return clear(f"loss and data are on {', '.join(sorted(leaves))}") if weights else None


def is_about_two_devices(text):
    one = "is not on the expected device" in text
    return one or "to be on the same device" in text or "not at the same device" in text


@check("mps_refuses_float64", 'On a Mac: "Cannot convert a MPS Tensor to float64 dtype"')
def mps_refuses_float64(error):
    if not says(error, TypeError, "MPS", "float64"):
        return None
    return applies("a tensor of type float64 is moved to MPS, or made there")
