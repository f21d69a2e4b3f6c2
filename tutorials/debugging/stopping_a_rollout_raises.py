"""
Stopping a rollout early raises an AttributeError
=================================================

A collector with an ``interruptor`` fills a replay buffer. When the ``interruptor`` stops a rollout
for the first time, the collector raises an error about an attribute that your program does not use.

:Subsystem: collectors
:Effect: loud
:Cause: With ``extend_buffer=True``, the default, an interrupted collector reads its output buffer.
   A collector with a replay buffer has no output buffer.
:Fix: Leave out the argument ``replay_buffer``, and extend the buffer yourself with the rows before
   the cut: ``buffer.extend(batch[batch["collector", "traj_ids"] >= 0])``.
:Source: :source:`torchrl.collectors.Collector.rollout`
:Behind it: :doc:`/reference/collectors_internals`
:Threads: none found
:Also called: _final_rollout, interruptor, preemption, use_buffers=False, stop
   collection
"""

# %%
# Break it
# --------

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv


class StopAfter:
    """Asks to stop as soon as so many steps have been taken."""

    def __init__(self, steps):
        self.steps = steps

    def collection_stopped(self):
        self.steps -= 1
        return self.steps <= 0


def collect(by_collector):
    torch.manual_seed(0)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100))
    collector = Collector(
        GymEnv("CartPole-v1"),
        policy=None,
        frames_per_batch=8,
        total_frames=-1,
        replay_buffer=buffer if by_collector else None,
        interruptor=StopAfter(3),
    )
    result = {"collector": collector, "replay_buffer": buffer}
    try:
        batch = collector.next()
    except AttributeError as error:
        return {**result, "error": error}
    if not by_collector:
        buffer.extend(batch[batch["collector", "traj_ids"] >= 0])
    return result


broken = collect(by_collector=True)
error = broken.get("error", "nothing was raised")
print(f"{type(error).__name__}: {error}")
assert "_final_rollout" in str(error), f"no longer reproduces: {error}"

# %%
# Check it
# --------


def check(replay_buffer):
    return {"frames": len(replay_buffer)}


unhealthy = check(broken["replay_buffer"])
print(unhealthy)
assert unhealthy["frames"] == 0, "no longer reproduces: the frames were written"

# %%
# Fix it
# ------
#
# By default, an interrupted batch keeps its full length, and the rows after the cut have a negative
# trajectory id.

fixed = collect(by_collector=False)
healthy = check(fixed["replay_buffer"])
print(healthy)
assert healthy["frames"] == 3, "the fix does not work: not the frames before the cut"
assert "error" not in fixed, f"the fix does not work: {fixed['error']}"
