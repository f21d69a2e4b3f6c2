"""
Extending a buffer raises "The file already exists"
===================================================

The run was interrupted and starts again, with the same folder for its memory-mapped buffer. The
buffer has no rows, and the first ``extend`` raises.

:Subsystem: memory and storage
:Effect: loud
:Cause: A storage creates its files in ``scratch_dir``. It does not read the files that an earlier
   run left there, and by default refuses to overwrite them.
:Fix: Save the buffer with ``dumps``. After the restart, make a buffer in a new folder and call
   ``loads``. If you do not need the old rows, delete the old folder.
:Source: :source:`torchrl.data.LazyMemmapStorage._init_standard`
:Behind it: :doc:`/tutorials/memory/buffers_on_disk`
:Threads: :thread:`2437`, :thread:`3053`
:Also called: existsok, scratch_dir, resume, restart, checkpoint, memmap, interrupted run
"""

# %%
# Break it
# --------
#
# The first buffer stands for the earlier run, and the second one for the restart. The third one
# shows that ``existsok=True`` avoids the error and overwrites the rows of the first buffer.

import tempfile
from pathlib import Path

import torch
from tensordict import TensorDict
from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer

old = TensorDict({"reward": torch.ones(8, 1)}, [8])
new = TensorDict({"reward": torch.zeros(4, 1)}, [4])


def buffer_in(folder, **options):
    storage = LazyMemmapStorage(100, scratch_dir=folder, **options)
    return TensorDictReplayBuffer(storage=storage, batch_size=4)


broken = {}
with tempfile.TemporaryDirectory() as folder:
    first = buffer_in(folder)
    first.extend(old)
    second = buffer_in(folder)
    found = {"files": len(list(Path(folder).glob("*.memmap"))), "rows": len(second)}
    try:
        second.extend(new)
    except RuntimeError as error:
        broken["error"] = error
        print(f"RuntimeError: {str(error).replace(folder, 'folder')}")
    buffer_in(folder, existsok=True).extend(new)
    print({"rewards of the first buffer": first[:]["reward"].flatten().tolist()})

assert "already exists" in str(broken.get("error")), "no longer reproduces: it extends"
assert first[:4]["reward"].sum() == 0, "no longer reproduces: existsok does no harm"

# %%
# Check it
# --------
#
# Before the first ``extend``, count the files in the folder and the rows in the buffer.


def check(storage):
    files = list(Path(storage.scratch_dir).glob("*.memmap"))
    return {"files": len(files), "rows": len(storage)}


with tempfile.TemporaryDirectory() as folder:
    buffer_in(folder).extend(old)
    unhealthy = check(buffer_in(folder).storage)

print(unhealthy)
assert unhealthy == found == {"files": 2, "rows": 0}, (
    "no longer reproduces: the storage opens the files that it finds"
)

# %%
# Fix it
# ------
#
# ``dumps`` saves the rows and the position of the writer. The new storage has its own folder, which
# ``auto_cleanup`` deletes together with the storage.

fixed = {"replay_buffer": buffer_in(tempfile.mkdtemp(), auto_cleanup=True)}
with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as saved:
    earlier = buffer_in(folder)
    earlier.extend(old)
    earlier.dumps(saved)
    fixed["replay_buffer"].loads(saved)

fixed["replay_buffer"].extend(new)
healthy = check(fixed["replay_buffer"].storage)
print(healthy)
assert healthy == {"files": 2, "rows": 12}, "the fix does not work: rows are missing"
rewards = fixed["replay_buffer"][:]["reward"].flatten()
assert rewards.tolist() == [1] * 8 + [0] * 4, "the fix does not work: other rows"
