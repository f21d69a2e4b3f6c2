"""
Epsilon goes down too soon
==========================

Epsilon should decay over many frames, but reaches ``eps_end`` after a small part of them. The
buffer fills with the actions of an untrained network, and the return may fall at first.

:Subsystem: exploration
:Effect: silent
:Cause: ``annealing_num_steps`` counts what you pass to ``step()``. The loop passes the number of
   collected frames at every update, so each frame is counted once per update.
:Fix: Call ``explore.step(batch.numel())`` once for each batch, outside of the loop over updates.
:Source: :source:`torchrl.modules.EGreedyModule.step`
:Behind it: :doc:`/tutorials/debugging/epsilon_never_goes_down`
:Threads: none found
:Also called: exploration ends too early, epsilon decays too fast, annealing_num_steps in frames or
   steps, epsilon schedule, eps reaches its end at once, sigma, AdditiveGaussianModule
"""

# %%
# Break it
# --------
#
# DQN makes eight updates for each batch. Epsilon should reach ``eps_end`` long after the last
# batch.

import torch
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss

torch.set_num_threads(1)  # the network is tiny


def train(each_update):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    network = MLP(in_features=4, out_features=2, num_cells=[32])
    actor = QValueActor(network, in_keys=["observation"], spec=env.action_spec)
    explore = EGreedyModule(
        spec=env.action_spec, eps_init=1.0, eps_end=0.05, annealing_num_steps=2000
    )
    collector = Collector(
        env,
        TensorDictSequential(actor, explore),
        frames_per_batch=50,
        total_frames=300,
        auto_register_policy_transforms=False,
    )
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(300), batch_size=32)
    loss_module = DQNLoss(actor, delay_value=False)
    optimizer = torch.optim.Adam(loss_module.parameters())
    batches = []
    for batch in collector:
        batches.append(batch.clone())
        buffer.extend(batch)
        for _ in range(8):
            loss_module(buffer.sample())["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
            if each_update:
                explore.step(batch.numel())
        if not each_update:
            explore.step(batch.numel())
    collector.shutdown()
    return {"batch": batches, "policy": collector.policy}


broken = train(each_update=True)

# %%
# Check it
# --------
#
# Compare epsilon with the value that the schedule gives for the frames collected so far.


def check(explore, frames):
    start, end = explore.eps_init.item(), explore.eps_end.item()
    left = max(1 - frames / explore.annealing_num_steps, 0)
    return {
        "epsilon": round(explore.eps.item(), 3),
        "scheduled": round(end + (start - end) * left, 3),
    }


frames = sum(batch.numel() for batch in broken["batch"])
unhealthy = check(broken["policy"][-1], frames)
print(unhealthy)
assert unhealthy["epsilon"] == 0.05 < unhealthy["scheduled"], (
    "no longer reproduces: epsilon has not reached its end"
)

# %%
# Fix it
# ------

fixed = train(each_update=False)
healthy = check(fixed["policy"][-1], frames)
print(healthy)
assert abs(healthy["epsilon"] - healthy["scheduled"]) < 0.01, (
    "the fix does not work: epsilon is not on its schedule"
)

# %%
# What it does to the return
# --------------------------
#
# .. record-plot:: learning_dynamics@cpu
#    :x: frames
#    :y: episode_return
#    :series: training
#    :rows: epsilon-*
#    :caption: Return of DQN on CartPole: median and quartiles of five seeds
#
# With ``step()`` after each of the eight updates, the return of most seeds drops to about that of a
# constant action and rises later: CartPole can be learned with little exploration.
# :claim:`epsilon-too-soon-costs-frames` A task whose reward has to be found by random actions may
# not recover; that was not measured.
#
# If your environment skips frames, set ``annealing_num_steps`` in the unit that you pass to
# ``step()``.
