"""Checks: value estimation and losses."""

from __future__ import annotations

import copy
import gc
import inspect
import math
import sys
import time

import torch

from torchrl_doctor.checks.numbers import random_steps
from torchrl_doctor.copies import attributes_kept, copied, legal_action
from torchrl_doctor.looks import LOOK_TWICE
from torchrl_doctor.objects import (
    FEWEST_UPDATES,
    batches_of,
    below_transforms,
    declared_limit,
    done_of,
    functions_of,
    get_next,
    goes_on,
    is_lazy,
    keys_of,
    kinds_of,
    last_part,
    learns_on_policy,
    may_glue,
    multi_steps,
    observed_keys,
    one_batch,
    recurrent_modules,
    step_limits,
    stored_data,
    stored_leaf,
    strangers,
    time_limit,
    times_changed,
    transforms_of,
    value_key,
    walked_dim,
)
from torchrl_doctor.private import private
from torchrl_doctor.verdicts import applies, check, clear, undecided


@check("values_too_low_at_time_limits", "Values are too low in a task with a time limit")
def values_too_low_at_time_limits(
    batch=None,
    sample=None,
    value_estimator=None,
    loss_module=None,
    env=None,
    replay_buffer=None,
    collector=None,
    own_batch=None,
    eval_env=None,
):
    if value_estimator is None and loss_module is None:
        return None
    done_key, key = (value_key(n, loss_module, value_estimator) for n in ("done", "terminated"))
    given = {"batch": one_batch(batch), "sample of the buffer": sample}
    if last_part(key) == "truncated":
        return applies(f"{key} is read as terminated: limits count as death, and death does not")
    if key == done_key and any(get_next(data, key) is not None for data in given.values()):
        cuts = [get_next(data, "truncated") for data in given.values()]
        cut = sum(int(one.sum()) for one in cuts if one is not None)
        found = f"{done_key} is read as terminated"
        if cut:
            return applies(f"{found}: {cut} time limits count as death")
        if (limit := declared_limit(env)) < math.inf:
            return applies(f"{found}: the limit of {limit} steps counts as death")
        return undecided(f"{found}; are there time limits?")
    lacking = {
        name: data
        for name, data in given.items()
        if get_next(data, done_key) is not None and get_next(data, key) is None
    }
    for name, data in lacking.items():
        ends, cut = get_next(data, done_key), get_next(data, "truncated")
        if cut is not None and cut.any():
            return applies(f"no {key} in the {name}: {int(cut.sum())} time limits count as death")
        limits = get_next(given["batch"], "truncated")
        learns_later = name != "batch" and data.get("advantage", None) is None
        if learns_later and limits is not None and (count := int(limits.sum())):
            return applies(f"no {key} in the {name}, and {count} time limits in the batch")
        if cut is None and (ends.any() or learns_later):
            return undecided(
                f"no {key} and no truncated in the {name}, to judge {int(ends.sum())} ends"
            )
    for one in transforms_of(env):
        written = last_part(getattr(one, "truncated_key", None))
        if written == last_part(key) and getattr(one, "max_steps", None):
            return applies(f"{type(one).__name__}(max_steps={one.max_steps}) writes {key}")
    if collector is None and own_batch is None and sample is not None:  # of a data set
        given = {"data set": stored_data(replay_buffer), "sample of the buffer": sample}
    whole = one_batch(batch)
    estimated = value_estimator is not None and whole is not None
    if estimated and was_walked(whole, value_estimator) == "dead at limits":
        return applies("the targets in the batch are those of time limits that count as death")
    if not multi_steps(replay_buffer, collector):
        dead = cuts_of(stored_data_of(replay_buffer), key)
        if FEWEST_CUTS <= dead[0] == dead[1]:
            steps = whole if whole is not None else random_steps(eval_env if env is None else env)
            cuts = cuts_of(steps, key)
            if cuts[0] > cuts[1]:
                met = f"each of {dead[0]} truncated rows of the buffer is {key}"
                where = "of random steps" if whole is None else "that were collected"
                return applies(f"{met}, and {cuts[0] - cuts[1]} {where} are not")
    for name, data in given.items():
        if (why := cuts_that_are_deaths(data, done_key, key)) is not None:
            return applies(f"{why} in the {name}: time limits count as death")
    return limits_told_apart(given, done_key, key, env)


def stored_data_of(replay_buffer):
    return None if replay_buffer is None else stored_data(replay_buffer)


def cuts_of(data, key):
    """How many rows of the data are truncated, and how many of these terminated as well."""
    cut, dead = get_next(data, "truncated"), get_next(data, key)
    if cut is None or dead is None:
        return 0, 0
    cut, dead = (one.reshape(data.numel(), -1).any(-1) for one in (cut, dead))
    return int(cut.sum()), int((cut & dead).sum())


def cuts_that_are_deaths(data, done_key, key):
    """How the data say of each time limit that it terminates as well; None where they do not."""
    cut, dead, root = (get_next(data, one) for one in ("truncated", key, "terminated"))
    if cut is None or dead is None or not data.ndim:
        return None
    width = (data.numel(), -1)
    cuts, deaths = cut.reshape(width).any(-1), dead.reshape(width).any(-1)
    if int(cuts.sum()) < FEWEST_CUTS or (cuts & ~deaths).any():
        return None
    said = f"{int(cuts.sum())} rows that are truncated are {key} as well"
    if key != "terminated" and root is not None and not root.reshape(width).any(-1)[cuts].any():
        return f"{said}, and not 'terminated',"
    return said if (deaths & ~cuts).any() else None


FEWEST_CUTS = 3  # more than both ends meet in by chance


