"""
KeyError: couldn't find the log-prob
====================================

The policy, the collector and GAE work. The first call of the loss raises an error about a missing
key that your code does not mention.

:Subsystem: value estimation and losses
:Effect: loud
:Cause: The actor was made without ``return_log_prob=True``, so the batches hold actions without
   log-probabilities. Losses that compare an old policy with a new one need both.
:Fix: Pass ``return_log_prob=True`` to the actor that collects.
:Source: :source:`torchrl.objectives.PPOLoss._log_weight`,
   :source:`torchrl.modules.ProbabilisticActor.__init__`
:Behind it: :ref:`layout-keys`
:Threads: :thread:`4148`
:Also called: action_log_prob missing, sample_log_prob missing, return_log_prob, renamed to
   action_log_prob
"""

# %%
# Break it
# --------
#
# The actor has its default settings.

import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import GymEnv
from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE


def one_epoch(**of_the_actor):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    actor = ProbabilisticActor(
        TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        **of_the_actor,
    )
    critic = ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"])
    options = {"auto_register_policy_transforms": False}
    collector = Collector(env, actor, frames_per_batch=32, total_frames=-1, **options)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    GAE(gamma=0.99, lmbda=0.95, value_network=critic)(batch)
    side = {"batch": batch, "loss_module": ClipPPOLoss(actor, critic)}
    try:
        side["loss_module"](batch)
    except KeyError as error:
        side["error"] = error
    return side


broken = one_epoch()
if "error" in broken:
    print(f"{type(broken['error']).__name__}: {broken['error']}")

# %%
# Check it
# --------
#
# Look in the batch for the main keys that the loss reads.


def check(batch, loss):
    keys = loss.tensor_keys
    names = ["action", "sample_log_prob", "advantage", "value_target"]
    return {name: getattr(keys, name) in batch for name in names}


unhealthy = check(broken["batch"], broken["loss_module"])
print(unhealthy)
assert not unhealthy["sample_log_prob"], "no longer reproduces: the actor writes it"
assert "find the log-prob" in str(broken.get("error")), "no longer reproduces"

# %%
# The loss calls the key ``sample_log_prob``. The error message has the key's name in the batch.
#
# Fix it
# ------
#
# Refill an existing buffer, because after an update you no longer have the weights that chose its
# actions.

fixed = one_epoch(return_log_prob=True)
healthy = check(fixed["batch"], fixed["loss_module"])
print(healthy)
assert all(healthy.values()), "the fix does not work"
assert "error" not in fixed, "the fix does not work"
