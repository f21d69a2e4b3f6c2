"""
The loss of DQN or SAC is NaN from the first batch
==================================================

The first loss of an off-policy algorithm is NaN. But rewards, actions and observations in the
buffer's storage are finite, and PPO trains on samples of it. After one optimizer step, weights of
the value network are NaN, too.

:Subsystem: memory and storage
:Effect: silent
:Cause: With ``compact_obs=True``, the next observation in the last row of nearly every slice is
   NaN. Losses such as ``DQNLoss`` call the value estimator's ``value_estimate``, and this method
   does not replace NaN. The estimator's ``forward``, which PPO uses, replaces it.
:Fix: With TD(0), the default of these losses, write zeros for NaN in terminated rows, and drop the
   other rows whose next observation is NaN. With TD(lambda), store both observations of each step.
:Source: :source:`torchrl.objectives.value.TD0Estimator.value_estimate`,
   :source:`torchrl.objectives.value.ValueEstimatorBase._sanitize_next_obs_nan`
:Behind it: :doc:`/tutorials/memory/missing_next_observations`
:Threads: :thread:`3744`, :thread:`3743`
:Also called: nan loss, nan weights, compact_obs, NextStateReconstructor, DQNLoss, DiscreteSACLoss
"""

# %%
# Break it
# --------

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import GymEnv, StepCounter, TransformedEnv
from torchrl.envs.transforms import NextStateReconstructor
from torchrl.modules import MLP, QValueActor
from torchrl.objectives import DQNLoss

env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter())
env.set_seed(0)
torch.manual_seed(0)
collector = Collector(
    env, None, frames_per_batch=200, total_frames=-1, compact_obs=True
)
replay_buffer = TensorDictReplayBuffer(
    storage=LazyTensorStorage(200),
    sampler=SliceSampler(slice_len=8, traj_key=("collector", "traj_ids")),
    transform=NextStateReconstructor(step_count_key="step_count"),
    batch_size=256,
)
replay_buffer.extend(next(iter(collector)).clone())
collector.shutdown()
sample = replay_buffer.sample()

net = MLP(in_features=4, out_features=2, num_cells=[32])
actor = QValueActor(net, in_keys=["observation"], spec=env.action_spec)
loss_module = DQNLoss(actor, action_space="one-hot", delay_value=False)
loss_module.make_value_estimator(gamma=0.99)

broken = {"loss_module": loss_module, "batch": sample}

# %%
# Check it
# --------


def check(loss_module, batch):
    missing = batch["next", "observation"].isnan().any(-1)
    loss = round(loss_module(batch.clone())["loss"].item(), 1)
    return {"rows": len(batch), "no next observation": int(missing.sum()), "loss": loss}


unhealthy = check(**broken)
print(unhealthy)
assert unhealthy["loss"] != unhealthy["loss"], (
    "no longer reproduces: the loss is finite although next observations are NaN"
)

# %%
# Why PPO does not mind
# ---------------------
#
# PPO gets its advantages from ``forward`` of its estimator. Where the next observation is NaN,
# ``forward`` uses the current one. The advantage is then exact only for terminated rows, but it is
# finite. The estimator of the loss above does the same:

advantage = loss_module.value_estimator(
    sample.clone(),
    params=loss_module.value_network_params.detach(),
    target_params=loss_module.target_value_network_params,
)["advantage"]
print({"advantages finite": bool(advantage.isfinite().all())})
assert advantage.isfinite().all(), "no longer reproduces: forward gives NaN as well"

# %%
# Fix it
# ------
#
# The target of a terminated row does not depend on its next observation, so zeros do no harm. Do
# not drop rows before GAE or TD(lambda): both pass values from row to row.

missing = sample["next", "observation"].isnan().any(-1)
terminated = sample["next", "terminated"].squeeze(-1)
usable = sample[~missing | terminated]
usable["next", "observation"] = usable["next", "observation"].nan_to_num(0.0)
fixed = {"loss_module": loss_module, "batch": usable}
healthy = check(**fixed)
print(healthy)
assert healthy["loss"] < float("inf"), "the fix does not work: the loss is not finite"
assert healthy["rows"] > (~missing).sum(), (
    "the fix does not work: no terminated row is left"
)