def limits_told_apart(given, done_key, key, env):
    """Clear where an end is not terminated, or none looks like a limit; None without any."""
    deaths, lengths = 0, []
    for name, data in given.items():
        done, dead = get_next(data, done_key), get_next(data, key)
        if done is None or dead is None or not data.ndim:
            continue
        cut = int((done & ~dead.reshape(done.shape)).sum())
        if cut:
            return clear(f"{cut} ends are done and not {key}")
        deaths += int(dead.sum())
        if name == "batch" and goes_on(data) and data.names[-1] in (None, "time"):
            lengths = lengths_of_deaths(data, done, dead)
    longest = max(lengths, default=0)
    alone = len(lengths) >= ENOUGH_EPISODES and lengths.count(longest) == 1
    if alone and env is not None and longest not in step_limits(env):
        return clear(f"1 of {len(lengths)} episodes terminates after {longest} steps, none later")
    return undecided(f"all {deaths} ends are {key}: is one a time limit?") if deaths else None


FOLLOWING_ESTIMATORS = ("GAE", "MultiAgentGAE", "TD1Estimator", "TDLambdaEstimator", "VTrace")


def follows_rows(value_estimator):
    """Does the estimator sum over the rows that follow? TD(0) does not."""
    return bool(kinds_of(value_estimator) & set(FOLLOWING_ESTIMATORS))


def neighbors(data, estimator, network, done_key):
    """Strange pairs by dimension, and the dimension that the estimator walks; None if unknown."""
    keys = observed_keys(data, network) if data is not None and data.ndim else []
    if not keys or data.get("steps_to_next_obs", None) is not None:
        return None
    if get_next(data, done_key) is None:
        return None
    dim = walked_dim(data, estimator)
    counts = {d: strangers(data, d, keys, done_key) for d in range(data.ndim) if data.shape[d] > 1}
    return (counts, dim) if dim in counts else None


@check("advantages_leak_between_environments", "One environment changes the advantages of another")
def advantages_leak_between_environments(batch, value_estimator, collector=None, env=None):
    data, done_key = one_batch(batch), value_key("done", None, value_estimator)
    if not follows_rows(value_estimator) or (collector is not None and may_glue(collector)):
        return None
    known = data.get(value_key("advantage", None, value_estimator), None) is not None
    if known:
        walked = was_walked(data, value_estimator)
        if walked == "one line" and data.ndim > 1:
            return applies(f"its targets are those of {data.numel()} rows in one line")
        if walked is None:
            return None
    found = neighbors(data, value_estimator, value_estimator.value_network, done_key)
    if found is None:
        return None
    counts, dim = found
    strange, pairs = counts[dim]
    places = getattr(env, "batch_size", torch.Size()).numel()
    if not strange and data.ndim == 1 and places > 1:
        return undecided(f"{places} environments in one line, and each seam in it is an end")
    if not strange and data.ndim > 1 and not known:
        return undecided(f"{pairs} pairs of rows follow each other; give a batch with advantages")
    if not strange:
        return clear(f"{pairs} pairs of rows along dimension {dim} follow each other")
    for other, (bad, _) in counts.items():
        if not bad:
            return applies(f"dimension {other} is time, and the estimator walks dimension {dim}")
    if strange < pairs / 2:
        return applies(f"{strange} of {pairs} pairs of rows along dimension {dim} are no neighbors")
    return None  # rows in no order at all: the next check


def was_walked(data, estimator):
    """How the targets in *data* were computed, one of the ways of `targets_again`; else None."""
    target = data.get(value_key("value_target", None, estimator), None)
    for how, again in targets_again(data, estimator).items():
        if torch.allclose(again, target, rtol=1e-3, atol=1e-4):
            return how
    return None


def targets_again(data, estimator):
    """The targets of GAE by the way that they are computed, of what *data* holds, if it has all.

    "in time" is right; in "one line" goes from an environment into the next, and "dead at limits"
    counts a time limit as a death.
    """
    from torchrl.objectives.value.functional import generalized_advantage_estimate

    keys = [value_key(name, None, estimator) for name in ("value", "value_target")]
    value, target = (data.get(key, None) for key in keys)
    names = [value_key(name, None, estimator) for name in ("value", "reward", "done", "terminated")]
    later = [get_next(data, name) for name in names]
    numbers = [getattr(estimator, "gamma", None), getattr(estimator, "lmbda", 1.0)]
    if numbers[0] is None or any(one is None for one in (value, target, *later)):
        return {}
    if any(one.shape != target.shape for one in (value, *later)) or target.ndim <= data.ndim:
        return {}
    dim, found = walked_dim(data, estimator), {}
    for how in ("in time", "one line", "dead at limits"):
        parts = [value, *later]
        if how == "dead at limits":
            parts[-1] = parts[-2]  # done for terminated
        if how == "one line":
            parts = [one.reshape(-1, *one.shape[data.ndim :]) for one in parts]
        walked = 0 if how == "one line" else dim  # behind it may be agents
        again = generalized_advantage_estimate(*numbers, *[x.movedim(walked, -2) for x in parts])[1]
        found[how] = again.movedim(-2, walked).reshape(target.shape)
    return found


def of_other_rows(data, estimator):
    """Why the targets in *data* are not those of its rows, which follow each other; else None."""
    if type(estimator).__name__ != "GAE" or not (again := targets_again(data, estimator)):
        return None
    counts, dim = neighbors(data, estimator, estimator.value_network, "done") or ({0: (1, 0)}, 0)
    keys = [value_key(name, None, estimator) for name in ("value_target", "value")]
    target, value = (data[key] for key in keys)
    ways = [target, again["in time"], again["one line"]]
    strange, pairs = counts[dim]
    if strange or pairs < ENOUGH_PAIRS or min(float((one - value).std()) for one in ways) < 1e-3:
        return None
    ours, *theirs = ((one - value).flatten() for one in ways)
    alike = max(float(torch.corrcoef(torch.stack([ours, one]))[0, 1]) for one in theirs)
    if alike > 0.5:
        return None
    return f"its targets correlate by {alike:.2f} with those of its rows in their order"


