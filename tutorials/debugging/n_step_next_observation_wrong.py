"""
N-step rewards come with the wrong next observation
===================================================

Training with n-step returns is worse than with one-step returns. The rewards of a sample are sums
over n steps, as they should be, but the next observations are only one step ahead.

:Subsystem: memory and storage
:Effect: silent
:Cause: ``MultiStepTransform`` replaces next observations when rows are written to the buffer. With
   ``compact_obs`` or ``NextObservationDelta`` there are none yet. The buffer rebuilds them later,
   from one step, when you sample.
:Fix: Store both observations of each step: do not combine ``MultiStepTransform`` with
   ``compact_obs`` or ``NextObservationDelta``.
:Source: :source:`torchrl.envs.transforms.MultiStepTransform._inv_call`,
   :source:`torchrl.envs.transforms.NextStateReconstructor.forward`
:Behind it: :doc:`/tutorials/memory/n_step_and_truncations`
:Threads: :thread:`3743`, :thread:`3742`
:Also called: MultiStepTransform, n-step return, compact_obs, NextObservationDelta, Rainbow
"""

# %%
# Break it
# --------
#
# The observation counts the steps, so next observation minus observation is the number of steps
# between them.

import gymnasium as gym
import numpy as np
import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import Compose, GymWrapper, StepCounter, TransformedEnv
from torchrl.envs.transforms import (
    MultiStepTransform,
    NextObservationDelta,
    NextStateReconstructor,
)


class Clock(gym.Env):
    """Shows how many steps were taken; an episode has ten."""

    observation_space = gym.spaces.Box(0, 10, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = np.zeros(1, np.float32)
        return self.time, {}

    def step(self, action):
        self.time = self.time + 1
        return self.time, 1.0, bool(self.time[0] == 10), False, {}


def buffer_of_three_steps(memory):
    rebuild = {
        "compact_obs": [NextStateReconstructor(step_count_key="step_count")],
        "delta": [NextObservationDelta(in_keys=["observation"])],
        "both observations": [],
    }[memory]
    on_env = [NextObservationDelta(["observation"])] if memory == "delta" else []
    env = TransformedEnv(GymWrapper(Clock()), Compose(StepCounter(), *on_env))
    env.set_seed(0)
    torch.manual_seed(0)
    options = {"frames_per_batch": 60, "compact_obs": memory == "compact_obs"}
    collector = Collector(env, None, total_frames=-1, **options)
    n_step = MultiStepTransform(n_steps=3, gamma=1.0, done_keys=["done", "truncated"])
    replay_buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(60),
        sampler=SliceSampler(slice_len=4, traj_key=("collector", "traj_ids")),
        transform=Compose(n_step, *rebuild),
        batch_size=64,
    )
    replay_buffer.extend(next(iter(collector)).clone())
    collector.shutdown()
    return {"replay_buffer": replay_buffer}


broken = buffer_of_three_steps("compact_obs")

# %%
# Check it
# --------
#
# ``"steps_to_next_obs"`` is the number of summed rewards. The next observation has to be as many
# steps ahead. The check prints the share of rows with the right sum, and the mean number of steps
# to the next observation.


def check(sample):
    ahead = sample["next", "observation"] - sample["observation"]
    rewards = (
        sample["steps_to_next_obs"].flatten() == sample["next", "reward"].flatten()
    )
    return {
        "rewards": rewards.float().mean().item(),
        "steps ahead": ahead.nanmean().item(),
    }


unhealthy = check(broken["replay_buffer"].sample())
print(unhealthy)
assert unhealthy == {"rewards": 1, "steps ahead": 1}, (
    "no longer reproduces: next observations are not one step ahead any more"
)

# %%
# ``NextObservationDelta`` does not help: it adds only the change of the last of the three steps to
# the observation.

delta = check(buffer_of_three_steps("delta")["replay_buffer"].sample())
print(delta)
assert delta == {"rewards": 1, "steps ahead": 1}, "no longer reproduces with the delta"

# %%
# Fix it
# ------

fixed = buffer_of_three_steps("both observations")
healthy = check(fixed["replay_buffer"].sample())
print(healthy)
assert healthy["rewards"] == 1, "the fix does not work: rewards are no sums"
assert healthy["steps ahead"] > 2, "the fix does not work: not n steps ahead"
