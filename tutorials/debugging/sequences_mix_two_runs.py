"""
Sampled sequences mix two runs
==============================

Two collectors fill one buffer, for example in a run and its restart, or with an old and a new
policy. Each sampled sequence has one trajectory id, but some jump from one episode into another.

:Subsystem: trajectories and slices
:Effect: silent
:Cause: A new collector counts its trajectories from zero, so both use the same ids. The sampler
   treats neighboring rows with equal ids as one trajectory.
:Fix: Before you extend, add an offset to the ids of each collector after the first:
   ``batch["collector", "traj_ids"] += offset``.
:Source: :source:`torchrl.collectors.Collector._traj_pool`
:Behind it: :ref:`replay-writers`
:Threads: none found
:Also called: traj_ids restart at 0, duplicate trajectory ids, resumed run, merged episodes
"""

# %%
# Break it
# --------
#
# .. redirect-from::
#    tutorials/debugging/sequences_mix_two_runs.html#sequences-of-one-buffer-mix-two-runs

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import GymEnv

TRAJ_KEY = ("collector", "traj_ids")
SLICE_LEN = 4


def fill(offset):
    torch.manual_seed(0)
    sampler = SliceSampler(slice_len=SLICE_LEN, traj_key=TRAJ_KEY)
    storage = LazyTensorStorage(200)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=800)
    collectors = []
    for seed in (0, 1):
        env = GymEnv("CartPole-v1")
        env.set_seed(seed)
        options = {"frames_per_batch": 7, "total_frames": 42}
        collectors.append(Collector(env, None, **options))
    for batches in zip(*collectors, strict=True):
        for number, batch in enumerate(batches):
            batch[TRAJ_KEY] += number * offset
            buffer.extend(batch)
    return {"replay_buffer": buffer}


broken = fill(offset=0)

# %%
# Check it
# --------
#
# In a slice, the next observation of each row should be the observation of the row below. Count the
# slices with a jump.


def check(sample, slice_len):
    slices = sample.reshape(-1, slice_len)
    jumps = slices["next", "observation"][:, :-1] != slices["observation"][:, 1:]
    return {"slices": len(slices), "with a jump": int(jumps.flatten(1).any(1).sum())}


unhealthy = check(broken["replay_buffer"].sample(), SLICE_LEN)
print(unhealthy)
gone = "no longer reproduces: collectors do not share trajectory ids"
assert unhealthy["with a jump"] > 0, gone

# %%
# Fix it
# ------
#
# Choose an offset above all ids of the other collectors. The workers of one multi-process collector
# need no offset, because they take their ids from one counter.

fixed = fill(offset=1_000_000)
healthy = check(fixed["replay_buffer"].sample(), SLICE_LEN)
print(healthy)
assert healthy["with a jump"] == 0, "the fix does not work"
