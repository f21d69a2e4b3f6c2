"""
Prioritized replay: "SumSegmentTreeFp32 is not available"
=========================================================

A fresh installation works until you create a prioritized sampler. The error then refers to a
"warning above" that often was never printed.

:Subsystem: replay buffers
:Effect: loud
:Cause: The compiled part of TorchRL cannot be loaded, for example because it was built for another
   version of torch. The import hides this error, and the classes of the compiled part become
   ``None``.
:Fix: Install versions of torch and torchrl that belong together, or build torchrl from source.
   ``python -c "import torchrl._torchrl"`` shows the hidden error.
:Source: :source:`torchrl.data.PrioritizedSampler._init`
:Behind it: :ref:`performance-replay_buffers-priorities`
:Threads: :thread:`3508`, :thread:`1926`, :thread:`3112`
:Also called: C++ binaries, _torchrl, undefined symbol, ABI, PER, PrioritizedReplayBuffer, wheel
"""

# %%
# Break it
# --------
#
# This cell imitates an incomplete installation: it executes the file of the sampler once more,
# while ``torchrl._torchrl`` cannot be imported.

import importlib.util
import sys
from unittest import mock

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import prioritized


def without_compiled_part():
    spec = importlib.util.spec_from_file_location(
        f"{prioritized.__package__}.without_compiled_part", prioritized.__file__
    )
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {"torchrl._torchrl": None}):
        spec.loader.exec_module(module)
    return module


def buffer_with(module):
    sampler = module.PrioritizedSampler(max_capacity=100, alpha=0.7, beta=0.5)
    options = {"batch_size": 4, "priority_key": "td_error"}
    storage = LazyTensorStorage(100)
    replay_buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, **options)
    replay_buffer.extend(TensorDict({"td_error": torch.ones(8)}, [8]))
    return {"replay_buffer": replay_buffer}


incomplete = without_compiled_part()
broken = {}
try:
    buffer_with(incomplete)
except RuntimeError as error:
    broken["error"] = error
    print(f"{type(error).__name__}: {error}")
assert "SumSegmentTreeFp32 is not available" in str(broken.get("error")), (
    "no longer reproduces: the sampler works without its compiled part"
)

# %%
# Check it
# --------


def check(module):
    trees = ("SumSegmentTreeFp32", "MinSegmentTreeFp32")
    return {tree: getattr(module, tree) is not None for tree in trees}


unhealthy = check(incomplete)
print(unhealthy)
assert not any(unhealthy.values()), (
    "no longer reproduces: trees without the compiled part"
)

# %%
# Fix it
# ------
#
# With versions that belong together, the same code works. :doc:`/reference/torch_versions` lists
# which versions do.

fixed = buffer_with(prioritized)
healthy = check(prioritized)
print(healthy)
assert all(healthy.values()), "the fix does not work: the installed trees are None"
assert len(fixed["replay_buffer"].sample()) == 4, "the fix does not work: no sample"
