"""
Memory-efficient RL
===================

A rollout stores most of its observations twice. This lesson removes the second copy, rebuilds it
where a loss needs it, and shows every place where the rebuilt value is missing or wrong.

After it you can

* predict the bytes of a rollout key by key, before you collect it;
* choose between :class:`~torchrl.collectors.Collector` with ``compact_obs=True`` and
  :class:`~torchrl.envs.transforms.NextObservationDelta`, and name what each one loses;
* rebuild next observations with :class:`~torchrl.envs.transforms.NextStateReconstructor`;
* hold a replay buffer that is larger than the memory limit of the process;
* train a recurrent or a chunked value network with less activation memory, and check that the
  numbers stay the same.

.. warning::
   If you take one thing from this page, take this one. ``NextStateReconstructor()`` with its
   defaults returns *wrong* next observations, without an error and without NaN, wherever two slices
   of one trajectory touch in a batch. ``NextStateReconstructor(step_count_key="step_count")``,
   with a :class:`~torchrl.envs.transforms.StepCounter` on the environment, does not. The section
   *Rebuilding the next observation* counts both.

**Cost.** A few seconds on CPU or CUDA, most of them the import of TorchRL. One short-lived child
process runs under a memory limit. Every number is printed by the run, or comes from a stamped
:doc:`record </reference/records>`. Times come from records only.

**Markers.** A box titled *Wrong on purpose* announces code that fails, or worse, that does not
fail. The code is executed, and the cell catches the error or counts the wrong rows.

The words used here are in the :doc:`glossary </reference/glossary>`, the symbols in the
:doc:`API pages </reference/api/index>`.
"""

# %%
# Setup
# -----

import inspect
import logging
import multiprocessing
import shutil
import sys
import tempfile
import warnings
import weakref
from pathlib import Path
from unittest import mock

import gymnasium as gym
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.colors import ListedColormap
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torchrl.collectors import Collector
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    RandomSampler,
    SliceSampler,
    TensorDictReplayBuffer,
)
from torchrl.envs import GymEnv, GymWrapper, TransformedEnv
from torchrl.envs.transforms import (
    Compose,
    InitTracker,
    MultiStepTransform,
    NextObservationDelta,
    NextStateReconstructor,
    StepCounter,
)
from torchrl.modules import (
    MLP,
    GRUModule,
    LSTMModule,
    OneHotCategorical,
    ProbabilisticActor,
    QValueActor,
    ValueOperator,
    set_recurrent_mode,
)
from torchrl.objectives import ClipPPOLoss, DiscreteSACLoss, DQNLoss
from torchrl.objectives.value import (
    GAE,
    TD0Estimator,
    TDLambdaEstimator,
    ValueEstimatorBase,
)

# The first "scan" module of a process imports torch's compiler and tests it.
# While it traces, the compiler warns about a gradient that it reads: expected.
warnings.filterwarnings("ignore", message=r"The \.grad attribute of a Tensor")
_ = GRUModule(1, 1, in_keys=["x", "h"], out_keys=["y", "h"], recurrent_backend="scan")

# %%
# All sizes stand here, with their unit in the name. The seed is one constant, and it seeds the
# environment, the random actions and the samplers. With one thread the results do not depend on
# the number of cores.

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.set_num_threads(1)
logging.getLogger("torchrl").setLevel("ERROR")  # it announces each storage
ON_LINUX = sys.platform == "linux"  # two measurements read /proc

SEED = 0
ENV_NAME = "CartPole-v1"
N_FRAMES = 200
TIME_LIMIT_STEPS = 12

BATCH_FRAMES = 64
SLICE_FRAMES = 4
N_BATCHES = 16

GAMMA, LAMBDA = 0.99, 0.95
HIDDEN_UNITS = 64

TRAJ_KEY = ("collector", "traj_ids")
NEXT_OBS = ("next", "observation")

scratch = tempfile.TemporaryDirectory(prefix="memory_efficient_rl_")
scratch_dir = Path(scratch.name)

# %%
# Two helpers collect. ``collect`` seeds everything in the same way on each call, so two
# configurations see the same trajectories and can be compared row by row. The environment is
# seeded *before* the collector exists, because the constructor of the collector already resets it.


def cartpole(*transforms):
    """CartPole with the given transforms, seeded."""
    env = GymEnv(ENV_NAME)
    env.set_seed(SEED)
    return TransformedEnv(env, Compose(*transforms)) if transforms else env


def collect(env, policy=None, frames=N_FRAMES, **options):
    """One batch of ``frames`` frames. Without a policy the actions are random."""
    collector = Collector(
        env,
        policy,
        frames_per_batch=frames,
        total_frames=frames,
        storing_device=DEVICE,
        **options,
    )
    torch.manual_seed(SEED)
    try:
        return next(iter(collector))
    finally:
        collector.shutdown()


# %%
# Two more helpers count and print.


def bytes_by_key(batch):
    """Bytes of each leaf of a tensordict."""
    leaves = batch.items(include_nested=True, leaves_only=True)
    return {key: leaf.nbytes for key, leaf in leaves}


def print_table(header, rows):
    """One aligned table: text to the left, numbers to the right."""
    table = [[f"{c:,}" if isinstance(c, int) else str(c) for c in r] for r in rows]
    widths = [max(map(len, column)) for column in zip(header, *table, strict=True)]
    sides = [">" if isinstance(cell, int | float) else "<" for cell in rows[0]]
    for row in (header, ["-" * width for width in widths], *table):
        cells = zip(row, sides, widths, strict=True)
        print(
            "  ".join(f"{text:{side}{width}}" for text, side, width in cells).rstrip()
        )


# %%
# Where the observation memory goes
# ---------------------------------
#
# **Claim.** A transition is stored as a pair (:term:`TED`): what the agent saw under
# ``"observation"``, and what it saw one step later under ``("next", "observation")``. Inside a
# trajectory the second is the first of the following row. So of ``2 * N_FRAMES`` stored
# observations, all but ``N_FRAMES + n_trajectories`` are copies.
#
# **By hand.** Before collecting, write down what one frame holds. An observation of CartPole has
# four floats. The action is one-hot over two choices and :class:`~torchrl.envs.GymEnv` stores it
# as integers. The collector adds a :term:`trajectory id`. Done, terminated and truncated are
# stored twice, at the root and under ``"next"``.

FLOAT32_BYTES, INT64_BYTES, BOOL_BYTES = 4, 8, 1
OBS_FLOATS, ACTION_INTS = 4, 2

predicted_bytes = {
    "observation": N_FRAMES * OBS_FLOATS * FLOAT32_BYTES,
    NEXT_OBS: N_FRAMES * OBS_FLOATS * FLOAT32_BYTES,
    "action": N_FRAMES * ACTION_INTS * INT64_BYTES,
    TRAJ_KEY: N_FRAMES * INT64_BYTES,
    ("next", "reward"): N_FRAMES * FLOAT32_BYTES,
}
for flag in ("done", "terminated", "truncated"):
    predicted_bytes[flag] = predicted_bytes["next", flag] = N_FRAMES * BOOL_BYTES

# %%
# **Measured.** ``td.bytes()`` gives the total, ``bytes_by_key`` splits it.

default = collect(cartpole())
measured_bytes = bytes_by_key(default)

assert measured_bytes == predicted_bytes
assert default.bytes() == sum(predicted_bytes.values()) == 13_200


by_key = [
    [k if isinstance(k, str) else ".".join(k), predicted_bytes[k], measured_bytes[k]]
    for k in sorted(measured_bytes, key=str)
]
by_key.append(["total", sum(predicted_bytes.values()), default.bytes()])
print_table(["key", "predicted bytes", "measured bytes"], by_key)

# %%
# **Check the copies.** Two neighboring rows of the same trajectory share one observation, bit for
# bit. The trajectory id says which neighbors are of the same trajectory.

traj_ids = default[TRAJ_KEY]
n_trajectories = traj_ids.unique().numel()
same_trajectory = traj_ids[1:] == traj_ids[:-1]

next_obs, following_obs = default[NEXT_OBS][:-1], default["observation"][1:]
assert torch.equal(next_obs[same_trajectory], following_obs[same_trajectory])
assert not (next_obs == following_obs).all(-1)[~same_trajectory].any()

n_copies = int(same_trajectory.sum())
assert n_copies == N_FRAMES - n_trajectories
print(f"{N_FRAMES} next observations: {n_copies} copies, {N_FRAMES - n_copies} others")

# %%
# **Reading.** Both counts agree with the arithmetic. The next observation is a minor part of a
# CartPole frame: the one-hot action takes as many bytes, and the trajectory id half as many.
# Dropping the copies can therefore not halve this rollout. With large observations it comes close,
# as the second figure shows.
#
# **Where it stops being true.** An observation that stacks several frames repeats pixels *inside*
# itself too. Those copies are not counted here.
#
# Why the next observation is kept
# --------------------------------
#
# **Claim.** The copies are free to drop, the ``n_trajectories`` others are not. At the end of a
# trajectory the next row is the *reset* of another one. Taking it as the next observation is
# wrong once per trajectory.
#
# **By hand.** Of ``N_FRAMES`` rows, exactly those that end a trajectory are wrong: the done rows,
# and the last row of the batch.
#
# From here on the environment has a time limit, so that trajectories end in both ways:
# :term:`terminated`, where nothing follows and the value is zero by definition, and
# :term:`truncated`, where the value of the last observation is needed to bootstrap, that is, to
# stand for the rewards that follow.
# :class:`~torchrl.envs.transforms.StepCounter` sets the limit and counts the steps;
# :class:`~torchrl.envs.transforms.InitTracker` adds :term:`is_init`, which the recurrent networks
# below need.


def limited_cartpole(*transforms):
    return cartpole(StepCounter(max_steps=TIME_LIMIT_STEPS), InitTracker(), *transforms)


