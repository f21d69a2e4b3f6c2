"""
Batches hold more frames than I asked for
=========================================

Batches hold more than ``frames_per_batch`` frames, and in the end the collector may have yielded
more than ``total_frames``. The only signs are warnings when the collector is built.

:Subsystem: collectors
:Effect: silent
:Cause: A batch holds the same number of steps from each environment, so ``frames_per_batch`` is
   rounded up to a multiple of the number of environments.
:Fix: Choose ``frames_per_batch`` as a multiple of the number of environments, and ``total_frames``
   as a multiple of ``frames_per_batch``.
:Source: :source:`torchrl.collectors.Collector._setup_frames_per_batch`,
   :source:`torchrl.collectors.Collector._setup_total_frames`
:Behind it: :ref:`collector-rounding`
:Threads: :thread:`846`, :thread:`989`
:Also called: not exactly divisible, too many frames, batch size is wrong, total_frames exceeded
"""

# %%
# Break it
# --------
#
# Collectors in worker processes round too, and their warnings are easy to miss.

import warnings

from torchrl.collectors import Collector
from torchrl.envs import GymEnv, SerialEnv


def make_env():
    return GymEnv("CartPole-v1")


def make(frames):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        collector = Collector(
            SerialEnv(4, make_env),
            policy=None,
            frames_per_batch=frames,
            total_frames=-1,
        )
    return {"collector": collector, "error": caught[0].message if caught else None}


broken = make(frames=25)
warning = broken["error"]
print(f"{type(warning).__name__}: {warning}")
assert "not exactly divisible" in str(warning), "no longer reproduces: no such warning"

# %%
# Check it
# --------


def check(collector, frames_asked_for):
    frames = collector.next().numel()
    return {"asked for": frames_asked_for, "got": frames}


unhealthy = check(make(frames=25)["collector"], 25)
print(unhealthy)
assert unhealthy["got"] > unhealthy["asked for"], (
    "no longer reproduces: nothing is rounded"
)

# %%
# Fix it
# ------

fixed = make(frames=24)
healthy = check(make(frames=24)["collector"], 24)
print(healthy)
assert healthy["got"] == healthy["asked for"], (
    "the fix does not work: frames are rounded"
)
assert fixed["error"] is None, f"the fix does not work: {fixed['error']}"
