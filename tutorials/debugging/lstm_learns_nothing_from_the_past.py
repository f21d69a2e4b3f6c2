"""
The LSTM acts on its memory but never learns to use it
======================================================

The hidden state is carried, stored and correct, and the loss falls. But the network never learns
what to remember.

:Subsystem: recurrent state
:Effect: silent
:Cause: By default, in a loss that is not a ``LossModule``, the LSTM takes each row on its own, as
   one step from its stored state. This state is a constant, so no gradient reaches earlier steps.
:Fix: Compute the loss under ``set_recurrent_mode(True)``, or derive the loss from ``LossModule``.
:Source: :source:`torchrl.objectives.common._forward_wrapper`,
   :source:`torchrl.modules.LSTMModule.recurrent_mode`
:Behind it: :ref:`recurrent-mode`
:Threads: none found
:Also called: no backpropagation through time, BPTT, recurrent mode, custom loss, gradient stops
"""

# %%
# Break it
# --------
#
# The loss trains a value to predict the reward. The broken and the fixed loss differ only in their
# base class.

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.envs import Compose, GymEnv, InitTracker, TransformedEnv
from torchrl.modules import LSTMModule, QValueModule
from torchrl.objectives import LossModule

torch.manual_seed(0)
lstm = LSTMModule(4, 8, in_key="observation", out_key="features")
env = TransformedEnv(
    GymEnv("CartPole-v1"), Compose(InitTracker(), lstm.make_tensordict_primer())
)
env.set_seed(0)
head = TensorDictModule(torch.nn.Linear(8, 2), ["features"], ["action_value"])
policy = TensorDictSequential(lstm, head, QValueModule(spec=env.action_spec))
batch = env.rollout(40, policy, break_when_any_done=False)


def make_loss(base):
    class ValueLoss(base):
        def __init__(self, policy):
            super().__init__()
            self.policy = policy

        def forward(self, batch):
            value = self.policy(batch.copy())["chosen_action_value"]
            error = (value - batch["next", "reward"]).square().mean()
            return TensorDict(loss_value=error)

    return {"loss_module": ValueLoss(policy), "batch": batch}


broken = make_loss(torch.nn.Module)

# %%
# Check it
# --------
#
# Compute the gradient of the loss with respect to the stored states. If the stored state of a step
# gets a gradient, the step was computed from this state, not from the step before.


def check(loss_module, batch):
    state = batch["recurrent_state_h"].clone().requires_grad_()
    loss = loss_module(batch.copy().set("recurrent_state_h", state))["loss_value"]
    return {
        "starts of sequences": int(batch["is_init"].sum()),
        "steps that start from a stored state": int(
            torch.autograd.grad(loss, state)[0].flatten(1).any(-1).sum()
        ),
    }


unhealthy = check(**broken)
print(unhealthy)
started, expected = "steps that start from a stored state", "starts of sequences"
assert unhealthy[started] > 30, "no longer reproduces: the loss runs whole sequences"

# %%
# The loss does not show the mistake. With fresh data, each stored state is correct, so the loss is
# the same with and without :term:`recurrent mode`. A ``LossModule`` sets this mode around
# ``forward`` and methods whose names end in ``loss``, by :source:`a wrapper
# <torchrl.objectives.common._LossMeta>`. It does not set the mode around a method such as
# ``ClipPPOLoss.loss_critic``, a plain function or a policy call in a training loop.

# %%
# Fix it
# ------

fixed = make_loss(LossModule)
healthy = check(**fixed)
print(healthy)
assert healthy[started] == healthy[expected], "the fix does not work"
values = [side["loss_module"](batch)["loss_value"] for side in (broken, fixed)]
assert torch.allclose(*values), "the losses have different values"
