"""
N-step values settle too high or too low
========================================

With n-step returns, values converge to other numbers than with one-step returns, although the
environment and the discount of the loss are the same.

:Subsystem: value estimation and losses
:Effect: silent
:Cause: ``MultiStepTransform`` sums the rewards with its own ``gamma``. The loss discounts the next
   value with another ``gamma``, for example its default.
:Fix: Pass the same ``gamma`` to the transform and to ``loss.make_value_estimator``.
:Source: :source:`torchrl.envs.transforms.MultiStepTransform._inv_call`,
   :source:`torchrl.objectives.value.TD0Estimator.value_estimate`
:Behind it: :doc:`/how-to/n_step_with_priorities`
:Threads: none found
:Also called: MultiStepTransform, MultiStep, two discounts, gamma set in two places, n-step return
   with another gamma, default gamma of the loss, Rainbow
"""

# %%
# Break it
# --------
#
# Each step has a reward of 1, and no episode ends. With a discount of 0.5, every state has a value
# of 2. The critic already returns this value, so the targets should equal it.

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import MultiStepTransform
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss

GAMMA, N_ROWS = 0.5, 20
critic = torch.nn.Linear(1, 2)
torch.nn.init.zeros_(critic.weight)
torch.nn.init.constant_(critic.bias, 1 / (1 - GAMMA))
actor = QValueActor(critic, in_keys=["observation"], action_space="categorical")


def n_steps(n, gamma):
    never = torch.zeros(N_ROWS, 1, dtype=torch.bool)
    ends = dict.fromkeys(("done", "terminated", "truncated"), never)
    time = torch.arange(N_ROWS + 1.0)[:, None]
    following = {"observation": time[1:], "reward": torch.ones(N_ROWS, 1), **ends}
    action = torch.zeros(N_ROWS, dtype=torch.long)
    data = {"observation": time[:-1], "action": action, "next": following}
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(N_ROWS),
        transform=MultiStepTransform(n_steps=n, gamma=gamma),
        batch_size=8,
    )
    buffer.extend(TensorDict(data, [N_ROWS]))
    loss = DQNLoss(actor, action_space="categorical", delay_value=False)
    loss.make_value_estimator(gamma=GAMMA)
    return {"replay_buffer": buffer, "loss_module": loss}


def targets(replay_buffer, loss_module):
    """Those of all rows, which are alike."""
    estimator, params = loss_module.value_estimator, loss_module.value_network_params
    values = estimator.value_estimate(replay_buffer[:], target_params=params)
    return sorted({round(value, 3) for value in values.flatten().tolist()})


broken = n_steps(3, gamma=0.9)
print("one step:", targets(**n_steps(1, gamma=0.9)), "three:", targets(**broken))
assert targets(**broken) != [2.0], "no longer reproduces: targets are right"

# %%
# Check it
# --------


def check(replay_buffer, loss_module):
    found = {
        "transform": replay_buffer.transform[0],
        "loss": loss_module.value_estimator,
    }
    return {f"gamma of the {k}": round(float(v.gamma), 3) for k, v in found.items()}


unhealthy = check(**broken)
print(unhealthy)
assert unhealthy["gamma of the transform"] != unhealthy["gamma of the loss"], (
    "no longer reproduces: there is one gamma"
)

# %%
# With one step there is nothing to sum, so the mistake does not show. ``MultiStep``, which you pass
# to a collector as ``postproc``, has its own ``gamma`` as well.
#
# Fix it
# ------

fixed = n_steps(3, gamma=GAMMA)
healthy = check(**fixed)
print("three steps:", targets(**fixed))
print(healthy)
assert healthy["gamma of the transform"] == healthy["gamma of the loss"]
assert targets(**fixed) == [2.0], "the fix does not work"