truth = collect(limited_cartpole())
done = truth["next", "done"].squeeze(-1)
terminated = truth["next", "terminated"].squeeze(-1)
truncated_only = done & ~terminated
last_row = torch.arange(N_FRAMES, device=DEVICE) == N_FRAMES - 1
trajectory_end = done | last_row

naive_next = truth["observation"].roll(-1, dims=0)
naive_wrong = (naive_next != truth[NEXT_OBS]).any(-1)
assert torch.equal(naive_wrong, trajectory_end)
assert terminated.any()
assert truncated_only.any()

print_table(
    ["kind of row", "rows", "found in the next row", "bootstrap needs it"],
    [
        ["inside a trajectory", int((~trajectory_end).sum()), "yes", "yes"],
        ["terminated", int(terminated.sum()), "no", "no"],
        ["truncated by the limit", int(truncated_only.sum()), "no", "yes"],
        ["end of the batch", int((last_row & ~done).sum()), "not yet", "yes"],
    ],
)

# %%
# There is a second consumer, the :term:`n-step return`.
# :class:`~torchrl.envs.transforms.MultiStepTransform` replaces the next observation by the one
# ``N_STEPS`` later. In the last rows of a trajectory there is none, so it falls back to the final
# observation of that trajectory, and that one is stored only under ``"next"``.

N_STEPS = 3


def multi_step():
    return MultiStepTransform(n_steps=N_STEPS, gamma=GAMMA)


def buffer(data, transform, sampler=None, batch_frames=BATCH_FRAMES):
    """A replay buffer in memory that holds ``data``."""
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(N_FRAMES, device=DEVICE),
        sampler=sampler or RandomSampler(),
        transform=transform,
        batch_size=batch_frames,
    )
    rb.extend(data.clone())
    return rb


# The transform works when data is written; it holds the last rows back.
n_step_truth = buffer(truth, multi_step())[:]
n_stored = n_step_truth.numel()

rows = torch.arange(N_FRAMES, device=DEVICE)
end_of_trajectory = torch.stack([rows[trajectory_end & (rows >= t)][0] for t in rows])
lookup = torch.minimum(rows + N_STEPS - 1, end_of_trajectory)[:n_stored]
fallback = (rows + N_STEPS - 1)[:n_stored] > lookup

assert torch.equal(n_step_truth[NEXT_OBS], truth[NEXT_OBS][lookup])
n_steps_ahead = n_step_truth["steps_to_next_obs"].squeeze(-1)
assert torch.equal(n_steps_ahead, lookup - rows[:n_stored] + 1)
print(f"{n_stored} rows written, {int(fallback.sum())} with a final observation")

# %%
# **Reading.** Every trajectory end is a row where the stored next observation is the only copy.
# The naive errors are exactly these rows, and up to ``N_STEPS`` rows of n-step data point at each.
#
# **Where it stops being true.** A terminated row needs no next observation for its own target: the
# value behind it is zero. A loss that learns to predict the next observation needs it all the same.
#
# Dropping the copies: ``compact_obs``
# ------------------------------------
#
# **Claim.** ``Collector(compact_obs=True)`` drops each observation and state under ``"next"``
# before the rows are stacked (:source:`torchrl.collectors.Collector._setup_compact_obs`).
# Reward, done, terminated and truncated stay. It drops *all* next observations, the copies and
# the ones that were not copies. See :term:`compact_obs`.
#
# **By hand.** The saving is the bytes of the next observation over the bytes of the frame.

predicted_saving = predicted_bytes[NEXT_OBS] / sum(predicted_bytes.values())

compact = collect(cartpole(), compact_obs=True)

dropped = set(bytes_by_key(default)) - set(bytes_by_key(compact))
assert dropped == {NEXT_OBS}
assert torch.equal(compact["observation"], default["observation"])
assert compact.bytes() == 10_000
saving = 1 - compact.bytes() / default.bytes()
assert saving == predicted_saving
assert round(100 * saving, 1) == 24.2
print(f"predicted saving {predicted_saving:.1%}, measured {saving:.1%}")

# %%
# Four neighbors of this switch belong in the same picture. The delta is the subject of a later
# section. ``track_traj_ids=False`` saves as much as the delta here, and takes away what the
# sampler and the reconstructor need. The last two carry the markers that this page uses, step
# count and ``is_init``. These are observations too, so their copies under ``"next"`` are dropped
# as well. On observations this small the markers take back more than one half of the saving.

compact_truth = collect(limited_cartpole(), compact_obs=True)
configurations = {
    "default": default,
    "compact_obs": compact,
    "delta": collect(cartpole(NextObservationDelta())),
    "delta + compact_obs": collect(cartpole(NextObservationDelta()), compact_obs=True),
    "no trajectory ids": collect(cartpole(), track_traj_ids=False),
    "markers": truth,
    "compact_obs + markers": compact_truth,
}
total_bytes = {name: batch.bytes() for name, batch in configurations.items()}
saving_of = {name: 1 - total / default.bytes() for name, total in total_bytes.items()}

assert total_bytes["delta"] == 11_600
assert total_bytes["delta + compact_obs"] == total_bytes["delta"]
assert total_bytes["no trajectory ids"] == total_bytes["delta"]
assert saving_of["markers"] < 0
assert 0 < saving_of["compact_obs + markers"] < saving_of["compact_obs"] / 2

print_table(
    ["configuration", "bytes", "bytes per frame", "saving"],
    [
        [name, total, total // N_FRAMES, f"{saving_of[name]:.1%}"]
        for name, total in total_bytes.items()
    ],
)

# %%
# What each of them costs in time is not printed by this run. The record of the CPU:
#
# .. record-table:: memory_footprint@cpu
#    :rows: *-cartpole
#    :metrics: bytes_per_frame collect_time sample_time restore_time
#    :caption: Collecting and sampling CartPole by configuration
#
# The table of the run as a figure, split by key:

GROUPS = {  # segment: keys
    "observation": ["observation"],
    "next observation": [NEXT_OBS],
    "delta": [("next", "delta", "observation")],
    "action": ["action"],
    "trajectory id": [TRAJ_KEY],
    "reward": [("next", "reward")],
    "markers": ["step_count", "is_init", ("next", "step_count"), ("next", "is_init")],
}
grouped_keys = {key for keys in GROUPS.values() for key in keys}
GROUPS["done flags"] = [key for key in predicted_bytes if key not in grouped_keys]

# %%
fig, ax = plt.subplots(figsize=(5.4, 6), layout="constrained")
sizes = [bytes_by_key(batch) for batch in configurations.values()]
names = [name.replace(" + ", "\n+ ") for name in configurations]
left = np.zeros(len(names))
for label, keys in GROUPS.items():
    widths = np.array([sum(size.get(key, 0) for key in keys) for size in sizes])
    ax.barh(names, widths, left=left, label=label, edgecolor="white")
    left += widths
assert left.tolist() == list(total_bytes.values())  # no key is missing from the figure
for y, total in enumerate(left):
    ax.text(total, y, f" {total:,.0f}", va="center")
ax.grid(False)
ax.invert_yaxis()
ax.set_xlim(0, 1.25 * left.max())
ax.xaxis.set_major_locator(plt.MaxNLocator(3))
ax.xaxis.set_major_formatter("{x:,.0f}")
ax.set_xlabel(f"bytes of {N_FRAMES} frames")
fig.suptitle("Bytes of a CartPole rollout by key")
fig.set_label(
    "The two copies of the observation are the longest parts of a default rollout of "
    f"{default.bytes():,} bytes; compact_obs drops one of them, {saving_of['compact_obs']:.0%} "
    "of the bytes, and the markers take more than half of that back."
)
_ = fig.legend(loc="outside lower center", ncols=2)

# %%
# **Larger observations.** The saving of ``compact_obs`` is ``o / (2 * o + r)``, with ``o`` the
# bytes of one observation and ``r`` the rest of the frame. It approaches one half from below. The
# delta stores half of the dropped copy, so it approaches one quarter. A synthetic environment
# gives observations of any size, up to four stacked frames of pixels.


class SyntheticEnv(gym.Env):
    """Random observations of a given shape and type; ``scale`` applies to floats."""

    def __init__(self, shape, dtype=np.float32, scale=1.0):
        low, high = (0, 255) if dtype == np.uint8 else (-np.inf, np.inf)
        self.observation_space = gym.spaces.Box(low, high, shape, dtype)
        self.action_space = gym.spaces.Discrete(2)
        self.scale = scale

    def _observation(self):
        space = self.observation_space
        if space.dtype == np.uint8:
            return self.np_random.integers(0, 256, space.shape, dtype=np.uint8)
        noise = self.np_random.standard_normal(space.shape, dtype=np.float32)
        return self.scale * noise

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action):
        return self._observation(), 1.0, False, False, {}


def synthetic(shape, dtype=np.float32, *transforms, scale=1.0):
    env = GymWrapper(SyntheticEnv(shape, dtype, scale))
    env.set_seed(SEED)
    return TransformedEnv(env, Compose(*transforms)) if transforms else env


# %%
# Bytes are proportional to the number of frames, so a handful of frames gives the exact value.
# ``rest_bytes`` is ``r``, and it is the same for every size.

FEW_FRAMES = 4
PIXEL_SHAPE = (4, 84, 84)
OBSERVATIONS = [
    ((4,), np.float32),
    ((64,), np.float32),
    ((1024,), np.float32),
    ((84, 84), np.uint8),
    (PIXEL_SHAPE, np.uint8),
]
SAVING_LIMIT = 0.5


def frame_bytes_of(env, **options):
    return collect(env, frames=FEW_FRAMES, **options).bytes() // FEW_FRAMES


