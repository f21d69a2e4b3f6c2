"""
Some next observations belong to another step
=============================================

You collect with ``compact_obs=True``. In some rows of a sample, the next observation should be NaN,
but it is that of another step.

:Subsystem: memory and storage
:Effect: silent
:Cause: Two slices of one trajectory can follow each other in a sample. If the first slice stops
   before the trajectory ends, ``NextStateReconstructor`` by default takes the second slice's first
   row as the next step.
:Fix: Put a ``StepCounter`` on the environment and pass ``step_count_key="step_count"`` to
   ``NextStateReconstructor``.
:Source: :source:`torchrl.envs.transforms.NextStateReconstructor._valid_mask`
:Behind it: :doc:`/tutorials/memory/memory_efficient_rl`
:Threads: :thread:`3743`, :thread:`3742`
:Also called: compact_obs, NextStateReconstructor, splice, wrong next state, slices that touch
"""

# %%
# Break it
# --------
#
# The collector leaves out the next observations, and the buffer rebuilds them when you sample.

import matplotlib.pyplot as plt
import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import GymEnv, StepCounter, TransformedEnv
from torchrl.envs.transforms import NextStateReconstructor


def buffer_of_slices(**options):
    base = GymEnv("CartPole-v1")
    base.set_seed(0)
    env = TransformedEnv(base, StepCounter())
    torch.manual_seed(0)
    collector = Collector(
        env, None, frames_per_batch=200, total_frames=-1, compact_obs=True
    )
    replay_buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(200),
        sampler=SliceSampler(slice_len=4, traj_key=("collector", "traj_ids")),
        transform=NextStateReconstructor(**options),
        batch_size=256,
    )
    replay_buffer.extend(next(iter(collector)).clone())
    collector.shutdown()
    return {"replay_buffer": replay_buffer}


broken = buffer_of_slices()

# %%
# Check it
# --------
#
# ``"index"`` is the position of each row in the storage. Where the index jumps, the row below is
# not the next step, so the next observation is unknown and should be NaN. Count the jumps, and the
# jumps where the next observation is not NaN.


def check(sample):
    jumps = sample["index"].flatten().diff() != 1
    known = sample["next", "observation"][:-1].isfinite().all(-1)
    return {
        "jumps": int(jumps.sum()),
        "filled all the same": int((jumps & known).sum()),
    }


sample = broken["replay_buffer"].sample()
unhealthy = check(sample)
print(unhealthy)
assert unhealthy["filled all the same"] > 0, (
    "no longer reproduces: the reconstructor leaves each end of a slice empty"
)

# %%
# Why
# ---
#
# At such a jump, the trajectory id is the same on both sides and the stored ``done`` is False, so
# nothing tells the reconstructor that a slice ends.
# :source:`torchrl.data.TensorDictReplayBuffer.sample` marks the ends of slices as done, but only
# after the transforms have run. So you see the mark in the sample, but the reconstructor did not
# see it.

jumps = sample["index"].flatten().diff() != 1
wrong = jumps & sample["next", "observation"][:-1].isfinite().all(-1)
came = sample["observation"][:-1, 0] + 0.02 * sample["observation"][:-1, 1]
off = (sample["next", "observation"][:-1, 0] - came).abs() > 1e-5
print(
    {
        "rows": int(wrong.sum()),
        "marked done": int(sample["next", "done"][:-1][wrong].sum()),
    }
)
assert sample["next", "done"][:-1][wrong].all(), "no longer reproduces: no marks"
assert off[wrong].float().mean() > 0.9, (
    "no longer reproduces: the cart moves on as its velocity says"
)

# %%
# The figure shows a part of the sample. Each line is one slice. A cross marks a row whose next
# observation was taken from the slice to its right.
#
# .. fold:: Draw a part of the sample

first = max(int(wrong.nonzero()[0]) - 10, 0)
rows = range(first, min(first + 40, len(wrong)))
index = sample["index"].flatten()
figure, axes = plt.subplots(figsize=(5.4, 3.6), layout="constrained")
for row in rows:
    if not jumps[row]:
        axes.plot([row, row + 1], index[row : row + 2], color="C0", marker=".")
crosses = [row for row in rows if wrong[row]]
axes.plot(crosses, index[crosses], "X", color="C1", ms=10)
beside = crosses[0] + 1.5, index[crosses[0]] + 8
axes.text(*beside, "wrong next observation", color="C1", va="center")
axes.set_xlabel("row of the sample")
axes.set_ylabel("row of the buffer")
axes.set_title("Slices of a sample, stitched")
figure.set_label(
    f"{len(rows)} rows of a sample against the rows of the buffer that they come from: slices are "
    f"rising lines with jumps between them. At {len(crosses)} of the jumps the last row of a slice "
    "has a next observation of the slice that follows."
)
plt.show()

# %%
# Fix it
# ------
#
# With the step count, the reconstructor treats two rows as neighbors only if their counts follow
# each other.

fixed = buffer_of_slices(step_count_key="step_count")
healthy = check(fixed["replay_buffer"].sample())
print(healthy)
assert healthy["filled all the same"] == 0, "the fix does not work: a jump was filled"
