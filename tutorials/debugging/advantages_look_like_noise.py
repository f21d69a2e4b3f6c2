"""
Advantages look like noise
==========================

The loss goes down, but the return does not go up. The advantages have a plausible size, but hardly
tell good actions from bad ones.

:Subsystem: value estimation and losses
:Effect: silent
:Cause: GAE is called on a minibatch of single rows that were drawn at random. Unless ``lmbda`` is
   0, GAE assumes that the next row is the next step of the trajectory.
:Fix: Call GAE on the batch of the collector, before it goes into the buffer.
:Source: :source:`torchrl.objectives.value.GAE.forward`
:Behind it: :ref:`layout-time`
:Threads: none found
:Also called: GAE on a shuffled minibatch, GAE after sampling, advantages uncorrelated with returns,
   PPO does not learn
"""

# %%
# Break it
# --------
#
# The batch goes through a buffer. Here GAE runs on the sampled rows.

import matplotlib.pyplot as plt
import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv
from torchrl.objectives.value import GAE

torch.manual_seed(0)
critic = TensorDictModule(torch.nn.Linear(4, 1), ["observation"], ["state_value"])
estimator = GAE(gamma=0.99, lmbda=0.95, value_network=critic)


def fill(before_the_buffer):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    collector = Collector(env, None, frames_per_batch=200, total_frames=-1)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(200), batch_size=64)
    buffer.extend(estimator(batch) if before_the_buffer else batch)
    return {"replay_buffer": buffer, "value_estimator": estimator}


def draw(replay_buffer, value_estimator):
    minibatch = replay_buffer.sample()
    return minibatch if "advantage" in minibatch else value_estimator(minibatch)


broken = fill(before_the_buffer=False)
minibatch = draw(**broken)

# %%
# Check it
# --------
#
# GAE is correct on this whole buffer, because its rows are in time order. Compare the advantages of
# the minibatch with those of the buffer.


def check(minibatch, buffer, estimator):
    whole = estimator(buffer[:].exclude("advantage"))["advantage"].squeeze(-1)
    pair = torch.stack([minibatch["advantage"].squeeze(-1), whole[minibatch["index"]]])
    return {
        "rows": len(minibatch),
        "correlation": round(pair.corrcoef()[0, 1].item(), 2),
    }


unhealthy = check(minibatch, broken["replay_buffer"], estimator)
print(unhealthy)
assert abs(unhealthy["correlation"]) < 0.5, (
    "no longer reproduces: GAE finds the order of a shuffled minibatch"
)

# %%
# Fix it
# ------
#
# The advantage of a row needs the rows that follow it. A stored advantage stays with its row, so
# the order no longer matters.

fixed = fill(before_the_buffer=True)
stored = draw(**fixed)
healthy = check(stored, fixed["replay_buffer"], estimator)
print(healthy)
assert healthy["correlation"] == 1, "the fix does not work"

# %%
# Each point is a row of a minibatch. Correct advantages are on the diagonal.

figure, axes = plt.subplots(figsize=(5.4, 3.4), layout="constrained")
whole = fixed["replay_buffer"][:]["advantage"].flatten()
axes.plot(whole[minibatch["index"]], minibatch["advantage"], "o")
axes.plot(whole[stored["index"]], stored["advantage"], "x")
axes.set_ylim(top=20)
axes.text(3, 18, "after sampling", color="C0")
axes.text(12, 4, "before the buffer", color="C1")
axes.set_xlabel("advantage in the order of time [reward]")
axes.set_ylabel("advantage in the minibatch [reward]")
figure.set_label(
    "Advantages computed before the buffer lie on the diagonal. Those computed after sampling "
    f"scatter around it without order: their correlation is {unhealthy['correlation']}."
)
plt.show()
