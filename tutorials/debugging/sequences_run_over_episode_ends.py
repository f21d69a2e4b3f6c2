"""
Sequences run over the ends of episodes
=======================================

The sampler has ``end_key="done"``, but some of its sequences start in one episode and end in the
next.

:Subsystem: trajectories and slices
:Effect: silent
:Cause: ``"done"`` at the root of a row belongs to the state before the step, and is never True in
   the batches of a collector. An episode ends where ``("next", "done")`` is True.
:Fix: Pass ``end_key=("next", "done")``, or leave ``end_key`` out.
:Source: :source:`torchrl.data.SliceSampler._get_stop_and_length`
:Behind it: :ref:`layout-flags`
:Threads: none found
:Also called: end_key done, slices straddle episodes, done at the root, one endless trajectory
"""

# %%
# Break it
# --------

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import GymEnv

SLICE_LEN = 8


def fill(end_key):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    collector = Collector(env, None, frames_per_batch=200, total_frames=-1)
    sampler = SliceSampler(slice_len=SLICE_LEN, end_key=end_key)
    storage = LazyTensorStorage(200)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=400)
    buffer.extend(next(iter(collector)))
    collector.shutdown()
    return {"replay_buffer": buffer}


broken = fill(end_key="done")

# %%
# Check it
# --------
#
# Count the ends that the key finds in the buffer, and the slices with more than one episode.


def check(rows, slices, end_key):
    ids, ends = slices["collector", "traj_ids"], int(rows[end_key].sum())
    mixed = int((ids != ids[:, :1]).any(1).sum())
    return {"ends found": ends, "slices": len(ids), "mixed": mixed}


buffer = broken["replay_buffer"]
slices = buffer.sample().reshape(-1, SLICE_LEN)
unhealthy = check(buffer[:], slices, "done")
print(unhealthy)
gone = "no longer reproduces: the root of a row says where an episode ends"
assert unhealthy["ends found"] == 0, gone
assert unhealthy["mixed"] > 0, gone

# %%
# Fix it
# ------

fixed = fill(end_key=("next", "done"))
buffer = fixed["replay_buffer"]
slices = buffer.sample().reshape(-1, SLICE_LEN)
healthy = check(buffer[:], slices, ("next", "done"))
print(healthy)
assert healthy["ends found"] > 0, "the fix does not work"
assert healthy["mixed"] == 0, "the fix does not work"
