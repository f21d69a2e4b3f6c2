"""Checks: replay buffers and their transforms."""

from __future__ import annotations

import inspect
import math
import re

import torch
from tensordict import is_tensor_collection, unravel_key_list

from torchrl_doctor.copies import copied, lending, reached_by
from torchrl_doctor.looks import FEWEST_BATCHES
from torchrl_doctor.objects import (
    FEW_THOUSAND,
    FEWEST_UPDATES,
    TRAJ_IDS,
    batches_of,
    called_on_entries,
    compares_answers,
    functions_of,
    learns_on_policy,
    modules_of,
    next_key,
    observed_keys,
    says,
    storage_of,
    stored_leaf,
    stored_leaves,
    times_changed,
    transforms_of,
    value_key,
)
from torchrl_doctor.private import private
from torchrl_doctor.verdicts import applies, check, clear, undecided


@check("prioritized_replay_draws_evenly", "Prioritized replay draws every sample equally often")
def prioritized_replay_draws_evenly(replay_buffer, loss_module=None):
    from torchrl.data import PrioritizedSampler

    sampler = getattr(replay_buffer, "sampler", None)
    if not isinstance(sampler, PrioritizedSampler):
        return None
    if sampler.alpha == 0:
        return applies("alpha=0 of the sampler makes all priorities the same")
    tree = private(sampler, "_sum_tree", None)
    if private(sampler, "_max_capacity", math.inf) < len(replay_buffer):
        return None  # the tree ends before the rows do, and does not look where it reads
    if tree is None or len(replay_buffer) < 2:
        return undecided("there are no priorities to compare yet")
    rows = torch.as_tensor(tree[torch.arange(len(replay_buffer))])
    different = len(rows.unique())
    if different > 1 and (few := alike_in_samples(rows, replay_buffer.batch_size)):
        return undecided(f"{few}: does each row of a sample get one number?")
    if different > 1:
        return clear(f"{different} different priorities in {len(rows)} rows")
    same = f"all {len(rows)} rows have one priority"
    read = getattr(replay_buffer, "priority_key", None)
    written = getattr(getattr(loss_module, "tensor_keys", None), "priority", read)
    if read is not None and read != written:  # else priorities are passed, not read
        return applies(f"{same}; the loss writes {written!r}, the buffer reads {read!r}")
    updates = times_changed(getattr(loss_module, "parameters", list)())
    if updates >= FEWEST_UPDATES:
        return applies(f"{same} after about {updates} updates of the weights")
    if replay_buffer.write_count >= 2 * len(rows):
        return applies(f"{same} after {replay_buffer.write_count} writes")
    return undecided(f"{same}; look again after an update")


def alike_in_samples(priorities, size):
    """How few priorities the rows have that got one; None where most rows have one of their own.

    Those of new rows, the most frequent ones, are left out.
    """
    _, counts = priorities.unique(return_counts=True)
    given = counts.sort(descending=True).values[1:]
    rows = int(given.sum())
    if not size or rows < FEWEST_GIVEN or len(given) > 0.2 * rows:
        return None
    return f"{rows} of {len(priorities)} rows share {len(given)} priorities"


FEWEST_GIVEN = 40


@check("most_rows_are_never_drawn", "Prioritized replay never draws most of the rows")
def most_rows_are_never_drawn(replay_buffer):
    from torchrl.data import PrioritizedSampler

    sampler, rows = getattr(replay_buffer, "sampler", None), len(replay_buffer)
    if not isinstance(sampler, PrioritizedSampler):
        return None
    tree = private(sampler, "_sum_tree", None)
    if tree is None or private(sampler, "_max_capacity", 0) < rows or not rows:
        return None
    without = int((torch.as_tensor(tree[torch.arange(rows)]) == 0).sum())
    if without:
        return applies(f"{without} of {rows} rows have a priority of zero here")
    return clear(f"each of {rows} rows has a priority")


