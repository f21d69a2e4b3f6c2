"""
The evaluation rollout ends much too early
==========================================

With several environments, ``rollout(100)`` gives a dozen steps, and ``rollout(1000)`` no more.
Returns computed from it leave out the rest of most episodes.

:Subsystem: evaluation
:Effect: silent
:Cause: By default, a rollout stops for all environments as soon as one of them is done.
:Fix: Call ``rollout(100, break_when_any_done=False)``, and read the return of each episode at its
   end.
:Source: :source:`torchrl.envs.EnvBase.rollout`,
   :source:`torchrl.envs.EnvBase._rollout_stop_early`
:Behind it: :doc:`/reference/data_layout`
:Threads: :thread:`2355`
:Also called: max_steps ignored, break_when_any_done, break_when_all_done, rollout is
   shorter than max_steps, evaluation return too low, batched environment
"""

# %%
# Break it
# --------

import torch
from torchrl.envs import GymEnv, SerialEnv


def evaluate(**how):
    torch.manual_seed(0)
    eval_env = SerialEnv(4, lambda: GymEnv("CartPole-v1"))
    eval_env.set_seed(0)
    rollout = eval_env.rollout(100, **how)
    eval_env.close()
    return {"batch": rollout}


broken = evaluate()

# %%
# Check it
# --------
#
# Count the returned steps, and the environments in which an episode ended.


def check(rollout):
    finished = rollout["next", "done"].flatten(1).any(1)
    return {"steps": rollout.shape[1], "finished": f"{finished.sum()}/{len(rollout)}"}


unhealthy = check(broken["batch"])
print(unhealthy)
assert unhealthy["finished"] == "1/4", (
    "no longer reproduces: a rollout now goes on when one environment is done"
)
assert unhealthy["steps"] < 50, "no longer reproduces: the rollout is long"

# %%
# The other episodes are cut where the shortest one ends, so with more environments the rollout is
# usually shorter.
#
# Fix it
# ------
#
# The rollout now goes on, and an environment that is done starts its next episode. A row of the
# batch can hold several episodes, and the last one may be unfinished. So read returns where
# ``("next", "done")`` is set. With ``break_when_all_done=True``, no environment is reset. Then
# leave out the steps after the first ``done`` of each row.

fixed = evaluate(break_when_any_done=False)
healthy = check(fixed["batch"])
print(healthy)
assert healthy == {"steps": 100, "finished": "4/4"}, (
    "the fix does not work: the rollout still ends before its time"
)
done = evaluate(break_when_all_done=True)["batch"]["next", "done"]
assert done[:, -1].all(), "the fix does not work: it does not wait for all"
assert (done[:, 1:] >= done[:, :-1]).all(), "the fix does not work: one is reset"
