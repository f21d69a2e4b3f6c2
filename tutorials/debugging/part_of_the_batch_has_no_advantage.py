"""
The last rows of each batch have no advantage
=============================================

In the last rows of each batch, advantages and value targets are exactly zero. The loss learns from
fewer rows than you collected.

:Subsystem: value estimation and losses
:Effect: silent
:Cause: With ``shifted=True``, each trajectory that was cut needs an extra slot in the call of the
   critic. If ``shifted_budget`` is too small, these slots take the place of the last rows in time.
:Fix: Set ``shifted_budget`` to the number of cut trajectories in a batch plus one, or use
   ``shifted=False``.
:Source: :source:`torchrl.objectives.value.ValueEstimatorBase._call_value_net_shifted`,
   :source:`torchrl.objectives.value.ValueEstimatorBase._mask_shifted_output`
:Behind it: :ref:`recurrent-advantages`
:Threads: :thread:`3782`, :thread:`3784`
:Also called: shifted_valid, shifted_budget, advantage is zero, value_target is zero, rows masked
"""

# %%
# Break it
# --------
#
# With ``shifted=True``, the critic evaluates most observations once instead of twice. Here
# ``max_frames_per_traj`` cuts the trajectories short.

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
# Count the rows whose advantage is exactly zero. The estimator also marks such rows, in
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
# The losses of PPO, A2C and REINFORCE leave the marked rows out of their ``loss_...`` entries
# (:source:`torchrl.objectives.common.AUTO_LOSS_MASK_KEYS`). But their logged entries, such as
# ``entropy``, include these rows. So does any loss if your buffer drops the mask, and any mean that
# you compute yourself.

assert "shifted_valid" in AUTO_LOSS_MASK_KEYS, "the losses use another mask"

# %%
# Fix it
# ------
#
# A trajectory that was cut needs a slot for the value of its last observation. A terminated one
# needs none.

cuts = batch["next", "done"] & ~batch["next", "terminated"]
fixed = with_slots(int(cuts.sum()) + 1)
healthy = check(fixed["batch"], fixed["value_estimator"])
print(healthy)
assert healthy["zero"] == 0, "the fix does not work"

# %%
# The advantages now equal those of ``shifted=False``, which needs no budget.

plain = GAE(value_network=critic, gamma=0.99, lmbda=0.95)
expected = plain(batch.clone())["advantage"]
shifted = fixed["value_estimator"](batch.clone())["advantage"]
torch.testing.assert_close(shifted, expected, rtol=1e-4, atol=1e-4)