@check(
    "loss_stays_high_with_normalized_observations",
    "The loss stays high with normalized observations",
)
def loss_stays_high_with_normalized_observations(replay_buffer, loss_module=None):
    from torchrl.envs.transforms import ObservationTransform

    transforms = transforms_of(replay_buffer)
    reached = {key for one in transforms for key in one.in_keys}
    changed = []
    for one in transforms:
        own = not type(one).__module__.startswith("torchrl.") or "Unary" in type(one).__name__
        if isinstance(one, ObservationTransform) or own:
            changed += [key for key in one.in_keys if key in one.out_keys and key[0] != "next"]
    if not changed or not len(replay_buffer):
        return None
    row, read = replay_buffer.storage.get(0), getattr(loss_module, "in_keys", None)
    if not hasattr(row, "keys") or "advantage" in set(row.keys()):
        return None  # what a loss reads under "next" is read already
    for key in changed:
        later = next_key(key)
        # What is rebuilt after the transform is made of what it has changed.
        first = next(one for one in transforms if key in one.in_keys or key in rebuilt_by(one))
        there = later in row.keys(True) or key in rebuilt_by(first)
        if not there or later in reached:
            continue
        what = f"a transform of the buffer changes {key!r} and not {later!r}"
        if read is None:
            return undecided(f"{what}; does your loss read it?")
        if later in unravel_key_list(list(read)):
            return applies(what, fix=f"in_keys=[{key!r}, {later!r}]")
    return clear("changed keys are changed in the next step too")


def rebuilt_by(transform):
    """The keys whose next value a transform of a replay buffer takes from the row below."""
    return transform.keys if type(transform).__name__ == "NextStateReconstructor" else ()


@check("samples_differ_from_what_the_policy_saw", "Samples differ from what the policy saw")
def samples_differ_from_what_the_policy_saw(
    replay_buffer,
    env=None,
    policy=None,
    sample=None,
    own_batch=None,
    batch=None,
    collector=None,
    loss_module=None,
):
    from torchrl.envs.transforms import CatFrames, ObservationNorm, RewardScaling, VecNormV2

    same = [(ObservationNorm, VecNormV2), (CatFrames,), (RewardScaling,)]
    for kinds in same:
        in_env = [one for one in transforms_of(env) if isinstance(one, kinds)]
        written = {key for one in in_env for key in one.out_keys}
        written |= {next_key(key) for key in written}
        for one in transforms_of(replay_buffer):
            twice = written.intersection(one.in_keys)
            if isinstance(one, kinds) and twice:
                name = type(one).__name__
                return applies(f"{name} changes {min(twice, key=str)!r} again in the buffer")
    if (key := rounded_in(replay_buffer, policy, batch)) is not None:
        return applies(f"{key!r} has decimals in the batch, and none in the buffer")
    if collector is not None and batch is not None:
        read = set(getattr(policy, "in_keys", ())) & set(getattr(loss_module, "in_keys", ()))
        parts = modules_of(policy)
        written = {key for one in parts for key in getattr(one, "out_keys", ())}
        # A policy that normalizes by itself reads what the loss does.
        names = {type(one).__name__.lower() for one in parts} - {"normalparamextractor"}
        itself = any("norm" in name for name in names)
        for key in sorted(() if itself else read - written, key=str):
            if normalized_after(replay_buffer, key, batches_of(batch)[-1]):
                return applies(f"the policy reads {key!r} as it is stored, and the loss normalized")
    if sample is None or own_batch is None:
        changed = {key for one in transforms_of(replay_buffer) for key in one.out_keys}
        read = changed & set(getattr(policy, "in_keys", None) or changed)
        return undecided(GIVE_ALL) if read else None
    batches, drawn = [one.reshape(-1) for one in batches_of(own_batch)], sample.reshape(-1)
    keys = observed_keys(batches[-1], policy) or list(getattr(policy, "in_keys", ()))
    keys = [one for one in keys if drawn.get(one, None) is not None and "recurrent" not in str(one)]
    keys = [one for one in keys if all(rows.get(one, None) is not None for rows in batches)]
    unknown = []
    for key in keys:
        kinds = drawn[key].dtype, batches[-1][key].dtype
        if not set(rows_as_bytes(drawn, [key])) & {
            row for one in batches for row in rows_as_bytes(one, [key])
        }:
            other, known = rows_that_differ(drawn, batches, key)
            said = f"{other} of {known} rows of a sample hold another {key!r} than the batch"
            if 2 * other > known and all(map(is_certain, transforms_of(replay_buffer))):
                return applies(f"{said}, {kinds[0]} and {kinds[1]}" if len({*kinds}) > 1 else said)
            unknown.append(said if known else f"no row of a sample is in the batch, by {key!r}")
    if unknown or not keys:
        return undecided(f"{unknown[0]}; {GIVE_ALL}" if unknown else GIVE_ALL)
    return clear(f"samples hold {', '.join(map(repr, keys))} as the batch does")


