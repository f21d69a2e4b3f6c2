"""Checks: the numbers in the data, and those that the reader has set.

They have no rows in the debugging map; ``reference/doctor_numbers`` shows each of them.
"""

from __future__ import annotations

import itertools
import re
import time

import numpy
import torch

from torchrl_doctor.copies import CannotCopyError, copied, legal_action, steppable
from torchrl_doctor.objects import (
    FEW_THOUSAND,
    SOME_ROWS,
    TRAJ_IDS,
    batches_of,
    below_transforms,
    both_sides,
    bounds_of_actions,
    done_of,
    exploration_modules,
    first_of_batched,
    flat,
    get_next,
    innermost_of,
    keys_of,
    kinds_of,
    last_part,
    modules_of,
    multi_steps,
    next_key,
    observed_keys,
    paid_in,
    rolled_out_by_hand,
    step_limits,
    steps_after_an_end,
    stored_data,
    stored_leaf,
    stored_observation,
    tables,
    took_longer_before,
    transforms_of,
    value_key,
    wrapped_by,
    wrappers_of,
)
from torchrl_doctor.private import private
from torchrl_doctor.shifts import best_lag
from torchrl_doctor.verdicts import APPLIES, applies, check, clear, undecided

PAGE = "reference/doctor_numbers"
FEWEST_ROWS = 16  # fewer may well be alike
NEXT_TO_ZERO = 1e-4  # of a reward
MANY_ROWS_OF_DATA = 40
MIN_DIMS_OF_IMAGES = 4  # rows of them; of vectors three in a storage of two dimensions


def observed(rows, policy):
    """What the policy reads of a batch, by key; without one what a step finds again under next."""
    keys = getattr(policy, "in_keys", None) or observed_keys(rows, None)
    keys = [key for key in keys if key != "is_init" and key[0] != "tokens"]  # those of a prompt
    found = {key: rows.get(key, None) for key in keys}
    return {key: one for key, one in found.items() if isinstance(one, torch.Tensor)}


MOST_WITHOUT_NEXT = 0.1  # of the rows: of more, nobody kept the next observation


SAID_OF_NAN = (
    "probability tensor contains either `inf`, `nan`",
    "to satisfy the constraint",  # of a distribution
)


def goes_on_in(rows):
    """Which rows the next row continues: of others, a reconstructor leaves the next one out."""
    going_on = ~done_of(rows)
    going_on[..., -1] = False
    if (ids := rows.get(TRAJ_IDS, None)) is not None:
        ids = ids.reshape(rows.shape)
        going_on[..., :-1] &= ids[..., 1:] == ids[..., :-1]
    return going_on


def parts_of(policy):
    return list(getattr(policy, "named_parameters", dict)()) if policy is not None else []


@check("numbers_are_not_finite", "Observations or rewards are NaN", f"{PAGE}#nan-in-the-data")
def numbers_are_not_finite(
    batch=None,
    policy=None,
    own_batch=None,
    error=None,
    replay_buffer=None,
    collector=None,
    loss_module=None,
    value_estimator=None,
):
    met = []
    for name, rows in tables(batch, replay_buffer, collector):
        looked_at = observed(rows, policy)
        if (reward := paid_in(rows)) is not None:
            looked_at["next", "reward"] = reward
        going_on = goes_on_in(rows)
        for key in list(looked_at):
            later = get_next(rows, key)
            if isinstance(later, torch.Tensor):
                wrong = (~later.isfinite()).reshape(*rows.shape, -1).any(-1)
                if 0 < (count := int((wrong & going_on).sum())) < MOST_WITHOUT_NEXT * rows.numel():
                    said = f"{next_key(key)} is NaN or infinite in {count} of {rows.numel()} {name}"
                    return applies(f"{said}, inside of episodes that go on")
        for name_of_key in ("advantage", "value_target"):
            key = value_key(name_of_key, loss_module, value_estimator)
            if isinstance(values := rows.get(key, None), torch.Tensor):
                looked_at[key] = values
        for key, values in looked_at.items():
            if wrong := int((~values.isfinite()).reshape(rows.numel(), -1).any(-1).sum()):
                return applies(f"{key} is NaN or infinite in {wrong} of {rows.numel()} {name}")
        met.append(f"{', '.join(map(str, looked_at))}: finite in {rows.numel()} {name}")
    if any(one in str(error) for one in SAID_OF_NAN):
        broken = [k for k, v in parts_of(policy) if not v.isfinite().all()]
        if broken:
            return applies(
                f"weights are NaN or infinite, such as {broken[0]}, and the policy raises"
            )
        return applies("the policy computes NaN, and its weights are finite: of an observation?")
    if own_batch is None or not looked_at:  # what a copy collects need not meet it
        return None
    return clear("; ".join(met))


@check(
    "numbers_are_far_from_one", "Observations or rewards are too large, or too small",
    f"{PAGE}#normalization",
)  # fmt: skip
def numbers_are_far_from_one(batch=None, sample=None, policy=None):
    given = [batches_of(batch)[-1]] if batch is not None else []
    given += [] if sample is None else [sample]
    if not given or given[0].numel() < FEWEST_ROWS:
        return None
    met = []
    normal = any(re.search(r"Norm(\dd)?$", type(one).__name__) for one in modules_of(policy))
    rewards = [one.detach().abs().double() for one in map(paid_in, given) if one is not None]
    sizes, most = ([float(of(one)) for one in rewards] for of in (torch.median, torch.max))
    if sizes and sizes[-1] >= LARGE_REWARD:  # of what the loss gets
        return applies(f"half of the rewards are {sizes[-1]:.3g} and more: scale the reward")
    if sizes and max(sizes) >= LARGE_REWARD:
        return undecided(f"rewards of {max(sizes):.3g} are {sizes[-1]:.3g} in a sample")
    if most and max(most) >= LARGE_REWARD:
        return undecided(f"a reward of {max(most):.3g}, and most are smaller: scale or clip it?")
    met += [f"a reward has a size of {size:.3g}" for size in sizes[-1:]]
    seen = [] if policy is None else given
    known = [(rows, *one) for rows in seen for one in observed(rows, policy).items()]
    for rows, key, values in known:
        if not values.is_floating_point() or "recurrent_state" in str(key) or normal:
            continue
        values = values.detach().reshape(rows.numel(), -1).double()
        size = float(values.square().mean(0).sqrt().max())
        if size >= LARGE_OBSERVATION or 0 < size <= SMALL_OBSERVATION:
            kind = "large" if size > 1 else "small"
            return applies(f"observation {key!r} is too {kind} in scale: {size:.3g} on average")
        met.append(f"{key!r} one of {size:.3g}")
    return clear(", ".join(met)) if sizes and len(met) > 1 else None


