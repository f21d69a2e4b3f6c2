"""
On a Mac: "Cannot convert a MPS Tensor to float64 dtype"
========================================================

The script works on the CPU, and on CUDA. With ``device="mps"``, or when you move a batch to
``mps``, it raises ``TypeError``.

:Subsystem: devices
:Effect: loud
:Cause: MPS, the GPU backend of a Mac, has no float64. Many environments, such as those of MuJoCo,
   return observations in float64, and TorchRL keeps this dtype.
:Fix: Leave the environment on the CPU, wrap it with ``TransformedEnv(env, DoubleToFloat())``, and
   move its batches to ``mps``.
:Source: :source:`torchrl.envs.transforms.DoubleToFloat`,
   :source:`torchrl.envs.libs.gym.GymWrapper`
:Behind it: :doc:`/performance/device_placement`
:Threads: :thread:`1198`, :thread:`1584`, :thread:`3549`, :thread:`3550`
:Also called: Apple silicon, M1, M2, macOS, Metal, mps device, float64 not supported, double, MuJoCo
   on a Mac
"""

# %%
# Break it
# --------
#
# This page simulates a Mac: a tensor that is moved to ``mps`` stays where it is, but a float64
# tensor raises torch's error.
#
# .. fold:: Imports, the simulation, and an environment in float64

import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import DtypeObservation
from torch.overrides import TorchFunctionMode
from torchrl.envs import DoubleToFloat, GymWrapper, TransformedEnv

MESSAGE = (
    "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support "
    "float64. Please use float32 instead."
)


class SimulatedMPS(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        given = [*args[1:], *(kwargs or {}).values()]
        if function is not torch.Tensor.to or torch.device("mps") not in given:
            return function(*args, **(kwargs or {}))
        if args[0].dtype == torch.float64:
            raise TypeError(MESSAGE)
        return args[0]


def make_env():
    env = DtypeObservation(gymnasium.make("CartPole-v1"), np.float64)
    return GymWrapper(env)


# %%

batch = make_env().rollout(20)
broken = {"batch": batch}
try:
    with SimulatedMPS():
        batch.to("mps")
except TypeError as error:
    broken["error"] = error
    print(f"{type(error).__name__}: {error}")

assert "float64" in str(broken.get("error")), (
    "no longer reproduces: the batch has no float64"
)

# %%
# Check it
# --------
#
# Look for float64 in a batch that was collected on the CPU.


def check(batch):
    leaves = batch.items(include_nested=True, leaves_only=True)
    return {"float64": [key for key, leaf in leaves if leaf.dtype == torch.float64]}


unhealthy = check(batch)
print(unhealthy)
assert unhealthy["float64"], "no longer reproduces: the batch has no float64"

# %%
# Fix it
# ------
#
# Without arguments, ``DoubleToFloat`` converts all entries whose spec is float64. Float64 actions
# are converted back: the policy gives float32, and the environment gets float64.

batch = TransformedEnv(make_env(), DoubleToFloat()).rollout(20)
fixed = {"batch": batch}
healthy = check(batch)
print(healthy)
assert not healthy["float64"], "the fix does not work: float64 is left"
with SimulatedMPS():
    batch.to("mps")

# %%
# Convert your own tensors when you make them, for example from NumPy arrays:
# ``torch.as_tensor(array, dtype=torch.float32)``.
