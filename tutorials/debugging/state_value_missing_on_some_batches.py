"""
KeyError: state_value, on some batches only
===========================================

PPO with value clipping may train for a while. Then the loss raises because a batch has no
``state_value``, although you called GAE on every batch.

:Subsystem: value estimation and losses
:Effect: loud
:Cause: The batch has NaN in its next observations. GAE replaces the NaN in a copy of the batch, and
   writes ``state_value`` only to this copy.
:Fix: After GAE, call the critic on each batch in which ``state_value`` is missing.
:Source: :source:`torchrl.objectives.value.ValueEstimatorBase._sanitize_next_obs_nan`,
   :source:`torchrl.objectives.PPOLoss.loss_critic`
:Behind it: :doc:`/tutorials/memory/missing_next_observations`
:Threads: :thread:`3744`
:Also called: clip_value is set to, key state_value was not found, compact_obs, NaN next
   observation, NextStateReconstructor, native_autoreset
"""

# %%
# Break it
# --------
#
# The batch is collected without next observations. They are then rebuilt from the rows that follow.
# No row follows the last row of a trajectory or of the batch, so these rows get NaN.

import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import GymEnv, StepCounter, TransformedEnv
from torchrl.envs.transforms import NextStateReconstructor
from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

torch.manual_seed(0)
logits = TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["logits"])
actor = ProbabilisticActor(
    logits,
    in_keys=["logits"],
    distribution_class=OneHotCategorical,
    return_log_prob=True,
)
critic = ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"])
advantage_module = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
loss = ClipPPOLoss(actor, critic, clip_value=0.2)


def collect(with_values):
    env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter())
    env.set_seed(0)
    options = {"auto_register_policy_transforms": False, "compact_obs": True}
    collector = Collector(env, actor, frames_per_batch=64, total_frames=-1, **options)
    rebuild = NextStateReconstructor(step_count_key="step_count")
    batch = rebuild(next(iter(collector)).clone())
    collector.shutdown()
    advantage_module(batch)
    if with_values:
        with torch.no_grad():
            critic(batch)
    return {"batch": batch, "value_estimator": advantage_module, "loss_module": loss}


broken = collect(with_values=False)
try:
    loss(broken["batch"])
except KeyError as error:
    broken["error"] = error
    print(f"{type(error).__name__}: {error}")

# %%
# Check it
# --------
#
# Look at the batch that the loss refuses. A batch without NaN keeps its ``state_value``, so the
# error comes with the first batch that has NaN. A whole batch that is rebuilt as above always has
# NaN in its last row.


def check(batch):
    unknown = batch["next", "observation"].isnan().any(-1)
    return {"rows with NaN": int(unknown.sum()), "state_value": "state_value" in batch}


unhealthy = check(broken["batch"])
print(unhealthy)
assert not unhealthy["state_value"], "no longer reproduces: GAE keeps the values"
assert unhealthy["rows with NaN"] > 0, "no trajectory ends in the batch"
assert "clip_value is set to" in str(broken.get("error")), "no longer reproduces"

# %%
# Fix it
# ------
#
# The batch has the advantages, but not the values that belong to them. Write the values yourself,
# before the first step of the optimizer changes the critic. But do not write them before GAE. By
# default (``shifted=False``), GAE refuses a batch with ``state_value`` at the root and none under
# ``next``.

fixed = collect(with_values=True)
healthy = check(fixed["batch"])
print(healthy)
assert healthy["state_value"], "the fix does not work"
assert loss(fixed["batch"])["loss_critic"].isfinite(), "the fix does not work"