def normalized_after(replay_buffer, key, rows):
    """Whether a buffer stores what the policy read, and normalizes it when it is sampled.

    A batch goes on from a next observation of the storage, which may be of an earlier episode.
    """
    seen, held = rows.get(key, None), stored_leaf(replay_buffer, next_key(key))
    norms = [one for one in transforms_of(replay_buffer) if key in one.in_keys]
    norms = [one for one in norms if key in one.out_keys and not one.in_keys_inv]
    if seen is None or held is None or [type(one).__name__ for one in norms] != ["ObservationNorm"]:
        return False
    first = rows[..., :1].reshape(-1)
    changed = copied(norms[0])(first.copy())[key]
    if held.dtype != seen.dtype or held.shape[-1] != seen.shape[-1]:
        return False
    held = held.reshape(-1, held.shape[-1])
    return any(
        bool((held == before).all(-1).any()) and not torch.allclose(before, after)
        for before, after in zip(first[key], changed, strict=True)
    )


def rounded_in(replay_buffer, policy, batch):
    """What the policy reads that is stored as whole numbers, and is none; None without such."""
    if batch is None or transforms_of(replay_buffer):
        return None
    rows = batches_of(batch)[-1]
    for key in observed_keys(rows, policy):
        stored = stored_leaf(replay_buffer, key)
        if stored is None or min(len(stored), rows.numel()) < FEWEST_NEWEST:
            continue
        seen = rows[key]
        broken = seen.is_floating_point() and (seen != seen.round()).double().mean() > 0.9
        if broken and (stored == stored.round()).all() and (stored != stored[0]).any():
            return key
    return None


GIVE_ALL = "give policy= and all batches that are stored, as a list"


def is_certain(transform):
    """Whether a transform does the same in each call, as far as its name tells."""
    return (
        type(transform).__module__.startswith("torchrl.") and "Rand" not in type(transform).__name__
    )


def rows_as_bytes(rows, keys):
    """The numbers of each row under these keys, so that rows can be looked up."""
    parts = [rows[key].reshape(len(rows), -1).float() for key in keys]
    return [one.numpy().tobytes() for one in torch.cat(parts, -1).cpu().contiguous()]


def rows_that_differ(sample, batches, key):
    """Of the rows of a sample that a batch has, by what else is in them: how many differ in *key*.

    And how many are known. Rows that look alike but for the key tell nothing.
    """
    others = [one for one in sample.keys(True, True) if isinstance(sample[one], torch.Tensor)]
    others = [one for one in others if one not in (key, next_key(key)) and "next" not in one]
    others = [one for one in others if all(rows.get(one, None) is not None for rows in batches)]
    others = [one for one in others if one != "index" and sample[one].dtype != torch.bool]
    if not others:
        return 0, 0
    places = {}
    for rows in batches:
        for text, value in zip(rows_as_bytes(rows, others), rows[key], strict=True):
            places.setdefault(text, []).append(value)
    other = known = 0
    for text, value in zip(rows_as_bytes(sample, others), sample[key], strict=True):
        if len(there := places.get(text, ())) == 1:
            known += 1
            same = value.shape == there[0].shape
            other += not (same and torch.allclose(value.float(), there[0].float(), 1e-3, 1e-5))
    return other, known


