"""
Memory-efficient RL
===================

A rollout stores most observations twice: as the next observation of one row, and as the observation
of the row after it. Drop the next observations when you collect, and rebuild them when you sample.
With large observations, this nearly halves the memory of the batch and of the buffer.

.. redirect-from:: tutorials/memory/memory_efficient_rl.html#setup
"""

# %%
# .. fold:: Device, seed and log level

import torch
import torchrl

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SEED = 0
torch.manual_seed(SEED)
torch.set_num_threads(1)
torchrl.logger.setLevel("ERROR")  # it announces each storage

# %%
# For a loss on single transitions, such as DQN, copy this. It samples slices, because it rebuilds a
# next observation from the row below. To compute GAE on the sample, take longer slices, and leave
# out the four lines below "Drop rows" (:ref:`memory-pipeline`).

from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import GymEnv, StepCounter, TransformedEnv
from torchrl.envs.transforms import NextStateReconstructor

env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter())
collector = Collector(env, frames_per_batch=200, total_frames=200, compact_obs=True)
buffer = TensorDictReplayBuffer(
    storage=LazyTensorStorage(10_000),
    sampler=SliceSampler(slice_len=4, traj_key=("collector", "traj_ids")),
    transform=NextStateReconstructor(step_count_key="step_count"),
    batch_size=64,
)
for batch in collector:
    buffer.extend(batch)
    sample = buffer.sample()
    # Drop rows, but not with GAE:
    missing = sample["next", "observation"].isnan().any(-1)
    terminated = sample["next", "terminated"].squeeze(-1)
    sample = sample[~missing | terminated]  # usable rows
    sample["next", "observation"].nan_to_num_(0.0)  # where terminated
    # Here: the loss on the sample
collector.shutdown()

# %%
# .. list-table:: Which way to store observations
#    :header-rows: 1
#
#    * - You have
#      - Use
#      - It costs
#    * - large observations, sampled in slices
#      - ``compact_obs``, rebuilt as above
#      - most last rows of slices, which get no next observation
#    * - stacked frames of pixels
#      - :doc:`one frame per step </how-to/pixel_replay>`, in place of two stacks of four
#      - reading several rows for each sampled one
#    * - other pixels as ``uint8``
#      - ``compact_obs``, and a :ref:`fill_value <memory-integers>` for the reconstructor
#      - ``isnan`` finds no missing row, and GAE takes the filled frame for a real one. Find these
#        rows :ref:`by their step counts <memory-integers>`
#    * - float observations; you sample single rows, or need every next observation
#      - :ref:`NextObservationDelta <memory-delta>`, which saves up to a quarter
#      - a rounding error
#    * - n-step returns (``MultiStepTransform``)
#      - :doc:`stored next observations <n_step_and_truncations>`: ``compact_obs`` or a delta makes
#        them wrong, without an error
#      - no saving
#    * - a buffer larger than memory
#      - :doc:`LazyMemmapStorage with scratch_dir <buffers_on_disk>`, with any of these
#      - sampling time: rows are read from files (:doc:`checkpoints </how-to/save_and_resume>`)
#    * - PPO with GAE on each whole batch
#      - both observations until GAE has run, then ``batch.exclude(("next", "observation"))``
#      - no saving while you collect
#
# * Without ``step_count_key``, some rebuilt observations are wrong, and no error says so.
# * The last row of a slice usually comes back with NaN: its next observation is not in the sample.
#   The end of the loop drops these rows, about one in four with ``slice_len=4``. It keeps
#   terminated ones, because their target does not use the value of the next observation. Truncated
#   rows always go.
# * Terminated rows are rarer in the sample than in the buffer, because such a row can only be the
#   last of its slice. ``SliceSampler(span=True)`` also draws slices that an end cuts short, and
#   then they are more frequent. By default, a trajectory shorter than a slice :ref:`is never drawn
#   <symptom-short-episodes-are-never-replayed>`.
# * If you compute GAE on a sample, keep the NaN rows: their done marks separate the slices.
# * A batch of several environments, or of a ``MultiSyncCollector``, has the shape ``[N, T]``: pass
#   ``ndim=2`` to the storage (:ref:`replay-slices`). :claim:`workers-rows-are-rebuilt` For a buffer
#   on a GPU, pass ``device="cuda"`` to the storage.
# * For prioritized replay, use ``PrioritizedSliceSampler``. The rest stays as it is.
#
# Where the observation memory goes
# ---------------------------------
#
# One row of a rollout (a *frame*) is one transition, in the TorchRL episode data format
# (:term:`TED`): what the agent saw is in ``"observation"``, and what it saw one step later in
# ``("next", "observation")``.
#
# .. fold:: A function that collects the same trajectories on each call

