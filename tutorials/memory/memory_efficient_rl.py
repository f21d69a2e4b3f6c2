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
# next observation from the row below. With GAE, leave out the lines below the comment
# (:ref:`memory-pipeline`).

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
    # Not with GAE:
    missing = sample["next", "observation"].isnan().any(-1)
    terminated = sample["next", "terminated"].squeeze(-1)
    sample = sample[~missing | terminated]  # usable rows
    sample["next", "observation"].nan_to_num_(0.0)  # where terminated
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
#      - the last row of a slice: usually it gets no next observation
#    * - float observations; you sample single rows, or need every next observation
#      - :ref:`NextObservationDelta <memory-delta>`
#      - half of the saving, and a rounding error
#    * - n-step returns (``MultiStepTransform``)
#      - :doc:`stored next observations <n_step_and_truncations>`: either option above makes them
#        wrong, without an error
#      - no saving
#    * - a buffer larger than memory
#      - :doc:`LazyMemmapStorage with scratch_dir <buffers_on_disk>`, with any of these
#      - sampling time: rows are read from files (:doc:`checkpoints </how-to/save_and_resume>`)
#    * - stacked frames of pixels
#      - :doc:`one frame per step </how-to/pixel_replay>`, in place of eight with stacks of four
#      - reading several rows for each sampled one
#    * - other pixels as ``uint8``
#      - ``compact_obs`` with a :ref:`fill_value <memory-integers>`
#      - a check of step counts to find the missing rows
#
# * Without ``step_count_key``, some rebuilt observations are wrong, and no error says so.
# * The last row of a slice usually comes back with NaN: its next observation is not in the sample.
#   The end of the loop drops these rows, about one in four with ``slice_len=4``. It keeps
#   terminated ones, with zeros for NaN: their target does not use the value of the next
#   observation.
# * Keep the NaN rows for GAE: they carry the done marks that separate the slices. Without them, GAE
#   would sum across unrelated slices.
# * A batch of several environments, or of a ``MultiSyncCollector``, has the shape ``[N, T]``: pass
#   ``ndim=2`` to the storage (:ref:`replay-slices`). :claim:`workers-rows-are-rebuilt` For a buffer
#   on a GPU, pass ``device="cuda"`` to it.
#
# Where the observation memory goes
# ---------------------------------
#
# One row of a rollout (a *frame*) is one transition, in the TorchRL episode data format
# (:term:`TED`): what the agent saw is in ``"observation"``, and what it saw one step later in
# ``("next", "observation")``.
#
# Count the bytes of one frame of CartPole by hand. The action is one-hot, the collector adds a
# :term:`trajectory id`, and the end flags are stored twice:

FLOAT32, INT64, BOOL = 4, 8, 1  # bytes
predicted = {
    "observation": 4 * FLOAT32,
    ("next", "observation"): 4 * FLOAT32,
    "action": 2 * INT64,
    ("collector", "traj_ids"): INT64,
    ("next", "reward"): FLOAT32,
}
for flag in ("done", "terminated", "truncated"):
    predicted[flag] = predicted["next", flag] = BOOL

# %%
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
# Now measure. ``nbytes`` has the bytes of one entry, ``bytes()`` those of the whole rollout:

