"""Symptoms of replay buffers, memory and storage."""

import gc
import pickle
import tempfile
import time

import torch
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    SliceSampler,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from torchrl.envs import CatFrames, MultiStepTransform, ObservationNorm
from torchrl.envs.transforms.rb_transforms import NextStateReconstructor

from tests.support.planted import in_buffer, only, stored
from tests.support.planted.trajectories import _flat

PIPELINES = ("ppo", "sac", "dqn", "rebuilt_dqn", "recurrent_dqn")


def prioritized_replay_draws_evenly(pipeline):
    if (rows := _flat(pipeline)) is None:
        return
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=0.6, beta=0.4, storage=LazyTensorStorage(200), batch_size=8, priority_key="mine"
    )
    buffer.extend(rows)
    yield in_buffer(pipeline, buffer)


def most_rows_are_never_drawn(pipeline):
    """Rows that another process wrote, as the storage and the writer have them here."""
    if (rows := _flat(pipeline)) is None:
        return
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=0.6, beta=0.4, storage=LazyTensorStorage(200), batch_size=8
    )
    buffer.extend(rows)
    buffer.storage.set(range(len(rows), 2 * len(rows)), rows)
    yield in_buffer(pipeline, buffer)


def loss_stays_high_with_normalized_observations(pipeline):
    """A norm of observations in the buffer, which leaves out what stands under "next"."""
    buffer, loss = pipeline.get("replay_buffer"), pipeline["loss_module"]
    if buffer is None or (not hasattr(loss, "target_updater") and "target_updater" not in pipeline):
        return
    norm = ObservationNorm(0.5, 2.0, in_keys=["observation"])
    buffer.append_transform(norm)
    yield pipeline | {"planted_in": "replay_buffer"}
    yield in_buffer(pipeline, buffer) | {"loss_module": lambda data: loss(data)}


def samples_differ_from_what_the_policy_saw(pipeline):
    norms = [t for t in pipeline["env"].modules() if isinstance(t, ObservationNorm)]
    if norms and "replay_buffer" in pipeline:
        twice = ObservationNorm(norms[0].loc, norms[0].scale, in_keys=["observation"])
        pipeline["replay_buffer"].append_transform(twice)
        yield pipeline | {"planted_in": "replay_buffer"}


def first_samples_after_refill_are_old(pipeline):
    if (rows := _flat(pipeline)) is None:
        return
    for transform in (None, ObservationNorm(0.5, 2.0, in_keys=["observation"])):
        buffer = stored(rows, batch_size=16, prefetch=2, transform=transform)
        buffer.sample()
        deadline = time.monotonic() + 10
        while not all(f.done() for f in buffer._prefetch_queue) and time.monotonic() < deadline:
            time.sleep(0.001)
        another = rows.clone()
        another["observation"] += 1  # of another run, with the same ids
        another["next", "observation"] += 1
        buffer.empty()
        buffer.extend(another)
        yield in_buffer(pipeline, buffer)
        buffer._prefetch_executor.shutdown()


def values_are_zero_for_no_reason(pipeline):
    if (rows := _flat(pipeline)) is None:
        return
    for kind in (torch.float32, torch.int64):
        having = rows.clone()
        having["extra"] = torch.ones(len(rows), 1, dtype=kind)
        buffer = stored(having, size=3 * len(rows))
        buffer.extend(rows)
        buffer.extend(having)
        for batches in ([having, rows, having], [having, having], [rows, rows]):
            yield pipeline | {"replay_buffer": buffer, "batch": batches}


def stacked_frames_of_different_episodes(pipeline):
    if (rows := _flat(pipeline)) is not None:
        stack = CatFrames(N=2, dim=-1, in_keys=["observation"], out_keys=["stack"])
        yield in_buffer(pipeline, stored(rows, batch_size=16, transform=stack))


def next_batch_does_not_fit_the_buffer(pipeline):
    rows = pipeline["batch"].reshape(-1)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=2)
    buffer.extend(rows[:8].reshape(2, 4).clone())  # as padded trajectories
    yield in_buffer(pipeline, buffer) | {"batch": rows[:6].reshape(2, 3)}


