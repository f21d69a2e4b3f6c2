"""
KeyError "is_init" when an LSTM policy runs
===========================================

A policy with an LSTM or a GRU raises at its first call, often while the collector is built. You
never used this key yourself.

:Subsystem: recurrent state
:Effect: loud
:Cause: A recurrent module needs ``is_init`` to know where an episode begins, and no transform of
   the environment writes that key.
:Fix: Append two transforms to the environment: ``InitTracker()`` and the primer of the module,
   ``module.make_tensordict_primer()``.
:Source: :source:`torchrl.modules.LSTMModule.forward`,
   :source:`torchrl.envs.transforms.InitTracker`
:Behind it: :ref:`recurrent-wiring`
:Threads: none found
:Also called: InitTracker missing, key not found in TensorDict, GRUModule, LSTMModule
"""

# %%
# Break it
# --------
#
# .. redirect-from::
#    tutorials/debugging/is_init_not_found.html#keyerror-is-init-when-an-lstm-policy-meets-the-environment
#
# With the primer alone, the environment carries the hidden state, but nothing marks where an
# episode begins.

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.envs import Compose, GymEnv, InitTracker, TransformedEnv
from torchrl.modules import GRUModule, QValueModule


def build(*transforms):
    gru = GRUModule(4, 8, in_key="observation", out_key="features")
    primer = gru.make_tensordict_primer()
    env = TransformedEnv(GymEnv("CartPole-v1"), Compose(*transforms, primer))
    head = TensorDictModule(torch.nn.Linear(8, 2), ["features"], ["action_value"])
    policy = TensorDictSequential(gru, head, QValueModule(spec=env.action_spec))
    return {"env": env, "policy": policy}


def collect(env, policy):
    options = {"auto_register_policy_transforms": False}
    Collector(env, policy, frames_per_batch=8, total_frames=-1, **options).shutdown(
        close_env=False
    )


broken = build()
try:
    collect(**broken)
except KeyError as error:
    broken["error"] = error

assert "error" in broken, "no longer reproduces: nothing is raised"
message = str(broken["error"].args[0])
assert message.startswith('key "is_init" not found'), f"no longer reproduces: {message}"

# %%
# The message lists the keys that exist:

print(f"KeyError: {message}")

# %%
# Check it
# --------


def check(env):
    return {"is_init after a reset": "is_init" in env.reset()}


unhealthy = check(broken["env"])
print(unhealthy)
assert not unhealthy["is_init after a reset"], "no longer reproduces: is_init is there"

# %%
# Fix it
# ------
#
# ``auto_register_policy_transforms=True`` in the collector adds both transforms too. Do not write
# an ``is_init`` that is never ``True``: the error goes away, but :doc:`the loss mixes the episodes
# </tutorials/debugging/lstm_outputs_change_after_done>`.

fixed = build(InitTracker())
healthy = check(fixed["env"])
print(healthy)
assert healthy["is_init after a reset"], "the fix does not work"
collect(**fixed)
