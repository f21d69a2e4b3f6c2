"""
Nothing is learned any more: hidden units are dead
==================================================

The return is flat, and the policy acts almost the same for all observations. Losses and gradients
are finite.

:Subsystem: value estimation and losses
:Effect: silent
:Cause: Optimizer steps that were too large made the inputs of many ReLUs negative for every
   observation. Such a ReLU outputs zero, and the weights into it get no gradient.
:Fix: Lower the learning rate, and clip the norm of the gradients. Start the training again, because
   dead units rarely recover.
:Source: :source:`torchrl.modules.MLP`
:Behind it: :doc:`/reference/doctor_numbers`
:Threads: none found
:Also called: dead units, dead neurons, dying ReLU, dormant neurons, loss of plasticity, saturated
   units, zero activations, activation_class
"""

# %%
# Break it
# --------
#
# PPO learns CartPole with ReLUs and plain SGD, for three seeds. The learning rate is far too large.
#
# .. fold:: Imports and training

import matplotlib.pyplot as plt
import torch
import torchrl
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper, RewardSum, TransformedEnv
from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

torch.set_num_threads(1)  # the networks are tiny
torchrl.logger.setLevel("ERROR")
N_ENVS, STEPS, BATCHES, SEEDS = 32, 32, 6, 3


def train(seed, lr):
    """The mean return in each batch, the last batch with the policy, and its network."""
    torch.manual_seed(seed)
    envs = SyncVectorEnv([CartPoleEnv] * N_ENVS, autoreset_mode=AutoresetMode.SAME_STEP)
    env = TransformedEnv(GymWrapper(envs), RewardSum(), auto_unwrap=True)
    env.set_seed(seed)
    sizes = {"in_features": 4, "num_cells": [32, 32]}
    sizes["activation_class"] = torch.nn.ReLU
    network = MLP(out_features=2, **sizes)
    logits = TensorDictModule(network, ["observation"], ["logits"])
    actor = ProbabilisticActor(
        logits,
        in_keys=["logits"],
        spec=env.action_spec_unbatched,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(MLP(out_features=1, **sizes), in_keys=["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    loss_module = ClipPPOLoss(actor, critic)
    optimizer = torch.optim.SGD(loss_module.parameters(), lr=lr)
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
            optimizer.step()
            optimizer.zero_grad()
        collector.update_policy_weights_()
    collector.shutdown()
    return returns, {"batch": batch, "policy": actor}, network


# %%

dead = [train(seed, lr=10.0) for seed in range(SEEDS)]
broken = dead[0][1]
network = dead[0][2]

# %%
# Check it
# --------
#
# Run a batch of observations through the network up to each ReLU, and count the units whose output
# is always zero.


def check(network, observations):
    ends = [n + 1 for n, one in enumerate(network) if isinstance(one, torch.nn.ReLU)]
    outputs = [torch.nn.Sequential(*list(network)[:end])(observations) for end in ends]
    return {"dead": [int((o == 0).flatten(0, -2).all(0).sum()) for o in outputs]}


unhealthy = check(network, broken["batch"]["observation"])
print(unhealthy)
dead_units = [
    max(check(network, given["batch"]["observation"])["dead"])
    for _, given, network in dead
]
print("most in a layer, by seed:", dead_units)
assert min(dead_units) > 16, "no longer reproduces: units are alive"

# %%
# A few dead units do little harm, and a new network may have some. Here, most of a layer's 32 units
# are dead.
#
# With ``Tanh``, the default of :class:`~torchrl.modules.MLP`, look for units that are 1 or -1 for
# all observations: they are saturated, and their gradient is next to zero.
#
# Fix it
# ------

alive = [train(seed, lr=1.0) for seed in range(SEEDS)]
fixed = alive[0][1]
healthy = check(alive[0][2], fixed["batch"]["observation"])
print(healthy)
assert max(healthy["dead"]) < 16, "the fix does not work: units are dead"

# %%
# What it does to the return
# --------------------------

figure, axes = plt.subplots(figsize=(5.4, 3.2), layout="constrained")
frames = [N_ENVS * STEPS * (number + 1) for number in range(BATCHES)]
for trained, color in ((dead, "C1"), (alive, "C0")):
    for returns, *_ in trained:
        axes.plot(frames, returns, color=color)
axes.set(xlabel="frames", ylabel="return of an episode [reward]", ylim=(0, None))
last, better = (sorted(one[0][-1] for one in trained) for trained in (dead, alive))
axes.text(frames[-2], better[-1], "units alive", color="C0", ha="right")
axes.text(frames[-1], last[-1] + 3, "units dead", color="C1", ha="right")
figure.set_label(
    f"Return of {SEEDS} seeds. In the last batches it is {better[0]:.0f} to "
    f"{better[-1]:.0f} with units that are alive, and {last[0]:.0f} to {last[-1]:.0f} "
    "with dead ones."
)
plt.show()
assert better[0] > last[-1], "dead units no longer do harm to each seed"

# %%
# Each line is a seed. Even the worst seed with live units ends above all seeds with dead ones.
