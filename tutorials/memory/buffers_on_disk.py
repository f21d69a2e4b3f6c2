"""
Buffers on disk
===============

A replay buffer can be larger than memory. With a ``scratch_dir``, ``LazyMemmapStorage`` keeps its
rows in files. The system caches their pages, and evicts them when it needs memory.

.. redirect-from:: tutorials/memory/memory_efficient_rl.html#buffers-larger-than-memory
"""

# %%
# .. fold:: Imports, a rollout, and a folder that is deleted at the end

import inspect
import multiprocessing
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torchrl
from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.data import LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv

SEED, N_FRAMES = 0, 200
torch.manual_seed(SEED)
torch.set_num_threads(1)
torchrl.logger.setLevel("ERROR")  # it announces each storage
env = GymEnv("CartPole-v1")
env.set_seed(SEED)
collector = Collector(env, frames_per_batch=200, total_frames=200, compact_obs=True)
batch = next(iter(collector))
collector.shutdown()
scratch = tempfile.TemporaryDirectory(prefix="buffers_on_disk_")
folder = Path(scratch.name)

# %%
# Copy this code. Always pass ``scratch_dir``: without it, the buffer fills shared memory. Move a
# batch from the GPU to the CPU before you extend the buffer.

buffer = TensorDictReplayBuffer(
    storage=LazyMemmapStorage(1_000, scratch_dir=folder / "replay"), batch_size=64
)
buffer.extend(batch.cpu())
sample = buffer.sample()
buffer.dumps(folder / "checkpoint")  # rows, and the position of the writer

# %%
# .. list-table:: What do you want to do?
#    :header-rows: 1
#
#    * - You want
#      - Use
#      - Note
#    * - a buffer larger than memory
#      - ``LazyMemmapStorage``, with a ``scratch_dir``
#      - a file for each entry, for the full capacity
#    * - a buffer in memory
#      - ``LazyTensorStorage``
#      - the first ``extend`` reserves the full capacity
#    * - to keep a buffer when the process ends
#      - ``dumps``, then ``loads``
#      - a ``scratch_dir`` of its own for each buffer
#    * - to go on with the files in ``scratch_dir``
#      - ``dumps``, then ``loads``: the files alone are not read
#      - ``existsok=True`` overwrites them
#
# The size of a row: :doc:`memory_efficient_rl`. The speed: :doc:`/performance/replay_buffers`.
#
# What lands on disk
# ------------------
#
# With the first rows, the storage makes one file for each entry, for the *full* capacity. Each row
# has one integer more than in the batch: its index in the buffer. On a file system with sparse
# files, disk space is used only as rows are written.


def bytes_on_disk(folder):
    return sum(file.stat().st_size for file in Path(folder).rglob("*.memmap"))


frame_bytes = batch.bytes() // N_FRAMES
predicted = 1_000 * (frame_bytes + 8)  # the index is an int64

assert bytes_on_disk(folder / "replay") == predicted
assert torch.equal(buffer[:]["observation"], batch["observation"])
print(f"{len(buffer)} rows written")
print(f"predicted {predicted:,} bytes, found {bytes_on_disk(folder / 'replay'):,}")

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    ``LazyMemmapStorage(capacity)`` without ``scratch_dir``. Its files take memory, not disk: they
#    are in shared memory, which containers often limit separately.
#
# .. fold:: Find the file behind a tensor, on Linux

ON_LINUX = sys.platform == "linux"


def mapped_file(tensor):
    """Path of the file that backs a tensor, from the memory map of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, _, _, _, *path = line.split(maxsplit=5)
        start, end = (int(address, 16) for address in addresses.split("-"))
        if start <= tensor.data_ptr() < end:
            return " ".join(path)
    raise LookupError("the tensor is in no mapping of this process")


def memmap_buffer(name=None, **options):
    if name:
        options["scratch_dir"] = folder / name
    storage = LazyMemmapStorage(1_000, **options)
    return TensorDictReplayBuffer(storage=storage, batch_size=64)


# %%
# Find the file of the observations, with ``scratch_dir`` and without:

in_shared_memory = memmap_buffer()
in_shared_memory.extend(batch.cpu())
if ON_LINUX:
    with_dir = mapped_file(buffer[:]["observation"])
    without_dir = mapped_file(in_shared_memory[:]["observation"])
    assert with_dir.startswith(str(folder.resolve()))
    assert without_dir.startswith("/dev/shm/")
    print("with scratch_dir: a file in that directory; without: /dev/shm")
del in_shared_memory

# %%
# Two buffers, one directory
# --------------------------
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    A second buffer on the same directory. By default, its first ``extend`` raises. The docstring
#    has ``existsok`` backwards: False raises, and is the default. True does not reopen the buffer:
#    it starts an empty one, which writes over the same files.

assert inspect.signature(LazyMemmapStorage).parameters["existsok"].default is False
second = memmap_buffer("replay")
assert len(second) == 0  # the files are not read
try:
    second.extend(batch.cpu())
except RuntimeError as error:
    assert "already exists" in str(error)
    print("RuntimeError: the file already exists")
else:
    raise AssertionError("a second buffer took over the directory")

# %%
# To keep a buffer, use ``dumps`` and ``loads``. They carry the rows and the position of the writer,
# so the next ``extend`` appends to what was loaded:

loaded = memmap_buffer("reloaded")
assert bytes_on_disk(folder / "reloaded") == 0
loaded.loads(folder / "checkpoint")
assert len(loaded) == len(buffer) == N_FRAMES
assert (loaded[:] == buffer[:]).all()
loaded.extend(batch.cpu())
assert len(loaded) == 2 * N_FRAMES
print(f"{N_FRAMES} rows loaded, {len(loaded)} after the next extend")

# %%
# This is what ``existsok=True`` does to the buffer that was there first:

taker = memmap_buffer("reloaded", existsok=True)
taker.extend(torch.zeros_like(batch.cpu()))
assert (loaded[:]["observation"][:N_FRAMES] == 0).all()
print("the rows of the loaded buffer are overwritten")

# %%
# A buffer larger than the memory limit
# -------------------------------------
#
# .. redirect-from:: tutorials/memory/buffers_on_disk.html#larger-than-the-limit
#
# Let a child process try to write eight chunks of pixels to a buffer in memory, and to one on disk.
# Its memory limit, ``RLIMIT_DATA``, leaves room for three chunks; the capacity of each buffer is
# above the limit.
#
# .. fold:: A child with a memory limit, which fills both buffers with pixels

PIXELS, FRAME_BYTES = (4, 84, 84), 4 * 84 * 84
CHUNK_FRAMES = 128
WRITTEN_FRAMES = 8 * CHUNK_FRAMES
ROOM_BYTES = 3 * CHUNK_FRAMES * FRAME_BYTES


def process_bytes(field):
    """One field of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


