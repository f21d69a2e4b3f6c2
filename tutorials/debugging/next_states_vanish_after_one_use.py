"""
Hidden states vanish from the batch after one use
=================================================

The first use of a batch works. In the second use, most next hidden states are zero. A value
estimator with a recurrent critic may return other values, although nothing was trained.

:Subsystem: recurrent state
:Effect: silent
:Cause: A module writes its outputs into the TensorDict that you pass. In recurrent mode, a GRU or
   LSTM writes next hidden states only for the last step of each sequence, and zeros for the others.
:Fix: When you call a module yourself, pass it a copy: ``batch.copy()``.
:Source: :source:`torchrl.modules.LSTMModule._lstm`
:Behind it: :ref:`recurrent-trust`
:Threads: :thread:`3711`
:Also called: batch overwritten, in place, recurrent_state_h zeros, epochs, ReinforceLoss
"""

# %%
# Break it
# --------
#
# The code calls the policy once more on a collected batch, as you would for a log or a KL
# divergence.

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.envs import Compose, GymEnv, InitTracker, TransformedEnv
from torchrl.modules import GRUModule, QValueModule, set_recurrent_mode

torch.manual_seed(0)
gru = GRUModule(4, 8, in_key="observation", out_key="features")
head = TensorDictModule(torch.nn.Linear(8, 2), ["features"], ["action_value"])
env = TransformedEnv(
    GymEnv("CartPole-v1"), Compose(InitTracker(), gru.make_tensordict_primer())
)
env.set_seed(0)
policy = TensorDictSequential(gru, head, QValueModule(spec=env.action_spec))
collected = env.rollout(40, policy, break_when_any_done=False)


def use(copy):
    batch = collected.clone()
    with torch.no_grad(), set_recurrent_mode(True):
        policy(copy(batch))
    return {"batch": batch, "policy": policy}


broken = use(copy=lambda batch: batch)

# %%
# Check it
# --------
#
# Within an episode, the next hidden state of a step is the hidden state of the step after it. Count
# the steps where it is not.


def check(batch, key="recurrent_state"):
    after, now = batch["next", key][:-1], batch[key][1:]
    kept = (after == now).flatten(1).all(1) | batch["is_init"][1:, 0]
    return {"steps": len(batch), "next states lost": int((~kept).sum())}


unhealthy = check(broken["batch"])
print(unhealthy)
assert unhealthy["next states lost"] > 30, "no longer reproduces: the states are kept"

# %%
# The zeros are placeholders that keep the shape. The states at the root are unchanged, and the
# policy is replayed from them. But a recurrent critic that computes V(s') from ``"next"`` reads the
# placeholders.

# %%
# Fix it
# ------
#
# A shallow copy is enough, because the module replaces tensors of the batch and does not write into
# them. GAE and ``ClipPPOLoss`` make such a copy themselves; ``ReinforceLoss`` does not.

fixed = use(copy=lambda batch: batch.copy())
healthy = check(fixed["batch"])
print(healthy)
assert healthy["next states lost"] == 0, "the fix does not work"
