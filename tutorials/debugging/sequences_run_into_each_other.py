"""
Sampled sequences run into each other
=====================================

A buffer returns sequences one after the other in a flat batch. Advantages computed on it are wrong,
and a recurrent network carries its memory from one sequence into the next.

:Subsystem: trajectories and slices
:Effect: silent
:Cause: The slice sampler says where its slices end, but a plain ``ReplayBuffer`` keeps that
   out of the batch that it returns.
:Fix: Use ``TensorDictReplayBuffer``; or call ``sample(return_info=True)`` and write the ends
   that it returns into the batch.
:Decided in: :source:`torchrl.data.TensorDictReplayBuffer.sample`
:Behind it: :ref:`recurrent-slices`
:Threads: none found
:Also called: truncated not set, is_init missing at slice starts, GAE over slices
"""

# %%
# Break it
# --------
#
# The kind of the buffer is the only difference. Slices have eight rows.

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
# The last row of each slice has to be done, and the first one the start of a sequence. The
# third number counts advantages that change when each slice is computed alone.


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
# The sampler puts ``("next", "truncated")``, ``("next", "done")`` and ``is_init`` into the
# information that it returns with the indices. ``TensorDictReplayBuffer`` writes this into the
# batch. The plain buffer returns it only on request:

_, info = broken["replay_buffer"].sample(return_info=True)
print(sorted(map(str, info)))

# %%
# Fix it
# ------
#
# A plain buffer is enough for slices of one length that are reshaped to ``(slices, length)`` before
# anything reads them.

fixed = fill(TensorDictReplayBuffer)
healthy = check(fixed["batch"], SLICE_LEN, fixed["value_estimator"])
print(healthy)
assert healthy["ends"] == healthy["starts"] == healthy["slices"], (
    "the fix does not work"
)
assert healthy["wrong advantages"] == 0, "the fix does not work"
