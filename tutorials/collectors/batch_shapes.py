"""
Batch shapes
============

Leave ``cat_results`` at its default, compute advantages on the batch as the collector delivers it,
and flatten it afterwards. If you flatten several environments first,
:class:`~torchrl.objectives.value.GAE` mixes trajectories that have not ended, without an error.

You should know what an advantage is.
"""

# %%
# .. fold:: Imports, sizes and environments

import logging
import multiprocessing
import os
from functools import partial

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")  # for the workers too

import matplotlib.pyplot as plt
import torch
from torch import nn
from torchrl.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from torchrl.collectors.utils import split_trajectories
from torchrl.envs import GymEnv, SerialEnv, StepCounter, TransformedEnv
from torchrl.modules import ValueOperator
from torchrl.objectives.value import GAE

# Workers, environments and steps differ in number, so that you can tell the dimensions apart.
SEED, FRAMES, N_WORKERS, N_ENVS, TIME_LIMIT_STEPS = 7, 120, 2, 3, 25
GAMMA, LAMBDA = 0.99, 0.95
TOLERANCE = 1e-4  # absolute, in units of the reward
TRAJ_KEY = ("collector", "traj_ids")

torch.set_num_threads(1)
logging.getLogger("torchrl").setLevel("ERROR")

# A worker that does not start by "fork" runs this script again to find its functions. So all code
# that acts is below the guard, which is false in a worker and true in each cell of a notebook.
# Under "spawn", TorchRL's default, every worker would import TorchRL for itself. "forkserver"
# imports it once, in a server process, and forks the workers from there. Windows has only "spawn".
PARTS = [f"torchrl.{n}" for n in ("collectors", "envs", "modules", "objectives")]
if __name__ == "__main__":
    start_method_before = multiprocessing.get_start_method()
    if "forkserver" in multiprocessing.get_all_start_methods():
        multiprocessing.set_start_method("forkserver", force=True)
        multiprocessing.set_forkserver_preload(["matplotlib.pyplot", *PARTS])


def make_env(seed=None):
    """One CartPole. The time limit ends some trajectories, the pole ends others."""
    env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=TIME_LIMIT_STEPS))
    if seed is not None:
        env.set_seed(seed)
        torch.manual_seed(seed)  # draws the actions, in the worker
    return env


def make_batched_env(seed):
    """Several CartPoles as one environment."""
    env = SerialEnv(N_ENVS, make_env)
    env.set_seed(seed)
    torch.manual_seed(seed)
    return env


def makers(make):
    """One function for each worker."""
    return [partial(make, SEED + 100 * worker) for worker in range(N_WORKERS)]


def make_gae():
    """GAE with a value network that is the same in every call."""
    torch.manual_seed(SEED)
    critic = ValueOperator(nn.Linear(4, 1), in_keys=["observation"])
    return GAE(gamma=GAMMA, lmbda=LAMBDA, value_network=critic)


def print_table(header, rows):
    table = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = zip(row, widths, strict=True)
        print("  ".join(f"{text:<{width}}" for text, width in cells).rstrip())


# %%
# The right order
# ---------------
#
# Two workers collect from one CartPole each, and their batch has one line of steps per worker. A
# worker may run the script again, so all code that acts is below ``if __name__ == "__main__"``.

if __name__ == "__main__":
    collector = MultiSyncCollector(
        makers(make_env), policy=None, frames_per_batch=FRAMES, total_frames=FRAMES
    )
    gae = make_gae()
    for batch in collector:
        gae(batch)  # looks along time: on the batch as it comes
        rows = batch.reshape(-1)  # then flat, for minibatches
    collector.shutdown()
    print("batch", tuple(batch.shape), batch.names, "then flat", tuple(rows.shape))

# %%
# The shape does not matter to a loss that reads one row at a time. It does matter to an estimator
# that reads along time:
#
# .. list-table::
#    :header-rows: 1
#    :widths: 70 30
#
#    * - GAE runs on
#      - Advantages
#    * - the batch of one environment, of a batched environment, or of an asynchronous worker
#      - correct
#    * - workers with ``cat_results="stack"``, the default
#      - correct
#    * - workers with ``cat_results=0``, each with a batched environment
#      - correct
#    * - workers with ``cat_results=0``, one environment each
#      - wrong before the :term:`seam` between two workers
#    * - workers with ``cat_results=-1``
#      - wrong before the seam between two workers
#    * - several environments, flattened first
#      - wrong before the seam between two environments
#    * - several environments, with time as the first dimension and without names
#      - most rows wrong
#
# The shape of each batch
# -----------------------
#
# The :term:`time dimension` comes last. The environments of a :term:`batched environment` come
# before it, and the workers before those if their results are stacked.
#
# ``frames_per_batch`` counts the frames of one batch. A synchronous collector divides them among
# its workers, and each worker divides its share among its environments. ``cat_results="stack"``
# adds a dimension for the workers. An integer concatenates the results along an existing dimension,
# which gets longer. A batch of an asynchronous collector comes from *one* worker, which collects
# all of its frames.

