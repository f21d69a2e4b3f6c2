"""
max_frames_per_traj is refused by my environment
================================================

A collector should cut long episodes. When it is built, it raises a ``ValueError`` about a key that
the call does not mention.

:Subsystem: collectors
:Effect: loud
:Cause: ``max_frames_per_traj`` appends a ``StepCounter`` to the environment, and refuses an
   environment that already has a ``step_count``.
:Fix: Leave out the argument, and set the limit in the existing counter:
   ``StepCounter(max_steps=...)``.
:Source: :source:`torchrl.collectors.Collector._setup_max_frames_per_traj`
:Behind it: :doc:`/reference/collectors_basics`
:Threads: :thread:`813`
:Also called: step_count key is already present, StepCounter, time limit, maximum length of an
   episode
"""

# %%
# Break it
# --------
#
# The environment already has a counter, here without a limit. In your code, the counter may be in
# the function that makes the environment.

import torch
from torchrl.collectors import Collector
from torchrl.envs import GymEnv, StepCounter, TransformedEnv


def make(in_collector):
    torch.manual_seed(0)
    counter = StepCounter() if in_collector else StepCounter(max_steps=5)
    env = TransformedEnv(GymEnv("CartPole-v1"), counter)
    env.set_seed(0)
    options = {"max_frames_per_traj": 5} if in_collector else {}
    try:
        collector = Collector(
            env, policy=None, frames_per_batch=20, total_frames=-1, **options
        )
    except ValueError as error:
        return {"env": env, "error": error}
    return {"collector": collector}


broken = make(in_collector=True)
error = broken.get("error", "nothing was raised")
print(f"{type(error).__name__}: {error}")
assert "'step_count' key is already present" in str(error), (
    f"no longer reproduces: {error}"
)

# %%
# Check it
# --------


def check(env):
    steps = env.rollout(200, break_when_any_done=False).get(
        ("next", "step_count"), None
    )
    return {"counts steps": steps is not None, "longest episode": int(steps.max())}


unhealthy = check(broken["env"])
print(unhealthy)
assert unhealthy["counts steps"], (
    "no longer reproduces: this environment does not count"
)
assert unhealthy["longest episode"] > 5, "no longer reproduces: the argument is obeyed"

# %%
# Fix it
# ------

fixed = make(in_collector=False)
healthy = check(fixed["collector"].env)
print(healthy)
assert healthy["longest episode"] == 5, (
    "the fix does not work: the counter has no limit"
)
