"""
Memory grows although only one step per batch is kept
=====================================================

You keep one step of every batch in a list, for a plot or an evaluation set. According to
``bytes()`` these steps are tiny, but the memory of the process grows by a whole batch each time.

:Subsystem: memory and storage
:Effect: silent
:Cause: Indexing a TensorDict with a number or a slice returns views, and a view keeps the memory of
   the whole batch alive.
:Fix: Keep a copy: ``batch[i].clone()``.
:Source: :source:`tensordict.TensorDict.__getitem__`
:Behind it: :doc:`/reference/data_layout`
:Threads: none found
:Also called: memory leak, view, RAM grows, out of memory, bytes() too small, kept batches
"""

# %%
# Break it
# --------

import torch
from torchrl.collectors import Collector
from torchrl.envs import GymEnv


def keep_last_steps(copy):
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    torch.manual_seed(0)
    collector = Collector(env, None, frames_per_batch=200, total_frames=1_000)
    kept = [batch[-1:].clone() if copy else batch[-1:] for batch in collector]
    collector.shutdown()
    return {"batch": kept}


broken = keep_last_steps(copy=False)

# %%
# Check it
# --------
#
# Compare the size of the kept tensors with the size of the memory that they keep alive.


def check(kept):
    tensors = [tensor for step in kept for tensor in step.values(True, True)]
    blocks = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors
    }
    return {"bytes": sum(t.nbytes for t in tensors), "alive": sum(blocks.values())}


unhealthy = check(broken["batch"])
print(unhealthy)
assert unhealthy["alive"] == 200 * unhealthy["bytes"], (
    "no longer reproduces: a step does not keep its batch alive"
)

# %%
# Fix it
# ------

fixed = keep_last_steps(copy=True)
healthy = check(fixed["batch"])
print(healthy)
assert healthy["alive"] == healthy["bytes"], "the fix does not work: still views"
