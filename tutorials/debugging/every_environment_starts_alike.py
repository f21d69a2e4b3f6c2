"""
Every environment plays the same episodes
=========================================

More environments or workers do not improve training. The first episode starts from the same
observation in all environments. If only resets are random, so does each later one.

:Subsystem: multi-process and weight sync
:Effect: silent
:Cause: The function that makes an environment also gives it a fixed seed, so all environments draw
   the same random numbers.
:Fix: Seed the batched environment or the collector, and take the seed out of the function.
:Source: :source:`torchrl.envs.SerialEnv.set_seed`, :source:`torchrl._utils.seed_generator`
:Behind it: :doc:`/reference/collectors_basics`
:Threads: none found
:Also called: all envs return the same observations, ParallelEnv, same observations in all envs,
   identical workers, duplicate trajectories, same seed, more workers do not help
"""

# %%
# Break it
# --------

import torch
from torchrl.collectors import Collector
from torchrl.envs import GymEnv, SerialEnv


def make_seeded():
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    return env


def make_plain():
    return GymEnv("CartPole-v1")


def collect(make, seed=None):
    torch.manual_seed(0)  # the random actions
    env = SerialEnv(3, make)
    if seed is not None:
        env.set_seed(seed)
    collector = Collector(env, None, frames_per_batch=300, total_frames=-1)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    return {"batch": batch}


broken = collect(make_seeded)

# %%
# Check it
# --------
#
# Compare the first observations of the environments. Later observations differ because the actions
# are random. In a batch of :class:`~torchrl.collectors.MultiSyncCollector`, the first dimension is
# the worker.


def check(batch):
    first = batch["observation"][:, 0]
    return {"environments": len(first), "different starts": len(first.unique(dim=0))}


unhealthy = check(broken["batch"])
print(unhealthy)
assert unhealthy["different starts"] == 1, "no longer reproduces: the starts differ"

# %%
# Here later episodes start alike too.

done = broken["batch"]["next", "done"][:, :-1, 0]
later = [
    row[1:][end] for row, end in zip(broken["batch"]["observation"], done, strict=True)
]
shared = min(map(len, later))
alike = all(torch.equal(rows[:shared], later[0][:shared]) for rows in later)
print({"later starts compared": shared, "alike": alike})
assert shared >= 2
assert alike, "no longer reproduces: later episodes start differently"

# %%
# Fix it
# ------
#
# By default, ``set_seed`` of the batched environment gives each environment a different seed.
# :source:`torchrl._utils.seed_generator` derives it from the seed before. ``set_seed`` of a
# collector does the same over its workers. The starts stay reproducible.

fixed = collect(make_plain, seed=0)
healthy = check(fixed["batch"])
print(healthy)
assert healthy["different starts"] == healthy["environments"], "the fix does not work"
assert torch.equal(
    fixed["batch"]["observation"], collect(make_plain, 0)["batch"]["observation"]
)
