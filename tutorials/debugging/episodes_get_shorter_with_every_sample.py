"""
Stored episodes get shorter with every sample
=============================================

Nothing is added to the buffer, but the more often you call ``sample``, the more of its rows are
marked as the end of an episode. Sequences become shorter and returns smaller.

:Subsystem: trajectories and slices
:Effect: silent
:Cause: A ``LazyStackStorage`` returns the stored rows themselves, and with a ``SliceSampler`` a
   ``TensorDictReplayBuffer`` marks the ends of the sampled slices in them.
:Fix: Use ``LazyTensorStorage``, or give the buffer a transform that clones the sampled rows.
:Source: :source:`torchrl.data.TensorDictReplayBuffer.sample`,
   :source:`torchrl.data.LazyStackStorage.get`
:Behind it: this page
:Threads: none found
:Also called: sample mutates the storage, done appears, is_init appears, LazyStackStorage
"""

# %%
# Break it
# --------
#
# The broken and the fixed buffer differ only in the kind of storage.

import torch
from torchrl.collectors import Collector
from torchrl.data import (
    LazyStackStorage,
    LazyTensorStorage,
    SliceSampler,
    TensorDictReplayBuffer,
)
from torchrl.envs import GymEnv


def fill(kind):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    collector = Collector(env, None, frames_per_batch=100, total_frames=-1)
    sampler = SliceSampler(slice_len=8)
    buffer = TensorDictReplayBuffer(storage=kind(100), sampler=sampler, batch_size=64)
    buffer.extend(next(iter(collector)))
    collector.shutdown()
    return {"replay_buffer": buffer}


broken = fill(LazyStackStorage)

# %%
# Check it
# --------
#
# The check draws a sample, which changes the buffer. If you need the buffer, run the check on a
# copy.


def check(buffer):
    done = ("next", "done")
    ends = (buffer[:][done].sum(), buffer.sample(), buffer[:][done].sum())
    return {"ends stored": int(ends[0]), "after a sample": int(ends[2])}


unhealthy = check(broken["replay_buffer"])
print(unhealthy)
gone = "no longer reproduces: a sample is independent of what is stored"
assert unhealthy["after a sample"] > unhealthy["ends stored"], gone

# %%
# Why
# ---
#
# If two slices of a sample share a row, it is the same object in both, so one slice can remove an
# end mark that the other has set. The sample itself is then wrong too:

sample = broken["replay_buffer"].sample()
ends = sample["next", "truncated"].reshape(-1, 8)[:, -1]
print(f"{int(ends.sum())} of {len(ends)} slices have a marked end")

# %%
# Fix it
# ------
#
# A ``LazyTensorStorage`` cannot hold rows of different shape. If you have such rows, keep the
# ``LazyStackStorage`` and give the buffer ``transform=lambda rows: rows.clone()``: the marks then
# go into the clone.

fixed = fill(LazyTensorStorage)
healthy = check(fixed["replay_buffer"])
print(healthy)
assert healthy["after a sample"] == healthy["ends stored"], "the fix does not work"

cloning = fill(LazyStackStorage)["replay_buffer"]
cloning.append_transform(lambda rows: rows.clone())
of_clones = check(cloning)
print(of_clones)
assert of_clones["after a sample"] == of_clones["ends stored"], "the fix does not work"
