"""
Stored rewards change although nothing is written
=================================================

Statistics of the buffer drift from one epoch to the next, and the same rows come back scaled,
clipped or zeroed. But in between, your code only reads the buffer.

:Subsystem: memory and storage
:Effect: silent
:Cause: With a ``LazyTensorStorage`` or ``LazyMemmapStorage``, ``buffer[:]`` and ``buffer[i]`` are
   views, so an in-place operation on them edits the stored rows. ``sample()`` returns a copy.
:Fix: Clone what you read by index before you change it: ``buffer[:].clone()``.
:Source: :source:`torchrl.data.LazyTensorStorage.get`
:Behind it: :doc:`/reference/collectors_replay`
:Threads: none found
:Also called: in-place, view, aliasing, normalize rewards twice, rewards vanish, buffer corrupted
"""

# %%
# Break it
# --------
#
# To look at the rewards, the code reads all rows and subtracts the mean.

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv


def look_at_rewards(copy):
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    torch.manual_seed(0)
    collector = Collector(env, None, frames_per_batch=40, total_frames=-1)
    replay_buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=8)
    replay_buffer.extend(next(iter(collector)).clone())
    collector.shutdown()
    seen = replay_buffer[:].clone() if copy else replay_buffer[:]
    seen["next", "reward"].sub_(seen["next", "reward"].mean())
    return {"replay_buffer": replay_buffer, "batch": seen}


broken = look_at_rewards(copy=False)

# %%
# Check it
# --------
#
# The rows that you read are a view if they share memory with the storage. The rewards of CartPole
# are all one, so a stored mean other than one shows that they were changed.


def check(replay_buffer, batch):
    mine, stored = batch["next", "reward"], replay_buffer[:]["next", "reward"]
    view = mine.untyped_storage().data_ptr() == stored.untyped_storage().data_ptr()
    return {"is a view": view, "stored mean": stored.mean().item()}


unhealthy = check(**broken)
print(unhealthy)
assert unhealthy == {"is a view": True, "stored mean": 0.0}, (
    "no longer reproduces: reading by index gives a copy"
)

# %%
# ``sample`` returns a copy, so the same edit of a sample does no harm. With a memory-mapped
# storage, ``buffer[:]`` is a view of the file, so the edit goes to disk.

sample = broken["replay_buffer"].sample()
print({"a sample is a view": check(broken["replay_buffer"], sample)["is a view"]})
assert not check(broken["replay_buffer"], sample)["is a view"], "a sample is a view now"

# %%
# Fix it
# ------

fixed = look_at_rewards(copy=True)
healthy = check(**fixed)
print(healthy)
assert healthy == {"is a view": False, "stored mean": 1.0}, "the fix does not work"