from torchrl.envs import Compose

N_FRAMES = 200
TRAJ_KEY, NEXT_OBS = ("collector", "traj_ids"), ("next", "observation")


def collect(*transforms, policy=None, **options):
    """One batch of CartPole, seeded; random actions without a policy."""
    env = TransformedEnv(GymEnv("CartPole-v1"), Compose(*transforms))
    env.set_seed(SEED)  # before the collector, which resets the environment
    options |= {"frames_per_batch": N_FRAMES, "total_frames": N_FRAMES}
    collector = Collector(env, policy, storing_device=DEVICE, **options)
    torch.manual_seed(SEED)
    try:
        return next(iter(collector))
    finally:
        collector.shutdown()


# %%
# Count the bytes of a frame of CartPole, entry by entry:

plain = collect()
for key, entry in plain.items(include_nested=True, leaves_only=True):
    print(f"{entry.nbytes // N_FRAMES:6} bytes  {key}")
print(f"{plain.bytes() // N_FRAMES:6} bytes a frame, {plain.bytes():,} in {N_FRAMES}")

# %%
# The next observation is about a quarter of this frame. You save nearly half only with larger
# observations.
#
# Why the next observation is kept
# --------------------------------
#
# Where a trajectory ends, the following row is the *reset* of another one. So the final observation
# is stored only under ``"next"``. If the trajectory was :term:`truncated`, a target uses the value
# of this observation. If it :term:`terminated`, the value counts as zero. The last row of a batch
# has no following row.
#
# Where ends matter below, ``StepCounter(max_steps=12)`` truncates some trajectories.
#
# .. fold:: Compare each next observation with the row below

TIME_LIMIT_STEPS = 12
full = collect(StepCounter(max_steps=TIME_LIMIT_STEPS))
following = full["observation"].roll(-1, dims=0)
trajectory_end = full["next", "done"].squeeze(-1).clone()
trajectory_end[-1] = True  # the end of the batch

assert torch.equal((following != full[NEXT_OBS]).any(-1), trajectory_end)
n_ends = int(trajectory_end.sum())
print(f"{n_ends} of {N_FRAMES} next observations are not in the next row")

# %%
# Dropping the copies: ``compact_obs``
# ------------------------------------
#
# ``Collector(compact_obs=True)`` drops each observation and state under ``"next"``, even at the end
# of a trajectory, before it stacks the rows
# (:source:`torchrl.collectors.Collector._setup_compact_obs`). Reward and end flags stay.

compact = collect(compact_obs=True)

assert set(plain.keys(True, True)) - set(compact.keys(True, True)) == {NEXT_OBS}
saving = 1 - compact.bytes() / plain.bytes()
print(f"{plain.bytes():,} to {compact.bytes():,} bytes: {saving:.1%} saved")
saving = 1 - collect(StepCounter(), compact_obs=True).bytes() / plain.bytes()
print(f"with a step count in each row, as you need it below: {saving:.1%} saved")

# %%
# With ``o`` bytes of observation and ``r`` bytes of everything else, the saving is ``o / (2 * o +
# r)``. For CartPole, and for gray pixels of 84 × 84:
#
# .. fold:: The same formula, in code

cartpole = plain["observation"][0].nbytes
rest = plain[0].bytes() - 2 * cartpole
for o in (cartpole, 84 * 84):
    print(f"{o:6,} bytes of observation: {o / (2 * o + rest):.1%} saved")

