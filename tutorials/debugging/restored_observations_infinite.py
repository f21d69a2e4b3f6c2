"""
Some next observations of a sample are infinite
===============================================

Samples from the buffer hold infinite next observations, and then the loss can be infinite or NaN.
But the environment never returned an infinite number, and the stored observations are finite.

:Subsystem: memory and storage
:Effect: silent
:Cause: By default, ``NextObservationDelta`` stores differences as ``float16``, and a difference
   beyond the largest ``float16`` becomes infinite.
:Fix: Pass ``delta_dtype=torch.bfloat16``, which takes no more memory and has the range of
   ``float32``. Or scale the observations.
:Source: :source:`torchrl.envs.transforms.NextObservationDelta._step`
:Behind it: :doc:`/tutorials/memory/saving_by_observation_size`
:Threads: :thread:`3777`
:Also called: inf, overflow, float16, unnormalized observations, NextObservationDelta, nan loss
"""

# %%
# Break it
# --------
#
# The environment is a scale that shows a weight in small units, so the observation changes by
# hundreds of thousands in one step.

import gymnasium as gym
import numpy as np
import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymWrapper, TransformedEnv
from torchrl.envs.transforms import NextObservationDelta


class Scale(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 1e5 * self.np_random.standard_normal(2, dtype=np.float32), {}

    def step(self, action):
        weight = 1e5 * self.np_random.standard_normal(2, dtype=np.float32)
        return weight, 1.0, False, False, {}


def buffer_of_deltas(**options):
    env = TransformedEnv(GymWrapper(Scale()), NextObservationDelta(**options))
    env.set_seed(0)
    torch.manual_seed(0)
    collector = Collector(env, None, frames_per_batch=40, total_frames=-1)
    replay_buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(40),
        transform=NextObservationDelta(in_keys=["observation"], **options),
        batch_size=32,
    )
    replay_buffer.extend(next(iter(collector)).clone())
    collector.shutdown()
    return {"replay_buffer": replay_buffer}


broken = buffer_of_deltas()

# %%
# Check it
# --------


def check(sample):
    now, then = sample["observation"].isinf(), sample["next", "observation"].isinf()
    return {"rows": len(sample), "now": int(now.sum()), "next": int(then.any(-1).sum())}


unhealthy = check(broken["replay_buffer"].sample())
print(unhealthy)
assert unhealthy["now"] == 0, "the environment returned something infinite"
assert unhealthy["next"] > 0, "no longer reproduces: restored observations are finite"

# %%
# Fix it
# ------
#
# ``bfloat16`` keeps fewer digits of the difference.

fixed = buffer_of_deltas(delta_dtype=torch.bfloat16)
healthy = check(fixed["replay_buffer"].sample())
print(healthy)
assert healthy["next"] == 0, "the fix does not work: infinite in bfloat16 as well"
