"""
Prioritized replay never draws most of the rows
===============================================

Workers write into a buffer with a prioritized sampler, and it fills up. Training samples only the
rows that were there before the workers started.

:Subsystem: replay buffers
:Effect: silent
:Cause: Each process has its own copy of the priorities of a ``PrioritizedSampler``. A row that a
   worker writes gets a priority in the worker, but none in the process that samples.
:Fix: Make the buffer with ``TensorDictPrioritizedReplayBuffer(..., sync=False)``, which gives new
   rows their priorities before it samples. Or extend the buffer in the main process, with the
   batches of the workers.
:Source: :source:`torchrl.data.PrioritizedSampler.extend`
:Behind it: :doc:`/how-to/collect_in_background`
:Threads: :thread:`3714`
:Also called: PER with several workers, prioritized replay with MultiAsyncCollector, shared buffer
   with priorities, new data is never sampled, sampling old rows only, rows without a priority
"""

# %%
# Break it
# --------
#
# A warm-up fills a few rows, and a worker writes the others.
#
# .. fold:: Imports, buffer, and how a worker starts

import multiprocessing
import warnings

import torch
import torchrl
from torchrl.collectors import MultiSyncCollector
from torchrl.data import LazyMemmapStorage, TensorDictPrioritizedReplayBuffer
from torchrl.envs import GymEnv

torchrl.logger.setLevel("ERROR")
warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
multiprocessing.set_start_method("fork", force=True)


def collect(**options):
    sizes = {"frames_per_batch": 20, "total_frames": 100}
    return MultiSyncCollector([lambda: GymEnv("CartPole-v1")], **sizes, **options)


def fill(**options):
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=0.7, beta=0.5, storage=LazyMemmapStorage(200), batch_size=32, **options
    )
    buffer.extend(GymEnv("CartPole-v1").rollout(20, break_when_any_done=False))
    collector = collect(replay_buffer=buffer)
    for _ in collector:
        pass  # train
    collector.shutdown()
    return {"replay_buffer": buffer}


# %%

broken = fill()

# %%
# Check it
# --------
#
# Draw many samples, and count the different rows in them.


def check(replay_buffer):
    drawn = torch.cat([replay_buffer.sample()["index"] for _ in range(100)])
    return {"stored": len(replay_buffer), "drawn": len(drawn.unique())}


unhealthy = check(**broken)
print(unhealthy)
assert unhealthy == {"stored": 120, "drawn": 20}, (
    "no longer reproduces: rows of workers are drawn"
)

# %%
# Without a warm-up, ``sample()`` raises. With the start method ``spawn``, starting the worker
# raises instead.
#
# Fix it
# ------

fixed = fill(sync=False)
healthy = check(**fixed)
print(healthy)
assert healthy == {"stored": 120, "drawn": 120}, (
    "the fix does not work: rows are missing"
)
