"""
A noisy network never learns its noise
======================================

A DQN explores with :class:`~torchrl.modules.NoisyLinear` layers. The weights are trained, but the
scale of the noise keeps its initial value, so the noise does not fade.

:Subsystem: exploration
:Effect: silent
:Cause: By default, ``DQNLoss`` calls its network with the exploration type ``DETERMINISTIC``. In
   this mode ``NoisyLinear`` adds no noise, so the scale of the noise gets no gradient.
:Fix: Set ``loss.deterministic_sampling_mode = ExplorationType.RANDOM``.
:Source: :source:`torchrl.objectives.common._forward_wrapper`,
   :source:`torchrl.modules.NoisyLinear._should_use_noise`
:Behind it: :term:`exploration type`
:Threads: :thread:`3082`
:Also called: NoisyNet, NoisyLinear, weight_sigma has no gradient, sigma does not change, Rainbow
"""

# %%
# Break it
# --------

import torch
from torchrl.envs import ExplorationType, GymEnv, set_exploration_type
from torchrl.modules import NoisyLinear, QValueActor, reset_noise
from torchrl.objectives import DQNLoss


def train(noise_in_loss):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    layer = NoisyLinear(4, 2)
    actor = QValueActor(layer, in_keys=["observation"], spec=env.action_spec)
    loss = DQNLoss(actor, action_space=env.action_spec, delay_value=False)
    if noise_in_loss:
        loss.deterministic_sampling_mode = ExplorationType.RANDOM
    optimizer = torch.optim.Adam(loss.parameters())
    with set_exploration_type(ExplorationType.RANDOM):
        batch = env.rollout(20, actor, break_when_any_done=False)
        for _ in range(3):
            optimizer.zero_grad()
            loss(batch)["loss"].backward()
            optimizer.step()
            actor.apply(reset_noise)
    return {"policy": actor, "loss_module": loss}


broken = train(noise_in_loss=False)

# %%
# Check it
# --------


def check(layer):
    names = {"of the weights": layer.weight_mu, "of the noise": layer.weight_sigma}
    return {name: p.grad is not None for name, p in names.items()}


unhealthy = check(broken["policy"].module[0].module)
print(unhealthy)
assert unhealthy["of the weights"], "the page trains nothing"
assert not unhealthy["of the noise"], "no longer reproduces: the noise has a gradient"

# %%
# Fix it
# ------
#
# Both runs of this page train inside ``set_exploration_type(ExplorationType.RANDOM)``, but the loss
# overrides that with its own attribute.

fixed = train(noise_in_loss=True)
healthy = check(fixed["policy"].module[0].module)
print(healthy)
assert healthy["of the noise"], "the fix does not work: the noise has no gradient"