ENOUGH_PAIRS = 30


def of_this_order(data, estimator):
    """Whether the targets in *data* are those of its rows, and in another order they were not."""
    if data.ndim != 1:
        return False
    order = torch.arange(len(data)).roll(1).flip(0)
    if was_walked(data, estimator) is not None:
        return was_walked(data[order], estimator) is None
    key = value_key("value_target", None, estimator)
    if not kinds_of(estimator) & SUMMED_AGAIN or data.get(key, None) is None:
        return False
    if len(data) < ENOUGH_PAIRS or recurrent_modules(estimator):
        return False
    twin = copy.deepcopy(estimator)  # which writes no value that its targets could be made of again
    with torch.no_grad():
        here, other = twin(data.clone())[key], twin(data[order])[key][order.argsort()]
    alike = torch.corrcoef(torch.stack([data[key], here, other]).reshape(3, -1))[0]
    return float(alike[1]) > 0.9 and float(alike[2]) < 0.5


SUMMED_AGAIN = {"TDLambdaEstimator", "TD1Estimator", "VTrace"}


def in_no_order(data, estimator, network, done_key):
    """Evidence that the rows were drawn at random; "" where they were not, None if unknown."""
    found = neighbors(data, estimator, network, done_key)
    if found is None:
        return None
    counts, dim = found
    index = data.get("index", None)
    if index is not None and data.ndim == 1 and (index.diff(dim=0) == 1).float().mean() > 0.5:
        return ""  # in the order of the storage
    strange, pairs = counts[dim]
    random = pairs and all(2 * bad > all_ for bad, all_ in counts.values())
    return f"{strange} of {pairs} rows are not followed by their next row" if random else ""


@check("advantages_look_like_noise", "Advantages look like noise")
def advantages_look_like_noise(
    value_estimator=None, batch=None, sample=None, loss_module=None, own_batch=None, since=None
):
    orders = (since.seen("orders") if since else None) or []
    if wrong := [one for one in orders if one]:
        said = f"{type(value_estimator).__name__} got rows in no order in {len(wrong)} of"
        return applies(f"{said} {len(orders)} calls: {wrong[0]}")
    inner = private(loss_module, "_value_estimator", None)
    if value_estimator is None and not learns_on_policy(loss_module):
        if sample is None or not follows_rows(inner):
            return None
        network, done_key = getattr(inner, "value_network", None), value_key("done", loss_module)
        why = in_no_order(sample, inner, network, done_key)
        said = f"the loss sums over the rows that follow ({type(inner).__name__})"
        return applies(f"{said}, and of a sample {why}") if why else None
    value_estimator = inner if value_estimator is None else value_estimator
    if not follows_rows(value_estimator):
        return None
    done_key = value_key("done", None, value_estimator)
    advantage = value_key("advantage", None, value_estimator)
    network, seen = value_estimator.value_network, None
    for name, data in {"batch": one_batch(batch), "sample of the buffer": sample}.items():
        if data is None:
            continue
        if data.get(advantage, None) is not None:
            if name == "batch" and (why := of_other_rows(data, value_estimator)):
                return applies(why)
            why = in_no_order(data, value_estimator, network, done_key)
            if why and of_this_order(data, value_estimator):
                return applies(f"the targets in the {name} are those of its order, and {why}")
            continue
        why = in_no_order(data, value_estimator, network, done_key)
        if why:
            return applies(f"the {name} holds no {advantage} yet, and {why}")
        seen = seen if why is None else name
    if seen == "batch" and own_batch is None:
        return undecided("a collector's rows follow each other; give the batch that is estimated")
    return clear(f"the rows of the {seen} follow each other") if seen else None


@check("ppo_worse_with_small_minibatches", "PPO gets worse with smaller minibatches")
def ppo_worse_with_small_minibatches(
    loss_module, batch=None, sample=None, value_estimator=None, own_batch=None
):
    key = getattr(keys_of(loss_module), "advantage", None)
    kind = getattr(getattr(loss_module, "value_type", None), "name", None)
    if key is None or kind == "TD0":
        return None
    written = value_key("advantage", None, value_estimator)
    if value_estimator is not None and written != key:
        return applies(f"the value estimator writes {written!r}, the loss reads {key!r}")
    own = one_batch(own_batch)
    if value_estimator is not None and own is not None and sample is not None:
        lacks = sample.get(key, None) is None and own.get(key, None) is not None
        critic, done_key = value_estimator.value_network, value_key("done", loss_module)
        if lacks and in_no_order(sample, value_estimator, critic, done_key):
            return applies(f"{key} is in the batch and not in the sample: was it stored before?")
    network = getattr(loss_module, "critic_network", None)
    seen = None
    for name, data in {"batch": one_batch(batch), "sample of the buffer": sample}.items():
        if data is None or value_estimator is not None:
            continue
        if data.get(key, None) is not None:
            seen = name
            continue
        why = in_no_order(data, None, network, value_key("done", loss_module))
        estimates = private(loss_module, "_value_estimator", None) is not None
        if why and data is sample and estimates and own is not None and own.get(key) is None:
            return applies(f"the loss estimates: no {key} in the batch and the {name}; {why}")
        if why and data is sample:
            return undecided(f"no {key} in the {name}: it has to come before rows are drawn")
        if why:
            return applies(f"no {key} in the {name}, and {why}")
    return clear(f"the {seen} holds the {key}") if seen else None