F, W, E = FRAMES, N_WORKERS, N_ENVS
PREDICTED = {  # collector, cat_results, environments
    (Collector, "", 1): (F,),
    (Collector, "", E): (E, F // E),
    (MultiAsyncCollector, "", 1): (F,),
    (MultiAsyncCollector, "", E): (E, F // E),
    (MultiSyncCollector, "stack", 1): (W, F // W),
    (MultiSyncCollector, "stack", E): (W, E, F // W // E),
    (MultiSyncCollector, 0, E): (W * E, F // W // E),
    (MultiSyncCollector, 0, 1): (W * (F // W),),
    (MultiSyncCollector, -1, 1): (W * (F // W),),
    (MultiSyncCollector, -1, E): (E, W * (F // W // E)),
}

# %%
# .. fold:: Collect one batch of each


def collect(kind, cat, make, **options):
    """First batch of a collector of that kind; random actions."""
    if isinstance(cat, int):  # "stack" is the default
        options["cat_results"] = cat
    collector = kind(
        makers(make)[0] if kind is Collector else makers(make),
        policy=None,
        frames_per_batch=FRAMES,
        total_frames=FRAMES,
        **options,
    )
    try:
        return next(iter(collector))
    finally:
        collector.shutdown()


if __name__ == "__main__":
    batches = {
        (kind, cat, n): collect(kind, cat, make_env if n == 1 else make_batched_env)
        for kind, cat, n in PREDICTED
    }

# %%
# Each batch has the predicted shape, and the collector names its time dimension:

if __name__ == "__main__":
    for case, batch in batches.items():
        assert batch.shape == PREDICTED[case], case
        assert batch.names == [None] * (batch.ndim - 1) + ["time"], case
    print_table(
        ["collector", "cat_results", "envs", "shape", "names"],
        [
            [kind.__name__, cat, n, tuple(batch.shape), batch.names]
            for (kind, cat, n), batch in batches.items()
        ],
    )

# %%
# The shape alone does not tell you what a batch holds. A batch with one dimension can be one
# environment from start to end, or two workers one after the other.
#
# GAE on each shape
# -----------------
#
# .. redirect-from:: tutorials/collectors/batch_shapes.html#the-truth
#
# By default, GAE goes backward along one dimension: the one named ``"time"``, or the last if no
# dimension has that name. It stops at ``done``, and it reads neither trajectory ids nor step
# counts. So two neighbors along that dimension have to be successive steps of one environment, or
# have ``done`` between them.
#
# Concatenation along time breaks that rule at the *seam* between two workers: if a trajectory has
# not ended there, GAE continues it with the rows of another worker. The advantages of its rows up
# to the seam are wrong, all others correct.
#
# To count the incorrect rows, compute each advantage from its definition, one trajectory at a time:
#
# .. fold:: Ground truth: trajectories by id, steps by their count


@torch.no_grad()
def true_advantage(batch):
    """The advantage of each row, from the definition; looks at no dimension."""
    critic, rows = make_gae().value_network, batch.reshape(-1)
    value = critic(rows.select("observation"))["state_value"].flatten().tolist()
    after = critic(rows["next"].select("observation"))["state_value"].flatten().tolist()
    reward = rows["next", "reward"].flatten().tolist()
    terminated = rows["next", "terminated"].flatten().tolist()
    steps = rows["step_count"].flatten().tolist()

    trajectories = {}
    for row, trajectory in enumerate(rows[TRAJ_KEY].tolist()):
        trajectories.setdefault(trajectory, []).append(row)
    advantage = torch.zeros(len(rows))
    for members in trajectories.values():
        # A step's error is reward + gamma * V(next) - V(now), without V(next) after terminated. The
        # advantage is this error plus gamma * lambda times that of the next row of the trajectory.
        following = 0.0
        for row in sorted(members, key=steps.__getitem__, reverse=True):
            bootstrap = 0.0 if terminated[row] else GAMMA * after[row]
            error = reward[row] + bootstrap - value[row]
            following = advantage[row] = error + GAMMA * LAMBDA * following
    return advantage.reshape(batch.shape)


def advantage_of(batch, **options):
    """The advantage of each row by TorchRL; the batch stays as it is."""
    return make_gae()(batch.clone(), **options)["advantage"].squeeze(-1)


def wrong(batch, advantage):
    """Which rows differ from the ground truth."""
    return (advantage - true_advantage(batch)).abs() > TOLERANCE


def rows_before_seams(batch, length):
    """Rows whose trajectory is open at a seam; there is one after each *length* steps."""
    ids, done = batch[TRAJ_KEY], batch["next", "done"].squeeze(-1)
    rows = torch.zeros(batch.shape, dtype=torch.bool)
    for start in range(0, batch.shape[-1] - length, length):
        last, piece = start + length - 1, slice(start, start + length)
        rows[..., piece] = (ids[..., piece] == ids[..., last, None]) & ~done[
            ..., last, None
        ]
    return rows


# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    Three of the ten batches give wrong advantages. There is no error, and every value is finite.

LEAKY = [
    (MultiSyncCollector, 0, 1),
    (MultiSyncCollector, -1, 1),
    (MultiSyncCollector, -1, E),
]

if __name__ == "__main__":
    lines = []
    for case, batch in batches.items():
        is_wrong = wrong(batch, advantage_of(batch))
        by_hand = torch.zeros_like(is_wrong)
        if case in LEAKY:
            by_hand = rows_before_seams(batch, batch.shape[-1] // N_WORKERS)
        assert torch.equal(is_wrong, by_hand), case
        assert is_wrong.any() == (case in LEAKY), case
        kind, cat, n = case
        n_wrong = int(is_wrong.sum())
        lines.append([kind.__name__, cat, n, tuple(batch.shape), n_wrong])
    print_table(["collector", "cat_results", "envs", "shape", "wrong rows"], lines)

# %%
# The longer the trajectory that is still open at the seam, the more rows are incorrect. The error
# is largest at the seam, and shrinks backward by ``gamma * lambda`` per row, as here with two
# workers and ``cat_results=0``:
#
# .. fold:: Draw the seam

if __name__ == "__main__":
    glued = batches[MultiSyncCollector, 0, 1]
    seam = FRAMES // N_WORKERS
    advantage, truth = advantage_of(glued), true_advantage(glued)
    bad = wrong(glued, advantage).nonzero().flatten()
    ends = glued["next", "done"].squeeze(-1).nonzero().flatten()

    figure, axes = plt.subplots(figsize=(5.4, 3.8), layout="constrained")
    axes.plot(truth, color="C0")
    axes.plot(bad, advantage[bad], "o", color="C1")
    axes.plot(ends, truth[ends], "|", color="C2", ms=16, mew=2)
    axes.axvline(seam - 0.5, color="black", ls="--")
    top = float(advantage.max())
    axes.text(seam + 1, top, "seam between two workers", va="center")
    axes.text(bad[0] - 2, top, "GAE, wrong rows", va="center", ha="right", color="C1")
    axes.text(ends[0] + 2, truth.min(), "done", va="center", color="C2")
    axes.text(len(truth) - 1, top - 2, "per trajectory", ha="right", color="C0")
    axes.set_title("cat_results=0: advantages leak backward over the seam")
    axes.set_xlabel("row of the batch")
    axes.set_ylabel("advantage [reward]")
    worst = (advantage[bad] - truth[bad]).abs().max()
    figure.set_label(
        f"Advantages of {len(truth)} rows. The {len(bad)} rows before the seam between "
        f"two workers differ from the ground truth, by up to {worst:.1f}; all others agree."
    )
    plt.show()

# %%
# Two ways to break a good batch
# ------------------------------
#
# A flat batch has a seam wherever one environment follows another. If time comes first and the
# names are lost, GAE treats the same step of two environments as two successive steps.
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    Both run without a warning. ``flat`` is flattened for minibatches, but too early.
#    ``time_major`` is what ``torch.stack`` makes of a list of steps.

if __name__ == "__main__":
    batch = batches[Collector, "", N_ENVS]
    flat = batch.reshape(-1)
    time_major = torch.stack(batch.unbind(-1))
    n_wrong = {
        "as collected": int(wrong(batch, advantage_of(batch)).sum()),
        "flat": int(wrong(flat, advantage_of(flat)).sum()),
        "time first": int(wrong(time_major, advantage_of(time_major)).sum()),
    }
    print(n_wrong, "wrong rows of", FRAMES)
    assert n_wrong["as collected"] == 0 < n_wrong["flat"] < n_wrong["time first"]

# %%
# Four repairs
# ------------
#
# .. redirect-from:: tutorials/collectors/batch_shapes.html#the-cures
#
# **Keep the dimensions.** Leave ``cat_results`` at ``"stack"``, compute the advantage, flatten
# afterwards. If you know the sizes of a flat batch, reshape it before GAE.
#
# **Name the time dimension.** A transposed TensorDict keeps its names, so GAE still finds the time.
# If the names are lost, write them again or pass ``time_dim``.

if __name__ == "__main__":
    folded = flat.reshape(N_ENVS, -1)
    assert not wrong(folded, advantage_of(folded)).any()

    transposed = batch.transpose(0, 1)  # named ["time", None]
    assert not wrong(transposed, advantage_of(transposed)).any()

    assert not wrong(time_major, advantage_of(time_major, time_dim=0)).any()

    time_major.names = ["time", None]
    assert not wrong(time_major, advantage_of(time_major)).any()
    print("folded, transposed, time_dim=0, named: no wrong row")

# %%
# **Mark the seams.** With ``set_truncated=True`` each worker marks its last row as truncated. GAE
# stops there, and bootstraps from the next observation of that row, which is right. But the flag
# then no longer means that the environment cut the trajectory, and the next batch continues
# trajectories that this batch marks as finished. :claim:`flag-price`

if __name__ == "__main__":
    marked = collect(MultiSyncCollector, 0, make_env, set_truncated=True)
    assert marked["next", "truncated"].squeeze(-1)[[seam - 1, -1]].all()
    assert not wrong(marked, advantage_of(marked)).any()
    print("cat_results=0, set_truncated=True:", tuple(marked.shape), "no wrong row")

# %%
# **Split, but only marked batches.** :func:`~torchrl.collectors.utils.split_trajectories` gives
# each trajectory a line of its own and pads the short ones with zeros. A trajectory that is still
# open has no ``done``, so GAE treats the padding after its last row as further steps. Together with
# ``set_truncated=True`` the split is right.
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    The first line of the output splits an unmarked batch: now the rows of the trajectory that is
#    open at the end of the batch are wrong, too. Padded rows are not counted.

if __name__ == "__main__":
    lines = []
    for name, data in ("cat_results=0", glued), ("with set_truncated=True", marked):
        split = split_trajectories(data)
        mask = split["collector", "mask"]
        n_bad = int(wrong(split[mask], advantage_of(split)[mask]).sum())
        lines.append([name, tuple(split.shape), int((~mask).sum()), n_bad])
    assert lines[0][-1] > 0 == lines[1][-1]
    print_table(["batch", "split shape", "padded rows", "wrong rows"], lines)

# %%
# .. fold:: Clean up: no worker is left, the start method is what it was

if __name__ == "__main__":
    assert not multiprocessing.active_children()
    multiprocessing.set_start_method(start_method_before, force=True)

# %%
# Where this stops being true
# ---------------------------
#
# .. redirect-from:: tutorials/collectors/batch_shapes.html#conclusion
#    tutorials/collectors/batch_shapes.html#setup
#
# * ``frames_per_batch`` divides evenly here. Otherwise the collector rounds it up, and the batches
#   are larger: see :doc:`/reference/collectors_basics`.
# * The comparison covers the *first* batch. Later ones start in the middle of trajectories, but the
#   rows of a trajectory still follow each other, so the rule holds.
# * A buffer from which you sample slices may need the dimensions: see :ref:`replay-flat`.
# * A recurrent value network reads rows in order as well. :doc:`/reference/recurrent_critics` runs
#   one.
#
# Further reading
# ---------------
#
# * :doc:`/reference/data_layout`, what a row holds and how the time dimension is found
# * :doc:`/reference/collectors_replay`, what a sample of a buffer looks like
# * `Generalized advantage estimation <https://arxiv.org/abs/1506.02438>`__
# * `Collectors in the TorchRL documentation
#   <https://docs.pytorch.org/rl/0.14/reference/collectors.html>`__