@check("first_samples_after_refill_are_old", "The first samples after a refill hold old data")
def first_samples_after_refill_are_old(replay_buffer, loss_module=None, collector=None):
    waiting = list(private(replay_buffer, "_prefetch_queue", ()))
    if not waiting:
        return None
    drawn = [one.result() for one in waiting if one.done()]
    compared = [old_rows_of(sample, info["index"], replay_buffer) for sample, info in drawn]
    told = [one for one in compared if one is not None]
    rows = sum(number for _, number in told)
    found = f"{sum(old for old, _ in told)} of {rows} rows of the next samples"
    found += " were overwritten after they were drawn"
    if any(old > number / 2 for old, number in told):
        return applies(found)
    endless = not hasattr(replay_buffer.sampler, "drop_last")  # its queue never runs out
    if endless and learns_on_policy(loss_module):
        return applies(f"{len(waiting)} samples wait for a loss that learns from the newest batch")
    if len(told) < len(waiting):
        why = "are not drawn yet" if len(drawn) < len(waiting) else "compare to no row"
        return undecided(f"{len(waiting) - len(told)} of {len(waiting)} samples drawn ahead {why}")
    if transforms_of(replay_buffer):
        return undecided(f"{found}, as far as trajectory ids tell: another run may have the same")
    if any(old for old, _ in told):
        return undecided(f"{found}: was the buffer filled anew?")
    came = max(replay_buffer.write_count, private(collector, "_frames", 0))
    if came > len(replay_buffer):
        seen = f"{came} rows came and {len(replay_buffer)} are held"
        return undecided(f"{found}; {seen}: ask again right after a refill")
    return clear(f"{found}, and nothing was overwritten so far")


def old_rows_of(sample, index, replay_buffer):
    """How many rows of a sample that was drawn are stored no longer, of how many; None if unknown.

    What transforms have changed compares by the trajectory id alone.
    """
    if not isinstance(index, torch.Tensor) or index.ndim > 1 or not hasattr(sample, "keys"):
        return None
    if index.max() >= len(replay_buffer):
        return len(index), len(index)
    now = replay_buffer[index]
    keys = set(now.keys(True, True)).intersection(sample.keys(True, True))
    if transforms_of(replay_buffer):
        keys &= {TRAJ_IDS}
    if not keys:
        return None
    pairs = [
        (now[key].reshape(len(index), -1), sample[key].reshape(len(index), -1)) for key in keys
    ]
    old = torch.stack([((a != b) & (a == a)).any(1) for a, b in pairs]).any(0)
    return int(old.sum()), len(index)


@check("values_are_zero_for_no_reason", "Some sampled values are zero for no reason")
def values_are_zero_for_no_reason(batch, replay_buffer, loss_module=None):
    if not stored_leaves(replay_buffer):
        return None
    if not isinstance(batch, list):
        return stored_in_part(batch, replay_buffer, loss_module)
    keys = [set(one.keys(True, True)) for one in batch]
    somewhere = set.union(*keys) - set.intersection(*keys)
    somewhere = [k for k in sorted(somewhere, key=str) if stored_leaf(replay_buffer, k) is not None]
    rows = sum(one.numel() for one in batch)
    if not somewhere and rows < len(replay_buffer):
        return undecided(f"{rows} rows in batches, {len(replay_buffer)} stored: give all batches")
    if not somewhere:
        return clear(f"what is stored is in all {len(batch)} batches or in none")
    stored = replay_buffer.storage.get(slice(0, min(len(replay_buffer), FEW_THOUSAND)))
    for key in somewhere:
        rows = stored.get(key, None) if hasattr(stored, "keys") else None
        zero = 0 if rows is None else int((rows.reshape(len(rows), -1) == 0).all(1).sum())
        if zero and zero >= min(map(len, batch)):
            having = f"{sum(key in one for one in keys)} of {len(batch)} batches"
            found = f"{key!r} is in {having}, and zero in {zero} of {len(rows)} stored rows"
            if rows.is_floating_point():
                return applies(found)
            return undecided(f"{found}; is zero a value of it?")
    return undecided(f"{somewhere[0]!r} is not in all batches; what do its stored rows hold?")


