"""
A memory-mapped buffer fills the memory, not the disk
=====================================================

You gave the buffer a ``LazyMemmapStorage``, so that it can be larger than the memory. But the
memory fills as before, the disk stays empty, and in a container the process may die with a bus
error.

:Subsystem: memory and storage
:Effect: silent
:Cause: On Linux without ``scratch_dir``, the tensors are mapped to unnamed files in ``/dev/shm``,
   which is part of RAM and not on a disk.
:Fix: Give the storage a folder on a disk: ``LazyMemmapStorage(size, scratch_dir=folder)``.
:Source: :source:`torchrl.data.LazyMemmapStorage._init_standard`
:Behind it: :doc:`/tutorials/memory/buffers_on_disk`
:Threads: none found
:Also called: /dev/shm full, out of memory, killed, bus error, docker shm size, scratch_dir
"""

# %%
# Break it
# --------
#
# Fill a buffer with stacks of frames, without a folder.

import tempfile
from pathlib import Path

import torch
from tensordict import TensorDict
from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer

frames = TensorDict({"pixels": torch.ones(400, 4, 84, 84, dtype=torch.uint8)}, [400])


def memory_of_process():
    """Bytes of shared memory and of files that the process holds; Linux only."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    rows = (line.split() for line in lines if line.startswith(("RssShmem", "RssFile")))
    return {name.rstrip(":"): int(number) * 1024 for name, number, _ in rows}


def fill(**options):
    storage = LazyMemmapStorage(1_000, **options)
    replay_buffer = TensorDictReplayBuffer(storage=storage, batch_size=4)
    replay_buffer.extend(frames)
    return {"replay_buffer": replay_buffer}


before = memory_of_process()
broken = fill()
after = memory_of_process()

# %%
# Check it
# --------
#
# Look for the files of the storage, and count their bytes. A storage without a folder has none.


def check(storage):
    folder = Path(storage.scratch_dir) if storage.scratch_dir else None
    sizes = [file.stat().st_size for file in folder.rglob("*.memmap")] if folder else []
    return {"rows": len(storage), "files": len(sizes), "bytes on disk": sum(sizes)}


unhealthy = check(broken["replay_buffer"].storage)
print(unhealthy)
assert unhealthy["files"] == 0, "no longer reproduces: the storage made itself a folder"

# %%
# The rows are in memory: the shared memory of the process grew by at least the bytes that were
# written.

if before:
    grown = after["RssShmem"] - before["RssShmem"]
    print({"written to memory": grown >= frames.bytes()})
    assert grown >= frames.bytes(), "no longer reproduces: the rows are not in memory"

# %%
# So you save no memory, and you may have even less room than before, because a container often has
# a small ``/dev/shm``. A single tensor that is larger than the free space there goes to an unnamed
# file in the temporary folder instead. But if each tensor fits alone and all together do not, the
# process may die while it fills them.
#
# Fix it
# ------
#
# With files in a folder, the operating system can drop rows from memory and read them from disk
# when you sample them. Do not use ``/tmp`` if it is itself in memory, as on some systems.
# ``auto_cleanup`` deletes the folder together with the storage.

fixed = fill(scratch_dir=tempfile.mkdtemp(), auto_cleanup=True)
healthy = check(fixed["replay_buffer"].storage)
print(healthy)
assert healthy["bytes on disk"] > frames.bytes(), "the fix does not work: no files"
