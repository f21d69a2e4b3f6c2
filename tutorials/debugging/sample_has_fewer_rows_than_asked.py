"""
A sample has fewer rows than asked for
======================================

``sample(128)`` returns fewer rows than you asked for, and the number changes from call to call.
Nothing is raised until you reshape the sample into sequences, and not always then: if the number of
rows happens to fit, the sequences are mixed.

:Subsystem: trajectories and slices
:Effect: loud
:Cause: With ``strict_length=False``, an episode that is shorter than a slice is drawn as it is, and
   nothing fills the missing rows.
:Fix: In a ``TensorDictReplayBuffer``, pass ``pad_output=True`` to the sampler, and use the mask
   that it writes. Or do not reshape the sample, but cut it at ``("next", "truncated")``.
:Source: :source:`torchrl.data.SliceSampler._get_index`
:Behind it: :ref:`replay-strict`
:Threads: :thread:`2947` :thread:`2011`
:Also called: invalid shape, shape is invalid for input of size, variable-length slices
"""

# %%
# Break it
# --------

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import GymEnv

ASKED, SLICE_LEN = 128, 16


def fill(pad_output):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    collector = Collector(env, None, frames_per_batch=400, total_frames=-1)
    options = {"strict_length": False, "pad_output": pad_output}
    sampler = SliceSampler(slice_len=SLICE_LEN, **options)
    storage = LazyTensorStorage(400)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=ASKED)
    buffer.extend(next(iter(collector)))
    collector.shutdown()
    return {"replay_buffer": buffer}


broken = fill(pad_output=False)
try:
    broken["replay_buffer"].sample().reshape(-1, SLICE_LEN)
except AssertionError as error:
    broken["error"] = error
    print(f"{type(error).__name__}: {error}")
gone = "no longer reproduces: short slices are filled up"
assert "invalid shape" in str(broken.get("error")), gone

# %%
# Check it
# --------


def check(buffer):
    rows = [len(buffer.sample()) for _ in range(20)]
    return {"asked": buffer.batch_size, "fewest": min(rows), "most": max(rows)}


unhealthy = check(broken["replay_buffer"])
print(unhealthy)
assert unhealthy["fewest"] < unhealthy["asked"], gone

# %%
# Fix it
# ------
#
# A padded slice repeats its last row. The mask is True for real steps: use it in every mean.

fixed = fill(pad_output=True)
healthy = check(fixed["replay_buffer"])
print(healthy)
assert healthy["fewest"] == healthy["asked"], "the fix does not work"

sequences = fixed["replay_buffer"].sample().reshape(-1, SLICE_LEN)
mask = sequences["collector", "mask"]
print(f"{tuple(sequences.shape)}, {int(mask.sum())} rows are steps")
assert mask.sum() < mask.numel(), "no row is padding"