def stored_in_part(batch, replay_buffer, loss_module):
    """Undecided where an entry that the batch lacks is stored, and zero in some rows.

    An advantage against a group is zero where all its answers are as good.
    """
    stored = replay_buffer.storage.get(slice(0, min(len(replay_buffer), FEW_THOUSAND)))
    given = {*batch.keys(True, True)}
    if compares_answers(loss_module):
        given.add(value_key("advantage", loss_module))
    for key in sorted({*stored.keys(True, True)} - given, key=str):
        rows = stored[key]
        nothing = (rows.reshape(len(rows), -1) == 0).all(1)
        zero = int(nothing.sum())
        if rows.is_floating_point() and 0 < zero < len(rows):
            found = f"{key!r} is stored, not in the batch, and zero in {zero} of {len(rows)} rows"
            if newest_are_zero(rows, min(batch.numel(), len(rows)), replay_buffer):
                return applies(f"{found}, the newest among them")
            both = {*stored.keys(True, True)} & {*batch.keys(True, True)}
            writes = [times_written(replay_buffer, one) for one in (*both, key)]
            in_a_block = zero >= FEWEST_NEWEST and (nothing[1:] != nothing[:-1]).sum() <= 2
            known = in_a_block and both and None not in writes
            if known and writes[-1] < min(writes[:-1]):
                fewer = f"it was written {writes[-1]} times, other entries {min(writes[:-1])}"
                return applies(f"{found}, and {fewer}")
            return undecided(f"{found}; give a list of all batches")
    return None


def times_written(replay_buffer, key):
    """How often an entry of the storage was written to, None where nothing counts it."""
    leaf = stored_leaf(replay_buffer, key)
    return None if leaf is None or leaf.is_inference() else leaf._version


def newest_are_zero(rows, number, replay_buffer):
    """Whether the rows that were written last are zero, for most of a batch of them."""
    cursor = private(replay_buffer.storage, "_last_cursor_index", None)
    last = int(cursor) if isinstance(cursor, int) else len(rows) - 1
    places = torch.arange(last + 1 - number, last + 1) % len(rows)
    newest = rows[places].reshape(number, -1)
    nothing = (newest.abs() < TINY) | ~newest.isfinite()  # as memory is that nobody has written
    return 2 * int(nothing.all(1).sum()) > number >= FEWEST_NEWEST


FEWEST_NEWEST, TINY = 16, 1e-30


@check(
    "each_sample_has_the_same_rows",
    "Each sample has the same rows",
    "reference/doctor_settings#buffer",
)
def each_sample_has_the_same_rows(replay_buffer):
    sampler, size = replay_buffer.sampler, replay_buffer.batch_size or FEWEST_NEWEST
    if len(replay_buffer) <= size or hasattr(sampler, "slice_len"):
        return None
    if not getattr(sampler, "shuffle", True):
        return None
    twin, storage = copied(sampler), lending(replay_buffer.storage)
    drawn = [twin.sample(storage, size)[0] for _ in range(SAMPLES_DRAWN)]
    if not all(isinstance(one, torch.Tensor) for one in drawn):
        return None
    if all(torch.equal(one, drawn[0]) for one in drawn):
        rows = len(drawn[0].unique(dim=0))
        return applies(f"{len(drawn)} samples repeat {rows} rows of {len(replay_buffer)}")
    return clear(f"{len(drawn)} samples have other rows each")


SAMPLES_DRAWN = 4


@check(
    "collected_rows_are_lost",
    "Collected rows are never learned from",
    "reference/doctor_settings#buffer",
)
def collected_rows_are_lost(replay_buffer, loss_module=None, collector=None, since=None):
    held, sampler = getattr(replay_buffer.storage, "max_size", None), replay_buffer.sampler
    places = private(sampler, "_max_capacity", None)
    if places and held and places < held:
        found = f"the sampler has memory for {places} rows, the storage for {held}"
        return applies(found, fix=f"{type(sampler).__name__}({held}, ...)")
    past = shape_past_the_buffer(replay_buffer, collector, since)
    if past and not learns_on_policy(loss_module):
        return applies(past)
    rows, writes = (since.number(n, "replay_buffer") if since else None for n in ("rows", "writes"))
    if not rows or not writes or since.batches < FEWEST_BATCHES or not rows[1]:
        return None
    if learns_on_policy(loss_module) or hasattr(sampler, "drop_last") or rows[1] == held:
        return None  # buffers of a batch are emptied or full
    came, seen = writes[1] > writes[0], f"in {since.batches} batches since the first look"
    if came and rows[1] <= rows[0] and since.updates("loss_module"):
        return applies(f"rows came {seen}, and there are {rows[1]}, as {rows[0]} before: emptied?")
    steps = max(getattr(getattr(collector, "env", None), "batch_size", torch.Size()).numel(), 1)
    then, now = since.number("frames", "collector")
    stored, collected = rows[1] - rows[0], now - then
    singles = getattr(replay_buffer.storage.get(0), "ndim", 1) == 0
    seen = f"{stored} rows were stored of {collected} collected {seen}"
    if came and singles and stored == since.batches * steps and collected >= 10 * stored:
        return applies(seen)
    if singles and stored < 0.9 * collected:
        return undecided(f"{seen}: are some left out?")
    return clear(seen) if stored > 0 else None


