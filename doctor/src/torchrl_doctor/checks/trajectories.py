"""Checks: trajectories and slices."""

from __future__ import annotations

import math

import torch

from torchrl_doctor.objects import (
    PADDING,
    TRAJ_IDS,
    any_flag,
    both_sides,
    cuts_at_ids,
    declared_limit,
    end_keys_of,
    functions_of,
    get_next,
    is_sliced,
    last_part,
    may_glue,
    observed_keys,
    one_batch,
    pieces,
    recurrent_modules,
    says,
    slice_length,
    storage_of,
    stored_leaf,
    stored_rows,
    strangers,
    value_key,
    walked_dim,
)
from torchrl_doctor.private import private
from torchrl_doctor.verdicts import applies, check, clear, undecided

A_FEW_MILLION = 10_000_000  # numbers that it compares of an entry


@check("sequences_run_into_each_other", "Sampled sequences run into each other")
def sequences_run_into_each_other(
    replay_buffer, sample, batch=None, value_estimator=None, loss_module=None, since=None
):
    length = slice_length(replay_buffer, sample)
    if not length or sample.ndim != 1:
        return None
    key = getattr(replay_buffer.sampler, "truncated_key", None)
    remembers = recurrent_modules(loss_module)  # which begin anew at is_init
    if not key and not remembers and not along_time(value_estimator):
        return None
    slices, marks = sample.numel() // length, sample.get(key) if key else None
    marked = 0 if marks is None else int(marks.reshape(len(sample), -1).any(-1).sum())
    found = f"{marked} rows of a sample of {slices} slices are truncated"
    starts = sample.get("is_init", None)
    if marked >= slices and (not remembers or starts is None or starts[::length].all()):
        return clear(found)
    shapes = (since.seen("shapes") if since else None) or {}
    reads = {"loss_module": remembers, "value_estimator": along_time(value_estimator)}
    for name, shape in shapes.items():
        if reads[name] and len(shape) == 1 and shape[0] >= 2 * length:
            return applies(f"{found}, and {name} was given {shape[0]} rows in one line")
    if jumps_every(length, one_batch(batch), value_estimator):
        return applies(f"{found}, and the batch holds the slices in one line")
    return undecided(f"{found}; do you reshape it to ({slices}, {length}) before it is read?")


@check("slices_jump_to_another_environment", "Sequences jump to another environment in the middle")
def slices_jump_to_another_environment(replay_buffer, collector=None):
    return None if has_workers(collector) else mixed_slices(replay_buffer)


@check("sample_returns_far_more_rows", "sample(32) returns far more than 32 transitions")
def sample_returns_far_more_rows(
    replay_buffer, sample, batch, value_estimator=None, loss_module=None
):
    if slice_length(replay_buffer, sample) is not None:
        return None
    found = f"a sample of {len(sample)} items has {sample.numel()} rows"
    if sample.ndim == 1:
        return clear(found)
    one = one_batch(batch)
    if one.ndim < 2 or sample.shape[1:] != one.shape[1:]:
        return None
    sequences = [value_estimator, private(loss_module, "_value_estimator", None)]
    walked = any(map(along_time, sequences)) and "advantage" not in sample
    if walked or {"is_init", PADDING} & set(sample.keys(True)):
        return undecided(f"{found}; that may be meant, for a network that reads sequences")
    return applies(f"{found}: an item is {sample.shape[-1]} steps of one environment")


