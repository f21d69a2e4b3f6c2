"""PPO on inverted pendulums that stay on one device, and on the same ones stepped in C on the host.

``python -m benchmarks.recipes.ppo_resident_contenders WAY SEED`` prints one line of JSON: what each
iteration came to, as in ``ppo_cartpole_contenders``, and the seconds that jax compiled before.
"""

import functools
import json
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from benchmarks import recipes
from benchmarks.recipes import ppo_cartpole_contenders as common

EPISODES, THRESHOLD, FRAMES, STEPS = 20, 190.0, 2_000_000, 16


def host_env(options, seed):
    """The model of the recipe in gymnasium's InvertedPendulum-v5, one after another in C."""
    import gymnasium
    from gymnasium.vector import AutoresetMode, SyncVectorEnv
    from torchrl.envs import DoubleToFloat, GymWrapper, RewardSum, TransformedEnv

    from benchmarks.recipes import ppo_resident as script

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "pendulum.xml")
        model.write_text(script.MODEL, "utf-8")
        named = {"xml_file": str(model), "frame_skip": script.SKIP}
        named |= {"reset_noise_scale": script.NOISE, "max_episode_steps": script.HORIZON}
        make = functools.partial(gymnasium.make, "InvertedPendulum-v5", **named)
        vector = SyncVectorEnv([make] * options.envs, autoreset_mode=AutoresetMode.DISABLED)
    env = TransformedEnv(GymWrapper(vector), RewardSum())
    env.append_transform(DoubleToFloat())  # MuJoCo has doubles
    env.set_seed(seed)
    return env


def train(seed, envs, host):
    """What the training came to, with the seconds of compilation before it."""
    from benchmarks.recipes import ppo_resident as script

    begin = time.perf_counter()
    if not host:
        script.compiled(envs, "cpu")
    compiled = time.perf_counter() - begin
    with (
        mock.patch.object(recipes, "ppo_resident", script),
        mock.patch.object(recipes, "ppo_cartpole", script, create=True),
        mock.patch.object(script, "make_env", host_env if host else script.make_env),
    ):
        return common.recipe(seed, envs, STEPS).report() | {"compile": compiled}


WAYS = {
    "resident-64": functools.partial(train, envs=64, host=False),
    "resident-256": functools.partial(train, envs=256, host=False),
    "resident-1024": functools.partial(train, envs=1024, host=False),
    "host-64": functools.partial(train, envs=64, host=True),
    "host-256": functools.partial(train, envs=256, host=True),
}


def main(way, seed):
    import torch

    torch.set_num_threads(1)
    names = {"EPISODES": EPISODES, "THRESHOLD": THRESHOLD, "FRAMES": FRAMES}
    with mock.patch.multiple(common, **names):
        print(json.dumps(WAYS[way](int(seed))))


if __name__ == "__main__":
    main(*sys.argv[1:])
