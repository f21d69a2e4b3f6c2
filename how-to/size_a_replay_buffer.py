"""
Choose and size a replay buffer
===============================

Multiply the bytes of one collected row by the number of rows that you want. If the product fits
into memory, use ``LazyTensorStorage``. Otherwise use ``LazyMemmapStorage`` with a folder on a disk.
"""

# %%
# .. fold:: Imports, and a folder that is deleted at the end

import shutil
import tempfile
from pathlib import Path

import torch
import torchrl
from torchrl.collectors import Collector
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    TensorDictReplayBuffer,
)
from torchrl.envs import GymEnv, SerialEnv

torch.manual_seed(0)
torch.set_num_threads(1)
torchrl.logger.setLevel("ERROR")  # it announces each storage
scratch = tempfile.TemporaryDirectory(prefix="size_a_replay_buffer_")
FOLDER = Path(scratch.name)

# %%
# Copy this code, with your own environment and policy, and with a folder on a disk: ``/tmp`` can be
# memory. Set the number of rows, such as a paper's, and the memory that you can spare for them.

ROWS, MEMORY_BYTES = 1_000_000, 4 * 2**30
INDEX_BYTES = 8  # of the "index" that TensorDictReplayBuffer adds to each row


def bytes_of_a_row(batch):
    return batch.bytes() // len(batch) + INDEX_BYTES


def make_buffer(batch, memory_bytes):
    planned = ROWS * bytes_of_a_row(batch)
    if planned <= memory_bytes:
        storage = LazyTensorStorage(ROWS)  # device="cuda" if it fits there
    elif planned <= shutil.disk_usage(FOLDER).free:
        # Each run needs a new folder, or existsok=True.
        storage = LazyMemmapStorage(ROWS, scratch_dir=FOLDER / "rows")
    else:
        raise ValueError(f"{planned:,} bytes fit neither into memory nor on the disk")
    return TensorDictReplayBuffer(storage=storage, batch_size=256)


env = GymEnv("CartPole-v1")
env.set_seed(0)
collector = Collector(env, policy=None, frames_per_batch=200, total_frames=1_000)
buffer = None
for batch in collector:
    batch = batch.reshape(-1)  # a row is one step of one environment
    if buffer is None:
        buffer = make_buffer(batch, MEMORY_BYTES)
    buffer.extend(batch)
    sample = buffer.sample()  # train on it
collector.shutdown()

# %%
# Compare the plan with the memory or the files that are reserved. With no memory to spare, the same
# code makes a buffer on the disk:


def held_bytes(*rows):
    tensors = [tensor for row in rows for tensor in row.values(True, True)]
    blocks = [tensor.untyped_storage() for tensor in tensors]
    return sum({block.data_ptr(): block.nbytes() for block in blocks}.values())


def bytes_in_files(folder):
    return sum(file.stat().st_size for file in folder.rglob("*.memmap"))


on_disk = make_buffer(batch, memory_bytes=0)
on_disk.extend(batch)
row_bytes = bytes_of_a_row(batch)
planned = ROWS * row_bytes
in_memory, in_files = held_bytes(buffer.storage[:]), bytes_in_files(FOLDER / "rows")
print(f"{row_bytes} bytes a row, room for {MEMORY_BYTES // row_bytes:,} rows\n")
print(f"{'storage':17} {'written':>8} {'planned bytes':>14} {'found':>11}")
for one, found in ((buffer, in_memory), (on_disk, in_files)):
    name = type(one.storage).__name__
    print(f"{name:17} {len(one):8,} {planned:14,} {found:11,}")
    assert found == planned

# %%
# Which storage, which sampler
# ----------------------------
#
# .. list-table::
#    :header-rows: 1
#
#    * - You have
#      - Use
#      - Note
#    * - rows of one shape that fit into memory
#      - ``LazyTensorStorage``
#      - with ``device="cuda"`` if the loss is there and the rows fit
#    * - more rows than memory
#      - ``LazyMemmapStorage``
#      - with a folder of its own: :doc:`/tutorials/memory/buffers_on_disk`
#    * - rows of different shapes
#      - ``ListStorage`` :claim:`list-takes-other-shapes`
#      - takes more than the plan says: `What it costs`_
#    * - stacks of frames
#      - one frame in each row
#      - :doc:`pixel_replay`
#    * - a loss that reads single steps
#      - ``RandomSampler``, the default
#      - can draw a row twice
#    * - several epochs over one batch, as in PPO
#      - ``SamplerWithoutReplacement``
#      - a buffer of ``frames_per_batch`` rows
#    * - steps to draw by priority
#      - ``PrioritizedSampler``
#      - its trees are not in the plan: :doc:`n_step_with_priorities`
#    * - sequences
#      - ``SliceSampler``
#      - with ``cache_values=True`` if you sample more often than you write
#
# For the reasons and for more choices, see :doc:`/performance/replay_buffers`. This page does not
# measure how many rows help training.
#
# Why it is right
# ---------------
#
# * **The first row decides.** At the first ``extend``, both storages reserve room for all rows,
#   with the shapes and types of the first one. :claim:`first-row-gives-shapes-and-types` So one
#   batch is enough for an exact plan.
# * **Nearly every observation is stored twice:** in its own row, and as the next observation of the
#   row before. :claim:`observations-are-stored-twice` To store it once, see
#   :doc:`/tutorials/memory/memory_efficient_rl`.
# * **The plan is for rows as you collect them.** A transform of the buffer can add entries when you
#   extend, as ``MultiStepTransform`` does, or drop some. Then extend a small buffer that has the
#   transform, and divide ``held_bytes(storage[:])`` by ``storage.max_size``.
#   :claim:`plan-without-buffer-transforms` Do not flatten several environments before
#   ``MultiStepTransform``, which sums along the last dimension: :doc:`n_step_with_priorities`.
# * **Other things need memory, too,** such as batches, samples and networks.
#   :doc:`/reference/memory_planner` lists how many batches are in memory at once, and makes a plan
#   before you collect anything.
#
# Where it goes wrong without an error
# ------------------------------------
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    Taking the first ``extend`` as proof that the rows fit. Linux provides memory only as rows are
#    written, so the process can be killed much later: :ref:`symptom-first-extend-takes-all-memory`.
#    A disk, too, can be full later. :claim:`files-take-room-when-written`

