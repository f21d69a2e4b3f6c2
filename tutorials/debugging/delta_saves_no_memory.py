"""
NextObservationDelta saves no memory on images
==============================================

You added a ``NextObservationDelta`` to an environment of ``uint8`` images so that rollouts take
less memory. They take exactly as much as before.

:Subsystem: memory and storage
:Effect: silent
:Cause: By default, the transform skips integer observations. It stores deltas as 16-bit floats,
   which are larger than the bytes of an image.
:Fix: For ``uint8`` images, use ``compact_obs=True`` in the collector, with ``ToTensorImage`` and
   then ``NextStateReconstructor`` in the buffer.
:Source: :source:`torchrl.envs.transforms.NextObservationDelta.__init__`,
   :source:`torchrl.envs.transforms.NextObservationDelta.in_keys`
:Behind it: :doc:`/tutorials/memory/saving_by_observation_size`
:Threads: :thread:`3777`
:Also called: uint8, pixels, excluded_dtypes, out of memory, delta_dtype, Atari
"""

# %%
# Break it
# --------

import gymnasium as gym
import numpy as np
import torch
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper, TransformedEnv
from torchrl.envs.transforms import NextObservationDelta


class Camera(gym.Env):
    observation_space = gym.spaces.Box(0, 255, (16, 16, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.integers(0, 256, (16, 16, 3), dtype=np.uint8), {}

    def step(self, action):
        picture = self.np_random.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        return picture, 1.0, False, False, {}


def collect(transform=None, **options):
    env = GymWrapper(Camera())
    if transform is not None:
        env = TransformedEnv(env, transform)
    env.set_seed(0)
    torch.manual_seed(0)
    collector = Collector(env, None, frames_per_batch=10, total_frames=-1, **options)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    return {"env": env, "batch": batch}


broken = collect(NextObservationDelta())

# %%
# Check it
# --------
#
# Print the bytes per frame, and the number of observations that are stored as deltas.


def check(batch):
    keys = batch["next"].keys(include_nested=True, leaves_only=True)
    deltas = [key for key in keys if isinstance(key, tuple) and key[0] == "delta"]
    return {"bytes per frame": batch.bytes() // len(batch), "deltas": len(deltas)}


plain = check(collect()["batch"])
unhealthy = check(broken["batch"])
print(unhealthy)
assert unhealthy == plain, "no longer reproduces: the delta acts on images"

# %%
# If you force the transform with ``in_keys``, a frame takes even more bytes:

forced = check(collect(NextObservationDelta(["pixels"]))["batch"])
print(forced)
assert forced["bytes per frame"] > plain["bytes per frame"], (
    "no longer reproduces: a delta of bytes is no larger than bytes"
)

# %%
# Fix it
# ------
#
# ``compact_obs`` drops the next observation of every row, whatever its dtype.

fixed = collect(compact_obs=True)
healthy = check(fixed["batch"])
print(healthy)
assert healthy["bytes per frame"] < 0.6 * plain["bytes per frame"], (
    "the fix does not work: not even four tenths are saved"
)
