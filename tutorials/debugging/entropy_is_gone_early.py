"""
The entropy is gone early
=========================

Early in training the entropy of the policy falls almost to zero. Then the agent nearly always takes
the same action in a state, and its return stays low.

:Subsystem: exploration
:Effect: silent
:Cause: The optimizer steps are too large, and the entropy bonus is zero or too small. The policy
   becomes deterministic before it has learned. With discrete actions, its log-probability then has
   hardly any gradient.
:Fix: Lower the learning rate. If that is not enough, raise the entropy bonus: ``ClipPPOLoss(...,
   entropy_coeff=0.1)``.
:Source: :source:`torchrl.objectives.PPOLoss._weighted_loss_entropy`
:Behind it: :ref:`doctor-logs`
:Threads: none found
:Also called: entropy collapse, policy collapse, premature convergence, policy becomes
   deterministic, always the same action, stuck at a return of 9, entropy bonus, entropy_coef
"""

# %%
# Break it
# --------
#
# PPO learns CartPole with a far too large learning rate and no entropy bonus.
#
# .. fold:: Imports and training

from statistics import fmean

import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.data import (
    LazyTensorStorage,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from torchrl.envs import GymEnv, RewardSum, TransformedEnv
from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

torch.set_num_threads(1)  # the networks are tiny


def train(lr, **options):
    """The entropy of each update, and the return of each episode."""
    torch.manual_seed(0)
    env = TransformedEnv(GymEnv("CartPole-v1"), RewardSum())
    env.set_seed(0)
    sizes = {"in_features": 4, "num_cells": [64], "activation_class": torch.nn.Tanh}
    logits = TensorDictModule(MLP(out_features=2, **sizes), ["observation"], ["logits"])
    actor = ProbabilisticActor(
        logits,
        in_keys=["logits"],
        spec=env.action_spec,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(MLP(out_features=1, **sizes), in_keys=["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    loss_module = ClipPPOLoss(actor, critic, **options)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=lr)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(200),
        sampler=SamplerWithoutReplacement(),
        batch_size=50,
    )
    sizes = {"frames_per_batch": 200, "total_frames": 1600}
    collector = Collector(env, actor, auto_register_policy_transforms=False, **sizes)
    log = {"entropy": [], "episode_reward": []}
    for batch in collector:
        ended = batch["next", "done"]
        log["episode_reward"] += batch["next", "episode_reward"][ended].tolist()
        with torch.no_grad():
            advantage(batch)
        buffer.extend(batch)
        for sample in (sample for _ in range(4) for sample in buffer):
            losses = loss_module(sample)
            names = ("loss_objective", "loss_critic", "loss_entropy")
            sum(losses[name] for name in names).backward()
            torch.nn.utils.clip_grad_norm_(loss_module.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            log["entropy"].append(losses["entropy"].item())
        collector.update_policy_weights_()
    collector.shutdown()
    return {"log": log}


# %%

broken = train(lr=0.1, entropy_coeff=0.0)

# %%
# Check it
# --------
#
# Log the ``"entropy"`` that the loss returns at each update, and the return of each episode.


def check(log):
    return {
        name: [round(fmean(part), 2) for part in (values[:10], values[-10:])]
        for name, values in log.items()
    }


unhealthy = check(**broken)
print(unhealthy)
assert unhealthy["entropy"][1] < 0.05 * unhealthy["entropy"][0], (
    "no longer reproduces: the policy still has some entropy"
)
assert unhealthy["episode_reward"][1] < unhealthy["episode_reward"][0], (
    "no longer reproduces: the return rises"
)

# %%
# Each pair holds the means of the first and of the last ten values. If the cart is always pushed to
# one side, the pole falls after about nine steps.
#
# Fix it
# ------

fixed = train(lr=3e-3, entropy_coeff=0.0)
healthy = check(**fixed)
print(healthy)
assert healthy["entropy"][1] > 0.5, "the fix does not work: the entropy is gone"
assert healthy["episode_reward"][1] > healthy["episode_reward"][0], (
    "the fix does not work: the return does not rise"
)

# %%
# What it does to the return
# --------------------------
#
# .. record-plot:: learning_dynamics@cpu
#    :x: frames
#    :y: episode_return
#    :series: training
#    :rows: entropy-*
#    :caption: Return of PPO on CartPole: median and quartiles of five seeds
#
# With the learning rate 0.1 and no bonus, some seeds learn and others end at nine steps. With
# 0.003, or with a bonus, all five learn. :claim:`entropy-collapses-in-some-seeds`
#
# The entropy of a continuous distribution, such as ``TanhNormal``, has no lower bound and can be
# negative.
