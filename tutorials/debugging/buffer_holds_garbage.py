"""
The buffer is full and holds garbage
====================================

Workers fill a replay buffer. Its length is right and sampling works, but the rewards are zeros or
arbitrary values that the environment never returned.

:Subsystem: multi-process and weight sync
:Effect: silent
:Cause: With the start method ``fork``, each worker writes to its own copy of a
   :class:`~torchrl.data.LazyTensorStorage`. The main process reads from another copy, whose rows
   the workers never write.
:Fix: Extend the buffer in the main process, make the storage with ``shared_init=True``, or keep
   TorchRL's start method.
:Source: :source:`torchrl.data.LazyTensorStorage`
:Behind it: :doc:`/reference/collectors_replay`
:Threads: none found
:Also called: uninitialized memory, rewards are zero, random values in the replay buffer, fork
"""

# %%
# Break it
# --------
#
# One worker writes to a buffer. The reward of CartPole is 1 at each step.

import multiprocessing
import warnings

from torchrl.collectors import MultiSyncCollector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv


def make_env():
    return GymEnv("CartPole-v1")


def collect(workers_write):
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("fork", force=True)
    storage = LazyTensorStorage(100)
    buffer = TensorDictReplayBuffer(
        storage=storage, batch_size=16, shared=workers_write
    )
    with warnings.catch_warnings():  # Python 3.12 and later warn of "fork" by itself
        warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
        collector = MultiSyncCollector(
            [make_env],
            None,
            frames_per_batch=50,
            total_frames=100,
            replay_buffer=buffer if workers_write else None,
        )
    try:
        collector.set_seed(0)
        for batch in collector:
            if not workers_write:
                buffer.extend(batch.reshape(-1))
    finally:
        collector.shutdown()
        multiprocessing.set_start_method(before, force=True)
    return {"collector": collector, "replay_buffer": buffer}


broken = collect(workers_write=True)

# %%
# Check it
# --------
#
# Check a value that you know, here the reward.


def check(replay_buffer):
    rewards = replay_buffer[:]["next", "reward"]
    return {"rows": len(replay_buffer), "every reward is 1": bool((rewards == 1).all())}


unhealthy = check(broken["replay_buffer"])
print(unhealthy)
assert unhealthy["rows"] == 100
assert not unhealthy["every reward is 1"], "no longer reproduces: the memory is shared"

# %%
# The length is right because it is kept in shared memory. With "spawn" and "forkserver" the buffer
# is pickled for the worker, and pickling moves its tensors to shared memory.
#
# Fix it
# ------
#
# If the workers have to write under "fork", ``shared_init=True`` puts the storage into files that
# every process maps.

fixed = collect(workers_write=False)
healthy = check(fixed["replay_buffer"])
print(healthy)
assert healthy["rows"] == 100, "the fix does not work"
assert healthy["every reward is 1"], "the fix does not work"
