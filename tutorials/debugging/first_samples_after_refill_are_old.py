"""
The first samples after a refill hold old data
==============================================

The buffer is emptied and filled with a new batch, but the loss still sees rows of the previous
policy. Training works, but it may be worse than it should be.

:Subsystem: replay buffers
:Effect: silent
:Cause: With ``prefetch``, threads draw the next samples in advance. ``empty`` and ``extend`` do not
   discard samples that are already drawn.
:Fix: Leave out ``prefetch`` if you refill the buffer with each batch. If the buffer is large and
   changes slowly, you can prefetch.
:Source: :source:`torchrl.data.ReplayBuffer.sample`,
   :source:`torchrl.data.ReplayBuffer.empty`
:Behind it: :term:`prefetch`
:Threads: none found
:Also called: stale samples, prefetch, on-policy loop trains on the previous batch,
   buffer.empty() has no effect, sample from an empty buffer works
"""

# %%
# Break it
# --------
#
# An on-policy loop empties, extends and samples the buffer, twice.

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv


def loop(prefetch):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    replay_buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100), batch_size=32, prefetch=prefetch
    )
    collector = Collector(env, None, frames_per_batch=100, total_frames=-1)
    for _, batch in zip(range(2), collector, strict=False):
        replay_buffer.empty()
        replay_buffer.extend(batch)
        replay_buffer.sample()
        replay_buffer.synchronize()  # the threads finish, as they do while you train
    batch = batch.clone()
    collector.shutdown()
    return {"replay_buffer": replay_buffer, "batch": batch}


broken = loop(prefetch=3)

# %%
# Check it
# --------
#
# After ``empty()`` and one ``extend(batch)``, each row of the buffer equals the row of the batch
# with the same index.


def check(batch, replay_buffer, key="observation"):
    sample = replay_buffer.sample()
    old = (sample[key] != batch[key][sample["index"]]).flatten(1).any(1)
    return {"rows": len(sample), "of an old batch": old.sum().item()}


unhealthy = check(broken["batch"], broken["replay_buffer"])
print(unhealthy)
assert unhealthy["of an old batch"] == unhealthy["rows"], (
    "no longer reproduces: samples drawn ahead are discarded when the buffer is emptied"
)

# %%
# After the first call, three samples wait in the queue. The next three calls return them, although
# the buffer holds other rows by then. The :source:`queue
# <torchrl.data.ReplayBuffer._clear_prefetch_queue_locked>` is emptied when you load a state, but
# not when you empty or extend the buffer.
#
# Fix it
# ------

fixed = loop(prefetch=None)
healthy = check(fixed["batch"], fixed["replay_buffer"])
print(healthy)
assert healthy["of an old batch"] == 0, "the fix does not work: old rows are sampled"

# %%
# End the threads of the first buffer:

broken["replay_buffer"].shutdown()
