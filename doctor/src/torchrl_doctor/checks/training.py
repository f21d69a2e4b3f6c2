"""Checks: what an optimizer does to the parameters, as two looks tell."""

from __future__ import annotations

from torchrl_doctor.objects import FEWEST_UPDATES
from torchrl_doctor.verdicts import applies, check, clear, undecided


@check(
    "gradients_are_never_zeroed",
    "Gradients add up from step to step",
    page="reference/doctor_in_a_loop#doctor-parameters",
)
def gradients_are_never_zeroed(loss_module, since):
    steps = since.seen("steps without zero_grad")
    if steps is None:
        return None
    if steps >= FEWEST_UPDATES:
        return applies(f"in {steps} steps one after another the gradient was added to the last one")
    return clear("gradients are set to zero") if since.updates("loss_module") else None


@check(
    "part_of_the_network_never_changes",
    "A part of the network never changes",
    page="reference/doctor_in_a_loop#doctor-parameters",
)
def part_of_the_network_never_changes(loss_module, since):
    changed = since.changed("loss_module")
    trainable = {name for name, one in loss_module.named_parameters() if one.requires_grad}
    trainable -= {name for name in trainable if name.endswith("sigma")}  # of a noisy layer
    changed = {name: has for name, has in changed.items() if name in trainable}
    still = [name for name, has_changed in changed.items() if not has_changed]
    updates = since.updates("loss_module")
    if not changed:
        return None
    seen = since.before.optimized or {"steps": 0, "losses": 0, "not held": [], "no gradient": []}
    others = [name for name in still if name in seen["not held"]]
    idle = [name for name in still if name in seen["no gradient"]]
    if len(still) == len(changed):
        if len(others) == len(changed) and seen["steps"] >= FEWEST_UPDATES:
            return applies(f"no optimizer that took {seen['steps']} steps holds one of the loss")
        if len(idle) == len(changed) and seen["steps"] >= FEWEST_UPDATES:
            return applies(
                f"none had a gradient in {seen['steps']} steps: zero_grad() before step()?"
            )
        if not seen["steps"] and seen["losses"] >= FEWEST_UPDATES:
            return applies(f"{seen['losses']} losses were computed, and no optimizer took a step")
        return undecided("no parameter has changed; take the first look before some updates")
    if not still:
        return clear(f"all {len(changed)} trainable tensors of the loss have changed")
    left = [name for name in still if "_params." in name]
    parts = sorted({name.partition(".")[0] for name in left})
    whole = [one for one in parts if all(n in still for n in changed if n.startswith(f"{one}."))]
    seen = f"in about {updates} updates of the others"
    if others:
        seen += f"; no optimizer holds {others[0]}"
    elif idle:
        seen += f"; {idle[0]} had no gradient"
    if not left:
        return undecided(f"{still[0]} is trainable and stayed as it is {seen}; is that meant?")
    if updates < FEWEST_UPDATES:
        return undecided(f"{left[0]} has not changed so far; ask again after more updates")
    if whole:
        return applies(f"nothing in {' and '.join(whole)} changed {seen}")
    return applies(f"{left[0]} and {len(left) - 1} others stayed as they are {seen}")
