"""
Advantages are wrong when several workers collect
=================================================

With several workers, the algorithm may learn worse than with one, from the same number of frames.
In the batch, the frames of the workers follow each other along one time dimension.

:Subsystem: trajectories and slices
:Effect: silent
:Cause: ``cat_results=-1`` joins the batches of the workers along time. ``cat_results=0`` does the
   same if each worker has one environment. By default, the collector does not mark where one worker
   ends, so GAE runs from one worker into the next.
:Fix: Leave ``cat_results`` at ``"stack"``, its default. If you need one dimension, flatten
   after GAE.
:Source: :source:`torchrl.collectors.MultiSyncCollector.iterator`
:Behind it: :ref:`collector-cat-results`
:Threads: none found
:Also called: GAE leaks between workers, MultiSyncDataCollector, concatenated batches, seam
"""

# %%
# Break it
# --------

import multiprocessing
import warnings

import matplotlib.pyplot as plt
import torch
from torchrl.collectors import MultiSyncCollector
from torchrl.envs import GymEnv
from torchrl.modules import ValueOperator
from torchrl.objectives.value import GAE


def collect(cat_results):
    start_method = multiprocessing.get_start_method()
    multiprocessing.set_start_method("fork", force=True)
    make_env = [lambda: GymEnv("CartPole-v1")] * 2
    options = {"frames_per_batch": 24, "total_frames": -1, "cat_results": cat_results}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* multi-threaded", DeprecationWarning)
        collector = MultiSyncCollector(make_env, None, **options)
    collector.set_seed(0)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    multiprocessing.set_start_method(start_method, force=True)
    torch.manual_seed(0)
    critic = ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"])
    gae = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    return {"collector": collector, "batch": batch, "value_estimator": gae}


broken = collect(cat_results=0)

# %%
# Check it
# --------
#
# Along time, the last dimension, the trajectory id may change only after a row that is done.


def check(batch):
    ids, done = batch["collector", "traj_ids"], batch["next", "done"].squeeze(-1)
    seams = (ids[..., 1:] != ids[..., :-1]) & ~done[..., :-1]
    return {"shape": tuple(batch.shape), "changes without done": int(seams.sum())}


unhealthy = check(broken["batch"])
print(unhealthy)
gone = "no longer reproduces: the end of a worker's part is marked"
assert unhealthy["changes without done"] == 1, gone

# %%
# Why
# ---
#
# GAE adds the discounted advantage of the next row unless this row is done. At the *seam*, where
# one worker ends, the next row belongs to another worker. Its advantages leak into the rows before
# the seam.

batch, gae = broken["batch"], broken["value_estimator"]
glued = gae(batch.clone())["advantage"].flatten()
apart = gae(batch.clone().reshape(2, -1))["advantage"].flatten()
wrong = (glued - apart).abs() > 1e-4
print(f"{int(wrong.sum())} of {len(wrong)} advantages are wrong")
assert wrong[:12].any(), gone
assert not wrong[12:].any(), gone

# %%
# .. fold:: Draw the advantages

figure, axes = plt.subplots(figsize=(5.4, 2.8), layout="constrained")
axes.axvline(11.5, color="black", linestyle=":")
for rows in (range(12), range(12, 24)):
    axes.plot(rows, apart[rows.start : rows.stop], "C0o-")
axes.plot(glued, "C1x--")
axes.text(12, float(apart.min()), "seam")
axes.text(0, float(apart[8]), "each worker alone", color="C0", va="top")
axes.text(5, float(glued[4]) + 0.2, "glued together", color="C1")
axes.set(title="Advantages of one batch")
axes.set(xlabel="row of the batch", ylabel="advantage [reward]")
figure.set_label(
    f"Advantages of {len(glued)} rows. The second worker begins at the seam. When the parts are "
    f"glued together, {int(wrong.sum())} advantages of the first worker differ from those that it "
    "has alone, most of all just before the seam. Those of the second worker agree."
)
plt.show()

# %%
# Fix it
# ------
#
# With ``"stack"``, the first dimension of the batch is for the workers and the last one is time.
# With other values, ``set_truncated=True`` marks the seam, but the batch has a ``done`` in the
# middle of an episode.

fixed = collect(cat_results="stack")
healthy = check(fixed["batch"])
print(healthy)
assert healthy["changes without done"] == 0, "the fix does not work"