plain = collect()
entries = plain.items(include_nested=True, leaves_only=True)
measured = {key: entry.nbytes // N_FRAMES for key, entry in entries}

assert measured == predicted
for key, n_bytes in measured.items():
    print(f"{n_bytes:6} bytes  {key if isinstance(key, str) else '.'.join(key)}")
print(f"{sum(measured.values()):6} bytes a frame, {plain.bytes():,} in {N_FRAMES}")

# %%
# The next observation is about a quarter of this frame. It takes larger observations to save nearly
# half.
#
# Why the next observation is kept
# --------------------------------
#
# Where a trajectory ends, the following row is the *reset* of another one. So the final observation
# of a trajectory is stored only under ``"next"``. If the trajectory was :term:`truncated`, a target
# uses the value of this observation. If it :term:`terminated`, the value counts as zero. The next
# observation of the last row of a batch is stored only once, too: no row follows.
#
# From here on, ``StepCounter(max_steps=12)`` truncates some trajectories. Savings are measured
# without it.

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

# %%
# With ``o`` bytes of observation and ``r`` bytes of everything else, the saving is ``o / (2 * o +
# r)``. It grows with ``o`` and stays below one half. For an observation like CartPole's, and for a
# gray frame of 84 × 84 pixels:

rest = sum(predicted.values()) - 2 * predicted["observation"]
for o in (predicted["observation"], 84 * 84):
    print(f"{o:6,} bytes of observation: {o / (2 * o + rest):.1%} saved")

# %%
# The formula is for the finished batch. The peak memory of the process falls by a smaller share,
# because the collector still holds the single rows while it stacks them.
#
# Rebuilding the next observation
# -------------------------------
#
# :class:`~torchrl.envs.transforms.NextStateReconstructor` is a transform for the replay buffer. If
# row ``i + 1`` of a sampled batch is the next step of row ``i``, the transform copies its
# observation into the next observation of row ``i``. Otherwise it writes NaN. It decides by three
# markers:
#
# ``traj_key``
#     Both rows carry the same trajectory id. Collectors write it, unless you set
#     ``track_traj_ids=False``.
# ``done_key``
#     Row ``i`` does not end its trajectory.
# ``step_count_key``
#     The step count of row ``i + 1`` is one more than that of row ``i``. ``StepCounter`` on the
#     environment writes it. **Off by default.**
#
# By default, only ``"observation"`` is rebuilt. If you need other entries, list all of them in
# ``keys``.
#
# On a whole rollout in order, only the last row of each trajectory and the last row of the batch
# become NaN:

compact = collect(StepCounter(max_steps=TIME_LIMIT_STEPS), compact_obs=True)
rebuilt = NextStateReconstructor(step_count_key="step_count")(compact.clone())
missing = rebuilt[NEXT_OBS].isnan().any(-1)

assert torch.equal(missing, trajectory_end)
assert torch.equal(rebuilt[NEXT_OBS][~missing], full[NEXT_OBS][~missing])
print(f"{int((~missing).sum())} rows rebuilt bit for bit, {int(missing.sum())} NaN")

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    ``NextStateReconstructor()`` with its defaults, on slices. A
#    :class:`~torchrl.data.SliceSampler` draws :term:`slices <slice>` from random places, so two
#    slices of one trajectory may be neighbors in the batch. The two rows that touch have the same
#    trajectory id, and the first is not done, unless the trajectory ends there. So the transform
#    copies the observation of the second row into the next observation of the first.
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
# With ``step_count_key``, the transform also compares the step counts, and writes NaN where two
# slices of one trajectory touch:

touching, nan_by_default, wrong = sample_batches(NextStateReconstructor())
cure = NextStateReconstructor(step_count_key="step_count")
_, nan_with_count, still_wrong = sample_batches(cure)

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
# your sample, but had ``done=False`` when the transform saw it.
# :claim:`touching-rows-are-done-in-the-sample` To find incorrect rows in a sample before you drop
# any, compare step counts: a row is wrong if its next observation is not NaN, and the step count of
# the row below is not one higher.
#
# With ``step_count_key``, the next observation of the last row of a slice is NaN, unless the
# following slice starts at the very next step. On the batch, GAE and the TD estimators stay finite,
# but are not always exact; :class:`~torchrl.objectives.DQNLoss` and
# :class:`~torchrl.objectives.DiscreteSACLoss` become NaN, unless you drop rows as at the top.
# :doc:`missing_next_observations` says how to check another loss.
#
# .. _memory-delta:
#
# Keeping a small delta instead
# -----------------------------
#
# :class:`~torchrl.envs.transforms.NextObservationDelta` on the environment stores the difference
# ``next - obs`` in ``float16``, half the width of a ``float32`` observation. On the buffer,
# ``NextObservationDelta(in_keys=["observation"])`` adds the difference back.
# :claim:`buffer-delta-names-entries` This saves half as much as ``compact_obs``, but *every* row
# gets its next observation back, even where a trajectory ends, with a rounding error.

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
# Take one step of PPO, from compact rows in a buffer on disk to the optimizer, and the same step
# with ``NextObservationDelta`` for comparison:
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
# From the rollout to the optimizer step:


def ppo_step(buffer_transform, *transforms, **options):
    actor, critic = make_networks()
    loss_module = ClipPPOLoss(actor, critic)
    options |= {"policy": actor, "policy_device": DEVICE, "env_device": "cpu"}
    options["auto_register_policy_transforms"] = True
    rollout = collect(StepCounter(max_steps=TIME_LIMIT_STEPS), *transforms, **options)
    with tempfile.TemporaryDirectory() as folder:
        storage = LazyMemmapStorage(10 * N_FRAMES, scratch_dir=folder)
        batch = make_buffer(rollout.cpu(), buffer_transform, storage).sample()
    batch = batch.to(DEVICE)
    n_missing = int(batch[NEXT_OBS].isnan().any(-1).sum())

    GAE(gamma=0.99, lmbda=0.95, value_network=critic)(batch)
    losses = loss_module(batch)
    loss = sum(value for key, value in losses.items() if key.startswith("loss_"))
    optimizer = torch.optim.Adam(loss_module.parameters())
    loss.backward()
    optimizer.step()
    assert loss.isfinite()
    print(f"{rollout.bytes() // N_FRAMES} bytes a frame, {n_missing} next ", end="")
    print(f"observations missing, PPO loss {loss.item():.4f}")
    return batch, loss_module


rebuild = NextStateReconstructor(step_count_key="step_count")
compact_batch, trained = ppo_step(rebuild, compact_obs=True)
restore = NextObservationDelta(in_keys=["observation"])
delta_batch, _ = ppo_step(restore, NextObservationDelta())

# %%
# Both calls sample the same rows, but their advantages differ. At the end of a slice, GAE
# bootstraps, unless the episode terminated there. With the delta, it uses the value of the next
# observation; with ``compact_obs``, where that is NaN, it uses the value of the current one. So the
# last advantage of a slice is then off by ``gamma`` times the change of the value in one step, and
# the error fades over the rows before it. The error is large if the value changes fast
# (:doc:`n_step_and_truncations`). Longer slices have fewer ends.

difference = (compact_batch["advantage"] - delta_batch["advantage"]).abs()
assert difference.max() > DELTA_TOLERANCE
print(f"largest difference {difference.max():.2g}, ", end="")
print(f"standard deviation of the advantage {delta_batch['advantage'].std():.1f}")

# %%
# Conclusion
# ----------
#
# Count the bytes of your frame first. If the observation is most of it, choose from the table at
# the top; if not, look at the other entries. :doc:`saving_by_observation_size` shows what both
# options save for your shapes, and what they cost in time: a sample of CartPole slices took
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
