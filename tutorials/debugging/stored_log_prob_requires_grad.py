"""
RuntimeError: stored action_log_prob requires grad
==================================================

The PPO loss refuses the data of ``env.rollout``, although it accepts data from a collector. Each
rollout also takes more memory than its data.

:Subsystem: value estimation and losses
:Effect: loud
:Cause: The policy acted with gradients enabled, so each stored log-probability keeps the graph of
   the old policy. A collector disables gradients; ``env.rollout`` does not.
:Fix: Run ``env.rollout`` and your own collection loops under ``torch.no_grad()``.
:Source: :source:`torchrl.objectives.PPOLoss._log_weight`,
   :source:`torchrl.envs.EnvBase.rollout`
:Behind it: this page
:Threads: :thread:`2458`
:Also called: tensordict stored sample_log_prob requires grad, action requires grad, rollout without
   no_grad, graph kept alive
"""

# %%
# Break it
# --------

import contextlib

import torch
from tensordict.nn import TensorDictModule
from torchrl.envs import GymEnv
from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

torch.manual_seed(0)
linear = TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["logits"])
options = {"distribution_class": OneHotCategorical, "return_log_prob": True}
actor = ProbabilisticActor(linear, in_keys=["logits"], **options)
critic = ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"])
advantage_module = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
loss = ClipPPOLoss(actor, critic)


def roll_out(context):
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    with context:
        batch = env.rollout(40, actor)
    env.close()
    return {"batch": advantage_module(batch), "loss_module": loss}


broken = roll_out(contextlib.nullcontext())
try:
    loss(broken["batch"])
except RuntimeError as error:
    broken["error"] = error
    print(f"{type(error).__name__}: {error}")

# %%
# Check it
# --------


def check(batch):
    values = list(batch.values(include_nested=True, leaves_only=True))
    return {
        "entries": len(values),
        "require grad": sum(x.requires_grad for x in values),
    }


unhealthy = check(broken["batch"])
print(unhealthy)
assert unhealthy["require grad"] > 0, (
    "no longer reproduces: a rollout keeps no gradients"
)
assert "requires grad" in str(broken.get("error")), "no longer reproduces"

# %%
# Fix it
# ------
#
# ``batch.detach()`` also stops the error, but by then the graph is built.

fixed = roll_out(torch.no_grad())
healthy = check(fixed["batch"])
print(healthy)
assert healthy["require grad"] == 0, "the fix does not work"
assert loss(fixed["batch"])["loss_objective"].isfinite(), "the fix does not work"