# %%
# The peak memory of the process falls by a smaller share, because the collector holds the single
# rows while it stacks the batch.
#
# Rebuilding the next observation
# -------------------------------
#
# :class:`~torchrl.envs.transforms.NextStateReconstructor` is a transform for the replay buffer. If
# row ``i + 1`` of a sampled batch is the next step of row ``i``, it copies the observation of row
# ``i + 1`` into the next observation of row ``i``. Otherwise it writes NaN. It decides by three
# entries:
#
# * ``traj_key``: both rows have the same trajectory id. Collectors write it, unless you set
#   ``track_traj_ids=False``.
# * ``done_key``: row ``i`` does not end its trajectory.
# * ``step_count_key``: the step count goes up by one. ``StepCounter`` on the environment writes it.
#   **Off by default.**
#
# To rebuild other entries than ``"observation"``, list all of them in ``keys``.
#
# On a whole rollout in order, only the last row of each trajectory and the last row of the batch
# become NaN:

compact = collect(StepCounter(max_steps=TIME_LIMIT_STEPS), compact_obs=True)
rebuilt = NextStateReconstructor(step_count_key="step_count")(compact.clone())
missing = rebuilt[NEXT_OBS].isnan().any(-1)

assert torch.equal(rebuilt[NEXT_OBS][~missing], full[NEXT_OBS][~missing])
print(f"{int((~missing).sum())} rows rebuilt bit for bit, {int(missing.sum())} NaN")

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    ``NextStateReconstructor()`` with its defaults, on slices. A
#    :class:`~torchrl.data.SliceSampler` draws :term:`slices <slice>` from random places, so two
#    slices of one trajectory may be neighbors in the batch. The rows that touch have the same
#    trajectory id, so the transform takes the first row of one slice for the next step of the
#    other.
#
# .. fold:: Count rows whose next observation is missing or wrong

BATCH_FRAMES, SLICE_FRAMES, N_BATCHES = 64, 4, 16


def make_buffer(rows, transform, storage):
    """A buffer that returns slices of *rows*, the same ones on each call."""
    sampler = SliceSampler(slice_len=SLICE_FRAMES, traj_key=TRAJ_KEY)
    parts = {"storage": storage, "sampler": sampler, "transform": transform}
    buffer = TensorDictReplayBuffer(**parts, batch_size=BATCH_FRAMES)
    buffer.extend(rows.clone())
    torch.manual_seed(SEED)
    return buffer


def sample_batches(transform):
    """Batches of slices, and masks of their rows: missing (NaN), and wrong."""
    storage = LazyTensorStorage(N_FRAMES, device=DEVICE)
    buffer = make_buffer(compact, transform, storage)
    samples = torch.cat([buffer.sample() for _ in range(N_BATCHES)])
    missing = samples[NEXT_OBS].isnan().any(-1)
    differs = (samples[NEXT_OBS] != full[NEXT_OBS][samples["index"].flatten()]).any(-1)
    return samples, missing, differs & ~missing


# %%
# ``sample_batches``, in the fold, compares many slices with the full rollout. With
# ``step_count_key``, the transform writes NaN where two slices of one trajectory touch:

by_count = NextStateReconstructor(step_count_key="step_count")
touching, nan_by_default, wrong = sample_batches(NextStateReconstructor())
_, nan_with_count, still_wrong = sample_batches(by_count)

assert wrong.any()
assert not still_wrong.any()
print(f"defaults:   {int(wrong.sum()):3} of {len(wrong):,} rows are wrong")
print(f"step_count: {int(still_wrong.sum()):3} wrong, {int(nan_with_count.sum())} NaN")

# %%
# .. fold:: Find and draw two neighboring slices

import matplotlib.pyplot as plt

steps = touching["step_count"].flatten()
skipped = (steps.roll(-1) - steps - 1).abs() * wrong
last = int(skipped.argmax())  # row of the first slice, where most steps are skipped
rows = slice(last - SLICE_FRAMES + 1, last + SLICE_FRAMES + 1)
steps, pole = steps[rows].tolist(), touching["observation"][rows, 2].tolist()
whole = full[full[TRAJ_KEY] == touching[TRAJ_KEY][last]].cpu()
real = full[NEXT_OBS][touching["index"].flatten()[last], 2].item()
(end, start), (at_end, at_start) = (x[SLICE_FRAMES - 1 :][:2] for x in (steps, pole))