@check("q_values_stop_improving", "Q-values stop improving after the first steps")
def q_values_stop_improving(loss_module, target_updater=None, since=None):
    pairs = target_networks(loss_module)
    attached = private(loss_module, "_has_update_associated", None)
    if not pairs:
        return None
    other = getattr(target_updater, "loss_module", loss_module) is not loss_module
    moved, updates = targets_moved(pairs, since)
    little = target_updater is not None and moves_too_little(target_updater)
    if moved and all(moved.values()) and not little:
        return clear("each target network has changed since the first look")
    if attached is None and target_updater is None:
        return undecided("pass target_updater; this release does not say whether there is one")
    missing = [n for n in pairs if attached is not None and not attached.get(n[7:-7], True)]
    left = targets_left(pairs)
    if (target_updater is not None and not other) or not missing:
        if not left:
            return None
        if target_updater is None or other:
            young = updates_of(pairs) < FEWEST_UPDATES
            if any(moved.values()) or young or has_updater_alive(loss_module):
                return undecided(f"the loss has an updater; {PASS_IT}")
            return applies(f"its updater is gone, and {len(left)} tensors have left their targets")
        if moves_too_little(target_updater):
            return undecided(moves_too_little(target_updater))
        if not has_stepped(target_updater):
            return undecided(f"the target networks have an updater; has it stepped? {LOOK_TWICE}")
        return not_yet_copied(target_updater, pairs) or clear(
            "the target networks have an updater, and it has stepped"
        )
    none = "the updater is of another loss" if other else "no updater"
    for name in missing:
        if name in left:
            return applies(f"{none}, and {left.count(name)} tensors have left {name} behind")
    still = [name for name in missing if moved.get(name) is False]
    if still and updates:
        return applies(f"{none}, and {still[0]} stayed as it is in about {updates} updates")
    return undecided(f"{none} is attached; ask again after a few training steps")


PASS_IT = "pass it as target_updater=, or look twice (since=)"


def targets_moved(pairs, since):
    """Which target networks have changed between two looks, and how often the weights did.

    Both are empty where no weights did, so that nothing could follow them.
    """
    changed = since.changed("loss_module") if since else {}
    moved = {}
    for name in pairs:
        own = [value for key, value in changed.items() if key.startswith(f"{name}.")]
        source = [value for key, value in changed.items() if key.startswith(f"{name[7:]}.")]
        if own and any(source):
            moved[name] = any(own)
    return moved, since.updates("loss_module") if moved else 0


@check("q_values_explode", "Q-values explode and the critic loss grows")
def q_values_explode(target_updater):
    kept = getattr(target_updater, "eps", None)
    if not isinstance(kept, (int, float)) or kept >= 0.5:  # other causes are not looked for
        return None
    return applies(f"with eps={kept:g} a step moves the target {1 - kept:.1%} of the way")


@check("value_loss_dwarfs_the_policy", "The value loss dwarfs the policy loss")
def value_loss_dwarfs_the_policy(loss_module, batch=None, sample=None):
    losses = ("loss_critic", "loss_objective")
    keys = keys_of(loss_module)
    if not {*losses} <= {*getattr(loss_module, "out_keys", ())} or not shares_weights(loss_module):
        return None
    data = next((one for one in (one_batch(batch), sample) if holds(one, keys, "advantage")), None)
    if data is None:
        return undecided("actor and critic share weights; give a batch with its advantage")
    if getattr(loss_module, "advantage_norm", None) is not None:
        return undecided("to compute the losses would add to the statistics of advantage_norm")
    found = shared_gradients(loss_module, data[..., :128].clone(), losses)
    if not found:
        return None
    largest = max(value / max(policy, 1e-12) for value, policy in found)
    seen = f"the value loss pulls up to {largest:.3g} times as hard as the policy's"
    if largest > FAR_MORE:
        return applies(f"{seen} on {len(found)} shared weights")
    target = data.get(keys.value_target, None)
    large = target is not None and float(target.abs().median()) > MANY_REWARDS
    bounded = getattr(loss_module, "loss_critic_type", None) != "l2"
    if large and bounded:
        return undecided(f"{seen}, and its type bounds that, but targets are large; scale rewards")
    if large and largest > FAR_MORE / 10:
        return applies(f"{seen} on {len(found)} shared weights, and targets are large")
    if large or largest > FAR_MORE / 10:
        return undecided(seen)
    return clear(f"{seen} on shared weights")


FAR_MORE = 300  # times the gradient of the policy
MANY_REWARDS = 100  # of a value target


def holds(data, keys, name):
    key = getattr(keys, name, None)
    return data is not None and data.ndim > 0 and data.get(key, None) is not None


def shares_weights(loss_module):
    """Whether a gradient of the critic reaches weights of the actor, and the loss lets it."""
    places = []
    for name in ("actor_network_params", "critic_network_params"):
        params = getattr(loss_module, name, None)
        leaves = params.values(True, True) if params is not None else ()
        places.append({one.data_ptr() for one in leaves if not is_lazy(one)})
    return bool(places[0] & places[1]) and not getattr(loss_module, "separate_losses", False)


def shared_gradients(loss_module, rows, losses):
    """Norms of the gradients of two losses, of each weight that both reach."""
    weights = [one for one in loss_module.parameters() if one.requires_grad]
    options = {"retain_graph": True, "allow_unused": True}
    # A copy of the loss would have a critic with weights of its own.
    with attributes_kept(loss_module), torch.enable_grad():
        found = loss_module.eval()(rows)
        grads = [torch.autograd.grad(found[name].sum(), weights, **options) for name in losses]
        pairs = zip(*grads, strict=True)
        return [
            (float(a.norm()), float(b.norm())) for a, b in pairs if a is not None and b is not None
        ]


