"""
The hook changes nothing that is stored
=======================================

A hook scales the rewards of each batch in place. That works while the collector yields batches.
When the collector writes to a replay buffer instead, the stored rewards are not scaled.

:Subsystem: replay buffers
:Effect: silent
:Cause: With ``replay_buffer``, a ``Collector`` by default gives the hook a
   ``LazyStackedTensorDict``, which keeps each step separate. Reading a key makes a copy, and the
   hook changes only the copy.
:Fix: Assign instead of changing in place: ``td[key] = td[key] * 100``.
:Source: :source:`torchrl.collectors.Collector.rollout`,
   :source:`tensordict.LazyStackedTensorDict.get`
:Behind it: :term:`LazyStackedTensorDict`
:Threads: none found
:Also called: post_collect_hook has no effect, in-place operation does nothing, ``mul_``, reward
   scaling ignored, lazy stack
"""

# %%
# Break it
# --------
#
# Both hooks should scale the rewards that the collector stores.

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import GymEnv


def scale_in_place(batch):
    batch["next", "reward"].mul_(100)


def scale(batch):
    batch["next", "reward"] = batch["next", "reward"] * 100


def collect(hook):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    replay_buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=32)
    options = {"replay_buffer": replay_buffer, "post_collect_hook": hook}
    collector = Collector(env, None, frames_per_batch=50, total_frames=-1, **options)
    next(iter(collector))
    collector.shutdown()
    return {"collector": collector, "replay_buffer": replay_buffer}


broken = collect(scale_in_place)

# %%
# Check it
# --------
#
# The reward of CartPole is 1 at each step, so each stored reward should be 100.


def check(replay_buffer):
    rewards = replay_buffer[:]["next", "reward"]
    return {"lowest": rewards.min().item(), "highest": rewards.max().item()}


unhealthy = check(broken["replay_buffer"])
print(unhealthy)
assert unhealthy["highest"] == 1, (
    "no longer reproduces: a change in place by the hook is stored"
)

# %%
# Without ``replay_buffer``, the batch is one ``TensorDict``. Reading a key returns the tensor
# itself, so ``scale_in_place`` works. ``scale`` works in both cases.

options = {"post_collect_hook": scale_in_place, "total_frames": -1}
collector = Collector(GymEnv("CartPole-v1"), None, frames_per_batch=50, **options)
rewards = next(iter(collector))["next", "reward"]
collector.shutdown()
print({"without a buffer": rewards.min().item()})
assert (rewards == 100).all(), "the hook changes nothing without a buffer, either"

# %%
# Fix it
# ------

fixed = collect(scale)
healthy = check(fixed["replay_buffer"])
print(healthy)
assert healthy["lowest"] == 100, "the fix does not work: a reward is not scaled"
