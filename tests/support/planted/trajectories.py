"""Symptoms of trajectories and slices."""

import torch
from torchrl.data import ReplayBuffer, SliceSampler

from tests.support.planted import episodes_of, in_buffer, only, stored

PIPELINES = ("ppo", "batched_ppo", "dqn", "offline")
IDS = ("collector", "traj_ids")


def _flat(pipeline):
    """Rows in the order of time, with next observations."""
    rows = pipeline["batch"].exclude("advantage", "value_target")
    return rows.reshape(-1) if rows.get(("next", "observation")) is not None else None


def sequences_run_into_each_other(pipeline):
    if (rows := _flat(pipeline)) is not None:
        sampler = SliceSampler(slice_len=5, traj_key=IDS)
        yield in_buffer(pipeline, stored(rows, kind=ReplayBuffer, sampler=sampler, batch_size=20))


def slices_jump_to_another_environment(pipeline):
    rows = _flat(pipeline)
    if rows is None or not pipeline["env"].batch_size:
        return
    sampler = SliceSampler(slice_len=5, end_key=("next", "done"), cache_values=False)
    yield in_buffer(pipeline, stored(rows, sampler=sampler, batch_size=20))


def sample_returns_far_more_rows(pipeline):
    if pipeline["batch"].ndim > 1:
        yield in_buffer(pipeline, stored(pipeline["batch"], batch_size=2))


def short_episodes_are_never_replayed(pipeline):
    if (rows := _flat(pipeline)) is None:
        return
    for lengths in ([12, 3, 4], [12] * 9 + [3], [12, 3, 2, 3, 4, 2, 12]):
        sampler = SliceSampler(slice_len=6, traj_key=IDS)
        buffer = stored(episodes_of(rows, lengths), sampler=sampler, batch_size=12)
        yield in_buffer(pipeline, buffer)


def sample_has_fewer_rows_than_asked(pipeline):
    if (rows := _flat(pipeline)) is None:
        return
    for lengths in ([3] * 20, [100, 3]):
        sampler = SliceSampler(slice_len=6, traj_key=IDS, strict_length=False)
        buffer = stored(episodes_of(rows, lengths), sampler=sampler, batch_size=12)
        yield in_buffer(pipeline, buffer)


def mean_reward_is_far_too_low(pipeline):
    if (rows := _flat(pipeline)) is None:
        return
    for padding in (100, 2):
        data = episodes_of(rows, [40] * 5)
        data["collector", "mask"] = torch.arange(200) >= padding
        yield in_buffer(pipeline, stored(data, batch_size=16))


def sequences_run_over_episode_ends(pipeline):
    if (rows := _flat(pipeline)) is None:
        return
    for truncated in (True, False):  # False: no time limit was reached yet
        data = episodes_of(rows, [20] * 4).exclude(IDS)
        if truncated:
            data["next", "truncated"][19] = True
            data["next", "terminated"][19] = False
        sampler = SliceSampler(slice_len=4, end_key=("next", "terminated"))
        yield in_buffer(pipeline, stored(data, sampler=sampler, batch_size=12))


def sequences_mix_two_runs(pipeline):
    if (rows := _flat(pipeline)) is None:
        return
    data = episodes_of(rows, [30])
    data["observation"] = torch.arange(30 * 4).reshape(30, 4) * 1.0
    data["next", "observation"] = data["observation"] + 4
    sampler = SliceSampler(slice_len=4, traj_key=IDS)
    buffer = stored(torch.cat([data, data]), sampler=sampler, batch_size=12)
    yield only(pipeline, "policy") | {"replay_buffer": buffer}


def sampler_refuses_the_batch_size(pipeline):
    if (rows := _flat(pipeline)) is not None:
        sampler = SliceSampler(slice_len=5, traj_key=IDS)
        yield in_buffer(pipeline, stored(rows, sampler=sampler, batch_size=13))


def no_trajectory_is_long_enough(pipeline):
    if (rows := _flat(pipeline)) is not None:
        sampler = SliceSampler(slice_len=6, traj_key=IDS)
        data = episodes_of(rows, [4, 5, 3])
        yield in_buffer(pipeline, stored(data, sampler=sampler, batch_size=12))