def shape_past_the_buffer(replay_buffer, collector, since):
    """What the loss gets where that is the batch of the collector, and no sample; else None."""
    shape = (since.seen("shapes") or {}).get("loss_module") if since else None
    size, number = replay_buffer.batch_size, getattr(collector, "requested_frames_per_batch", None)
    if shape is None or not size or since.seen("drawn") or transforms_of(replay_buffer):
        return None
    got = math.prod(shape)
    if not private(replay_buffer, "_set_index_in_td", False) or got == size or got != number:
        return None
    return f"the loss gets the {got} rows of a batch of the collector, and no sample of {size}"


@check("stacked_frames_of_different_episodes", "Stacked frames come from different episodes")
def stacked_frames_of_different_episodes(replay_buffer):
    from torchrl.envs.transforms import CatFrames

    stacking = [one for one in transforms_of(replay_buffer) if isinstance(one, CatFrames)]
    stacking = [one for one in stacking if not one.as_inverse]
    if not stacking:
        return None
    name = type(replay_buffer.sampler).__name__
    if hasattr(replay_buffer.sampler, "slice_len"):
        if private(replay_buffer.sampler, "_batch_size_multiplier", 1) == stacking[0].N:
            return clear("the sampler and the transform are those of CatFrames")
        return undecided("the first rows of a slice have no rows before them: are they dropped?")
    if not getattr(replay_buffer.sampler, "shuffle", True):
        return clear("the sampler draws rows in their order")
    known = ("RandomSampler", "PrioritizedSampler", "SamplerWithoutReplacement")
    if name not in known or private(replay_buffer, "_sample_unit", None) is not None:
        return undecided(f"does a {name} draw rows that follow each other?")
    if not len(replay_buffer) or getattr(replay_buffer.storage.get(0), "ndim", 1):
        return undecided("no single steps are stored")
    return applies(f"CatFrames stacks what a {name} draws, rows that do not follow each other")


@check("hook_changes_nothing_that_is_stored", "The hook changes nothing that is stored")
def hook_changes_nothing_that_is_stored(collector, replay_buffer, batch=None):
    hook = getattr(collector, "post_collect_hook", None)
    if hook is None or not getattr(collector, "extend_buffer", True):
        return None
    if found := changed_in_place(hook, batches_of(batch)):
        return applies(f"the hook changes {found[0]!r} in place, of which it has a copy")
    if not hasattr(hook, "__code__"):
        return undecided("the hook is no plain function")
    for key, method in called_on_entries(hook):
        if method in CHANGE_IN_PLACE:
            return applies(f"the hook calls {method} on {key!r}, of which it has a copy")
    return undecided("does the hook change an entry in place? It has copies of the entries")


def changed_in_place(function, batches):
    """The keys whose numbers a call changes where they are, in a copy of the last batch.

    Not of a function that may change more than its argument.
    """
    if not batches or inspect.ismethod(function) or reached_by(function):
        return []
    rows = batches[-1].clone()
    before, held = rows.clone(), dict(rows.items(True, True))
    function(rows)
    return [key for key, now in held.items() if ((now != before[key]) & (now == now)).any()]


CHANGE_IN_PLACE = {"add_", "clamp_", "clip_", "copy_", "div_", "mul_", "neg_", "sub_", "zero_"}


