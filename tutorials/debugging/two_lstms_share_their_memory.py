"""
With a second LSTM the policy acts on the wrong memory
======================================================

Actor and critic each have an LSTM of the same size, and both run during collection. No error is
raised, but the LSTM of the actor returns other outputs than when it runs alone on the same episode.

:Subsystem: recurrent state
:Effect: silent
:Cause: With ``in_key=`` and ``out_key=``, every LSTM has the same keys for its hidden state, so the
   second LSTM overwrites the state of the first.
:Fix: Give the hidden state of each LSTM its own keys, with ``in_keys=`` and ``out_keys=``.
:Source: :source:`torchrl.modules.LSTMModule.__init__`
:Behind it: :ref:`recurrent-wiring`
:Threads: none found
:Also called: actor and critic LSTM, recurrent_state_h, key collision, two recurrent modules
"""

# %%
# Break it
# --------

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.envs import Compose, GymEnv, InitTracker, TransformedEnv
from torchrl.modules import LSTMModule, get_primers_from_module


def push(features):
    return torch.nn.functional.one_hot((features.sum(-1) > 0).long(), 2)


def shared_names(out_key):
    return LSTMModule(4, 8, in_key="observation", out_key=out_key)


def own_names(out_key):
    state = [f"{out_key}_h", f"{out_key}_c"]
    in_keys = ["observation", *state]
    out_keys = [out_key, *(("next", key) for key in state)]
    return LSTMModule(4, 8, in_keys=in_keys, out_keys=out_keys)


def act(make_lstm):
    torch.manual_seed(0)
    policy = TensorDictSequential(
        make_lstm("features"),
        TensorDictModule(push, ["features"], ["action"]),
        make_lstm("value_features"),
        TensorDictModule(torch.nn.Linear(8, 1), ["value_features"], ["state_value"]),
    )
    transforms = Compose(InitTracker(), get_primers_from_module(policy))
    env = TransformedEnv(GymEnv("CartPole-v1"), transforms)
    env.set_seed(0)
    with torch.no_grad():
        return {"batch": env.rollout(40, policy), "policy": policy}


broken = act(shared_names)

# %%
# Check it
# --------
#
# Run one LSTM alone on the episode, and compare its outputs with the collected ones.


def check(episode, lstm):
    alone = lstm.lstm(episode["observation"].unsqueeze(0))[0][0]
    other = ~torch.isclose(alone, episode[lstm.out_keys[0]], atol=1e-5).all(-1)
    return {"steps": len(episode), "steps with another memory": int(other.sum())}


unhealthy = check(broken["batch"], broken["policy"][0])
print(unhealthy)
assert unhealthy["steps with another memory"] == unhealthy["steps"] - 1, (
    "no longer reproduces: the first LSTM keeps its state"
)

# %%
# The actor's outputs are wrong at all steps but the first, where both states are zero. A loss that
# gets the whole episode runs each LSTM from a zero state. These outputs are right, so the actor's
# differ from its collected outputs. In a slice that starts later, the actor's LSTM gets the
# critic's state. The critic's LSTM runs last and reads its own state, so its collected outputs are
# right:

critic = check(broken["batch"], broken["policy"][2])
print(critic)
assert critic["steps with another memory"] == 0, "the critic is wrong too"

# %%
# Fix it
# ------
#
# An LSTM *shared* by actor and critic is a different case: it is one module with one state.

fixed = act(own_names)
healthy = check(fixed["batch"], fixed["policy"][0])
print(healthy)
assert healthy["steps with another memory"] == 0, "the fix does not work"
