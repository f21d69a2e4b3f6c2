"""
PPO clips almost everything
===========================

The clip fraction of PPO is above one half in most updates. The return rises slowly, or falls again.

:Subsystem: value estimation and losses
:Effect: silent
:Cause: The optimizer steps are too large, or there are too many of them on one batch. A ratio that
   the advantage has pushed out of the clipping range gets no gradient.
:Fix: Lower the learning rate, run fewer epochs on each batch, or stop the epochs when ``kl_approx``
   is above a bound.
:Source: :source:`torchrl.objectives.ClipPPOLoss.forward`
:Behind it: :ref:`doctor-logs`
:Threads: none found
:Also called: clip fraction too high, clipfrac, ratio far from one, too many epochs, kl too large,
   learning rate of PPO too high, policy moves too far, unstable PPO
"""

# %%
# Break it
# --------
#
# PPO trains on CartPole, with a continuous action and eight epochs on each batch. The learning rate
# is far too large.
#
# .. fold:: Imports and training

from statistics import median

import gymnasium
import matplotlib.pyplot as plt
import torch
import torchrl
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper, RewardSum, TransformedEnv
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

torch.set_num_threads(1)  # the networks are tiny
torchrl.logger.setLevel("ERROR")
N_ENVS, STEPS, BATCHES, SEEDS = 32, 32, 6, 3


class Push(gymnasium.ActionWrapper):
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def action(self, force):
        self.unwrapped.force_mag = 10 * float(force[0])
        return 1  # to the right, or with a negative force to the left


def make_env():
    return Push(CartPoleEnv())


def train(seed, lr):
    """The mean return in each batch, and what was logged in each update."""
    torch.manual_seed(seed)
    envs = SyncVectorEnv([make_env] * N_ENVS, autoreset_mode=AutoresetMode.SAME_STEP)
    env = TransformedEnv(GymWrapper(envs), RewardSum(), auto_unwrap=True)
    env.set_seed(seed)
    sizes = {"in_features": 4, "num_cells": [64], "activation_class": torch.nn.Tanh}
    net = torch.nn.Sequential(MLP(out_features=2, **sizes), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=env.action_spec_unbatched,
        distribution_class=TanhNormal,
        return_log_prob=True,
    )
    critic = ValueOperator(MLP(out_features=1, **sizes), in_keys=["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    loss_module = ClipPPOLoss(actor, critic)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=lr)
    rows = N_ENVS * STEPS
    sizes = {"frames_per_batch": rows, "total_frames": BATCHES * rows}
    collector = Collector(env, actor, auto_register_policy_transforms=False, **sizes)
    returns, log = [], {"clip_fraction": []}
    for batch in collector:
        ended = batch["next", "episode_reward"][batch["next", "done"]]
        returns.append(ended.mean().item())
        with torch.no_grad():
            advantage(batch)
        for _ in range(8):
            losses = loss_module(batch)
            names = ("loss_objective", "loss_critic", "loss_entropy")
            sum(losses[name] for name in names).backward()
            torch.nn.utils.clip_grad_norm_(loss_module.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            log["clip_fraction"].append(losses["clip_fraction"].item())
        collector.update_policy_weights_()
    collector.shutdown()
    return returns, {"log": log}


# %%

rough = [train(seed, lr=0.3) for seed in range(SEEDS)]
broken = rough[0][1]

# %%
# Check it
# --------
#
# Take the median of the loss's ``"clip_fraction"`` over the second half of the training.


def check(log):
    values = log["clip_fraction"]
    return {"median": round(median(values[len(values) // 2 :]), 2)}


unhealthy = check(**broken)
print(unhealthy)
assert unhealthy["median"] > 0.6, "no longer reproduces: few ratios are clipped"

# %%
# The very first clip fraction should be zero. If it is not, the learning rate is not the cause:
# :ref:`symptom-ppo-clips-before-the-first-update`. On later batches, the first update can clip too.
# Large steps push actions to their bounds. There, the loss does not reproduce the stored
# log-probability (:source:`torchrl.modules.TanhNormal.sample_and_log_prob`).

first = broken["log"]["clip_fraction"][::8]
print("first updates:", [round(fraction, 2) for fraction in first])
assert first[0] == 0 < max(first), "no longer reproduces: bounds do no harm"

# %%
# Fix it
# ------

smooth = [train(seed, lr=0.01) for seed in range(SEEDS)]
fixed = smooth[0][1]
healthy = check(**fixed)
print(healthy)
assert not any(fixed["log"]["clip_fraction"][::8]), "actions are at their bounds"
assert healthy["median"] < 0.4, "the fix does not work: most ratios are still clipped"

# %%
# What it does to the return
# --------------------------

figure, axes = plt.subplots(figsize=(5.4, 3.2), layout="constrained")
frames = [N_ENVS * STEPS * (number + 1) for number in range(BATCHES)]
for trained, color in ((rough, "C1"), (smooth, "C0")):
    for returns, _ in trained:
        axes.plot(frames, returns, color=color)
axes.set(xlabel="frames", ylabel="return of an episode [reward]", ylim=(0, None))
last, better = (sorted(one[-1] for one, _ in trained) for trained in (rough, smooth))
axes.text(frames[-2], better[-1], "learning rate 0.01", color="C0", ha="right")
axes.text(frames[-1], last[0] - 4, "learning rate 0.3", color="C1", ha="right")
figure.set_label(
    f"Return of {SEEDS} seeds. In the last batches it is {better[0]:.0f} to "
    f"{better[-1]:.0f} with the smaller learning rate, and {last[0]:.0f} to {last[-1]:.0f} "
    "with the larger one."
)
plt.show()
assert better[0] > last[-1], "the smaller learning rate no longer helps each seed"

# %%
# Each line is one seed, and each ends higher with the smaller learning rate.
