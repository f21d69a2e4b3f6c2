"""
The first extend of a buffer takes all memory
=============================================

Everything is built, a few rows are collected, and the first ``extend`` fails with "can't allocate
memory". Or ``extend`` succeeds, and the process is killed without a traceback while the buffer
fills. The rows themselves are small.

:Subsystem: memory and storage
:Effect: loud
:Cause: ``LazyTensorStorage`` learns the size of a row from the first rows, and then allocates
   memory for ``max_size`` rows at once.
:Fix: Multiply ``max_size`` by the bytes of a row. If that is more than your memory, choose a
   smaller ``max_size`` or use ``LazyMemmapStorage`` with ``scratch_dir``. Store images as
   ``uint8``.
:Source: :source:`torchrl.data.LazyTensorStorage._init_standard`
:Behind it: :doc:`/how-to/size_a_replay_buffer`, :ref:`layout-bytes`
:Threads: :thread:`2065`, :thread:`914`
:Also called: out of memory when creating a replay buffer,
   OOM, killed, exit code 137, SIGKILL, DefaultCPUAllocator, max_size, float pixels
"""

# %%
# Break it
# --------
#
# The batch has ten transitions of stacked frames, and the buffer would need more memory than any
# machine has.

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

frames = torch.zeros(10, 4, 84, 84, dtype=torch.uint8)
batch = TensorDict({"pixels": frames, "next": {"pixels": frames}}, [10])


def buffer_of(max_size):
    storage = LazyTensorStorage(max_size)
    return {"replay_buffer": TensorDictReplayBuffer(storage=storage), "batch": batch}


broken = buffer_of(1_000_000_000_000)
one_more = buffer_of(broken["replay_buffer"].storage.max_size)["replay_buffer"]
try:
    one_more.extend(batch)
except RuntimeError as error:
    broken["error"] = error
    # The rest of the message depends on how torch was built.
    begin = str(error).index("DefaultCPUAllocator")
    print(f"RuntimeError: {str(error)[begin:].partition(' bytes')[0]} bytes.")
assert "can't allocate memory" in str(broken.get("error")), (
    "no longer reproduces: the storage grows with its rows"
)

# %%
# Check it
# --------
#
# Before any row is stored, compute from one batch how much memory the buffer will take.


def check(replay_buffer, batch):
    bytes_of_a_row = batch.bytes() // len(batch)
    total = bytes_of_a_row * replay_buffer.storage.max_size
    return {"bytes of a row": bytes_of_a_row, "GiB": round(total / 2**30, 2)}


unhealthy = check(broken["replay_buffer"], broken["batch"])
print(unhealthy)
assert unhealthy["GiB"] > 1e6, "the buffer would fit into a machine"

# %%
# Fix it
# ------

fixed = buffer_of(1_000)
fixed["replay_buffer"].extend(batch)
healthy = check(fixed["replay_buffer"], fixed["batch"])
print(healthy)
assert healthy["GiB"] < 0.1, "the fix does not work: still too large"
