"""
A recurrent critic gives values as if it had no memory
======================================================

Advantages from a critic with an LSTM may be no better than without an LSTM. The loss that trains
the critic computes different values for the same steps.

:Subsystem: recurrent state
:Effect: silent
:Cause: A loss module switches recurrent modules to whole sequences. A value estimator that you call
   yourself does not. The critic then computes each step alone, from the stored state, or from zeros
   if there is none.
:Fix: Call the estimator under ``set_recurrent_mode(True)``. Make it with ``shifted=True``.
   ``deactivate_vmap=True`` also works if the batch holds hidden states from the critic's current
   weights.
:Source: :source:`torchrl.objectives.value.GAE.forward`,
   :source:`torchrl.modules.LSTMModule.recurrent_mode`
:Behind it: :ref:`recurrent-advantages`
:Threads: :thread:`2372`
:Also called: GAE with LSTM, recurrent value network, value_estimator, bad advantages
"""

# %%
# Break it
# --------
#
# The critic does not run during collection, as is common in PPO, so its hidden states are not
# stored.

import contextlib

import torch
from tensordict.nn import TensorDictSequential
from torchrl.envs import GymEnv, InitTracker
from torchrl.modules import LSTMModule, ValueOperator, set_recurrent_mode
from torchrl.objectives.value import GAE


def estimate(context):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1").append_transform(InitTracker())
    env.set_seed(0)
    batch = env.rollout(40, break_when_any_done=False)
    value = ValueOperator(torch.nn.Linear(8, 1), in_keys=["features"])
    lstm = LSTMModule(4, 8, in_key="observation", out_key="features")
    critic = TensorDictSequential(lstm, value)
    gae = GAE(gamma=0.99, lmbda=0.95, value_network=critic, shifted=True)
    with torch.no_grad(), context:
        gae(batch)
    return {"value_estimator": gae, "batch": batch}


broken = estimate(contextlib.nullcontext())

# %%
# Check it
# --------
#
# Run the critic over the sequences and compare with the values in the batch.


def check(batch, critic):
    with torch.no_grad(), set_recurrent_mode(True):
        value = critic(batch.clone())["state_value"]
    other = ~torch.isclose(value, batch["state_value"], atol=1e-5)
    return {"steps": len(batch), "steps with another value": int(other.sum())}


unhealthy = check(broken["batch"], broken["value_estimator"].value_network)
print(unhealthy)
assert unhealthy["steps with another value"] > 20, "no longer reproduces: values agree"

# %%
# Only the first step of each episode agrees, because there is nothing to remember yet. If states
# are stored, all values may agree until the first update.

starts = int(broken["batch"]["is_init"].sum())
agree = unhealthy["steps"] - unhealthy["steps with another value"]
assert agree == starts, "no longer reproduces: other steps agree too"

# %%
# Fix it
# ------
#
# ``loss.value_estimator(batch)`` needs the ``set_recurrent_mode(True)`` block too, although it
# belongs to a loss. Without ``deactivate_vmap=True`` or ``shifted=True``, most recurrent critics
# raise: :doc:`/tutorials/debugging/gae_raises_with_lstm`.

fixed = estimate(set_recurrent_mode(True))
healthy = check(fixed["batch"], fixed["value_estimator"].value_network)
print(healthy)
assert healthy["steps with another value"] == 0, "the fix does not work"