size_rows, compact_savings, delta_savings = [], [], []
for shape, dtype in OBSERVATIONS:
    full = frame_bytes_of(synthetic(shape, dtype))
    small = frame_bytes_of(synthetic(shape, dtype), compact_obs=True)
    delta = frame_bytes_of(synthetic(shape, dtype, NextObservationDelta()))
    obs_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    rest_bytes = default.bytes() // N_FRAMES - 2 * OBS_FLOATS * FLOAT32_BYTES
    assert full == 2 * obs_bytes + rest_bytes
    assert full - small == obs_bytes
    assert full - delta == (obs_bytes / 2 if dtype == np.float32 else 0)
    compact_savings.append(1 - small / full)
    delta_savings.append(1 - delta / full)
    assert compact_savings[-1] < SAVING_LIMIT
    label = f"{np.dtype(dtype).name} {'x'.join(map(str, shape))}"
    savings = (f"{compact_savings[-1]:.2%}", f"{delta_savings[-1]:.2%}")
    size_rows.append([label, obs_bytes, full, *savings])

assert round(100 * compact_savings[-1], 2) == 49.97
size_header = ["observation", "its bytes", "bytes per frame", "compact_obs", "delta"]
print_table(size_header, size_rows)

# %%
fig, ax = plt.subplots(figsize=(5.4, 4.6), layout="constrained")
obs_sizes = np.array([row[1] for row in size_rows])
is_float = np.array([dtype == np.float32 for _, dtype in OBSERVATIONS])
curve = np.geomspace(obs_sizes.min(), obs_sizes.max(), 100)
ax.axhline(100 * SAVING_LIMIT, color="black", linestyle="--")
ax.text(obs_sizes[0], 100 * SAVING_LIMIT + 1, "limit of compact_obs", va="bottom")
predicted_curve = 100 * curve / (2 * curve + rest_bytes)
ax.plot(curve, predicted_curve, color="C0", label="compact_obs, predicted")
ax.plot(curve, predicted_curve / 2, color="C1", label="delta, predicted")
for marker, mask, label in (
    ("o", is_float, "floats"),
    ("s", ~is_float, "unsigned bytes"),
):
    style = {"marker": marker, "s": 60, "zorder": 3}
    for savings, color in ((compact_savings, "C0"), (delta_savings, "C1")):
        ax.scatter(obs_sizes[mask], 100 * np.array(savings)[mask], color=color, **style)
    ax.scatter([], [], color="gray", label=label, **style)
ax.set_xscale("log")
ax.xaxis.set_major_formatter("{x:,.0f}")
ax.set_ylim(-3, 58)
ax.set_xlabel("bytes of one observation")
ax.set_ylabel("saving, % of the rollout")
ax.set_title("Memory saving against observation size")
fig.set_label(
    "The saving of compact_obs rises with the size of an observation, along the predicted curve, "
    f"to {compact_savings[-1]:.2%}, just below its limit. The delta saves half of that for floats, "
    "and nothing for unsigned bytes."
)
_ = fig.legend(loc="outside lower center", ncols=2)

# %%
# **Reading.** The measured points lie on the predicted curve. A saving of one half is a
# statement about large observations. The delta curve holds for floats only: its points for
# unsigned bytes lie on zero.
#
# **Where it stops being true.** These are the bytes of the batch that the collector returns. While
# it stacks, the collector holds the single rows as well. So the peak of the process grows by more
# than these bytes, and ``compact_obs`` lowers it by a smaller share:
#
# .. record-table:: memory_footprint@cpu
#    :rows: *-uint8-4x84x84
#    :metrics: saving resident_peak resident_saving
#    :caption: A batch of stacked pixels, and the process that collects it
#
# Rebuilding the next observation
# -------------------------------
#
# .. warning::
#    The defaults of this transform are silently wrong. This section shows where, and the cure.
#
# **Claim.** :class:`~torchrl.envs.transforms.NextStateReconstructor` belongs on the replay buffer.
# For row ``i`` of a sampled batch it writes the observation of row ``i + 1``, if that is the next
# step of the same trajectory. Otherwise it writes NaN. Three markers decide:
#
# ``traj_key``
#     both rows carry the same trajectory id. Collectors write it unless told not to.
# ``done_key``
#     row ``i`` does not end its trajectory.
# ``step_count_key``
#     the step count of row ``i + 1`` is one more than that of row ``i``. **Off by default.**
#
# **By hand.** On a whole rollout, in order, NaN must appear once per trajectory, where the copy
# was the only one, and nowhere else.

assert torch.equal(compact_truth["observation"], truth["observation"])

rebuilt = NextStateReconstructor(step_count_key="step_count")(compact_truth.clone())
missing = rebuilt[NEXT_OBS].isnan().any(-1)
assert torch.equal(missing, trajectory_end)
assert torch.equal(rebuilt[NEXT_OBS][~missing], truth[NEXT_OBS][~missing])
print(f"{int((~missing).sum())} rows rebuilt bit for bit, {int(missing.sum())} NaN")

# %%
# A replay buffer does not return whole rollouts in order. A
# :class:`~torchrl.data.SliceSampler` returns a row of :term:`slices <slice>`, each of
# ``SLICE_FRAMES`` rows from a random place of a random trajectory. ``audit`` compares each sampled
# row with the truth, which the index in the sample points at.


def audit(sample):
    """Masks of the rows with a missing (NaN) and with a wrong next observation."""
    expected = truth[NEXT_OBS][sample["index"].flatten()]
    missing = sample[NEXT_OBS].isnan().any(-1)
    return missing, ~missing & (sample[NEXT_OBS] != expected).any(-1)


def slices(slice_frames=SLICE_FRAMES, **options):
    return SliceSampler(slice_len=slice_frames, traj_key=TRAJ_KEY, **options)


def audit_batches(transform, sampler):
    """Missing and wrong rows of ``N_BATCHES`` batches, and the worst batch."""
    rb = buffer(compact_truth, transform, sampler)
    torch.manual_seed(SEED)
    samples = [rb.sample() for _ in range(N_BATCHES)]
    audits = [audit(sample) for sample in samples]
    n_missing = sum(int(missing.sum()) for missing, _ in audits)
    n_wrong = sum(int(wrong.sum()) for _, wrong in audits)
    worst = max(range(N_BATCHES), key=lambda i: int(audits[i][1].sum()))
    return n_missing, n_wrong, samples[worst], audits[worst]


# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    ``NextStateReconstructor()`` with its defaults. When the sampler puts two slices of one
#    trajectory next to each other, the trajectory id is equal on both sides and the stored done
#    flag is false. The transform takes an observation of another moment as the next one. Nothing
#    is NaN, nothing raises.

n_sampled = N_BATCHES * BATCH_FRAMES
default_missing, n_wrong, sample, (_, sample_wrong) = audit_batches(
    NextStateReconstructor(), slices()
)
assert n_wrong > 0
print(f"{n_wrong} of {n_sampled} sampled rows have a wrong next observation")

# %%
# The docstring says that the done flag covers this splice. It does not. The sampler does mark the
# end of each slice as truncated and done, but the buffer merges these marks into the sample
# *after* its transforms have run (:source:`torchrl.data.TensorDictReplayBuffer.sample`). The
# wrong rows carry ``done=True`` in the sample that you receive, and ``done=False`` in the data
# that the transform saw.

stored_done = truth["next", "done"][sample["index"].flatten()]
assert sample["next", "done"][sample_wrong].all()
assert not stored_done[sample_wrong].any()
same_id = sample[TRAJ_KEY][1:] == sample[TRAJ_KEY][:-1]
assert same_id[sample_wrong[:-1]].all()


def check_docstring(symbol, quote):
    """Stop the page when the docstring it corrects was corrected upstream."""
    found = quote in " ".join(symbol.__doc__.split())
    assert found, f"{symbol.__name__} no longer says {quote!r}: correct this section"


check_docstring(NextStateReconstructor, 'therefore also consults ``("next", "done")``')

# %%
# The cure is one argument. Two rows are neighbors in time only if their step counts are. The last
# row of a slice is NaN then, unless the following slice starts at the very next step. The docstring
# names the key ``("collector", "step_count")``; the key that
# :class:`~torchrl.envs.transforms.StepCounter` writes is ``"step_count"``.

check_docstring(NextStateReconstructor, 'populates ``("collector", "step_count")``')
assert "step_count" in compact_truth
assert ("collector", "step_count") not in compact_truth

n_missing, n_wrong_fixed, fixed_sample, _ = audit_batches(
    NextStateReconstructor(step_count_key="step_count"), slices()
)
assert n_wrong_fixed == 0
assert n_missing == default_missing + n_wrong  # each wrong row is NaN now
n_slices = n_sampled // SLICE_FRAMES
print(f"{n_wrong_fixed} wrong rows; {n_missing} of {n_slices} slices end in NaN")

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    :class:`~torchrl.data.RandomSampler` with the defaults. The docstring calls the result "mostly
#    NaN" and therefore loud. Most rows are NaN. But where two rows of one trajectory fall side by
#    side, and the first does not end it, the row is finite, and nearly always wrong.

check_docstring(NextStateReconstructor, "it makes the mis-use loud rather than silent")
random_missing, random_wrong, random_sample, _ = audit_batches(
    NextStateReconstructor(), RandomSampler()
)
strict_missing, strict_wrong, *_ = audit_batches(
    NextStateReconstructor(step_count_key="step_count"), RandomSampler()
)
assert random_missing > n_sampled / 2
assert random_wrong > n_sampled - random_missing - random_wrong > 0
assert strict_wrong == 0

audits = (
    ("SliceSampler", "None (default)", default_missing, n_wrong),
    ("SliceSampler", "'step_count'", n_missing, n_wrong_fixed),
    ("RandomSampler", "None (default)", random_missing, random_wrong),
    ("RandomSampler", "'step_count'", strict_missing, strict_wrong),
)
print_table(
    ["sampler", "step_count_key", "rows", "right", "NaN", "wrong"],
    [[*who, n_sampled, n_sampled - nan - bad, nan, bad] for *who, nan, bad in audits],
)

