"""
A single step of several environments cannot be stored
======================================================

The buffer takes longer batches. But with one step of each environment in a batch, ``extend`` raises
an error about shapes that appear nowhere in your program.

:Subsystem: trajectories and slices
:Effect: loud
:Cause: With ``ndim=2``, ``TensorDictReplayBuffer`` writes two coordinates for each row into the
   batch. With one step per environment, it gets the shape of these coordinates wrong.
:Fix: Collect at least two steps at a time, or use a plain ``ReplayBuffer`` if you need neither
   priorities nor done marks at the ends of slices.
:Source: :source:`torchrl.data.TensorDictReplayBuffer._set_index_in_td`
:Behind it: :ref:`replay-slices`
:Threads: none found
:Also called: tensor shape is incompatible with dest shape, frames_per_batch equals num_envs
"""

# %%
# Break it
# --------
#
# A batch has two dimensions: four CartPoles and time, which is one step here.

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv, SerialEnv

N_ENVS = 4


def prepare(steps):
    torch.manual_seed(0)
    env = SerialEnv(N_ENVS, lambda: GymEnv("CartPole-v1"))
    env.set_seed(0)
    collector = Collector(env, None, frames_per_batch=steps * N_ENVS, total_frames=-1)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(400, ndim=2))
    return {"replay_buffer": buffer, "batch": batch}


broken = prepare(steps=1)
try:
    broken["replay_buffer"].extend(broken["batch"].clone())
except RuntimeError as error:
    broken["error"] = error
    print(f"{type(error).__name__}: {error}")
gone = "no longer reproduces: one step of several environments can be stored"
assert "incompatible with dest shape" in str(broken.get("error")), gone

# %%
# Check it
# --------


def check(batch):
    return {"environments": batch.shape[0], "steps": batch.shape[-1]}


unhealthy = check(broken["batch"])
print(unhealthy)
assert unhealthy["steps"] == 1, gone

# %%
# The rows are stored all the same, so a program that catches the exception and continues will train
# on them.

stored = len(broken["replay_buffer"])
print(stored)
assert stored == N_ENVS, gone

# %%
# Fix it
# ------

fixed = prepare(steps=2)
fixed["replay_buffer"].extend(fixed["batch"].clone())
healthy = check(fixed["batch"])
print(healthy)
assert healthy["steps"] == 2, "the fix does not work"
assert len(fixed["replay_buffer"]) == fixed["batch"].numel(), "the fix does not work"
