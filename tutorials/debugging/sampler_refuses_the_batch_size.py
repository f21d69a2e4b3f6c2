"""
The slice sampler refuses the batch size
========================================

``sample`` raises because the batch size must be divisible by the length of a slice. A divisible
number works, but ``sample`` then returns fewer sequences than ``batch_size``.

:Subsystem: trajectories and slices
:Effect: loud
:Cause: ``batch_size`` counts rows, not slices. The slice sampler divides these rows into slices.
:Fix: Pass ``batch_size=n_slices * slice_len``.
:Source: :source:`torchrl.data.SliceSampler._adjusted_batch_size`
:Behind it: :ref:`replay-slices`
:Threads: :thread:`1748`
:Also called: The batch-size must be divisible by the slice length, too few sequences, num_slices
"""

# %%
# Break it
# --------
#
# You want ten sequences of eight steps, and pass ``batch_size=10``.

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import GymEnv

WANTED, SLICE_LEN = 10, 8


def fill(batch_size):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    collector = Collector(env, None, frames_per_batch=200, total_frames=-1)
    storage, sampler = LazyTensorStorage(200), SliceSampler(slice_len=SLICE_LEN)
    buffer = TensorDictReplayBuffer(
        storage=storage, sampler=sampler, batch_size=batch_size
    )
    buffer.extend(next(iter(collector)))
    collector.shutdown()
    return {"replay_buffer": buffer}


broken = fill(batch_size=WANTED)
try:
    broken["replay_buffer"].sample()
except RuntimeError as error:
    broken["error"] = error
    print(f"{type(error).__name__}: {error}")
gone = "no longer reproduces: batch_size counts slices"
assert "must be divisible by the slice length" in str(broken.get("error")), gone

# %%
# Check it
# --------


def check(buffer):
    slices, rest = divmod(buffer.batch_size, buffer.sampler.slice_len)
    return {"slices in a sample": slices, "rows left over": rest}


unhealthy = check(broken["replay_buffer"])
print(unhealthy)
assert unhealthy["rows left over"] > 0, gone

# %%
# Fix it
# ------
#
# With ``num_slices`` instead of ``slice_len``, the length of a slice is ``batch_size`` divided by
# ``num_slices``.

fixed = fill(batch_size=WANTED * SLICE_LEN)
healthy = check(fixed["replay_buffer"])
print(healthy)
assert healthy == {"slices in a sample": WANTED, "rows left over": 0}, (
    "the fix does not work"
)
sample = fixed["replay_buffer"].sample().reshape(-1, SLICE_LEN)
assert len(sample) == WANTED, "the fix does not work"
