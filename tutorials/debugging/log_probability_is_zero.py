"""
The first batches have a log-probability of zero
================================================

The ratios of PPO are far from one at the start of the training, and the log-probabilities in the
first batches are exactly zero, as if each action were certain.

:Subsystem: collectors
:Effect: silent
:Cause: During ``init_random_frames``, the collector does not call the policy. The keys that the
   policy would write keep the zeros from the collector's preallocated buffer.
:Fix: Leave out ``init_random_frames``, or do not train on the batches that it covers.
:Source: :source:`torchrl.collectors.Collector._should_use_random_frames`
:Behind it: :ref:`internals-random-frames`
:Threads: :thread:`505`
:Also called: action_log_prob is 0, sample_log_prob missing, exploding ratio, logits all zero,
   value is zero in the first batch, random warm-up
"""

# %%
# Break it
# --------

import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import GymEnv
from torchrl.modules import OneHotCategorical, ProbabilisticActor


def collect(random_frames, **options):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    policy = ProbabilisticActor(
        TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    collector = Collector(
        env,
        policy,
        frames_per_batch=20,
        total_frames=-1,
        init_random_frames=random_frames,
        auto_register_policy_transforms=False,
        **options,
    )
    batch = next(iter(collector)).clone()
    collector.shutdown()
    return {"policy": policy, "batch": batch}


broken = collect(random_frames=20)

# %%
# Check it
# --------
#
# For a discrete action, a log-probability of exactly zero means that the action was certain, up to
# rounding. An untrained network does not give that.


def check(batch):
    certain = batch["action_log_prob"] == 0
    return {"steps": len(batch), "log-probability of zero": int(certain.sum())}


unhealthy = check(broken["batch"])
print(unhealthy)
assert unhealthy["log-probability of zero"] == 20, (
    "no longer reproduces: random frames have a log-probability"
)

# %%
# Why
# ---
#
# The other outputs of the policy are zero as well: logits, values, hidden states. With
# ``use_buffers=False``, the random rows lack these keys instead.

assert not broken["batch"]["logits"].any(), "no longer reproduces: logits are written"
assert "logits" not in collect(random_frames=20, use_buffers=False)["batch"]

# %%
# If a ``Collector`` extends a replay buffer, the random rows in it lack the keys too. A
# ``LazyTensorStorage`` then has no place for these keys, so storing the policy's first batch
# raises. To avoid this, leave out ``replay_buffer`` and extend the buffer in your own loop.

replay_buffer = ReplayBuffer(storage=LazyTensorStorage(100))
collector = Collector(
    GymEnv("CartPole-v1"),
    broken["policy"],
    frames_per_batch=20,
    total_frames=40,
    init_random_frames=20,
    replay_buffer=replay_buffer,
    auto_register_policy_transforms=False,
)
try:
    for _ in collector:
        assert "logits" not in replay_buffer[:]
except KeyError as error:
    print(f"{type(error).__name__}: {error.args[0].partition(' with keys')[0]}")
else:
    raise AssertionError("the storage takes the keys of the policy")
finally:
    collector.shutdown()

# %%
# Fix it
# ------
#
# Use random frames only for algorithms that learn from any action, such as DQN or SAC.

fixed = collect(random_frames=0)
healthy = check(fixed["batch"])
print(healthy)
assert healthy["log-probability of zero"] == 0, "the fix does not work"
