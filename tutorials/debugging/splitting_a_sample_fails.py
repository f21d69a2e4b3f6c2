"""
Splitting a sample into its sequences fails
===========================================

``split_trajectories`` works on batches of a collector. On a sample of slices, it can raise an error
about sizes that do not sum up, or return sequences that are longer than a slice.

:Subsystem: trajectories and slices
:Effect: loud
:Cause: ``split_trajectories`` cuts where the trajectory id changes, but two slices of a sample can
   come from the same trajectory. If these slices are neighbors, they are merged. If not, their rows
   are counted twice.
:Fix: Use ``sample.reshape(-1, slice_len)``. For slices of different length, exclude the trajectory
   ids from the sample and pass ``done_key="truncated"``.
:Source: :source:`torchrl.collectors.utils.split_trajectories`
:Behind it: :ref:`replay-strict`
:Threads: :thread:`2588`
:Also called: split_with_sizes expects split_sizes to sum exactly, duplicate trajectory ids,
   the same trajectory sampled multiple times, unique IDs
"""

# %%
# Break it
# --------
#
# The sample has eight slices of four rows. The buffer holds one episode, so all slices become one
# sequence, and nothing is raised.

import torch
from torchrl.collectors import Collector
from torchrl.collectors.utils import split_trajectories
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import GymEnv

SLICE_LEN = 4


def split_sample(frames, by_ids):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    collector = Collector(env, None, frames_per_batch=frames, total_frames=-1)
    sampler = SliceSampler(slice_len=SLICE_LEN)
    storage = LazyTensorStorage(frames)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=32)
    buffer.extend(next(iter(collector)))
    collector.shutdown()
    sample = buffer.sample()
    if by_ids:
        sequences = split_trajectories(sample)
    else:
        without_ids = sample.exclude(("collector", "traj_ids"))
        sequences = split_trajectories(without_ids, done_key="truncated")
    return {"batch": sequences, "replay_buffer": buffer}


broken = split_sample(frames=8, by_ids=True)

# %%
# With several episodes it usually raises:

try:
    split_sample(frames=100, by_ids=True)
except RuntimeError as error:
    broken["error"] = error
    print(f"{type(error).__name__}: {error}")
gone = "no longer reproduces: split_trajectories tells slices of one trajectory apart"
assert "split_with_sizes" in str(broken.get("error")), gone

# %%
# Check it
# --------
#
# No sequence should be longer than a slice.


def check(sequences, slice_len):
    steps = sequences["collector", "mask"].sum(-1)
    return {"sequences": len(sequences), "too long": int((steps > slice_len).sum())}


unhealthy = check(broken["batch"], SLICE_LEN)
print(unhealthy)
assert unhealthy["too long"] == 1, gone

# %%
# Fix it
# ------
#
# The code shows the fix for slices of different length. ``TensorDictReplayBuffer`` marks the ends
# of slices in its samples, and ``split_trajectories`` then cuts there.

fixed = split_sample(frames=100, by_ids=False)
healthy = check(fixed["batch"], SLICE_LEN)
print(healthy)
assert healthy == {"sequences": 8, "too long": 0}, "the fix does not work"