STATUS = Path("/proc/self/status")


def resident_bytes(kind):
    """Bytes of this process that are in memory, on Linux."""
    lines = STATUS.read_text().splitlines()
    line = next(line for line in lines if line.startswith(f"Rss{kind}:"))
    return int(line.split()[1]) * 1024


if STATUS.exists():
    before, many = resident_bytes("Anon"), torch.cat([batch] * 50)
    full = TensorDictReplayBuffer(storage=LazyTensorStorage(ROWS))
    found = {}
    for rows in (batch, *[many] * (ROWS // len(many))):
        full.extend(rows)
        found[len(full)] = resident_bytes("Anon") - before > planned / 2
    first, *_, last = found
    for n_rows in (first, last):
        print(f"{n_rows:9,} rows, half of the plan in memory: {found[n_rows]}")
    assert not found[first]
    assert found[last]
    del full

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    ``LazyMemmapStorage`` without ``scratch_dir``. Its rows are in shared memory, if they fit:
#    :ref:`symptom-memmap-buffer-fills-memory`.

FEW_ROWS = 100_000
no_folder = TensorDictReplayBuffer(storage=LazyMemmapStorage(FEW_ROWS))
before = resident_bytes("Shmem") if STATUS.exists() else None
for _ in range(FEW_ROWS // len(batch)):
    no_folder.extend(batch)
assert no_folder.storage.scratch_dir is None
if STATUS.exists():
    shared = resident_bytes("Shmem") - before
    print(f"half of the plan in shared memory: {shared > FEW_ROWS * row_bytes / 2}")
    assert shared > FEW_ROWS * row_bytes / 2

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    Storing the batch of several environments without ``reshape(-1)``. A row is then all the steps
#    of one environment, and the buffer reserves far more than you planned:
#    :ref:`symptom-sample-returns-far-more-rows`.

env = SerialEnv(4, lambda: GymEnv("CartPole-v1"))
env.set_seed(0)
collector = Collector(env, policy=None, frames_per_batch=200, total_frames=200)
batch_of_four = next(iter(collector)).clone()
collector.shutdown()
ratios = []
for given in (batch_of_four, batch_of_four.reshape(-1)):
    storage = LazyTensorStorage(1_000)
    TensorDictReplayBuffer(storage=storage).extend(given)
    ratios.append(held_bytes(storage[:]) / (1_000 * row_bytes))
    print(
        f"{tuple(given.shape)}: {len(storage)} rows, {ratios[-1]:.0f}x the planned bytes"
    )
assert ratios[0] > 10
assert ratios[1] == 1

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    A ``ListStorage`` with a few rows of each batch. Each row is a view, and keeps its whole batch
#    in memory: :ref:`symptom-one-kept-step-keeps-the-batch`. Store a ``clone()``.

ratios = []
for copy in (False, True):
    kept = TensorDictReplayBuffer(storage=ListStorage(5))
    for _ in range(5):
        newest = batch.clone()[-1:]
        kept.extend(newest.clone() if copy else newest)
    ratios.append(held_bytes(*kept.storage[:]) / (5 * row_bytes))
    print(f"{'copies' if copy else 'views'}: {ratios[-1]:.0f}x the planned bytes")
assert ratios[0] > 10
assert ratios[1] == 1

# %%
# .. fold:: Clean up: the buffers go first, then the files that they map

del one, on_disk, no_folder
scratch.cleanup()
assert not FOLDER.exists()

# %%
# What it costs
# -------------
#
# In a full ``LazyTensorStorage``, a row takes what the plan says. The system can take back nearly
# all memory of a ``LazyMemmapStorage`` on disk. :claim:`memory-of-a-full-buffer` The Python objects
# of a ``ListStorage`` need far more memory than small tensors.
# :claim:`list-objects-outweigh-small-rows`
#
# .. record-table:: replay_buffers@cpu
#    :rows: memory-state-tensor memory-state-memmap memory-state-list memory-pixels-tensor
#           memory-pixels-memmap memory-pixels-list
#    :metrics: anonymous_per_row disk_per_row
#    :caption: Growth of a process that only fills one buffer, for each row of the record
#
# A sample of 256 small states takes
# :measured:`replay_buffers@cpu:state-sample-tensor:access_time` from a ``LazyTensorStorage``,
# :measured:`replay_buffers@cpu:state-sample-memmap:access_time` from files that are still in
# memory, and :measured:`replay_buffers@cpu:state-sample-list:access_time` from a list. The time of
# the samplers by number of rows is in :ref:`performance-replay_buffers-samplers`.
