"""
No trajectory is long enough for a slice
========================================

The buffer holds episodes of many steps, but ``sample`` raises because it cannot find a trajectory
as long as a slice. According to the message, the longest trajectory has one step.

:Subsystem: trajectories and slices
:Effect: loud
:Cause: Each batch holds one step of every environment. After flattening, the environments alternate
   from row to row, so consecutive rows never belong to the same trajectory.
:Fix: Do not flatten the batch: ``LazyTensorStorage(..., ndim=2)`` keeps the steps of each
   environment together. Collect at least two steps per environment at a time. If the episodes
   themselves are shorter than a slice, set ``strict_length=False``.
:Source: :source:`torchrl.data.SliceSampler._sample_slices`
:Behind it: :ref:`replay-slices`
:Threads: :thread:`3194` :thread:`2011`
:Also called: length range 1 - 1, stored trajectories shorter than the slice, interleaved
"""

# %%
# Break it
# --------

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import GymEnv, SerialEnv

N_ENVS, SLICE_LEN = 4, 4


def fill(steps, ndim):
    torch.manual_seed(0)
    env = SerialEnv(N_ENVS, lambda: GymEnv("CartPole-v1"))
    env.set_seed(0)
    frames = {"frames_per_batch": steps * N_ENVS, "total_frames": 20 * steps * N_ENVS}
    storage = LazyTensorStorage(400, ndim=ndim)
    sampler = SliceSampler(slice_len=SLICE_LEN)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=64)
    for batch in Collector(env, None, **frames):
        buffer.extend(batch.reshape(-1) if ndim == 1 else batch)
    return {"replay_buffer": buffer}


broken = fill(steps=1, ndim=1)
try:
    broken["replay_buffer"].sample()
except RuntimeError as error:
    broken["error"] = error
    print(f"{type(error).__name__}: {error}")
gone = "no longer reproduces: the sampler finds trajectories in alternating rows"
assert "Did not find a single trajectory" in str(broken.get("error")), gone

# %%
# Check it
# --------
#
# Count the rows that have the same trajectory id as the row before. Time is the last dimension.


def check(rows):
    ids = rows["collector", "traj_ids"]
    return {
        "shape": tuple(ids.shape),
        "continued": int((ids[..., 1:] == ids[..., :-1]).sum()),
    }


unhealthy = check(broken["replay_buffer"][:])
print(unhealthy)
assert unhealthy["continued"] == 0, gone

# %%
# Fix it
# ------
#
# If the trajectories really are shorter than a slice, sample shorter slices, or see
# :ref:`replay-strict`.

fixed = fill(steps=2, ndim=2)
healthy = check(fixed["replay_buffer"][:])
print(healthy)
assert healthy["continued"] > 0, "the fix does not work"
assert len(fixed["replay_buffer"].sample()) == 64, "the fix does not work"
