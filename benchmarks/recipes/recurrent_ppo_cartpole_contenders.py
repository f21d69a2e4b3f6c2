"""Recurrent PPO on CartPole without velocities in TorchRL and sb3-contrib, each in its own process.

``python -m benchmarks.recipes.recurrent_ppo_cartpole_contenders WAY SEED`` is what the command of
``ppo_cartpole_contenders`` is: the same loops and clocks, with another recipe and another peer.
"""

import functools
import sys
from unittest import mock

from benchmarks import recipes
from benchmarks.recipes import ppo_cartpole_contenders as feed_forward

THRESHOLD = 195.0
CELLS = 64


# -- TorchRL ---------------------------------------------------------------------


def recipe(seed, **changes):
    """The script of the page, with *changes* in place of its names."""
    from benchmarks.recipes import recurrent_ppo_cartpole as script

    with (
        mock.patch.object(recipes, "ppo_cartpole", script, create=True),
        mock.patch.dict(vars(script), changes),
    ):
        return feed_forward.recipe(seed, 32, 32)


def memoryless():
    """A GRU that begins each step with a state of zeros; parameters and first weights stay."""
    from torchrl.modules import GRUModule

    class Memoryless(GRUModule):
        def forward(self, tensordict):
            seen = tensordict["observation"]
            features, _ = self.gru(seen.reshape(-1, 1, seen.shape[-1]))
            return tensordict.set("features", features.reshape(*seen.shape[:-1], CELLS))

    return Memoryless


# -- sb3-contrib -----------------------------------------------------------------


def without_velocities(env):
    """What rl-baselines3-zoo does for CartPoleNoVel-v1."""
    import numpy as np
    from gymnasium.wrappers import TransformObservation

    shown = np.array([1, 0, 1, 0], np.float32)
    return TransformObservation(env, lambda state: state * shown, env.observation_space)


def zoo(seed):
    """What rl-baselines3-zoo publishes for CartPoleNoVel-v1: as for CartPole-v1, and two LSTMs."""
    import torch
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    policy = {"lstm_hidden_size": CELLS, "enable_critic_lstm": True, "ortho_init": False}
    policy |= {"activation_fn": torch.nn.ReLU, "net_arch": {"pi": [CELLS], "vf": [CELLS]}}

    def make_model(_, env, **options):
        env = VecNormalize(env, gamma=options["gamma"])
        return RecurrentPPO("MlpLstmPolicy", env, policy_kwargs=policy, **options)

    make_envs = functools.partial(make_vec_env, wrapper_class=without_velocities)
    with (
        mock.patch("stable_baselines3.PPO", make_model),
        mock.patch("stable_baselines3.common.env_util.make_vec_env", make_envs),
    ):
        return feed_forward.sb3(seed, 8, 32, tuned=True)


WAYS = {
    "torchrl-recipe": recipe,
    "torchrl-unscaled": lambda seed: recipe(seed, SCALE=1.0),
    "torchrl-memoryless": lambda seed: recipe(seed, GRUModule=memoryless()),
    "sb3-zoo": zoo,
}


def main(way, seed):
    with (
        mock.patch.object(feed_forward, "THRESHOLD", THRESHOLD),
        mock.patch.object(feed_forward, "WAYS", WAYS),
    ):
        feed_forward.main(way, seed)


if __name__ == "__main__":
    main(*sys.argv[1:])
