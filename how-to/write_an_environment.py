"""
Write an environment
====================

For a simulator of your own, subclass ``EnvBase``: declare its specs, write ``_reset``, ``_step``
and ``_set_seed``, and call ``check_env_specs`` once. If you have a gymnasium environment, pass it
to ``GymWrapper`` instead.
"""

# %%
# .. fold:: Imports

import gymnasium
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
# Copy this, and change the observation, the reward and the condition that ends an episode. The
# class simulates a batch of points on a line, one in each row. Each has to reach a goal of its own.


class Reach(EnvBase):
    speed = 0.2

    def __init__(self, rows):
        super().__init__(batch_size=[rows])
        self.observation_spec = Composite(
            observation=Unbounded((rows, 2)),  # where the point is, and its goal
            shape=[rows],
        )
        self.action_spec = Bounded(-1, 1, (rows, 1))
        self.reward_spec = Unbounded((rows, 1))
        # done_spec: the default has "done" and "terminated"
        self.rng = torch.Generator()

    def _reset(self, tensordict):
        starts = torch.rand(*self.batch_size, 2, generator=self.rng) / 2
        starts[:, 1] += 0.6
        return TensorDict(observation=starts, batch_size=self.batch_size)

    def _step(self, tensordict):
        place, goal = tensordict["observation"].split(1, dim=-1)
        place = place + tensordict["action"] * self.speed
        left = (goal - place).abs()
        return TensorDict(
            observation=torch.cat([place, goal], dim=-1),  # a new tensor
            reward=-left,
            terminated=left < 0.05,  # the goal is reached
            batch_size=self.batch_size,
        )

    def _set_seed(self, seed):
        self.rng.manual_seed(seed)


def collect(env):
    """One batch of random actions: four environments, forty steps."""
    env = TransformedEnv(env, StepCounter(max_steps=20))  # writes "truncated"
    collector = Collector(env, frames_per_batch=160, total_frames=160)
    collector.set_seed(0)
    batch = next(iter(collector))
    collector.shutdown()
    return batch


check_env_specs(Reach(4))
batch = collect(Reach(4))
for name in ("terminated", "truncated"):
    print(f"{name}: {int(batch['next', name].sum())}")

# %%
# Why it is right
# ---------------
#
# * **The state is in the tensordict.** ``_step`` reads the observation that it gets, and keeps
#   nothing on ``self``. If the policy must not see a part of the state, store that part under a
#   key of its own, and declare the key in the specs.
# * **Every spec begins with the batch size**, and so does every tensor that you return. For a
#   single environment, use ``batch_size=[]`` and leave out the rows.
# * **Rewards and done flags have a last dimension of one**, here ``[rows, 1]``.
# * **A reset may draw all rows.** If only some episodes have ended, TorchRL takes their rows from
#   what ``_reset`` returns, and keeps the others. :claim:`reset-keeps-other-rows`
# * **You write** ``terminated``, and TorchRL fills in ``done``.
#   :claim:`done-is-filled-from-terminated` A time limit is ``truncated``, which ``StepCounter``
#   writes. The difference matters for the value at the end: see
#   :ref:`symptom-values-too-low-at-time-limits`.
# * **The environment has a generator of its own**, so its starts can be repeated whatever else
#   draws random numbers. Seed the collector, or the batch of environments. Do not seed in the
#   constructor, or all copies start alike: :ref:`symptom-every-environment-starts-alike`.
#
# ``check_env_specs`` compares a short rollout with the specs. It raises if a key is missing, or if
# a shape or a dtype differs from its spec. :claim:`specs-check-finds-key-shape-dtype`
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
#    observation that the policy saw before the step changes too
#    (:ref:`symptom-a-step-changes-the-last-one`):


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
# Some steps are right, because TorchRL copies the rows when an episode ends, to join new rows with
# old ones. Return a new tensor at each step, or ``self.seen.clone()``.
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    This environment returns clones, but its state is still on ``self``, and each ``_reset`` draws
#    all rows of it anew. When one episode ends, the others jump in mid-episode
#    (:ref:`symptom-a-reset-of-one-resets-others`):


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
jumping = jumps(collect(ResetsAll(4)))
print(f"{jumping} jumps; with the state in the tensordict: {jumps(batch)}")
assert jumping > 0
assert jumps(batch) == 0

# %%
# If the state has to be on ``self``, as with a simulator in C++, reset only the rows that
# ``tensordict["_reset"]`` marks. If ``tensordict`` is ``None`` or lacks ``"_reset"``, reset all
# rows. :claim:`reset-mask-marks-rows`
#
# Read an attribute of each environment
# -------------------------------------
#
# .. redirect-from:: how-to/write_an_environment.html#read-an-attribute-in-the-workers
#
# After the first reset, ``envs.speed`` of a ``SerialEnv`` is a list with one value for each
# environment. Before that, it raises ``RecursionError``. With a ``ParallelEnv`` write
# ``list(envs.speed)``. If the name does not exist, the workers of a ``ParallelEnv`` die, and you
# get ``EOFError`` or ``BrokenPipeError``. :claim:`attributes-of-batched-environments`

envs = SerialEnv(2, lambda: Reach(4))
envs.reset()
print(envs.speed)
envs.close()

# %%
# Use it from gymnasium
# ---------------------
#
# Other libraries, such as Stable-Baselines3, need a gymnasium environment. ``register_gym`` makes
# one, with NumPy arrays if you ask for them. It is a class method, and its other arguments go to
# your constructor.

Reach.register_gym("Reach-v0", to_numpy=True, rows=1)
exported = gymnasium.make("Reach-v0", disable_env_checker=True)
observation, info = exported.reset(seed=0)
print(exported.action_space, type(observation["observation"]))

# %%
# Reward and flags are arrays with a last dimension of one, and the row stays a dimension too. If
# the other library wants numbers, convert them in a gymnasium wrapper.
#
# What it costs
# -------------
#
# Rows in one batch cost little. Thirty-two pendulums in a ``SerialEnv`` of single environments
# take :measured:`environments@cpu:pitfall-unbatched:time_vs_repaired` times as long as the same
# pendulums in one batch. A batch with a loop over its rows in ``_step`` takes
# :measured:`environments@cpu:pitfall-row-by-row:time_vs_repaired` times as long. For other things
# that slow an environment down, NumPy's float64 among them, see
# :ref:`performance-environments-custom`. For several workers, see :doc:`/performance/collectors`.
