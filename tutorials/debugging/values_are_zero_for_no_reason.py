"""
Some sampled values are zero for no reason
==========================================

In your samples, a key has correct values in some rows and zeros in others. You never wrote a zero.

:Subsystem: replay buffers
:Effect: silent
:Cause: Not all stored batches had that key. If a key first comes with a later batch,
   ``LazyTensorStorage`` adds it, with zeros in the earlier rows. If a still later batch lacks it,
   its rows keep the values that were in memory before.
:Fix: Write the same keys to every batch. Where a value is not known, write ``nan``, or an integer
   that cannot occur.
:Source: :source:`torchrl.data.LazyTensorStorage._init_standard`,
   :source:`tensordict._td._SubTensorDict._set_str`
:Behind it: :term:`storage`
:Threads: none found
:Also called: storage schema, key missing, key dropped, uninitialized memory, different
   keys between batches, init_random_frames, warm-up
"""

# %%
# Break it
# --------
#
# .. redirect-from::
#    tutorials/debugging/values_are_zero_for_no_reason.html#part-of-the-sampled-values-is-zero-for-no-reason
#
# Only the second batch has the probability of each action.

import torch
from torchrl.collectors import Collector
from torchrl.data import (
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    TensorDictReplayBuffer,
)
from torchrl.envs import GymEnv


def store(write_always):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    replay_buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(200))
    collector = Collector(env, None, frames_per_batch=50, total_frames=-1)
    batches = []
    for number, batch in zip(range(2), collector, strict=False):
        if number == 1:
            batch["probability"] = torch.full((50,), 0.5)
        elif write_always:
            batch["probability"] = torch.full((50,), torch.nan)
        replay_buffer.extend(batch)
        batches.append(batch.clone())
    collector.shutdown()
    return {"replay_buffer": replay_buffer, "batch": batches}


broken = store(write_always=False)

# %%
# Check it
# --------
#
# The code never writes a probability of zero.


def check(replay_buffer, key="probability"):
    stored = replay_buffer[:][key]
    return {"rows": len(stored), "zero": (stored == 0).sum().item()}


unhealthy = check(broken["replay_buffer"])
print(unhealthy)
assert unhealthy["zero"] == 50, (
    "no longer reproduces: a new key is no longer filled with zeros in older rows"
)

# %%
# Other storages act differently. ``LazyMemmapStorage`` has no place for the new key and drops it.
# ``LazyStackStorage`` returns a key only if all rows of the sample have it. If a collector extends
# its ``replay_buffer`` with a :term:`LazyStackedTensorDict` that has a new key,
# ``LazyTensorStorage`` raises: see :doc:`/tutorials/debugging/log_probability_is_zero`.

for storage in LazyMemmapStorage, LazyStackStorage:
    replay_buffer = TensorDictReplayBuffer(storage=storage(200))
    for batch in broken["batch"]:
        replay_buffer.extend(batch)
    has = {"all rows": slice(None), "new rows": slice(50, 100)}
    has = {rows: "probability" in replay_buffer[i] for rows, i in has.items()}
    print(storage.__name__, has)
    assert has == {"all rows": False, "new rows": storage is LazyStackStorage}, (
        f"a {storage.__name__} keeps a new key in another way"
    )

# %%
# Fix it
# ------
#
# With ``nan``, the storage has the key from the start, and a loss that reads an unknown value
# becomes ``nan``.

fixed = store(write_always=True)
healthy = check(fixed["replay_buffer"])
print(healthy)
assert healthy["zero"] == 0, "the fix does not work: rows still hold a made-up zero"
