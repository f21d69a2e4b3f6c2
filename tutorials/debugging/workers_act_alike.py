"""
All workers take the same random actions
========================================

A collector with several workers explores less than it could, because all workers draw the same
random numbers. With a random policy, they take the same action in each step; with another
stochastic policy, they often do. Their observations differ, so you may not notice.

:Subsystem: multi-process and weight sync
:Effect: silent
:Cause: A worker that is started by ``fork``, or by a "forkserver" that has preloaded PyTorch,
   inherits the state of the random generator. So all workers continue from the same state.
:Fix: Call ``collector.set_seed(seed)`` before the first batch, or keep TorchRL's start method,
   ``spawn``.
:Source: :source:`torchrl.collectors._runner._main_async_collector_impl`,
   :source:`torchrl.collectors.MultiCollector.set_seed`
:Behind it: :doc:`/reference/collectors_replay`
:Threads: none found
:Also called: identical exploration, same random numbers, fork, duplicate actions, workers
   correlated, forkserver
"""

# %%
# Break it
# --------
#
# By default, ``import torchrl`` makes "spawn" the start method. If a script or a library sets
# "fork", workers start quickly, but draw the same random numbers.

import multiprocessing
import warnings

import torch
from torchrl.collectors import MultiSyncCollector
from torchrl.envs import GymEnv


def make_env():
    return GymEnv("CartPole-v1")


def collect(seed):
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("fork", force=True)
    with warnings.catch_warnings():  # Python 3.12 and later warn of "fork" by itself
        warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
        collector = MultiSyncCollector(
            [make_env] * 2, None, frames_per_batch=200, total_frames=-1
        )
    try:
        if seed is not None:
            collector.set_seed(seed)
        batch = next(iter(collector)).clone()
    finally:
        collector.shutdown()
        multiprocessing.set_start_method(before, force=True)
    return {"collector": collector, "batch": batch}


broken = collect(seed=None)

# %%
# Check it
# --------
#
# If each worker drew its own actions, the two would agree in some steps and differ in others.


def check(batch):
    first, second = batch["action"].argmax(-1)
    return {"steps": len(first), "always alike": torch.equal(first, second)}


unhealthy = check(broken["batch"])
print(unhealthy)
assert unhealthy["always alike"], (
    "no longer reproduces: the workers draw for themselves"
)
assert broken["batch"]["action"].argmax(-1).unique().numel() == 2

# %%
# Fix it
# ------
#
# With ``set_seed``, each worker gets its own seed.

fixed = collect(seed=0)
healthy = check(fixed["batch"])
print(healthy)
assert not healthy["always alike"], "the fix does not work"
