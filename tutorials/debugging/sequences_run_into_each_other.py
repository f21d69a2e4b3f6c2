"""
Sampled sequences run into each other
=====================================

A sample from the buffer is a flat batch of several sequences. Many advantages computed on it are
wrong, and a recurrent network carries its hidden state from one sequence into the next.

:Subsystem: trajectories and slices
:Effect: silent
:Cause: The batch does not mark where one slice ends and the next begins. The slice sampler returns
   these marks, but a plain ``ReplayBuffer`` does not write them into the batch.
:Fix: Use ``TensorDictReplayBuffer``, which writes these marks. Or call ``sample(return_info=True)``
   and write the returned marks into the batch yourself.
:Source: :source:`torchrl.data.TensorDictReplayBuffer.sample`
:Behind it: :ref:`recurrent-slices`
:Threads: none found
:Also called: truncated not set, is_init missing at slice starts, GAE over slices
"""

# %%
# Break it
# --------

import torch
from torchrl.collectors import Collector
from torchrl.data import (
    LazyTensorStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
)
from torchrl.envs import GymEnv, InitTracker, TransformedEnv
from torchrl.modules import ValueOperator
from torchrl.objectives.value import GAE

SLICE_LEN = 8


def fill(kind):
    torch.manual_seed(0)
    env = TransformedEnv(GymEnv("CartPole-v1"), InitTracker())
    env.set_seed(0)
    collector = Collector(env, None, frames_per_batch=200, total_frames=-1)
    sampler = SliceSampler(slice_len=SLICE_LEN)
    buffer = kind(storage=LazyTensorStorage(200), sampler=sampler, batch_size=64)
    buffer.extend(next(iter(collector)).clone())
    collector.shutdown()
    critic = ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"])
    gae = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    return {"replay_buffer": buffer, "batch": buffer.sample(), "value_estimator": gae}


broken = fill(ReplayBuffer)

# %%
# Check it
# --------
#
# In each slice, ``done`` has to be True in the last row and ``is_init`` in the first. ``"wrong
# advantages"`` counts the advantages that change when each slice is computed alone.


def check(sample, slice_len, gae):
    slices = sample.reshape(-1, slice_len)
    flat, alone = (
        gae(data.clone())["advantage"].flatten() for data in (sample, slices)
    )
    return {
        "slices": len(slices),
        "ends": int(slices["next", "done"][:, -1].sum()),
        "starts": int(slices["is_init"][:, 0].sum()),
        "wrong advantages": int((flat - alone).abs().gt(1e-4).sum()),
    }


unhealthy = check(broken["batch"], SLICE_LEN, broken["value_estimator"])
print(unhealthy)
gone = "no longer reproduces: the plain buffer marks where slices end"
assert unhealthy["ends"] < unhealthy["slices"], gone
assert unhealthy["wrong advantages"] > 0, gone

# %%
# Why
# ---
#
# The plain buffer returns the marks only on request, together with the indices:

_, info = broken["replay_buffer"].sample(return_info=True)
print(sorted(map(str, info)))

# %%
# Fix it
# ------
#
# A plain buffer is enough if all slices have the same length, and if you reshape the sample to
# ``(slices, length)`` before anything reads it.

fixed = fill(TensorDictReplayBuffer)
healthy = check(fixed["batch"], SLICE_LEN, fixed["value_estimator"])
print(healthy)
assert healthy["ends"] == healthy["starts"] == healthy["slices"], (
    "the fix does not work"
)
assert healthy["wrong advantages"] == 0, "the fix does not work"
