"""
Learning is slow: one observation dwarfs the others
===================================================

The return rises slowly or not at all. One entry of the observation has values in the tens or
hundreds, the others around one.

:Subsystem: environments
:Effect: silent
:Cause: The entries of the observation have different scales. The first layer starts with weights of
   similar size for all entries, so the largest entry dominates nearly every hidden unit.
:Fix: Bring all entries to the same scale: append ``ObservationNorm(in_keys=["observation"],
   standard_normal=True)`` and call its ``init_stats``, or append ``VecNormV2``.
:Source: :source:`torchrl.envs.transforms.ObservationNorm._apply_transform`
:Behind it: :doc:`/how-to/normalize_across_workers`
:Threads: none found
:Also called: observation scale, unscaled observations, normalize observations, features of
   different scale, units of the observation, millimeters, degrees, saturated tanh, slow learning,
   VecNorm
"""

# %%
# Break it
# --------
#
# PPO trains on CartPole with three seeds. The position of the cart is in millimeters.
#
# .. fold:: Imports and training

from statistics import median

import matplotlib.pyplot as plt
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import Compose, GymWrapper, ObservationNorm, RewardSum, TransformedEnv
from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

torch.set_num_threads(1)  # the networks are tiny
N_ENVS, STEPS, BATCHES, SEEDS = 32, 32, 5, 3


def make_env(seed):
    envs = SyncVectorEnv([CartPoleEnv] * N_ENVS, autoreset_mode=AutoresetMode.SAME_STEP)
    scale = torch.tensor([1000.0, 1.0, 1.0, 1.0])
    millimeters = ObservationNorm(loc=0.0, scale=scale, in_keys=["observation"])
    transforms = Compose(RewardSum(), millimeters)
    env = TransformedEnv(GymWrapper(envs), transforms, auto_unwrap=True)
    env.set_seed(seed)
    return env


def train(seed, normalize=None):
    """The mean return of the episodes that ended in each batch, and the last batch."""
    torch.manual_seed(seed)
    env = make_env(seed)
    if normalize is not None:
        normalize(env)
    sizes = {"in_features": 4, "num_cells": [64], "activation_class": torch.nn.Tanh}
    logits = TensorDictModule(MLP(out_features=2, **sizes), ["observation"], ["logits"])
    actor = ProbabilisticActor(
        logits,
        in_keys=["logits"],
        spec=env.action_spec_unbatched,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(MLP(out_features=1, **sizes), in_keys=["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    loss_module = ClipPPOLoss(actor, critic, loss_critic_type="l2")
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=0.01)
    rows = N_ENVS * STEPS
    sizes = {"frames_per_batch": rows, "total_frames": BATCHES * rows}
    collector = Collector(env, actor, auto_register_policy_transforms=False, **sizes)
    returns = []
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
        collector.update_policy_weights_()
    collector.shutdown()
    return returns, {"batch": batch, "policy": actor}


# %%

slow = [train(seed) for seed in range(SEEDS)]
broken = slow[-1][1]

# %%
# Check it
# --------
#
# Compare the standard deviations of the observation's entries, as the policy reads them.


def check(batch, key="observation"):
    deviations = batch[key].flatten(0, -2).std(0)
    return {"deviations": [round(one, 2) for one in deviations.tolist()]}


unhealthy = check(broken["batch"])
print(unhealthy)
assert max(unhealthy["deviations"]) > 30 * median(unhealthy["deviations"]), (
    "no longer reproduces: the entries have one scale"
)

# %%
# Fix it
# ------
#
# ``init_stats`` takes random actions, and stores the mean and the standard deviation of each entry.
# Both are taken over dimension 0 (environments) and dimension 1 (time).


def normalize(env):
    norm = ObservationNorm(in_keys=["observation"], standard_normal=True)
    env.append_transform(norm)
    norm.init_stats(num_iter=20, reduce_dim=(0, 1), cat_dim=1)


fast = [train(seed, normalize) for seed in range(SEEDS)]
fixed = fast[-1][1]
healthy = check(fixed["batch"])
print(healthy)
assert max(healthy["deviations"]) < 10 * median(healthy["deviations"]), (
    "the fix does not work: one entry is still far larger than the others"
)

# %%
# A trained policy moves the cart farther than random actions do, so the deviation of the first
# entry is above one. If that does harm, use
# :class:`~torchrl.envs.transforms.VecNormV2`, which updates its statistics during training
# (:doc:`/how-to/normalize_across_workers`).
#
# What it does to the return
# --------------------------

figure, axes = plt.subplots(figsize=(5.4, 3.2), layout="constrained")
frames = [N_ENVS * STEPS * (number + 1) for number in range(BATCHES)]
for trained, color in ((slow, "C1"), (fast, "C0")):
    for returns, _ in trained:
        axes.plot(frames, returns, color=color)
axes.set(xlabel="frames", ylabel="return of an episode [reward]", ylim=(0, None))
last, better = (sorted(one[-1] for one, _ in trained) for trained in (slow, fast))
axes.text(frames[-2], better[-1], "normalized", color="C0", ha="right")
axes.text(frames[-1], last[0] + 5, "in millimeters", color="C1", ha="right")
figure.set_label(
    f"Return of {SEEDS} seeds. In the last batches it is {better[0]:.0f} to "
    f"{better[-1]:.0f} with normalized observations, and {last[0]:.0f} to {last[-1]:.0f} "
    "in millimeters."
)
plt.show()
assert better[0] > last[-1], "normalization no longer helps each seed"

# %%
# Each line is one seed. The worst seed with normalized observations still ends above the best one
# in millimeters.