@check("n_step_value_after_the_end", "N-step targets add a value after the end of the episode")
def n_step_value_after_the_end(replay_buffer=None, collector=None, batch=None):
    found = [one for one in multi_steps(replay_buffer, collector) if one.n_steps > 1]
    if not found:
        return None
    kept = [one for one in found if "terminated" in map(last_part, one.done_keys)]
    if not kept:
        return clear("terminated moves with the next observation")
    name, n_steps = type(kept[0]).__name__, kept[0].n_steps
    said = f"{name} leaves terminated as it was after the first of {n_steps} steps"
    ends = [get_next(rows, "terminated") for rows in batches_of(batch)]
    if replay_buffer is not None:
        ends.append(stored_leaf(replay_buffer, ("next", "terminated")))
    if any(bool(end.any()) for end in ends if end is not None):
        return applies(said)
    return undecided(f"{said}; no episode terminates in these rows")


@check("target_updater_never_steps", "The target network has an updater and never changes")
def target_updater_never_steps(loss_module, target_updater=None, since=None):
    pairs = target_networks(loss_module)
    attached = private(loss_module, "_has_update_associated", None) or {}
    updated = target_updater is not None or any(attached.get(name[7:-7]) for name in pairs)
    if not pairs or not updated:
        return None
    if target_updater is not None and moves_too_little(target_updater):
        return applies(moves_too_little(target_updater))
    moved, updates = targets_moved(pairs, since)
    if moved and all(moved.values()):
        return clear("each target network has changed since the first look")
    if target_updater is None:
        pass_it = f"the loss has an updater; {PASS_IT}"
        return undecided(pass_it) if targets_left(pairs) else None
    if getattr(target_updater, "loss_module", loss_module) is not loss_module:
        if targets_left(pairs) and not has_updater_alive(loss_module):
            return applies("the updater is of another loss, and this loss has none")
        return undecided("this updater is of another loss; pass that of the loss")
    counted = since.number("updater", "target_updater") if since else None
    if counted and counted[0] != counted[1]:
        return not_yet_copied(target_updater, pairs) or clear("step() was called")
    still = [name for name, has_moved in moved.items() if not has_moved]
    if still and updates >= FEWEST_UPDATES and (since.batches > 1 or updates >= 100):
        return applies(f"{still[0]} stayed as it is in about {updates} updates of the weights")
    stepped = has_stepped(target_updater)
    if stepped:
        return not_yet_copied(target_updater, pairs) or clear("step() was called")
    if not targets_left(pairs):
        return None  # before the first training step
    updates = updates_of(pairs)
    if stepped is False and updates >= FEWEST_UPDATES:
        return applies(f"step() was not called once in about {updates} updates of the weights")
    return undecided(f"there is an updater; is its step() called? {LOOK_TWICE}")


@check("loaded_policy_gets_worse", "A loaded policy gets worse with the first updates")
def loaded_policy_gets_worse(loss_module, optimizer):
    pairs = target_networks(loss_module)
    several = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
    sources = {id(one) for source, _ in pairs.values() for one in source.values(True, True)}
    held = [
        (one.state, weight, any(group.get(name) for name in ("betas", "momentum", "alpha")))
        for one in several
        for group in one.param_groups
        for weight in group["params"]
        if id(weight) in sources
    ]
    # Without moments, nothing tells whether there was a step.
    if not held or any(weight in state or not moments for state, weight, moments in held):
        return None
    if not (left := targets_left(pairs)):
        return clear("no step was taken, and each target network is equal to its network")
    alike = {name: likeness(*pairs[name]) for name in left}
    name = min(alike, key=alike.get)
    seen = f"before the first step, the cosine of {name} and its network is {alike[name]:.2f}"
    # One that followed in an earlier run is near.
    return applies(seen) if alike[name] < 0.5 else None


def likeness(*networks):
    """The cosine of the angle between the weights of two networks, as long vectors."""
    one, other = (
        torch.cat([weight.flatten() for weight in net.detach().values(True, True, sort=True)])
        for net in networks
    )
    return float(torch.cosine_similarity(one.double(), other.double(), dim=0))


LEAST_SHARE = 1e-5  # of a weight in a step of an updater; a tenth of that of DQN on Atari


def updates_of(pairs):
    """How often the weights were changed in place, as their start and an optimizer do it."""
    return times_changed(one for source, _ in pairs.values() for one in source.values(True, True))


def moves_too_little(target_updater):
    """Why the targets stay where they are, however often ``step()`` is called; None if not."""
    steps, eps = (
        getattr(target_updater, n, None) for n in ("value_network_update_interval", "eps")
    )
    if eps == 1:
        return "eps is 1, so step() leaves the target network as it is"
    if eps is not None and 1 - eps < LEAST_SHARE:
        return f"a step moves the target network by {1 - eps:.2g} of its distance"
    if steps is not None and steps * LEAST_SHARE > 1:
        return f"the target network is copied once in {steps} steps of the updater"
    return None


def not_yet_copied(target_updater, pairs):
    """Undecided where a `HardUpdate` has stepped, and its first copy may be to come."""
    steps, updates = getattr(target_updater, "value_network_update_interval", 0), updates_of(pairs)
    if updates >= steps:
        return None
    return undecided(f"a copy after {steps} steps of the updater; so far about {updates} updates")


def has_updater_alive(loss_module):
    """Whether an updater of this very loss is anywhere in the process."""
    from torchrl.objectives.utils import TargetNetUpdater

    alive = [one for one in gc.get_objects() if issubclass(type(one), TargetNetUpdater)]
    return any(vars(one).get("loss_module") is loss_module for one in alive)


