"""
set_truncated=True marks nothing in the buffer
==============================================

With ``set_truncated=True``, the collector should mark the last frame of each batch as truncated.
But in the replay buffer that it fills, these frames are not marked, and slices can run across the
ends of batches.

:Subsystem: collectors
:Effect: silent
:Cause: With ``extend_buffer=False``, each frame goes into the buffer as soon as it is collected.
   The marks are set on whole batches, and here no batch is built.
:Fix: Leave out ``extend_buffer=False``.
:Source: :source:`torchrl.collectors.Collector._maybe_set_truncated`,
   :source:`torchrl.collectors.Collector.rollout`
:Behind it: :ref:`internals-direct-write`
:Threads: none found
:Also called: truncated is always False, post_collect_hook is never called, extend_buffer, episode
   boundary missing
"""

# %%
# Break it
# --------
#
# No episode reaches the time limit, so each mark would come from the collector.

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv


def fill(**options):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    collector = Collector(
        env,
        policy=None,
        frames_per_batch=4,
        total_frames=-1,
        replay_buffer=TensorDictReplayBuffer(storage=LazyTensorStorage(100)),
        set_truncated=True,
        **options,
    )
    for _ in range(3):
        collector.next()
    return {"collector": collector}


broken = fill(extend_buffer=False)

# %%
# Check it
# --------


def check(replay_buffer):
    truncated = replay_buffer[:]["next", "truncated"]
    return {"frames": len(replay_buffer), "marked": int(truncated.sum())}


unhealthy = check(broken["collector"].replay_buffer)
print(unhealthy)
assert unhealthy["marked"] == 0, "no longer reproduces: single frames are marked"

# %%
# Fix it
# ------
#
# By default, the collector builds whole batches. Before it stores one, it sets the marks and does
# everything else that works on a batch, such as calling ``post_collect_hook``.

fixed = fill()
healthy = check(fixed["collector"].replay_buffer)
print(healthy)
assert healthy["marked"] == 3, (
    "the fix does not work: the ends of batches are not marked"
)
