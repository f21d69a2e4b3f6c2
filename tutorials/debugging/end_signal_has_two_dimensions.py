"""
The end-of-trajectory signal has one dimension too many
=======================================================

Batches of several environments go into the buffer without an error. Then ``sample`` raises: a
``SliceSampler`` expects an end-of-trajectory signal with one dimension and gets two.

:Subsystem: trajectories and slices
:Effect: loud
:Cause: The batch has two dimensions, environments and time, but the storage has ``ndim=1``, the
   default. So each stored row holds all steps of one environment, not one step.
:Fix: Make the storage with ``LazyTensorStorage(..., ndim=2)``: ``ndim`` is the number of dimensions
   of the batch.
:Source: :source:`torchrl.data.SliceSampler.sample`
:Behind it: :ref:`replay-slices`
:Threads: :thread:`1885`
:Also called: Expected the end-of-trajectory signal to be 1-dimensional, ndim, ParallelEnv
"""

# %%
# Break it
# --------
#
# With four environments, the batch has the shape ``(environments, time)``.

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import GymEnv, SerialEnv


def fill(ndim):
    torch.manual_seed(0)
    env = SerialEnv(4, lambda: GymEnv("CartPole-v1"))
    env.set_seed(0)
    collector = Collector(env, None, frames_per_batch=80, total_frames=-1)
    storage = LazyTensorStorage(400, ndim=ndim)
    sampler = SliceSampler(slice_len=4)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=64)
    buffer.extend(next(iter(collector)).clone())
    collector.shutdown()
    return {"replay_buffer": buffer}


broken = fill(ndim=1)
try:
    broken["replay_buffer"].sample()
except RuntimeError as error:
    broken["error"] = error
    print(f"{type(error).__name__}: {error}")
gone = "no longer reproduces: slices are drawn from stretches of time"
assert "end-of-trajectory signal" in str(broken.get("error")), gone

# %%
# Check it
# --------
#
# Compare ``ndim`` with the number of dimensions of the stored rows.


def check(buffer):
    return {"ndim": buffer.storage.ndim, "dimensions of the rows": buffer[:].ndim}


unhealthy = check(broken["replay_buffer"])
print(unhealthy)
assert unhealthy["ndim"] < unhealthy["dimensions of the rows"], gone

# %%
# Fix it
# ------
#
# By default, a batch of :class:`~torchrl.collectors.MultiSyncCollector` has one more dimension, for
# the workers. Do not change ``ndim`` later, because the layout of the storage depends on it.

fixed = fill(ndim=2)
healthy = check(fixed["replay_buffer"])
print(healthy)
assert healthy["ndim"] == healthy["dimensions of the rows"], "the fix does not work"
assert len(fixed["replay_buffer"].sample()) == 64, "the fix does not work"
