"""
Observation and next observation are the same
=============================================

In the batches of a custom environment, ``"observation"`` and ``("next", "observation")`` are equal
in most rows, as if the actions had no effect. ``check_env_specs`` finds nothing.

:Subsystem: environments
:Effect: silent
:Cause: The environment returns the tensor in which it keeps its state, and the next step changes
   this tensor in place. So the observation before the step changes as well.
:Fix: Return a new tensor from ``_reset`` and ``_step``, for example ``self.position.clone()``.
:Source: :source:`torchrl.envs.EnvBase.step`
:Behind it: :doc:`/how-to/write_an_environment`
:Threads: none found
:Also called: in-place update of the state, self.state +=, aliased observation,
   rows change after the step
"""

# %%
# Break it
# --------
#
# Each step moves a point by one. The new position is written into the old tensor.

import torch
from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, StepCounter, TransformedEnv, check_env_specs


class Walk(EnvBase):
    """One step to the left or to the right."""

    def __init__(self, returns_a_copy):
        super().__init__()
        self.returns_a_copy = returns_a_copy
        self.observation_spec = Composite(observation=Unbounded((1,)))
        self.action_spec = Categorical(2)
        self.reward_spec = Unbounded((1,))

    def _data(self):
        position = self.position.clone() if self.returns_a_copy else self.position
        return {"observation": position, "terminated": self.position.abs() > 9}

    def _reset(self, tensordict=None, **options):
        self.position = torch.zeros(1)
        return TensorDict(self._data())

    def _step(self, tensordict):
        self.position += 2 * tensordict["action"] - 1
        return TensorDict({**self._data(), "reward": -self.position.abs()})

    def _set_seed(self, seed):
        """Nothing in here is random."""


def collect(returns_a_copy):
    env = TransformedEnv(Walk(returns_a_copy), StepCounter(max_steps=20))
    check_env_specs(env)
    collector = Collector(env, None, frames_per_batch=50, total_frames=-1)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    return {"env": env, "batch": batch}


broken = collect(returns_a_copy=False)

# %%
# Check it
# --------


def check(batch):
    same = batch["observation"] == batch["next", "observation"]
    return {"rows": len(batch), "nothing changes": int(same.all(-1).sum())}


unhealthy = check(broken["batch"])
print(unhealthy)
assert unhealthy["nothing changes"] > 40, "no longer reproduces: TorchRL copies it"

# %%
# Both entries of a step are one tensor here, so both have the values after the step. The policy saw
# the values before it.
#
# Fix it
# ------
#
# A copy holds the values of its own step. An environment that computes a new tensor in each step,
# such as ``self.position = self.position + 1``, needs no ``clone()``.

fixed = collect(returns_a_copy=True)
healthy = check(fixed["batch"])
print(healthy)
assert healthy["nothing changes"] == 0, "the fix does not work"
