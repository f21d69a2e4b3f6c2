"""
A loaded policy gets worse with the first updates
=================================================

You continue with the trained weights of a value network. The first actions are as good as before.
Some updates later, the Q-values are far from the loaded ones, and the policy has to learn again.

:Subsystem: value estimation and losses
:Effect: silent
:Cause: The weights were loaded after the loss and its updater were made. The target network still
   has the weights that you replaced, and it gives the targets.
:Fix: Load the weights before you make the loss and its updater.
:Source: :source:`torchrl.objectives.TargetNetUpdater.init_`
:Behind it: :doc:`/how-to/train_from_a_dataset`
:Threads: none found
:Also called: fine-tuning forgets, pretrained weights are lost, resume from a checkpoint is bad,
   load_state_dict and target network, warm start, transfer learning
"""

# %%
# Break it
# --------
#
# The loaded network gives values near 50, as after training. A random policy has collected the
# rows.

import torch
from torchrl.collectors import Collector
from torchrl.envs import GymEnv
from torchrl.modules import MLP, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

torch.set_num_threads(1)  # the networks are tiny
torch.manual_seed(0)
env = GymEnv("CartPole-v1")
env.set_seed(0)
collector = Collector(env, None, frames_per_batch=200, total_frames=-1)
batch = next(iter(collector)).clone()
collector.shutdown()


def make_network():
    network = MLP(in_features=4, out_features=2, num_cells=[64, 64])
    return QValueActor(network, in_keys=["observation"], spec=env.action_spec)


trained = make_network().state_dict()
trained["module.0.module.4.bias"] += 50


def make_loss(load_last):
    network = make_network()
    if not load_last:
        network.load_state_dict(trained)
    loss = DQNLoss(network, action_space="one-hot", delay_value=True)
    updater = SoftUpdate(loss, tau=0.005)
    if load_last:
        network.load_state_dict(trained)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-2)
    return {"loss_module": loss, "target_updater": updater, "optimizer": optimizer}


broken = make_loss(load_last=True)

# %%
# Check it
# --------
#
# Is each tensor of the network equal to its target before the first update?


def check(loss):
    networks = loss.value_network_params, loss.target_value_network_params
    pairs = zip(
        *(net.flatten_keys().values(sort=True) for net in networks), strict=True
    )
    return {"equal to its target": [torch.equal(*pair) for pair in pairs]}


unhealthy = check(broken["loss_module"])
print(unhealthy)
assert not any(unhealthy["equal to its target"]), (
    "no longer reproduces: the target network follows the loaded weights"
)

# %%
# The loss and its updater each copy the network into its target when they are made, and not later.
#
# Fix it
# ------

fixed = make_loss(load_last=False)
healthy = check(fixed["loss_module"])
print(healthy)
assert all(healthy["equal to its target"]), "the fix does not work"

# %%
# The mean Q-value of the batch, before and after a hundred updates:


def mean_value(loss_module):
    with torch.no_grad():
        values = loss_module.value_network(batch.clone())["chosen_action_value"]
    return round(values.mean().item())


def train(loss_module, target_updater, optimizer):
    before = mean_value(loss_module)
    for _ in range(100):
        loss_module(batch.clone())["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        target_updater.step()
    return {"loaded": before, "after 100 updates": mean_value(loss_module)}


late, early = train(**make_loss(load_last=True)), train(**make_loss(load_last=False))
print("loaded last: ", late)
print("loaded first:", early)
assert late["after 100 updates"] < 0.5 * late["loaded"], "no longer reproduces"
assert early["after 100 updates"] > 0.9 * early["loaded"], "the fix does not work"