@check("advantages_wrong_with_several_workers", "Advantages are wrong when several workers collect")
def advantages_wrong_with_several_workers(batch, value_estimator, collector=None):
    one = one_batch(batch)
    known = one.get(value_key("advantage", None, value_estimator), None) is not None
    known &= collector is None or one.names[-1] != "time"  # it may be rearranged since
    if known or not along_time(value_estimator) or not may_glue(collector):
        return None
    ids, done = one.get(TRAJ_IDS, None), any_flag(one, [("next", "done")])
    if ids is None or done is None or ids.shape != one.shape or not one.ndim:
        return None  # of no collector
    time_dim = walked_dim(one, value_estimator)
    ids, done = ids.movedim(time_dim, -1), done.movedim(time_dim, -1)
    seams = (ids[..., 1:] != ids[..., :-1]) & ~done[..., :-1]
    masked = one.get(PADDING, None)
    if masked is not None:
        masked = masked.movedim(time_dim, -1)
        seams = seams & masked[..., 1:] & masked[..., :-1]
    if 2 * seams.sum() > seams.numel():
        return None  # rows in another order than that of time
    found = f"along time, {int(seams.sum())} trajectory ids change without done"
    workers, frames = getattr(collector, "num_workers", 1), ids.shape[-1]
    joints = [n * frames // workers - 1 for n in range(1, workers)]
    if not seams.any() and joints and frames % workers == 0:
        changed = ids[..., 1:] != ids[..., :-1]
        if changed[..., joints].all():
            return undecided(f"{found}: each of {workers} workers ends an episode with its part")
    return applies(found) if seams.any() else clear(found)


@check("sequences_mix_two_runs", "Sampled sequences mix two runs")
def sequences_mix_two_runs(replay_buffer):
    sampler = replay_buffer.sampler
    if not is_sliced(replay_buffer):
        return None
    rows, joined = stored_rows(replay_buffer)
    if not cuts_at_ids(sampler, rows):
        return None
    ids = rows.get(sampler.traj_key or TRAJ_IDS)
    inside = (ids[1:] == ids[:-1]).reshape(joined.shape) & joined
    continued = steps_that_continue(rows, inside)
    if continued is None:
        return undecided("the rows hold nothing that tells whether one follows the other")
    jumps = inside & ~continued
    found = f"{int(jumps.sum())} pairs of rows with one trajectory id do not follow each other"
    if jumps.any():
        return applies(found)
    done = any_flag(rows, [("next", "done")])
    ended = ids.reshape(rows.shape)[done] if done is not None else ids[:0]
    if twice := len(ended) - len(ended.unique()):
        return undecided(f"{twice} trajectory ids end again; do two collectors fill the buffer?")
    return clear(found)


@check("short_episodes_are_never_replayed", "Short episodes are never replayed")
def short_episodes_are_never_replayed(replay_buffer, sample):
    if not is_sliced(replay_buffer):
        return None
    length, sampler = slice_length(replay_buffer, sample), replay_buffer.sampler
    if not sampler.strict_length or getattr(sampler, "fragmented", False):
        return clear("the sampler leaves no episode out")
    rows, _ = stored_rows(replay_buffer)
    done = any_flag(rows, [("next", "done")])
    if done is None:
        return undecided("the buffer holds no done")
    if cuts_at_ids(sampler, rows):
        # An episode counts whole, though it may be stored in several pieces.
        ids = rows.get(sampler.traj_key or TRAJ_IDS).flatten()
        ids = ids.unique(return_inverse=True)[1]
        episodes = ids.bincount()[ids[done.flatten()].unique()]
    else:
        lengths, finished = pieces(replay_buffer)
        episodes = lengths[finished]
    short = int((episodes < length).sum())
    found = f"{short} of {len(episodes)} finished episodes are shorter than {length} steps"
    if short > max(2, 0.2 * len(episodes)):
        return applies(found)
    if short or not len(episodes):
        return undecided(f"{found}; do these matter?" if short else "no episode has ended")
    return clear(found)


@check("mean_reward_is_far_too_low", "The mean reward of a sample is far too low")
def mean_reward_is_far_too_low(replay_buffer, sample):
    mask = sample.get(PADDING, None)
    if mask is None or getattr(replay_buffer.sampler, "pad_output", False):
        return None
    found = f"{int((~mask).sum())} of {mask.numel()} rows of a sample are padding"
    stored = stored_leaf(replay_buffer, PADDING)
    if mask.all() and stored is not None and stored.all():
        return clear("no stored row is padding")
    if sample.ndim == 1 and not mask.all():
        return applies(found)
    if stored is not None:
        found += f", and {int((~stored).sum())} of {stored.numel()} in the storage"
    return undecided(f"{found}; do you mask them?")


@check("no_trajectory_is_long_enough", "No trajectory is long enough for a slice")
def no_trajectory_is_long_enough(error=None, replay_buffer=None, sample=None):
    if says(error, RuntimeError, "Did not find a single trajectory with sufficient length"):
        return applies(str(error))
    if replay_buffer is None or not is_sliced(replay_buffer):
        return None
    if sample is not None and replay_buffer.batch_size:
        return clear("the sampler found a trajectory that is long enough")
    sampler, lengths = replay_buffer.sampler, pieces(replay_buffer)[0]
    length = sampler.slice_len or (replay_buffer.batch_size or 0) // sampler.num_slices
    if not length or not sampler.strict_length or getattr(sampler, "fragmented", False):
        return None
    found = f"a slice has {length} rows, the longest trajectory {int(lengths.max())}"
    return applies(found) if lengths.max() < length else clear(found)


@check("one_step_cannot_be_stored", "A single step of several environments cannot be stored")
def one_step_cannot_be_stored(error=None, replay_buffer=None, batch=None):
    if says(error, RuntimeError, "tensor shape is incompatible with dest shape") and (
        "_set_index_in_td" in functions_of(error)
    ):
        return applies(str(error))
    write_index = private(replay_buffer, "_set_index_in_td", None)
    one = one_batch(batch)
    if write_index is None or one is None or not 1 < one.ndim == replay_buffer.storage.ndim:
        return None
    try:
        write_index(one.empty(), torch.zeros(one.numel(), one.ndim, dtype=torch.long))
    except RuntimeError:
        return applies(f"the buffer refuses a batch of shape {tuple(one.shape)}")
    return clear(f"the buffer takes a batch of shape {tuple(one.shape)}")


@check("splitting_a_sample_fails", "Splitting a sample into its sequences fails")
def splitting_a_sample_fails(error=None, batch=None, replay_buffer=None):
    if says(error, RuntimeError, "split_with_sizes expects split_sizes to sum exactly") and (
        "split_trajectories" in functions_of(error)
    ):
        return applies(f"split_trajectories raised: {error}")
    length = getattr(getattr(replay_buffer, "sampler", None), "slice_len", None)
    one = one_batch(batch)
    if length is None or one is None or one.ndim < 2:
        return None
    if not {"index", PADDING} <= set(one.keys(True)):
        return None  # no slices, or no sample that was split
    longest = int(one.get(PADDING).sum(-1).max())
    found = f"a slice has {length} rows, the longest sequence of the batch {longest}"
    return applies(found) if longest > length else clear(found)


@check("end_signal_has_two_dimensions", "The end-of-trajectory signal has one dimension too many")
def end_signal_has_two_dimensions(error=None, replay_buffer=None):
    if says(error, RuntimeError, "Expected the end-of-trajectory signal to be", "-dimensional"):
        return applies(str(error))
    storage = getattr(replay_buffer, "storage", None)
    inner = private(storage, "_storage", None)
    if not hasattr(getattr(replay_buffer, "sampler", None), "slice_len") or not len(storage):
        return None
    if not hasattr(inner, "batch_size"):
        return undecided("the storage keeps its rows in no single block")
    found = f"the storage has ndim={storage.ndim}, its rows have {inner.ndim} dimensions"
    if inner.ndim > storage.ndim:
        return applies(found, fix=storage_of(inner.ndim, storage))
    return clear(found)


@check("sequences_mix_workers", "Sequences mix the episodes of two workers")
def sequences_mix_workers(replay_buffer, collector):
    return mixed_slices(replay_buffer) if has_workers(collector) else None


@check("sample_has_fewer_rows_than_asked", "A sample has fewer rows than asked for")
def sample_has_fewer_rows_than_asked(replay_buffer, sample=None, error=None):
    sampler, asked = replay_buffer.sampler, replay_buffer.batch_size
    if getattr(sampler, "strict_length", True) or sampler.pad_output:
        return None
    if says(error, AssertionError, "invalid shape") or (
        says(error, RuntimeError, "is invalid for input of size")
    ):
        return applies(f"slices may be short and are not padded; then: {error}")
    if sample is None or asked is None:
        return None
    found = f"{sample.numel()} rows for a sample of {asked}"
    if sample.numel() < asked:
        return applies(f"{found}; slices may be short, and are not padded")
    if sample.numel() >= asked:
        length = slice_length(replay_buffer, sample)
        if not is_sliced(replay_buffer) or length is None:
            return undecided(f"{found}; are there trajectories shorter than a slice?")
        short = int((pieces(replay_buffer)[0] < length).sum())
        if not short:
            return clear(f"{found}, and no stored trajectory is shorter than a slice")
        found += f", and {short} stored trajectories are shorter than a slice"
    return undecided(f"{found}; do you reshape it?")


@check("episodes_get_shorter_with_every_sample", "Stored episodes get shorter with every sample")
def episodes_get_shorter_with_every_sample(replay_buffer):
    storage, sampler = replay_buffer.storage, replay_buffer.sampler
    marks = [getattr(sampler, name, None) for name in ("truncated_key", "init_key")]
    indexed = private(replay_buffer, "_set_index_in_td", None) is not None
    if not any(marks) or not indexed or not len(storage):
        return None
    rows, transform = storage.get([0]), private(replay_buffer, "_transform", None)
    handed_out = [id(row) for row in getattr(rows, "tensordicts", [])]
    if id(storage.get(0)) not in handed_out:
        return clear("the storage returns copies of its rows")
    if transform is not None and len(transform):
        return undecided("the storage returns its own rows; does a transform clone them?")
    return applies("the storage returns its own rows, and a sample is marked in place")


@check("sequences_run_over_episode_ends", "Sequences run over the ends of episodes")
def sequences_run_over_episode_ends(replay_buffer, env=None):
    if not is_sliced(replay_buffer):
        return None
    sampler, (rows, joined) = replay_buffer.sampler, stored_rows(replay_buffer)
    ended = any_flag(rows, [("next", "done")])
    if cuts_at_ids(sampler, rows) or ended is None:
        return None
    cut = any_flag(rows, end_keys_of(sampler))
    missed = int((ended & ~cut)[:-1][joined].sum())
    limited = all(last_part(key) == "terminated" for key in end_keys_of(sampler))
    found = f"the sampler's key marks {int(cut.sum())} ends and misses {missed} episodes that end"
    if missed:
        return applies(found)
    if ("next", "done") not in (end_keys_of(sampler)):
        if limited and declared_limit(env) < math.inf:
            return applies(f"{found}, and those at the limit of {declared_limit(env)} steps")
        return undecided(f"{found}; has an episode ended otherwise, as by a time limit?")
    return clear(found)


@check("slice_sampler_refuses_trajectory_key", "SliceSampler refuses trajectory_key")
def slice_sampler_refuses_trajectory_key(error):
    refused = says(error, TypeError, "SliceSampler", "argument 'trajectory_key'")
    return applies(str(error)) if refused else None


@check("sampler_refuses_the_batch_size", "The slice sampler refuses the batch size")
def sampler_refuses_the_batch_size(error=None, replay_buffer=None):
    if says(error, RuntimeError, "The batch-size must be divisible by the "):
        return applies(str(error))
    sampler = getattr(replay_buffer, "sampler", None)
    asked = getattr(replay_buffer, "batch_size", None)
    part = getattr(sampler, "slice_len", None) or getattr(sampler, "num_slices", None)
    if part is None or asked is None:
        return None
    left = asked % part
    found = f"a batch size of {asked} rows, divided by {part}, leaves {left}"
    return applies(found, fix=f"batch_size={asked + part - left}") if left else clear(found)


def jumps_every(length, data, value_estimator):
    """Is *data* one line in which no row follows after each *length* rows, and none is done?"""
    if data is None or data.ndim != 1 or len(data) <= length:
        return False
    keys = observed_keys(data, getattr(value_estimator, "value_network", None))
    done_key = value_key("done", None, value_estimator)
    if not keys or get_next(data, done_key) is None:
        return False
    last = torch.arange(length - 1, len(data) - 1, length, device=data.device)
    strange, _ = strangers(torch.stack([data[last], data[last + 1]], 1), 1, keys, done_key)
    return 2 * strange > len(last)


def along_time(value_estimator):
    """Whether the estimator carries something from a row to the one before."""
    return value_estimator is not None and not type(value_estimator).__name__.startswith("TD0")


def has_workers(collector):
    return getattr(collector, "num_workers", 1) > 1


def mixed_slices(replay_buffer):
    """Do slices that are cut at done contain rows of two trajectories?"""
    sampler = replay_buffer.sampler
    if not is_sliced(replay_buffer):
        return None
    rows, joined = stored_rows(replay_buffer)
    ids = rows.get(TRAJ_IDS, None)
    if cuts_at_ids(sampler, rows):
        return clear("the sampler cuts at trajectory ids")
    done = any_flag(rows, end_keys_of(sampler))
    if done is None:
        return undecided("the buffer holds no done to compare")
    ended = any_flag(rows, [("next", "done")])
    done = done if ended is None else done | ended
    if ids is None:
        return mixed_without_ids(rows, ~done[:-1] & joined)
    seams = (ids[1:] != ids[:-1]) & ~done[:-1] & joined
    found = f"{int(seams.sum())} rows are not done and followed by another trajectory"
    return applies(found) if seams.any() else clear(found)


def mixed_without_ids(rows, inside):
    """The same of rows that have no trajectory ids, by their observations."""
    now, later = both_sides(rows)
    same = {}  # by how many rows on the next observation of a row is
    for lag in range(1, min(MOST_LAGS, len(rows))) if now is not None else ():
        same[lag] = ((now[lag:] == later[:-lag]) | later[:-lag].isnan()).all(-1)
    shares = {lag: float(one.double().mean()) for lag, one in same.items()}
    best = max(shares, key=shares.get, default=None)
    if best is None or shares[best] < 0.8 or not inside.any():
        return undecided("the buffer holds no trajectory ids, and no observation tells them")
    jumps = int((inside & ~same[1]).sum())
    found = f"{jumps} of {int(inside.sum())} rows that are not done go on elsewhere"
    if best > 1 and 2 * jumps > int(inside.sum()):
        return applies(f"{found}, {best} rows below")
    return applies(found) if jumps else clear(found)


MOST_LAGS = 17  # of environments that take turns, and one


def steps_that_continue(rows, inside):
    """Whether the next observation of each row is the observation of the one below.

    Only entries count for which that holds nearly everywhere: a transform may change the rest.
    """
    kept = []
    led_to_rows = rows.get("next", rows.empty())
    for key in led_to_rows.keys(True, True):
        now, led_to = rows.get(key, None), led_to_rows.get(key)
        if now is None or not now.is_floating_point():
            continue
        few = max(2, A_FEW_MILLION // now[0].numel())  # of images, the first ones
        equal = now[1:few] == led_to[: min(few, len(now)) - 1]
        equal = equal.reshape(*equal.shape[: inside.ndim], -1).all(-1)
        looked_at = inside[: len(equal)]
        if looked_at.any() and equal[looked_at].float().mean() > 0.8:
            kept.append(torch.ones_like(inside))
            kept[-1][: len(equal)] = equal
    return torch.stack(kept).all(0) if kept else None
