"""
check_env_specs says that specs and data differ
===============================================

A custom environment resets and steps, but ``check_env_specs`` raises an ``AssertionError`` about
keys, shapes or types of a *real* and a *fake* TensorDict.

:Subsystem: environments
:Effect: loud
:Cause: The data that ``_reset`` and ``_step`` return do not match the specs. The *fake* TensorDict
   is made from the specs, the *real* one comes from a short rollout.
:Fix: Correct the spec or the returned tensor, whichever is wrong.
:Source: :source:`torchrl.envs.utils.check_env_specs`
:Behind it: :doc:`/reference/data_layout`
:Threads: :thread:`2052`, :thread:`1585`, :thread:`3260`, :thread:`1567`, :thread:`1713`
:Also called: real and fake tensordict don't match, keys of the specs and data do not match,
   custom environment, float64 observation
"""

# %%
# Break it
# --------
#
# The code makes three mistakes, one at a time: a ``float64`` from NumPy, an extra dimension, and a
# key without a spec.

import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, check_env_specs


class Pendulum(EnvBase):
    """Observes an angle."""

    def __init__(self, observe):
        super().__init__()
        self.observe = observe
        self.observation_spec = Composite(angle=Unbounded((1,)))
        self.action_spec = Categorical(2)
        self.reward_spec = Unbounded((1,))

    def _data(self):
        return {**self.observe(), "done": torch.zeros(1, dtype=torch.bool)}

    def _reset(self, tensordict=None, **options):
        return TensorDict(self._data())

    def _step(self, tensordict):
        return TensorDict({**self._data(), "reward": torch.ones(1)})

    def _set_seed(self, seed):
        """Nothing in here is random."""


def build(observe):
    env = Pendulum(observe)
    try:
        check_env_specs(env)
    except AssertionError as error:
        return {"env": env, "error": error}
    return {"env": env}


broken = build(lambda: {"angle": torch.from_numpy(np.array([0.5]))})
others = [
    build(lambda: {"angle": torch.full((1, 1), 0.5)}),
    build(lambda: {"angle": torch.full((1,), 0.5), "speed": torch.ones(1)}),
]
errors = [attempt.get("error") for attempt in (broken, *others)]
assert all(errors), "no longer reproduces: check_env_specs accepts one of them"
for error in errors:
    print(f"{type(error).__name__}: {str(error).splitlines()[0]}")

# %%
# The third message goes on with two lists of keys. ``keys_in_real_not_in_fake`` has those that only
# the environment returns.

for error, word in zip(errors, ("dtypes", "shapes", "keys"), strict=True):
    assert word in str(error), "no longer reproduces: the message has changed"
unknown = str(errors[2]).partition("keys_in_real_not_in_fake=")[2].splitlines()[0]
assert "'speed'" in unknown, "no longer reproduces: the list is another one"

# %%
# Check it
# --------
#
# Compare the types in the specs with those in the data.


def check(env):
    real, fake = env.rollout(2)[-1], env.fake_tensordict()
    said = {
        name: (str(fake[name].dtype), str(real[name].dtype))
        for name in fake.keys(True, True)
    }
    return {str(name): pair for name, pair in said.items() if pair[0] != pair[1]}


unhealthy = check(broken["env"])
print(unhealthy)
assert "angle" in unhealthy, "no longer reproduces: the types agree"

# %%
# Fix it
# ------
#
# Here the tensor is wrong. If you want 64 bits, change the spec instead: ``Unbounded((1,),
# dtype=torch.float64)``.

fixed = build(lambda: {"angle": torch.from_numpy(np.array([0.5], dtype=np.float32))})
assert "error" not in fixed, "the fix does not work"
healthy = check(fixed["env"])
print(healthy)
assert not healthy, "the fix does not work"
