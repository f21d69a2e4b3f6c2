"""Whether trained weights come to the copies that act."""

from __future__ import annotations

import torch

from torchrl_doctor.looks import FEWEST_BATCHES, LOOK_TWICE, trained_weights
from torchrl_doctor.objects import batches_of, repeats, told_by_workers
from torchrl_doctor.verdicts import applies, clear, undecided


def followed(since, trained, copies):
    """Whether weights that are *trained* have come to each of its *copies* between two looks.

    *trained* and *copies* are owners of `Since`. None where too little was collected to tell.
    """
    new = {name for name, changed in since.changed(trained).items() if changed}
    later = [{name for name, moved in since.changed(one).items() if moved} for one in copies]
    if not new or not copies or not all(since.now.traces.get(one) for one in copies):
        return None
    seen = f"in {since.batches} batches since the first look"
    if all(new & moved for moved in later):
        return clear("the weights that act have changed since the first look, as those that learn")
    if since.batches < FEWEST_BATCHES or not since.had_begun(trained, FEWEST_BATCHES):
        return None
    still = sum(not new & moved for moved in later)
    which = f"{still} of {len(later)} workers act" if len(later) > 1 else "the collector acts"
    return applies(f"{which} with the same weights {seen}, and the policy has learned")


def weights_of_workers(collector, policy, batch, since=None, loss_module=None):
    """What is seen of weights in other processes: clear, where they have changed with ours."""
    owner = "policy" if since and since.same("policy") else "collector.policy"
    ours = policy.state_dict()
    learns = trained_weights(policy, policy, collector, loss_module) or {}
    if any(learns[name].data_ptr() != ours[name].data_ptr() for name in learns):
        owner, ours = "collector.trained", learns
    if since:
        workers = [one for one in since.now.traces if one.startswith("collector.worker")]
        if found := followed(since, owner, workers):
            return found
    told, why_not = told_by_workers(collector, lambda one: one.state_dict())
    if told is None:
        return undecided(why_not)
    states = [told[name].get("policy_state_dict") for name in told if name.startswith("worker")]
    if not ours or any(state is None or not ours.keys() <= state.keys() for state in states):
        return undecided("the workers do not show the weights that they act with")
    pairs = [(ours[name].cpu(), state[name].cpu()) for state in states for name in ours]
    if not all(torch.equal(*pair) for pair in pairs):
        return undecided(f"the workers have other weights; {LOOK_TWICE}")
    batches = batches_of(batch)
    if batches and repeats(policy, batches[0]) is False:
        return clear("the workers have new weights, and they are those of the policy")
    return undecided("the workers have the weights of the policy so far; give the first batch")
