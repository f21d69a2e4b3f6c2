"""
An LSTM remembers other environments, not its own past
======================================================

With an environment that is not batched, the collector raises. With several environments in a
``SerialEnv`` or ``ParallelEnv`` it runs. But the outputs of the policy depend on their order, and
many hidden states in the batch are zero.

:Subsystem: recurrent state
:Effect: silent
:Cause: The policy acts in recurrent mode, which treats the last batch dimension as time. During a
   step, the last dimension is the environments.
:Fix: Collect outside ``set_recurrent_mode(True)``, with a module that has
   ``default_recurrent_mode=False``.
:Source: :source:`torchrl.modules.LSTMModule.forward`
:Behind it: :ref:`recurrent-mode`
:Threads: none found
:Also called: default_recurrent_mode, set_recurrent_mode around the training loop, SerialEnv,
   ParallelEnv, hidden state zero
"""

# %%
# Break it
# --------
#
# The collection runs inside a ``set_recurrent_mode(True)`` block, as it does if you put the block
# around the whole training loop.

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.envs import Compose, GymEnv, InitTracker, SerialEnv, TransformedEnv
from torchrl.modules import LSTMModule, QValueModule, set_recurrent_mode


def collect(mode):
    torch.manual_seed(0)
    lstm = LSTMModule(4, 8, in_key="observation", out_key="features")
    base = SerialEnv(3, lambda: GymEnv("CartPole-v1"))
    base.set_seed(0)
    env = TransformedEnv(base, Compose(InitTracker(), lstm.make_tensordict_primer()))
    head = TensorDictModule(torch.nn.Linear(8, 2), ["features"], ["action_value"])
    policy = TensorDictSequential(
        lstm, head, QValueModule(spec=base.action_spec_unbatched)
    )
    options = {"auto_register_policy_transforms": False}
    with set_recurrent_mode(mode):
        collector = Collector(
            env, policy, frames_per_batch=90, total_frames=-1, **options
        )
        batch = next(iter(collector)).clone()
    collector.shutdown()
    return {"batch": batch, "policy": policy}


broken = collect(mode=True)

# %%
# An environment that is not batched has no batch dimension, so the policy raises:

step = broken["batch"][0, 0].clone()
message = "nothing"
try:
    with set_recurrent_mode(True):
        broken["policy"](step)
except ValueError as error:
    message = str(error)

print(f"ValueError: {message}")
gone = f"no longer reproduces: {message} is raised"
assert "requires the input tensordict to have at least one batch dim" in message, gone

# %%
# Check it
# --------
#
# A hidden state should be zero only where an episode begins. Count the zeros elsewhere, for each
# environment.


def check(batch):
    zero = (batch["recurrent_state_h"] == 0).flatten(2).all(-1)
    lost = (zero & ~batch["is_init"].squeeze(-1)).sum(1)
    return {
        f"zero within episodes, environment {i}": int(n) for i, n in enumerate(lost)
    }


unhealthy = check(broken["batch"])
print(unhealthy)
first, *_, last = unhealthy.values()
assert first > 15, "no longer reproduces: the first environment has a memory"
assert last < first, "no longer reproduces: the last environment has none"

# %%
# Between resets, the policy treats the three environments as a sequence of three steps. The state
# after the last step goes to the last environment, and the others get zeros. The output for the
# second environment comes from an LSTM that has just seen the first one:

lstm, (first, second) = broken["policy"][0].lstm, broken["batch"][:2, 3]
state = [first[key].unsqueeze(1) for key in ("recurrent_state_h", "recurrent_state_c")]
seen = torch.stack([first["observation"], second["observation"]]).unsqueeze(0)
outputs = lstm(seen, state)[0][0]
assert torch.allclose(outputs[1], second["features"], atol=1e-5), (
    "no longer reproduces: the second environment has a memory of its own"
)

# %%
# Fix it
# ------
#
# Loss modules set the mode themselves. Put the block around value estimators and around losses that
# are no ``LossModule``, not around the collector.

fixed = collect(mode=None)
healthy = check(fixed["batch"])
print(healthy)
assert not any(healthy.values()), "the fix does not work"
