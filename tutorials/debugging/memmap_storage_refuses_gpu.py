"""
A memory-mapped buffer refuses the GPU
======================================

A script works on the CPU. You then pass ``device="cuda"`` everywhere in it, and it raises where it
makes the storage of the buffer.

:Subsystem: memory and storage
:Effect: loud
:Cause: A memory-mapped tensor is a file that the operating system maps into the memory of the
   CPU, so no other device can hold it.
:Fix: Leave the storage on the CPU and move the samples, in the training loop or with
   ``replay_buffer.append_transform(lambda batch: batch.to(device))``.
:Source: :source:`torchrl.data.LazyMemmapStorage.__init__`
:Behind it: :doc:`/tutorials/memory/buffers_on_disk`
:Threads: :thread:`2515`
:Also called: Memory map device other than CPU isn't supported, cuda, LazyMemmapStorage, device
"""

# %%
# Break it
# --------
#
# The device ``"meta"``, which every machine has, stands in for a GPU. The storage refuses both with
# the same error.

import torch
from tensordict import TensorDict
from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer

device = torch.device("meta")
broken = {}
try:
    LazyMemmapStorage(100, device=device)
except ValueError as error:
    broken["error"] = error
    print(f"{type(error).__name__}: {error}")
assert "device other than CPU isn't supported" in str(broken.get("error")), (
    "no longer reproduces: the storage takes another device"
)

# %%
# Check it
# --------
#
# Print the devices of the storage and of a sample.


def check(storage, sample):
    return {"storage": str(storage.device), "sample": str(sample.device)}


storage = LazyMemmapStorage(100)
replay_buffer = TensorDictReplayBuffer(storage=storage, batch_size=4)
replay_buffer.extend(TensorDict({"reward": torch.ones(8, 1)}, [8]))
unhealthy = check(storage, replay_buffer.sample())
print(unhealthy)
assert unhealthy["sample"] != "meta", "no longer reproduces: samples move by themselves"

# %%
# Fix it
# ------
#
# Only the rows of a sample are moved. To avoid even that, keep the whole buffer on the GPU, in a
# ``LazyTensorStorage(size, device="cuda")``, if it fits.

fixed = {"replay_buffer": replay_buffer}
healthy = check(storage, replay_buffer.sample().to(device))
print(healthy)
assert healthy == {"storage": "cpu", "sample": "meta"}, "the fix does not work"
