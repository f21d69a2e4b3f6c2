"""
Sampling from the buffer raises at the start
============================================

You passed the buffer to the collector, so there should be data in it. But the first ``sample``
raises.

:Subsystem: replay buffers
:Effect: loud
:Cause: Nothing is stored yet. A ``Collector`` writes to its ``replay_buffer`` when you ask for a
   batch or after you call ``start()``, not when you create the collector.
:Fix: Sample inside the loop over the collector, as soon as ``replay_buffer.can_sample()`` is True.
:Source: :source:`torchrl.data.RandomSampler.sample`,
   :source:`torchrl.data.SliceSampler.sample`
:Behind it: :doc:`/reference/collectors_replay`
:Threads: none found
:Also called: Cannot sample from an empty storage, empty replay buffer, Could not get a
   tensordict out of the storage, collector does not fill the buffer
"""

# %%
# Break it
# --------

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import GymEnv


def start(batches, sampler=None):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    storage = LazyTensorStorage(200)
    replay_buffer = TensorDictReplayBuffer(
        storage=storage, sampler=sampler, batch_size=32
    )
    options = {"frames_per_batch": 50, "total_frames": -1}
    collector = Collector(env, None, replay_buffer=replay_buffer, **options)
    objects = {"replay_buffer": replay_buffer}
    for _ in range(batches):
        next(iter(collector))
    try:
        replay_buffer.sample()
    except RuntimeError as error:
        objects["error"] = error
    collector.shutdown()
    return objects


broken = start(batches=0)

# %%
# The first message is from the default sampler, the second one from a ``SliceSampler``:

assert "error" in broken, "no longer reproduces: there is something to sample"
print(f"{type(broken['error']).__name__}: {broken['error']}")
assert "empty storage" in str(broken["error"]), "no longer reproduces: other words"

# %%

of_slices = start(batches=0, sampler=SliceSampler(slice_len=4))["error"]
print(f"{type(of_slices).__name__}: {of_slices}")
assert "out of the storage" in str(of_slices), "no longer reproduces: other words"

# %%
# Check it
# --------


def check(replay_buffer):
    return {"stored": len(replay_buffer), "can sample": replay_buffer.can_sample()}


unhealthy = check(broken["replay_buffer"])
print(unhealthy)
assert unhealthy == {"stored": 0, "can sample": False}, (
    "no longer reproduces: the collector now fills the buffer when it is made"
)

# %%
# Fix it
# ------
#
# One batch is enough here. The collector yields ``None`` instead of the batch, because the data is
# in the buffer.

fixed = start(batches=1)
healthy = check(fixed["replay_buffer"])
print(healthy)
assert healthy == {"stored": 50, "can sample": True}, "the fix does not work"
assert "error" not in fixed, "the fix does not work: it still raises"