# %%
# The beginning of one batch of each kind, row by row:

STATES = {"right": "C0", "NaN": "tab:gray", "wrong": "C1"}
SHOWN_ROWS = BATCH_FRAMES // 2
strips = {
    "slices,\ndefault": audit(sample),
    "slices,\nstep_count": audit(fixed_sample),
    "random,\ndefault": audit(random_sample),
}
codes = np.stack([(nan + 2 * bad.long()).cpu() for nan, bad in strips.values()])
codes = codes[:, :SHOWN_ROWS]
assert (codes == 2).any(1).tolist() == [True, False, True]

fig, ax = plt.subplots(figsize=(5.4, 3.6), layout="constrained")
colors = ListedColormap(list(STATES.values()))
ax.pcolormesh(codes, cmap=colors, vmin=0, vmax=2, edgecolor="white")
strip, row = np.nonzero(codes == 2)  # a cross: not by color alone
ax.scatter(row + 0.5, strip + 0.5, marker="x", color="black", s=30)
for state, color in STATES.items():
    ax.fill_between([], [], color=color, label=state)
ax.grid(False)
ax.set_yticks(np.arange(len(strips)) + 0.5, list(strips))
ax.invert_yaxis()
ax.set_xlabel("row of the sampled batch")
ax.set_title("Rebuilt next observations, row by row")
n_wrong_shown, n_right_shown = (codes == 2).sum(1), (codes == 0).sum(1)
fig.set_label(
    f"Of {SHOWN_ROWS} rows, {n_wrong_shown[0]} of slices with the default are wrong, at places "
    f"where one slice touches the next, and {n_wrong_shown[1]} with step_count. The number of "
    f"random rows that are right is {n_right_shown[2]}; most others are NaN."
)
_ = fig.legend(loc="outside lower center", ncols=3)

# %%
# **Reading.** With the defaults, a few rows of each batch of slices are wrong and look like the
# others. With ``step_count_key`` they are NaN: a visible gap in place of an invisible error. A
# random sampler leaves almost nothing to rebuild.
#
# **Where it stops being true.** Integer observations have no NaN. The transform then wants an
# explicit ``fill_value``, and the missing frame becomes a picture that no NaN check finds. Find
# the missing rows by step count and trajectory id instead: no row continues them.

pixels = collect(synthetic(PIXEL_SHAPE, np.uint8), frames=FEW_FRAMES, compact_obs=True)
try:
    NextStateReconstructor()(pixels.clone())
except TypeError as error:
    assert "pass an explicit integer `fill_value`" in str(error)
    print(type(error).__name__, "without a fill_value")
else:
    raise AssertionError("uint8 observations were rebuilt without a fill_value")

black = NextStateReconstructor(fill_value=0)(pixels.clone())[NEXT_OBS]
assert (black[-1] == 0).all()
assert torch.equal(black[:-1], pixels["observation"][1:])
print("with fill_value=0 the last frame is black")

# The rule for pixels, tried on the slices above, whose NaN rows are known.
steps, ids = fixed_sample["step_count"].flatten(), fixed_sample[TRAJ_KEY]
continued = (steps.diff() == 1) & (ids.diff() == 0)
assert torch.equal(~continued, audit(fixed_sample)[0][:-1])

# %%
# NaN safety
# ----------
#
# **Claim.** NaN survives a mask: zero times NaN is NaN. A value network that sees one NaN row
# spoils every row before it, because GAE sums backward over time. TorchRL prevents this in one
# place of the :term:`value estimator`, the :term:`sanitizer`
# (:source:`torchrl.objectives.value.advantages.ValueEstimatorBase._sanitize_next_obs_nan`).
# Where the next observation is NaN, it takes the current one. It acts where a value estimator calls
# its networks, that is in ``forward``.
#
# **By hand.** The last row of the rollout is NaN and lies behind all others, so without the
# sanitizer all ``N_FRAMES`` advantages of :class:`~torchrl.objectives.value.GAE` must be NaN. With
# it, none.


def mlp(out_features, hidden_units=HIDDEN_UNITS):
    torch.manual_seed(SEED)
    sizes = {"in_features": OBS_FLOATS, "out_features": out_features}
    return MLP(**sizes, num_cells=[hidden_units], device=DEVICE)


value_net = ValueOperator(mlp(1), in_keys=["observation"])
gae = GAE(gamma=GAMMA, lmbda=LAMBDA, value_network=value_net)

no_sanitizer = mock.patch.object(
    ValueEstimatorBase,
    "_sanitize_next_obs_nan",
    staticmethod(lambda data, in_keys: data),
)


def nan_rows(tensor):
    return int(tensor.isnan().any(-1).sum())


# %%
# Three estimators, with the sanitizer and without it:

estimators = {
    "GAE": gae,
    "TD(0)": TD0Estimator(gamma=GAMMA, value_network=value_net),
    "TD(lambda)": TDLambdaEstimator(gamma=GAMMA, lmbda=LAMBDA, value_network=value_net),
}
nan_table = {}
for name, estimator in estimators.items():
    with_it = nan_rows(estimator(rebuilt.clone())["advantage"])
    with no_sanitizer:
        without_it = nan_rows(estimator(rebuilt.clone())["advantage"])
    estimate = nan_rows(estimator.value_estimate(rebuilt.clone()))
    nan_table[name] = (with_it, without_it, estimate)

assert all(row[0] == 0 for row in nan_table.values())
assert nan_table["GAE"][1] == nan_table["TD(lambda)"][1] == N_FRAMES
assert nan_table["TD(0)"][1] == int(missing.sum())
assert nan_table["GAE"][2] == 0
assert all(row[2] > 0 for name, row in nan_table.items() if name != "GAE")
print_table(
    ["rows that are NaN", "forward", "sanitizer off", "value_estimate()"],
    [[name, *row] for name, row in nan_table.items()],
)

# %%
# **Reading.** ``value_estimate()`` of GAE calls its networks as ``forward`` does, and stays finite.
# Those of TD(0) and TD(lambda) evaluate the next observation on their own, and skip the sanitizer.
# Every loss that calls them inherits the NaN. :class:`~torchrl.objectives.DQNLoss` and
# :class:`~torchrl.objectives.DiscreteSACLoss` do, with TD(0) by default.
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    Off-policy losses on rebuilt slices. The loss is NaN, and so is the gradient.


action_spec = cartpole().action_spec.to(DEVICE)


def make_actor():
    net = mlp(ACTION_INTS)
    return ProbabilisticActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        spec=action_spec,
        return_log_prob=True,
    )


# %%
# Both losses, with what they need and nothing else:

actor = make_actor()
dqn_loss = DQNLoss(
    QValueActor(mlp(ACTION_INTS), in_keys=["observation"], spec=action_spec),
    action_space="one-hot",
    delay_value=False,
)
q_net = mlp(ACTION_INTS)
sac_loss = DiscreteSACLoss(
    actor,
    TensorDictModule(q_net, in_keys=["observation"], out_keys=["action_value"]),
    action_space="one-hot",
    num_actions=ACTION_INTS,
    delay_qvalue=False,
)
for loss_module in (dqn_loss, sac_loss):
    loss_module.make_value_estimator(gamma=GAMMA)
    assert isinstance(loss_module.value_estimator, TD0Estimator)

row_is_nan = fixed_sample[NEXT_OBS].isnan().any(-1)
nan_loss = dqn_loss(fixed_sample.clone())["loss"]
nan_loss.backward()
assert nan_loss.isnan()
assert all(p.grad.isnan().any() for p in dqn_loss.parameters())
assert sac_loss(fixed_sample.clone())["loss_qvalue"].isnan()

# %%
# **The right way.** Drop the rows, or fill the terminated ones. A terminated row has no value
# behind it, so any finite observation is exact there. The other NaN rows cannot be repaired.

complete = fixed_sample[~row_is_nan]
assert dqn_loss(complete.clone())["loss"].isfinite()
assert sac_loss(complete.clone())["loss_qvalue"].isfinite()

row_is_terminated = fixed_sample["next", "terminated"].squeeze(-1)
usable = fixed_sample[~row_is_nan | row_is_terminated]
assert usable.numel() > complete.numel()


def dqn_loss_filled_with(value):
    filled = usable[NEXT_OBS].nan_to_num(value)
    return dqn_loss(usable.clone().set(NEXT_OBS, filled))["loss"]


assert dqn_loss_filled_with(0.0).isfinite()
assert dqn_loss_filled_with(0.0) == dqn_loss_filled_with(1.0)

print_table(
    ["rows given to the DQN loss", "rows", "loss is finite"],
    [
        ["all", BATCH_FRAMES, "no"],
        ["without the NaN rows", complete.numel(), "yes"],
        ["and with the terminated ones", usable.numel(), "yes"],
    ],
)

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    A side effect. The sanitizer works on a shallow copy, and the state values are written to
#    that copy. The batch you hold does not get ``"state_value"`` when, and only when, it contains
#    NaN. :class:`~torchrl.objectives.ClipPPOLoss` with ``clip_value`` then raises.

assert "state_value" in gae(truth.clone())
sanitized = gae(rebuilt.clone())
assert "state_value" not in sanitized
assert ("next", "state_value") not in sanitized

ppo_loss = ClipPPOLoss(actor, value_net, clip_value=0.2)
with torch.no_grad():
    distribution = actor.get_dist(sanitized)
sanitized["action_log_prob"] = distribution.log_prob(sanitized["action"])
try:
    ppo_loss(sanitized)
except KeyError as error:
    assert "state_value" in str(error)
    print("KeyError: the loss asks for state_value")
else:
    raise AssertionError("ClipPPOLoss ran without the state value")

# %%
# **The right way.** Call the value network on the batch yourself.

