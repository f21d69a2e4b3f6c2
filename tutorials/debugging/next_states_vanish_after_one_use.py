"""
Hidden states vanish from the batch after one use
=================================================

The first epoch over a batch is right. In the second, most next hidden states are zero, and an
estimator gives different values, although nothing was trained in between.

:Subsystem: recurrent state
:Effect: silent
:Cause: A module writes its outputs into the data that it is given. In recurrent mode, these outputs
   hold a state for the last step of each sequence and zeros for all others.
:Fix: Give a module that you call yourself a copy, ``batch.copy()``.
:Decided in: :source:`torchrl.modules.LSTMModule._lstm`
:Behind it: :ref:`recurrent-trust`
:Threads: :thread:`3711`
:Also called: batch overwritten, in place, recurrent_state_h zeros, epochs, ReinforceLoss
"""

# %%
# Break it
# --------
#
# The program computes outputs of the policy once more, for a log or a KL divergence.

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
# Within an episode, each step starts from the state that the step before it left.


def check(batch, key="recurrent_state"):
    after, now = batch["next", key][:-1], batch[key][1:]
    kept = (after == now).flatten(1).all(1) | batch["is_init"][1:, 0]
    return {"steps": len(batch), "next states lost": int((~kept).sum())}


unhealthy = check(broken["batch"])
print(unhealthy)
assert unhealthy["next states lost"] > 30, "no longer reproduces: the states are kept"

# %%
# The layer returns one state for each sequence. Elsewhere there is a placeholder that keeps the
# shape. The states at the root stay, and the policy is replayed from these. A critic that reads
# ``"next"`` for V(s') takes the placeholders.

# %%
# Fix it
# ------
#
# A shallow copy is enough: the tensors of the batch are not written to, but replaced. GAE and
# ``ClipPPOLoss`` make one themselves, ``ReinforceLoss`` does not.

fixed = use(copy=lambda batch: batch.copy())
healthy = check(fixed["batch"])
print(healthy)
assert healthy["next states lost"] == 0, "the fix does not work"
