"""
LSTM outputs in slices differ from the collected ones
=====================================================

On slices from the replay buffer, in the middle of an episode, the outputs of the LSTM differ from
those during collection, even before any update. The PPO ratio is usually furthest from one at the
first step of a slice.

:Subsystem: recurrent state
:Effect: silent
:Cause: The buffer does not hold the hidden state, so each slice starts from zeros, even in the
   middle of an episode.
:Fix: Store the hidden state with the other keys.
:Source: :source:`torchrl.modules.LSTMModule._lstm`
:Behind it: :ref:`recurrent-slices`
:Threads: :thread:`3147`
:Also called: stored state, hidden state excluded, save memory, ratio not 1, R2D2, SliceSampler
"""

# %%
# Break it
# --------
#
# .. redirect-from::
#    tutorials/debugging/lstm_outputs_differ_in_slices.html#lstm-outputs-differ-from-the-collected-ones-in-every-slice
#
# If observations are small, the hidden state can take most of the memory, so it is tempting to
# leave it out.

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import Compose, GymEnv, InitTracker, StepCounter, TransformedEnv
from torchrl.modules import LSTMModule, QValueModule, set_recurrent_mode

SLICE_LEN = 8


def fill(left_out):
    torch.manual_seed(0)
    lstm = LSTMModule(4, 8, in_key="observation", out_key="features")
    head = TensorDictModule(torch.nn.Linear(8, 2), ["features"], ["action_value"])
    transforms = Compose(InitTracker(), StepCounter(), lstm.make_tensordict_primer())
    env = TransformedEnv(GymEnv("CartPole-v1"), transforms)
    env.set_seed(0)
    policy = TensorDictSequential(lstm, head, QValueModule(spec=env.action_spec))
    batch = env.rollout(120, policy, break_when_any_done=False)
    sampler = SliceSampler(slice_len=SLICE_LEN, end_key=("next", "done"))
    storage = LazyTensorStorage(120)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=64)
    buffer.extend(batch.exclude(*left_out, *(("next", key) for key in left_out)))
    return {"replay_buffer": buffer, "policy": policy}


broken = fill(left_out=["recurrent_state_h", "recurrent_state_c"])

# %%
# Check it
# --------
#
# Run the module on a sample as a loss does, before the weights change.


def check(sample, lstm, slice_len):
    with torch.no_grad(), set_recurrent_mode(True):
        again = lstm(sample.clone())["features"]
    same = torch.isclose(again, sample["features"], atol=1e-5).all(-1)
    return {
        "slices": len(same) // slice_len,
        "in mid-episode": int((sample["step_count"][::slice_len] > 0).sum()),
        "slices that differ": int((~same).reshape(-1, slice_len).any(1).sum()),
    }


unhealthy = check(broken["replay_buffer"].sample(), broken["policy"][0], SLICE_LEN)
print(unhealthy)
assert unhealthy["in mid-episode"] > 0, "no longer reproduces: slices begin episodes"
assert unhealthy["slices that differ"] == unhealthy["in mid-episode"], (
    "no longer reproduces: a slice without its state gives the collected outputs"
)

# %%
# ``LSTMModule`` requires the observation and ``is_init``. If the state is missing, it starts from
# zeros without an error.

# %%
# Fix it
# ------
#
# If you have no memory for the hidden state, replay longer slices and leave their first steps out
# of the loss.

fixed = fill(left_out=[])
healthy = check(fixed["replay_buffer"].sample(), fixed["policy"][0], SLICE_LEN)
print(healthy)
assert healthy["slices that differ"] == 0, "the fix does not work"
