"""
The episode return looks too low
================================

The logged return stays below the length of the episodes, although the reward of CartPole is 1
at each step.

:Subsystem: evaluation
:Effect: silent
:Cause: ``RewardSum`` writes a running sum to every step. The mean over all steps averages
   the sums of unfinished episodes.
:Fix: Read ``("next", "episode_reward")`` where ``("next", "done")`` is set.
:Source: :source:`torchrl.envs.transforms.RewardSum._step`
:Behind it: :doc:`/reference/data_layout`
:Threads: none found
:Also called: episode_reward too low, RewardSum, wrong mean reward in the logs, return
   does not match episode length, return rises although nothing learns
"""

# %%
# Break it
# --------
#
# A hook logs the mean of ``episode_reward`` over all rows of each batch.

import torch
from torchrl.collectors import Collector
from torchrl.envs import GymEnv, RewardSum, TransformedEnv

logged = []


def log_all(batch):
    logged.append(batch["next", "episode_reward"].mean().item())


def log_finished(batch):
    finished = batch["next", "done"]
    logged.append(batch["next", "episode_reward"][finished].mean().item())


def collect(log):
    torch.manual_seed(0)
    env = TransformedEnv(GymEnv("CartPole-v1"), RewardSum())
    env.set_seed(0)
    options = {"frames_per_batch": 400, "total_frames": -1, "post_collect_hook": log}
    collector = Collector(env, None, **options)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    return {"collector": collector, "batch": batch}


broken = collect(log_all)

# %%
# Check it
# --------
#
# Compare the logged mean with the mean over the rows where an episode ends.


def check(batch, logged):
    returns = batch["next", "episode_reward"][batch["next", "done"]]
    return {"logged": round(logged, 1), "of episodes": round(returns.mean().item(), 1)}


unhealthy = check(broken["batch"], logged[-1])
print(unhealthy)
assert unhealthy["logged"] < 0.9 * unhealthy["of episodes"], (
    "no longer reproduces: RewardSum now writes the return of the whole episode"
)

# %%
# Why
# ---
#
# The sum grows from step to step and starts again with the next episode, so the mean over all rows
# includes every unfinished sum. Long episodes have more rows, so no constant factor corrects this
# mean.

import matplotlib.pyplot as plt

rows = broken["batch"]["next"]
sums, ends = rows["episode_reward"].squeeze(-1), rows["done"].squeeze(-1)
fig, ax = plt.subplots(figsize=(5.4, 3.2), layout="constrained")
ax.plot(sums, color="tab:gray")
ax.plot(ends.nonzero(), sums[ends], "o", color="C0")
ax.axhline(unhealthy["of episodes"], color="C0")
ax.axhline(unhealthy["logged"], color="C1", linestyle="--")
best = int(sums.argmax())
ax.text(best + 12, sums[best], "return of an episode", color="C0", va="center")
ax.text(best + 8, 0.7 * sums[best], "running sum")
beside = {"transform": ax.get_yaxis_transform()}
ax.text(1.02, unhealthy["of episodes"], "mean return", color="C0", **beside)
ax.text(1.02, unhealthy["logged"], "logged", color="C1", va="top", **beside)
ax.set(xlabel="step of the batch", ylabel="rewards added up [reward]")
fig.set_label(
    "The running sum rises during each episode and starts again with the next one. The returns "
    f"of the episodes are its peaks, with the mean {unhealthy['of episodes']}. The logged value "
    f"is the mean over all steps, {unhealthy['logged']}."
)
plt.show()

# %%
# Fix it
# ------
#
# If no episode ends within a batch, there is nothing to log: the mean of no rows is ``nan``.

fixed = collect(log_finished)
healthy = check(fixed["batch"], logged[-1])
print(healthy)
assert healthy["logged"] == healthy["of episodes"] > 0, (
    "the fix does not work: unfinished episodes are still averaged"
)

# %%
# At the start of a run
# ---------------------
#
# With many environments, only short episodes end in the first batches. The logged mean then rises
# although the policy stays the same.

from torchrl.envs import SerialEnv

torch.manual_seed(0)
env = SerialEnv(20, lambda: TransformedEnv(GymEnv("CartPole-v1"), RewardSum()))
env.set_seed(0)
steps = env.rollout(100, break_when_any_done=False)["next"]
returns, done = steps["episode_reward"], steps["done"]
early = returns[:, :15][done[:, :15]].mean().item()
print(f"mean return of the episodes that end within 15 steps: {early:.1f}")

# %%
# Wait until each environment has finished its first episode, and average these episodes.

first = done & (done.cumsum(dim=1) == 1)
assert first.any(dim=1).all()
mean = returns[first].mean().item()
print(f"mean return of the first episode of each environment: {mean:.1f}")
assert early < 0.8 * mean, (
    "no longer reproduces: episodes that end early have the right mean"
)
