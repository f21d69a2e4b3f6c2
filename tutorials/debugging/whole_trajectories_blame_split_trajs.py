"""
trajs_per_batch fails and blames split_trajs
============================================

With ``trajs_per_batch``, a collector should yield whole trajectories. Its first batch raises a
``KeyError`` that asks for ``split_trajs=False``, although you did not change that default.

:Subsystem: collectors
:Effect: loud
:Cause: ``trajs_per_batch`` joins the pieces of a trajectory by their trajectory id, but
   ``track_traj_ids=False`` leaves the ids out.
:Fix: Leave out ``track_traj_ids=False``.
:Source: :source:`torchrl.collectors.BaseCollector._iter_by_trajectories`
:Behind it: :ref:`collector-ids`
:Threads: none found
:Also called: trajs_per_batch requires traj_ids, track_traj_ids, KeyError collector traj_ids
"""

# %%
# Break it
# --------

import torch
from torchrl.collectors import Collector
from torchrl.envs import GymEnv


def make(**options):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    return Collector(
        env,
        policy=None,
        frames_per_batch=50,
        total_frames=-1,
        trajs_per_batch=2,
        traj_format="cat",
        **options,
    )


broken = {"collector": make(track_traj_ids=False)}
try:
    make(track_traj_ids=False).next()
except KeyError as error:
    broken["error"] = error
error = broken.get("error", "nothing was raised")
print(f"{type(error).__name__}: {error}")
assert "split_trajs=False" in str(error), f"no longer reproduces: {error}"

# %%
# Check it
# --------


def check(collector):
    return {
        "has ids": collector.track_traj_ids,
        "needs ids": bool(collector.trajs_per_batch),
    }


unhealthy = check(broken["collector"])
print(unhealthy)
assert unhealthy == {"has ids": False, "needs ids": True}, "no longer reproduces"

# %%
# Fix it
# ------

fixed = {"collector": make()}
healthy = check(fixed["collector"])
print(healthy)
assert healthy["has ids"], "the fix does not work: the collector has no ids"
assert make().next()["next", "done"].sum() == 2, (
    "the fix does not work: no whole trajectory"
)
