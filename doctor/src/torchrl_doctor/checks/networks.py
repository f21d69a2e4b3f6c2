"""Checks: what the networks read, and what they compute of it.

Most have no rows in the debugging map; ``reference/doctor_numbers`` shows them.
"""

from __future__ import annotations

import copy
import re

import torch

from torchrl_doctor.checks.numbers import FEWEST_ROWS, observed
from torchrl_doctor.objects import (
    act,
    batches_of,
    done_of,
    last_part,
    modules_of,
    noise_of,
    paid_in,
    spec_of_action,
    written_as,
)
from torchrl_doctor.private import private
from torchrl_doctor.verdicts import CLEAR, applies, check, clear, undecided

NETWORKS = "reference/doctor_numbers"
PARAMETERS = ("logits", "loc", "scale", "probs", "action_value", "param", "state_value")
NARROW, WIDE = 1e-3, 100.0  # of a scale: no noise at all, and nothing but noise


@check("output_ignores_its_input", "The policy ignores the observation", f"{NETWORKS}#networks")
def output_ignores_its_input(policy, batch):
    rows = batches_of(batch)[-1].reshape(-1)[:256]
    read = [rows.get(key, None) for key in getattr(policy, "in_keys", ())]
    plain = [one for one in read if isinstance(one, torch.Tensor) and one.is_floating_point()]
    if len(rows) < 2 or not plain or len(plain) < len([one for one in read if one is not None]):
        return None
    if any(hasattr(module, "recurrent_mode") for module in modules_of(policy)):
        return None
    if all((one == one[:1]).all() for one in plain):
        return None  # there is nothing to tell apart
    outputs = act(policy, rows, "DETERMINISTIC")
    looked_at = [key for key in outputs.keys(True, True) if last_part(key) in PARAMETERS]
    if "loc" in map(last_part, looked_at):  # a scale may be one for all
        looked_at = [key for key in looked_at if last_part(key) != "scale"]
    for key in looked_at:
        values = outputs[key].reshape(len(rows), -1)
        if torch.equal(values, values[:1].expand_as(values)):
            return applies(f"{key} is the same for {len(rows)} observations, which differ")
    return (
        clear(f"{', '.join(map(str, looked_at))}: differ with the observation")
        if looked_at
        else None
    )


@check("noise_is_gone_or_all", "The policy's noise is gone, or is all", f"{NETWORKS}#networks")
def noise_is_gone_or_all(batch, policy=None):
    for module in modules_of(policy):
        sigma = noise_of(module) if hasattr(module, "sigma_init") else None
        space = getattr(spec_of_action(module), "space", None)
        if sigma is None or getattr(space, "low", None) is None:
            continue
        width = float((space.high - space.low).min())
        if sigma[1] > TIMES_TOO_WIDE * width:
            said = f"sigma of {type(module).__name__} is {sigma[1]:.3g}, all actions are"
            return applies(f"{said} {width:.3g} apart at most: all is noise")
    scale = written_as("scale", batches_of(batch)[-1], policy)
    if scale is None or not scale.is_floating_point():
        return None
    each = scale.reshape(-1, scale.shape[-1])  # of the numbers of an action
    each = each[each.isfinite().all(-1)]
    if not len(each):
        return None  # another check says so
    largest, least = each.max(0).values, each.min(0).values
    if least.min() < 0:
        count = int((each < 0).any(-1).sum())
        return applies(f"a standard deviation is negative in {count} of {len(each)} rows")
    if largest.min() < NARROW:
        return applies(f"a standard deviation is at most {largest.min():.1g}: nothing is explored")
    if least.max() > WIDE:
        return applies(f"a standard deviation is at least {least.max():.3g}: all is noise")
    return clear(f"the standard deviation is {each.min():.2g} to {each.max():.2g}")


TIMES_TOO_WIDE = 3.0  # as the range of actions


@check("probabilities_as_logits", "Probabilities are taken for logits", f"{NETWORKS}#networks")
def probabilities_as_logits(batch, policy=None):
    logits = written_as("logits", batches_of(batch)[-1], policy)
    if logits is None or not logits.is_floating_point() or logits.shape[-1] < 2:
        return None
    sums = logits.sum(-1)
    if logits.min() >= 0 and torch.allclose(sums, torch.ones_like(sums), atol=1e-4):
        return applies("logits are from 0 to 1 and sum to one: is there a softmax before them?")
    return clear("logits do not sum to one")


DEAD, ALIVE = 0.7, 0.6  # shares of a layer: of a narrow observation a new one may lose half


@check("hidden_units_are_dead", "Nothing is learned any more: hidden units are dead")
def hidden_units_are_dead(policy, batch=None, sample=None):
    rows = sample if batch is None else batches_of(batch)[-1]
    if rows is None or rows.numel() < FEWEST_ROWS or not modules_of(policy):
        return None
    layers = outputs_of("ReLU", policy, rows.reshape(-1)[:256])
    if not layers:
        return None
    shares = {name: float((output == 0).all(0).double().mean()) for name, output in layers.items()}
    name = max(shares, key=shares.get)
    dead, width = round(shares[name] * layers[name].shape[1]), layers[name].shape[1]
    seen = f"{dead} of {width} units of {name} are zero for each of {len(layers[name])} rows"
    if shares[name] > DEAD:
        return applies(seen)
    return clear(seen) if shares[name] < ALIVE else undecided(seen)


def outputs_of(kind, policy, rows):
    """What the layers of a class give for the rows, by name: rows x units, where it is that."""
    found, twin = {}, copy.deepcopy(policy)

    def keep(name, output):
        if output.ndim == 2 and len(output) == len(rows):
            found[name] = output.detach()

    for name, module in twin.named_modules():
        if type(module).__name__ == kind:
            module.register_forward_hook(lambda _, __, output, name=name: keep(name, output))
    if any(type(module).__name__ == kind for module in twin.modules()):
        act(twin, rows, "DETERMINISTIC")
    return found


