"""
A new gamma changes nothing
===========================

You give a loss another discount with ``make_value_estimator``, during training or in a later cell
of a notebook. The advantages of a batch stay exactly as they were.

:Subsystem: value estimation and losses
:Effect: silent
:Cause: ``make_value_estimator(gamma=...)`` makes a new estimator, and an argument that you leave
   out gets its default. Code that kept the old ``loss.value_estimator`` still uses the old
   settings.
:Fix: Call ``loss.value_estimator(batch)`` instead of an estimator that you keep, and pass all
   settings to each call of ``make_value_estimator``.
:Source: :source:`torchrl.objectives.utils.dispatch_value_estimator`,
   :source:`torchrl.objectives.LossModule.make_value_estimator`
:Behind it: this page
:Threads: :thread:`2462`
:Also called: make_value_estimator forgets lmbda, GAE parameters changed by the loss, gamma ignored,
   two value estimators
"""

# %%
# Break it
# --------
#
# The training loop keeps the estimator of the loss as its advantage module. Then the loss gets a
# new discount.

import torch
from tensordict.nn import TensorDictModule
from torchrl.envs import GymEnv
from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import PPOLoss

torch.manual_seed(0)
env = GymEnv("CartPole-v1")
env.set_seed(0)
batch = env.rollout(30)
env.close()


def change_gamma(then_take_it):
    logits = TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["logits"])
    actor = ProbabilisticActor(
        logits, in_keys=["logits"], distribution_class=OneHotCategorical
    )
    loss = PPOLoss(actor, ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"]))
    loss.make_value_estimator(gamma=0.99, lmbda=0.5)
    advantage_module = loss.value_estimator
    if then_take_it:
        loss.make_value_estimator(gamma=0.5, lmbda=0.5)
        advantage_module = loss.value_estimator
    else:
        loss.make_value_estimator(gamma=0.5)
    return {"loss_module": loss, "value_estimator": advantage_module}


broken = change_gamma(then_take_it=False)

# %%
# Check it
# --------
#
# Compare the estimator of the loss with the one that the training loop uses.


def check(advantage_module, loss):
    found = {"loop": advantage_module, "loss": loss.value_estimator}
    gammas = {f"gamma of the {k}": round(v.gamma.item(), 2) for k, v in found.items()}
    return gammas | {
        f"lmbda of the {k}": round(v.lmbda.item(), 2) for k, v in found.items()
    }


unhealthy = check(broken["value_estimator"], broken["loss_module"])
print(unhealthy)
assert unhealthy["gamma of the loop"] != unhealthy["gamma of the loss"], (
    "no longer reproduces: make_value_estimator changes the estimator that is there"
)
assert unhealthy["lmbda of the loop"] != unhealthy["lmbda of the loss"], (
    "no longer reproduces: make_value_estimator keeps what is not passed"
)

# %%
# The new estimator has also lost the other setting: its ``lmbda`` is the default again.
#
# Fix it
# ------

fixed = change_gamma(then_take_it=True)
healthy = check(fixed["value_estimator"], fixed["loss_module"])
print(healthy)
assert healthy["gamma of the loop"] == healthy["gamma of the loss"], (
    "the fix does not work"
)
assert healthy["lmbda of the loop"] == healthy["lmbda of the loss"], (
    "the fix does not work"
)
advantages = [
    side["value_estimator"](batch.clone())["advantage"] for side in (broken, fixed)
]
assert not advantages[0].equal(advantages[1]), "the fix does not work"
