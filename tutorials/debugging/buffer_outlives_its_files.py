"""
The buffer works, but its files are gone
========================================

A run with a memory-mapped buffer works for days. After it ends or crashes, the folder of the buffer
is gone. Sampling and extending raised nothing.

:Subsystem: memory and storage
:Effect: silent
:Cause: Something deleted the folder during the run, such as a ``with`` block that ended or a job
   that cleans ``/tmp``. The open mapping keeps the data readable until the process ends.
:Fix: Give the storage ``scratch_dir=tempfile.mkdtemp()`` and ``auto_cleanup=True``, so that the
   folder lives as long as the buffer. If a job cleans ``/tmp``, choose another place with
   ``mkdtemp(dir=...)``. Call ``dumps`` to save rows that have to outlive the run.
:Source: :source:`torchrl.data.LazyMemmapStorage.__init__`,
   :source:`torchrl.data.LazyMemmapStorage.cleanup`
:Behind it: :doc:`/tutorials/memory/buffers_on_disk`
:Threads: none found
:Also called: scratch_dir deleted, TemporaryDirectory, lost buffer, tmp cleaner, checkpoint empty
"""

# %%
# Break it
# --------
#
# The ``with`` block deletes the folder while the buffer is in use. Before that, the folder holds
# two files:

import tempfile
from pathlib import Path

import torch
from tensordict import TensorDict
from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer

rows = TensorDict({"reward": torch.arange(8.0).unsqueeze(-1)}, [8])


def buffer_in(folder, **options):
    storage = LazyMemmapStorage(100, scratch_dir=folder, **options)
    replay_buffer = TensorDictReplayBuffer(storage=storage, batch_size=4)
    replay_buffer.extend(rows)
    return {"replay_buffer": replay_buffer}


with tempfile.TemporaryDirectory() as folder:
    broken = buffer_in(folder)
    while_open = sorted(path.name for path in Path(folder).glob("*.memmap"))

print(while_open)
broken["replay_buffer"].extend(rows)
assert len(broken["replay_buffer"].sample()) == 4, (
    "no longer reproduces: sampling stops"
)

# %%
# Check it
# --------


def check(storage):
    files = list(Path(storage.scratch_dir).glob("*.memmap"))
    return {"rows": len(storage), "files": len(files)}


unhealthy = check(broken["replay_buffer"].storage)
print(unhealthy)
assert unhealthy == {"rows": 16, "files": 0}, (
    "no longer reproduces: the files are there"
)

# %%
# As long as the process keeps the buffer, nothing is lost: ``dumps`` writes what the mapping holds.

with tempfile.TemporaryDirectory() as folder:
    broken["replay_buffer"].dumps(folder)
    rescued = TensorDictReplayBuffer(storage=LazyMemmapStorage(100), batch_size=4)
    rescued.loads(folder)
    print({"rescued rows": len(rescued)})
    assert torch.equal(rescued[:]["reward"], torch.cat([rows["reward"]] * 2))

# %%
# Fix it
# ------
#
# The storage deletes this folder when the storage itself is deleted, and when the process exits
# (not if it is killed with ``SIGKILL``). Ctrl+C also deletes the folder, even if the process goes
# on.

fixed = buffer_in(tempfile.mkdtemp(), auto_cleanup=True)
healthy = check(fixed["replay_buffer"].storage)
print(healthy)
assert healthy["files"] == len(while_open) > 0, "the fix does not work: no files"

# %%
# Do not copy or pickle such a buffer: :ref:`a copy deletes the same folder
# <symptom-files-gone-after-a-copy>`.
