"""
The last rows of each batch have no advantage
=============================================

From some row of each batch to its end, advantages and value targets are exactly zero. The loss
learns from fewer rows than were collected.

:Subsystem: value estimation and losses
:Effect: silent
:Cause: With ``shifted=True``, each trajectory that was cut takes an extra slot in the call of the
   critic. If ``shifted_budget`` has too few slots, rows at the end of the batch are pushed out.
:Fix: Give ``shifted_budget`` one slot more than a batch has cuts, or use ``shifted=False``.
:Decided in: :source:`torchrl.objectives.value.ValueEstimatorBase._call_value_net_shifted`,
   :source:`torchrl.objectives.value.ValueEstimatorBase._mask_shifted_output`
:Behind it: :ref:`recurrent-advantages`
:Threads: :thread:`3782`, :thread:`3784`
:Also called: shifted_valid, shifted_budget, advantage is zero, value_target is zero, rows masked
"""

# %%
# Break it
# --------
#
# With ``shifted=True``, the critic evaluates most observations once, not twice. Here a time limit
# cuts all trajectories short.

import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import GymEnv
from torchrl.objectives import AUTO_LOSS_MASK_KEYS
from torchrl.objectives.value import GAE

torch.manual_seed(0)
env = GymEnv("CartPole-v1")
env.set_seed(0)
limits = {"frames_per_batch": 120, "max_frames_per_traj": 10}
collector = Collector(env, None, total_frames=-1, **limits)
batch = next(iter(collector)).clone()
collector.shutdown()
critic = TensorDictModule(torch.nn.Linear(4, 1), ["observation"], ["state_value"])


def with_slots(slots):
    settings = {"gamma": 0.99, "lmbda": 0.95, "shifted": True, "shifted_budget": slots}
    return {"batch": batch, "value_estimator": GAE(value_network=critic, **settings)}


broken = with_slots(1)

# %%
# Check it
# --------
#
# Count the rows whose advantage is exactly zero. The estimator marks such rows in
# ``shifted_valid``.


def check(batch, estimator):
    after = estimator(batch.clone())
    nothing = (after["advantage"] == 0).squeeze(-1)
    return {
        "rows": nothing.numel(),
        "zero": int(nothing.sum()),
        "last": bool(nothing[-1]),
    }


unhealthy = check(broken["batch"], broken["value_estimator"])
print(unhealthy)
assert unhealthy["zero"] > 0, "no longer reproduces: each row has an advantage"
assert unhealthy["last"], "no longer reproduces: the rows at the end have an advantage"

# %%
# The losses of PPO, A2C and REINFORCE leave the marked rows out of the means that they return
# under ``loss_``, by :source:`torchrl.objectives.common.AUTO_LOSS_MASK_KEYS`. Their numbers for a
# log, such as ``entropy``, count these rows. A mean of your own, or a buffer that drops the mask,
# counts the zeros.

assert "shifted_valid" in AUTO_LOSS_MASK_KEYS, "the losses use another mask"

# %%
# Fix it
# ------
#
# Terminations need no slot; a trajectory that was cut does, because the value of its last
# observation is needed.

cuts = batch["next", "done"] & ~batch["next", "terminated"]
fixed = with_slots(int(cuts.sum()) + 1)
healthy = check(fixed["batch"], fixed["value_estimator"])
print(healthy)
assert healthy["zero"] == 0, "the fix does not work"

# %%
# The advantages are then those of ``shifted=False``, whose calls need no budget.

plain = GAE(value_network=critic, gamma=0.99, lmbda=0.95)
expected = plain(batch.clone())["advantage"]
shifted = fixed["value_estimator"](batch.clone())["advantage"]
torch.testing.assert_close(shifted, expected, rtol=1e-4, atol=1e-4)