@check("sampling_raises_with_a_transform", "Sampling raises as soon as the buffer has a transform")
def sampling_raises_with_a_transform(replay_buffer=None, sample=None, error=None):
    if says(error, RuntimeError, "Failed to set the metadata", "in the sampled tensordict"):
        return applies("the index of a sample does not fit what a transform returned")
    if sample is None or not transforms_of(replay_buffer):
        return None
    return clear("the index of a sample fits what the transforms return")


@check("filling_a_buffer_raises_about_dimensions", "Filling the buffer raises about dim0 and dim1")
def filling_a_buffer_raises_about_dimensions(env=None, replay_buffer=None, error=None):
    raised = says(error, ValueError, "dim0 and dim1 must be within the range")
    if env is None or replay_buffer is None:
        return applies("a tensordict with too few dimensions was transposed") if raised else None
    counts = getattr(getattr(replay_buffer, "storage", None), "ndim", 1)
    has = len(env.batch_size) + 1
    found = f"the storage counts {counts} batch dimensions, a batch of the environment has {has}"
    if raised:
        return applies(found, fix=storage_of(has, replay_buffer.storage))
    if counts > has and not len(replay_buffer):
        return undecided(f"{found}; something has to add the others before it is stored")
    return clear(found)


@check(
    "next_batch_does_not_fit_the_buffer", "The buffer takes the first batch and refuses the next"
)
def next_batch_does_not_fit_the_buffer(error=None, replay_buffer=None, batch=None):
    refused = ("differs from the source batch size", "cannot be broadcast to indexing result")
    if any(says(error, RuntimeError, one) for one in refused) and (
        {"extend", "add"} & set(functions_of(error))
    ):
        return applies(str(error))
    if not (stored_leaves(replay_buffer) and batches_of(batch)) or transforms_of(replay_buffer):
        return None  # what a transform changes is not what is stored
    stored = replay_buffer.storage.get(slice(None))
    ndim = replay_buffer.storage.ndim
    if not is_tensor_collection(stored) or any(
        one.ndim != stored.ndim for one in batches_of(batch)
    ):
        return None  # it is reshaped on its way to the buffer
    for one in batches_of(batch):
        for key, leaf in stored.items(True, True):
            own, other = leaf.shape[ndim:], one.get(key, leaf).shape[ndim:]
            if own != other:
                said = f"{key!r} has the shape {tuple(own)} in the buffer, {tuple(other)} in the"
                return undecided(f"{said} batch; extending it with the batch as it is would raise")
    return clear("the entries of the batch have the shapes of those in the buffer")


@check("sampling_raises_at_the_start", "Sampling from the buffer raises at the start")
def sampling_raises_at_the_start(error, replay_buffer=None):
    empty = says(error, RuntimeError, "Cannot sample from an empty storage")
    if not empty and not says(error, RuntimeError, "Could not get a tensordict out of the storage"):
        return None
    stored = 0 if replay_buffer is None else len(replay_buffer)
    return applies(f"the storage was empty; now it holds {stored} rows")


@check("sample_asks_for_a_batch_size", "The buffer raises because it knows no batch size")
def sample_asks_for_a_batch_size(error, replay_buffer=None):
    known = getattr(replay_buffer, "batch_size", None)
    words = ("batch_size not specified", "Dynamic batch-size", "predictable batch-size")
    if any(says(error, (RuntimeError, ValueError), one) for one in words):
        return applies(f"the batch size of the buffer is {known}")
    return None


@check(
    "prioritized_replay_not_available",
    'Prioritized replay: "SumSegmentTreeFp32 is not available"',
)
def prioritized_replay_not_available(error):
    said = re.search(r"\w+SegmentTreeFp\d+ is not available", str(error))
    if isinstance(error, RuntimeError) and said:
        return applies(f"{said[0]}; torch is {torch.__version__}")
    return None


@check(
    "saved_prefetch_queue_is_refused", 'Loading a buffer raises "Cannot restore a prefetch queue"'
)
def saved_prefetch_queue_is_refused(error):
    if not says(error, RuntimeError, "Cannot restore a", "prefetch queue"):
        return None
    return applies("the buffer was saved with another prefetch")
