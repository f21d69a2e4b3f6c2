"""
Adapt an environment
====================

Read values of gymnasium's ``info`` with a reader, and write entries of your own, or another reward,
with a transform. To make the task harder while workers collect, change a tensor in shared memory.
"""

# %%
# .. fold:: Imports, how the workers start, and an environment: a corridor to walk to its end

import multiprocessing
import warnings

import gymnasium
import numpy as np
import torch
import torchrl
from tensordict.nn import TensorDictModule
from torchrl.collectors import MultiSyncCollector
from torchrl.envs import (
    Compose,
    GymWrapper,
    RewardSum,
    StepCounter,
    Transform,
    TransformedEnv,
    check_env_specs,
    default_info_dict_reader,
)
from torchrl.modules import MLP

torch.set_num_threads(1)
torchrl.logger.setLevel("ERROR")  # check_env_specs announces its success
# This page forks its workers, which is quick. From Python 3.12 on, that warns.
multiprocessing.set_start_method("fork", force=True)
warnings.filterwarnings("ignore", ".*fork", category=DeprecationWarning)


class Corridor(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 100.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)  # stay or go on

    def __init__(self, length):
        self.length = length

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.goal = 0, int(self.length)
        return self.seen(), {}

    def step(self, action):
        self.place += int(action)
        arrived = self.place == self.goal
        info = {"left": np.float32(self.goal - self.place)}
        return self.seen(), float(arrived), arrived, False, info

    def seen(self):
        return np.array([self.place], np.float32)


class GoOn(torch.nn.Module):
    def forward(self, observation):
        return torch.tensor([0, 1]).expand(*observation.shape[:-1], 2)


policy = TensorDictModule(GoOn(), in_keys=["observation"], out_keys=["action"])

# %%
# Copy this, with your own environment in place of the corridor folded above. The ``info`` of the
# corridor has the number of steps that are left.

SCALE = 10.0


class Scaled(Transform):
    """Write the observation, divided by *scale*, as another entry."""

    def __init__(self, scale):
        super().__init__(in_keys=["observation"], out_keys=["scaled"])
        self.scale = scale

    def _apply_transform(self, observation):  # of each step
        return observation / self.scale

    def _reset(self, tensordict, tensordict_reset):  # of the first observation
        return self._call(tensordict_reset)

    def transform_observation_spec(self, observation_spec):
        observation_spec["scaled"] = observation_spec["observation"].clone()
        return observation_spec


def make_env(length):
    env = GymWrapper(Corridor(length))
    env.set_info_dict_reader(default_info_dict_reader(["left"]))
    return TransformedEnv(env, Compose(Scaled(SCALE), StepCounter()))


check_env_specs(make_env(2))
length = torch.tensor(2).share_memory_()
collector = MultiSyncCollector(
    [make_env] * 2,
    policy,
    create_env_kwargs=[{"length": length}] * 2,  # not functools.partial, see below
    frames_per_batch=16,
    total_frames=48,
    auto_register_policy_transforms=False,  # the policy has no memory
)
for number, batch in enumerate(collector):
    print(f"length {length}: {int(batch['next', 'done'].sum())} episodes end")
    if number == 0:
        first = batch[0].clone()
        length.fill_(8)  # each environment reads it at its next reset
collector.shutdown()
assert (first["next", "scaled"] == first["next", "observation"] / SCALE).all()
print("left:", first["next", "left"][:4].tolist())

# %%
# Sixteen frames have room for eight episodes of two steps, or for two episodes of eight. In your
# own run, make the change depend on a measure of success, not on the number of the batch.
#
# Why it is right
# ---------------
#
# * **The reader** writes the values into the results of each step, here ``("next", "left")``. They
#   have to be NumPy values or tensors: a plain ``int`` raises an error.
#   :claim:`info-reader-wants-numpy` The entry of a number has no last dimension; add one with
#   ``UnsqueezeTransform`` before a network reads it.
# * **The transform** has three methods: one for each step, one for the first observation, and one
#   for the specs. ``check_env_specs`` raises if you leave out ``_reset`` or the spec.
#   :claim:`specs-check-finds-half-a-transform` To replace an entry, use the same key for
#   ``in_keys`` and ``out_keys``.
# * **The length** is read at each reset, so it never changes within an episode.
#
# For an environment without gymnasium, see :doc:`write_an_environment`. For dictionaries, masks and
# hybrid actions, see :doc:`dict_and_hybrid_spaces`.
#
# Shape the reward
# ----------------
#
# If the new reward depends on the old one alone, write ``_apply_transform`` with ``"reward"`` in
# both ``in_keys`` and ``out_keys``. If it depends on observations, write ``_step``, which gets the
# entries before and after the step. This transform rewards progress by a potential:

GAMMA = 0.99  # as in your loss


class Progress(Transform):
    """Add the discounted growth of a potential, here of the place, to the reward."""

    def _step(self, tensordict, next_tensordict):
        before, after = tensordict["scaled"], next_tensordict["scaled"]
        after = after * ~next_tensordict["terminated"]  # nothing is left to gain
        shaping = GAMMA * after - before
        next_tensordict["reward"] = next_tensordict["reward"] + shaping
        return next_tensordict


