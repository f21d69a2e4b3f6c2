"""
Stacked frames come from different episodes
===========================================

You stack frames when you sample them. The stacks have the right shape, but the frames of many
stacks never followed each other in this order.

:Subsystem: replay buffers
:Effect: silent
:Cause: ``CatFrames`` in a buffer stacks rows that are neighbors in the sample. A random sampler
   draws rows from anywhere, and a slice sampler draws no rows from before a slice.
:Fix: Use ``transform, sampler = catframes.make_rb_transform_and_sampler(batch_size)`` in a plain
   ``ReplayBuffer``. This sampler draws the frames that belong together.
:Source: :source:`torchrl.envs.transforms.CatFrames.unfolding`,
   :source:`torchrl.envs.transforms.CatFrames.make_rb_transform_and_sampler`
:Behind it: :doc:`/how-to/pixel_replay`, :doc:`/reference/data_layout`
:Threads: :thread:`2406`
:Also called: CatFrames in replay buffer, frame stacking, dimension should be marked as
   'time', wrong frame stack, first frame repeated in each slice
"""

# %%
# Break it
# --------
#
# Here each frame is the number of its step instead of an image, so that you can read a stack: ``[4,
# 5, 6, 7]`` is right.

import warnings

import torch
from torchrl.collectors import Collector
from torchrl.data import (
    LazyTensorStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
)
from torchrl.envs import CatFrames, GymEnv, StepCounter, TransformedEnv


def fill(sampler, transform, kind=ReplayBuffer):
    torch.manual_seed(0)
    env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter())
    env.set_seed(0)
    storage = LazyTensorStorage(200)
    options = {"sampler": sampler, "transform": transform, "batch_size": 32}
    replay_buffer = kind(storage=storage, **options)
    collector = Collector(env, None, frames_per_batch=200, total_frames=-1)
    replay_buffer.extend(next(iter(collector)))
    collector.shutdown()
    return {"replay_buffer": replay_buffer}


keys = {"in_keys": ["step_count"], "out_keys": ["stack"]}
catframes = CatFrames(N=4, dim=-1, reset_key="_reset", **keys)
broken = fill(sampler=None, transform=catframes)

# %%
# Check it
# --------
#
# In a correct stack, each frame is one step after the one before it. At the start of an episode,
# the first frame fills the stack.


def check(replay_buffer):
    stack = replay_buffer.sample()["stack"]
    right = stack == (stack[:, -1:] + torch.arange(-3, 1)).clamp(min=0)
    return {"stacks": len(stack), "wrong": (~right.all(-1)).sum().item()}


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    unhealthy = check(broken["replay_buffer"])
print(unhealthy)
assert unhealthy["wrong"] > 16, (
    "no longer reproduces: a stack in a buffer now holds steps that follow each other"
)

# %%
# A ``SliceSampler`` is not enough. In the first three rows of a slice, stacks contain copies of its
# first row. In a flat sample, they can contain rows of the slice before it instead. From the fourth
# row on, all stacks are right.


def sampled_slices(transform):
    sampler = SliceSampler(slice_len=8, traj_key=("collector", "traj_ids"))
    buffer = fill(sampler, transform, TensorDictReplayBuffer)["replay_buffer"]
    return buffer.sample().reshape(-1, 8)


with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="The last dimension of the tensordict")
    slices = {"flat": sampled_slices(catframes)}
slices["reshaped"] = sampled_slices(None)
slices["reshaped"].names = [None, "time"]
catframes(slices["reshaped"])
for name, rows in slices.items():
    print(f"{name}, second rows:", rows["stack"][:, 1].tolist())
    follow = (rows["stack"].diff() == 1).all(-1)
    assert follow[:, 3:].all()
    assert not follow[:, :3].all(), "no longer reproduces: slices are enough"

# %%
# A warning says which dimension ``CatFrames`` treats as time. It appears with the fix as well:

print(f"{caught[-1].category.__name__}: {caught[-1].message}")
assert "marked as 'time'" in str(caught[-1].message), "no longer reproduces: no warning"

# %%
# Fix it
# ------
#
# The sampler draws slices as long as a stack, and the transform keeps the last row of each. If
# ``catframes`` was never in an environment, create it with a ``reset_key``, as above:
# ``make_rb_transform_and_sampler`` needs it.

assert not hasattr(CatFrames(N=4, dim=-1, **keys), "reset_key"), "it is given by itself"
transform, sampler = catframes.make_rb_transform_and_sampler(batch_size=32)
fixed = fill(sampler=sampler, transform=transform)
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="The last dimension of the tensordict")
    healthy = check(fixed["replay_buffer"])
print(healthy)
assert healthy == {"stacks": 32, "wrong": 0}, "the fix does not work: stacks are wrong"
