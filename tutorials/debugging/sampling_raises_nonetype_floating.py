"""
Sampling raises "NoneType has no is_floating_point"
===================================================

The buffer rebuilds next observations when you sample. That works with CartPole. With some
environments, the first ``sample()`` raises an AttributeError that names neither a key nor the
transform.

:Subsystem: memory and storage
:Effect: loud
:Cause: By default, ``NextStateReconstructor`` rebuilds the key ``"observation"``. The observation
   of this environment has another key.
:Fix: Pass the keys of the observations, for example ``NextStateReconstructor(["pixels"], ...)``.
:Source: :source:`torchrl.envs.transforms.NextStateReconstructor.forward`
:Behind it: :doc:`/tutorials/memory/memory_efficient_rl`
:Threads: :thread:`3743`
:Also called: pixels, nested observation, agents, NoneType, NextStateReconstructor, missing key
"""

# %%
# Break it
# --------

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import Compose, GymEnv, RenameTransform, StepCounter, TransformedEnv
from torchrl.envs.transforms import NextStateReconstructor

rename = RenameTransform(in_keys=["observation"], out_keys=["position"])
env = TransformedEnv(GymEnv("CartPole-v1"), Compose(rename, StepCounter()))
env.set_seed(0)
torch.manual_seed(0)
collector = Collector(
    env, None, frames_per_batch=100, total_frames=-1, compact_obs=True
)
batch = next(iter(collector)).clone()
collector.shutdown()


def buffer_with(rebuild):
    replay_buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100),
        sampler=SliceSampler(slice_len=5, traj_key=("collector", "traj_ids")),
        transform=rebuild,
        batch_size=20,
    )
    replay_buffer.extend(batch)
    return {"replay_buffer": replay_buffer}


def error_of(replay_buffer):
    try:
        replay_buffer.sample()
    except (AttributeError, KeyError) as error:
        return error


rebuild = NextStateReconstructor(step_count_key="step_count")
replay_buffer = buffer_with(rebuild)["replay_buffer"]
broken = {"error": error_of(replay_buffer)}
error = broken["error"]
print(f"{type(error).__name__}: {error}")
assert "'NoneType' object has no attribute 'is_floating_point'" in str(error), (
    "no longer reproduces: another message, or none"
)

# %%
# Check it
# --------


def check(storage, rebuild):
    row = storage.get(0)
    return {
        "rebuilt": rebuild.keys,
        "not stored": [k for k in rebuild.keys if k not in row],
    }


unhealthy = check(replay_buffer.storage, rebuild)
print(unhealthy)
assert unhealthy["not stored"] == ["observation"], (
    "no longer reproduces: the key is there"
)

# %%
# Fix it
# ------

rebuild = NextStateReconstructor(["position"], step_count_key="step_count")
fixed = buffer_with(rebuild)
assert error_of(fixed["replay_buffer"]) is None, (
    "the fix does not work: it still raises"
)
healthy = check(fixed["replay_buffer"].storage, rebuild)
print(healthy)
assert healthy["not stored"] == [], "the fix does not work: another key is missing"
