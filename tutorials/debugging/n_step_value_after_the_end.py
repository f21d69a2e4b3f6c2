"""
N-step targets add a value after the end of the episode
=======================================================

With n-step returns and positive rewards, values near the end of an episode are too high. The
rewards of a sample are correctly summed, over n steps or up to the end, and its next observations
are correct, too.

:Subsystem: value estimation and losses
:Effect: silent
:Cause: By default, ``MultiStepTransform`` keeps the ``"terminated"`` of the first of the n steps.
   So the n - 1 rows before a terminated step are not marked as terminated. Their targets add the
   value of the last observation, although no reward follows it.
:Fix: Leave ``"terminated"`` out of ``done_keys``, so that it moves with the next observation:
   ``MultiStepTransform(..., done_keys=["done", "truncated"])``.
:Source: :source:`torchrl.envs.transforms.MultiStepTransform.done_keys`,
   :source:`torchrl.objectives.value.TD0Estimator.value_estimate`
:Behind it: :doc:`/how-to/n_step_with_priorities`
:Threads: none found
:Also called: MultiStepTransform, MultiStep, n-step return, done_keys, Rainbow, bootstrap past
   terminal state, Q-values too high at the end
"""

# %%
# Break it
# --------
#
# The data are two episodes of five steps with a reward of 1 in each step. The value of every state
# is 100.

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, MultiStep, TensorDictReplayBuffer
from torchrl.envs import MultiStepTransform
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss

critic = torch.nn.Linear(1, 2)
torch.nn.init.zeros_(critic.weight)
torch.nn.init.constant_(critic.bias, 100)
actor = QValueActor(critic, in_keys=["observation"], action_space="categorical")
loss_module = DQNLoss(actor, action_space="categorical", delay_value=False)
loss_module.make_value_estimator(gamma=1.0)


def episode(first, n_steps=5):
    """Terminated by its last step; observations count from *first*."""
    time = torch.arange(n_steps + 1.0)[:, None] + first
    last = torch.arange(n_steps)[:, None] == n_steps - 1
    following = {
        "observation": time[1:],
        "reward": torch.ones(n_steps, 1),
        "terminated": last,
        "truncated": torch.zeros_like(last),
        "done": last,
    }
    action = torch.zeros(n_steps, dtype=torch.long)
    data = {"observation": time[:-1], "action": action, "next": following}
    return TensorDict(data, [n_steps])


def buffer_of_three_steps(**options):
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100),
        transform=MultiStepTransform(n_steps=3, gamma=1.0, **options),
        batch_size=4,
    )
    buffer.extend(torch.cat([episode(0), episode(10)]))
    return {"replay_buffer": buffer}


def targets(replay_buffer):
    """Those of the first episode."""
    estimator, params = loss_module.value_estimator, loss_module.value_network_params
    values = estimator.value_estimate(replay_buffer[:], target_params=params)
    return values.flatten()[:5].tolist()


broken = buffer_of_three_steps()
print("targets:", targets(**broken))
assert targets(**broken) == [103, 103, 103, 102, 1], "no longer reproduces"

# %%
# In the last three rows, the targets should be the sums of the rewards that are left, with no value
# added.
#
# Check it
# --------
#
# Count the rows that lead to the last observation of an episode, but are not terminated.


def check(replay_buffer):
    reached, ended = (
        replay_buffer[:]["next", key] for key in ("observation", "terminated")
    )
    leads_there = (reached[:, None] == reached[ended.flatten()]).all(-1).any(-1)
    return {
        "rows that go on after the end": int((leads_there & ~ended.flatten()).sum())
    }


unhealthy = check(**broken)
print(unhealthy)
assert unhealthy["rows that go on after the end"] > 0, (
    "no longer reproduces: every last observation is terminated"
)

# %%
# Fix it
# ------

fixed = buffer_of_three_steps(done_keys=["done", "truncated"])
healthy = check(**fixed)
print("targets:", targets(**fixed))
print(healthy)
assert targets(**fixed) == [103, 103, 3, 2, 1], "the fix does not work"
assert healthy["rows that go on after the end"] == 0, (
    "the fix does not work: rows go on after the end"
)

# %%
# Keep ``"done"`` in ``done_keys``, because a ``SliceSampler`` without trajectory ids cuts episodes
# where ``done`` is true. ``MultiStep``, which you pass to a collector as ``postproc``, has the same
# fault. It has no argument ``done_keys``, so set the attribute:

postproc = MultiStep(gamma=1.0, n_steps=3)
ended = {"default": postproc(episode(0))["next", "terminated"].flatten().tolist()}
postproc.done_keys = ("done", "truncated")
ended["fixed"] = postproc(episode(0))["next", "terminated"].flatten().tolist()
print(ended)
assert ended["default"] == [False, False, False, False, True], "no longer reproduces"
assert ended["fixed"] == [False, False, True, True, True], "the fix does not work"