def has_stepped(target_updater):
    """Whether ``step()`` of the updater was called; None where nothing tells.

    A `HardUpdate` counts, and begins anew when it has copied. Arithmetic in place leaves a list of
    leaves in a locked tensordict, here the updater's own. A copy shows whether it does so in this
    release; compiled code may not.
    """
    if getattr(target_updater, "counter", None):
        return True
    compiled = sys.modules.get("torch._dynamo.utils")
    if compiled is not None and compiled.counters["frames"]:
        return None
    if _has_trace(target_updater):
        return True
    if not getattr(private(target_updater, "_targets", None), "is_locked", False):
        return None
    twin = copied(target_updater)
    private(twin, "_targets").lock_()  # a copy is not
    if hasattr(twin, "counter"):
        twin.counter = twin.value_network_update_interval
    twin.step()
    return False if _has_trace(twin) else None


def _has_trace(target_updater):
    targets = private(target_updater, "_targets", {})
    return any("_items_list" in (private(one, "_cache", None) or {}) for one in targets.values())


def target_networks(loss_module):
    """Parameters of each network that has a target, and of the target, by its name."""
    named = dict(getattr(loss_module, "named_children", list)())
    return {
        name: (named[name[7:]], target)
        for name, target in named.items()
        if name.startswith("target_") and name.endswith("_params") and name[7:] in named
    }


def targets_left(pairs):
    """For each tensor that differs from its target, the name of the target network."""
    left = []
    for name in pairs:
        source, target = (td.detach().flatten_keys(".") for td in pairs[name])
        left += [name for k, weights in target.items() if not torch.equal(weights, source[k])]
    return left


@check("ppo_clips_before_the_first_update", "PPO clips ratios before the first update")
def ppo_clips_before_the_first_update(loss_module, batch=None, sample=None):
    key = getattr(keys_of(loss_module), "sample_log_prob", None)
    agree = None
    for name, data in {"batch": one_batch(batch), "sample of the buffer": sample}.items():
        if data is None or not data.ndim or not isinstance(key, (str, tuple)):
            continue
        rows = data[..., :32]
        noisy = [computed_log_prob(loss_module, rows, calm=False) for _ in range(2)]
        if all(isinstance(one, torch.Tensor) for one in noisy):
            off = float((noisy[0] - noisy[1]).abs().max())
            if off > 0.01:
                return applies(f"two calls of the actor differ by up to {off:.2g} in {key}")
        stored, computed = rows.get(key, None), computed_log_prob(loss_module, rows)
        if not isinstance(stored, torch.Tensor) or not isinstance(computed, torch.Tensor):
            continue
        if stored.shape != computed.shape:
            shapes = f"{tuple(stored.shape)} in {rows.shape[-1]} rows of the {name}"
            return applies(
                f"{key} has shape {shapes}, and the loss computes {tuple(computed.shape)}"
            )
        off = float((stored - computed).abs().max())
        found = f"{key} of the {name} is off by up to {off:.2g} from what the loss computes"
        otherwise = float((noisy[0] - stored).abs().max())
        if off < 0.01 < otherwise:
            agree = undecided(f"{found}; {otherwise:.2g} in training mode: is it called in that?")
        elif off < 0.01:
            agree = agree or clear(f"{key} of the {name} is what the loss computes")
        else:
            agree = agree or undecided(f"{found}; has the policy changed since?")
    return agree


def computed_log_prob(loss_module, rows, calm=True):
    """What the actor of the loss says of the stored actions; None for a loss without one.

    In evaluation mode; if not *calm*, in its own.
    """
    from torchrl.modules import set_recurrent_mode

    key = keys_of(loss_module).action
    action = rows.get(key, None) if isinstance(key, (str, tuple)) else None
    if action is None or not hasattr(getattr(loss_module, "actor_network", None), "get_dist"):
        return None
    actor = loss_module.get_stateful_net("actor_network", copy=loss_module.functional)
    if any(is_lazy(parameter) for parameter in actor.parameters()):
        return None  # a call would initialize it
    with attributes_kept(actor), set_recurrent_mode(True):
        # A batch norm counts no batch.
        actor = actor.eval() if calm else copy.deepcopy(actor)
        return actor.get_dist(rows.clone(False)).log_prob(action)


@check("state_value_missing_on_some_batches", "KeyError: state_value, on some batches only")
def state_value_missing_on_some_batches(loss_module=None, batch=None, error=None):
    if isinstance(error, KeyError) and "clip_value is set to" in str(error):
        return applies("the loss found no old values to clip against")
    data, key = one_batch(batch), value_key("value", loss_module)
    if data is None or getattr(loss_module, "clip_value", None) is None:
        return None
    if data.get(key, None) is not None:
        return clear(f"the batch holds {key}")
    if data.get(value_key("advantage", loss_module), None) is not None:
        return applies(f"the batch holds an advantage and no {key}, which clip_value needs")
    keys = observed_keys(data, getattr(loss_module, "critic_network", None))
    unknown = [k for k in keys if data[k].is_floating_point() and get_next(data, k).isnan().any()]
    if unknown:
        return undecided(f"NaN in the next {unknown[0]}: after GAE, see whether {key} is there")
    return clear(f"no NaN in the next {keys[0]}") if keys else None


