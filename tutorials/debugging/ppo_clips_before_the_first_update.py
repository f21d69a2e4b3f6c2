"""
PPO clips ratios before the first update
========================================

Before the first update, the old and the new policy are the same, so each ratio of their
probabilities should be one. But the loss reports a ``clip_fraction`` above zero.

:Subsystem: value estimation and losses
:Effect: silent
:Cause: The stored log-probability has shape ``[N, 1]`` and the loss computes one of shape ``[N]``.
   Their difference broadcasts to shape ``[N, N]``, so there is a ratio for each pair of rows.
:Fix: Store the log-probability as the policy wrote it, with the shape of the batch. If your
   own code added a dimension, drop it: ``batch["action_log_prob"] = log_prob.squeeze(-1)``.
:Source: :source:`torchrl.objectives.PPOLoss._log_weight`
:Behind it: :ref:`layout-shapes`
:Threads: :thread:`1243`
:Also called: log-prob shape [N] against [N, 1], sample_log_prob unsqueeze, ratio not one,
   importance weights, ESS, max_ratio, broadcasting
"""

# %%
# Break it
# --------
#
# Reward, value, advantage and ``done`` have a trailing dimension. The log-probability has no such
# dimension, but this code adds it.

import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import GymEnv
from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE


def first_batch(make_alike):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    logits = TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["logits"])
    settings = {"distribution_class": OneHotCategorical, "return_log_prob": True}
    actor = ProbabilisticActor(logits, in_keys=["logits"], **settings)
    critic = ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"])
    options = {"auto_register_policy_transforms": False}
    collector = Collector(env, actor, frames_per_batch=64, total_frames=-1, **options)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    GAE(gamma=0.99, lmbda=0.95, value_network=critic)(batch)
    if make_alike:
        batch["action_log_prob"] = batch["action_log_prob"].unsqueeze(-1)
    return {"batch": batch, "loss_module": ClipPPOLoss(actor, critic)}


broken = first_batch(make_alike=True)

# %%
# Check it
# --------
#
# Call the loss before the first step of the optimizer.


def check(batch, loss):
    values = loss(batch)
    names = ["clip_fraction", "max_ratio", "kl_approx"]
    return {name: abs(round(values[name].item(), 2)) for name in names}


unhealthy = check(broken["batch"], broken["loss_module"])
print(unhealthy)
assert unhealthy["clip_fraction"] > 0.05, (
    "no longer reproduces: the loss does not clip, whatever the shape of the log-probability"
)

# %%
# The approximate KL divergence stays near zero, because errors of both signs cancel in its mean. An
# *advantage* without its trailing dimension raises an error
# (:source:`torchrl.objectives.ppo._check_advantage_broadcast`). A log-probability with an extra
# dimension does not: the loss treats the second dimension of the ratios as the tokens of one action
# (:source:`torchrl.objectives.ppo._broadcast_advantage_to_log_weight`).
#
# Fix it
# ------
#
# Without the added dimension, each ratio is one. If your shapes agree already, look for
# :doc:`dropout in the policy </tutorials/debugging/actions_stay_noisy>` and, with an LSTM, at
# :doc:`how minibatches are drawn </tutorials/debugging/ppo_ratio_off_in_minibatches>`.

fixed = first_batch(make_alike=False)
healthy = check(fixed["batch"], fixed["loss_module"])
print(healthy)
assert healthy["clip_fraction"] == 0, "the fix does not work"
assert healthy["max_ratio"] == 1, "the fix does not work"

# %%
# Do not remove the advantage's trailing dimension instead. Without it, the loss raises:

flat = fixed["batch"].clone()
flat["advantage"] = flat["advantage"].squeeze(-1)
try:
    fixed["loss_module"](flat)
except ValueError as error:
    print(f"{type(error).__name__}: {error}")
    assert "outer product" in str(error), "no longer reproduces: another message"
else:
    raise AssertionError("no longer reproduces: such an advantage does not raise")