DWARFS = 30.0  # times the others
LARGE_ENTRY = 10.0  # below, a network still sees the others


@check("one_observation_dwarfs_the_others", "Learning is slow: one observation dwarfs the others")
def one_observation_dwarfs_the_others(policy, batch=None, sample=None):
    given = [batches_of(batch)[-1] if batch is not None else None, sample]
    read = [vectors_read(rows, policy) for rows in given if rows is not None]
    if not any(names for names, _ in read):
        return None
    said = [scales_of(*one) for one in read if one[0]]
    if any(re.search(r"Norm(\dd)?$", type(one).__name__) for one in modules_of(policy)):
        return undecided(f"{said[0].evidence}; the policy has a norm of its own")
    if len({one.state for one in said}) > 1:
        return undecided(f"{said[0].evidence} in the batch; {said[1].evidence} in a sample")
    if len(said) < len(read) and said[0].state == CLEAR:
        return None  # the other has too few rows to tell
    return said[0]


def scales_of(names, columns):
    """What the deviations of the entries that a policy reads say."""
    spreads, sizes = columns.std(0), columns.square().mean(0).sqrt()
    if not sizes.isfinite().all():
        return undecided("a part of the observation is not finite")
    moving, place = spreads[spreads > 0].sort().values, int(spreads.argmax())
    if len(moving) < 2:
        return undecided(f"{len(moving)} of {len(names)} entries change")
    others, largest = float(moving[:-1].quantile(0.5)), float(moving[-1])
    seen = f"{names[place]} deviates by {largest:.3g}, half of the others by {others:.2g} at most"
    if largest > max(DWARFS * others, LARGE_ENTRY):
        return applies(seen)
    if float(sizes.max()) > max(DWARFS * float(sizes[sizes > 0].min()), LARGE_ENTRY):
        return undecided(f"{seen}, but some are far from zero or hardly move")
    return clear(seen)


def vectors_read(rows, policy):
    """Names of the entries of all vectors of floats that a policy reads, and a column of each."""
    names, columns = [], []
    for key, values in {} if rows is None else observed(rows, policy).items():
        wide = values.ndim - rows.ndim > 2  # an image
        values = values.unsqueeze(-1) if values.ndim == rows.ndim else values
        if values.is_floating_point() and not wide and "recurrent_state" not in str(key):
            columns.append(values.detach().double().reshape(-1, values.shape[-1]))
            names += [f"entry {number} of {key!r}" for number in range(values.shape[-1])]
    if not columns or min(map(len, columns)) < FEWEST_ROWS:
        return [], None
    fewest = min(map(len, columns))
    return names, torch.cat([one[:fewest] for one in columns], -1)


def bounds_of(network):
    """The largest value that a network can give, by its last layer or its support; or None."""
    return {"Tanh": 1.0, "Sigmoid": 1.0, "Softmax": 1.0}.get(last_layer(network))


def last_layer(network):
    leaves = [one for one in modules_of(network) if not list(one.children())]
    leaves = [one for one in leaves if not hasattr(one, "in_keys")]  # what chooses an action
    return type(leaves[-1]).__name__ if leaves else None


@check("values_cannot_reach_returns", "Values cannot reach the returns", f"{NETWORKS}#values")
def values_cannot_reach_returns(
    batch=None, loss_module=None, value_estimator=None, policy=None, sample=None
):
    rows = sample if batch is None else batches_of(batch)[-1]
    if rows is None:
        return None
    networks = [getattr(value_estimator, "value_network", None)]
    names = ("critic_network", "value_network", "qvalue_network")
    networks += [getattr(loss_module, name, None) for name in names]
    found = [one for one in map(bounds_of, filter(None, networks)) if one is not None]
    modules = modules_of(policy) + modules_of(loss_module)
    supports = [getattr(one, "support", None) for one in modules]
    for one in supports:
        if isinstance(one, torch.Tensor) and one.ndim == 1 and (one.diff() <= 0).any():
            return applies(f"the support goes from {one[0]:g} to {one[-1]:g}: it has to grow")
    bounds = [float(one.abs().max()) for one in supports if isinstance(one, torch.Tensor)]
    found = bounds or found  # of probabilities of the support
    reward = paid_in(rows)
    lasts = [last_layer(one) for one in filter(None, networks)]
    never_negative = [one for one in lasts if one in ("ReLU", "Softplus", "Sigmoid")]
    if never_negative and reward is not None and float(reward.max()) < 0:
        return applies(f"the last layer is {never_negative[0]}, and each reward is negative")
    if not found or reward is None or batch is None:  # a sample has no order
        return None
    # Within episodes, as far as the batch has them: less than the value that is to be learned.
    reward, done = reward.reshape(*rows.shape, -1)[..., 0], done_of(rows)
    inner = private(loss_module, "_value_estimator", None)  # the property would make one
    gammas = [getattr(one, "gamma", None) for one in (value_estimator, inner)]
    gamma = next((float(one) for one in gammas if one is not None), 0.9)
    largest, total = 0.0, torch.zeros_like(reward[..., 0])
    for step in reversed(range(rows.shape[-1])):
        total = reward[..., step] + gamma * total * ~done[..., step]
        largest = max(largest, float(total.abs().max()))
    if largest > min(found) * 1.1:
        return applies(
            f"last layer or support bounds values to {min(found):g}, returns reach {largest:.3g}"
        )
    return undecided(f"values are bound to {min(found):g}; do returns stay below?")
