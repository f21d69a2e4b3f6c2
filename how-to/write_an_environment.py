"""
Write an environment
====================

For a simulator of your own, subclass ``EnvBase``: declare its specs, write ``_reset``, ``_step``
and ``_set_seed``, and call ``check_env_specs`` once. If you have a gymnasium environment, pass it
to ``GymWrapper`` instead.
"""

# %%
# .. fold:: Imports

import torch
import torchrl
from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.envs import (
    EnvBase,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    check_env_specs,
)

torch.manual_seed(0)
torchrl.logger.setLevel("ERROR")  # check_env_specs announces its success

# %%
# Copy this and change the observation, the reward and the end. It steps several environments at
# once, one in each row: points on a line, each with a goal that it has to reach.


class Reach(EnvBase):
    speed = 0.1

    def __init__(self, rows, seed=0):
        super().__init__(batch_size=[rows])
        self.observation_spec = Composite(
            observation=Unbounded((rows, 2)),  # where the point is, and its goal
            shape=[rows],
        )
        self.action_spec = Bounded(-1, 1, (rows, 1))
        self.reward_spec = Unbounded((rows, 1))
        # done_spec: the default has "done" and "terminated"
        self.rng = torch.Generator()
        self.set_seed(seed)

    def _reset(self, tensordict):
        observation = torch.rand(*self.batch_size, 2, generator=self.rng)
        return TensorDict(observation=observation, batch_size=self.batch_size)

    def _step(self, tensordict):
        place, goal = tensordict["observation"].split(1, dim=-1)
        place = place + tensordict["action"] * self.speed
        left = (goal - place).abs()
        return TensorDict(
            observation=torch.cat([place, goal], dim=-1),  # a new tensor
            reward=-left,
            terminated=left < 0.1,  # the goal is reached; a time limit is not an end
            batch_size=self.batch_size,
        )

    def _set_seed(self, seed):
        self.rng.manual_seed(seed)


def collect(env):
    """A batch of random actions: four environments, twenty steps."""
    env = TransformedEnv(env, StepCounter(max_steps=20))  # writes "truncated"
    collector = Collector(env, frames_per_batch=80, total_frames=80)
    (batch,) = collector
    collector.shutdown()
    return batch


check_env_specs(Reach(4))
batch = collect(Reach(4))
for name in ("terminated", "truncated"):
    print(f"{int(batch['next', name].sum())} episodes {name}")

# %%
# Why it is right
# ---------------
#
# * **The state is in the tensordict.** ``_step`` reads the observation that it gets, and keeps
#   nothing on ``self``. If your state is more than the policy may see, give it an entry of its own,
#   in the specs as well.
# * **Every spec begins with the batch size.** So does every tensor that you return. For a single
#   environment, use ``batch_size=[]`` and leave out the rows.
# * **Rewards and ends have a last dimension of one**, ``[rows, 1]``.
# * **"done" is filled in** from ``terminated``. :claim:`done-is-filled-from-terminated` Set
#   ``terminated`` only where no future reward exists. A time limit is ``truncated``, and
#   ``StepCounter`` writes that: :ref:`symptom-values-too-low-at-time-limits`.
# * **The generator is the environment's own**, so ``set_seed`` makes its starts repeatable whatever
#   else draws random numbers.
#
# ``check_env_specs`` compares a short rollout with the specs. It raises for a missing key, another
# shape and another type of numbers. :claim:`specs-check-finds-key-shape-dtype`
#
# Where it goes wrong without an error
# ------------------------------------
#
# ``check_env_specs`` accepts both of these environments.
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    The environment keeps its state on ``self``, changes that tensor in place and returns it. The
#    observation from before the step changes with it:


class InPlace(Reach):
    def _reset(self, tensordict):
        self.seen = super()._reset(tensordict)["observation"]
        return TensorDict(observation=self.seen, batch_size=self.batch_size)

    def _step(self, tensordict):
        now = super()._step(tensordict.replace(observation=self.seen))
        self.seen.copy_(now["observation"])
        return now.set("observation", self.seen)


check_env_specs(InPlace(4))
wrong = collect(InPlace(4))
same = (wrong["observation"] == wrong["next", "observation"]).all(-1)
print(f"{int(same.sum())} of {same.numel()} steps seem to change nothing")
assert same.any()
assert not (batch["observation"] == batch["next", "observation"]).all(-1).any()

# %%
# Return a new tensor at each step, or ``self.seen.clone()``.
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    The state is on ``self``, and ``_reset`` draws all rows anew. When one episode ends, the other
#    environments jump to another place in the middle of theirs:


class ResetsAll(InPlace):
    def _reset(self, tensordict):
        return super()._reset(tensordict).clone()

    def _step(self, tensordict):
        return super()._step(tensordict).clone()


def jumps(batch):
    """Steps that are longer than one action can make them."""
    moved = batch["next", "observation"] - batch["observation"]
    return int((moved.abs().amax(-1) > 1.01 * Reach.speed).sum())


check_env_specs(ResetsAll(4))
print(f"{jumps(collect(ResetsAll(4)))} jumps; state in the tensordict: {jumps(batch)}")
assert jumps(collect(ResetsAll(4))) > 0 == jumps(batch)

# %%
# If the state has to be on ``self``, as with a simulator in C++, reset only the rows that
# ``tensordict["_reset"]`` marks. Without this entry, and where ``tensordict`` is ``None``, reset
# all of them. :claim:`reset-mask-marks-rows`
#
# Numbers of NumPy turn into float64 and stay so: :ref:`performance-environments-custom`. If the
# constructor draws random numbers, copies of the environment start alike:
# :ref:`symptom-every-environment-starts-alike`.
#
# Read an attribute in the workers
# --------------------------------
#
# After its first reset, a ``SerialEnv`` gives an attribute of each environment in it, as a list.
# Before that, it raises ``RecursionError``. With a ``ParallelEnv`` write ``list(envs.speed)``. If
# the name does not exist, the workers of a ``ParallelEnv`` end, and you get ``EOFError`` or
# ``BrokenPipeError``. :claim:`attributes-of-batched-environments`

envs = SerialEnv(2, lambda: Reach(4))
envs.reset()
print(envs.speed)
envs.close()

# %%
# What it costs
# -------------
#
# Thirty-two pendulums in one batch cost little. In a ``SerialEnv`` of single environments they take
# :measured:`environments@cpu:pitfall-unbatched:time_vs_repaired` times as long, and with a loop
# over the rows in ``_step`` :measured:`environments@cpu:pitfall-row-by-row:time_vs_repaired` times.
# More that slows an environment down is in :ref:`performance-environments-custom`. For several
# workers see :doc:`/performance/collectors`.
