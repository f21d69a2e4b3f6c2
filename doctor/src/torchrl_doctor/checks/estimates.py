"""Checks: values that no return has, and returns that are summed over rows of other episodes."""

from __future__ import annotations

import copy

import torch

from torchrl_doctor.checks.dynamics import FEWEST_POINTS, medians, rise_of_return
from torchrl_doctor.objects import (
    batches_of,
    done_of,
    in_time,
    is_lazy,
    kinds_of,
    learns_on_policy,
    paid_in,
    stored_data,
    value_key,
)
from torchrl_doctor.private import private
from torchrl_doctor.verdicts import applies, check, clear, undecided

TARGETS_PAGE = "reference/doctor_settings#target-networks"
FOLLOW_THEMSELVES = {  # losses whose targets are values of the network that learns, by the option
    "DQNLoss": "delay_value",
    "DistributionalDQNLoss": "delay_value",
    "QMixerLoss": "delay_value",
    "DDPGLoss": "delay_value",
    "DiscreteCQLLoss": "delay_value",
    "SACLoss": "delay_qvalue",
    "DiscreteSACLoss": "delay_qvalue",
    "TD3Loss": "delay_qvalue",
    "TD3BCLoss": "delay_qvalue",
    "REDQLoss": "delay_qvalue",
    "CQLLoss": "delay_qvalue",
}
SOFT = {"SACLoss", "DiscreteSACLoss", "REDQLoss", "CQLLoss"}  # whose values have entropy in them


def missing_target(loss_module):
    """The option that takes the target network of the values away; None where there is one."""
    for kind in kinds_of(loss_module):
        option = FOLLOW_THEMSELVES.get(kind)
        if option is not None and getattr(loss_module, option, True) is False:
            return option
    return None


@check("values_leave_all_returns", "Values are larger than any return can be", TARGETS_PAGE)
def values_leave_all_returns(loss_module, sample=None, batch=None, replay_buffer=None, log=None):
    kinds, option = kinds_of(loss_module), missing_target(loss_module)
    if not kinds & FOLLOW_THEMSELVES.keys():
        return None
    name = type(loss_module).__name__
    fix = f"{name}(..., {option}=True) and SoftUpdate(loss_module, tau=0.005)" if option else None
    without = f"; {name} has {option}=False, so the targets move with what learns" if option else ""
    grown = grown_error(log) if option and log is not None else None
    rises = rise_of_return(log) if grown else True
    if rises is False:
        return applies(f"{grown}{without}", fix=fix)
    asked = "do values stay below the returns?" if rises else f"{grown}; log the return, too"
    rows = sample if sample is not None else batches_of(batch)[-1] if batch is not None else None
    most = None if rows is None else largest_return(loss_module, rows, replay_buffer)
    atoms = "DistributionalDQNLoss" in kinds  # of which the network gives probabilities
    values = None if most is None or atoms else values_of(loss_module, rows)
    if values is None:
        return undecided(f"{without[2:]}: {asked}") if option else None
    middle, largest = (float(one) for one in (values.abs().median(), values.abs().max()))
    said = f"half of {values.numel()} values are {middle:.3g} and more, returns reach {most:.3g}"
    if middle > TIMES_A_RETURN * most and middle > LARGE_VALUE and not kinds & SOFT:
        if replay_buffer is None:
            return undecided(f"{said}{without}: is any reward larger? Give replay_buffer=")
        if (gone := replay_buffer.write_count - len(replay_buffer)) > 0:
            return undecided(f"{said}{without}: had any of {gone} dropped rows a larger reward?")
        return applies(f"{said}{without}", fix=fix)
    if option:
        return undecided(f"{said}{without}: {asked}")
    if largest > most or kinds & SOFT:
        return None
    return clear(f"{values.numel()} values are {largest:.3g} at most, returns reach {most:.3g}")


TIMES_A_RETURN, LARGE_VALUE = 3.0, 10.0


def grown_error(log):
    """How the error of the values has grown from stretch to stretch; None where it has not.

    While the return rises, values have to follow it, so that tells nothing.
    """
    for one in log.of("value loss", "loss"):
        if len(values := one.finite) >= FEWEST_POINTS:
            _, *parts = medians(values)
            if parts == sorted(parts) and parts[-1] > MUCH_GROWN * max(parts[0], 1e-12):
                return f"{one.name} went from {parts[0]:.3g} to {parts[-1]:.3g}"
    return None