with torch.no_grad():
    value_net(sanitized)
assert ppo_loss(sanitized)["loss_critic"].isfinite()

# %%
# **Where it stops being true.** Finite is not right. At a terminated row the filled observation
# does not matter, at a truncated one it is a bias. The section *When not to* measures it. And the
# sanitizer looks for NaN only: it does not find a wrong row, nor a ``fill_value``.

# %%
# Keeping a small delta instead
# -----------------------------
#
# **Claim.** :class:`~torchrl.envs.transforms.NextObservationDelta` on the environment stores
# ``next - obs`` in half the width, and the same transform on the buffer adds it back. It saves
# half as much as ``compact_obs``. In exchange *every* row has its real next observation, ends
# included, so nothing above applies.
#
# **By hand.** A sixteen-bit float costs half of a thirty-two-bit one, so the saving is half of
# the saving of ``compact_obs``. The error is a rounding: half a unit in the last place of the
# largest delta.

assert saving_of["delta"] == saving_of["compact_obs"] / 2

SHORT_FRAMES = 2 * TIME_LIMIT_STEPS  # at least one end of a trajectory

delta_rows = []
for dtype in (torch.float16, torch.bfloat16, torch.float32):
    env = limited_cartpole(NextObservationDelta(delta_dtype=dtype))
    stored = collect(env, frames=SHORT_FRAMES)
    largest = stored["next", "delta", "observation"].abs().max().item()
    restored = NextObservationDelta(in_keys=["observation"])(stored.clone())
    error = (restored[NEXT_OBS] - truth[NEXT_OBS][:SHORT_FRAMES]).abs().max().item()
    half_unit = torch.finfo(dtype).eps * 2 ** np.floor(np.log2(largest)) / 2
    rounding = torch.finfo(torch.float32).eps * truth["observation"].abs().max().item()
    assert error <= half_unit + rounding
    assert nan_rows(restored[NEXT_OBS]) == 0
    name, frame_bytes = str(dtype).split(".")[1], stored.bytes() // SHORT_FRAMES
    delta_rows.append([name, frame_bytes, f"{half_unit:.0e}", f"{error:.0e}"])
print_table(
    ["delta_dtype", "bytes per frame", "predicted bound", "largest error"], delta_rows
)

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    Two cases where the delta fails without a word. On unsigned bytes it does nothing: integer
#    keys are excluded by default. Forced with ``in_keys`` it makes the rollout larger. On floats
#    beyond the range of its type it stores infinity.

forced_delta = NextObservationDelta(in_keys=["observation"])
plain = frame_bytes_of(synthetic(PIXEL_SHAPE, np.uint8))
silent = frame_bytes_of(synthetic(PIXEL_SHAPE, np.uint8, NextObservationDelta()))
forced = frame_bytes_of(synthetic(PIXEL_SHAPE, np.uint8, forced_delta))
assert silent == plain < forced
print(f"saving on pixels {1 - silent / plain:.0%}, forced {1 - forced / plain:.0%}")

LARGE_SCALE = 1e6
assert torch.finfo(torch.float16).max < LARGE_SCALE
wide_env = synthetic((8,), np.float32, NextObservationDelta(), scale=LARGE_SCALE)
wide = NextObservationDelta(in_keys=["observation"])(collect(wide_env, frames=16))
overflow = wide[NEXT_OBS].isinf()
assert overflow.any()
print(f"{int(overflow.sum())} of {overflow.numel()} restored values are infinite")

# %%
# **Reading.** The delta fits normalized floats whose trajectory ends matter. The error stays
# within the predicted bound, and ``float32`` saves nothing.
#
# **Where it stops being true.** On pixels, and on floats with a large range: scale observations
# before you store their difference.
#
# When not to
# -----------
#
# **Claim.** Three consumers need more than the copies: n-step returns, bootstrapping at
# truncations, and the shifted value pass. None of them raises.
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    ``MultiStepTransform`` with ``compact_obs`` or with the delta. It acts when data is written,
#    both reconstructions act when data is read. With ``compact_obs`` there is no next observation
#    to shift. With the delta, the delta of a later step is added to the observation of this one.

rebuild = NextStateReconstructor(step_count_key="step_count")
restore = NextObservationDelta(in_keys=["observation"])
delta_truth = collect(limited_cartpole(NextObservationDelta()))
pipelines = {
    "full": (truth, [multi_step()]),
    "compact_obs": (compact_truth, [multi_step(), rebuild]),
    "delta": (delta_truth, [multi_step(), restore]),
}

# %%
# Each pipeline is compared with the n-step data of the full rollout. Rows that look one step ahead
# only, or whose next observation is missing, do not count.

DELTA_TOLERANCE = 1e-3

n_step_rows = []
for name, (data, transforms) in pipelines.items():
    rb = buffer(data, Compose(*transforms), slices())
    torch.manual_seed(SEED)
    sample = rb.sample()
    wanted = n_step_truth[sample["index"].flatten()]
    n_step = sample[NEXT_OBS].isfinite().all(-1)
    n_step &= (sample["steps_to_next_obs"] > 1).squeeze(-1)
    reward_right = (sample["next", "reward"] == wanted["next", "reward"]).squeeze(-1)
    obs_error = (sample[NEXT_OBS] - wanted[NEXT_OBS]).abs().amax(-1)
    obs_right = obs_error < DELTA_TOLERANCE
    counts = [int((n_step & mask).sum()) for mask in (n_step, reward_right, obs_right)]
    n_step_rows.append([name, *counts, f"{obs_error[n_step].max():.1g}"])

for name, n_rows, n_reward_right, n_obs_right, _ in n_step_rows:
    assert n_reward_right == n_rows > 0
    assert n_obs_right == (n_rows if name == "full" else 0)
print_table(
    ["data", "n-step rows", "reward right", "next obs right", "largest obs error"],
    n_step_rows,
)

# %%
# **Bias at truncations.** Where the next observation is NaN the sanitizer takes the value of the
# current one. At terminated rows this is exact, because the value is masked. At truncated rows it
# is an error of ``GAMMA * (V(obs) - V(real next obs))``, which GAE carries back along the
# trajectory. How large it is depends on how fast the value function changes in one step. So three
# are fitted to the same discounted returns, by least squares on random cosine features. They
# differ in the length scale of the features only.


class CosineValue(nn.Module):
    """Ridge regression on random cosine features."""

    N_FEATURES = 256
    RIDGE = 1.0

    def __init__(self, observations, returns, length_scale):
        super().__init__()
        torch.manual_seed(SEED)
        waves = torch.randn(OBS_FLOATS, self.N_FEATURES).to(DEVICE) / length_scale
        self.waves = waves / observations.std(0).unsqueeze(-1)
        self.phases = 2 * torch.pi * torch.rand(self.N_FEATURES).to(DEVICE)
        self.mean = returns.mean(0)
        x = self.features(observations).double()
        gram = x.T @ x + self.RIDGE * torch.eye(self.N_FEATURES, device=DEVICE)
        target = x.T @ (returns - self.mean).double()
        self.weights = torch.linalg.solve(gram, target).float()

    def features(self, observation):
        return (observation @ self.waves + self.phases).cos()

    def forward(self, observation):
        return self.features(observation) @ self.weights + self.mean


def discounted_returns(rewards, dones):
    returns = rewards.clone()
    for t in reversed(range(len(rewards) - 1)):
        returns[t] += GAMMA * returns[t + 1] * ~dones[t]
    return returns


# %%
# At a truncated row the bias must be ``GAMMA`` times the jump of the value. From there it must fade
# by ``GAMMA * LAMBDA`` per step back. In trajectories that terminate it must be zero.

returns = discounted_returns(default["next", "reward"], default["next", "done"])
exact_rows = torch.isin(truth[TRAJ_KEY], truth[TRAJ_KEY][terminated])
inside = ~trajectory_end[:-1]

LENGTH_SCALES = {"flat": 100.0, "smooth": 10.0, "sharp": 0.5}
bias_rows, bias_of = [], {}
for name, length_scale in LENGTH_SCALES.items():
    fitted = CosineValue(default["observation"], returns, length_scale)
    fit_error = (fitted(default["observation"]) - returns).square().mean().sqrt()
    fitted_net = ValueOperator(fitted, in_keys=["observation"])
    fitted_gae = GAE(gamma=GAMMA, lmbda=LAMBDA, value_network=fitted_net)
    exact = fitted_gae(truth.clone())["advantage"]
    bias = (fitted_gae(rebuilt.clone())["advantage"] - exact).abs().squeeze(-1)
    jump = (fitted(truth["observation"]) - fitted(truth[NEXT_OBS])).abs().squeeze(-1)
    bias_of[name] = bias
    start, faded = GAMMA * jump[truncated_only], GAMMA * LAMBDA * bias[1:][inside]
    torch.testing.assert_close(bias[truncated_only], start, rtol=1e-2, atol=1e-4)
    torch.testing.assert_close(bias[:-1][inside], faded, rtol=1e-2, atol=1e-4)
    assert (bias[exact_rows] == 0).all()
    numbers = (fit_error, jump.mean(), bias[truncated_only].mean(), exact.std())
    bias_rows.append([name, length_scale, *(round(x.item(), 1) for x in numbers)])

mean_bias = {name: bias.mean() for name, bias in bias_of.items()}
assert mean_bias["sharp"] > 2 * mean_bias["smooth"] > 4 * mean_bias["flat"]
print_table(
    ["V", "length scale", "fit error", "step of V", "bias", "advantage std"],
    bias_rows,
)

# %%
# "step of V" is the mean change of the value in one step, "bias" the mean over the truncated rows.
# Row by row:

fig, ax = plt.subplots(figsize=(5.4, 4.6), layout="constrained")
row_numbers = np.arange(N_FRAMES)
for name, line in {"flat": ":", "smooth": "--", "sharp": "-"}.items():
    ax.plot(row_numbers, bias_of[name].cpu(), line, label=f"{name} V")
