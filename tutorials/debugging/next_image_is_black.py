"""
Some next images of a sample are all black
==========================================

You learn from images, and collect with ``compact_obs=True``. In a sample, the next image in the
last row of nearly every slice is black, and the value of that image is wrong. The stored images are
fine, and a check for NaN finds nothing.

:Subsystem: memory and storage
:Effect: silent
:Cause: Where a sample does not hold the next image, ``NextStateReconstructor`` writes its
   ``fill_value``. In bytes, the result is a valid image.
:Fix: Put ``ToTensorImage`` before the reconstructor in the buffer, so that the reconstructor gets
   floats, and pass no ``fill_value``.
:Source: :source:`torchrl.envs.transforms.NextStateReconstructor.forward`
:Behind it: :doc:`/tutorials/memory/missing_next_observations`
:Threads: :thread:`3743`
:Also called: fill_value, uint8, pixels, black frame, white frame, compact_obs
"""

# %%
# Break it
# --------
#
# ``NextStateReconstructor`` refuses bytes without a ``fill_value``, so this code passes zero.

import gymnasium as gym
import numpy as np
import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import Compose, GymWrapper, StepCounter, TransformedEnv
from torchrl.envs.transforms import NextStateReconstructor, ToTensorImage


class Lamp(gym.Env):
    """A picture that gets brighter with each step, from dark gray on."""

    observation_space = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._picture(), {}

    def step(self, action):
        self.time += 1
        return self._picture(), 1.0, False, self.time == 20, {}

    def _picture(self):
        low = 1 + 10 * self.time
        return self.np_random.integers(low, low + 50, (8, 8, 3), dtype=np.uint8)


def buffer_of_pictures(*before, **options):
    env = TransformedEnv(GymWrapper(Lamp()), StepCounter())
    env.set_seed(0)
    torch.manual_seed(0)
    collector = Collector(
        env, None, frames_per_batch=100, total_frames=-1, compact_obs=True
    )
    rebuild = NextStateReconstructor(["pixels"], step_count_key="step_count", **options)
    replay_buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100),
        sampler=SliceSampler(slice_len=5, traj_key=("collector", "traj_ids")),
        transform=Compose(*before, rebuild),
        batch_size=40,
    )
    replay_buffer.extend(next(iter(collector)).clone())
    collector.shutdown()
    return {"replay_buffer": replay_buffer}


broken = buffer_of_pictures(fill_value=0)

# %%
# Check it
# --------
#
# Count the next images that have one value everywhere, and the next images with NaN.


def check(sample):
    pixels = sample["next", "pixels"].flatten(1)
    plain, missing = (pixels == pixels[:, :1]).all(1), pixels.isnan().any(1)
    return {"rows": len(sample), "plain": int(plain.sum()), "NaN": int(missing.sum())}


unhealthy = check(broken["replay_buffer"].sample())
print(unhealthy)
assert unhealthy["plain"] > 0 == unhealthy["NaN"], (
    "no longer reproduces: no plain picture stands in for a missing one"
)

# %%
# Fix it
# ------
#
# The storage still holds bytes. A next image that the sample lacks is now NaN, so ``isnan`` finds
# it. A value estimator's ``forward`` replaces NaN. Losses such as ``DQNLoss`` do not use
# ``forward``: see :doc:`/tutorials/debugging/off_policy_loss_is_nan`.

fixed = buffer_of_pictures(ToTensorImage(in_keys=["pixels"]))
healthy = check(fixed["replay_buffer"].sample())
print(healthy)
stored = fixed["replay_buffer"].storage.get(0)["pixels"].dtype
assert stored == torch.uint8, "the fix does not work: the storage holds floats"
assert healthy["NaN"] > 0 == healthy["plain"], "the fix does not work: still plain"
