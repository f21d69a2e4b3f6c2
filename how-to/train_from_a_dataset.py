"""
Train from a dataset
====================

Turn recorded episodes into rows of a replay buffer, and train without an environment. Each row has
the keys that off-policy losses read.
"""

# %%
# .. fold:: Imports, and the recording: forty episodes of CartPole, most actions random, as arrays

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
from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor, QValueActor
from torchrl.objectives import DiscreteIQLLoss, DQNLoss, SoftUpdate

torch.manual_seed(0)
torch.set_num_threads(1)
torchrl.logger.setLevel("ERROR")  # without the storage's message

EPISODES = 40


def record(seed):
    """One episode: observations, actions, rewards, and whether it terminated."""
    env, draw = gymnasium.make("CartPole-v1"), np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    observations, actions, rewards, done = [observation], [], [], False
    while not done:
        random = draw.random() < 0.6
        lean = observation[2] + observation[3] / 2
        actions.append(int(draw.integers(2) if random else lean > 0))
        observation, reward, terminated, truncated, _ = env.step(actions[-1])
        observations.append(observation)
        rewards.append(reward)
        done = terminated or truncated
    return (
        np.array(observations),
        np.array(actions),
        np.array(rewards, np.float32),
        terminated,
    )


recorded = [record(seed) for seed in range(EPISODES)]

# %%
# Copy this. Each element of ``recorded`` is one episode: its observations (one more than it has
# steps), its actions, its rewards, and whether it terminated.


def rows(observations, actions, rewards, terminated):
    """The steps of an episode, one row each."""
    observations = torch.as_tensor(observations)
    last = torch.arange(len(actions)).unsqueeze(-1) == len(actions) - 1
    after = {
        "observation": observations[1:],
        "reward": torch.as_tensor(rewards).unsqueeze(-1),
        "done": last,
        "terminated": last & bool(terminated),
        "truncated": last & (not terminated),
    }
    action = nn.functional.one_hot(torch.as_tensor(actions), 2)
    step = {"observation": observations[:-1], "action": action, "next": after}
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
    temperature=3.0,  # a factor of the advantage
    expectile=0.7,
)
loss.make_value_estimator(gamma=0.99)
target = SoftUpdate(loss, tau=0.01)
optimizer = torch.optim.Adam(loss.parameters(), 1e-3)
for _ in range(300):
    losses = loss(buffer.sample())
    total = losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_value"]
    total.backward()
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
before = np.mean([rewards.sum() for _, _, rewards, _ in recorded])
print(
    f"mean return: {before:.0f} in the dataset, {np.mean(returns):.0f} after training"
)
assert np.mean(returns) > before

# %%
# This is one training with one seed. The loss, IQL, favors the better ones of the recorded actions.
# To repeat the actions as they were recorded, use :class:`~torchrl.objectives.BCLoss`.
#
# Why it is right
# ---------------
#
# * **One row is one step.** It has what the loss reads: the observation, the action, and under
#   ``"next"`` the reward, the next observation and the done flags. Rewards and done flags need a
#   last dimension of one, hence ``unsqueeze(-1)``.
# * **The next observation comes from the same episode**, so an episode has one more observation
#   than it has steps. If your files lack the last one, look at how the episode ended. If it
#   terminated, fill in zeros, because the target does not use their value. If it was truncated,
#   leave out the last step, and mark the step before as ``done`` and ``truncated``.
# * **Keep** ``terminated`` **and** ``truncated`` **apart.** The target stops at a terminated step
#   and bootstraps at a truncated one: see :ref:`symptom-values-too-low-at-time-limits`.
# * **Actions have the format that the policy's distribution produces**, here one-hot.
#
# The buffer holds the whole dataset. If that does not fit into memory, write it once to a
# ``LazyMemmapStorage`` with a ``scratch_dir``: see :doc:`/tutorials/memory/buffers_on_disk`. A
# ``SliceSampler`` finds the episodes by ``("next", "done")`` if no entry numbers them. To continue
# with newly collected data, see :ref:`new-offline`.
#
# Start from trained weights
# --------------------------
#
# Load the weights before you make the loss, because the loss and its updater copy the value network
# into its target network only when they are made. Leave out layers of another shape, such as a head
# for other actions:


def load_what_fits(module, weights):
    own = module.state_dict()
    fits = {
        name: weight
        for name, weight in weights.items()
        if name in own and weight.shape == own[name].shape
    }
    return module.load_state_dict(fits, strict=False).missing_keys


weights = net(2, "action_value").state_dict()  # in your own run, torch.load(path)
print("new:", load_what_fits(net(3, "action_value"), weights))

# %%
# Datasets that others recorded
# -----------------------------
#
# ``torchrl.data.datasets`` has classes for several collections, such as D4RL and Minari. Each class
# is a replay buffer. Its constructor downloads the dataset once, into the folder ``root`` if you
# pass one; only ``OpenXExperienceReplay`` streams by default. :claim:`dataset-classes-are-buffers`
#
# .. not-executed:: It downloads the dataset and needs the package ``minari``.
#
#    from torchrl.data.datasets import MinariExperienceReplay
#
#    buffer = MinariExperienceReplay("mujoco/hopper/medium-v0", batch_size=256)
#    sample = buffer.sample()
#
# With ``load_from_local_minari=True`` it loads a dataset that is in your local Minari cache.
#
# Where it goes wrong without an error
# ------------------------------------
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    The observations of all episodes are concatenated, and each next observation is taken from the
#    following row. The last step of each episode then has the first observation of another one, as
#    in :ref:`symptom-next-observation-of-another-step`:

flat = dataset["observation"]
shifted = torch.cat([flat[1:], flat[:1]])
wrong = (shifted != dataset["next", "observation"]).any(-1)
truncated = int(dataset["next", "truncated"].sum())
print(
    f"{int(wrong.sum())} wrong next observations, {truncated} of them at truncated steps"
)
assert torch.equal(wrong, dataset["next", "done"].squeeze(-1))

# %%
# At a terminated step, the target does not use the value of the wrong observation. At a truncated
# step, the loss learns from the value of an unrelated state. The :ref:`doctor <doctor-data-sets>`
# finds shifted columns and missing done flags.
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    Loading weights after you have made the loss and its updater. The target network keeps the
#    weights that you have replaced: :ref:`symptom-loaded-policy-gets-worse`.


def make_value():
    value = MLP(4, 2, num_cells=(64, 64))
    return QValueActor(value, in_keys=["observation"], action_space="one-hot")


trained = make_value().state_dict()
for when in ("before", "after"):
    value = make_value()
    if when == "before":
        value.load_state_dict(trained)
    loss = DQNLoss(value, action_space="one-hot", delay_value=True)
    target = SoftUpdate(loss, tau=0.01)
    if when == "after":
        value.load_state_dict(trained)
    pairs = zip(
        loss.value_network_params.values(True, True),
        loss.target_value_network_params.values(True, True),
        strict=True,
    )
    equal = all(torch.equal(online, target) for online, target in pairs)
    print(f"loaded {when} the loss was made: target network equal: {equal}")
    assert equal == (when == "before")

# %%
# What it costs
# -------------

print(f"{dataset.bytes() // len(dataset)} bytes a row")

# %%
# Within an episode, every next observation but the last is a duplicate. With images, it pays not to
# store the duplicates: see :doc:`/tutorials/memory/memory_efficient_rl`.
