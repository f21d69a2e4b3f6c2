"""
Batch shapes
============

Five ways to collect the same frames give batches of different shape. On some of them GAE is right.
On others it is wrong, without an error. This lesson predicts every shape, runs every collector,
and compares GAE with a plain loop over each trajectory.

After it you can

* say which shape a collector delivers before you run it;
* say on which shapes :class:`~torchrl.objectives.value.GAE` mixes trajectories, and how many rows
  it gets wrong;
* choose the cure: keep the worker dimension, keep the environment dimension, name the time
  dimension, or mark the seams.

**Cost.** A few seconds on CPU. Nine short-lived worker pairs are started and shut down; they share
one import of TorchRL. Every number is printed by the run.

**Markers.** A box titled *Wrong on purpose* announces code that does the wrong thing and raises
nothing. The cell counts the wrong rows, and asserts them.

What a row holds is the subject of :doc:`/reference/data_layout`. The words are in the
:doc:`glossary </reference/glossary>`, the collectors in :doc:`/reference/collectors_basics`.
"""

# %%
# Setup
# -----

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

# %%
# All sizes stand here. They differ from each other, and so do all products that can become a
# dimension: a shape tells where each of its numbers comes from.

SEED = 7
FRAMES_PER_BATCH = 120
N_WORKERS = 2
N_ENVS = 3
TIME_LIMIT_STEPS = 25

GAMMA, LAMBDA = 0.99, 0.95
TOLERANCE = 1e-4  # absolute, on advantages of the size of a reward
TRAJ_KEY = ("collector", "traj_ids")

torch.set_num_threads(1)
logging.getLogger("torchrl").setLevel("ERROR")

# %%
# **The guard.** A worker that does not start by ``fork`` runs this script again, to find the
# functions it needs. So everything that does something stands below
# ``if __name__ == "__main__":``, which is false in a worker. Definitions and constants stand
# outside. A notebook has no script to run again, and there the guard is true in every cell.
#
# **The start method.** Under "spawn", TorchRL's default, each worker imports TorchRL for itself,
# which takes longer than everything else on this page. "forkserver" imports what this script
# imports once, in one server process, and forks the workers from there. Windows has no such thing.

TORCHRL_PARTS = [
    f"torchrl.{n}" for n in ("collectors", "envs", "modules", "objectives")
]
HAS_SERVER = "forkserver" in multiprocessing.get_all_start_methods()

if __name__ == "__main__":
    start_method_before = multiprocessing.get_start_method()
    if HAS_SERVER:
        multiprocessing.set_start_method("forkserver", force=True)
        multiprocessing.set_forkserver_preload(["matplotlib.pyplot", *TORCHRL_PARTS])

# %%
# Two environments: one CartPole, and a :term:`batched environment` of three. The time limit ends
# some trajectories, and the pole ends others. The functions run in the
# worker and seed two things there: the environment, and PyTorch, which draws the actions.


def make_env(seed=None):
    """CartPole with a time limit."""
    env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=TIME_LIMIT_STEPS))
    if seed is not None:
        env.set_seed(seed)
        torch.manual_seed(seed)
    return env


def make_batched_env(seed):
    """Several CartPoles as one environment."""
    env = SerialEnv(N_ENVS, make_env)
    env.set_seed(seed)
    torch.manual_seed(seed)
    return env


def collect(kind, make, **options):
    """First batch of a collector of that kind; random actions."""
    makers = [partial(make, SEED + 100 * worker) for worker in range(N_WORKERS)]
    collector = kind(
        makers[0] if kind is Collector else makers,
        policy=None,
        frames_per_batch=FRAMES_PER_BATCH,
        total_frames=FRAMES_PER_BATCH,
        **options,
    )
    try:
        return next(iter(collector))
    finally:
        collector.shutdown()


def print_table(header, rows):
    """One aligned table: text to the left, numbers to the right."""
    table = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *table, strict=True)]
    sides = [">" if isinstance(cell, int) else "<" for cell in rows[0]]
    for row in (header, ["-" * width for width in widths], *table):
        cells = zip(row, sides, widths, strict=True)
        print(
            "  ".join(f"{text:{side}{width}}" for text, side, width in cells).rstrip()
        )


