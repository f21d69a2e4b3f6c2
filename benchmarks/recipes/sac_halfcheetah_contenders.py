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

EPISODES, THRESHOLD, FRAMES = 4, 1000.0, 32_000
ENVS, STEPS, RATIO, RANDOM = 4, 8, 1.0, 1024
GAMMA, LR, TAU, ALPHA = 0.99, 1e-3, 0.005, 0.2
PARTS = ("collect", "sample", "update")


def recipe(seed):
    """The script of the page."""
    from benchmarks.recipes import sac_halfcheetah as script

    with mock.patch.object(recipes, "ppo_cartpole", script, create=True):
        return common.recipe(seed, ENVS, STEPS)


def plain(seed):
    """In the style of TorchRL's implementation of SAC: three optimizers, a sample an update."""
    import torch
    from tensordict.nn import TensorDictModule
    from torch import nn
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.envs import (
        Compose,
        DoubleToFloat,
        GymEnv,
        InitTracker,
        RewardSum,
        SerialEnv,
        StepCounter,
        TransformedEnv,
    )
    from torchrl.modules import (
        MLP,
        NormalParamExtractor,
        ProbabilisticActor,
        TanhNormal,
        ValueOperator,
    )
    from torchrl.objectives import SACLoss, SoftUpdate

    training, clock = common.Training(), time.perf_counter
    torch.manual_seed(seed)
    base = SerialEnv(ENVS, lambda: GymEnv("HalfCheetah-v5"))
    transforms = Compose(InitTracker(), StepCounter(), DoubleToFloat(), RewardSum())
    env = TransformedEnv(base, transforms)
    env.set_seed(seed)
    spec = env.action_spec_unbatched
    inputs, actions = env.observation_spec["observation"].shape[-1], spec.shape[-1]
    cells = {"num_cells": [256, 256], "activation_class": nn.ReLU}
    net = nn.Sequential(MLP(inputs, 2 * actions, **cells), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["loc", "scale"]),
        ["loc", "scale"],
        spec=spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": spec.space.low, "high": spec.space.high},
    )
    critic = ValueOperator(MLP(inputs + actions, 1, **cells), ["observation", "action"])
    loss = SACLoss(actor, critic, action_spec=spec, loss_function="l2", alpha_init=ALPHA)
    loss.make_value_estimator(gamma=GAMMA)
    target = SoftUpdate(loss, tau=TAU)
    groups = {
        "loss_actor": list(loss.actor_network_params.flatten_keys().values()),
        "loss_qvalue": list(loss.qvalue_network_params.flatten_keys().values()),
        "loss_alpha": [loss.log_alpha],
    }
    optimizers = {name: torch.optim.Adam(group, LR) for name, group in groups.items()}
    frames_per_batch = ENVS * STEPS
    collector = Collector(
        env,
        actor,
        frames_per_batch=frames_per_batch,
        total_frames=FRAMES,
        init_random_frames=RANDOM,
        auto_register_policy_transforms=False,
    )
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(FRAMES), batch_size=256)
    frames, mark = 0, clock()
    for batch in collector:
        collected = clock()
        training.parts["collect"] += collected - mark
        frames += batch.numel()
        training.returns.extend(batch["next", "episode_reward"][batch["next", "done"]].tolist())
        buffer.extend(batch.reshape(-1))
        training.parts["sample"] += clock() - collected
        for _ in range(round(RATIO * frames_per_batch) if frames >= RANDOM else 0):
            mark = clock()
            minibatch = buffer.sample()
            training.parts["sample"] += clock() - mark
            mark = clock()
            values = loss(minibatch)
            for name, optimizer in optimizers.items():
                optimizer.zero_grad()
                values[name].backward()
                optimizer.step()
            target.step()
            training.parts["update"] += clock() - mark
        collector.update_policy_weights_()
        if training.note(frames):
            break
        mark = clock()
    collector.shutdown()
    return training


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
    "torchrl-plain": plain,
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