figure, (above, below) = plt.subplots(2, height_ratios=[4, 1], layout="constrained")
above.plot(whole["step_count"].flatten(), whole["observation"][:, 2], color="gray")
for row, step in enumerate(steps):
    color, mark = ("C0", "o") if row < SLICE_FRAMES else ("C2", "s")
    above.plot(step, pole[row], mark, color=color)
    below.text(row, 0.2, step, ha="center", va="center", color=color)
arrow = {"arrowstyle": "->", "color": "C1", "lw": 2, "shrinkA": 5, "shrinkB": 6}
above.annotate("", (start, at_start), (end, at_end), arrowprops=arrow)
above.plot(end + 1, real, "o", color="black", fillstyle="none")
beside = {"xytext": (6, 12), "textcoords": "offset points"}
middle = ((start + end) / 2, (at_start + at_end) / 2)
above.annotate("written as next:\nwrong", middle, color="C1", **beside)
above.annotate("real next", (end + 1, real), ha="right", **beside)
above.set(xlabel="step of the trajectory", ylabel="pole angle [rad]")
above.set_title("In the trajectory")
below.text(1.5, 0.8, "first slice", ha="center", color="C0")
below.text(SLICE_FRAMES + 1.5, 0.8, "second slice", ha="center", color="C2")
below.axvline(SLICE_FRAMES - 0.5, color="C1", lw=2)
below.set(xlim=(-0.5, 2 * SLICE_FRAMES - 0.5), ylim=(-0.2, 1.4), yticks=[], xticks=[])
below.set_title("In the batch: steps, row by row")
figure.set_label(
    f"The first slice ends with step {end} of a trajectory, the second starts with step {start} "
    f"of the same one. The row of step {end} gets the pole angle of step {start} as its next "
    f"observation, {at_start:.3f}. The real one is {real:.3f}."
)

# %%
# The done flags do not prevent this. The sampler marks the end of each slice as done, but the
# buffer merges these marks *after* its transforms have run
# (:source:`torchrl.data.TensorDictReplayBuffer.sample`). So an incorrect row has ``done=True`` in
# your sample. :claim:`touching-rows-are-done-in-the-sample` To find such rows before you drop any,
# compare step counts: a row is wrong if its next observation is not NaN, and the step count of
# the row below is not one higher.
#
# If you call GAE or a TD estimator on a batch with NaN, the result is finite, but not always exact.
# The losses :class:`~torchrl.objectives.DQNLoss` and :class:`~torchrl.objectives.DiscreteSACLoss`
# become NaN, unless you drop rows as at the top. :doc:`missing_next_observations` says why, and how
# to check another loss.
#
# .. _memory-delta:
#
# Keeping a small delta instead
# -----------------------------
#
# :class:`~torchrl.envs.transforms.NextObservationDelta` on the environment stores the difference
# ``next - obs`` in ``float16``, half the width of a ``float32`` observation. On the buffer,
# ``NextObservationDelta(in_keys=["observation"])`` adds the difference back.
# :claim:`buffer-delta-names-entries` This saves half as much as ``compact_obs`` without a step
# count, but *every* row gets its next observation back, even where a trajectory ends, with a
# rounding error.

from torchrl.envs.transforms import NextObservationDelta

delta = collect(StepCounter(max_steps=TIME_LIMIT_STEPS), NextObservationDelta())
restored = NextObservationDelta(in_keys=["observation"])(delta.clone())
error = (restored[NEXT_OBS] - full[NEXT_OBS]).abs().max().item()

DELTA_TOLERANCE = 1e-3
assert error < DELTA_TOLERANCE
saving = 1 - collect(NextObservationDelta()).bytes() / plain.bytes()
print(f"{saving:.1%} saved, largest error {error:.0e}")

# %%
# The delta saves nothing on ``uint8`` pixels, and a difference beyond the range of ``float16``
# comes back infinite (:ref:`memory-delta-limits`).
#
# .. _memory-pipeline:
#
# All of it together
# ------------------
#
# Take one step of PPO on slices from a buffer on disk, with ``compact_obs`` and with
# ``NextObservationDelta``:
#
# .. fold:: A policy and a critic

