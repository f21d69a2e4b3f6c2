"""
SliceSampler refuses trajectory_key
===================================

Code that you copied from an older example raises a ``TypeError``.

:Subsystem: trajectories and slices
:Effect: loud
:Cause: The argument is called ``traj_key``. Older examples call it ``trajectory_key``, as
   ``split_trajectories`` does.
:Fix: Write ``SliceSampler(..., traj_key=("collector", "traj_ids"))``. You can also omit the
   argument: without ``end_key``, the sampler finds these ids itself.
:Source: :source:`torchrl.data.SliceSampler`
:Behind it: :doc:`/reference/api_changes`
:Threads: none found
:Also called: got an unexpected keyword argument 'trajectory_key', docs example fails
"""

# %%
# Break it
# --------

import inspect

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import GymEnv


def fill(options):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    collector = Collector(env, None, frames_per_batch=100, total_frames=-1)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    sampler = SliceSampler(slice_len=4, **options)
    storage = LazyTensorStorage(100)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=32)
    buffer.extend(batch)
    return {"replay_buffer": buffer}


as_in_the_text = {"trajectory_key": ("collector", "traj_ids")}
broken = {}
try:
    broken = fill(as_in_the_text)
except TypeError as error:
    broken["error"] = error
    print(f"{type(error).__name__}: {error}")
gone = "no longer reproduces: the sampler takes trajectory_key"
assert "argument 'trajectory_key'" in str(broken.get("error")), gone

# %%
# Check it
# --------


def check(options):
    known = inspect.signature(SliceSampler.__init__).parameters
    close = [name for name in known if "traj" in name]
    return {"unknown": sorted(set(options) - set(known)), "known": close}


unhealthy = check(as_in_the_text)
print(unhealthy)
assert unhealthy["unknown"] == ["trajectory_key"], gone

# %%
# Fix it
# ------

renamed = {"traj_key": ("collector", "traj_ids")}
fixed = fill(renamed)
healthy = check(renamed)
print(healthy)
assert healthy["unknown"] == [], "the fix does not work"
assert len(fixed["replay_buffer"].sample()) == 32, "the fix does not work"