env = make_env(4)
env.append_transform(RewardSum())  # before the shaping: the score of the game
env.append_transform(Progress())
check_env_specs(env)
steps = env.rollout(100, policy)["next"]
discount = GAMMA ** torch.arange(len(steps))
discounted = (steps["reward"].squeeze(-1) * discount).sum()
print("rewards:", [f"{one:.2f}" for one in steps["reward"].flatten().tolist()])
print(f"score {steps['episode_reward'][-1].item():.0f}, return {discounted:.2f}")
torch.testing.assert_close(discounted, torch.tensor(GAMMA ** (len(steps) - 1)))

# %%
# In an episode that terminates, the terms of the potential cancel in the discounted return, except
# its first value, which is zero here. So the best policy stays the same, and the return is that of
# one reward of 1 in the fourth step. Train on ``"reward"``, and log ``"episode_reward"``:
# :ref:`symptom-return-is-not-the-score`.
#
# Reward what is new
# ------------------
#
# Random network distillation gives a bonus for observations that are unlike those seen before: the
# error of a network that learns to predict a fixed one. Add the bonus in your loop, before the loss
# gets the batch.

from torchrl.objectives import RNDLoss

BONUS = 0.1


def features():
    return MLP(in_features=1, out_features=8, num_cells=[64])


torch.manual_seed(0)
fixed, learned = features(), features()
distillation = RNDLoss(learned, fixed, update_fraction=1.0)
distillation.set_keys(observation=("next", "scaled"))
optimizer = torch.optim.Adam(learned.parameters(), lr=1e-3)


def bonus(batch):
    seen = batch["next", "scaled"]
    with torch.no_grad():
        return (learned(seen) - fixed(seen)).square().mean(-1, keepdim=True)


way = make_env(8).rollout(100, policy)
batch, beyond = way[:4].clone(), way[4:]
for _ in range(3):  # in your own run, one update with each batch
    print(f"bonus: {bonus(batch).mean():.4f}, further on {bonus(beyond).mean():.4f}")
    for _ in range(50):
        distillation(batch)["loss_predictor"].backward()
        optimizer.step()
        optimizer.zero_grad()
batch["next", "reward"] += BONUS * bonus(batch)
assert bonus(batch).mean() < 0.5 * bonus(beyond).mean()

# %%
# If rows stay in a replay buffer over many updates, a stored bonus gets old: add it to each sample
# instead.
#
# An environment that fails now and then
# --------------------------------------
#
# If a simulator raises, make it anew, and end the episode as truncated, not as terminated: the
# value of the last observation then stays in the target.
#
# .. fold:: A corridor with a trap in its fourth place


class Trap(Corridor):
    def step(self, action):
        if self.place == 3:
            raise RuntimeError("lost")
        return super().step(action)


# %%


class Revived(gymnasium.Wrapper):
    """Ends the episode if a step raises, and goes on with a new environment."""

    def __init__(self, make):
        super().__init__(make())
        self.make = make

    def reset(self, **options):
        self.last = self.env.reset(**options)
        return self.last

    def step(self, action):
        try:
            observation, *rest, info = self.env.step(action)
        except RuntimeError as error:  # what yours raises, not Exception
            print("made anew:", error)
            self.env.close()
            self.env = self.make()
            observation, info = self.last
            return observation, 0.0, False, True, info
        self.last = observation, info
        return observation, *rest, info


steps = GymWrapper(Revived(lambda: Trap(8))).rollout(
    8, policy, break_when_any_done=False
)
print("truncated:", steps["next", "truncated"].flatten().tolist())
assert steps["next", "truncated"].flatten().tolist() == [False, False, False, True] * 2

# %%
# If the process of a worker dies instead, see :doc:`from_one_process_to_ray`.
#
# Atari games
# -----------
#
# The games are in the package ``ale_py``. Register them before ``gymnasium.make``, which otherwise
# raises ``NamespaceNotFound`` for ``"ALE/Pong-v5"`` and ``NameNotFound`` for
# ``"PongNoFrameskip-v4"``. :claim:`atari-without-registration-raises` gymnasium's
# ``AtariPreprocessing`` skips frames, resizes them and makes them gray. The benchmark behind
# :doc:`pixel_replay` uses it like this:
#
# .. literalinclude:: ../../benchmarks/suites/bench_pixel_replay.py
#    :start-at: gymnasium.register_envs(ale_py)
#    :end-at: AtariPreprocessing(gymnasium.make
#    :dedent:
#
# Where it goes wrong without an error
# ------------------------------------
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    A key that ``reset`` does not put into its ``info``. Before the first step of each episode, the
#    reader fills the entry with zero, as if no steps were left. In the samples, you see
#    :ref:`symptom-values-are-zero-for-no-reason`:

print("left, before each step:", first["left"][:4].tolist())
assert not first["left"][::2].any()

# %%
# Put the key into the ``info`` of ``reset``, too.
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    ``functools.partial(make_env, length)`` in place of ``create_env_kwargs``. With the start
#    method "spawn", TorchRL's default, each worker gets a copy of the tensor, so the task does not
#    change, and no error says so. With "fork", both ways work.
#    :claim:`partial-copies-shared-tensors`
#
# If an environment skips no frames although you asked for it, see
# :ref:`symptom-gym-env-skips-no-frames`.
#
# What it costs
# -------------
#
# Each entry is stored twice, before and after the step:

kept = first.exclude("left", "scaled", ("next", "left"), ("next", "scaled"))
print(
    f"{first.bytes() // len(first)} bytes a row, {kept.bytes() // len(first)} without"
)

# %%
# Leave ``"left"`` out of a buffer if nothing reads it: ``batch.exclude("left", ("next", "left"))``.
