"""
Sequences jump to another environment in the middle
===================================================

You collect from several environments, flatten and store the batches, and sample short sequences.
Some sequences start in one environment and continue in another.

:Subsystem: trajectories and slices
:Effect: silent
:Cause: In a flat batch, the last step of one environment precedes the first of the next. Unless
   that step is done, a sampler that cuts only at ``done`` sees no end there.
:Fix: Store the batch as it is, in a storage with ``ndim=2``. Or leave out ``end_key``, so that the
   sampler cuts at trajectory ids.
:Source: :source:`torchrl.data.SliceSampler._get_stop_and_length`
:Behind it: :ref:`replay-flat`
:Threads: :thread:`3194`
:Also called: slices straddle episodes, reshape(-1), interleaved environments, ParallelEnv
"""

# %%
# Break it
# --------

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import GymEnv, SerialEnv

SLICE_LEN = 4


def fill(flatten):
    torch.manual_seed(0)
    env = SerialEnv(4, lambda: GymEnv("CartPole-v1"))
    env.set_seed(0)
    collector = Collector(env, None, frames_per_batch=200, total_frames=-1)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    storage = LazyTensorStorage(400, ndim=1 if flatten else 2)
    sampler = SliceSampler(slice_len=SLICE_LEN, end_key=("next", "done"))
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=800)
    buffer.extend(batch.reshape(-1) if flatten else batch)
    return {"replay_buffer": buffer}


broken = fill(flatten=True)

# %%
# Check it
# --------
#
# All rows of a slice should have the same trajectory id.


def check(sample, slice_len):
    ids = sample["collector", "traj_ids"].reshape(-1, slice_len)
    return {"slices": len(ids), "mixed": int((ids != ids[:, :1]).any(1).sum())}


unhealthy = check(broken["replay_buffer"].sample(), SLICE_LEN)
print(unhealthy)
assert unhealthy["mixed"] > 0, "no longer reproduces: no slice crosses the seams"

# %%
# Fix it
# ------
#
# With ``ndim=2``, the storage has one dimension for environments and one for time, and slices run
# along time. This is better than flat batches with trajectory ids: the next batch continues where
# this one ends, so a trajectory stays in one piece.

fixed = fill(flatten=False)
healthy = check(fixed["replay_buffer"].sample(), SLICE_LEN)
print(healthy)
assert healthy["mixed"] == 0, "the fix does not work"
