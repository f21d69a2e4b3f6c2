"""
Workers raise "Cannot re-initialize CUDA in forked subprocess"
==============================================================

The script works with a ``Collector``. With a multi-process collector or a ``ParallelEnv``, a worker
raises as soon as it touches the GPU.

:Subsystem: devices
:Effect: loud
:Cause: The workers are forked from a process that has used CUDA, and a forked process cannot use
   CUDA again. TorchRL starts workers with ``spawn``, unless your code or a library has set
   ``fork``.
:Fix: Start the workers with ``spawn``: remove ``set_start_method("fork")`` and
   ``mp_start_method="fork"``. If you need ``fork``, keep the environments and the policy of the
   workers on the CPU.
:Source: :source:`torchrl._utils._get_default_mp_start_method`
:Behind it: :term:`start method`
:Threads: :thread:`2235`
:Also called: CUDA in child processes, CUDA tensors in workers, CUDA error initialization error,
   spawn or fork with a GPU, GPU environment in ParallelEnv, bad fork
"""

# %%
# Break it
# --------
#
# This page simulates a GPU: a forked process is told that its parent has used CUDA. PyTorch then
# raises as with a GPU. ``collect(...)`` starts a worker with ``fork`` and takes one batch.
#
# .. fold:: Imports, the simulation, and how a worker starts

import multiprocessing
import os
import warnings
from unittest import mock

import torch
from torchrl.collectors import MultiSyncCollector
from torchrl.envs import GymEnv

warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
MAIN_PROCESS = os.getpid()
cuda_was_used = mock.patch.multiple(
    torch.cuda,
    is_initialized=lambda: os.getpid() == MAIN_PROCESS,
    _is_in_bad_fork=lambda: os.getpid() != MAIN_PROCESS,
)
cuda_was_used.start()


def collect(make_env):
    multiprocessing.set_start_method("fork", force=True)
    options = {"frames_per_batch": 20, "total_frames": 20}
    collector = MultiSyncCollector([make_env], **options)
    try:
        return [batch.clone() for batch in collector]
    finally:
        collector.shutdown()


# %%

broken = {}
try:
    collect(lambda: GymEnv("CartPole-v1", device="cuda"))
except RuntimeError as error:
    broken["error"] = error
    print(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
for worker in multiprocessing.active_children():
    worker.kill()
    worker.join()

assert "Cannot re-initialize CUDA" in str(broken.get("error")), (
    "no longer reproduces: a forked worker uses CUDA"
)

# %%
# Check it
# --------
#
# Call ``check()`` just before the workers start.


def check():
    method = multiprocessing.get_start_method()
    return {"start method": method, "CUDA was used": torch.cuda.is_initialized()}


unhealthy = check()
print(unhealthy)
assert unhealthy == {"start method": "fork", "CUDA was used": True}, (
    "no longer reproduces: workers are not forked"
)

# %%
# ``torch.zeros(1, device="cuda")``, ``model.to("cuda")`` and ``torch.cuda.set_device`` use CUDA.
# After ``torch.cuda.is_available()``, forked workers raise too, although ``is_initialized()`` is
# False. ``PYTORCH_NVML_BASED_CUDA_CHECK=1`` prevents this.
#
# Fix it
# ------
#
# ``spawn`` is TorchRL's default. With it, your script needs a ``__main__`` guard:
# :ref:`symptom-workers-run-the-script-again`.

multiprocessing.set_start_method("spawn", force=True)
healthy = check()
print(healthy)
assert healthy["start method"] != "fork", "the fix does not work: workers are forked"

# %%
# If you need ``fork``, let the workers step on the CPU, and move the batch to the GPU.

fixed = {}
batches = collect(lambda: GymEnv("CartPole-v1"))
cuda_was_used.stop()

assert batches[0].numel() == 20, "the fix does not work: no batch"