import tempfile

from tensordict.nn import TensorDictModule
from torchrl.data import LazyMemmapStorage
from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

keys = {"in_keys": ["observation"]}


def make_networks():
    """Actor and critic, the same ones on each call."""
    torch.manual_seed(SEED)
    sizes = {"in_features": 4, "num_cells": [64], "device": DEVICE}
    net = TensorDictModule(MLP(out_features=2, **sizes), out_keys=["logits"], **keys)
    options = {"distribution_class": OneHotCategorical, "return_log_prob": True}
    actor = ProbabilisticActor(net, in_keys=["logits"], **options)
    return actor, ValueOperator(MLP(out_features=1, **sizes), **keys)


# %%
# .. fold:: From the rollout to the optimizer step


def ppo_step(buffer_transform, *transforms, **options):
    actor, critic = make_networks()
    loss_module = ClipPPOLoss(actor, critic)
    options |= {"policy": actor, "policy_device": DEVICE, "env_device": "cpu"}
    options["auto_register_policy_transforms"] = True
    rollout = collect(StepCounter(max_steps=TIME_LIMIT_STEPS), *transforms, **options)
    with tempfile.TemporaryDirectory() as folder:
        storage = LazyMemmapStorage(10 * N_FRAMES, scratch_dir=folder)
        batch = (
            make_buffer(rollout.cpu(), buffer_transform, storage).sample().to(DEVICE)
        )
    n_missing = int(batch[NEXT_OBS].isnan().any(-1).sum())

    GAE(gamma=0.99, lmbda=0.95, value_network=critic)(batch)
    losses = loss_module(batch)
    loss = sum(value for key, value in losses.items() if key.startswith("loss_"))
    loss.backward()
    torch.optim.Adam(loss_module.parameters()).step()
    print(
        f"{rollout.bytes() // N_FRAMES} bytes a frame, {n_missing} missing, loss {loss:.4f}"
    )
    return batch, loss_module


compact_batch, trained = ppo_step(by_count, compact_obs=True)
restore = NextObservationDelta(in_keys=["observation"])
delta_batch, _ = ppo_step(restore, NextObservationDelta())

# %%
# The two samples have the same rows, but their advantages differ. At the end of a slice, GAE
# bootstraps from the value of the next observation, unless the episode terminated there. Where the
# next observation is NaN, GAE uses the current one. So with ``compact_obs``, the last advantage of
# a slice is off by ``gamma`` times the change of the value in one step, and the error fades over
# the rows before it. Longer slices have fewer ends. :doc:`n_step_and_truncations` measures how
# large the error gets.

difference = (compact_batch["advantage"] - delta_batch["advantage"]).abs()
assert difference.max() > DELTA_TOLERANCE
print(f"largest difference {difference.max():.2g}, ", end="")
print(f"standard deviation of the advantage {delta_batch['advantage'].std():.1f}")

# %%
# Conclusion
# ----------
#
# Count the bytes of your frame. If the observation is most of it, choose from the table at the top.
# :doc:`saving_by_observation_size` shows what both options save for your shapes, and what they cost
# in time: a sample of CartPole slices took
# :measured:`memory_footprint@cpu:compact-step-counter-cartpole:sample_time`, and with
# ``NextStateReconstructor``
# :measured:`memory_footprint@cpu:compact-step-counter-cartpole:restore_time`.
# :doc:`activation_memory` is about the memory that recurrent layers and value networks take.
#
# Further reading
# ---------------
#
# * `Memory-efficient RL training in the TorchRL documentation
#   <https://docs.pytorch.org/rl/0.14/tutorials/memory_efficient_rl.html>`__, on the same options.
#   It says that ``MultiStepTransform`` works with the delta; in this release, the next observations
#   are then wrong.
# * `Collectors <https://docs.pytorch.org/rl/0.14/reference/collectors.html>`__ and `replay buffers
#   <https://docs.pytorch.org/rl/0.14/reference/data.html>`__ in the TorchRL documentation