at, height = truncated_only.cpu(), bias_of["sharp"][truncated_only].cpu()
marker = {"color": "black", "marker": "v", "zorder": 3, "label": "truncated row"}
ax.scatter(row_numbers[at], height, **marker)
ax.set_xlabel("row of the rollout")
ax.set_ylabel("absolute error of the advantage")
ax.set_title("Bias of V(obs) for V(next obs)")
fig.set_label(
    f"The error of the advantage jumps up at each of the {len(height)} truncated rows and fades "
    f"over the rows before it. With the sharp value function it is {mean_bias['sharp']:.1f} in the "
    f"mean, with the smooth one {mean_bias['smooth']:.1f}, with the flat one "
    f"{mean_bias['flat']:.1f}."
)
_ = fig.legend(loc="outside lower center", ncols=2)

# %%
# **Reading.** The error starts at each truncated row and fades backward. It is small only as long
# as the value changes little in one step. The sharp function fits its data better, and its bias is
# larger. If truncations are frequent and the value is sharp, keep the next observations or use the
# delta.
#
# **Where it stops being true.** These are three fits on one short rollout. The size of the bias
# for your network is a question to your network. Compare the two advantages as above.
#
# **The shifted pass.** ``GAE(shifted=True)`` makes a :term:`shifted value call`: the value network
# runs once, on ``T + budget`` rows instead of twice on ``T``. Each truncation inside the batch
# needs one extra row, and the end of the batch one more. Rows that do not fit are marked in
# :term:`shifted_valid`; they hold finite numbers without a meaning.

n_truncations = int((truncated_only & ~last_row).sum())
full_budget = n_truncations + 1
unshifted = gae(truth.clone())["advantage"]


def shifted_pass(data, budget):
    """Advantage of the shifted pass, and which rows of it are valid."""
    options = {"gamma": GAMMA, "lmbda": LAMBDA, "value_network": value_net}
    estimator = GAE(**options, shifted=True, shifted_budget=budget)
    shifted = estimator(data.clone())
    assert shifted["advantage"].isfinite().all()
    return shifted["advantage"], shifted["shifted_valid"]


shifted_rows = []
for name, data in (("full", truth), ("compact_obs", compact_truth)):
    for budget in (1, full_budget - 1, full_budget):
        advantage, valid = shifted_pass(data, budget)
        off = ~torch.isclose(advantage, unshifted, atol=1e-4).squeeze(-1)
        shifted_rows.append([name, budget, int(valid.sum()), int((off & valid).sum())])
print_table(["data", "shifted_budget", "valid rows", "valid rows off"], shifted_rows)

# %%
# **Reading.** With a budget of one row per truncation plus one, the shifted pass is exact on full
# data. With less, the default is one, rows are dropped at the end, and the last trajectory that is
# kept is cut short: its valid rows are off.

assert [row[2] == N_FRAMES for row in shifted_rows[:3]] == [False, False, True]
assert shifted_rows[2][3] == 0
assert inspect.signature(GAE).parameters["shifted_budget"].default == 1
advantage, valid = shifted_pass(truth, 1)
off = valid & ~torch.isclose(advantage, unshifted, atol=1e-4).squeeze(-1)
assert (truth[TRAJ_KEY][off] == truth[TRAJ_KEY][valid][-1]).all()

# %%
# On compact data the shifted pass runs without a reconstructor and without a NaN. Where the next
# observation is missing it takes the current one. That is the bias of the figure again: the
# advantage is the one that GAE computes from NaN rows.

advantage, valid = shifted_pass(compact_truth, full_budget)
torch.testing.assert_close(
    advantage, gae(rebuilt.clone())["advantage"], rtol=1e-3, atol=1e-4
)

# %%
# Buffers larger than memory
# --------------------------
#
# **Claim.** :class:`~torchrl.data.LazyMemmapStorage` maps files into the process. The pages
# belong to the file, not to the process, so the buffer may be larger than the memory the process
# is allowed to allocate.
#
# **By hand.** With a directory the storage writes one file per leaf, for the *full* capacity. So
# the files take capacity times the bytes of one frame. The buffer adds one integer per row, its
# index.

CAPACITY_FRAMES = 4 * N_FRAMES


def memmap_buffer(capacity=CAPACITY_FRAMES, sampler=None, transform=None, **options):
    return TensorDictReplayBuffer(
        storage=LazyMemmapStorage(capacity, **options),
        sampler=sampler or slices(),
        transform=transform,
        batch_size=BATCH_FRAMES,
    )


def memmap_bytes(folder):
    return sum(file.stat().st_size for file in Path(folder).rglob("*.memmap"))


on_disk = memmap_buffer(scratch_dir=scratch_dir / "replay")
assert memmap_bytes(scratch_dir) == 0  # lazy: nothing is allocated yet
on_disk.extend(compact_truth.cpu())

frame_bytes = compact_truth.bytes() // N_FRAMES
predicted_disk_bytes = CAPACITY_FRAMES * (frame_bytes + INT64_BYTES)
assert memmap_bytes(scratch_dir) == predicted_disk_bytes
assert torch.equal(on_disk[:]["observation"], compact_truth["observation"].cpu())
print(f"{len(on_disk)} of {CAPACITY_FRAMES} rows written")
print(f"predicted {predicted_disk_bytes:,} bytes in files, ", end="")
print(f"found {memmap_bytes(scratch_dir):,}")

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    ``LazyMemmapStorage(capacity)`` without ``scratch_dir``. It does not touch the disk. The
#    mapping lives in shared memory, which is memory, and which containers limit separately.


def mapped_file(tensor):
    """Path of the file that backs a tensor, from the memory map of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, _, _, _, *path = line.split(maxsplit=5)
        start, end = (int(address, 16) for address in addresses.split("-"))
        if start <= tensor.data_ptr() < end:
            return " ".join(path)
    raise LookupError("the tensor is in no mapping of this process")


in_shared_memory = memmap_buffer()
in_shared_memory.extend(compact_truth.cpu())
if ON_LINUX:
    with_dir = mapped_file(on_disk[:]["observation"])
    without_dir = mapped_file(in_shared_memory[:]["observation"])
    assert with_dir.startswith(str(scratch_dir.resolve()))
    assert without_dir.startswith("/dev/shm/")
    print("with scratch_dir: a file in that directory; without: /dev/shm")
del in_shared_memory

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    A second buffer on the same directory. The docstring turns ``existsok`` around: true raises,
#    and is the default. In fact the default is false, false raises, and true lets two buffers
#    write to the same pages. So it is not the way to reopen a buffer.

assert inspect.signature(LazyMemmapStorage).parameters["existsok"].default is False
check_docstring(LazyMemmapStorage, "exists on disk. Defaults to ``True``.")
second = memmap_buffer(scratch_dir=scratch_dir / "replay")
assert len(second) == 0  # the files are not read
try:
    second.extend(compact_truth.cpu())
except RuntimeError as error:
    assert "already exists" in str(error)
    print("RuntimeError: the file already exists")
else:
    raise AssertionError("a second buffer took over the directory")

# %%
# **The right way** to keep a buffer is ``dumps`` and ``loads``. They carry the rows and the
# position of the writer.

on_disk.dumps(scratch_dir / "checkpoint")
loaded = memmap_buffer(scratch_dir=scratch_dir / "reloaded")
loaded.loads(scratch_dir / "checkpoint")
assert len(loaded) == len(on_disk) == N_FRAMES
assert (loaded[:] == on_disk[:]).all()
loaded.extend(compact_truth.cpu())
assert len(loaded) == 2 * N_FRAMES
print(f"{N_FRAMES} rows loaded, {len(loaded)} after the next extend")

# %%
# And this is what ``existsok=True`` does to the buffer that was there first:

taker = memmap_buffer(scratch_dir=scratch_dir / "reloaded", existsok=True)
taker.extend(torch.zeros_like(compact_truth.cpu()))
assert (loaded[:]["observation"][:N_FRAMES] == 0).all()
print("the rows of the loaded buffer are overwritten")

# %%
# **Larger than the limit.** A forked child sets a limit on its own anonymous memory
# (``RLIMIT_DATA``): what it holds already, plus ``HEADROOM_BYTES``. Then it fills one buffer of
# each kind with pixels. The capacity is larger than the whole limit, and the rows that are
# written take several times the headroom. A fork shares the imported modules, so the child starts
# at once.

FRAME_BYTES = int(np.prod(PIXEL_SHAPE))
CHUNK_FRAMES = 128
WRITTEN_FRAMES = 8 * CHUNK_FRAMES
HEADROOM_BYTES = 3 * CHUNK_FRAMES * FRAME_BYTES
N_GRAY_LEVELS = 256


def process_bytes(field):
    """One field of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


def gray_frames(first):
    """Frames that carry their own number as gray level."""
    number = torch.arange(first, first + CHUNK_FRAMES)
    gray = (number % N_GRAY_LEVELS).to(torch.uint8).view(-1, *([1] * len(PIXEL_SHAPE)))
    pixels = gray.expand(CHUNK_FRAMES, *PIXEL_SHAPE)
    return TensorDict({"number": number, "pixels": pixels}, [CHUNK_FRAMES])


def fill_and_check(storage):
    rb = TensorDictReplayBuffer(storage=storage, batch_size=BATCH_FRAMES)
    for first in range(0, WRITTEN_FRAMES, CHUNK_FRAMES):
        rb.extend(gray_frames(first))
    sample = rb.sample()
    expected = (sample["number"] % N_GRAY_LEVELS).to(torch.uint8)
    return len(rb), bool((sample["pixels"].flatten(1) == expected.unsqueeze(-1)).all())


# %%
# The child sends back what happened.


