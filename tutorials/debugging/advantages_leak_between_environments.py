"""
One environment changes the advantages of another
=================================================

PPO learns with one environment, but learns badly with several. The advantages are finite and have a
plausible size, but the advantages of one environment change with the rewards of another.

:Subsystem: value estimation and losses
:Effect: silent
:Cause: GAE works along the dimension that is named ``"time"``, or along the last one if none has
   that name. A batch loses the name when you flatten it, or unbind it along time and stack it
   again. Neighbors along its last dimension may then belong to different environments.
:Fix: Compute advantages before you flatten or rearrange the batch. If time is not the last
   dimension, pass ``time_dim``.
:Source: :source:`torchrl.objectives.value.ValueEstimatorBase._get_time_dim`
:Behind it: :doc:`/tutorials/collectors/batch_shapes`, :ref:`layout-time`
:Threads: none found
:Also called: flattened batch, reshape(-1) before GAE, time-major, wrong time dimension, [T, B],
   advantages mix trajectories
"""

# %%
# Break it
# --------
#
# The function ``rearrange`` changes the batch of three environments before GAE sees it. Here it
# flattens the batch.

import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import GymEnv, SerialEnv
from torchrl.objectives.value import GAE


def collect_and(rearrange):
    torch.manual_seed(0)
    envs = SerialEnv(3, lambda: GymEnv("CartPole-v1"))
    envs.set_seed(0)
    collector = Collector(envs, None, frames_per_batch=48, total_frames=-1)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    critic = TensorDictModule(torch.nn.Linear(4, 1), ["observation"], ["state_value"])
    estimator = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    return {
        "collector": collector,
        "batch": rearrange(batch),
        "value_estimator": estimator,
    }


broken = collect_and(lambda batch: batch.reshape(-1))

# %%
# Check it
# --------
#
# Add reward to every second trajectory. The advantages of the other trajectories must not change.
# For this check, leave out ``average_gae=True``, which scales all advantages.


def check(batch, estimator):
    chosen = (batch["collector", "traj_ids"] % 2 == 0).unsqueeze(-1)
    richer = batch.clone().set(("next", "reward"), batch["next", "reward"] + chosen)
    return {
        "rows of other trajectories": int((~chosen).sum()),
        "changed": int(
            (estimator(richer)["advantage"] != estimator(batch.clone())["advantage"])[
                ~chosen
            ].sum()
        ),
    }


unhealthy = check(broken["batch"], broken["value_estimator"])
print(unhealthy)
assert unhealthy["changed"] > 0, (
    "no longer reproduces: GAE keeps the environments of a flat batch apart"
)

# %%
# GAE stops only at a row that is done. In the flat batch, the first step of an environment follows
# the last step of another. That last step is not always done. If time is the first dimension, all
# neighbors along the last one are rows of different environments.


def time_first(batch):
    return torch.stack(batch.unbind(1), 0)


transposed = collect_and(time_first)
worse = check(transposed["batch"], transposed["value_estimator"])
print(worse)
assert worse["changed"] > unhealthy["changed"], (
    "no longer reproduces with time in front"
)

# %%
# Fix it
# ------
#
# Compute the advantages first. The last dimension of the batch is then still named ``"time"``.

fixed = collect_and(lambda batch: batch)
print(tuple(fixed["batch"].shape), fixed["batch"].names)

healthy = check(fixed["batch"], fixed["value_estimator"])
print(healthy)
assert healthy["changed"] == 0, "the fix does not work"