def gray_frames(first):
    """Frames that carry their own number as gray level."""
    number = torch.arange(first, first + CHUNK_FRAMES)
    gray = (number % 256).to(torch.uint8).view(-1, 1, 1, 1)
    pixels = gray.expand(CHUNK_FRAMES, *PIXELS)
    return TensorDict({"number": number, "pixels": pixels}, [CHUNK_FRAMES])


def fill_and_check(storage):
    rb = TensorDictReplayBuffer(storage=storage, batch_size=64)
    for first in range(0, WRITTEN_FRAMES, CHUNK_FRAMES):
        rb.extend(gray_frames(first))
    sample = rb.sample()
    expected = (sample["number"] % 256).to(torch.uint8)
    return len(rb), bool((sample["pixels"].flatten(1) == expected.unsqueeze(-1)).all())


def child_under_limit(connection, folder):
    import resource

    limit = process_bytes("VmData") + ROOM_BYTES
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))
    capacity = 1 + (limit + limit // 10) // FRAME_BYTES
    anonymous = process_bytes("RssAnon")
    report = {"capacity > limit": capacity * FRAME_BYTES > limit}
    try:
        report["tensor"] = fill_and_check(LazyTensorStorage(capacity))
    except RuntimeError as error:
        report["tensor"] = "can't allocate memory" in str(error)
    report["memmap"] = fill_and_check(LazyMemmapStorage(capacity, scratch_dir=folder))
    grown = process_bytes("RssAnon") - anonymous
    written = WRITTEN_FRAMES * FRAME_BYTES
    report["written > room > grown"] = written > ROOM_BYTES > grown
    connection.send(report)


# From Python 3.12 on, forking a process that has threads warns. The child uses one
# thread and no accelerator, so that message is expected.
warnings.filterwarnings("ignore", message=r".*fork\(\) may lead to deadlocks")


def run_child(target, folder):
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    child = fork.Process(target=target, args=(sender, folder))
    child.start()
    sender.close()
    try:
        assert receiver.poll(timeout=60), "the child did not answer"
        return receiver.recv()
    finally:
        receiver.close()
        child.join()
        child.close()


# %%
# The limit counts the tensors of ``LazyTensorStorage``, but not the pages of the files:

if ON_LINUX:
    report = run_child(child_under_limit, folder / "limited")
    assert report["capacity > limit"]
    assert report["written > room > grown"]
    assert report["tensor"] is True  # it raised: can't allocate memory
    assert report["memmap"] == (WRITTEN_FRAMES, True)
    print("LazyTensorStorage: cannot allocate its capacity under the limit")
    print(f"LazyMemmapStorage: {WRITTEN_FRAMES:,} rows written, the sample is right")

# %%
# Where it stops being true
# -------------------------
#
# * A container also counts file pages while they are in memory. The system can write these pages
#   back to their files, but it can only swap shared memory.
# * Random access to a row that is not in memory runs at the speed of the disk.
# * Keep the directory as long as you need the data. If you delete it, the buffer goes on sampling
#   without an error, and no file is left.

shutil.rmtree(folder / "replay")
assert buffer.sample().numel() == 64
assert not (folder / "replay").exists()

# %%
# .. fold:: Clean up: the buffers go first, then the files they map

del buffer, second, loaded, taker
scratch.cleanup()
assert not folder.exists()
assert not multiprocessing.active_children()

# %%
# To size a buffer: :doc:`/reference/memory_planner`. The symptoms:
# :ref:`symptom-memmap-buffer-fills-memory`, :ref:`symptom-buffer-file-already-exists`,
# :ref:`symptom-buffer-outlives-its-files`, :ref:`symptom-files-gone-after-a-copy`,
# :ref:`symptom-memmap-storage-refuses-gpu`.
