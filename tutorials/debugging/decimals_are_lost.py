"""
A batched environment loses the decimals
========================================

A single environment returns fractions. The batched environment returns whole numbers, such as zeros
for fractions between 0 and 1. Nothing is raised, and ``check_env_specs`` finds no fault in it.

:Subsystem: environments
:Effect: silent
:Cause: By default, if all specs have a fixed shape, a batched environment copies each result into
   buffers made from the spec. The copy casts to the dtype of the spec.
:Fix: Give the spec the dtype that the environment returns, and run ``check_env_specs`` on a single
   environment before you batch it.
:Source: :source:`torchrl.envs.SerialEnv._step`
:Behind it: this page
:Threads: none found
:Also called: observation is always zero, dtype cast, float became int, truncated rewards
"""

# %%
# Break it
# --------
#
# The observation is a fraction, but its spec has an integer dtype.

import torch
from tensordict import TensorDict
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, SerialEnv, check_env_specs


class Thermometer(EnvBase):
    """Observes a temperature between 0 and 1."""

    def __init__(self, dtype):
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((1,), dtype=dtype))
        self.action_spec = Categorical(2)
        self.reward_spec = Unbounded((1,))

    def _data(self):
        done = torch.zeros(1, dtype=torch.bool)
        return {"observation": 0.1 + 0.8 * torch.rand(1), "done": done}

    def _reset(self, tensordict=None, **options):
        return TensorDict(self._data())

    def _step(self, tensordict):
        return TensorDict({**self._data(), "reward": torch.ones(1)})

    def _set_seed(self, seed):
        torch.manual_seed(seed)


def build(dtype):
    env = SerialEnv(2, lambda: Thermometer(dtype))
    env.set_seed(0)
    return {"env": env, "batch": env.rollout(5)}


broken = build(torch.int64)

# %%
# Check it
# --------
#
# Compare the dtypes of the same key from one environment and from several.


def check(one, several):
    single, batched = (env.rollout(3)["observation"] for env in (one, several))
    return {"one": str(single.dtype), "several": str(batched.dtype)}


unhealthy = check(Thermometer(torch.int64), broken["env"])
print(unhealthy)
assert unhealthy["one"] != unhealthy["several"], "no longer reproduces: no cast"
assert not broken["batch"]["observation"].any(), (
    "no longer reproduces: decimals survive"
)

# %%
# On the batched environment, ``check_env_specs`` finds no fault, because the data are already cast.
# On a single environment, it raises:

check_env_specs(broken["env"])  # no complaint
try:
    check_env_specs(Thermometer(torch.int64))
except AssertionError as error:
    print(f"{type(error).__name__}: {error}")
else:
    raise AssertionError("no longer reproduces: a wrong type passes check_env_specs")

# %%
# Fix it
# ------

fixed = build(torch.float32)
healthy = check(Thermometer(torch.float32), fixed["env"])
print(healthy)
assert healthy["one"] == healthy["several"], "the fix does not work"
assert fixed["batch"]["observation"].all(), "the fix does not work"
check_env_specs(Thermometer(torch.float32))
