"""
Train from a dataset
====================

Turn recorded episodes into rows of a replay buffer, and train without an environment. The rows are
those that a collector would write, so every loss reads them.
"""

# %%
# .. fold:: Imports, and the recording: forty episodes of a clumsy CartPole player, as arrays

import gymnasium
import numpy as np
import torch
import torchrl
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import (
    ExplorationType,
    GymEnv,
    RewardSum,
    TransformedEnv,
    set_exploration_type,
)
from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor
from torchrl.objectives import DiscreteIQLLoss, SoftUpdate

torch.manual_seed(0)
torch.set_num_threads(1)
torchrl.logger.setLevel("ERROR")  # a storage announces itself

EPISODES = 40


def record(seed):
    """One episode: observations, of which there is one more than steps, actions, rewards, end."""
    env, draw = gymnasium.make("CartPole-v1"), np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    observations, actions, rewards, over = [observation], [], [], False
    while not over:
        clumsy = draw.random() < 0.6
        lean = observation[2] + observation[3] / 2
        actions.append(int(draw.integers(2) if clumsy else lean > 0))
        observation, reward, terminated, truncated, _ = env.step(actions[-1])
        observations.append(observation)
        rewards.append(reward)
        over = terminated or truncated
    return (
        np.array(observations),
        np.array(actions),
        np.array(rewards, np.float32),
        terminated,
    )


recorded = [record(seed) for seed in range(EPISODES)]

# %%
# Copy this. Each element of ``recorded`` is one episode.


def rows(observations, actions, rewards, terminated):
    """The steps of an episode, one row each."""
    observations = torch.as_tensor(observations)
    last = torch.arange(len(actions)).unsqueeze(-1) == len(actions) - 1
    following = {
        "observation": observations[1:],
        "reward": torch.as_tensor(rewards).unsqueeze(-1),
        "done": last,
        "terminated": last & bool(terminated),
        "truncated": last & (not terminated),
    }
    chosen = nn.functional.one_hot(torch.as_tensor(actions), 2)
    step = {"observation": observations[:-1], "action": chosen, "next": following}
    return TensorDict(step, batch_size=[len(actions)])


dataset = torch.cat([rows(*episode) for episode in recorded])
buffer = ReplayBuffer(storage=LazyTensorStorage(len(dataset)), batch_size=256)
buffer.extend(dataset)


def net(outputs, key):
    return TensorDictModule(MLP(4, outputs, num_cells=(64, 64)), ["observation"], [key])


actor = ProbabilisticActor(
    net(2, "logits"), ["logits"], distribution_class=OneHotCategorical
)
loss = DiscreteIQLLoss(
    actor,
    net(2, "state_action_value"),
    net(1, "state_value"),
    action_space="one-hot",
    temperature=3.0,
    expectile=0.7,
)
loss.make_value_estimator(gamma=0.99)
target = SoftUpdate(loss, tau=0.01)
optimizer = torch.optim.Adam(loss.parameters(), 1e-3)
for _ in range(300):
    losses = loss(buffer.sample())
    sum(losses[key] for key in ("loss_actor", "loss_qvalue", "loss_value")).backward()
    optimizer.step()
    optimizer.zero_grad()
    target.step()

# %%
# Then try the policy in an environment, without exploration:

env = TransformedEnv(GymEnv("CartPole-v1"), RewardSum())
env.set_seed(0)
with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
    returns = [
        float(env.rollout(500, actor)["next", "episode_reward"][-1]) for _ in range(3)
    ]
player = np.mean([rewards.sum() for _, _, rewards, _ in recorded])
print(f"mean return: recorded {player:.0f}, trained {np.mean(returns):.0f}")
assert np.mean(returns) > player

# %%
# The loss is IQL: it looks for the better ones of the recorded actions. To repeat the recorded
# actions as they are, use :class:`~torchrl.objectives.BCLoss`.
#
# Why it is right
# ---------------
#
# * **One row is one step**, with what the loss reads: the observation, the action, and below
#   ``"next"`` the reward, the next observation and the ends. An array with a column for each step
#   has the last dimension of one that rewards and ends need.
# * **The next observation comes from the same episode.** This is why an episode has one observation
#   more than steps. If your files lack the last one, leave out the last step.
# * **``terminated`` and ``truncated`` are kept apart.** A value is cut at the first and goes on at
#   the second: :ref:`symptom-values-too-low-at-time-limits`.
# * **Actions have the form of the policy's**, here one-hot vectors, as its distribution draws them.
#
# The buffer holds the whole dataset. If it does not fit into memory, write it once to a
# ``LazyMemmapStorage``: :doc:`/tutorials/memory/buffers_on_disk`. To go on with new data after the
# training, see :ref:`new-offline`.
#
# Datasets that others recorded
# -----------------------------
#
# ``torchrl.data.datasets`` has a class for each of several collections, D4RL and Minari among them.
# The object is a replay buffer, which downloads the rows into the folder ``root`` when it is made.
# :claim:`dataset-classes-are-buffers`
#
# .. not-executed:: Downloads the dataset; needs the package minari.
#
#    from torchrl.data.datasets import MinariExperienceReplay
#
#    buffer = MinariExperienceReplay("mujoco/hopper/medium-v0", batch_size=256)
#    sample = buffer.sample()
#
# ``load_from_local_minari=True`` reads a dataset that Minari has on your disk.
#
# Where it goes wrong without an error
# ------------------------------------
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    All observations lie one after another in an array, and the next observation is taken one place
#    further. Each episode then ends with the first observation of the next one:

flat = dataset["observation"]
shifted = torch.cat([flat[1:], flat[:1]])
wrong = (shifted != dataset["next", "observation"]).any(-1)
print(f"{int(wrong.sum())} wrong next observations, {EPISODES} episodes")
assert torch.equal(wrong, dataset["next", "done"].squeeze(-1))

# %%
# Where the episode was cut by a time limit, the loss then learns from the value of an unrelated
# state. The :ref:`doctor <doctor-data-sets>` finds columns that are shifted and ends that are
# missing.
#
# What it costs
# -------------

print(f"{dataset.bytes() // len(dataset)} bytes a row")

# %%
# All next observations but the last of an episode are second copies. For images it pays to leave
# them out: :doc:`/tutorials/memory/memory_efficient_rl`.
