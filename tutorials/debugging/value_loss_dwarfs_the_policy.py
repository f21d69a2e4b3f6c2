"""
The value loss dwarfs the policy loss
=====================================

The return stays flat, and the critic's loss is huge. Rewards are large, and actor and critic share
layers.

:Subsystem: value estimation and losses
:Effect: silent
:Cause: The gradient of an ``"l2"`` value loss grows with the rewards. With normalized advantages,
   the gradient of the policy loss does not grow. In the shared layers, the value gradient drowns
   the policy gradient.
:Fix: Scale the rewards until returns are of the order of 10:
   ``env.append_transform(RewardScaling(loc=0, scale=0.001))``.
:Source: :source:`torchrl.objectives.PPOLoss.loss_critic`,
   :source:`torchrl.envs.transforms.RewardScaling`
:Behind it: this page
:Threads: none found
:Also called: reward scale, large rewards, reward scaling, value loss too high, critic loss
   dominates, shared trunk, shared backbone, critic_coeff, clip_grad_norm
"""

# %%
# Break it
# --------
#
# Each step of CartPole earns 100 instead of 1. Actor and critic share their
# hidden layer, and the loss has ``loss_critic_type="l2"``.
#
# .. fold:: Imports, environment, networks and loss

import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import GymEnv, RewardScaling, TransformedEnv
from torchrl.modules import (
    ActorValueOperator,
    OneHotCategorical,
    ProbabilisticActor,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

torch.set_num_threads(1)  # the networks are tiny


def make_env():
    env = TransformedEnv(GymEnv("CartPole-v1"), RewardScaling(loc=0, scale=100))
    env.set_seed(0)
    return env


def make(env, **options):
    """A loss, and a batch with advantages."""
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh())
    logits = TensorDictModule(torch.nn.Linear(64, 2), ["hidden"], ["logits"])
    both = ActorValueOperator(
        TensorDictModule(layer, ["observation"], ["hidden"]),
        ProbabilisticActor(
            logits,
            in_keys=["logits"],
            spec=env.action_spec,
            distribution_class=OneHotCategorical,
            return_log_prob=True,
        ),
        ValueOperator(torch.nn.Linear(64, 1), in_keys=["hidden"]),
    )
    actor, critic = both.get_policy_operator(), both.get_value_operator()
    sizes = {"frames_per_batch": 500, "total_frames": 500}
    collector = Collector(env, actor, auto_register_policy_transforms=False, **sizes)
    (batch,) = (one.clone() for one in collector)
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    with torch.no_grad():
        advantage(batch)
    loss = ClipPPOLoss(actor, critic, loss_critic_type="l2", **options)
    return {"loss_module": loss, "batch": batch}


# %%

broken = make(make_env())

with torch.no_grad():
    losses = broken["loss_module"](broken["batch"])
print(f"policy: {losses['loss_objective']:.3f}, value: {losses['loss_critic']:,.0f}")

# %%
# Check it
# --------
#
# Compare the gradients of both losses in the shared weights. Do not compare the losses: with
# normalized advantages, the policy loss starts near zero.


def check(loss_module, batch):
    losses, weights = loss_module(batch), list(loss_module.parameters())
    norms = (
        [
            0 if gradient is None else gradient.norm().item()
            for gradient in torch.autograd.grad(
                losses[name], weights, retain_graph=True, allow_unused=True
            )
        ]
        for name in ("loss_critic", "loss_objective")
    )
    return {
        "value over policy": round(
            max((v / p for v, p in zip(*norms, strict=True) if p), default=0)
        )
    }


unhealthy = check(**broken)
print(unhealthy)
assert unhealthy["value over policy"] > 1000, (
    "no longer reproduces: both losses pull on the shared layer alike"
)

# %%
# Fix it
# ------
#
# To log the unscaled return, append :class:`~torchrl.envs.transforms.RewardSum` before the scaling.

env = make_env()
env.append_transform(RewardScaling(loc=0, scale=0.001))
fixed = make(env)
healthy = check(**fixed)
print(healthy)
assert healthy["value over policy"] < 100, (
    "the fix does not work: the value loss still has the shared layer to itself"
)

# %%
# Another fix is ``separate_losses=True``. The value loss then trains only the critic's layers:

alone = check(**make(make_env(), separate_losses=True))
print(alone)
assert alone["value over policy"] == 0, "the value loss still reaches the shared layer"

# %%
# What it does to the return
# --------------------------
#
# .. record-plot:: learning_dynamics@cpu
#    :x: frames
#    :y: episode_return
#    :series: training
#    :rows: rewards-*
#    :caption: Return of PPO on CartPole: median and quartiles of five seeds
#
# With two separate networks, rewards of 100 did no harm, because Adam divides each gradient by its
# usual size. :claim:`large-rewards-harm-shared-layers` With ``loss_critic_type="smooth_l1"``, the
# gradient of each row is bounded, so the ratio above stays small, but the return stays nearly as
# low as with ``"l2"``. :claim:`smooth-l1-does-not-save-shared-layers`
