"""
The buffer takes the first batch and refuses the next
=====================================================

The first ``extend`` works. The next one raises an error that shows two shapes, and says that batch
sizes differ or that a value cannot be broadcast.

:Subsystem: replay buffers
:Effect: loud
:Cause: A tensor storage allocates its memory for the shapes of the first batch.
   ``split_trajs=True`` pads trajectories to the length of the longest one in their batch, and that
   length differs from batch to batch.
:Fix: Store single steps instead of padded trajectories: ``batch[batch["collector", "mask"]]`` (the
   mask is true for real steps). Or collect without ``split_trajs``.
:Source: :source:`torchrl.data.TensorStorage`
:Behind it: :ref:`replay-slices`
:Threads: :thread:`1671`
:Also called: indexed destination TensorDict batch size differs from the source batch size, shape
   mismatch: value tensor of shape cannot be broadcast to indexing result of shape, second extend
   fails, observations of another size
"""

# %%
# Break it
# --------

import warnings

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv

warnings.filterwarnings("ignore", message="split_trajs=True produces")


def collect(n_batches):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    options = {"frames_per_batch": 100, "total_frames": 100 * n_batches}
    collector = Collector(env, None, split_trajs=True, **options)
    batches = list(collector)
    collector.shutdown()
    return batches


def fill(batches):
    storage = LazyTensorStorage(1000)
    replay_buffer = TensorDictReplayBuffer(storage=storage, batch_size=32)
    parts = {"replay_buffer": replay_buffer}
    for batch in batches:
        parts["batch"] = batch
        try:
            replay_buffer.extend(batch.clone())
        except RuntimeError as error:
            print(f"{type(error).__name__}: {error}")
            parts["error"] = error
            break
    return parts


broken = fill(collect(3))
assert "differs from the source batch size" in str(broken.get("error")), (
    "no longer reproduces: the buffer takes rows of another shape"
)

# %%
# Check it
# --------
#
# The first dimension counts the rows. The dimensions after it have to be the same in the buffer and
# in the batch.


def check(replay_buffer, batch):
    stored = replay_buffer.storage[:]
    return {
        "row of the buffer": [*stored.shape[1:]],
        "of the batch": [*batch.shape[1:]],
    }


unhealthy = check(broken["replay_buffer"], broken["batch"])
print(unhealthy)
assert unhealthy["row of the buffer"] != unhealthy["of the batch"]

# %%
# If you catch the error, call ``empty()``. The buffer already counts the rows of the refused batch,
# although nothing wrote them:

written, counted = len(collect(1)[0]), len(broken["replay_buffer"])
print(f"{written} rows written, {counted} counted")
assert written < counted, "no longer reproduces: a refused batch leaves no rows"

# %%
# An entry of another size fails as well, with another message. Here each observation has five
# numbers instead of four.

other = fill(batch[batch["collector", "mask"]] for batch in collect(1))
rows = other["batch"].clone()
rows["observation"] = torch.zeros(len(rows), 5)
try:
    other["replay_buffer"].extend(rows)
except RuntimeError as error:
    message = str(error)
    print(message)
assert "cannot be broadcast to indexing result of shape" in message

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    If the last dimension has size one, nothing is raised. The storage copies the single value into
#    all four places:

rows["observation"] = torch.ones(len(rows), 1)
other["replay_buffer"].extend(rows)
stored = other["replay_buffer"].storage[:]["observation"][-1]
print(stored)
assert stored.tolist() == [1.0] * 4, "no longer reproduces: it raises"

# %%
# Fix it
# ------
#
# The single steps keep their trajectory ids, so a :class:`~torchrl.data.SliceSampler` still finds
# sequences.

fixed = fill(batch[batch["collector", "mask"]] for batch in collect(3))
healthy = check(fixed["replay_buffer"], fixed["batch"])
print(healthy)
assert healthy["row of the buffer"] == healthy["of the batch"], "the fix does not work"
assert len(fixed["replay_buffer"]) == 300, "the fix does not work"
