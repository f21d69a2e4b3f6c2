"""
A noisy network always makes the same noise
===========================================

A DQN explores with :class:`~torchrl.modules.NoisyLinear` layers. Until the weights change, it takes
the same action each time in the same state, as if it did not explore.

:Subsystem: exploration
:Effect: silent
:Cause: ``NoisyLinear`` draws its noise once, when it is built. A forward pass does not draw
   again, and neither do collectors and losses.
:Fix: Call ``network.apply(reset_noise)`` after each step of the optimizer.
:Source: :source:`torchrl.modules.NoisyLinear.reset_noise`
:Behind it: this page
:Threads: none found
:Also called: NoisyNet, NoisyLinear, weight_epsilon is constant, no exploration, Rainbow, frozen
   noise
"""

# %%
# Break it
# --------
#
# The loss does use the noise (``deterministic_sampling_mode``), but nothing draws new noise.

import torch
from torchrl.envs import ExplorationType, GymEnv, set_exploration_type
from torchrl.modules import NoisyLinear, QValueActor, reset_noise
from torchrl.objectives import DQNLoss


def make_step(draw):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    layer = NoisyLinear(4, 2)
    actor = QValueActor(layer, in_keys=["observation"], spec=env.action_spec)
    loss = DQNLoss(actor, action_space=env.action_spec, delay_value=False)
    loss.deterministic_sampling_mode = ExplorationType.RANDOM
    optimizer = torch.optim.Adam(loss.parameters())

    def train():
        with set_exploration_type(ExplorationType.RANDOM):
            batch = env.rollout(20, actor, break_when_any_done=False)
        loss(batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        if draw:
            actor.apply(reset_noise)

    train()
    objects = {"policy": actor, "loss_module": loss}
    return {"objects": objects, "layer": layer, "train": train}


parts = make_step(draw=False)
broken = parts["objects"]

# %%
# Check it
# --------


def check(layer, train):
    before = layer.weight_epsilon.clone()
    train()
    return {"drawn again": not torch.equal(before, layer.weight_epsilon)}


unhealthy = check(parts["layer"], parts["train"])
print(unhealthy)
assert not unhealthy["drawn again"], (
    "no longer reproduces: a training step draws new noise"
)

# %%
# Fix it
# ------
#
# Within a rollout the noise stays the same on purpose: the network tries one consistent variation
# of its behavior.

parts = make_step(draw=True)
fixed = parts["objects"]
healthy = check(parts["layer"], parts["train"])
print(healthy)
assert healthy["drawn again"], "the fix does not work: the noise is the same"
