"""PPO on CartPole in SBX and in Tianshou, each in a process of its own.

``python -m benchmarks.recipes.ppo_cartpole_peers_contenders WAY SEED`` is what the command of
``ppo_cartpole_contenders`` is: the same clocks and hyperparameters, with other libraries.
"""

import os
import sys
import time
from unittest import mock

from benchmarks.recipes import ppo_cartpole_contenders as common
from benchmarks.recipes.ppo_cartpole_contenders import CLIP, EPOCHS, FRAMES, GAMMA, LMBDA, LR


def sbx(seed, envs, steps, tuned):
    """Stable-Baselines3 in JAX, on one thread; its functions compile while the clock runs."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    import stable_baselines3
    from sbx import PPO

    with mock.patch.object(stable_baselines3, "PPO", PPO):
        return common.sb3(seed, envs, steps, tuned)


def tianshou(seed, envs, steps):
    """Tianshou; networks begin as those of the recipe."""
    import gymnasium
    import numpy as np
    import torch
    from tianshou.algorithm import PPO
    from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory, LRSchedulerFactoryLinear
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
    from tianshou.utils.torch_utils import policy_within_training_step

    assert torch.get_num_threads() == 1
    training, clock, rows = common.Training(), time.perf_counter, envs * steps
    torch.manual_seed(seed)
    np.random.seed(seed)
    env = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(envs)])
    env.seed(seed)
    net = {"state_shape": 4, "hidden_sizes": (64, 64), "activation": torch.nn.Tanh}
    actor = DiscreteActor(preprocess_net=Net(**net), action_shape=2, softmax_output=False)
    critic = DiscreteCritic(preprocess_net=Net(**net))
    for network, gain in ((actor, 0.01), (critic, 1.0)):
        layers = [layer for layer in network.modules() if isinstance(layer, torch.nn.Linear)]
        for layer in layers:
            torch.nn.init.orthogonal_(layer.weight, gain if layer is layers[-1] else 2**0.5)
            torch.nn.init.zeros_(layer.bias)
    schedule = LRSchedulerFactoryLinear(1, FRAMES, rows)
    algorithm = PPO(
        policy=DiscreteActorPolicy(actor=actor, action_space=gymnasium.spaces.Discrete(2)),
        critic=critic,
        optim=AdamOptimizerFactory(LR, eps=1e-5).with_lr_scheduler_factory(schedule),
        eps_clip=CLIP,
        vf_coef=0.5,
        ent_coef=0.0,
        max_grad_norm=0.5,
        gae_lambda=LMBDA,
        gamma=GAMMA,
    )
    estimate = algorithm._preprocess_batch

    def timed(*arguments):
        begin = clock()
        found = estimate(*arguments)
        training.parts["advantage"] += clock() - begin
        return found

    algorithm._preprocess_batch = timed
    collector = Collector(algorithm, env, VectorReplayBuffer(rows, envs))
    collector.reset()
    frames, over = 0, False
    while not over:
        mark = clock()
        with policy_within_training_step(algorithm.policy):
            found = collector.collect(n_step=rows)
            training.parts["collect"] += clock() - mark
            training.returns.extend(map(float, found.returns))
            frames += int(found.n_collected_steps)
            mark = clock()
            algorithm.update(collector.buffer, batch_size=256, repeat=EPOCHS)
            training.parts["update"] += clock() - mark
        collector.reset_buffer(keep_statistics=True)
        algorithm.eps_clip = CLIP * (1 - frames / FRAMES)
        over = training.note(frames)
    training.parts["update"] -= training.parts["advantage"]  # which Tianshou computes in update
    return training


WAYS = {
    "torchrl-recipe": common.WAYS["torchrl-recipe"],
    "sb3-wide": common.WAYS["sb3-wide"],
    "sbx-wide": lambda seed: sbx(seed, 32, 8, tuned=True),
    "sbx-default": lambda seed: sbx(seed, 1, 2048, tuned=False),
    "tianshou-wide": lambda seed: tianshou(seed, 32, 8),
}


if __name__ == "__main__":
    with mock.patch.object(common, "WAYS", WAYS):
        common.main(*sys.argv[1:])
