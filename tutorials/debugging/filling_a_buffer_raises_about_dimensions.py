"""
Filling the buffer raises about dim0 and dim1
=============================================

The collector works alone, and the buffer works in another program. Together they raise at the first
batch, with a message about the range of ``dim0`` and ``dim1``.

:Subsystem: replay buffers
:Effect: loud
:Cause: The ``ndim`` of the storage is larger than the number of dimensions of the batch. ``ndim=2``
   is for environments and steps, but the batch of a single environment has only steps.
:Fix: Make the storage with ``LazyTensorStorage(..., ndim=batch.ndim)``.
:Source: :source:`torchrl.data.ReplayBuffer._transpose`,
   :source:`torchrl.data.ReplayBuffer.dim_extend`
:Behind it: :ref:`replay-slices`
:Threads: :thread:`2617`, :thread:`3240`
:Also called: dim0 and dim1 must be within the range, replay_buffer given to a collector,
   storage ndim, ParallelEnv and replay buffer
"""

# %%
# Break it
# --------
#
# The buffer comes from a program with several environments. Here one environment fills it.

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv


def fill(ndim):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    storage = LazyTensorStorage(200, ndim=ndim)
    replay_buffer = TensorDictReplayBuffer(storage=storage, batch_size=32)
    options = {"frames_per_batch": 50, "total_frames": -1}
    collector = Collector(env, None, replay_buffer=replay_buffer, **options)
    objects = {"env": env, "replay_buffer": replay_buffer}
    try:
        next(iter(collector))
    except ValueError as error:
        objects["error"] = error
    collector.shutdown()
    return objects


broken = fill(ndim=2)

assert "error" in broken, "no longer reproduces: the batch is stored"
print(f"{type(broken['error']).__name__}: {broken['error']}")
assert "dim0 and dim1 must be within the range" in str(broken["error"]), (
    "no longer reproduces: the message has other words"
)

# %%
# Check it
# --------
#
# By default, a batch of a ``Collector`` has one more dimension than the environment: time.


def check(env, replay_buffer):
    storage = replay_buffer.storage
    return {"storage counts": storage.ndim, "batch has": len(env.batch_size) + 1}


unhealthy = check(broken["env"], broken["replay_buffer"])
print(unhealthy)
assert unhealthy["storage counts"] > unhealthy["batch has"], (
    "no longer reproduces: the storage counts no more dimensions than the batch has"
)

# %%
# The opposite mistake, ``ndim=1`` with several environments, is worse. Filling the buffer raises
# nothing, but a row then holds several steps, not one: :ref:`replay-slices`.
#
# Fix it
# ------

fixed = fill(ndim=1)
healthy = check(fixed["env"], fixed["replay_buffer"])
print(healthy)
assert healthy["storage counts"] == healthy["batch has"], "the fix does not work"
assert "error" not in fixed, "the fix does not work: it still raises"
