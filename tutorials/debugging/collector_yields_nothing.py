"""
The collector ends without yielding anything
============================================

The collector should yield whole trajectories, and start each batch with a reset. A loop over the
collector ends without a batch, or waits forever for the first one.

:Subsystem: collectors
:Effect: silent
:Cause: With ``trajs_per_batch`` and ``reset_at_each_iter=True``, the collector by default throws
   away each episode that does not end within one batch. If all episodes are longer, it yields
   nothing.
:Fix: Leave out ``reset_at_each_iter``, or make ``frames_per_batch`` large enough for a whole
   episode of each environment.
:Source: :source:`torchrl.collectors.BaseCollector._iter_by_trajectories`,
   :source:`torchrl.collectors.Collector._discards_in_flight_trajectories`
:Behind it: :doc:`/reference/collectors_replay`
:Threads: none found
:Also called: empty loop, no batches, collector hangs, trajs_per_batch, waits forever for the
   first batch, None from next
"""

# %%
# Break it
# --------
#
# With a random policy, the pole takes longer to fall than one batch lasts. ``total_frames`` ends
# the collection. An endless collector would go on forever and yield nothing.

import torch
from torchrl.collectors import Collector
from torchrl.envs import GymEnv


def make(reset, **options):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    return {
        "collector": Collector(
            env,
            policy=None,
            frames_per_batch=5,
            total_frames=200,
            trajs_per_batch=2,
            traj_format="cat",
            reset_at_each_iter=reset,
            **options,
        )
    }


broken = make(reset=True)

# %%
# Check it
# --------
#
# Run another collector of the same kind to its end, and count the frames that it yields.


def check(collector):
    frames = sum(batch.numel() for batch in collector)
    return {"frames to collect": collector.total_frames, "frames yielded": frames}


unhealthy = check(make(reset=True)["collector"])
print(unhealthy)
assert unhealthy["frames yielded"] == 0, (
    "no longer reproduces: episodes cut by the reset are yielded"
)

# %%
# Fix it
# ------
#
# Without the reset, an episode goes on in the next batch until it ends.

fixed = make(reset=False)
healthy = check(make(reset=False)["collector"])
print(healthy)
assert healthy["frames yielded"] > 100, "the fix does not work: episodes are lost"

# %%
# If each batch has to start with a reset, pass ``set_truncated=True``. The collector then marks the
# end of the episodes that the reset cuts, and yields them.

truncated = check(make(reset=True, set_truncated=True)["collector"])
assert truncated["frames yielded"] > 100, "the fix does not work: episodes are lost"
