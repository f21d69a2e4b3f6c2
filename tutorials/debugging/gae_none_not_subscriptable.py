"""
GAE: 'NoneType' object is not subscriptable
===========================================

The critic works on its own. Inside GAE it seems to return nothing. Inside the loss, a ``KeyError``
names a key that you did not choose.

:Subsystem: value estimation and losses
:Effect: loud
:Cause: The critic does not write its value to ``"state_value"``, where GAE and the loss look for
   it by default.
:Fix: Pass the key to GAE and the loss with ``set_keys(value=...)``, or let the critic write
   ``"state_value"``.
:Source: :source:`torchrl.objectives.value.ValueEstimatorBase._call_value_nets`,
   :source:`torchrl.objectives.value.ValueEstimatorBase.set_keys`
:Behind it: :term:`set_keys` in :doc:`/reference/glossary`
:Threads: :thread:`1097`, :thread:`1144`, :thread:`1274`
:Also called: value key not found in value network out_keys, KeyError state_value, out_keys of the
   critic, ValueOperator writes state_action_value
"""

# %%
# Break it
# --------
#
# The critic writes its value to the key ``"worth"``.

import torch
from tensordict.nn import TensorDictModule
from torchrl.envs import GymEnv
from torchrl.modules import OneHotCategorical, ProbabilisticActor
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

torch.manual_seed(0)
env = GymEnv("CartPole-v1")
env.set_seed(0)
batch = env.rollout(20)
env.close()


def wire(**keys):
    logits = TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["logits"])
    actor = ProbabilisticActor(
        logits, in_keys=["logits"], distribution_class=OneHotCategorical
    )
    critic = TensorDictModule(torch.nn.Linear(4, 1), ["observation"], ["worth"])
    estimator = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss = ClipPPOLoss(actor, critic)
    for one in (estimator, loss):
        one.set_keys(**keys)
    return {"value_estimator": estimator, "loss_module": loss}


broken = wire()
try:
    broken["value_estimator"](batch.clone())
except TypeError as error:
    broken["error"] = error
    print(f"{type(error).__name__}: {error}")

# %%
# When the loss first needs an estimator, it makes one. This estimator compares the keys:

try:
    print(broken["loss_module"].value_estimator)
except KeyError as error:
    print(f"{type(error).__name__}: {error}")
    assert "not found in value network out_keys" in str(error), "no longer reproduces"

# %%
# Check it
# --------
#
# Compare the key that is read with the keys that the critic writes.


def check(estimator, loss):
    written = estimator.value_network.out_keys
    readers = {"GAE": estimator, "loss": loss}
    return {name: one.tensor_keys.value in written for name, one in readers.items()}


unhealthy = check(broken["value_estimator"], broken["loss_module"])
print(unhealthy)
assert not any(unhealthy.values()), (
    "no longer reproduces: the keys are found by themselves"
)
assert "NoneType" in str(broken.get("error")), (
    "no longer reproduces: GAE finds the value"
)

# %%
# Fix it
# ------
#
# Set the key on both. The estimator's ``set_keys`` compares the key with the critic's keys, so a
# misspelled key raises at once.

fixed = wire(value="worth")
healthy = check(fixed["value_estimator"], fixed["loss_module"])
print(healthy)
assert all(healthy.values()), "the fix does not work"
after = fixed["value_estimator"](batch.clone())
assert after["advantage"].isfinite().all(), "the fix does not work"
