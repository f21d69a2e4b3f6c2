"""
All the batches that I kept are the same
========================================

You append batches to a list while the collector runs. Afterwards all of them are equal to the last
one.

:Subsystem: collectors
:Effect: silent
:Cause: With ``return_same_td=True``, the collector yields the same object each time and overwrites
   it with the next batch, unless another option copies the batch.
:Fix: Leave out ``return_same_td``, or append ``batch.clone()``.
:Source: :source:`torchrl.collectors.Collector.iterator`
:Behind it: :doc:`/reference/collectors_basics`
:Threads: none found
:Also called: list of batches identical, same tensor at each iteration, overwritten batch, aliasing,
   data changes later, observations are all the same object
"""

# %%
# Break it
# --------

import torch
from torchrl.collectors import Collector
from torchrl.envs import GymEnv


def collect(same):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    collector = Collector(
        env, policy=None, frames_per_batch=10, total_frames=30, return_same_td=same
    )
    return {"batch": list(collector)}


broken = collect(same=True)

# %%
# Check it
# --------
#
# Count the batches, and how many differ from the last one.


def check(batches):
    last = batches[-1]["observation"]
    others = [not torch.equal(b["observation"], last) for b in batches]
    return {"batches": len(batches), "unlike the last": sum(others)}


unhealthy = check(broken["batch"])
print(unhealthy)
assert unhealthy["unlike the last"] == 0, (
    "no longer reproduces: return_same_td=True yields a batch of its own"
)

# %%
# Fix it
# ------
#
# ``return_same_td=True`` avoids a copy. It is safe if you no longer need a batch when you ask for
# the next one.

fixed = collect(same=False)
healthy = check(fixed["batch"])
print(healthy)
assert healthy["unlike the last"] == 2, "the fix does not work: batches are overwritten"
