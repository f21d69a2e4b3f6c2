"""
Short episodes are never replayed
=================================

The agent does not learn from episodes that fail early. They are in the buffer, but samples never
contain them.

:Subsystem: trajectories and slices
:Effect: silent
:Cause: With ``strict_length=True``, the default, a slice sampler leaves out every trajectory
   that is shorter than a slice.
:Fix: Use ``SliceSampler(..., strict_length=False, pad_output=True)`` and the mask that it writes.
   Or sample shorter slices.
:Source: :source:`torchrl.data.SliceSampler._sample_slices`
:Behind it: :ref:`replay-strict`
:Threads: :thread:`2011`
:Also called: biased sampling, episodes missing from samples, early failures ignored
"""

# %%
# Break it
# --------

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import GymEnv

SLICE_LEN = 16


def fill(**options):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    collector = Collector(env, None, frames_per_batch=400, total_frames=-1)
    sampler = SliceSampler(slice_len=SLICE_LEN, **options)
    storage = LazyTensorStorage(400)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=4000)
    buffer.extend(next(iter(collector)))
    collector.shutdown()
    return {"replay_buffer": buffer}


broken = fill()

# %%
# Check it
# --------
#
# Draw a sample so large that no episode is left out by chance.


def check(buffer):
    key = ("collector", "traj_ids")
    stored, seen = (rows[key].unique() for rows in (buffer[:], buffer.sample()))
    return {"episodes": len(stored), "never sampled": len(stored) - len(seen)}


unhealthy = check(broken["replay_buffer"])
print(unhealthy)
gone = "no longer reproduces: short episodes are sampled"
assert unhealthy["never sampled"] >= 3, gone

# %%
# The same number of episodes is shorter than a slice:

lengths = broken["replay_buffer"][:]["collector", "traj_ids"].bincount()
print(f"{int((lengths < SLICE_LEN).sum())} of {len(lengths)} episodes are short")
assert int((lengths < SLICE_LEN).sum()) == unhealthy["never sampled"], gone

# %%
# Fix it
# ------
#
# ``pad_output=True`` repeats the last row of a short slice, so that the sample has as many rows as
# you asked for. ``("collector", "mask")`` is False for the repeated rows. Without
# ``pad_output=True``, a sample with a short slice has fewer rows than you asked for.

fixed = fill(strict_length=False, pad_output=True)
healthy = check(fixed["replay_buffer"])
print(healthy)
assert healthy["never sampled"] == 0, "the fix does not work"
