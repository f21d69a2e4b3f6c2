"""
Sampling raises as soon as the buffer has a transform
=====================================================

You can fill the buffer, but ``sample`` raises with a message about metadata that your program never
set.

:Subsystem: replay buffers
:Effect: loud
:Cause: ``TensorDictReplayBuffer`` writes the index of each drawn row into the sample. After a
   transform has changed the number of rows, the indices no longer fit.
:Fix: Do not change the number of rows in the transform. Reshape the returned sample instead.
:Source: :source:`torchrl.data.TensorDictReplayBuffer.sample`
:Behind it: :ref:`replay-transitions`
:Threads: :thread:`2406`
:Also called: Failed to set the metadata, reshape as a transform, CatFrames in a buffer,
   make_rb_transform_and_sampler, shape mismatch in sample
"""

# %%
# Break it
# --------
#
# The sampler draws slices of four rows. The transform reshapes the sample, so that it has a time
# dimension.

import torch
from torchrl.collectors import Collector
from torchrl.data import (
    LazyTensorStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
)
from torchrl.envs import GymEnv


def fold(rows):
    return rows.reshape(-1, 4)


def fill(transform, kind=TensorDictReplayBuffer):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    replay_buffer = kind(
        storage=LazyTensorStorage(200),
        sampler=SliceSampler(slice_len=4),
        transform=transform,
        batch_size=32,
    )
    collector = Collector(env, None, frames_per_batch=200, total_frames=-1)
    replay_buffer.extend(next(iter(collector)))
    collector.shutdown()
    return {"replay_buffer": replay_buffer}


broken = fill(transform=fold)

# %%

try:
    broken["replay_buffer"].sample()
    broken["error"] = None
except RuntimeError as error:
    broken["error"] = error
print(f"{type(broken['error']).__name__}: {broken['error']}")
assert "Failed to set the metadata" in str(broken["error"]), (
    "no longer reproduces: a transform of the buffer may now change the number of rows"
)

# %%
# Check it
# --------
#
# ``replay_buffer[:]`` goes through the transform, too. It writes no ``index``, so it does not
# raise.


def check(replay_buffer):
    return {"stored": len(replay_buffer), "transformed": len(replay_buffer[:])}


unhealthy = check(broken["replay_buffer"])
print(unhealthy)
assert unhealthy["transformed"] < unhealthy["stored"], (
    "no longer reproduces: the transform does not change the number of rows"
)

# %%
# A plain ``ReplayBuffer`` raises nothing, because it writes no ``index``. It does not mark the last
# row of a slice either. Use it with the transform that ``CatFrames.make_rb_transform_and_sampler``
# returns, but not where you need these marks.

sample = fill(transform=fold, kind=ReplayBuffer)["replay_buffer"].sample()
ends = sample["next", "done"][:, -1].float().mean().item()
print({"index": "index" in sample, "slices with an end": ends})
assert "index" not in sample, "a ReplayBuffer writes the index as well"
assert ends < 1, "a ReplayBuffer marks the ends as well"

# %%
# Fix it
# ------

fixed = fill(transform=None)
sample = fixed["replay_buffer"].sample().reshape(-1, 4)
healthy = check(fixed["replay_buffer"])
print(healthy)
assert sample.shape == (8, 4), "the fix does not work: the slices have another shape"
assert healthy["transformed"] == healthy["stored"], "the fix does not work"