LEAST_SCALE = 1.001e-6  # where RewardScaling clamps
LARGE_REWARD, LARGE_OBSERVATION, SMALL_OBSERVATION = 1000.0, 300.0, 2e-3


@check(
    "observations_never_change", "The observation never changes", f"{PAGE}#constant-observations"
)
def observations_never_change(
    batch=None, policy=None, replay_buffer=None, collector=None, loss_module=None
):
    seen = None
    for name, rows in tables(batch, replay_buffer, collector):
        if found := constant_input(rows, policy, loss_module):
            return applies(f"{found}: the same in {rows.numel()} {name}")
        keys = [key for key in observed(rows, policy) if "recurrent_state" not in str(key)]
        rows = rows.reshape(-1)
        if not keys or len(rows) < FEWEST_ROWS:
            continue
        constant = [key for key in keys if (rows[key] == rows[key][:1]).all()]
        said = f"{', '.join(map(str, constant))}: the same in {len(rows)} {name}"
        if len(constant) == len(keys):
            return applies(said)
        seen = undecided(f"{said}, and other entries change") if constant else seen
        seen = seen or clear(f"{', '.join(map(str, keys))}: not the same in {len(rows)} {name}")
    return seen


def constant_input(rows, policy, loss_module):
    """What of the data a network of the loss reads that never changes, if it reads nothing else.

    What policies and other networks write is no part of the data. None where something changes.
    """
    networks = [getattr(loss_module, name, None) for name in OTHER_NETWORKS]
    networks = [one for one in networks if getattr(one, "in_keys", None)]
    written = {key for one in (policy, *networks) for key in getattr(one, "out_keys", None) or ()}
    for network in networks if rows.numel() >= FEWEST_ROWS else ():
        read = [key for key in network.in_keys if key not in written and last_part(key) != "action"]
        found = [rows.get(key, None) for key in read]
        if not read or not all(isinstance(one, torch.Tensor) for one in found):
            continue
        flat = [one.reshape(rows.numel(), -1) for one in found]
        if "is_init" not in read and all((one == one[:1]).all() for one in flat):
            name = type(loss_module).__name__
            return f"{', '.join(map(str, read))}, which the critic of {name} reads"
    return None


OTHER_NETWORKS = ("critic_network", "qvalue_network", "value_network", "mixer_network")
OTHER_NETWORKS += ("global_value_network",)


@check(
    "deaths_are_not_terminated",
    "The game terminates, and the environment does not say so",
    f"{PAGE}#truncated-and-not-done",
)
def deaths_are_not_terminated(env):
    first = None if "ParallelEnv" in kinds_of(below_transforms(env)) else first_of_batched(env)
    if first is None or not hasattr(getattr(wrapped_by(first), "unwrapped", None), "step"):
        return None
    game = wrapped_by(twin := copied(first)).unwrapped
    said, own_step = [], game.step

    def step(action):
        said.append(returned := own_step(action))
        return returned

    game.step = step
    now, lost, ends, stop = twin.reset(), 0, 0, time.process_time() + SECONDS_OF_ENDS
    while ends < FEWEST_OF_GAME and time.process_time() < stop:
        after, now = twin.step_and_maybe_reset(legal_action(twin, now))
        flags = said[-1][2:4] if said and len(said[-1]) == 5 else ()  # of gymnasium
        dead = get_next(after, "terminated")
        if not flags or dead is None or not isinstance(flags[0], (bool, numpy.bool_)):
            return None
        over = bool(flags[0] and done_of(after).any())
        ends, lost = ends + over, lost + (over and not bool(dead.any()))
    found = f"{lost} of {ends} ends that the game calls terminated are not terminated here"
    if ends and lost == ends:
        return applies(found)
    return clear(found) if ends and not lost else None


FEWEST_OF_GAME, SECONDS_OF_ENDS = 3, 0.5


@check("truncated_is_not_done", "Truncated steps are not done", f"{PAGE}#truncated-and-not-done")
def truncated_is_not_done(batch=None, replay_buffer=None, collector=None, sample=None):
    if multi_steps(replay_buffer, None):
        replay_buffer = sample = None  # it moves some of the flags and leaves others
    seen = 0
    drawn = [] if sample is None else [("rows of a sample", sample)]
    for what, rows in tables(batch, replay_buffer, collector) + drawn:
        for key in done_keys(rows):
            done = rows[key]
            for name in ("truncated", "terminated"):
                end = rows.get((*key[:-1], name), None)
                if end is None or end.shape != done.shape:
                    continue
                if wrong := int((end & ~done).sum()):
                    whose = "".join(f" of {one!r}" for one in key[1:-1])
                    found = f"{wrong} of {int(end.sum())} {what}{whose} are {name} and not done"
                    return applies(found)
                seen += int(end.sum())
    return clear(f"{seen} ends are done") if seen else None


def done_keys(rows):
    """The keys of ``done`` after a step: that of all, and those of groups of agents."""
    keys = [key for key in rows.keys(True, True) if isinstance(key, tuple)]
    return [key for key in keys if key[0] == "next" and key[-1] == "done"]


@check("actions_and_bounds_differ", "Actions leave their bounds, or reach only a part of them")
def actions_and_bounds_differ(
    policy,
    env=None,
    batch=None,
    replay_buffer=None,
    collector=None,
    eval_env=None,
    loss_module=None,
):
    if (env := eval_env if env is None else env) is None:
        return None
    verdicts = [
        compared_with_bounds(key, policy, env, batch, replay_buffer, collector is None)
        for key in env.action_keys
    ]
    found = [one for one in verdicts if one is not None]
    found += filter(None, [actions_of_targets(loss_module, env)])
    return next((one for one in found if one.state == APPLIES), found[0] if found else None)


def actions_of_targets(loss_module, env):
    """Applies where TD3 cuts the next actions at other bounds than those of the environment."""
    buffers = getattr(loss_module, "_buffers", {})
    space = getattr(env.full_action_spec[env.action_keys[0]], "space", None)
    pairs = [(buffers.get(name), getattr(space, end, None)) for name, end in SIDES]
    if any(one is None for pair in pairs for one in pair) or scales_by_itself(env):
        return None
    if all(bool((cut.to(end) - end).abs().max() < 1e-4) for cut, end in pairs):
        return None
    (low, least), (high, most) = pairs
    said = f"{type(loss_module).__name__} cuts next actions at {low.min():g} and {high.max():g}"
    return applies(f"{said}, the environment takes {least.min():g} to {most.max():g}")


