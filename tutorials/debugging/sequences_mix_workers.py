"""
Sequences mix the episodes of two workers
=========================================

Several workers fill one buffer. Sampled sequences jump from one episode into another after a row
that is not done. TorchRL only warns, when you make the collector.

:Subsystem: trajectories and slices
:Effect: silent
:Cause: The workers take turns to write their batches, so an unfinished episode of one worker is
   followed by rows of another. A sampler that cuts only at ``done`` sees no end there.
:Fix: Pass ``trajs_per_batch=1`` to the collector, so that workers write whole episodes. Or leave
   out ``end_key``, so that the sampler cuts at trajectory ids.
:Source: :source:`torchrl.data.SliceSampler._get_stop_and_length`
   :source:`torchrl.collectors.MultiCollector._check_replay_buffer_init`
:Behind it: :ref:`replay-writers`
:Threads: :thread:`3618`
:Also called: A SliceSampler is used with a multi-process collector, shared buffer, interleaved
"""

# %%
# Break it
# --------
#
# Two workers write ten frames at a time. They start by ``fork``, so this script needs no main
# guard. With ``shared_init=True``, the storage is in files that both workers map, so both write to
# the same storage.

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
# All rows of a slice should have the same trajectory id.


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
