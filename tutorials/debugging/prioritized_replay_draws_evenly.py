"""
Prioritized replay draws every sample equally often
===================================================

The buffer has a prioritized sampler, but training runs as with uniform replay. The only hint may be
a warning about copying tensors.

:Subsystem: replay buffers
:Effect: silent
:Cause: The loss writes the error under a key that the buffer does not read, or writes it to a copy
   of the sample. The buffer then gives all rows the same default priority.
:Fix: Give the buffer the key that the loss writes (``priority_key="td_error"``, the default). Pass
   the same sample first to the loss, then to ``update_tensordict_priority``.
:Source: :source:`torchrl.data.TensorDictReplayBuffer._get_priority_vector`
:Behind it: this page
:Threads: :thread:`2205`
:Also called: PER is uniform, priority_weight is always 1, td_error, update_priority,
   priorities never change, priority stuck at 1
"""

# %%
# Break it
# --------
#
# The code computes a DQN loss and updates the priorities twenty times. The only mistake is
# ``priority_key="error"`` in the last line.

import warnings

import numpy
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, PrioritizedSampler, TensorDictReplayBuffer
from torchrl.envs import GymEnv
from torchrl.modules import QValueModule
from torchrl.objectives import DQNLoss


def train(priority_key):
    torch.manual_seed(0)
    numpy.random.seed(0)  # the prioritized sampler draws from NumPy
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    net = TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["action_value"])
    network = TensorDictSequential(net, QValueModule(spec=env.action_spec))
    loss_module = DQNLoss(network, action_space=env.action_spec, delay_value=False)
    replay_buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(200),
        sampler=PrioritizedSampler(200, alpha=0.7, beta=0.5),
        priority_key=priority_key,
        batch_size=64,
    )
    collector = Collector(env, None, frames_per_batch=200, total_frames=-1)
    replay_buffer.extend(next(iter(collector)))
    collector.shutdown()
    for _ in range(20):
        sample = replay_buffer.sample()
        loss_module(sample)["loss"].backward()  # writes "td_error" to the sample
        replay_buffer.update_tensordict_priority(sample)
    return {"replay_buffer": replay_buffer, "loss_module": loss_module}


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    broken = train(priority_key="error")

# %%
# The only hint is a PyTorch warning that mentions neither the buffer nor the key:

for text in sorted({f"{w.category.__name__}: {w.message}" for w in caught}):
    print(text)

# %%
# Check it
# --------
#
# Each sampled row has a ``"priority_weight"``, which corrects for how often the row is drawn. If
# all weights are equal, these rows are drawn equally often. (With ``beta=0``, all weights are equal
# in any case.)


def check(replay_buffer):
    weights = replay_buffer.sample()["priority_weight"]
    return {"drawn": len(weights), "different weights": len(weights.unique())}


unhealthy = check(broken["replay_buffer"])
print(unhealthy)
assert unhealthy["different weights"] == 1, (
    "no longer reproduces: an update without the key of the buffer now changes priorities"
)

# %%
# Why
# ---
#
# ``update_tensordict_priority`` looks for its key in the sample. If the key is missing, nothing is
# raised: each row gets :source:`the highest priority so far
# <torchrl.data.PrioritizedSampler.default_priority>` (one at the start). The same happens if the
# loss gets a copy, such as ``sample.to("cuda")`` or ``sample.select(...)``, and the buffer gets the
# original. A loop that never calls ``update_tensordict_priority`` has the same effect.

# %%
# Fix it
# ------
#
# Take the key from the loss: ``loss_module.tensor_keys.priority``.

fixed = train(priority_key=broken["loss_module"].tensor_keys.priority)
healthy = check(fixed["replay_buffer"])
print(healthy)
assert healthy["different weights"] > 10, "the fix does not work: all weights are equal"
