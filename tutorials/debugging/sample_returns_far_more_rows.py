"""
sample(32) returns far more than 32 transitions
===============================================

With a batch of several environments, ``buffer.sample(32)`` returns more rows, often hundreds, in
two dimensions. ``len(buffer)`` is far below the number of frames collected, and the storage takes a
multiple of the memory that it should.

:Subsystem: trajectories and slices
:Effect: silent
:Cause: The batch has two dimensions, environments and time. By default, a storage counts only the
   first dimension, so one item holds all steps of one environment.
:Fix: Store single transitions with ``buffer.extend(batch.reshape(-1))``. Or create the storage with
   ``ndim=2``.
:Source: :source:`torchrl.data.LazyTensorStorage._init_standard`
:Behind it: :ref:`replay-transitions`
:Threads: :thread:`1885`
:Also called: sample bigger than batch_size, wrong sample shape,
   buffer length too small, batch of batches, ndim, out of memory
"""

# %%
# Break it
# --------

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import GymEnv, SerialEnv

ASKED, MAX_ROWS = 32, 1000


def fill(flatten):
    torch.manual_seed(0)
    env = SerialEnv(4, lambda: GymEnv("CartPole-v1"))
    env.set_seed(0)
    collector = Collector(env, None, frames_per_batch=100, total_frames=-1)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    buffer = ReplayBuffer(storage=LazyTensorStorage(MAX_ROWS), batch_size=ASKED)
    buffer.extend(batch.reshape(-1) if flatten else batch)
    return {"replay_buffer": buffer, "batch": batch}


broken = fill(flatten=False)

# %%
# Check it
# --------


def check(buffer, batch):
    counts = {"collected": batch.numel(), "len": len(buffer)}
    return {**counts, "sampled": buffer.sample().numel()}


unhealthy = check(broken["replay_buffer"], broken["batch"])
print(unhealthy)
gone = "no longer reproduces: the storage counts transitions"
assert unhealthy["len"] < unhealthy["collected"], gone
assert unhealthy["sampled"] > ASKED, gone

# %%
# Why
# ---
#
# The storage allocates a thousand items. But each item is a sequence of transitions, not a single
# transition:

allocated = broken["replay_buffer"].storage._storage.shape
print(tuple(allocated))
assert allocated.numel() > MAX_ROWS, gone

# %%
# Fix it
# ------
#
# To sample sequences, or to keep trajectories in one piece, use ``LazyTensorStorage(..., ndim=2)``
# and store the batch as it is. For a recurrent network, you may want whole sequences as items. Then
# all sizes count sequences.

fixed = fill(flatten=True)
healthy = check(fixed["replay_buffer"], fixed["batch"])
print(healthy)
assert healthy["len"] == healthy["collected"], "the fix does not work"
assert healthy["sampled"] == ASKED, "the fix does not work"