MUCH_GROWN = 100


def largest_return(loss_module, rows, replay_buffer):
    """What no return exceeds, by the largest reward so far and the discount; None if unknown.

    Where no episode has ended, the reward at its end may be larger.
    """
    estimator = private(loss_module, "_value_estimator", None)  # the property would make one
    gamma = getattr(estimator, "gamma", getattr(loss_module, "_buffers", {}).get("gamma"))
    stored = None if replay_buffer is None else stored_data(replay_buffer)
    paid = [one for one in map(paid_in, (rows, stored)) if one is not None and one.numel()]
    ended = any(
        one is not None and (done := done_of(one)) is not None and bool(done.any())
        for one in (rows, stored)
    )
    if gamma is None or not 0 <= float(gamma) < 1 or not paid or not ended:
        return None
    largest = max(float(one.abs().max()) for one in paid)
    return largest / (1 - float(gamma)) if largest > 0 else None


def values_of(loss_module, rows):
    """The values that the network of a loss gives the actions of rows; None where nothing tells."""
    for name in ("value_network", "qvalue_network"):
        network, params = (getattr(loss_module, n, None) for n in (name, f"{name}_params"))
        read = getattr(network, "in_keys", None)
        if params is None or not read or any(rows.get(key, None) is None for key in read):
            continue
        if any(map(is_lazy, params.values(True, True))) or "recurrent" in str(read):
            return None
        twin, params = copy.deepcopy(network).eval(), params.data
        single = [tuple(one.shape) for one in network.parameters()]
        if [tuple(one.shape)[1:] for one in params.values(True, True)] == single:
            params = params[0]  # of several critics
        drawn = rows.reshape(-1)[:SOME_VALUES].select(*read)
        with params.to_module(twin):
            found = twin(drawn)
        keys = [value_key(n, loss_module) for n in ("value", "state_action_value", "action_value")]
        values = next((found[key] for key in keys if key in found.keys(True)), None)
        return None if values is None or not values.isfinite().any() else values[values.isfinite()]
    return None


SOME_VALUES = 256


@check(
    "returns_run_over_ends",
    "Returns are summed over the ends of episodes",
    "reference/doctor_settings#the-advantage",
)
def returns_run_over_ends(own_batch, loss_module=None, value_estimator=None):
    if value_estimator is not None or not learns_on_policy(loss_module):
        return None
    seen = None
    for rows in in_time(own_batch):
        reward, done = paid_in(rows), done_of(rows)
        if reward is None or reward.shape[: rows.ndim] != rows.shape or not reward[0].numel():
            continue
        for key in [key for key in rows.keys(True, True) if "next" not in key]:
            values = rows.get(key, None)
            if isinstance(values, torch.Tensor) and values.shape == reward.shape:
                over = summed_over(values, reward, done, rows)
                if over is not None and over[0]:
                    said = f"{key!r} is a sum of rewards, and goes on over {over[0]} of {over[1]}"
                    return applies(f"{said} ends")
                seen = seen or (over and clear(f"{key!r} begins anew at {over[1]} ends"))
    return seen


def summed_over(values, reward, done, rows):
    """Of sums of discounted rewards, over how many ends they go on, of how many; else None."""
    if not values.is_floating_point() or rows.shape[-1] < FEWEST_SUMMED:
        return None
    flat = [one.detach().double().reshape(*rows.shape, -1)[..., 0] for one in (values, reward)]
    (now, later), paid = (flat[0][..., :-1], flat[0][..., 1:]), flat[1][..., :-1]
    inside, ends = ~done[..., :-1] & (later.abs() > 1e-6), done[..., :-1] & (later.abs() > 1e-6)
    if int(inside.sum()) < FEWEST_SUMMED or not ends.any():
        return None
    discounts = ((now - paid) / later)[inside]
    gamma = float(discounts.median())
    if not 0 < gamma <= 1.0001 or float((discounts - gamma).abs().quantile(0.9)) > 1e-3:
        return None  # no such sum
    goes_over = torch.isclose(now, paid + gamma * later, 1e-3, 1e-4) & ends
    alone = torch.isclose(now, paid, 1e-3, 1e-4) & ends
    return int((goes_over & ~alone).sum()), int(ends.sum())


FEWEST_SUMMED = 16
