"""Checks: what an optimizer does to the parameters, as two looks tell."""

from __future__ import annotations

from torchrl_doctor.objects import FEWEST_UPDATES, kinds_of
from torchrl_doctor.private import private
from torchrl_doctor.verdicts import applies, check, clear, undecided


@check(
    "gradients_are_never_zeroed",
    "Gradients add up from step to step",
    page="reference/doctor_in_a_loop#doctor-parameters",
)
def gradients_are_never_zeroed(loss_module, since):
    steps, kept = (since.seen(n) for n in ("steps without zero_grad", "steps with old gradients"))
    if steps is None:
        return None
    if steps >= FEWEST_UPDATES:
        return applies(f"in {steps} steps one after another the gradient was added to the last one")
    taken = (since.before.optimized or {}).get("steps", 0)
    if kept >= FEWEST_UPDATES and 2 * kept > taken:
        return applies(
            f"in {kept} of {taken} steps the gradient was added to that of a step before"
        )
    return clear("gradients are set to zero") if since.updates("loss_module") else None


@check(
    "part_of_the_network_never_changes",
    "A part of the network never changes",
    page="reference/doctor_in_a_loop#doctor-parameters",
)
def part_of_the_network_never_changes(loss_module, since=None, optimizer=None):
    if since is None:
        return never_changed_so_far(loss_module, optimizer)
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


def never_changed_so_far(loss_module, optimizer):
    """Applies where a network is as it was made, and the optimizer has trained another one.

    Of a change, the parameters do not tell who made it: one may have been trained before.
    """
    parts = {}
    for name, parameter in loss_module.named_parameters():
        network = name.partition(".")[0]
        trained = parameter.requires_grad and not network.startswith("target_")
        if trained and network.endswith("_params"):
            parts.setdefault(network, []).append(parameter)
    times = {network: max(one._version for one in held) for network, held in parts.items()}
    steps = {n: max(steps_of(optimizer, one) for one in held) for n, held in parts.items()}
    still = [network for network, number in times.items() if number <= TIMES_TO_MAKE]
    others = [network for network in times if network not in still]
    most = max(times.values(), default=0) - TIMES_TO_MAKE
    if not still or not others or most < MANY_UPDATES:
        return None  # of layers, one look tells nothing
    said = f"nothing in {' and '.join(still)} has changed in about {most} updates"
    said += f" of {' and '.join(others)}"
    if max(steps[one] for one in others) < MANY_UPDATES or any(steps[one] for one in still):
        return undecided(f"{said}, that no optimizer given here tells of; look again, with since=")
    left, moved = ({id(p) for one in names for p in parts[one]} for names in (still, others))
    groups = [{id(p) for p in group["params"]} for group in groups_of_optimizers(optimizer)]
    if not any(group & left and group & moved for group in groups):
        return undecided(f"{said}, in no group of the optimizer with them: does it join later?")
    return applies(f"{said}: is its loss in the sum, does it step?")


def groups_of_optimizers(optimizer):
    """The groups of parameters of one optimizer or of several."""
    several = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
    return [group for one in several for group in one.param_groups]


TIMES_TO_MAKE, MANY_UPDATES = 8, 30  # a warm-up of one network is shorter


WITHOUT_A_RATIO = {"A2CLoss": "loss_objective", "ReinforceLoss": "loss_actor"}
ONCE, SEVERAL_TIMES = 1.2, 1.9  # about


@check(
    "a_batch_is_learned_many_times",
    "A batch is learned several times, without a ratio",
    page="reference/doctor_settings#old-batches",
)
def a_batch_is_learned_many_times(
    loss_module,
    collector=None,
    replay_buffer=None,
    optimizer=None,
    value_estimator=None,
    since=None,
):
    losses = [WITHOUT_A_RATIO[kind] for kind in kinds_of(loss_module) if kind in WITHOUT_A_RATIO]
    inner = private(loss_module, "_value_estimator", None)  # the property would make one
    if not losses or "VTrace" in kinds_of(value_estimator) | kinds_of(inner):
        return None
    name = type(loss_module).__name__
    why = f"{name} takes each row for one of the policy as it is"
    learned, came = (since.seen(n) for n in ("rows learned", "rows collected")) if since else (0, 0)
    if learned and came:
        times = learned.get(losses[0], 0) / came
        if times >= SEVERAL_TIMES:
            return applies(f"each of {came} rows was learned about {times:.1f} times, and {why}")
        said = f"each of {came} rows was learned about {times:.1f} times"
        if times >= ONCE:
            return undecided(f"{said}: some of them twice? {why}")
        return clear(said) if times else None
    frames, size = private(collector, "_frames", 0), getattr(replay_buffer, "batch_size", None)
    steps = steps_of(optimizer)
    if not frames or not steps:
        return None
    if size is not None and steps * size >= SEVERAL_TIMES * frames:
        said = f"{steps} updates from samples of {size}, of {frames} rows"
        return undecided(f"{said}: were all of them in this run? {why}; watch the loop")
    if steps > frames / FEWEST_OF_A_SAMPLE and size is None:
        return undecided(f"{steps} updates from {frames} rows: several from each row? {why}")
    return None


FEWEST_OF_A_SAMPLE = 8  # are in a sample of no recipe


def steps_of(optimizer, parameter=None):
    """How many steps an optimizer that counts them has taken, of several the one with the most.

    With *parameter*, the steps of that one.
    """
    several = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
    kept = [one.state for one in several if one is not None]
    if parameter is None:
        states = [state for one in kept for state in one.values()]
    else:
        states = [one[parameter] for one in kept if parameter in one]
    return max((int(state["step"]) for state in states if "step" in state), default=0)