@check("stored_log_prob_requires_grad", "RuntimeError: stored action_log_prob requires grad")
def stored_log_prob_requires_grad(loss_module=None, own_batch=None, sample=None, error=None):
    words = str(error)
    if isinstance(error, RuntimeError) and "stored" in words and "requires grad" in words:
        return applies(f"the loss refuses the data: {words}")
    if not hasattr(keys_of(loss_module), "sample_log_prob"):
        return None
    keys = [value_key(name, loss_module) for name in ("sample_log_prob", "action")]
    given = [data for data in (one_batch(own_batch), sample) if data is not None]
    stored = [(key, data.get(key, None)) for data in given for key in keys]
    stored = [(key, value) for key, value in stored if isinstance(value, torch.Tensor)]
    for key, value in stored:
        if value.requires_grad:
            return applies(f"{key} in the data requires grad")
    return clear("log-probabilities and actions are plain numbers") if stored else None


@check("part_of_the_batch_has_no_advantage", "The last rows of each batch have no advantage")
def part_of_the_batch_has_no_advantage(batch, value_estimator):
    data = one_batch(batch)
    if getattr(value_estimator, "shifted", False) is not True or not data.ndim:
        return None
    done, terminated = (
        get_next(data, value_key(name, None, value_estimator)) for name in ("done", "terminated")
    )
    if done is None:
        return None
    dim = walked_dim(data, value_estimator)
    ends = done & ~(done if terminated is None else terminated)
    cut = ends.reshape(*data.shape, -1).any(-1).movedim(dim, -1)
    steps = cut.shape[-1]
    before = cut.long().cumsum(-1) - cut.long()
    slot = torch.arange(1, steps + 1, device=cut.device) + before
    lost = int((slot >= steps + value_estimator.shifted_budget).sum())
    if lost:
        found = f"{int(cut.sum())} cuts push {lost} of {cut.numel()} rows out of the budget"
        return applies(found, fix=f"shifted_budget={int(cut.sum(-1).max()) + 1}")
    return clear(f"the budget holds all {cut.numel()} rows")


@check("worse_with_a_shorter_time_limit", "A shorter time limit makes the policy worse")
def worse_with_a_shorter_time_limit(batch, env, value_estimator=None, loss_module=None):
    data = one_batch(batch)
    keys = [value_key(name, loss_module, value_estimator) for name in ("done", "terminated")]
    done, terminated = (get_next(data, key) for key in keys)
    if done is None or terminated is None or not data.ndim:
        return None
    names = getattr(data, "names", None) or [None]
    if (value_estimator is None and loss_module is None) or "time" in names[:-1]:
        return None
    lengths = lengths_of_deaths(data, done, terminated)
    deaths = terminated.reshape(data.numel(), -1).any(-1)
    longest, limits = max(lengths, default=0), step_limits(env)
    if not lengths:
        return None
    network = getattr(
        value_estimator, "value_network", getattr(loss_module, "critic_network", None)
    )
    if any(end_is_seen(data, key, deaths) for key in observed_keys(data, network)):
        return clear("the observation tells the last step from all others")
    cut = get_next(data, "truncated")
    if cut is not None and (cut.reshape(data.numel(), -1).any(-1) & ~deaths).any():
        return clear("a time limit is reported as truncated")
    ties = lengths.count(longest)
    found = f"{ties} of {len(lengths)} episodes terminate after {longest} steps, none later"
    known = limits | {time_limit(env): "spec.max_episode_steps"}
    if longest in known and ties > 1 and longest > 1:
        return applies(f"{found}, and env.{known[longest]} is {longest}")
    limit, deaths = deaths_at_a_limit(env, limits)
    if deaths > 1:
        return applies(
            f"{deaths} random episodes terminate after {limit} steps, env.{limits[limit]}"
        )
    if longest in limits or ties > 1:
        return undecided(f"{found}: if that is a time limit, report it as truncated")
    if len(lengths) < ENOUGH_EPISODES:
        return undecided(f"{len(lengths)} whole episodes are too few to tell a time limit")
    return clear(found)


def deaths_at_a_limit(env, limits):
    """The least limit of steps, and how many episodes of random actions terminate right there."""
    limit = min((one for one in limits if 1 < one <= LONGEST_TRIED), default=None)
    if limit is None or type(below_transforms(env)).__name__ == "ParallelEnv":
        return limit, 0
    twin, deaths = copied(env), 0
    if twin.batch_size:
        return limit, 0
    end = time.process_time() + SECONDS_OF_TRIES
    while deaths < 2 and time.process_time() < end:
        step, taken, ended = twin.reset(), 0, False
        while not ended and taken <= limit:
            after, step = twin.step_and_maybe_reset(legal_action(twin, step))
            taken, ended = taken + 1, bool(done_of(after).any())
        if taken > limit:
            return limit, 0  # it is no limit
        if taken == limit and "truncated" in after["next"] and after["next", "truncated"].any():
            return limit, 0
        deaths += taken == limit and bool(after["next", "terminated"].any())
    return limit, deaths


LONGEST_TRIED, SECONDS_OF_TRIES = 1000, 0.5


def lengths_of_deaths(data, done, terminated):
    """The lengths of terminated episodes of which a batch (..., time) has all."""
    ends = done.reshape(data.numel(), -1).any(-1).nonzero().flatten()
    deaths = terminated.reshape(data.numel(), -1).any(-1)
    lines = ends // data.shape[-1]
    whole = lines[1:] == lines[:-1]  # both ends in one line
    return ends.diff()[whole & deaths[ends[1:]]].tolist()


ENOUGH_EPISODES = 10  # of one of which alone is the longest


def end_is_seen(data, key, ends):
    """Has a part of the observation one value at all ends and that value nowhere else?"""
    after = get_next(data, key).reshape(data.numel(), -1)
    last, rest = after[ends], after[~ends]
    return bool(((last == last[0]).all(0) & (rest != last[0]).all(0)).any())


