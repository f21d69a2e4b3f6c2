"""Learning dynamics: the return while an agent trains, with a symptom and without.

PPO and DQN on CartPole-v1, once for each seed. A value is the mean return of the episodes that
ended in one quarter of the training; its rounds are the seeds. Ways of one symptom differ in what
their titles say, and in nothing else. The return is summed up before rewards are scaled.
"""

import functools
import os
import statistics
import time

os.environ.setdefault("RL_WARNINGS", "False")

import gymnasium
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
from torchrl.envs import Compose, GymWrapper, RewardScaling, RewardSum, TransformedEnv
from torchrl.modules import (
    MLP,
    ActorValueOperator,
    EGreedyModule,
    OneHotCategorical,
    ProbabilisticActor,
    QValueActor,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss, DQNLoss, SoftUpdate
from torchrl.objectives.value import GAE

from benchmarks import interleaved, measure, metrics

SEEDS = 5
STAGES = 4  # of a training, of as many frames each
COUNT = 16  # of environments that step together
FRAMES = 8_192
GAMMA = 0.99
CELLS = 64
EPOCHS = 4  # of PPO on a batch
LOSSES = ("loss_objective", "loss_critic", "loss_entropy")

METRICS = metrics.declare("""
episode_return [1] Return of an episode: Mean return of the episodes that ended in this stage of
    the training, in steps of CartPole; each round is a seed.
train_time [s] Time to train: Wall time of the whole training with one seed.
""")


def make_env(seed, reward):
    envs = [functools.partial(gymnasium.make, "CartPole-v1")] * COUNT
    env = GymWrapper(SyncVectorEnv(envs, autoreset_mode=AutoresetMode.SAME_STEP))
    transforms = Compose(RewardSum(), RewardScaling(loc=0, scale=reward))
    env = TransformedEnv(env, transforms, auto_unwrap=True)
    env.set_seed(seed)
    return env


def mean_return(batch):
    """Of the episodes that ended in the batch; none where none did."""
    found = batch["next", "episode_reward"][batch["next", "done"]]
    return found.mean().item() if found.numel() else None


def staged(returns):
    """The mean of each stage."""
    size = len(returns) // STAGES
    parts = [returns[n * size : (n + 1) * size] for n in range(STAGES)]
    return [statistics.fmean(one for one in part if one is not None) for part in parts]


def networks(env, shared):
    """Actor and critic, with one hidden layer for both or one each."""
    spec = env.action_spec_unbatched
    options = {"in_keys": ["logits"], "distribution_class": OneHotCategorical, "spec": spec}
    options["return_log_prob"] = True
    if not shared:
        sizes = {"in_features": 4, "num_cells": [CELLS], "activation_class": nn.Tanh}
        logits = TensorDictModule(MLP(out_features=2, **sizes), ["observation"], ["logits"])
        critic = ValueOperator(MLP(out_features=1, **sizes), in_keys=["observation"])
        return ProbabilisticActor(logits, **options), critic
    hidden = nn.Sequential(nn.Linear(4, CELLS), nn.Tanh())
    both = ActorValueOperator(
        TensorDictModule(hidden, ["observation"], ["hidden"]),
        ProbabilisticActor(
            TensorDictModule(nn.Linear(CELLS, 2), ["hidden"], ["logits"]), **options
        ),
        ValueOperator(nn.Linear(CELLS, 1), in_keys=["hidden"]),
    )
    return both.get_policy_operator(), both.get_value_operator()


def train_ppo(seed, reward=1.0, shared=False, lr=3e-3, **options):
    """The mean return in each batch."""
    torch.manual_seed(seed)
    env = make_env(seed, reward)
    actor, critic = networks(env, shared)
    rows = 32 * COUNT
    sizes = {"frames_per_batch": rows, "total_frames": FRAMES}
    collector = Collector(env, actor, auto_register_policy_transforms=False, **sizes)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(rows), sampler=SamplerWithoutReplacement(), batch_size=rows // 4
    )
    advantage = GAE(gamma=GAMMA, lmbda=0.95, value_network=critic, average_gae=True)
    loss = ClipPPOLoss(actor, critic, **{"loss_critic_type": "l2", **options})
    optimizer = torch.optim.Adam(loss.parameters(), lr)
    returns = []
    for batch in collector:
        returns.append(mean_return(batch))
        with torch.no_grad():
            advantage(batch)
        buffer.extend(batch.reshape(-1))
        for _ in range(EPOCHS):
            for sample in buffer:
                losses = loss(sample)
                sum(losses[name] for name in LOSSES).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
        collector.update_policy_weights_()
    collector.shutdown()
    return returns


