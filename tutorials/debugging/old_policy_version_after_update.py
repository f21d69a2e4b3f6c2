"""
The frame after an update has the old policy version
====================================================

With ``track_policy_version=True``, each frame should have the version of the policy that acted. But
after each update of the weights, the first frame of each environment has the old version. A sampler
that skips old frames can skip this frame.

:Subsystem: collectors
:Effect: silent
:Cause: A step writes the version beside the next observation. Unless the environment is reset
   between them, both move to the root of the next frame, so the root has the version of the step
   before.
:Fix: Read ``("next", "policy_version")``, as with
   ``StalenessAwareSampler(version_key=("next", "policy_version"))``.
:Source: :source:`torchrl.envs.llm.transforms.policy_version.PolicyVersion._step`
:Behind it: this page
:Threads: :thread:`3759`
:Also called: policy_version off by one, stale frame, track_policy_version, staleness, wrong version
"""

# %%
# Break it
# --------
#
# The version increases between two batches, so the new policy collects the whole second batch.

import torch
from torchrl.collectors import Collector
from torchrl.data import (
    LazyTensorStorage,
    StalenessAwareSampler,
    TensorDictReplayBuffer,
)
from torchrl.envs import GymEnv


def collect(version_key):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    collector = Collector(
        env,
        policy=None,
        frames_per_batch=6,
        total_frames=-1,
        track_policy_version=True,
    )
    sampler = StalenessAwareSampler(max_staleness=0, version_key=version_key)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100), sampler=sampler, batch_size=100
    )
    collector.next()
    collector.increment_version()
    sampler.increment_consumer_version()
    batch = collector.next()
    buffer.extend(batch)
    collector.shutdown()
    return {"batch": batch, "replay_buffer": buffer}


broken = collect(version_key="policy_version")

# %%
# Check it
# --------
#
# Pass the key that your code or the sampler reads. By default, the sampler reads the root.


def check(batch, key):
    read, acted = batch[key], batch["next", "policy_version"]
    return {"frames": len(batch), "old version": int((read < acted).sum())}


unhealthy = check(broken["batch"], "policy_version")
print(unhealthy)
assert unhealthy["old version"] == 1, (
    "no longer reproduces: the root has the new version"
)

# %%
# With ``max_staleness=0``, the sampler never draws that frame.

drawn = broken["replay_buffer"].sample()["index"].unique()
print("drawn:", drawn.tolist())
assert drawn.tolist() == [1, 2, 3, 4, 5], (
    "no longer reproduces: the first frame of the new policy is drawn"
)

# %%
# Fix it
# ------
#
# If other code reads the root and you cannot change it, write the correct version there with a
# ``postproc`` of the collector.

fixed = collect(version_key=("next", "policy_version"))
healthy = check(fixed["batch"], ("next", "policy_version"))
print(healthy)
assert healthy["old version"] == 0, "the fix does not work: a frame has the old version"
drawn = fixed["replay_buffer"].sample()["index"].unique()
assert drawn.tolist() == [0, 1, 2, 3, 4, 5], "the fix does not work: a frame is dropped"