def child_under_limit(connection, folder):
    import resource

    limit = process_bytes("VmData") + HEADROOM_BYTES
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))
    capacity = 1 + (limit + limit // 10) // FRAME_BYTES
    anonymous = process_bytes("RssAnon")
    report = {"capacity > limit": capacity * FRAME_BYTES > limit}
    try:
        report["tensor"] = fill_and_check(LazyTensorStorage(capacity))
    except RuntimeError as error:
        report["tensor"] = "can't allocate memory" in str(error)
    report["memmap"] = fill_and_check(LazyMemmapStorage(capacity, scratch_dir=folder))
    grown = process_bytes("RssAnon") - anonymous
    written = WRITTEN_FRAMES * FRAME_BYTES
    report["written > headroom > grown"] = written > HEADROOM_BYTES > grown
    connection.send(report)


# %%
# From Python 3.12 on, forking a process that has threads warns. The child uses one thread and no
# accelerator, so that message is expected.

warnings.filterwarnings("ignore", message=r".*fork\(\) may lead to deadlocks")


def run_child(target, folder):
    """Run ``target`` in a forked child and return what it sends."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    child = fork.Process(target=target, args=(sender, folder))
    child.start()
    sender.close()
    try:
        assert receiver.poll(timeout=60), "the child did not answer"
        return receiver.recv()
    finally:
        receiver.close()
        child.join()
        child.close()


if ON_LINUX:
    report = run_child(child_under_limit, scratch_dir / "limited")
    assert report["capacity > limit"]
    assert report["written > headroom > grown"]
    assert report["tensor"] is True  # it raised: can't allocate memory
    assert report["memmap"] == (WRITTEN_FRAMES, True)
    print("LazyTensorStorage: cannot allocate its capacity under the limit")
    print(f"LazyMemmapStorage: {report['memmap'][0]} rows written, the sample is right")

# %%
# **Reading.** The tensors of the first kind are anonymous memory and count against the limit. The
# pages of a file do not: the system writes them back and takes them away when it needs memory.
#
# **Where it stops being true.** A container counts file pages as well while they are in memory,
# though it can evict them, and it cannot evict shared memory. Random access to a file that does
# not fit into memory runs at the speed of the disk. And the directory must live as long as the
# buffer: sampling keeps working after it is deleted, with nothing left on disk.

shutil.rmtree(scratch_dir / "replay")
assert on_disk.sample().numel() == BATCH_FRAMES
assert not (scratch_dir / "replay").exists()

# %%
# Sequences without padding
# -------------------------
#
# **Claim.** Recurrent training reads slices of unequal length. Stacking them to a rectangle pads
# every slice to the longest. A :class:`~torchrl.data.SliceSampler` returns them end to end in one
# flat batch, with :term:`is_init` at each slice start, and the recurrent module restarts its
# state there.
#
# **By hand.** The padded rectangle costs the number of slices times ``SEQUENCE_FRAMES``. The flat
# batch costs the sum of the lengths.

SEQUENCE_FRAMES = 16
N_SLICES = 8

sequence_buffer = buffer(
    compact_truth,
    None,
    slices(slice_frames=SEQUENCE_FRAMES, strict_length=False),
    batch_frames=N_SLICES * SEQUENCE_FRAMES,
)
torch.manual_seed(SEED)
sequences = sequence_buffer.sample()
is_init = sequences["is_init"].squeeze(-1)
n_rows = sequences.numel()

assert int(is_init.sum()) == N_SLICES
assert is_init[1:].any()  # resets in the middle of the batch
assert n_rows < N_SLICES * SEQUENCE_FRAMES
print(f"{N_SLICES} slices: {n_rows} rows, padded {N_SLICES * SEQUENCE_FRAMES}")

# %%
# :class:`~torchrl.modules.LSTMModule` and :class:`~torchrl.modules.GRUModule` read such a batch
# inside :class:`~torchrl.modules.set_recurrent_mode`. Their :term:`recurrent backend` decides how:
#
# ``"pad"``
#     splits at the resets, pads to a rectangle, and runs the slices side by side.
# ``"scan"``
#     walks the flat batch step by step and resets the state on the way, in one operator that torch
#     traces.
# ``"scan"`` with ``recurrent_recompute="full"``
#     is a different loop, in Python, with ``torch.utils.checkpoint`` around each step. It keeps
#     what enters a step and computes the gates again in the backward pass.
# ``"triton"``
#     is the scan as CUDA kernels.
#
# **By hand.** With recomputation, one row keeps its observation, its two copies of ``is_init``, and
# for each state of the module the state that enters the step and the state to reset to.


def recurrent(kind, backend, **options):
    """A module with the same weights for every backend."""
    torch.manual_seed(SEED)
    cls, states = {"LSTM": (LSTMModule, ["h", "c"]), "GRU": (GRUModule, ["h"])}[kind]
    return cls(
        input_size=OBS_FLOATS,
        hidden_size=HIDDEN_UNITS,
        in_keys=["observation", *states],
        out_keys=["features", *(("next", state) for state in states)],
        recurrent_backend=backend,
        device=DEVICE,
        **options,
    )


# %%
# What autograd keeps for the backward pass is counted where it is kept: each storage once, and
# without the parameters.


def train_pass(module, batch):
    """Features, gradients of the parameters, and bytes saved in between."""
    parameters = {p.untyped_storage().data_ptr() for p in module.parameters()}
    saved = {}

    def pack(tensor):
        if type(tensor) is torch.Tensor:  # tracing passes fake tensors through here
            storage = tensor.untyped_storage()
            saved[storage.data_ptr()] = storage
        return tensor

    count = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with set_recurrent_mode(True), count:
        features = module(batch.clone())["features"]
    features.square().sum().backward()
    n_saved = sum(saved[key].nbytes() for key in saved.keys() - parameters)
    return features.detach(), [p.grad for p in module.parameters()], n_saved


# %%
# Plain "scan" is traced first, which takes longer than all else in this section. So it waits for a
# switch. The tests of this page turn it on, and the record below has its numbers.

PLAIN_SCAN = False
RECOMPUTE = {"recurrent_recompute": "full"}
RUNS = [
    ("GRU", "pad", {}),
    ("GRU", "scan", RECOMPUTE),
    ("LSTM", "pad", {}),
    ("LSTM", "scan", RECOMPUTE),
]
if PLAIN_SCAN:
    RUNS += [(kind, "scan", {}) for kind in ("GRU", "LSTM")]
if DEVICE.type == "cuda":
    torch.backends.cudnn.allow_tf32 = False  # the same precision everywhere
    RUNS += [
        (k, "triton", {"recurrent_matmul_precision": "ieee"}) for k in ("GRU", "LSTM")
    ]

inputs = sequences.select("observation", "is_init")
features, gradients, saved_bytes = {}, {}, {}
for kind, backend, options in RUNS:
    run = (kind, backend, *options)
    features[run], gradients[run], saved_bytes[run] = train_pass(
        recurrent(kind, backend, **options), inputs
    )

# %%
# Every run is compared with "pad" of the same kind: outputs and gradients.

for kind, *how in features:
    run, pad = (kind, *how), (kind, "pad")
    torch.testing.assert_close(features[run], features[pad], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradients[run], gradients[pad], rtol=1e-4, atol=1e-3)

for kind, n_states in (("GRU", 1), ("LSTM", 2)):
    kept_floats = OBS_FLOATS + 2 * n_states * HIDDEN_UNITS
    predicted = n_rows * (kept_floats * FLOAT32_BYTES + 2 * BOOL_BYTES)
    recomputed = saved_bytes[kind, "scan", *RECOMPUTE]
    assert predicted <= recomputed < saved_bytes[kind, "pad"]
    if DEVICE.type == "cpu":
        assert recomputed == predicted

print_table(
    ["module", "backend", "option", "saved bytes", "per row", "equal to pad"],
    [
        [kind, backend, *(option or [""]), saved, saved // n_rows, "yes"]
        for (kind, backend, *option), saved in saved_bytes.items()
    ],
)

# %%
# **Reading.** Both backends return the same features and the same gradients. Recomputation is what
# saves activation memory, at the price of a second forward pass. On the CPU the prediction is met
# to the byte. "pad" does not accept the option.

try:
    recurrent("LSTM", "pad", **RECOMPUTE)
except ValueError as error:
    assert "recurrent_recompute" in str(error)
    print("ValueError: pad does not recompute")
else:
    raise AssertionError("pad accepted recurrent_recompute")

# %%
# **Where it stops being true.** Plain "scan" keeps more for the backward pass than "pad" does. The
# scan is one long sequence whose steps run one after the other, while "pad" runs its slices side by
# side. And called eagerly, the scan of the LSTM is traced again on every call, that of the GRU on
# the first one only. The record of the CPU, with the differences from "pad":
#
# .. record-table:: memory_recurrent@cpu
#    :rows: *-t32
#    :metrics: step_time peak_memory output_error gradient_error
#    :caption: One training step by backend, on the CPU
#
# "triton" needs CUDA. The run above includes it where CUDA is the device. Its record:
#
# .. record-table:: memory_recurrent@cuda
#    :rows: *-t32
#    :metrics: step_time peak_memory output_error gradient_error
#    :caption: One training step by backend, on CUDA
#    :if-absent: Triton has not been measured on CUDA yet.
#
# :doc:`/reference/recurrent_backends` measures other lengths, sizes and numbers of resets.
# :doc:`/tutorials/recurrent/sequence_training` trains a policy on such slices.

# %%
# Value networks in chunks
# ------------------------
#
# **Claim.** GAE calls the value network on all rows and all next rows at once. With
# ``num_chunks`` or ``value_chunk_size`` it calls it piece by piece. The numbers stay the same, and
# the largest intermediate tensor shrinks with the number of rows in a call.
#
# **By hand.** One call holds two tensors of ``WIDE_UNITS`` per row: the output of the linear
# layer and that of its activation. Unchunked, a call sees ``2 * N_FRAMES`` rows. Chunked, it sees
# ``N_FRAMES / num_chunks``.

WIDE_UNITS = 512


class PeakBytes(TorchDispatchMode):
    """Most bytes that tensors made inside the context take at one time."""

    def __init__(self):
        super().__init__()
        self.made, self.peak = [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.made.append(weakref.ref(out))
        self.made = [ref for ref in self.made if ref() is not None]
        storages = (ref().untyped_storage() for ref in self.made)
        alive = {storage.data_ptr(): storage.nbytes() for storage in storages}
        self.peak = max(self.peak, sum(alive.values()))
        return out


# %%
# The same advantage, four ways:

wide_net = ValueOperator(mlp(1, WIDE_UNITS), in_keys=["observation"])
CHUNKINGS = [
    ({}, 2 * N_FRAMES),
    ({"num_chunks": 2}, N_FRAMES // 2),
    ({"num_chunks": 8}, N_FRAMES // 8),
    ({"value_chunk_size": 10}, 10),
]

chunk_rows, chunk_peaks, advantages = [], [], []
for options, rows_per_call in CHUNKINGS:
    estimator = GAE(gamma=GAMMA, lmbda=LAMBDA, value_network=wide_net, **options)
    with PeakBytes() as meter:
        advantages.append(estimator(truth.clone())["advantage"])
    predicted_peak = 2 * rows_per_call * WIDE_UNITS * FLOAT32_BYTES
    assert predicted_peak < meter.peak < predicted_peak + 2 * truth.bytes()
    torch.testing.assert_close(advantages[-1], advantages[0], rtol=1e-4, atol=1e-5)
    name = ", ".join(f"{k}={v}" for k, v in options.items()) or "all at once"
    chunk_rows.append([name, rows_per_call, predicted_peak, meter.peak, "yes"])
    chunk_peaks.append(meter.peak)

assert estimator.value_chunk_dim == 0
assert chunk_peaks[1] < chunk_peaks[0] / 3
print_table(
    ["chunking", "rows per call", "predicted bytes", "measured peak", "same advantage"],
    chunk_rows,
)

# %%
# **Reading.** The measured peak is the prediction plus what GAE itself holds: a copy of the batch
# and the values, less than two batches. With small chunks only this floor is left, and further
# chunks add calls.
#
# **Where it stops being true.** The options cover the passes of the estimator only. A loss that
# trains the value network calls it on its whole minibatch. And chunks cut along the first dimension
# by default; for a recurrent network that must not be the time dimension (``value_chunk_dim``).

batch = estimator(truth.clone())
with PeakBytes() as meter:
    ClipPPOLoss(actor, wide_net).loss_critic(batch)
assert meter.peak > 2 * N_FRAMES * WIDE_UNITS * FLOAT32_BYTES

# %%
# All of it together
# ------------------
#
# **Claim.** The pieces fit: a policy collects compact rows, a memmap buffer keeps them, the
# reconstructor rebuilds next observations with the step count, the sampler returns slices, GAE
# and the PPO loss are finite, and one optimizer step changes the parameters. The twin with the
# delta differs in three arguments.
#
# **By hand.** Every slice end is NaN in the compact pipeline, up to the slices that happen to
# continue. The delta pipeline has no NaN.


def collect_and_sample(folder, actor, env_transforms, buffer_transform, **options):
    """Rollout, memmap buffer, one batch of slices."""
    env = limited_cartpole(*env_transforms)
    devices = {"policy_device": DEVICE, "env_device": "cpu"}
    rollout = collect(env, actor, **devices, **options)
    rb = memmap_buffer(scratch_dir=folder, transform=buffer_transform)
    rb.extend(rollout.cpu())
    torch.manual_seed(SEED)
    return rollout.bytes() // N_FRAMES, rb.sample().to(DEVICE)


def ppo_step(folder, **options):
    """From rollout to optimizer step: bytes per frame, batch and loss."""
    actor, critic = make_actor(), ValueOperator(mlp(1), in_keys=["observation"])
    loss_module = ClipPPOLoss(actor, critic)
    optimizer = torch.optim.Adam(loss_module.parameters())
    frame_bytes, batch = collect_and_sample(folder, actor, **options)

    GAE(gamma=GAMMA, lmbda=LAMBDA, value_network=critic)(batch)
    losses = loss_module(batch)
    loss = sum(value for key, value in losses.items() if key.startswith("loss_"))
    before = [p.detach().clone() for p in loss_module.parameters()]
    loss.backward()
    optimizer.step()

    assert loss.isfinite()
    assert batch["advantage"].isfinite().all()
    for old, new in zip(before, loss_module.parameters(), strict=True):
        assert not torch.equal(old, new)
    return frame_bytes, batch, loss.item()


# %%
# The two pipelines:

compact_frame, compact_batch, compact_loss = ppo_step(
    scratch_dir / "compact",
    env_transforms=[],
    buffer_transform=NextStateReconstructor(step_count_key="step_count"),
    compact_obs=True,
)
delta_frame, delta_batch, delta_loss = ppo_step(
    scratch_dir / "delta",
    env_transforms=[NextObservationDelta()],
    buffer_transform=NextObservationDelta(in_keys=["observation"]),
)

assert torch.equal(compact_batch["index"], delta_batch["index"])
n_nan = nan_rows(compact_batch[NEXT_OBS])
n_slice_ends = BATCH_FRAMES // SLICE_FRAMES
assert 0 < n_nan <= n_slice_ends
assert nan_rows(delta_batch[NEXT_OBS]) == 0
print_table(
    ["pipeline", "bytes per frame", "rows", "NaN next obs", "PPO loss"],
    [
        ["compact_obs", compact_frame, BATCH_FRAMES, n_nan, f"{compact_loss:.5f}"],
        ["delta", delta_frame, BATCH_FRAMES, 0, f"{delta_loss:.5f}"],
    ],
)

# %%
# **Reading.** Both draw the same rows. Each slice end is a truncation for GAE, because the sampler
# marks it. The delta bootstraps there from the real next observation, the compact pipeline from
# the current one. So their advantages differ.

difference = (compact_batch["advantage"] - delta_batch["advantage"]).abs().squeeze(-1)
slice_end = compact_batch["next", "done"].squeeze(-1)
assert int(slice_end.sum()) == n_slice_ends
assert difference[slice_end].max() > DELTA_TOLERANCE
print(f"largest difference of the advantage: {difference.max():.2g}, ", end="")
print(f"its standard deviation: {delta_batch['advantage'].std():.1f}")

# %%
# **Where it stops being true.** The value network is new here, and nearly flat. With a sharp one
# the two pipelines part further. Longer slices make such rows rarer.
#
# Conclusion
# ----------
#
# Count first. If the observation is a small part of the frame, look at the other keys. If it is
# the frame, ``compact_obs`` nearly halves the memory, and costs you the real next observation at
# every trajectory end and slice end. Which knob, and when, with the savings of this run:

gru_pad = saved_bytes["GRU", "pad"]
SAVINGS = {
    "none": f"{0:.1%} / {0:.2%}",
    "compact": f"{saving_of['compact_obs']:.1%} / {compact_savings[-1]:.2%}",
    "delta": f"{saving_of['delta']:.1%} / {delta_savings[-1]:.2%}",
    "scan": f"{1 - saved_bytes['GRU', 'scan', *RECOMPUTE] / gru_pad:.0%}",
    "chunks": f"{1 - chunk_peaks[-1] / chunk_peaks[0]:.0%}",
}
print_table(
    ["when", "turn", "saving", "price"],
    [
        ["large observations", "compact_obs", SAVINGS["compact"], "next obs at ends"],
        ["floats, many ends", "delta", SAVINGS["delta"], "precision"],
        ["n-step returns", "neither", SAVINGS["none"], "memory"],
        ["buffer above memory", "memmap, scratch_dir", "-", "disk speed"],
        ["recurrent training", "scan, recompute", SAVINGS["scan"], "a second forward"],
        ["wide value network", "num_chunks", SAVINGS["chunks"], "more calls"],
    ],
)

# %%
# The savings of the first rows are those of a rollout: CartPole, then stacked pixels. The last two
# are those of the activation memory of one network. Four rules go with them:
#
# * Rebuild with ``NextStateReconstructor(step_count_key="step_count")``, never with the defaults.
# * Drop the NaN rows before a loss that calls ``value_estimate()``, such as DQN.
# * Keep both observations for n-step returns, or where truncations are frequent and the value
#   function is sharp.
# * Give a memmap storage a ``scratch_dir``, and keep the buffer with ``dumps``.

# %%
# Clean up: the buffers go first, then the files they map.

del on_disk, second, loaded, taker
scratch.cleanup()
assert not scratch_dir.exists()
assert not multiprocessing.active_children()

# %%
# Further reading
# ---------------
#
# * `Memory-efficient RL training in the TorchRL documentation
#   <https://docs.pytorch.org/rl/0.14/tutorials/memory_efficient_rl.html>`__, the authors' tour of
#   the same switches. It says that the delta keeps ``MultiStepTransform`` available; the run above
#   finds otherwise.
# * `Recurrent modules in the TorchRL documentation
#   <https://docs.pytorch.org/rl/0.14/reference/modules_rnn.html>`__, on the layout of flat slices
#   and the recurrent backends
# * `Collectors <https://docs.pytorch.org/rl/0.14/reference/collectors.html>`__ and `replay buffers
#   <https://docs.pytorch.org/rl/0.14/reference/data.html>`__ in the TorchRL documentation
# * `Time limits in reinforcement learning <https://arxiv.org/abs/1712.00378>`__, on why a
#   truncated trajectory must bootstrap
# * `Generalized advantage estimation <https://arxiv.org/abs/1506.02438>`__