def train_dqn(seed, each_update=False):
    """The mean return in each batch; *each_update* counts the frames of a batch too often."""
    torch.manual_seed(seed)
    env = make_env(seed, 1.0)
    network = MLP(in_features=4, out_features=2, num_cells=[CELLS])
    actor = QValueActor(network, in_keys=["observation"], spec=env.action_spec_unbatched)
    explore = EGreedyModule(env.action_spec, eps_end=0.05, annealing_num_steps=FRAMES // 2)
    options = {"frames_per_batch": 8 * COUNT, "total_frames": FRAMES}
    policy = TensorDictSequential(actor, explore)
    collector = Collector(env, policy, auto_register_policy_transforms=False, **options)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(FRAMES), batch_size=64)
    loss = DQNLoss(actor, delay_value=True)
    loss.make_value_estimator(gamma=GAMMA)
    updater = SoftUpdate(loss, tau=0.02)
    optimizer = torch.optim.Adam(loss.parameters(), 2e-3)
    returns = []
    for batch in collector:
        returns.append(mean_return(batch))
        buffer.extend(batch.reshape(-1))
        for number in range(8):
            loss(buffer.sample())["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
            updater.step()
            if each_update or number == 0:
                explore.step(batch.numel())
        collector.update_policy_weights_()
    collector.shutdown()
    return returns


WAYS = {
    "rewards-large": ("rewards of 100", train_ppo, {"reward": 100.0, "shared": True}),
    "rewards-scaled": ("rewards scaled to 0.1", train_ppo, {"reward": 0.1, "shared": True}),
    "rewards-separate": (
        "rewards of 100, separate_losses=True",
        train_ppo,
        {"reward": 100.0, "shared": True, "separate_losses": True},
    ),
    "rewards-smooth": (
        "rewards of 100, smooth_l1",
        train_ppo,
        {"reward": 100.0, "shared": True, "loss_critic_type": "smooth_l1"},
    ),
    "rewards-two": ("rewards of 100, two networks", train_ppo, {"reward": 100.0}),
    "entropy-gone": ("entropy_coeff=0", train_ppo, {"lr": 0.1, "entropy_coeff": 0.0}),
    "entropy-kept": ("entropy_coeff=0.1", train_ppo, {"lr": 0.1, "entropy_coeff": 0.1}),
    "entropy-slow": (
        "entropy_coeff=0, lower learning rate",
        train_ppo,
        {"lr": 3e-3, "entropy_coeff": 0.0},
    ),
    "epsilon-soon": ("step() after each update", train_dqn, {"each_update": True}),
    "epsilon-right": ("step() after each batch", train_dqn, {}),
}


@functools.cache
def trained(way):
    """Seconds of each seed, and for each stage the returns by seed."""
    _, train, options = WAYS[way]
    torch.set_num_threads(measure.THREADS)
    seconds, found = [], []
    for seed in range(SEEDS):
        begin = time.perf_counter()
        found.append(staged(train(seed, **options)))
        seconds.append(time.perf_counter() - begin)
    return seconds, list(zip(*found, strict=True))


@pytest.mark.parametrize("stage", range(1, STAGES + 1))
@pytest.mark.parametrize("way", WAYS)
def bench_training(benchmark, device, way, stage):
    if device.type == "cuda":
        pytest.skip("the networks are too small for a GPU")
    seconds, stages = trained(way)
    frames = FRAMES * stage // STAGES
    assert all(1 <= one <= 500 for one in stages[stage - 1])
    interleaved.report(
        benchmark,
        seconds,
        0,
        f"{way}-f{frames}",
        "train_time",
        title=f"{WAYS[way][0]}, {frames} frames",
        parameters={"training": WAYS[way][0], "frames": frames, "seeds": SEEDS},
        sampled={"episode_return": [round(one, 1) for one in stages[stage - 1]]},
    )