def reading_changes_the_buffer(pipeline):
    buffer = pipeline.get("replay_buffer")
    if buffer is None or isinstance(buffer.storage, LazyMemmapStorage):
        return
    rows = buffer[:]
    rows["next", "reward"].mul_(0.1)
    yield pipeline | {"batch": rows}
    yield pipeline


def buffer_outlives_its_files(pipeline):
    if (rows := _flat(pipeline)) is not None:
        with tempfile.TemporaryDirectory() as folder:
            storage = LazyMemmapStorage(len(rows), scratch_dir=folder)
            buffer = TensorDictReplayBuffer(storage=storage, batch_size=8)
            buffer.extend(rows)
        yield in_buffer(pipeline, buffer)


def files_gone_after_a_copy(pipeline):
    if (rows := _flat(pipeline)) is None:
        return
    storage = LazyMemmapStorage(len(rows), scratch_dir=tempfile.mkdtemp(), auto_cleanup=True)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=8)
    buffer.extend(rows)
    saved = pickle.dumps(buffer)
    loaded = pickle.loads(saved)
    yield in_buffer(pipeline, loaded)
    pickle.loads(saved)
    gc.collect()
    yield in_buffer(pipeline, loaded)
    yield in_buffer(pipeline, buffer)


def memmap_buffer_fills_memory(pipeline):
    if (rows := _flat(pipeline)) is None:
        return
    rows = rows.select("observation")
    size = (17 << 20) // rows[0].bytes()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for place in (None, folder):
            storage = LazyMemmapStorage(size, scratch_dir=place)
            buffer = TensorDictReplayBuffer(storage=storage, batch_size=8)
            buffer.extend(rows)
            yield only(pipeline, "policy") | {"replay_buffer": buffer}


def first_extend_takes_all_memory(pipeline):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10**12), batch_size=8)
    yield in_buffer(pipeline, buffer)


def one_kept_step_keeps_the_batch(pipeline):
    rows = pipeline["batch"]
    if rows.shape[-1] >= 20:
        yield pipeline | {"batch": [rows.clone()[..., -1] for _ in range(3)]}


def most_next_observations_nan(pipeline):
    buffer = pipeline.get("replay_buffer")
    if _rebuilds(pipeline):
        plain = stored(
            buffer.storage[: len(buffer)],
            batch_size=24,
            transform=NextStateReconstructor(step_count_key="step_count"),
        )
        yield in_buffer(pipeline, plain)


def _rebuilds(pipeline):
    return pipeline["batch"].get(("next", "observation")) is None


def next_observation_of_another_step(pipeline):
    if _rebuilds(pipeline):
        buffer = pipeline["replay_buffer"]
        sampler = SliceSampler(slice_len=3, traj_key=("collector", "traj_ids"))
        yield in_buffer(
            pipeline,
            stored(
                buffer.storage[: len(buffer)],
                sampler=sampler,
                batch_size=24,
                transform=NextStateReconstructor(),
            ),
        )


def off_policy_loss_is_nan(pipeline):
    if _rebuilds(pipeline):
        yield pipeline
        buffer = pipeline["replay_buffer"]
        sample = buffer.sample()
        known = ~sample["next", "observation"].isnan().any(-1)
        yield in_buffer(pipeline, buffer) | {"batch": sample[known]}
        for weight in pipeline["loss_module"].parameters():
            weight.data.fill_(torch.nan)
        yield pipeline


def n_step_next_observation_wrong(pipeline):
    if _rebuilds(pipeline):
        pipeline["replay_buffer"].append_transform(MultiStepTransform(n_steps=3, gamma=0.99))
        yield pipeline


def buffer_file_already_exists(pipeline):
    if (rows := _flat(pipeline)) is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        options = {"scratch_dir": folder, "existsok": False}
        buffer = TensorDictReplayBuffer(storage=LazyMemmapStorage(len(rows), **options))
        buffer.extend(rows)
        again = TensorDictReplayBuffer(storage=LazyMemmapStorage(len(rows), **options))
        yield in_buffer(pipeline, again)
