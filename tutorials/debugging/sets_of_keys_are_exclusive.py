"""
GAE: the sets of keys to stack are exclusive
============================================

GAE works on a rollout with random actions. On batches that the policy collected, it raises an error
about stacking that names no key.

:Subsystem: value estimation and losses
:Effect: loud
:Cause: The policy contains the critic, and writes ``state_value`` at the root while it acts.
   Nothing writes it under ``next``, but by default GAE stacks the root and ``next``.
:Fix: Collect with ``actor_critic.get_policy_operator()``, which does not write the value.
:Source: :source:`torchrl.objectives.value.ValueEstimatorBase._call_value_nets`
:Behind it: :ref:`layout-keys`
:Threads: none found
:Also called: ActorValueOperator in a collector, shared trunk, Consider using
   LazyStackedTensorDict.maybe_dense_stack, state_value in the batch
"""

# %%
# Break it
# --------

import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import GymEnv
from torchrl.modules import (
    ActorValueOperator,
    OneHotCategorical,
    ProbabilisticActor,
    ValueOperator,
)
from torchrl.objectives.value import GAE

torch.manual_seed(0)
trunk = TensorDictModule(torch.nn.Linear(4, 8), ["observation"], ["hidden"])
logits = TensorDictModule(torch.nn.Linear(8, 2), ["hidden"], ["logits"])
head = ProbabilisticActor(
    logits, in_keys=["logits"], distribution_class=OneHotCategorical
)
value = ValueOperator(torch.nn.Linear(8, 1), in_keys=["hidden"])
actor_critic = ActorValueOperator(trunk, head, value)
critic = actor_critic.get_value_operator()


def collect_with(policy):
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    options = {"auto_register_policy_transforms": False}
    collector = Collector(env, policy, frames_per_batch=40, total_frames=-1, **options)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    estimator = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    return {"batch": batch, "value_estimator": estimator}


broken = collect_with(actor_critic)
try:
    broken["value_estimator"](broken["batch"].clone())
except RuntimeError as error:
    broken["error"] = error
    print(f"{type(error).__name__}: {error}")

# %%
# Check it
# --------
#
# GAE stacks the inputs and the value of the critic at the root and under ``next``. So each key has
# to be in both or in neither.


def check(batch, estimator):
    keys = [*estimator.value_network.in_keys, estimator.tensor_keys.value]
    return {key: (key in batch) == (key in batch["next"]) for key in keys}


unhealthy = check(broken["batch"], broken["value_estimator"])
print(unhealthy)
assert not unhealthy["state_value"], "no longer reproduces: the value stands in both"
assert "sets of keys" in str(broken.get("error")), "no longer reproduces: GAE stacks"

# %%
# Fix it
# ------
#
# If you have the batch already, ``batch.exclude("state_value")`` helps, too: GAE then computes the
# value again.

fixed = collect_with(actor_critic.get_policy_operator())
healthy = check(fixed["batch"], fixed["value_estimator"])
print(healthy)
assert all(healthy.values()), "the fix does not work"
after = fixed["value_estimator"](fixed["batch"].clone())
assert after["advantage"].isfinite().all(), "the fix does not work"
excluded = fixed["value_estimator"](broken["batch"].clone().exclude("state_value"))
assert "state_value" in excluded, "the other fix does not work"
