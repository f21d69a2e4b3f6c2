"""
A shorter time limit makes the policy worse
===========================================

The task has no end of its own, and you limit the steps of an episode to train faster. With positive
rewards, the shorter the limit, the lower the values, and the more short-sighted the policy.

:Subsystem: value estimation and losses
:Effect: silent
:Cause: The environment reports its limit as ``terminated``. Or it reports only ``done``, and
   TorchRL copies it to ``terminated``. So the return after the limit counts as zero.
:Fix: Leave the limit out of ``_step`` and append ``StepCounter(max_steps=...)``, which reports
   it as ``truncated``.
:Source: :source:`torchrl.envs.EnvBase._complete_done`
:Behind it: :ref:`layout-flags`
:Threads: none found
:Also called: truncation reported as termination, custom environment done, time-aware, max_steps,
   bootstrap cut, value function drops to zero
"""

# %%
# Break it
# --------
#
# A point walks left or right and gets a reward in each step. Only the time limit ends an
# episode.

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.data import Composite, OneHot, Unbounded
from torchrl.envs import EnvBase, StepCounter, TransformedEnv
from torchrl.objectives.value import TD0Estimator

LIMIT = 10  # steps
VALUE = 50.0  # what the critic says of each state


class Walk(EnvBase):
    def __init__(self, max_steps=None):
        super().__init__()
        self.max_steps, self.steps, self.place = max_steps, 0, torch.zeros(1)
        self.observation_spec = Composite(observation=Unbounded((1,)))
        self.action_spec, self.reward_spec = OneHot(2), Unbounded((1,))

    def _reset(self, tensordict=None):
        self.steps, self.place = 0, torch.zeros(1)
        return TensorDict(observation=self.place)

    def _step(self, tensordict):
        self.steps += 1
        self.place = self.place + (1.0 if tensordict["action"][0] else -1.0)
        done = torch.tensor([self.steps == self.max_steps])
        return TensorDict(observation=self.place, reward=torch.ones(1), done=done)

    def _set_seed(self, seed):
        return seed


def collect(env):
    torch.manual_seed(0)
    collector = Collector(env, None, frames_per_batch=100, total_frames=-1)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    critic = TensorDictModule(
        lambda observation: torch.full_like(observation, VALUE),
        in_keys=["observation"],
        out_keys=["state_value"],
    )
    estimator = TD0Estimator(gamma=0.99, value_network=critic)
    return {"batch": batch, "env": env, "value_estimator": estimator}


broken = collect(Walk(max_steps=LIMIT))

# %%
# Check it
# --------


def check(batch, estimator):
    ends, target = batch["next", "done"], estimator(batch.clone())["value_target"]
    last, flags = target[ends].mean().item(), batch["next"][ends.squeeze(-1)]
    return {
        "ends": int(ends.sum()),
        "terminated": int(flags["terminated"].sum()),
        "target at the end": round(last, 1),
    }


unhealthy = check(broken["batch"], broken["value_estimator"])
print(unhealthy)
assert unhealthy["terminated"] == unhealthy["ends"] > 5, (
    "no longer reproduces: a lone done is not taken for a termination"
)
assert unhealthy["target at the end"] == 1, "no longer reproduces: a value follows"

# %%
# The observation does not show how near the limit is. So the same place can have a high target in
# one episode and a low one in another.
#
# Fix it
# ------
#
# Now the environment has no limit. ``StepCounter`` cuts the episodes, and marks the cut as
# ``truncated``.

fixed = collect(TransformedEnv(Walk(), StepCounter(max_steps=LIMIT)))
healthy = check(fixed["batch"], fixed["value_estimator"])
print(healthy)
assert healthy["ends"] == unhealthy["ends"], "the limit is another one"
assert healthy["terminated"] == 0, "the fix does not work"
assert healthy["target at the end"] > VALUE / 2, "the fix does not work"
