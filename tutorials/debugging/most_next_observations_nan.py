"""
Most next observations of a sample are NaN
==========================================

You sample single transitions from a buffer that was filled with ``compact_obs=True``. Training runs
and every advantage is finite. But most value targets are wrong, because hardly any row of a sample
has its next observation.

:Subsystem: memory and storage
:Effect: silent
:Cause: ``NextStateReconstructor`` takes the next observation from the following row of the
   *sample*. A random sampler puts an unrelated row there, so the transform writes NaN. The value
   estimator then replaces NaN with the current observation.
:Fix: Sample slices with ``SliceSampler(...)``, and pass ``step_count_key`` to the reconstructor. If
   you need single transitions, store both observations: leave out ``compact_obs``.
:Source: :source:`torchrl.envs.transforms.NextStateReconstructor.forward`,
   :source:`torchrl.objectives.value.ValueEstimatorBase._sanitize_next_obs_nan`
:Behind it: :doc:`/tutorials/memory/missing_next_observations`
:Threads: :thread:`3743`, :thread:`3744`
:Also called: NaN next state, RandomSampler, compact_obs, NextStateReconstructor
"""

# %%
# Break it
# --------
#
# Two samplers draw from the same compact rows. ``RandomSampler``, the default, draws each row on
# its own.

import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.data import (
    LazyTensorStorage,
    RandomSampler,
    SliceSampler,
    TensorDictReplayBuffer,
)
from torchrl.envs import GymEnv, StepCounter, TransformedEnv
from torchrl.envs.transforms import NextStateReconstructor
from torchrl.objectives.value import TD0Estimator

env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter())
env.set_seed(0)
torch.manual_seed(0)
collector = Collector(
    env, None, frames_per_batch=200, total_frames=-1, compact_obs=True
)
batch = next(iter(collector)).clone()
collector.shutdown()


def buffer_with(sampler):
    replay_buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(200),
        sampler=sampler,
        transform=NextStateReconstructor(step_count_key="step_count"),
        batch_size=64,
    )
    replay_buffer.extend(batch)
    return {"replay_buffer": replay_buffer}


broken = buffer_with(RandomSampler())

# %%
# Check it
# --------


def check(sample):
    missing = sample["next", "observation"].isnan().any(-1)
    return {"rows": len(sample), "no next observation": int(missing.sum())}


sample = broken["replay_buffer"].sample()
unhealthy = check(sample)
print(unhealthy)
assert unhealthy["no next observation"] > unhealthy["rows"] / 2, (
    "no longer reproduces: a random sample has most of its next observations"
)

# %%
# Why nothing complains
# ---------------------
#
# Before it calls its network, the estimator replaces NaN with the observation of the same row. So
# each of these rows bootstraps from its own observation.

network = TensorDictModule(torch.nn.Linear(4, 1), ["observation"], ["state_value"])
with torch.no_grad():
    target = TD0Estimator(gamma=0.99, value_network=network)(sample.clone())[
        "value_target"
    ]
    same = sample["next", "reward"] + 0.99 * network(sample.clone())["state_value"]
missing = sample["next", "observation"].isnan().any(-1) & ~sample["next", "done"][:, 0]
print({"finite": bool(target.isfinite().all())})
assert target.isfinite().all(), "no longer reproduces: the estimator lets NaN through"
assert torch.allclose(target[missing], same[missing]), (
    "no longer reproduces: the estimator does not take the current observation"
)

# %%
# Fix it
# ------
#
# In a slice, the following row is the next step. Only the last row of each slice lacks its next
# observation.

fixed = buffer_with(SliceSampler(slice_len=8, traj_key=("collector", "traj_ids")))
healthy = check(fixed["replay_buffer"].sample())
print(healthy)
assert healthy["no next observation"] <= healthy["rows"] / 8, "the fix does not work"
