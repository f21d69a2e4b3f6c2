"""
The buffer raises because it knows no batch size
================================================

The buffer is filled, but ``sample()`` raises. With ``prefetch``, or with a sampler that drops the
last batch, the constructor of the buffer raises.

:Subsystem: replay buffers
:Effect: loud
:Cause: The size of a sample has no default. A buffer that prefetches or drops the last batch needs
   the size in its constructor.
:Fix: Pass the size: ``ReplayBuffer(..., batch_size=32)``. For plain sampling, ``sample(32)`` is
   enough.
:Source: :source:`torchrl.data.ReplayBuffer.sample`,
   :source:`torchrl.data.ReplayBuffer.__init__`
:Behind it: :term:`batch size`
:Threads: :thread:`994`
:Also called: batch_size not specified, Dynamic batch-size specification is incompatible,
   drop_last, predictable batch-size
"""

# %%
# Break it
# --------

import torch
from tensordict import TensorDict
from torchrl.data import (
    LazyTensorStorage,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
)


def sample(**options):
    objects = {}
    try:
        storage = LazyTensorStorage(100)
        replay_buffer = TensorDictReplayBuffer(storage=storage, **options)
        objects["replay_buffer"] = replay_buffer
        replay_buffer.extend(TensorDict({"row": torch.arange(100)}, [100]))
        replay_buffer.sample()
    except (RuntimeError, ValueError) as error:
        objects["error"] = error
    return objects


broken = sample()

# %%
# The first message is from ``sample()``. The others are from the constructor, with ``prefetch`` and
# with ``drop_last=True``:

assert "error" in broken, "no longer reproduces: the size has a default"
without = [
    broken["error"],
    sample(prefetch=3)["error"],
    sample(sampler=SamplerWithoutReplacement(drop_last=True))["error"],
]
for error in without:
    print(f"{type(error).__name__}: {error}")
assert all("batch-size" in str(error) for error in without), (
    "no longer reproduces: the messages have other words"
)

# %%
# Check it
# --------


def check(replay_buffer):
    return {"stored": len(replay_buffer), "batch size": replay_buffer.batch_size}


unhealthy = check(broken["replay_buffer"])
print(unhealthy)
assert unhealthy["batch size"] is None, "no longer reproduces: there is a default size"

# %%
# Fix it
# ------

fixed = sample(batch_size=32)
healthy = check(fixed["replay_buffer"])
print(healthy)
assert healthy["batch size"] == 32, "the fix does not work: the buffer forgot its size"
assert "error" not in fixed, "the fix does not work: it still raises"
