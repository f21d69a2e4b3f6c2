"""
Sequences mix the episodes of two workers
=========================================

Several workers fill one buffer. Sampled sequences jump from one episode into another, in a row that
is not done. A warning at the start is easily missed.

:Subsystem: trajectories and slices
:Effect: silent
:Cause: The workers write their batches in turns, so rows of another worker follow the
   unfinished episode of one. A sampler that cuts only at ``done`` sees no end there.
:Fix: Give ``trajs_per_batch`` to the collector, so that workers write whole episodes; or drop
   ``end_key``, so that the sampler cuts at trajectory ids.
:Decided in: :source:`torchrl.data.SliceSampler._get_stop_and_length`
   :source:`torchrl.collectors.MultiCollector._check_replay_buffer_init`
:Behind it: :ref:`replay-writers`
:Threads: :thread:`3618`
:Also called: A SliceSampler is used with a multi-process collector, shared buffer, interleaved
"""

# %%
# Break it
# --------
#
# Two workers, ten frames at a time. They start by ``fork``, which needs no main guard in this
# script. With ``shared_init=True``, the storage is in files that both map, so that they write to
# the same one.

import multiprocessing
import warnings

import torch
from torchrl.collectors import MultiSyncCollector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import GymEnv

SLICE_LEN = 4


def fill(heard, **options):
    start_method = multiprocessing.get_start_method()
    multiprocessing.set_start_method("fork", force=True)
    storage = LazyTensorStorage(400, shared_init=True)
    sampler = SliceSampler(slice_len=SLICE_LEN, end_key=("next", "done"))
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=2000)
    make_env = [lambda: GymEnv("CartPole-v1")] * 2
    frames = {"frames_per_batch": 20, "total_frames": 200}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        collector = MultiSyncCollector(
            make_env, None, **frames, **options, replay_buffer=buffer
        )
    heard.extend(one for one in caught if one.category is UserWarning)
    collector.set_seed(0)
    for _ in collector:
        pass
    collector.shutdown()
    multiprocessing.set_start_method(start_method, force=True)
    return {"replay_buffer": buffer, "collector": collector}


heard = []
broken = fill(heard)
for warning in heard:
    print(f"{warning.category.__name__}: {warning.message}")

# %%
# Check it
# --------
#
# All rows of a slice have the same trajectory id.


def check(sample, slice_len):
    ids = sample["collector", "traj_ids"].reshape(-1, slice_len)
    return {"slices": len(ids), "some are mixed": bool((ids != ids[:, :1]).any())}


torch.manual_seed(0)
unhealthy = check(broken["replay_buffer"].sample(), SLICE_LEN)
print(unhealthy)
gone = "no longer reproduces: no slice crosses from one worker to another"
assert unhealthy["some are mixed"], gone
assert any("SliceSampler" in str(one.message) for one in heard), gone

# %%
# Fix it
# ------

fixed = fill(heard, trajs_per_batch=1)
healthy = check(fixed["replay_buffer"].sample(), SLICE_LEN)
print(healthy)
assert not healthy["some are mixed"], "the fix does not work"
