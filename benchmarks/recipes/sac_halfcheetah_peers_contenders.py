"""The first frames of SAC on HalfCheetah in other libraries, each in a process of its own.

``python -m benchmarks.recipes.sac_halfcheetah_peers_contenders WAY SEED`` is what the command of
``ppo_cartpole_contenders`` is: the same clocks, with other libraries and a fixed number of frames.
"""

import os
import sys
from unittest import mock

from benchmarks import recipes
from benchmarks.recipes import ppo_cartpole_contenders as common
from benchmarks.recipes.sac_halfcheetah_contenders import ENVS, GAMMA, LR, RANDOM, STEPS, TAU, WIDE

EPISODES, THRESHOLD, FRAMES = 4, float("inf"), 3072
PARTS = ("collect", "sample", "update")
BATCH, CELLS = 256, (256, 256)


def recipe(seed, compiled=False):
    """The script of the page; *compiled*, with its loss compiled."""
    from benchmarks.recipes import sac_halfcheetah as script

    class Run(script.Run):
        def make_loss(self, spec):
            loss = super().make_loss(spec)
            if compiled:
                loss.compile()
            return loss

    parse = script.parse
    unreached = mock.patch.object(
        script, "parse", lambda words: parse([*words, "--threshold", "inf"])
    )
    named = mock.patch.object(recipes, "ppo_cartpole", script, create=True)
    with unreached, named, mock.patch.object(script, "Run", Run):
        return common.recipe(seed, ENVS, STEPS)


def sb3(seed, library):
    """The hyperparameters of the recipe, in ``stable_baselines3`` or in ``sbx``."""
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    training = common.Training()

    class Notes(BaseCallback):
        def _on_rollout_start(self):
            if self.num_timesteps:
                training.note(self.num_timesteps)

        def _on_step(self):
            return True

    env = make_vec_env("HalfCheetah-v5", n_envs=ENVS, seed=seed)
    model = library.SAC("MlpPolicy", env, seed=seed, device="cpu", **WIDE)
    model.learn(FRAMES, callback=Notes())
    training.note(model.num_timesteps)
    return training


def torch_sb3(seed):
    import stable_baselines3

    return sb3(seed, stable_baselines3)


def sbx(seed):
    """Stable-Baselines3 in JAX, on one thread; its functions compile while the clock runs."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    import sbx as library

    return sb3(seed, library)


def tianshou(seed):
    import gymnasium
    import numpy as np
    import torch
    from tianshou.algorithm import SAC
    from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
    from tianshou.utils.torch_utils import policy_within_training_step

    training, rows = common.Training(), ENVS * STEPS
    torch.manual_seed(seed)
    np.random.seed(seed)
    env = DummyVectorEnv([lambda: gymnasium.make("HalfCheetah-v5") for _ in range(ENVS)])
    env.seed(seed)
    space = env.action_space[0]
    sizes = {"state_shape": env.observation_space[0].shape, "hidden_sizes": CELLS}
    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(**sizes),
        action_shape=space.shape,
        unbounded=True,
        conditioned_sigma=True,
    )
    both = {**sizes, "action_shape": space.shape, "concat": True}
    critics = [ContinuousCritic(preprocess_net=Net(**both)) for _ in range(2)]
    optimizer = AdamOptimizerFactory(LR)
    algorithm = SAC(
        policy=SACPolicy(actor=actor, action_space=space),
        policy_optim=optimizer,
        critic=critics[0],
        critic_optim=optimizer,
        critic2=critics[1],
        critic2_optim=optimizer,
        tau=TAU,
        gamma=GAMMA,
        alpha=AutoAlpha(-float(np.prod(space.shape)), float(np.log(0.2)), optimizer),
    )
    collector = Collector(algorithm, env, VectorReplayBuffer(FRAMES, ENVS))
    collector.reset()
    frames = 0
    while frames < FRAMES:
        with policy_within_training_step(algorithm.policy):
            collector.collect(n_step=rows, random=frames < RANDOM)
            frames += rows
            for _ in range(rows if frames >= RANDOM else 0):
                algorithm.update(collector.buffer, sample_size=BATCH)
        training.note(frames)
    return training


WAYS = {
    "torchrl-recipe": recipe,
    "torchrl-compiled": lambda seed: recipe(seed, compiled=True),
    "sb3-wide": torch_sb3,
    "sbx-wide": sbx,
    "tianshou-wide": tianshou,
}


def main(way, seed):
    names = {"EPISODES": EPISODES, "THRESHOLD": THRESHOLD, "FRAMES": FRAMES, "PARTS": PARTS}
    with mock.patch.multiple(common, **names, WAYS=WAYS):
        common.main(way, seed)


if __name__ == "__main__":
    main(*sys.argv[1:])
