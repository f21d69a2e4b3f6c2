"""
The files of a buffer are gone after a copy is deleted
======================================================

You loaded a pickled buffer, copied one with ``deepcopy``, or got one from a queue. Some time later,
the folder of the original is gone, with everything else in it. The original still samples, but a
pickled buffer no longer loads.

:Subsystem: memory and storage
:Effect: silent
:Cause: With a ``scratch_dir`` and ``auto_cleanup=True``, a storage deletes this folder when the
   storage itself is deleted. A copy has the same folder and does the same.
:Fix: Pass ``auto_cleanup=False`` if you pickle, copy or send the buffer, and delete the folder
   yourself. For a copy with files of its own, call ``dumps`` and ``loads``.
:Source: :source:`torchrl.data.LazyMemmapStorage.cleanup`
:Behind it: :doc:`/tutorials/memory/buffers_on_disk`
:Threads: none found
:Also called: deepcopy, pickle, torch.save of a buffer, queue, checkpoint loads only once, lost data
"""

# %%
# Break it
# --------
#
# A pickled buffer is loaded twice, and nobody keeps the second copy.

import copy
import gc
import pickle
import tempfile
from pathlib import Path

import torch
from tensordict import TensorDict
from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer

rows = TensorDict({"reward": torch.arange(8.0).unsqueeze(-1)}, [8])


def buffer_in(folder, **options):
    storage = LazyMemmapStorage(100, scratch_dir=folder, **options)
    return TensorDictReplayBuffer(storage=storage, batch_size=4)


folder = tempfile.mkdtemp()
original = buffer_in(folder, auto_cleanup=True)
original.extend(rows)
saved = pickle.dumps(original)
broken = {"replay_buffer": pickle.loads(saved)}
pickle.loads(saved)
gc.collect()
assert len(original.sample()) == 4, "no longer reproduces: sampling stops"

# %%
# Check it
# --------


def check(storage):
    folder = Path(storage.scratch_dir)
    return {"folder": folder.is_dir(), "deleted with a copy": storage._auto_cleanup}


unhealthy = check(original.storage)
print(unhealthy)
assert not unhealthy["folder"], "no longer reproduces: the folder is there"

# %%
# The pickled buffer has only the names of its files, so it cannot be loaded any more:

try:
    pickle.loads(saved)
except RuntimeError as error:
    said = str(error).replace(folder, "folder")
    print(f"RuntimeError: {said}")

assert "No such file" in said

# %%
# ``torch.save`` pickles as well, and so does a queue between processes. When the other process
# deletes its copy, the folder is gone for both.
# :claim:`a-copy-in-another-process-deletes-the-folder` With ``deepcopy``, the same happens:

other = buffer_in(tempfile.mkdtemp(), auto_cleanup=True)
other.extend(rows)
copy.deepcopy(other)
gc.collect()
assert not check(other.storage)["folder"], "no longer reproduces: deepcopy is harmless"

# %%
# Fix it
# ------
#
# Let the ``with`` block own the folder, for as long as the run lasts:

with tempfile.TemporaryDirectory() as folder:
    original = buffer_in(folder, auto_cleanup=False)
    original.extend(rows)
    saved = pickle.dumps(original)
    pickle.loads(saved)
    copy.deepcopy(original)
    gc.collect()
    healthy = check(original.storage)
    print(healthy)
    assert healthy["folder"], "the fix does not work: the folder is gone"
    assert len(pickle.loads(saved)) == len(rows), "the fix does not work: no rows"

# %%
# ``dumps`` writes the rows, and ``loads`` reads them into the files of another storage:

original = buffer_in(tempfile.mkdtemp(), auto_cleanup=True)
original.extend(rows)
fixed = {"replay_buffer": buffer_in(tempfile.mkdtemp(), auto_cleanup=True)}
with tempfile.TemporaryDirectory() as saved:
    original.dumps(saved)
    fixed["replay_buffer"].loads(saved)

del original
gc.collect()
assert check(fixed["replay_buffer"].storage)["folder"], "the fix does not work"
assert torch.equal(fixed["replay_buffer"][:]["reward"], rows["reward"])
