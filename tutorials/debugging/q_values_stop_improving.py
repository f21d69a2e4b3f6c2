"""
Q-values stop improving after the first steps
=============================================

The loss of DQN falls quickly to almost nothing and stays there. The Q-values stay near the size of
the next reward, however long you train.

:Subsystem: value estimation and losses
:Effect: silent
:Cause: ``delay_value=True`` gives the loss a target network. Without an updater, the target network
   keeps its initial random weights.
:Fix: Create ``updater = SoftUpdate(loss, tau=0.005)``, or a ``HardUpdate``, and call
   ``updater.step()`` after each step of the optimizer.
:Source: :source:`torchrl.objectives.TargetNetUpdater`,
   :source:`torchrl.objectives.LossModule.__getattr__`
:Behind it: this page
:Threads: none found
:Also called: DQN does not learn, not learning,
   target network never updated, frozen target, SoftUpdate missing,
   target_value_network_params
"""

# %%
# Break it
# --------

import copy
import warnings

import torch
from torchrl.collectors import Collector
from torchrl.envs import GymEnv
from torchrl.modules import MLP, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

torch.set_num_threads(1)  # the networks are tiny
torch.manual_seed(0)
env = GymEnv("CartPole-v1")
env.set_seed(0)
collector = Collector(env, None, frames_per_batch=100, total_frames=-1)
batch = next(iter(collector)).clone()
collector.shutdown()


def make_loss(with_updater):
    torch.manual_seed(0)
    network = MLP(in_features=4, out_features=2, num_cells=[16])
    actor = QValueActor(network, in_keys=["observation"], spec=env.action_spec)
    loss = DQNLoss(actor, action_space="one-hot", delay_value=True)
    updater = SoftUpdate(loss, tau=0.1) if with_updater else None
    return {"loss_module": loss, "target_updater": updater}


def train_step(loss_module, target_updater):
    optimizer = torch.optim.SGD(loss_module.parameters(), lr=0.05)
    loss_module(batch.clone())["loss"].backward()
    optimizer.step()
    if target_updater is not None:
        target_updater.step()


broken = make_loss(with_updater=False)

# %%
# Check it
# --------
#
# Which of the two networks does a training step change?


def check(loss, take_a_step):
    before = copy.deepcopy(loss.state_dict())
    take_a_step()
    return {
        part: any(
            not weights.equal(before[name])
            for name, weights in loss.state_dict().items()
            if name.startswith(part)
        )
        for part in ("value_network", "target_value_network")
    }


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    unhealthy = check(broken["loss_module"], lambda: train_step(**broken))
print(unhealthy)
assert unhealthy["value_network"], "the step trains nothing"
assert not unhealthy["target_value_network"], (
    "no longer reproduces: the loss updates its target network itself"
)

# %%
# TorchRL gives one warning, which is easy to miss in the output of a run:

for text in sorted({f"{w.category.__name__}: {w.message}" for w in caught}):
    print(text)
assert any("No target network updater" in str(w.message) for w in caught), (
    "no longer reproduces: TorchRL does not warn of the missing updater"
)

# %%
# Fix it
# ------

fixed = make_loss(with_updater=True)
with warnings.catch_warnings():
    warnings.simplefilter("error")
    healthy = check(fixed["loss_module"], lambda: train_step(**fixed))
print(healthy)
assert healthy["target_value_network"], "the fix does not work"

# %%
# A low loss is misleading here. After a hundred steps of training on the same batch, the loss is
# lower without an updater. But the Q-values are less than half as large:


def train(loss_module, target_updater):
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=0.02)
    for _ in range(100):
        optimizer.zero_grad()
        error = loss_module(batch.clone())["loss"]
        error.backward()
        optimizer.step()
        if target_updater is not None:
            target_updater.step()
    with torch.no_grad():
        value = loss_module.value_network(batch.clone())["chosen_action_value"].mean()
    return {"loss": round(error.item(), 3), "mean Q-value": round(value.item(), 1)}


with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "No target network updater")
    frozen = train(**broken)
followed = train(**fixed)
print(frozen)
print(followed)
assert frozen["loss"] < followed["loss"], "no longer reproduces: the loss stays high"
assert frozen["mean Q-value"] < followed["mean Q-value"] / 2, (
    "no longer reproduces: the Q-values rise although the target is frozen"
)

# %%
# The warning stops as soon as you create an updater, even if nothing calls its ``step()``: see
# :doc:`/tutorials/debugging/target_updater_never_steps`.