SIDES = (("min_action", "low"), ("max_action", "high"))


def scales_by_itself(env):
    """Whether a transform of the reader's own may scale actions."""
    return any(not type(one).__module__.startswith("torchrl.") for one in transforms_of(env))


def compared_with_bounds(key, policy, env, batch, replay_buffer, is_data_set):
    """The verdict of one action of an environment, or of one group of agents."""
    space = getattr(env.full_action_spec[key], "space", None)
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if low is None or not (low.isfinite().all() and high.isfinite().all()):
        return None
    allowed = f"{low.min():g} to {high.max():g}"
    if count := is_data_set and stored_actions_outside(replay_buffer, key, low, high):
        return applies(f"{count} are outside {allowed}")
    writers = modules_of(policy)
    if len(env.action_keys) > 1:
        writers = [one for one in writers if key in (getattr(one, "out_keys", None) or ())]
    bounds = [bounds_of_actions(module, key) for module in writers]
    bounds = [*filter(None, bounds)] or [*filter(None, [plain_tanh(policy, key, env)])]
    if reach := next(reversed(bounds), None):
        reach = [torch.as_tensor(one).to(low) for one in reach]
        if all(
            torch.allclose(one.expand_as(low), bound)
            for one, bound in zip(reach, (low, high), strict=True)
        ):
            if (cut := cut_inside(key, low, high, batch, replay_buffer)) is not None:
                return undecided(f"{cut}: were they cut, or was that the whole of it?")
            return clear(f"the policy reaches {allowed}, as the environment takes")
        reached = f"{reach[0].min():g} to {reach[1].max():g}"
        return applies(f"the policy reaches {reached}, the environment takes {allowed}")
    for rows in batches_of(batch) if batch is not None else ():
        action = rows.get(key, None)
        if action is not None and action.is_floating_point():
            # Time comes between the dimensions of the environment and those of an action.
            low, high = (one.reshape(-1, *one.shape[env.batch_dims :])[0] for one in (low, high))
            outside = (action < low - 1e-4) | (action > high + 1e-4)
            if outside.any():
                count = int(outside.reshape(*rows.shape, -1).any(-1).sum())
                return applies(f"{count} of {rows.numel()} actions are outside {allowed}")
    return None


def cut_inside(key, low, high, batch, replay_buffer):
    """What to say of actions of which many are at one and the same end, well inside the bounds.

    Those of a policy that takes all values are never twice the same.
    """
    rows = [one.get(key, None) for one in batches_of(batch)[-1:]]
    stored = None if replay_buffer is None else stored_leaf(replay_buffer, key)
    stored = None if stored is None else stored[: len(replay_buffer)]
    for action in [one for one in (*rows, stored) if isinstance(one, torch.Tensor)]:
        if not action.is_floating_point() or action.shape[-1:] != low.shape[-1:]:
            continue
        values = action.reshape(-1, action.shape[-1])
        inside = values[(values > values.min(0).values) & (values < values.max(0).values)]
        if len(inside) < FEWEST_ROWS or len(inside.unique()) < 0.9 * len(inside):
            continue
        width = (high - low).reshape(-1, action.shape[-1])[0]
        for end, bound in ((values.max(0).values, high), (values.min(0).values, low)):
            edge = bound.reshape(-1, action.shape[-1])[0]
            there = (values == end) & ((end - edge).abs() > 0.05 * width)
            if there.double().mean(0).max() >= 0.05 and there.sum(0).max() >= FEWEST_AT_AN_END:
                place = int(there.sum(0).argmax())
                count = f"{int(there[:, place].sum())} of {len(values)} actions"
                return f"{count} are {float(end[place]):.3g}, and none is beyond it"
    return None


FEWEST_AT_AN_END = 5


def plain_tanh(policy, key, env):
    """-1 and 1 where the last module to write the action ends in a tanh alone; else None.

    Noise may come after it.
    """
    noise = exploration_modules(policy)
    writers = [one for one in modules_of(policy) if key in (getattr(one, "out_keys", None) or ())]
    last = next((one for one in reversed(writers) if one not in noise), None)
    while type(last).__module__.startswith(OF_LIBRARIES):
        if isinstance(last, torch.nn.Tanh):
            return None if scales_by_itself(env) else (-1.0, 1.0)
        if isinstance(last, torch.nn.Sequential) and len(last):
            last = last[-1]
        else:
            last = getattr(last, "module", None)
    return None


OF_LIBRARIES = ("torch.nn.", "torchrl.", "tensordict.")


def stored_actions_outside(replay_buffer, key, low, high):
    """How many actions of a data set are outside of the bounds, of how many; None if none are."""
    stored = stored_leaf(replay_buffer, key)
    if stored is None or not stored.is_floating_point():
        return None
    low, high = float(low.min()) - 1e-4, float(high.max()) + 1e-4
    outside = ((stored < low) | (stored > high)).reshape(len(stored), -1).any(-1)
    return f"{int(outside.sum())} of {len(stored)} stored actions" if outside.any() else None


@check("advantage_has_a_graph", "The advantage has a graph", f"{PAGE}#an-advantage-with-a-graph")
def advantage_has_a_graph(own_batch):
    rows = batches_of(own_batch)[-1]
    found = [key for key in ("advantage", "value_target") if rows.get(key, None) is not None]
    for key in found:
        if rows[key].requires_grad:
            return applies(f"batch[{key!r}].requires_grad")
    return clear(f"{' and '.join(found)}: none has a graph") if found else None


@check("types_of_floats_differ", "Data and weights have two types", f"{PAGE}#two-types-of-floats")
def types_of_floats_differ(policy=None, batch=None, env=None, error=None):
    met = 0
    if "same dtype, but got Double and Float" in str(error):
        return applies("float64 data reach float32 weights, says the error")
    if policy is None or (batch is None and env is None):
        return None
    rows = env.fake_tensordict() if batch is None else batches_of(batch)[-1]
    for module in modules_of(policy):
        weights = [one for one in module.parameters() if one.is_floating_point()]
        for key in getattr(module, "in_keys", ()) if weights else ():
            values = rows.get(key, None)
            if isinstance(values, torch.Tensor) and values.is_floating_point():
                met += 1
                if all(values.dtype != one.dtype for one in weights):
                    return applies(f"{key} is {values.dtype}, the weights {weights[0].dtype}")
    return clear(f"{met} entries have the type of the weights that read them") if met else None


