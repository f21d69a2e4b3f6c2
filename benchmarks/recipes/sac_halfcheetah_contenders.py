"""SAC on HalfCheetah in TorchRL and in Stable-Baselines3, each in a process of its own.

``python -m benchmarks.recipes.sac_halfcheetah_contenders WAY SEED`` is what the command of
``ppo_cartpole_contenders`` is: the same clocks, with another recipe and another peer. A point of a
curve is written after the updates of each episode that ends.
"""

import sys
import time
from unittest import mock

from benchmarks import recipes
from benchmarks.recipes import ppo_cartpole_contenders as common

EPISODES, THRESHOLD, FRAMES = 4, 500.0, 24_000
ENVS, STEPS, RATIO, RANDOM = 4, 8, 1.0, 1024
GAMMA, LR, TAU, ALPHA = 0.99, 1e-3, 0.005, 0.2
PARTS = ("collect", "sample", "update")


def recipe(seed):
    """The script of the page."""
    from benchmarks.recipes import sac_halfcheetah as script

    with mock.patch.object(recipes, "ppo_cartpole", script, create=True):
        return common.recipe(seed, ENVS, STEPS)


def sb3(seed, envs=1, **options):
    """Its defaults, but for *options*."""
    import torch
    from stable_baselines3 import SAC
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    assert torch.get_num_threads() == 1
    training, clock = common.Training(), time.perf_counter

    class Notes(BaseCallback):
        ended = over = False

        def _on_step(self):
            ended = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            training.returns.extend(ended)
            self.ended |= bool(ended)
            return not self.over

    notes = Notes()
    env = make_vec_env("HalfCheetah-v5", n_envs=envs, seed=seed)
    model = SAC("MlpPolicy", env, seed=seed, device="cpu", **options)

    def timed(owner, name, part, after=lambda: None):
        """Add the seconds of a method to those of *part*, and call *after*."""
        method = getattr(owner, name)

        def call(*arguments, **named):
            begin = clock()
            found = method(*arguments, **named)
            training.parts[part] += clock() - begin
            after()
            return found

        setattr(owner, name, call)

    def note():
        if notes.ended:
            notes.ended, notes.over = False, training.note(model.num_timesteps)

    timed(model, "collect_rollouts", "collect")
    timed(model.replay_buffer, "sample", "sample")
    timed(model, "train", "update", after=note)
    model.learn(FRAMES, callback=notes)
    training.parts["update"] -= training.parts["sample"]  # which SB3 calls in train
    return training


WIDE = {"gamma": GAMMA, "train_freq": STEPS, "gradient_steps": round(ENVS * STEPS * RATIO)}
WIDE |= {"learning_rate": LR, "tau": TAU, "learning_starts": RANDOM, "ent_coef": f"auto_{ALPHA}"}
WAYS = {
    "torchrl-recipe": recipe,
    "sb3-wide": lambda seed: sb3(seed, ENVS, **WIDE),
    "sb3-default": sb3,
}


def main(way, seed):
    names = {"EPISODES": EPISODES, "THRESHOLD": THRESHOLD, "FRAMES": FRAMES, "PARTS": PARTS}
    with mock.patch.multiple(common, **names, WAYS=WAYS):
        common.main(way, seed)


if __name__ == "__main__":
    main(*sys.argv[1:])
