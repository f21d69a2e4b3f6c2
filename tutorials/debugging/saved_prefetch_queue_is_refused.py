"""
Loading a buffer raises "Cannot restore a prefetch queue"
=========================================================

You restart a run from a checkpoint, and ``load_state_dict`` or ``loads`` of its replay buffer
raises.

:Subsystem: replay buffers
:Effect: loud
:Cause: The checkpoint holds ``prefetch`` and the batches that the buffer had prefetched, if any.
   Only a buffer with the same ``prefetch`` can load it.
:Fix: Create the buffer with the same ``prefetch`` as before. To change ``prefetch``, delete the
   saved queue: ``del state["_prefetch_state"]``.
:Source: :source:`torchrl.data.ReplayBuffer._validate_prefetch_state`
:Behind it: :term:`prefetch`
:Threads: :thread:`4089`
:Also called: resume a run with another prefetch, checkpoint of a replay buffer, capacity 8 into 0,
   prefetch.pkl
"""

# %%
# Break it
# --------

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer


def make_buffer(prefetch):
    storage = LazyTensorStorage(100)
    return TensorDictReplayBuffer(storage=storage, batch_size=4, prefetch=prefetch)


earlier = make_buffer(prefetch=4)
earlier.extend(TensorDict({"reward": torch.arange(50.0)}, [50]))
batch = earlier.sample()
saved = earlier.state_dict()

broken = {"replay_buffer": make_buffer(prefetch=0)}
try:
    broken["replay_buffer"].load_state_dict(saved)
except RuntimeError as error:
    broken["error"] = error
    print(f"{type(error).__name__}: {error}")

assert "Cannot restore a prefetch queue" in str(broken.get("error")), (
    "no longer reproduces: the buffer drops the batches"
)

# %%
# ``loads`` raises in the same way. ``dumps`` writes the queue to the file ``prefetch.pkl``.
#
# Check it
# --------


def check(saved, replay_buffer):
    here = replay_buffer.state_dict()["_prefetch_state"]["capacity"]
    return {
        "saved with prefetch": saved["_prefetch_state"]["capacity"],
        "this buffer": here,
    }


unhealthy = check(saved, broken["replay_buffer"])
print(unhealthy)
assert unhealthy == {"saved with prefetch": 4, "this buffer": 0}, (
    "no longer reproduces: the state of the buffer has another form"
)

# %%
# Fix it
# ------
#
# The buffer first returns the batches that the earlier run had prefetched.

fixed = {"replay_buffer": make_buffer(prefetch=4)}
fixed["replay_buffer"].load_state_dict(saved)
healthy = check(saved, fixed["replay_buffer"])
print(healthy)
assert healthy["saved with prefetch"] == healthy["this buffer"], "the fix does not work"
expected = saved["_prefetch_state"]["queue"][0][0]["reward"]
assert fixed["replay_buffer"].sample()["reward"].equal(expected), (
    "the fix does not work"
)

# %%
# If you want another ``prefetch``, delete the queue from the state. With ``loads``, delete the file
# ``prefetch.pkl`` first. The run then draws other batches. The queue's batches are lost, and the
# saved sampler has already drawn them.

del saved["_prefetch_state"]
other = make_buffer(prefetch=2)
other.load_state_dict(saved)
assert len(other) == 50, "the fix does not work: the rows are missing"
