"""
The logged return is not the score of the game
==============================================

The return that you log at the end of each episode is far from what others report, or from what the
same policy scores in the environment without transforms.

:Subsystem: evaluation
:Effect: silent
:Cause: ``RewardSum`` adds up rewards that the transforms before it have scaled, clipped, or reduced
   to the sign.
:Fix: Put ``RewardSum`` before the transforms that change the reward.
:Source: :source:`torchrl.envs.transforms.RewardSum._step`,
   :source:`torchrl.envs.transforms.Compose._step`
:Behind it: this page
:Threads: none found
:Also called: RewardSum after RewardScaling, RewardClipping, SignTransform, episode reward
   scaled, order of transforms, return does not match the paper
"""

# %%
# Break it
# --------
#
# The rewards of Pendulum are scaled for the loss, either before or after they are summed.

import torch
from torchrl.envs import Compose, GymEnv, RewardScaling, RewardSum, TransformedEnv

ORDERS = {
    "scale, then sum": (RewardScaling, RewardSum),
    "sum, then scale": (RewardSum, RewardScaling),
}


def make_env(order):
    made = {RewardScaling: RewardScaling(loc=0.0, scale=0.01), RewardSum: RewardSum()}
    transforms = Compose(*(made[kind] for kind in ORDERS[order]))
    return {"env": TransformedEnv(GymEnv("Pendulum-v1"), transforms)}


broken = make_env("scale, then sum")

# %%
# Check it
# --------
#
# Run the environment with and without its transforms, with the same seed and the same actions.


def check(env):
    runs = []
    for each in (env, env.base_env):
        torch.manual_seed(0)
        each.set_seed(0)
        runs.append(each.rollout(200)["next"])
    return {
        "logged": round(runs[0]["episode_reward"][-1].item()),
        "game": round(runs[1]["reward"].sum().item()),
    }


unhealthy = check(broken["env"])
print(unhealthy)
assert unhealthy["logged"] > 0.1 * unhealthy["game"], (
    "no longer reproduces: the sum is now one of the rewards of the game"
)

# %%
# Here you could undo the scaling of the logged return. You cannot undo clipping: two policies with
# different scores may log the same return.
#
# Fix it
# ------
#
# The loss still gets the scaled reward, and the log gets the score.

fixed = make_env("sum, then scale")
healthy = check(fixed["env"])
print(healthy)
assert abs(healthy["logged"] - healthy["game"]) <= 1, (
    "the fix does not work: the logged return is not the score"
)
