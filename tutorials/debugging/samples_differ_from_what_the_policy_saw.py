"""
Samples differ from what the policy saw
=======================================

Collection works, but the loss is computed from observations that the policy never saw: they are
much too large, or squeezed into a small range.

:Subsystem: replay buffers
:Effect: silent
:Cause: The same ``ObservationNorm`` is a transform of the environment and of the replay
   buffer. The batch is already normalized, and the buffer normalizes each sample again.
:Fix: Keep only one of the two transforms. If you keep the buffer's transform, the policy has to
   normalize its observations itself.
:Source: :source:`torchrl.data.TensorDictReplayBuffer._sample`
:Behind it: :doc:`/reference/collectors_replay`
:Threads: :thread:`2406`
:Also called: observations are normalized twice, ObservationNorm twice, double normalization,
   frames stacked twice, observations explode in the replay buffer
"""

# %%
# Break it
# --------

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv, ObservationNorm, TransformedEnv


def make_norm():
    keys = ["observation"]
    return ObservationNorm(loc=0.5, scale=0.1, in_keys=keys, standard_normal=True)


def collect(transform):
    torch.manual_seed(0)
    env = TransformedEnv(GymEnv("CartPole-v1"), make_norm())
    env.set_seed(0)
    replay_buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100), transform=transform, batch_size=64
    )
    collector = Collector(env, None, frames_per_batch=100, total_frames=-1)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    replay_buffer.extend(batch)
    return {"env": env, "replay_buffer": replay_buffer, "batch": batch}


broken = collect(transform=make_norm())

# %%
# Check it
# --------
#
# The buffer holds a single batch, so the ``index`` of a sampled row is also its position in this
# batch. Compare the row with what the policy saw there.


def check(batch, replay_buffer, key="observation"):
    sample = replay_buffer.sample()
    changed = sample[key] != batch[key][sample["index"]]
    return {"rows": len(sample), "changed": changed.flatten(1).any(1).sum().item()}


unhealthy = check(broken["batch"], broken["replay_buffer"])
print(unhealthy)
assert unhealthy["changed"] == unhealthy["rows"], (
    "no longer reproduces: a normalized observation is not normalized again"
)

# %%
# The stored rows are correct. Only the samples are not. So keep the buffer and remove its
# transform.
#
# Fix it
# ------

fixed = collect(transform=None)
healthy = check(fixed["batch"], fixed["replay_buffer"])
print(healthy)
assert healthy["changed"] == 0, "the fix does not work: samples are still changed"
