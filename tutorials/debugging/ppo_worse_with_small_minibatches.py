"""
PPO gets worse with smaller minibatches
=======================================

PPO learns if you train on whole batches. With shuffled minibatches it learns less or nothing,
although each loss is finite.

:Subsystem: value estimation and losses
:Effect: silent
:Cause: The batch has no advantage, so the loss computes an advantage for each minibatch, as if its
   shuffled rows were consecutive steps.
:Fix: Call an advantage module such as ``GAE`` on each batch of the collector before you store the
   batch.
:Source: :source:`torchrl.objectives.ClipPPOLoss.forward`
:Behind it: :ref:`layout-time`
:Threads: none found
:Also called: PPO without GAE, forgot advantage_module, advantage computed inside the loss,
   set_keys(advantage=...) on one side only
"""

# %%
# Break it
# --------

import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.data import (
    LazyTensorStorage,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from torchrl.envs import GymEnv
from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE


def prepare(with_advantage):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    actor = ProbabilisticActor(
        TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"])
    loss = ClipPPOLoss(actor, critic)
    options = {"auto_register_policy_transforms": False}
    collector = Collector(env, actor, frames_per_batch=256, total_frames=-1, **options)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    if with_advantage:
        GAE(gamma=0.99, lmbda=0.95, value_network=critic)(batch)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(256),
        sampler=SamplerWithoutReplacement(),
        batch_size=32,
    )
    buffer.extend(batch)
    return {"batch": buffer.sample(), "loss_module": loss}


broken = prepare(with_advantage=False)

# %%
# Check it
# --------
#
# PPO's loss is a mean over rows, so it must not depend on their order.


def check(minibatch, loss):
    backward = minibatch[torch.arange(len(minibatch)).flip(0)]
    value, again = (loss(rows)["loss_critic"].item() for rows in (minibatch, backward))
    return {"loss": round(value, 2), "rows in reverse order": round(again, 2)}


unhealthy = check(broken["batch"], broken["loss_module"])
print(unhealthy)
assert unhealthy["loss"] != unhealthy["rows in reverse order"], (
    "no longer reproduces: without an advantage, the loss does not depend on the order"
)

# %%
# The loss finds no ``"advantage"`` in the minibatch and, without a warning, calls its own value
# estimator. On a whole batch in time order, that would be right.
#
# The same happens if the advantage has another key: after
# ``advantage_module.set_keys(advantage="adv")``, call ``loss.set_keys(advantage="adv")`` as well.
#
# Fix it
# ------

fixed = prepare(with_advantage=True)
healthy = check(fixed["batch"], fixed["loss_module"])
print(healthy)
assert healthy["loss"] == healthy["rows in reverse order"], "the fix does not work"
