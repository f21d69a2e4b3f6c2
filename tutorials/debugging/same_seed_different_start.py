"""
Two runs with the same seed start differently
=============================================

Each run calls ``collector.set_seed(0)``, but two runs differ already in their first observation.

:Subsystem: collectors
:Effect: silent
:Cause: A ``Collector`` resets its environment when it is built, before you call ``set_seed``.
   ``set_seed`` resets a ``GymEnv`` again, but the policy's first step still gets the old
   observation.
:Fix: Seed the environment before the collector is built.
:Source: :source:`torchrl.collectors.Collector._make_carrier`,
   :source:`torchrl.collectors.Collector.set_seed`
:Behind it: :doc:`/reference/collectors_hooks`
:Threads: none found
:Also called: not reproducible, seed has no effect, different results each run, first transition
   is impossible, set_seed
"""

# %%
# Break it
# --------
#
# The policy always pushes to the right, so only the environment is random.

import torch
from torchrl.collectors import Collector
from torchrl.envs import GymEnv


def push_right(tensordict):
    return tensordict.set("action", torch.tensor([0, 1]))


def start(seed_first):
    env = GymEnv("CartPole-v1")
    if seed_first:
        env.set_seed(0)
    collector = Collector(env, push_right, frames_per_batch=10, total_frames=-1)
    if not seed_first:
        collector.set_seed(0)
    return collector


broken = {"collector": start(seed_first=False)}


# %%
# Check it
# --------


def check(collector, twin):
    one, other = collector.next()["observation"], twin.next()["observation"]
    return {"steps": len(one), "differ": int((one != other).any(-1).sum())}


unhealthy = check(start(seed_first=False), start(seed_first=False))
print(unhealthy)
assert unhealthy["differ"] > 0, (
    "no longer reproduces: set_seed also replaces the observation that the collector holds"
)

# %%
# Why
# ---
#
# Here only the first row differs, because the policy does not read observations. This row is a
# transition that the environment never made: its observation is from before the seeding, its next
# observation from after it. A policy that reads this observation may act differently, and then
# later rows differ, too.
#
# Fix it
# ------
#
# ``env.set_seed(0)`` seeds the reset that the constructor of the collector makes.

fixed = {"collector": start(seed_first=True)}
healthy = check(start(seed_first=True), start(seed_first=True))
print(healthy)
assert healthy["differ"] == 0, "the fix does not work: the runs differ"

# %%
# If you have no environment to seed, seed the collector and then reset it.

late = [start(seed_first=False), start(seed_first=False)]
for collector in late:
    collector.reset()
assert check(*late)["differ"] == 0, "the fix does not work: the runs differ"