@check("gae_none_not_subscriptable", "GAE: 'NoneType' object is not subscriptable")
def gae_none_not_subscriptable(value_estimator=None, loss_module=None, error=None):
    networks = {
        "value estimator": (value_estimator, getattr(value_estimator, "value_network", None)),
        "loss": (loss_module, getattr(loss_module, "critic_network", None)),
    }
    agree = []
    for name, (owner, network) in networks.items():
        key = getattr(keys_of(owner), "value", None)
        written = getattr(network, "out_keys", None)
        if not isinstance(key, (str, tuple)) or not written:
            continue
        if key not in written:
            found = f"the {name} reads {key!r}, the critic writes {list(written)}"
            if len(written) > 1:
                return applies(found)
            argument = {"value estimator": "value_estimator", "loss": "loss_module"}[name]
            return applies(found, fix=f"{argument}.set_keys(value={written[0]!r})")
        agree.append(name)
    if isinstance(error, KeyError) and "not found in value network out_keys" in str(error):
        return applies(f"the keys do not fit: {error.args[0]}")
    if isinstance(error, TypeError) and "_call_value_nets" in functions_of(error):
        return applies("a value estimator found no value in what its critic returned")
    return clear(f"{' and '.join(agree)} read what the critic writes") if agree else None


@check("sets_of_keys_are_exclusive", "GAE: the sets of keys to stack are exclusive")
def sets_of_keys_are_exclusive(batch=None, value_estimator=None, loss_module=None, error=None):
    data, key = one_batch(batch), value_key("value", None, value_estimator)
    network = getattr(value_estimator, "value_network", None)
    if value_key("action", loss_module) in (getattr(network, "out_keys", None) or ()):
        data = None  # a network of Q-values, whose loss asks for the values of next alone
    if data is not None and network is not None and not getattr(value_estimator, "shifted", True):
        known = data.get(value_key("advantage", None, value_estimator), None) is not None
        root, after = data.get(key, None) is not None, get_next(data, key) is not None
        if root and not after and not known:
            return applies(f"{key} stands at the root of the batch and not under next")
        if error is None:
            return clear(f"{key} stands in both halves of the batch or in none")
    if isinstance(error, RuntimeError) and "sets of keys" in str(error):
        if "_call_value_nets" in functions_of(error):
            return applies("root and next of the batch do not hold the same inputs of the critic")
        return undecided("keys differ in something that was stacked, not in a value estimator")
    return None


BY_DEFAULT = {"gamma": 0.99, "lmbda": 0.95}  # what make_value_estimator takes


@check("a_new_gamma_changes_nothing", "A new gamma changes nothing")
def a_new_gamma_changes_nothing(loss_module, value_estimator=None):
    inner = private(loss_module, "_value_estimator", None)  # the property would make one
    whose, estimator = ("its", inner) if inner is not None else ("the", value_estimator)
    for name in ("gamma", "lmbda"):
        written = vars(loss_module).get(name) if hasattr(loss_module, "__dict__") else None
        if not isinstance(written, float) or reads(loss_module, name):
            continue
        if estimator is None:
            return undecided(f"{name} of the loss is {written:.4g}; pass the value_estimator=")
        used = getattr(estimator, name, None)
        if used is not None and abs(float(used) - written) > 1e-6:
            values = f"{written:.4g}, that of {whose} value estimator {float(used):.4g}"
            return applies(f"{name} of the loss is {values}")
    if inner is None or inner is value_estimator or type(inner) is not type(value_estimator):
        return None
    other = False
    for name in ("gamma", "lmbda"):
        given, used = (getattr(one, name, None) for one in (value_estimator, inner))
        if given is None or used is None:
            continue
        given, used = (torch.as_tensor(value).cpu() for value in (given, used))
        if given.numel() != 1 or used.numel() != 1 or torch.allclose(given, used):
            continue
        if not torch.allclose(used, torch.full_like(used, BY_DEFAULT[name])):
            values = f"{given.item():.4g}, that of the loss {used.item():.4g}"
            return applies(f"{name} of the value estimator is {values}")
        other = True
    if other:
        return None  # nobody chose the settings of the loss, which may not use them
    return clear("the value estimator and that of the loss have the same settings")


def reads(loss_module, name):
    """Whether a method of the loss, those of `LossModule` apart, has an attribute of that name."""
    from torchrl.objectives import LossModule

    own = [kind for kind in type(loss_module).__mro__ if not issubclass(LossModule, kind)]
    methods = [inspect.unwrap(one) for kind in own for one in vars(kind).values() if callable(one)]
    codes = [one.__code__ for one in methods if hasattr(one, "__code__")]
    return any(name in code.co_names for code in codes)


@check("log_prob_not_found", "KeyError: couldn't find the log-prob")
def log_prob_not_found(loss_module=None, batch=None, sample=None, error=None, value_estimator=None):
    if isinstance(error, KeyError) and "find the log-prob" in str(error):
        return applies(f"the loss says: {error.args[0]}")
    corrects = "VTrace" in kinds_of(value_estimator)
    if not corrects and "PPOLoss" not in kinds_of(loss_module):
        return None
    action, reader = value_key("action", loss_module), value_estimator if corrects else loss_module
    key = value_key("sample_log_prob", reader)
    if isinstance(getattr(keys_of(reader), "sample_log_prob", None), list):
        return None  # an action of several parts, each with a key of its own
    given = {"batch": one_batch(batch), "sample of the buffer": sample}
    found = None
    for name, data in given.items():
        if data is None or data.get(action, None) is None:
            continue
        if data.get(key, None) is None:
            return applies(f"the {name} holds {action} and no {key}")
        found = clear(f"the {name} holds {action} and {key}")
    return found
