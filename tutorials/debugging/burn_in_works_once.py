"""
Burn-in works for the first sample only
=======================================

A buffer recomputes the hidden states of its slices with ``BurnInTransform``. In the first sample, a
longer burn-in makes these states better. In later samples, it does not.

:Subsystem: recurrent state
:Effect: silent
:Cause: With ``prefetch``, a buffer transforms its samples in threads. A thread does not see the
   ``set_recurrent_mode(True)`` of the code that samples, so the LSTM takes single steps there.
:Fix: Give the transform a second module, with the same weights and ``default_recurrent_mode=True``.
   Or do not prefetch.
:Source: :source:`torchrl.modules.tensordict_module.rnn.recurrent_mode_state_manager`,
   :source:`torchrl.envs.transforms.BurnInTransform.forward`
:Behind it: :ref:`recurrent-mode`
:Threads: :thread:`3754`
:Also called: prefetch, thread, ContextVar, BurnInTransform does nothing, R2D2
"""

# %%
# Break it
# --------
#
# An episode is collected and then the weights change, so its hidden states are outdated. Each row
# stores its number, so that the check finds the burn-in rows of a slice.

import torch
from torchrl.data import LazyTensorStorage, ReplayBuffer, SliceSampler
from torchrl.envs import BurnInTransform, Compose, GymEnv, InitTracker, TransformedEnv
from torchrl.modules import LSTMModule, set_recurrent_mode

BURN_IN, SLICE_LEN = 6, 10


torch.manual_seed(0)
lstm = LSTMModule(3, 8, in_key="observation", out_key="features")
env = TransformedEnv(
    GymEnv("Pendulum-v1"), Compose(InitTracker(), lstm.make_tensordict_primer())
)
with torch.no_grad():
    episode = env.rollout(60, lambda tensordict: lstm(env.rand_action(tensordict)))
    for weight in lstm.parameters():
        weight.mul_(2)
episode["row"] = torch.arange(60)


def burn_in(module):
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(60),
        sampler=SliceSampler(slice_len=SLICE_LEN, end_key=("next", "done")),
        transform=lambda data: data.reshape(-1, SLICE_LEN),
        batch_size=8 * SLICE_LEN,
        prefetch=1,
    )
    buffer.append_transform(BurnInTransform([module], burn_in=BURN_IN))
    buffer.extend(episode)
    return {"replay_buffer": buffer}


def three_samples(replay_buffer):
    with set_recurrent_mode(True):
        return torch.stack([replay_buffer.sample() for _ in range(3)])


broken = burn_in(lstm)

# %%
# Check it
# --------
#
# Run the LSTM by hand over the burn-in rows of each slice, and compare the states.


def check(samples, episode, lstm, burn_in):
    rows = samples["row"][..., :1] + torch.arange(-burn_in, 0)
    with torch.no_grad(), set_recurrent_mode(True):
        state = lstm(episode[rows])["next", "recurrent_state_h"][..., -1, :, :]
    return {
        f"wrong states in sample {number}": int((~same.flatten(1).all(1)).sum())
        for number, same in enumerate(
            torch.isclose(state, samples["recurrent_state_h"][:, :, 0], atol=1e-5)
        )
    }


unhealthy = check(three_samples(**broken), episode, lstm, BURN_IN)
print(unhealthy)
broken["replay_buffer"].shutdown()
assert unhealthy["wrong states in sample 0"] == 0, "no longer reproduces: already wrong"
assert unhealthy["wrong states in sample 1"] > 4, (
    "no longer reproduces: later ones agree"
)

# %%
# The first sample is made in the calling thread, inside the ``set_recurrent_mode(True)`` block. The
# next ones are made in advance, in threads where the :term:`recurrent mode` is unset. The same
# happens to a policy that you call in a thread of your own, and to a collector's policy after
# ``collector.start()``.

# %%
# Fix it
# ------
#
# ``twin`` shares the weights, and reads sequences even where the mode is unset.

keys = {"in_keys": lstm.in_keys[:3], "out_keys": lstm.out_keys}
twin = LSTMModule(lstm=lstm.lstm, default_recurrent_mode=True, **keys)
fixed = burn_in(twin)
healthy = check(three_samples(**fixed), episode, lstm, BURN_IN)
print(healthy)
fixed["replay_buffer"].shutdown()
assert not any(healthy.values()), "the fix does not work"
