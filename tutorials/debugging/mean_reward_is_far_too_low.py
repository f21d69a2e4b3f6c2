"""
The mean reward of a sample is far too low
==========================================

The reward of CartPole is 1 at each step, but the mean reward of a sample from the buffer is far
below 1. Many observations are zero. There is no error, only a warning that advises another way to
sample.

:Subsystem: trajectories and slices
:Effect: silent
:Cause: ``split_trajs=True`` fills each trajectory with rows of zeros up to the length of the
   longest one, and the buffer stores these rows as steps.
:Fix: Store ``batch[batch["collector", "mask"]]``, or leave out ``split_trajs``.
:Source: :source:`torchrl.collectors.utils.split_trajectories`
:Behind it: :ref:`layout-padding`
:Threads: none found
:Also called: zero padding, split_trajectories, mask, rows of zeros, reward diluted
"""

# %%
# Break it
# --------
#
# The collector splits the batch into trajectories, and warns that it is padded.

import warnings

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv


def fill(only_steps, heard):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    options = {"frames_per_batch": 200, "total_frames": -1, "split_trajs": True}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        collector = Collector(env, None, **options)
    heard.extend(caught)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(1000), batch_size=500)
    buffer.extend(
        batch[batch["collector", "mask"]] if only_steps else batch.reshape(-1)
    )
    return {"replay_buffer": buffer}


heard = []
broken = fill(False, heard)
for warning in heard:
    print(f"{warning.category.__name__}: {warning.message}")

# %%
# Check it
# --------
#
# Compute the mean reward, and count the rows of padding.


def check(sample):
    reward, mask = sample["next", "reward"], sample["collector", "mask"]
    return {
        "mean reward": round(reward.mean().item(), 2),
        "no steps": int((~mask).sum()),
    }


unhealthy = check(broken["replay_buffer"].sample())
print(unhealthy)
gone = "no longer reproduces: the batch holds no padding"
assert unhealthy["mean reward"] < 0.8, gone
assert unhealthy["no steps"] > 0, gone

# %%
# Fix it
# ------
#
# Here, without ``split_trajs``, there is nothing to mask. But ``trajs_per_batch`` pads, too. If you
# need sequences, a :class:`~torchrl.data.SliceSampler` draws them without padding. If your network
# needs padded sequences, apply the mask to every mean: of rewards, losses and statistics.

fixed = fill(True, heard)
healthy = check(fixed["replay_buffer"].sample())
print(healthy)
assert healthy["mean reward"] == 1, "the fix does not work"
assert healthy["no steps"] == 0, "the fix does not work"