@check("number_of_steps_is_lost", "The n of n-step rewards is lost", f"{PAGE}#n-step-without-n")
def number_of_steps_is_lost(sample, replay_buffer, collector=None):
    steps = [one.n_steps for one in multi_steps(replay_buffer, collector)]
    if not steps or max(steps) == 1:
        return None
    if sample.get("steps_to_next_obs", None) is None:
        return applies(f"rewards of {max(steps)} steps, and no steps_to_next_obs in a sample")
    return clear("samples have steps_to_next_obs")


@check("two_discounts", "N-step values settle too high or too low")
def two_discounts(loss_module, replay_buffer=None, collector=None):
    found = [one for one in multi_steps(replay_buffer, collector) if one.n_steps > 1]
    if not found:
        return None
    estimator = private(loss_module, "_value_estimator", None)
    gamma = getattr(estimator, "gamma", getattr(loss_module, "_buffers", {}).get("gamma"))
    if gamma is None:
        return undecided(
            "the loss has no value estimator yet: call it once, or make_value_estimator"
        )
    ours = float(found[0].gamma)
    if abs(ours - float(gamma)) > 1e-6:
        said = f"{type(found[0]).__name__} has gamma={ours:g}, the loss {float(gamma):g}"
        return applies(said, fix=f"loss_module.make_value_estimator(gamma={ours:g})")
    return clear(f"both have gamma={ours:g}")


@check(
    "reward_is_a_running_sum", "The loss learns from a sum of rewards", f"{PAGE}#a-sum-as-reward"
)
def reward_is_a_running_sum(env, value_estimator=None, loss_module=None, sample=None):
    summed = {
        key
        for one in transforms_of(env)
        if type(one).__name__ == "RewardSum"
        for key in one.out_keys
        if key not in one.in_keys
    }
    owners = [one for one in (value_estimator, loss_module) if one is not None]
    keys = {type(one).__name__: getattr(keys_of(one), "reward", None) for one in owners}
    keys = {name: key for name, key in keys.items() if key is not None}
    if not summed or not keys:
        return None
    for name, key in keys.items():
        if key in summed:
            return applies(f"{name} reads {key!r}, which RewardSum writes")
    for key, one in itertools.product(set(keys.values()), summed if sample is not None else ()):
        before, after, reward = sample.get(one, None), get_next(sample, one), get_next(sample, key)
        if before is None or after is None or reward is None or reward.shape != before.shape:
            continue
        gone_on = (before != 0) & (before != after)
        if gone_on.sum() >= FEWEST_ROWS // 2 and torch.equal(reward[gone_on], after[gone_on]):
            return applies(f"{key!r} of a sample is {one!r} in {int(gone_on.sum())} rows")
    if unknown := set(keys.values()) - set(env.full_reward_spec.keys(True, True)):
        return undecided(f"what writes {', '.join(map(repr, unknown))}? Give the env that does")
    return clear(f"rewards are read from {', '.join(sorted(set(map(repr, keys.values()))))}")


@check("end_without_a_reason", "An end has no reason", f"{PAGE}#truncated-and-not-done")
def end_without_a_reason(batch=None, replay_buffer=None):
    names, seen = ("done", "truncated", "terminated"), 0
    rows = batches_of(batch)[-1] if batch is not None else None
    for what, found in (
        ("done rows", [get_next(rows, name) for name in names]),
        ("stored done rows", [stored_leaf(replay_buffer, ("next", name)) for name in names]),
    ):
        if any(one is None or one.shape != found[0].shape for one in found):
            continue
        done, *reasons = found
        if wrong := int((done & ~reasons[0] & ~reasons[1]).sum()):
            return applies(
                f"{wrong} of {int(done.sum())} {what} are neither truncated nor terminated"
            )
        seen += int(done.sum())
    return clear(f"{seen} ends have a reason") if seen else None


@check("done_after_a_reset", "Steps begin as done", f"{PAGE}#ends-in-each-step")
def done_after_a_reset(batch):
    rows = batches_of(batch)[-1]
    start = rows.get("done", None)
    if start is None or rolled_out_by_hand(rows):
        return None
    if wrong := int(start.reshape(*rows.shape, -1).any(-1).sum()):
        return applies(f"{wrong} of {rows.numel()} steps begin with done, after a reset")
    return clear("no step begins as done") if done_of(rows).any() else None


