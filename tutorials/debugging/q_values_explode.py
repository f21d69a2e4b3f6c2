"""
Q-values explode and the critic loss grows
==========================================

Q-values rise above any return that the rewards allow. The loss grows with them instead of
falling.

:Subsystem: value estimation and losses
:Effect: silent
:Cause: In each step of ``SoftUpdate``, the target network keeps the share ``eps`` of its weights.
   With ``eps=0.005``, it becomes nearly a copy of the trained network, which then chases its own
   values.
:Fix: Pass the small number as ``tau``: ``SoftUpdate(loss, tau=0.005)`` is the same as
   ``eps=0.995``.
:Source: :source:`torchrl.objectives.SoftUpdate._step`
:Behind it: this page
:Threads: none found
:Also called: critic loss diverges, loss explodes, Q overestimation, value loss grows, DQN diverges,
   SAC diverges, TD3 diverges, Q-values too high, tau or eps, polyak
"""

# %%
# Break it
# --------
#
# The small number that other libraries call ``tau`` is passed as ``eps``.
#
# .. fold:: Imports, batch, and how the loss is made and trained

import warnings

import torch
from torchrl.collectors import Collector
from torchrl.envs import GymEnv
from torchrl.modules import MLP, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

torch.set_num_threads(1)  # the networks are tiny
GAMMA = 0.99
torch.manual_seed(0)
env = GymEnv("CartPole-v1")
env.set_seed(0)
collector = Collector(env, None, frames_per_batch=200, total_frames=-1)
batch = next(iter(collector)).clone()
collector.shutdown()


def make_loss(delay_value=True, **options):
    torch.manual_seed(0)
    network = MLP(in_features=4, out_features=2, num_cells=[32, 32])
    actor = QValueActor(network, in_keys=["observation"], spec=env.action_spec)
    loss = DQNLoss(actor, action_space="one-hot", delay_value=delay_value)
    loss.make_value_estimator(gamma=GAMMA)
    updater = {"target_updater": SoftUpdate(loss, **options)} if options else {}
    return {"loss_module": loss, **updater}


def train(loss_module, target_updater=None):
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=0.03)
    losses = []
    for _ in range(600):
        error = loss_module(batch)["loss"]
        error.backward()
        optimizer.step()
        optimizer.zero_grad()
        if target_updater is not None:
            target_updater.step()
        losses.append(error.item())
    print(f"loss: {losses[99]:.3g} at step 100, {losses[-1]:.3g} at step 600")
    return losses


# %%

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    broken = make_loss(eps=0.005)
    losses = train(**broken)

assert losses[-1] > losses[99], "no longer reproduces: the loss falls"

# %%
# Check it
# --------
#
# Compare the largest Q-value with the return of an endless episode with the largest reward at each
# step.


def check(loss_module, batch, gamma):
    limit = batch["next", "reward"].abs().max() / (1 - gamma)
    values = loss_module.value_network(batch.clone())["action_value"].abs().max()
    return {"largest Q": round(values.item()), "limit": round(limit.item())}


unhealthy = check(broken["loss_module"], batch, GAMMA)
print(unhealthy)
assert unhealthy["largest Q"] > unhealthy["limit"], (
    "no longer reproduces: the Q-values stay below the largest return"
)

# %%
# The only warning comes when the updater is made:

for text in sorted({f"{w.category.__name__}: {w.message}" for w in caught}):
    print(text)
assert any("Found an eps value < 0.5" in str(w.message) for w in caught), (
    "no longer reproduces: SoftUpdate does not warn"
)

# %%
# ``SoftUpdate(loss, tau=0.995)`` is the same mistake, with the same warning.
#
# Fix it
# ------

fixed = make_loss(tau=0.005)
losses = train(**fixed)
healthy = check(fixed["loss_module"], batch, GAMMA)
print(healthy)
assert losses[-1] < losses[99], "the fix does not work: the loss grows"
assert healthy["largest Q"] < healthy["limit"], (
    "the fix does not work: the values explode"
)

# %%
# If it is not the updater
# ------------------------
#
# Without a target network, the values can explode in the same way:

alone = make_loss(delay_value=False)
train(**alone)
found = check(alone["loss_module"], batch, GAMMA)
print(found)
assert found["largest Q"] > found["limit"], "no longer reproduces without a target"

# %%
# Other causes of Q-values that are too large:
#
# * **The loss sees no episode end**: ``batch["next", "terminated"].sum()`` is 0. If all rewards are
#   equal, the values then approach the limit, however bad the policy is.
# * **The n-step discount is lost**: a ``select`` drops the key ``"steps_to_next_obs"`` of
#   ``MultiStepTransform``. The loss then discounts n steps like one step.
# * **Rewards are large.** Scale them with ``RewardScaling``.
# * **The optimizer steps are too large.** Lower the learning rate, or clip gradients with
#   ``torch.nn.utils.clip_grad_norm_``.
#
# If the loss is NaN at once, see :doc:`/tutorials/debugging/off_policy_loss_is_nan`.