# %%
# The shape of each batch
# -----------------------
#
# **Claim.** The :term:`time dimension` is the last one. Before it stand the environments of a
# batched environment, and before those the workers, if the results are stacked.
#
# **By hand.** ``frames_per_batch`` counts the frames of one batch. A synchronous collector
# divides it among its workers, and each worker divides its share among its environments:
#
# * one environment: all frames are steps of it;
# * several environments: ``frames / environments`` steps of each;
# * workers, synchronous: ``frames / workers`` of each worker. ``"stack"`` adds a dimension for the
#   workers. An integer concatenates along an existing dimension, so that one grows;
# * workers, asynchronous: each batch comes from *one* worker, which collects the full number.

if __name__ == "__main__":
    F, W, E = FRAMES_PER_BATCH, N_WORKERS, N_ENVS
    predicted = {
        ("Collector", "", 1): (F,),
        ("Collector", "", E): (E, F // E),
        ("MultiSync", "stack", 1): (W, F // W),
        ("MultiSync", "stack", E): (W, E, F // W // E),
        ("MultiSync", 0, 1): (W * (F // W),),
        ("MultiSync", 0, E): (W * E, F // W // E),
        ("MultiSync", -1, 1): (W * (F // W),),
        ("MultiSync", -1, E): (E, W * (F // W // E)),
        ("MultiAsync", "", 1): (F,),
        ("MultiAsync", "", E): (E, F // E),
    }

# %%
# **Measured.** Ten collectors, one batch each. ``"stack"`` is the default, so nothing asks for it
# here. The names say which dimension is time.

KINDS = {
    "Collector": Collector,
    "MultiSync": MultiSyncCollector,
    "MultiAsync": MultiAsyncCollector,
}

if __name__ == "__main__":
    batches = {}
    for name, cat, n_envs in predicted:
        options = {"cat_results": cat} if isinstance(cat, int) else {}
        make = make_env if n_envs == 1 else make_batched_env
        batches[name, cat, n_envs] = collect(KINDS[name], make, **options)

    for case, batch in batches.items():
        assert batch.shape == predicted[case], case
        assert batch.numel() == FRAMES_PER_BATCH
        assert batch.names == [None] * (batch.ndim - 1) + ["time"], case

    print_table(
        ["collector", "cat_results", "envs", "predicted", "measured", "names"],
        [
            [*map(str, case), predicted[case], tuple(batch.shape), batch.names]
            for case, batch in batches.items()
        ],
    )

# %%
# **Reading.** Every shape is as predicted. The same shape comes with different content: a single
# dimension is one environment from start to end, or two workers one after the other. The shape
# does not say which.
#
# The truth
# ---------
#
# **Claim.** GAE of a row depends on the rows of its trajectory that follow it, and on no other.
#
# **By hand.** The error of one step is ``reward + gamma * V(next) - V(now)``, where ``V(next)`` is
# left out after ``terminated``. The advantage is this error plus ``gamma * lambda`` times the
# advantage of the next row of the same trajectory, if the batch has one. The function below finds
# the rows of a trajectory by its :term:`trajectory id` and orders them by their step count. It
# looks at no dimension, so it is right on any shape.


def make_critic():
    """A value network that is the same in every call."""
    torch.manual_seed(SEED)
    return ValueOperator(nn.Linear(4, 1), in_keys=["observation"])


@torch.no_grad()
def true_advantage(batch):
    """The advantage of each row, from the definition, one trajectory at a time."""
    critic, rows = make_critic(), batch.reshape(-1)
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
        following = 0.0
        for row in sorted(members, key=steps.__getitem__, reverse=True):
            bootstrap = 0.0 if terminated[row] else GAMMA * after[row]
            error = reward[row] + bootstrap - value[row]
            following = advantage[row] = error + GAMMA * LAMBDA * following
    return advantage.reshape(batch.shape)


def gae(batch, **options):
    """The advantage of each row by TorchRL; the batch stays as it is."""
    estimator = GAE(gamma=GAMMA, lmbda=LAMBDA, value_network=make_critic())
    return estimator(batch.clone(), **options)["advantage"].squeeze(-1)


def wrong(batch, advantage):
    """Which rows differ from the truth."""
    return (advantage - true_advantage(batch)).abs() > TOLERANCE


# %%
# **Check.** The truth knows what ends a trajectory, so both kinds of end must occur. On the batch
# of a single environment TorchRL and the loop agree.

if __name__ == "__main__":
    single = batches["Collector", "", 1]
    terminated, truncated = single["next", "terminated"], single["next", "truncated"]
    assert terminated.any()
    assert (truncated & ~terminated).any()
    assert not single["next", "done"][-1]  # and the batch cuts one that goes on
    assert not wrong(single, gae(single)).any()
    n_ends = [int(flag.sum()) for flag in (terminated, truncated)]
    print("trajectories: {} terminated, {} truncated, 1 cut".format(*n_ends))

# %%
# GAE on each shape
# -----------------
#
# **Claim.** GAE walks backward along one dimension: the one that is named "time", else the last.
# It stops at ``done``. It looks neither at the trajectory ids nor at the step counts. So it is
# right where two neighbors along that dimension are two steps of one environment, or have
# ``done`` between them.
#
# **By hand.** Stacked batches and those of one worker keep that rule. Concatenation breaks it
# where the concatenated dimension is time. That is the case for ``-1``, and for ``0`` with one
# environment per worker. With a batched environment, dimension 0 counts environments, and
# concatenating them mixes nothing. At a broken place, a :term:`seam`, the trajectory before it
# reads the one after it. Its rows *up to the seam* are wrong, and no others.


def rows_before_seams(batch, length):
    """Rows whose trajectory is open at a seam; there is one after each *length* steps."""
    ids, done = batch[TRAJ_KEY], batch["next", "done"].squeeze(-1)
    rows = torch.zeros(batch.shape, dtype=torch.bool)
    for start in range(0, batch.shape[-1] - length, length):
        last = start + length - 1
        piece = slice(start, start + length)
        same = ids[..., piece] == ids[..., last, None]
        rows[..., piece] = same & ~done[..., last, None]
    return rows


# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    Three of the ten batches give wrong advantages. Nothing raises, every value is finite.

LEAKY = [("MultiSync", 0, 1), ("MultiSync", -1, 1), ("MultiSync", -1, N_ENVS)]

if __name__ == "__main__":
    lines = []
    for case, batch in batches.items():
        advantage = gae(batch)
        is_wrong = wrong(batch, advantage)
        by_hand = torch.zeros_like(is_wrong)
        if case in LEAKY:
            by_hand = rows_before_seams(batch, batch.shape[-1] // N_WORKERS)
            assert by_hand.any()
        assert advantage.isfinite().all()
        assert torch.equal(is_wrong, by_hand), case
        assert is_wrong.any() == (case in LEAKY), case
        n_wrong, n_by_hand = int(is_wrong.sum()), int(by_hand.sum())
        lines.append([*map(str, case), tuple(batch.shape), n_by_hand, n_wrong])
    print_table(
        ["collector", "cat_results", "envs", "shape", "predicted wrong", "wrong rows"],
        lines,
    )

# %%
# **Reading.** The wrong rows are the predicted ones, row by row. Their number depends on how long
# the trajectories are that happen to be open at the seam, so it grows with episodes longer than
# these. The figure shows the batch of two workers.

if __name__ == "__main__":
    glued = batches["MultiSync", 0, 1]
    seam = FRAMES_PER_BATCH // N_WORKERS
    advantage, truth = gae(glued), true_advantage(glued)
    bad = wrong(glued, advantage).nonzero().flatten()
    ends = glued["next", "done"].squeeze(-1).nonzero().flatten()

    figure, axes = plt.subplots(figsize=(5.4, 4.4), layout="constrained")
    axes.plot(truth, color="C0", label="per trajectory (truth)")
    axes.plot(bad, advantage[bad], "o", color="C1", label="GAE on the batch, wrong row")
    axes.axvline(seam - 0.5, color="black", ls="--", label="seam between two workers")
    axes.plot(ends, truth[ends], "|", color="C2", ms=16, mew=2, label="done")
    axes.set_title("cat_results=0: advantages leak backward over the seam")
    axes.set_xlabel("row of the batch")
    axes.set_ylabel("advantage [reward]")
    figure.legend(loc="outside lower center", ncols=2)
    worst = (advantage[bad] - truth[bad]).abs().max()
    figure.set_label(
        f"Advantages of {len(truth)} rows. The {len(bad)} rows before the seam between the two "
        f"workers differ from the truth, by up to {worst:.1f} at the seam; all others agree."
    )
    plt.show()

    assert int(bad[-1]) == seam - 1

# %%
# The error is largest at the seam and shrinks backward by ``gamma * lambda`` per row.

if __name__ == "__main__":
    errors = (advantage - truth)[bad].abs()
    torch.testing.assert_close(
        errors[:-1] / errors[1:],
        torch.full_like(errors[1:], GAMMA * LAMBDA),
        rtol=1e-2,
        atol=0,
    )
    assert errors[-1] > truth.std()
    print(
        f"error at the seam: {errors[-1]:.1f}, standard deviation of the truth: ",
        end="",
    )
    print(f"{truth.std():.1f}")

# %%
# Two ways to break a good batch
# ------------------------------
#
# **Claim.** What the collector got right, a reshape can undo. A flat batch has a seam wherever one
# environment followed another. A batch with time in front and no names is walked along the wrong
# dimension altogether.
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    Both lines run without a warning. The first is what a loop over minibatches needs later, done
#    too early. The second is what ``torch.stack`` makes of a list of steps.

if __name__ == "__main__":
    batch = batches["Collector", "", N_ENVS]
    steps_per_env = batch.shape[-1]
    flat = batch.reshape(-1)
    time_major = torch.stack(batch.unbind(-1))

    assert flat.names == [None]
    assert time_major.names == [None, None]
    assert time_major.shape == (steps_per_env, N_ENVS)

    flat_wrong = wrong(flat, gae(flat))
    assert torch.equal(flat_wrong, rows_before_seams(flat, steps_per_env))
    assert 0 < flat_wrong.sum() < FRAMES_PER_BATCH / 2

    turned_wrong = wrong(time_major, gae(time_major))
    assert turned_wrong.sum() > FRAMES_PER_BATCH / 2

    print_table(
        ["layout", "shape", "names", "wrong rows"],
        [
            ["as collected", tuple(batch.shape), batch.names, 0],
            ["flat", tuple(flat.shape), flat.names, int(flat_wrong.sum())],
            [
                "time first",
                tuple(time_major.shape),
                time_major.names,
                int(turned_wrong.sum()),
            ],
        ],
    )

# %%
# **Reading.** The flat batch is wrong at its seams, like the concatenated ones. On the batch with
# time in front, GAE takes the step of one environment for the successor of the same step in
# another one, and only rows that ``done`` separates survive.
#
# The cures
# ---------
#
# **Keep the dimension.** ``cat_results="stack"`` is the default, and the table above shows no
# wrong row for it. Compute the advantage on the batch as it comes, and flatten afterwards. A flat
# batch whose sizes you know can be folded back.
#
# **Say which dimension is time.** A transposed TensorDict takes its names along, so GAE still
# finds the time. Where the names are lost, write them again or pass ``time_dim``.

if __name__ == "__main__":
    folded = flat.reshape(N_ENVS, steps_per_env)
    assert not wrong(folded, gae(folded)).any()

    after = GAE(gamma=GAMMA, lmbda=LAMBDA, value_network=make_critic())(batch.clone())
    assert not wrong(flat, after.reshape(-1)["advantage"].squeeze(-1)).any()

    transposed = batch.transpose(0, 1)
    assert transposed.names == ["time", None]
    assert not wrong(transposed, gae(transposed)).any()

    assert not wrong(time_major, gae(time_major, time_dim=0)).any()

    time_major.names = ["time", None]
    assert not wrong(time_major, gae(time_major)).any()
    print("folded, flattened after, transposed, time_dim=0, named: no wrong row")

# %%
# **Mark the seams.** With ``set_truncated=True`` each worker marks its last row as truncated.
# GAE then bootstraps there from the next observation of that row, which is right, and stops.
# The price: the flag no longer says that the environment cut the trajectory, and the
# next batch goes on with what this one calls finished. :claim:`flag-price`

if __name__ == "__main__":
    marked = collect(MultiSyncCollector, make_env, cat_results=0, set_truncated=True)
    assert marked.shape == (FRAMES_PER_BATCH,)
    assert marked["next", "truncated"].squeeze(-1)[[seam - 1, -1]].all()
    assert not wrong(marked, gae(marked)).any()
    assert marked["collector", "traj_ids"][seam - 1] != marked[TRAJ_KEY][seam]
    print(f"cat_results=0, set_truncated=True: {tuple(marked.shape)}, no wrong row")

# %%
# **Split.** :func:`~torchrl.collectors.utils.split_trajectories` gives each trajectory a line
# of its own and pads the short ones with zeros. The lines are separate, but the padding is a
# neighbor too.
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    A trajectory that the batch cuts has no ``done``. Padded, its last row is followed by a row of
#    zeros, which GAE takes for its future. The rows are counted under the mask, so the padding
#    itself does not count.


def split_and_count(batch):
    """Shape after the split, padded rows, and wrong rows among the valid ones."""
    split = split_trajectories(batch)
    mask = split["collector", "mask"]
    valid = split[mask]
    is_wrong = wrong(valid, gae(split)[mask])
    return tuple(split.shape), int((~mask).sum()), int(is_wrong.sum())


if __name__ == "__main__":
    open_ended, closed = split_and_count(glued), split_and_count(marked)
    assert open_ended[2] > 0
    assert closed[2] == 0
    print_table(
        ["batch", "split shape", "padded rows", "wrong rows"],
        [
            ["cat_results=0", *open_ended],
            ["the same, set_truncated=True", *closed],
        ],
    )

# %%
# **Reading.** Splitting cures the seams only together with ``set_truncated=True``. By itself it
# moves the leak from the neighbor's rows to the padding.
#
# Where this stops being true
# ---------------------------
#
# * ``frames_per_batch`` divides evenly here. Otherwise the collector rounds up, and the shapes grow
#   with it: see :doc:`/reference/collectors_basics`.
# * A replay buffer has its own idea of dimensions, and a sampler its own boundaries. What a sample
#   looks like is the subject of :doc:`/reference/collectors_replay`.
# * The comparison covers the *first* batch. Later ones start in the middle of trajectories; the
#   rule stays, because the rows of a trajectory still follow each other.
# * A recurrent value network reads rows in order as well. This page runs none;
#   :doc:`/reference/recurrent_state_lifecycle` does.
# * One-step losses look at one row at a time. For them every shape on this page is as good as flat.
#
# Conclusion
# ----------
#
# Leave ``cat_results`` at its default, compute what looks along time on the batch as it comes, and
# flatten last. Then the shape may be any of the ten.
#
# Clean up: no worker is left, and the start method is what it was. The server ends with this
# process.

if __name__ == "__main__":
    assert not multiprocessing.active_children()
    multiprocessing.set_start_method(start_method_before, force=True)

# %%
# Further reading
# ---------------
#
# * :doc:`/reference/data_layout`, what a row holds and how the time dimension is found
# * :doc:`/reference/collectors_basics`, the options of the collectors
# * :doc:`/tutorials/memory/memory_efficient_rl`, the same care for next observations
# * `Generalized advantage estimation <https://arxiv.org/abs/1506.02438>`__
# * `Collectors in the TorchRL documentation
#   <https://docs.pytorch.org/rl/0.14/reference/collectors.html>`__
