"""
The loss stays high with normalized observations
================================================

Observations are normalized when they are sampled, but the value loss stays high or grows. No error
is raised.

:Subsystem: replay buffers
:Effect: silent
:Cause: In a buffer, ``ObservationNorm`` changes only the keys in ``in_keys``.
   ``in_keys=["observation"]`` leaves ``("next", "observation")`` raw.
:Fix: Pass ``in_keys=["observation", ("next", "observation")]``.
:Source: :source:`torchrl.envs.transforms.Transform.forward`
:Behind it: :doc:`/reference/data_layout`
:Threads: none found
:Also called: ObservationNorm in the replay buffer, next observation not normalized,
   ToTensorImage, in_keys, target network gets raw observations
"""

# %%
# Break it
# --------
#
# In an environment, a transform with ``in_keys=["observation"]`` acts on each new observation, so a
# batch has normalized observations at the root and under ``"next"``. Here the same transform is in
# a buffer:

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv, ObservationNorm
from torchrl.modules import MLP, QValueActor
from torchrl.objectives import DQNLoss


def fill(in_keys):
    env = GymEnv("CartPole-v1")
    net = MLP(in_features=4, out_features=2, num_cells=[32])
    actor = QValueActor(net, in_keys=["observation"], spec=env.action_spec)
    loss_module = DQNLoss(actor, action_space="one-hot", delay_value=False)
    torch.manual_seed(0)
    env.set_seed(0)
    collector = Collector(env, None, frames_per_batch=200, total_frames=-1)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    norm = ObservationNorm(
        loc=batch["observation"].mean(0),
        scale=batch["observation"].std(0),
        in_keys=in_keys,
        standard_normal=True,
    )
    storage = LazyTensorStorage(200)
    replay_buffer = TensorDictReplayBuffer(
        storage=storage, transform=norm, batch_size=128
    )
    replay_buffer.extend(batch)
    return {"replay_buffer": replay_buffer, "loss_module": loss_module}


broken = fill(in_keys=["observation"])

# %%
# Check it
# --------
#
# Compare the standard deviations of observations and of next observations. They should be about
# equal.


def check(replay_buffer, key="observation"):
    sample = replay_buffer.sample()
    now, later = (sample[k].std(0).mean().item() for k in (key, ("next", key)))
    return {"spread": round(now, 2), "spread of next": round(later, 2)}


unhealthy = check(broken["replay_buffer"])
print(unhealthy)
assert unhealthy["spread of next"] < 0.8 * unhealthy["spread"], (
    "no longer reproduces: the transform now reaches the next observation by itself"
)

# %%
# The loss computes the value of an observation from normalized numbers. It computes the next value,
# in the target, from raw numbers. For images the difference is even larger: ``ToTensorImage`` in a
# buffer leaves ``("next", "pixels")`` as integers up to 255.
#
# Fix it
# ------

fixed = fill(in_keys=["observation", ("next", "observation")])
healthy = check(fixed["replay_buffer"])
print(healthy)
assert abs(healthy["spread of next"] / healthy["spread"] - 1) < 0.2, (
    "the fix does not work: the next observation is still raw"
)
