"""
Episodes go on after they are done
==================================

Your own loop steps an environment, and returns can exceed what the task allows. Steps after the
first ``done`` are usually done as well. TorchRL raises nothing.

:Subsystem: environments
:Effect: silent
:Cause: :meth:`~torchrl.envs.EnvBase.step` neither resets the environment nor refuses to go on after
   the end of an episode.
:Fix: Call :meth:`~torchrl.envs.EnvBase.step_and_maybe_reset` and go on from its second result.
:Source: :source:`torchrl.envs.EnvBase.step`,
   :source:`torchrl.envs.EnvBase.step_and_maybe_reset`
:Behind it: :doc:`/reference/data_layout`
:Threads: none found
:Also called: no auto reset, stepping a finished environment, step_mdp loop, dead frames
"""

# %%
# Break it
# --------
#
# The loop calls ``step``, then ``step_mdp``, which moves "next" to the root.

import re
import warnings

import torch
from torchrl.envs import GymEnv, step_mdp


def loop(resets, steps=60):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    now, rows = env.reset(), []
    for _ in range(steps):
        now = env.rand_action(now)
        if resets:
            row, now = env.step_and_maybe_reset(now)
        else:
            row = env.step(now)
            now = step_mdp(row)
        rows.append(row.clone())
    env.close()
    return {"batch": torch.stack(rows)}


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    broken = loop(resets=False)
for warning in caught:
    text = re.sub(r"\x1b\[\d+m", "", str(warning.message))  # no colors
    print(f"{warning.category.__name__}: {text}")

# %%
# This warning comes from Gymnasium. Other environments may not warn.
#
# Check it
# --------
#
# Count the steps that start from an observation at which an episode ended.


def check(batch):
    ended, after = batch["next"][:-1], batch[1:]
    same = (after["observation"] == ended["observation"]).all(-1)
    return {
        "frames": len(batch),
        "after the end": int((same & ended["done"][:, 0]).sum()),
    }


unhealthy = check(broken["batch"])
print(unhealthy)
assert unhealthy["after the end"] > 20, (
    "no longer reproduces: step() now stops or resets"
)

# %%
# Fix it
# ------
#
# ``step_and_maybe_reset`` returns the step to store, and the state for the next step. If the step
# was done, that state comes from a reset. A collector and ``env.rollout(...,
# break_when_any_done=False)`` call it too.

fixed = loop(resets=True)
healthy = check(fixed["batch"])
print(healthy)
assert fixed["batch"]["next", "done"].any()
assert healthy["after the end"] == 0, "the fix does not work"