@check("each_step_ends_an_episode", "Episodes have one step, or a few", f"{PAGE}#ends-in-each-step")
def each_step_ends_an_episode(batch, replay_buffer=None, collector=None, env=None):
    for what, rows in tables(batch, replay_buffer, collector)[::-1]:
        if rows.numel() < FEWEST_ROWS or get_next(rows, "done") is None:
            continue
        done = int(done_of(rows).sum())
        if done == rows.numel():
            said = "steps" if what == "rows" else what
            said = f"each of {done} {said} ends an episode of length one"
            others = random_steps(env) if what == "rows" else None
            if others is not None and not done_of(others)[..., others.shape[-1] // 2 :].all():
                return undecided(f"{said}, and random ones do not: is it the policy that fails?")
            if why := longer_than_a_step(rows, env, collector):
                return applies(f"{said}, {why}")
            return undecided(f"{said}: is that the task, as of a bandit?")
    rows = batches_of(batch)[-1]
    if rows.numel() < FEWEST_ROWS or get_next(rows, "done") is None:
        return None
    done = int(done_of(rows).sum())
    cut, why = get_next(rows, "truncated"), get_next(rows, "terminated")
    if cut is not None and why is not None and done and not why.any():
        places = done_of(rows).reshape(-1, rows.shape[-1]).nonzero()
        apart = places[:, 1].diff()[places[:, 0].diff() == 0]
        if len(apart) >= FEWEST_ENDS and apart.max() <= SHORTEST_LIMIT:
            return applies(
                f"{done} episodes, each truncated by a time limit of {apart.max()} steps"
            )
    said = f"{done} of {rows.numel()} steps end an episode"
    return undecided(f"{said}: is one so short?") if 3 * done > rows.numel() else clear(said)


FEWEST_ENDS, SHORTEST_LIMIT = 4, 5


def longer_than_a_step(rows, env, collector):
    """What shows that episodes that end in each step should not; None where they may."""
    following, others = steps_after_an_end(rows) or (0, 0)
    if following > others and moves_little(rows):
        return "and the next step goes on from it"
    if took_longer_before(rows, collector):
        return "and earlier ones took longer"
    limit = None if env is None else limit_of(env)
    return f"and the limit is {limit}" if limit and limit > 1 else None


def moves_little(rows):
    """Whether a step changes less than lies between two rows, as contexts of a bandit do not."""
    now, later = (one.reshape(-1, one.shape[-1]).double() for one in both_sides(rows))
    step, apart = later - now, now.roll(len(now) // 2, 0) - now
    return bool(step.norm(dim=-1).median() < 0.5 * apart.norm(dim=-1).median())


@check("all_rewards_are_zero", "Rewards are zero, or next to it", f"{PAGE}#rewards-of-zero")
def all_rewards_are_zero(batch=None, replay_buffer=None, env=None, collector=None):
    scaled = [one for one in transforms_of(env) if "RewardScaling" in type(one).__name__]
    a_data_set = collector is None and replay_buffer is not None
    seen = []  # the rewards, and whether they are enough to tell
    if batch is not None:
        rows = batches_of(batch)[-1]
        seen.append((rows, paid_in(rows), bool(scaled) or bool(done_of(rows).any())))
    if replay_buffer is not None:
        paid = bool(seen) and seen[0][1] is not None and bool(seen[0][1].any())
        stored = stored_data(replay_buffer)
        seen.append((stored, paid_in(stored), a_data_set or paid))
    reached, unpaid = [], None
    for rows, rewards, enough in seen:
        if rewards is None or rewards.numel() < FEWEST_ROWS:
            continue
        largest = float(rewards.abs().max())
        if largest <= NEXT_TO_ZERO:
            said = f"rewards reach {largest:.1g} in {rewards.numel()} rows"
            return applies(said) if enough else undecided(f"{said}, and no episode ends in them")
        reached.append(largest)
        of_each = rewards.reshape(rows.numel(), -1).abs().amax(0)  # of the agents, or objectives
        if enough and (none := int((of_each <= NEXT_TO_ZERO).sum())):
            unpaid = f"{none} of {len(of_each)} rewards of a step are always zero; are they meant?"
    if unpaid:
        return undecided(unpaid)
    return clear(f"rewards reach {max(reached):.3g}") if reached else None


@check("repeat_loses_rewards", "A wrapper loses rewards", f"{PAGE}#rewards-of-zero")
def repeat_loses_rewards(env):
    steps = [getattr(type(one), "step", None) for one in wrappers_of(env)[:-1]]
    if all(getattr(one, "__module__", "gym").startswith("gym") for one in steps):
        return None
    try:
        twin = copied(innermost_of(env))
    except CannotCopyError as error:
        return undecided(f"does a wrapper repeat actions? {error}")
    logs, below = [], []
    for wrapper in reversed(wrappers_of(twin)):
        below = recorded(wrapper, below)
        logs.append((type(wrapper).__name__, below))
    stepped(twin)
    repeats = []
    for name, log in logs:
        several = [(paid, parts) for paid, parts in log if len(parts) > 1 and numpy.ndim(paid) == 0]
        if not several:
            continue
        repeats.append((name, several))
        if any(paid != parts[-1] for paid, parts in several):
            continue
        # A mean or a largest reward is meant.
        tells = [one for one in several if not last_is_usual(one[1])]
        paid, parts = (tells or several)[0]
        said = f"{name} steps {len(parts)} times and returns {paid:.3g}, the last of the rewards"
        if len(tells) >= FEWEST_REPEATS:
            return applies(f"{said}; their sum is {sum(parts):.3g}")
        if any(sum(parts) != paid for paid, parts in several):
            return undecided(f"{said}, or their mean, of {sum(parts):.3g}")
    summed = all(numpy.isclose(paid, sum(parts)) for _, log in repeats for paid, parts in log)
    names = ", ".join(name for name, _ in repeats)
    return clear(f"{names}: the rewards are summed") if names and summed else None


FEWEST_REPEATS = 5


def recorded(wrapper, below):
    """A list that grows with each step: its reward, and those of the steps *below* it."""
    step, log = wrapper.step, []

    def recorder(*arguments, **named):
        before = len(below)
        found = step(*arguments, **named)
        log.append((found[1], [paid for paid, _ in below[before:]]))
        return found

    wrapper.step = recorder
    return log


def last_is_usual(rewards):
    """Whether the last reward is also their sum, their mean or one of their bounds."""
    usual = sum(rewards), sum(rewards) / len(rewards), max(rewards), min(rewards)
    return any(numpy.isclose(rewards[-1], one) for one in usual)


@check("no_episode_ends", "No episode ever ends", f"{PAGE}#no-end")
def no_episode_ends(batch, env, collector=None):
    rows = batches_of(batch)[-1]
    if get_next(rows, "done") is None:
        return None
    if done_of(rows).any():
        return clear(f"{int(done_of(rows).sum())} of {rows.numel()} steps end an episode")
    if (limit := limit_of(env)) and 2 * limit < rows.shape[-1]:
        return applies(f"no end in {rows.shape[-1]} steps, and the limit is {limit}")
    if limit:
        return clear(f"an episode takes at most {limit_of(env)} steps")
    if type(below_transforms(env)).__name__ == "ParallelEnv":
        return undecided(f"no end in {rows.numel()} steps; is there a limit?")
    twin, end = copied(env), time.process_time() + SECONDS_OF_STEPS
    step, taken = twin.reset(), 0
    while taken < MANY_STEPS and time.process_time() < end:
        after, step = twin.step_and_maybe_reset(legal_action(twin, step))
        taken += 1
        if done_of(after).any():
            return clear(f"random actions end an episode within {taken} steps")
    found = f"no end in {rows.numel()} steps of the batch, nor in {taken} of random actions"
    return applies(found) if taken == MANY_STEPS else undecided(f"{found}; is there a limit?")


MANY_STEPS, SECONDS_OF_STEPS = 1200, 2.0


LONGEST_LIMIT = 100_000  # a larger number is no limit


OF_STEPS = "step", "horizon", "episode", "limit"  # another maximum may be one of anything


def limit_of(env):
    """After how many steps an episode ends at the latest, as transforms or the environment say."""
    found = [getattr(one, "max_steps", None) for one in transforms_of(env)]
    named = {value: name.lower() for value, name in step_limits(env).items()}
    found += [one for one, name in named.items() if any(word in name for word in OF_STEPS)]
    found = [one for one in found if isinstance(one, int) and 0 < one <= LONGEST_LIMIT]
    return min(found, default=None)


@check("norm_does_not_normalize", "A normalization does not normalize", f"{PAGE}#normalization")
def norm_does_not_normalize(batch, env):
    rows, met = batches_of(batch)[-1], []
    rewards = set(env.full_reward_spec.keys(True, True))
    kinds = ("ObservationNorm", "VecNorm", "VecNormV2")
    norms = [one for one in transforms_of(env) if type(one).__name__ in kinds]
    again = {}  # what normalizes a key a second time, and what did so before
    for one in norms:
        for key in one.out_keys:
            if key in one.in_keys:
                again.setdefault(key, []).append(type(one).__name__)
    for one in norms:
        for key in one.out_keys:
            values = rows.get(key, None)
            if values is None or key in rewards or rows.numel() < FEWEST_ROWS:
                continue
            values = values.reshape(rows.numel(), -1).double()
            mean, spread = float(values.mean(0).abs().max()), float(values.std(0).max())
            said = f"{type(one).__name__} gives {key} with a mean of {mean:.3g}"
            twice = again.get(key, [])
            if len(twice) > 1 and (max(mean, spread) > FAR_AGAIN or spread < 1 / FAR_AGAIN):
                said = f"{' and '.join(twice)} normalize {key} one after the other: a mean of"
                return applies(f"{said} {mean:.3g} and a deviation of {spread:.3g}")
            if mean > FAR or spread > FAR or spread < 1 / FAR**2:
                return applies(f"{said} and a deviation of {spread:.3g}")
            met.append(said)
    return clear(met[0]) if met else None


FAR = 30.0  # from zero and one, for what is normalized
FAR_AGAIN = 5.0  # and normalized again


@check(
    "rewards_are_clipped_to_one", "A transform makes all rewards equal", f"{PAGE}#rewards-of-zero"
)
def rewards_are_clipped_to_one(env, batch=None):
    reward = get_next(batches_of(batch)[-1], "reward") if batch is not None else None
    met = []
    for one in transforms_of(env):
        name = type(one).__name__
        if name == "RewardClipping":
            low, high = (float(getattr(one, f"clamp_{side}")) for side in ("min", "max"))
            if low >= high:
                return applies(f"RewardClipping({low:g}, {high:g}) makes each reward the same")
            met.append(f"from {low:g} to {high:g}")
        if one is first_of_rewards(env) and (lost := left_of_rewards(one, env)):
            return applies(lost)
        if name == "RewardScaling" and (torch.as_tensor(one.scale) <= LEAST_SCALE).any():
            found = "RewardScaling has a scale of 1e-06, which it takes for zero or a negative one"
            return applies(f"{found}: the reward loses its sign")
    if not met or reward is None or reward.numel() < FEWEST_ROWS:
        return None
    if (reward != reward.flatten()[0]).any():
        return clear(f"rewards are clipped {met[0]} and differ")
    return undecided(
        f"all rewards of the batch are {float(reward.flatten()[0]):g}: by the clipping?"
    )


def first_of_rewards(env):
    """The transform that gets the rewards as the environment pays them; None without one."""
    from torchrl.envs import TransformedEnv

    around = flat(env.transform) if isinstance(env, TransformedEnv) else []
    found = (one for one in around if any(map(is_reward, {*one.in_keys} & {*one.out_keys})))
    return next(found, None)


def is_reward(key):
    return (key if isinstance(key, str) else key[-1]) == "reward"


SHORTENED = {
    "RewardClipping": lambda one, paid: paid.clamp(float(one.clamp_min), float(one.clamp_max)),
    "SignTransform": lambda one, paid: paid.sign(),
    "BinarizeReward": lambda one, paid: (paid > 0).to(paid),
}


def left_of_rewards(one, env):
    """What is lost where a transform makes one number of rewards that differ; None if it does not.

    Copies of the environment below the transforms are stepped at random.
    """
    name = type(one).__name__
    if name not in SHORTENED or (twin := steppable(env)) is None:
        return None
    step, paid = (inner := below_transforms(twin)).reset(), []
    for _ in range(STEPS_FOR_REWARDS):
        after, step = inner.step_and_maybe_reset(legal_action(inner, step))
        reward = after.get(next_key(one.in_keys[0]), None)
        if reward is None:
            return None
        paid.append(reward.double().flatten())
    paid = torch.cat(paid)
    values, counts = SHORTENED[name](one, paid).unique(return_counts=True)
    most = int(counts.max())
    if most <= 0.95 * len(paid) or 2 * int(paid.unique(return_counts=True)[1].max()) > len(paid):
        return None
    left = f"makes {most} of {len(paid)} rewards of random steps {float(values[counts.argmax()]):g}"
    return f"{name} {left}, which were from {float(paid.min()):.3g} to {float(paid.max()):.3g}"


STEPS_FOR_REWARDS = 64


@check("masked_actions_are_taken", "Masked actions are taken", f"{PAGE}#the-mask-of-actions")
def masked_actions_are_taken(batch, env=None):
    rows = batches_of(batch)[-1]
    keys = [key for key in rows.keys(True, True) if is_mask_of_actions(key)]
    groups = [key[:-1] if isinstance(key, tuple) else () for key in keys]
    action = rows.get((*groups[0], "action"), None) if keys else None
    if action is None:
        return None
    mask = rows[keys[0]]
    if mask.dtype != torch.bool:
        return None
    if action.shape == mask.shape:  # one-hot
        allowed = (mask & action.bool()).any(-1)
    elif action.ndim + 1 == mask.ndim:
        allowed = mask.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)
    else:
        return None
    if wrong := int((~allowed).sum()):
        return applies(f"{wrong} of {allowed.numel()} actions are forbidden by {keys[0]!r}")
    if mask.all():
        return undecided(f"{keys[0]!r} forbids nothing in {allowed.numel()} rows")
    return clear(f"{allowed.numel()} actions are allowed by {keys[0]!r}")


def is_mask_of_actions(key):
    """Whether a key has a name that masks of actions go by, also in a group of agents."""
    name = last_part(key)
    return key[0] not in ("collector", "next") and (
        name in ("mask", "avail_actions", "available_actions") or bool(OF_MASKS.search(name))
    )


OF_MASKS = re.compile("action.*mask|mask.*action|legal|valid_action")


@check("pixels_are_not_scaled", "Pixels from 0 to 255 enter a network", f"{PAGE}#pixels")
def pixels_are_not_scaled(batch, policy):
    rows, met = batches_of(batch)[-1], []
    for module in modules_of(policy):
        convolves = any("Conv" in type(one).__name__ for one in modules_of(module))
        for key in getattr(module, "in_keys", ()) if convolves else ():
            values = rows.get(key, None)
            if isinstance(values, torch.Tensor) and values.is_floating_point():
                if values.max() > 2 and values.min() >= 0 and values.max() <= 255:
                    return applies(f"{key} is up to {values.max():g}: divide by 255")
                if values.min() >= 0 and 0 < values.max() <= TWICE_DIVIDED:
                    return applies(f"{key} is up to {values.max():.2g}: divided by 255 twice?")
                met.append(key)
            leaf = not any(hasattr(one, "in_keys") for one in modules_of(module)[1:])
            bright = isinstance(values, torch.Tensor) and values.max() > 0.5 and values.min() >= 0
            if leaf and bright:
                enter = into_convolution(module, rows)
                if enter is not None and enter.min() >= 0 and 0 < enter.max() <= TWICE_DIVIDED:
                    said = f"{key} is up to {values.max():g}, and {enter.max():.2g} where the first"
                    return applies(f"{said} convolution reads it: divided by 255 twice?")
    return clear(f"{', '.join(map(str, met))}: scaled") if met else None


TWICE_DIVIDED = 1.001 / 255
CONVOLUTIONS = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)


def into_convolution(module, rows):
    """What enters the first convolution of a copy of the module; None where it is not called."""
    twin, seen = copied(module).eval(), []
    layers = [one for one in twin.modules() if isinstance(one, CONVOLUTIONS)]
    if not layers:
        return None
    layers[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        twin(rows.select(*module.in_keys))
    return seen[0] if seen else None


@check("rows_are_stored_twice", "Each row is stored twice", f"{PAGE}#rows-stored-twice")
def rows_are_stored_twice(replay_buffer, policy=None):
    number = min(len(replay_buffer), FEW_THOUSAND)
    step = (stored_observation(replay_buffer, policy), "action")  # by which rows are told apart
    parts = [stored_leaf(replay_buffer, key) for key in step]
    if any(one is None for one in parts):
        rows = replay_buffer.storage
        rows = rows.get(range(number)) if type(rows).__name__ == "ListStorage" else []
        if any(not hasattr(one, "batch_size") or one.batch_size for one in rows):
            return None
        found = [[one.get(key, None) for one in rows] for key in step]
        if not rows or any(one is None for column in found for one in column):
            return None
        parts = [torch.stack(column) for column in found]
    if parts[0].ndim >= MIN_DIMS_OF_IMAGES:
        return None  # a simple game has few of them
    held = torch.cat([one[:number].reshape(number, -1).float() for one in parts], -1)
    if len(held) < FEWEST_ROWS or (held == held.round()).all():
        return None  # places of a grid come again
    _, counts = held.unique(dim=0, return_counts=True)
    if (counts > 1).float().mean() > 0.9 or (counts == 2).float().mean() > 0.5:
        return applies(f"{len(counts)} different steps in {len(held)} rows: each repeated")
    said = f"{len(counts)} different steps in {len(held)} rows"
    if len(held) > 1.1 * len(counts):
        return undecided(f"{said}: is a part stored twice?")
    return clear(said)


@check("data_set_has_no_ends", "A data set has no ends", f"{PAGE}#data-sets")
def data_set_has_no_ends(replay_buffer, collector=None, policy=None):
    done = stored_leaf(replay_buffer, ("next", "done"))
    key = stored_observation(replay_buffer, policy)
    now, later = (stored_leaf(replay_buffer, one) for one in (key, next_key(key)))
    number = len(replay_buffer)
    ids = stored_leaf(replay_buffer, TRAJ_IDS)
    if collector is not None and ids is not None and done is not None and not done[:number].any():
        several = len(ids[:number].unique())
        places = getattr(
            getattr(collector, "env", None), "batch_size", torch.Size([number])
        ).numel()
        if several > 3 * places and not getattr(collector, "reset_at_each_iter", False):
            return applies(f"no row of {number} is done, and they are of {several} trajectories")
    if (
        collector is not None
        or number < MANY_ROWS_OF_DATA
        or any(one is None for one in (done, now, later))
    ):
        return None
    if done[:number].any():
        return clear(f"{int(done[:number].sum())} of {number} rows are done")
    breaks = (now[1:number] != later[: number - 1]).reshape(number - 1, -1).any(-1).sum()
    if 1 < breaks < number / 2:
        return applies(f"no row of {number} is done, and {breaks} go on from elsewhere")
    return None


@check("data_set_is_shifted", "A column of a data set is shifted", f"{PAGE}#data-sets")
def data_set_is_shifted(
    replay_buffer=None,
    collector=None,
    policy=None,
    env=None,
    eval_env=None,
    batch=None,
    own_batch=None,
):
    rows = batches_of(own_batch if own_batch is not None else batch)[-1:]
    if rows and (late := late_in(rows[0], policy)):
        return applies(late)
    if replay_buffer is None:
        return None
    env = eval_env if env is None else env
    key = stored_observation(replay_buffer, policy)
    now, later = (stored_leaf(replay_buffer, one) for one in (key, next_key(key)))
    if now is None or later is None or now.shape != later.shape:
        return None
    number = min(len(replay_buffer), SOME_ROWS)
    rows = stored_data(replay_buffer)[: len(replay_buffer)].reshape(-1)[:number]
    if number < MANY_ROWS_OF_DATA or len(rows) < number:
        return None
    now, later = (rows[one].reshape(number, -1) for one in (key, next_key(key)))
    done = done_of(rows)
    if late := are_the_same(now, later, done, number):
        return applies(late)
    if collector is not None or multi_steps(replay_buffer, None):
        return None  # rows of several environments take turns, or next is n rows on
    shares = {}
    goes_on = ~done  # what comes after an end may be anything
    if int(goes_on.sum()) < FEWEST_ROWS:
        return None
    for shift in (-1, 0, 1, 2, 3):
        moved = (now.roll(-shift, 0) == later).all(-1)[goes_on]
        shares[shift] = float(moved.float().mean())
    best = max(shares, key=shares.get)
    if best != 1 and shares[best] > 0.8 > 2 * shares[1]:
        return applies(f"the next observation of a row is the observation {best} rows on")
    if shares[1] <= 0.5:
        return None
    untold = []
    if over := next_is_of_another_episode(rows, now, later):
        return applies(over)
    for name, values in (("action", rows.get("action", None)), ("reward", paid_in(rows))):
        if values is None or (values == values[:1]).all():
            continue  # it makes no difference where it stands
        lag = best_lag(rows, key, name)
        # Random steps of a copy show what a row tells where nothing is shifted.
        way = "next" if lag and lag > 0 else "last"
        if lag and env is not None:
            found = f"the {name} of a row is the one that fits the {way} row"
            if (of_env := best_lag(random_steps(env), key, name)) == 0:
                return applies(found)
            if of_env == lag:
                return undecided(f"{found}, in env, too: does it return observations late?")
        if lag:
            return undecided(f"is the {name} off by a row? Give env=, to compare with")
        if lag is None:
            untold.append(name)
    if untold:
        said = "next observations are those of the next row"
        return undecided(f"{said}; no row tells whether its {' or '.join(untold)} is its own")
    return clear("next observations, actions and rewards are those of their rows")


@check(
    "next_observation_has_another_scale",
    "The next observation has another scale than the observation",
    f"{PAGE}#normalization",
)
def next_observation_has_another_scale(policy=None, own_batch=None, replay_buffer=None):
    rows = batches_of(own_batch)[-1:]
    stored = None if replay_buffer is None else stored_data(replay_buffer)
    if hasattr(stored, "batch_size") and not multi_steps(replay_buffer, None):
        rows.append(stored[: min(len(replay_buffer), SOME_ROWS)])
    alike = None
    for one in rows:
        far = one.get("steps_to_next_obs", None) is not None  # the next one is rows below
        keys = [] if far or hasattr(one, "tensordicts") else observed_keys(one, policy)
        keys = [key for key in keys if one[key].is_floating_point() and "recurrent" not in str(key)]
        for key in keys if get_next(one, "done") is not None else ():
            line = line_of_next(one, key)
            if line is None:
                continue
            slope, start = line
            if abs(slope - 1) > OF_A_LINE or abs(start) > OF_A_LINE:
                said = (
                    f"the next {key!r} is {slope:.3g} times that of the next row, plus {start:.3g}"
                )
                return applies(f"{said}: is one of them normalized?")
            alike = alike or clear(f"the next {key!r} is that of the next row")
    return alike


def line_of_next(rows, key):
    """Slope and start of what the next observations are, by those of the row below, in a column.

    That of the column that is the farthest from equal. None where they are no line.
    """
    going_on = goes_on_in(rows)[..., :-1]
    if int(going_on.sum()) < MANY_ROWS_OF_DATA:
        return None
    shape = (*rows.shape, -1)
    below = rows[key].detach().double().reshape(shape)[..., 1:, :][going_on]
    after = get_next(rows, key).detach().double().reshape(shape)[..., :-1, :][going_on]
    lines = []
    for x, y in zip(below.T[:MOST_COLUMNS], after.T[:MOST_COLUMNS], strict=True):
        if not (x.isfinite().all() and y.isfinite().all()) or min(x.std(), y.std()) < 1e-9:
            continue
        slope = float(torch.corrcoef(torch.stack([x, y]))[0, 1] * y.std() / x.std())
        start = float(y.mean() - slope * x.mean())
        if not slope or float((y - slope * x - start).std()) > 1e-3 * float(y.std()):
            return None
        lines.append((slope, start))
    return max(lines, key=lambda one: max(abs(one[0] - 1), abs(one[1])), default=None)


OF_A_LINE, MOST_COLUMNS = 0.02, 32


def late_in(rows, policy):
    """How each observation of a batch is the one after its step; None where it is not."""
    if hasattr(rows, "tensordicts"):
        return None
    keys = [key for key in observed_keys(rows, policy) if "recurrent" not in str(key)]
    pairs = [(rows[key], get_next(rows, key)) for key in keys]
    pairs = [pair for pair in pairs if all(isinstance(one, torch.Tensor) for one in pair)]
    number = rows.numel()
    if not pairs or number < MANY_ROWS_OF_DATA:
        return None
    now, later = (torch.cat([one[i].reshape(number, -1).double() for one in pairs], -1)
                  for i in (0, 1))  # fmt: skip
    found = are_the_same(now, later, done_of(rows).flatten(), number)
    return found and f"{found}, in the batch"


def are_the_same(now, later, done, number):
    """What to say where "next" repeats the observation of each row; None where it does not.

    The row of an end may have the first observation of the next episode in its place.
    """
    if now.shape != later.shape or int((~done).sum()) < FEWEST_ROWS or (now == now[:1]).all():
        return None
    same = (now == later).reshape(number, -1).all(-1)
    if same.all():
        return f"in each of {number} rows the next observation is the observation itself"
    if same[~done].all() and not same[done].any():
        return (
            f"in {int(same.sum())} of {number} rows the next observation is the observation itself"
        )
    return None


def next_is_of_another_episode(rows, now, later):
    """How next observations at a limit are the first ones of the next episode; None if not.

    A row whose episode merely goes on in the next row makes no longer a step than others.
    """
    done, terminated = done_of(rows), get_next(rows, "terminated")
    if terminated is None:
        return None
    at_limit = (done & ~terminated.reshape(len(rows), -1).any(-1))[:-1]
    length = ((later - now) / now.double().std(0).clamp(min=1e-9)).norm(dim=-1)[:-1]
    if at_limit.sum() < FEWEST_LIMITS or not (later[:-1] == now[1:]).all(-1)[at_limit].all():
        return None
    usual, there = length[~done[:-1]], length[at_limit]
    if not len(usual) or there.median() <= 2 * usual.quantile(0.99):
        return None
    count = int(at_limit.sum())
    return f"the next observation of {count} truncated rows is the first of the next episode"


FEWEST_LIMITS = 3


def random_steps(env):
    """Rows of some random steps of a copy, time last; None where it cannot be stepped here."""
    twin = None if env is None else steppable(env)
    return None if twin is None else stepped(twin)


def stepped(twin):
    rows, step, end = [], twin.reset(), time.process_time() + SECONDS_OF_STEPS
    while len(rows) < ENOUGH_STEPS and time.process_time() < end:
        after, step = twin.step_and_maybe_reset(legal_action(twin, step))
        rows.append(after.clone())
    return torch.stack(rows, -1)


ENOUGH_STEPS = 200


@check("actions_have_no_effect", "The action has no effect", f"{PAGE}#actions-without-effect")
def actions_have_no_effect(env):
    inner = below_transforms(env)
    not_started = hasattr(inner, "create_env_fn") and inner.is_closed  # a copy would start it
    if type(inner).__name__ == "ParallelEnv" or not_started:
        return None
    seen = []
    for actions in (1, 2):
        twin = copied(env)
        twin.set_seed(0)
        step = twin.reset()
        torch.manual_seed(actions)
        seen.append([])
        for _ in range(8):
            step = twin.step(legal_action(twin, step))
            seen[-1].append(step)
            if done_of(step).any():
                break
            step = twin.step_mdp(step)
    steps = min(len(one) for one in seen)
    one, other = (torch.stack(data[:steps], -1) for data in seen)
    if steps < 2 or all(torch.equal(one[key], other[key]) for key in twin.action_keys):
        return None
    for before, after in zip(sorted_next(one), sorted_next(other), strict=True):
        if not torch.equal(before, after):
            return None  # what else is random may differ
    return applies(f"{steps} steps with other actions give the same observations and rewards")


def first_as_text(pair):
    return str(pair[0])


def sorted_next(data):
    """The tensors under next, in the order of their keys."""
    return [one for _, one in sorted(data["next"].items(True, True), key=first_as_text)]
