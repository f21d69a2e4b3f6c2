"""
Store pixels at one frame per step
==================================

Two successive stacks of four frames share three of them. Store each frame once, as bytes, and build
the stacks when you sample.
"""

# %%
# Copy this, and replace ``Blocks()`` with your environment. Its observation has to be a dictionary
# with ``"pixels"``, as ``uint8`` with the channels first. (:ref:`Atari and color frames
# <how-to-pixel-replay-atari>`.) The policy reads ``"stack"``.

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import CatFrames, Compose, GymWrapper, StepCounter, TransformedEnv

SEED, TIME_LIMIT_STEPS = 0, 30
N_FRAMES, CAPACITY_ROWS = 500, 400  # as small as the limit above, for this page


def make_env(game=None):
    stack = CatFrames(N=4, dim=-3, in_keys=["pixels"], out_keys=["stack"])
    transform = Compose(StepCounter(TIME_LIMIT_STEPS), stack)  # both are needed
    env = TransformedEnv(GymWrapper(game or Blocks()), transform)
    env.set_seed(SEED)
    return env


# %%
# .. fold:: An environment that draws its episode and its step into each frame

import tempfile
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import torchrl

torch.manual_seed(SEED), torch.set_num_threads(1)
torchrl.logger.setLevel("ERROR")  # it announces each storage


class Blocks(gym.Env):
    action_space = gym.spaces.Discrete(2)
    frames = gym.spaces.Box(0, 255, (1, 84, 84), np.uint8)
    observation_space, episode = gym.spaces.Dict(pixels=frames), -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.time = self.episode + 1, 0
        self.start, self.speed = self.np_random.integers(0, 70, (2, 5, 2))
        return self.draw(), {}

    def step(self, action):
        self.time += 1
        return self.draw(), 1.0, bool(self.np_random.random() < 0.05), False, {}

    def draw(self):
        frame = np.zeros((1, 84, 84), np.uint8)
        for number, (y, x) in enumerate((self.start + self.time * self.speed) % 70, 1):
            frame[0, 2 + y : 14 + y, x : x + 12] = 50 * number
        frame[0, 0, :2] = self.episode, self.time
        return {"pixels": frame}


# %%
# Bytes and frames of a row, and gigabytes of a million rows:
#
# .. fold:: The same rows in five ways

from torchrl.data import LazyMemmapStorage

FRAME_BYTES, MILLION, STACKS = 84 * 84, 1_000_000, ["stack", ("next", "stack")]


def collect(game=None, **options):
    limits = {"frames_per_batch": N_FRAMES, "total_frames": N_FRAMES}
    collector = Collector(make_env(game), **limits, **options)
    rows = next(iter(collector)).clone()
    collector.shutdown()
    return rows


full, one_frame = collect(), collect(compact_obs=True).exclude("stack")
stacks = full.exclude("pixels", ("next", "pixels"))
ways = {
    "two stacks, float32": stacks.apply(lambda x: x / 255 if x.ndim > 2 else x),
    "two stacks, uint8": stacks,
    "two frames, uint8": full.exclude(*STACKS),
    "one frame, uint8": one_frame,
    "one frame, memmap": one_frame,
}
print(f"{'stored':19} {'bytes':>7} {'frames':>7} {'GB memory':>10} {'GB disk':>8}")
for way, rows in ways.items():
    with tempfile.TemporaryDirectory() as folder:
        storage = LazyTensorStorage(N_FRAMES)
        if "memmap" in way:
            storage = LazyMemmapStorage(N_FRAMES, scratch_dir=folder)
        TensorDictReplayBuffer(storage=storage).extend(rows)
        size = storage.get(slice(None)).bytes() / N_FRAMES
        files = Path(folder).rglob("*.memmap")
        disk = sum(file.stat().st_size for file in files) / N_FRAMES
    memory = (size - disk) * MILLION / 1e9
    row = f"{way:19} {size:7,.0f} {size / FRAME_BYTES:7.2f} {memory:10.1f}"
    print(f"{row} {disk * MILLION / 1e9:8.1f}")
del storage
assert size == disk < 1.02 * FRAME_BYTES

# %%
# Copy this, too. For a buffer larger than memory, make ``storage`` a ``LazyMemmapStorage`` with a
# ``scratch_dir`` (:doc:`/tutorials/memory/buffers_on_disk`). The transform reads it in the same
# way. :claim:`stacked-rows-from-other-storages`

from torchrl.envs.transforms import Transform

TRAJ_KEY = ("collector", "traj_ids")


class StackFrames(Transform):
    """Builds "stack" and ("next", "stack") from a storage with one frame in each row."""

    def __init__(self, storage, n_stacked=4, pixels="pixels", stack="stack"):
        super().__init__()
        self.storage, self.n_stacked = storage, n_stacked
        self.pixels, self.stack = pixels, stack

    def _inv_call(self, rows):  # when you extend the buffer
        return rows.exclude(self.stack, ("next", self.stack), ("next", self.pixels))

    def forward(self, rows):  # when you sample
        rows = rows.copy()  # those of buffer[:] are the storage itself
        step = rows["step_count"]
        back = self.steps_back(rows).minimum(step)  # the first frame again
        places = (rows["index"].unsqueeze(-1) - back) % len(self.storage)
        near = self.storage.get(places.flatten()).view(places.shape)
        found = near[TRAJ_KEY] == rows[TRAJ_KEY].unsqueeze(-1)
        found &= near["step_count"].squeeze(-1) == step - back
        frames = near[self.pixels]
        rows[self.stack] = frames[:, : self.n_stacked].flatten(1, 2)
        rows["next", self.stack] = frames[:, -self.n_stacked :].flatten(1, 2)
        terminated = rows["next", "terminated"].squeeze(-1)
        rows["complete"] = found[:, :-1].all(-1) & (found[:, -1] | terminated)
        return rows

    def steps_back(self, rows):
        """From each row to its frames; -1 is the next frame."""
        device = rows["step_count"].device
        return torch.arange(self.n_stacked - 1, -2, -1, device=device)


limits = {"frames_per_batch": 100, "total_frames": N_FRAMES}
collector = Collector(make_env(), policy=None, compact_obs=True, **limits)
storage = LazyTensorStorage(CAPACITY_ROWS)
transform = StackFrames(storage)
buffer = TensorDictReplayBuffer(storage=storage, transform=transform, batch_size=256)
for batch in collector:
    buffer.extend(batch)
    sample = buffer.sample()
    sample = sample[sample["complete"]]  # a batch at most: train on these
collector.shutdown()

# %%
# ``compact_obs`` drops the next observations, and the transform drops the stacks when you extend
# the buffer. When you sample, the transform reads the frames before each row and the frame after
# it.
#
# * **At the start of an episode** the transform repeats the first frame, as ``CatFrames`` does by
#   default.
# * **Where episodes meet** the transform compares the trajectory id and the step count of each
#   frame with those of the row. If a frame is of another episode or was overwritten, the row is
#   incomplete.
# * **Drop incomplete rows:** the last row of an episode that the time limit cut off, the newest
#   row, and the oldest rows of a full buffer. Terminated rows stay. The last frame of their
#   next stack is of another episode, but no loss bootstraps from that stack.
#
# Scale the pixels inside the network. The buffer draws single rows, so priorities work, too
# (``TensorDictPrioritizedReplayBuffer``). :claim:`stacked-rows-take-priorities` With several
# environments or workers, extend with ``batch.reshape(-1)``. Four rows of each environment in a
# batch can then be incomplete, the first three and the last one, so collect long batches.
# :claim:`stacked-rows-of-batched-environments`
#
# Every stack is right
# --------------------
#
# The buffer above has overwritten its oldest rows. Compare its stacks with those that the policy
# saw, and with the episode and the step drawn into each frame.
#
# .. fold:: Read what is drawn into the frames


def right_stacks(rows, stack="stack", later=0):
    """Rows whose stack ends with their own step, and repeats only the first frame."""
    episode, step = rows["pixels"][..., 0, :2].unbind(-1)
    drawn_episode, drawn_step = rows[stack][..., 0, :2].unbind(-1)
    expected = (step.int() + later + torch.arange(-3, 1)).clamp(min=0)
    return ((drawn_step == expected) & (drawn_episode == episode)).all(-1)


rows = buffer[:]
complete, terminated = rows["complete"], rows["next", "terminated"].squeeze(-1)
overwritten = N_FRAMES - CAPACITY_ROWS  # in the storage, the newest rows come first
policy_saw = full["stack"][overwritten:].roll(overwritten, 0)
cut = rows["next", "truncated"].squeeze(-1) & ~terminated

# %%

assert torch.equal(rows["stack"][complete], policy_saw[complete])
assert right_stacks(rows)[complete].all()
assert right_stacks(rows, ("next", "stack"), later=1)[complete & ~terminated].all()
assert not complete[cut].any()
print(f"{len(rows)} rows, {int(complete.sum())} of them complete, with right stacks,")
print(f"{int(cut.sum())} cut off, {int((~complete & ~cut).sum())} newest or oldest")

# %%
# Bytes of a transition
# ---------------------
#
# A step adds one frame, so without compression one frame per transition is the limit. The buffer
# above:

row_bytes = storage.get(slice(None)).bytes() / CAPACITY_ROWS
print(f"{row_bytes:,.0f} bytes, {row_bytes / FRAME_BYTES:.2f} frames")
assert row_bytes == size

# %%
# .. _how-to-pixel-replay-atari:
#
# Atari, and frames in color
# --------------------------
#
# By default, gymnasium's ``AtariPreprocessing`` repeats each action for four frames, and raises
# unless you switch off the repeats of the game itself:
#
# .. literalinclude:: ../../benchmarks/suites/bench_pixel_replay.py
#    :start-at: gymnasium.register_envs(ale_py)
#    :end-at: AtariPreprocessing(gymnasium.make
#    :dedent:
#
# Its frames have the shape ``(84, 84)``, or ``(84, 84, 3)`` with ``grayscale_obs=False``.
# :claim:`atari-preprocessing-frames` Pass the environment to ``channels_first``, and the result to
# ``GymWrapper``. In color, a row takes nearly three times the bytes.


def channels_first(env):
    """The frames of *env* as ``make_env`` expects them."""
    height, width, *channels = env.observation_space.shape
    shape = (*(channels or [1]), height, width)
    space = gym.spaces.Dict(pixels=gym.spaces.Box(0, 255, shape, np.uint8))

    def frame(image):
        return {"pixels": image.reshape(height, width, -1).transpose(2, 0, 1)}

    return gym.wrappers.TransformObservation(env, frame, space)


# %%
# .. fold:: Blocks in color, in the form of AtariPreprocessing


class Colored(gym.ObservationWrapper):
    observation_space = gym.spaces.Box(0, 255, (84, 84, 3), np.uint8)

    def observation(self, seen):
        return np.stack([seen["pixels"][0]] * 3, axis=-1)


# %%

color = collect(channels_first(Colored(Blocks())))
storage = LazyTensorStorage(N_FRAMES)
buffer = TensorDictReplayBuffer(storage=storage, transform=StackFrames(storage))
buffer.extend(color)
rows = buffer[:]
assert torch.equal(rows["stack"], color["stack"])
n_bytes = storage.get(slice(None)).bytes() / N_FRAMES
print(f"a stack of {tuple(rows['stack'].shape[1:])}, {n_bytes:,.0f} bytes a row")
assert 2.9 < n_bytes / row_bytes < 3

# %%
# N-step returns
# --------------
#
# ``MultiStepTransform`` sums rewards, and writes their number under ``"steps_to_next_obs"``
# (:doc:`n_step_with_priorities`). The next stack has to end that many steps later. Call the
# transform before you flatten a batch, because it needs its time dimension:

from torchrl.envs import MultiStepTransform


class NStepFrames(StackFrames):
    """Builds the next stack at the end of an n-step return."""

    def steps_back(self, rows):
        own = super().steps_back(rows)[:-1]
        later = own - rows["steps_to_next_obs"].unsqueeze(-1)
        return torch.cat((own.expand_as(later), later), -1)


n_step = MultiStepTransform(n_steps=3, gamma=0.99, done_keys=["done", "truncated"])
storage = LazyTensorStorage(N_FRAMES)
buffer = TensorDictReplayBuffer(storage=storage, transform=NStepFrames(storage))
for batch in full.split(100):  # in your loop, those of the collector
    buffer.extend(n_step.inv(batch).reshape(-1))
rows = buffer[:]
last = torch.arange(len(rows)) + rows["steps_to_next_obs"] - 1
complete, terminated = rows["complete"], rows["next", "terminated"].squeeze(-1)
kept = complete & ~terminated
assert torch.equal(rows["next", "stack"][kept], full["next", "stack"][last[kept]])
assert torch.equal(rows["stack"], full["stack"][: len(rows)])
ends = full["next", "truncated"].squeeze(-1) & ~full["next", "terminated"].squeeze(-1)
cut = torch.stack([ends.roll(-later) for later in range(3)]).any(0)[: len(rows)]
assert cut.any()
assert not complete[cut].any()
print(f"{len(rows)} rows, {int(complete.sum())} complete", end=", ")
print(f"{int(kept.sum())} of them with the stack of three steps later")

# %%
# If a time limit cuts an episode off, its last three rows are incomplete, instead of one.
#
# The method of CatFrames
# -----------------------
#
# :source:`torchrl.envs.transforms.CatFrames.make_rb_transform_and_sampler` draws slices as long as
# a stack, and keeps the last row of each. Its stacks are right, too. But each row needs ``("next",
# "pixels")``, a second frame, so this method excludes ``compact_obs``. The buffer has to be a plain
# ``ReplayBuffer`` without priorities, and its ``batch_size`` is ignored.
# :claim:`catframes-method-demands` It also marks each padded pixel, so a sample writes many
# times the bytes that the transform above writes. :claim:`catframes-sample-writes-more`

from torchrl.data import ReplayBuffer, SliceSampler

cat = CatFrames(4, -3, in_keys=["pixels"], out_keys=["stack"], reset_key="_reset")
transform, sampler = cat.make_rb_transform_and_sampler(batch_size=256)
parts = {"sampler": sampler, "transform": transform, "batch_size": 256}
library = ReplayBuffer(storage=LazyTensorStorage(N_FRAMES), **parts)
library.extend(full)
warnings.filterwarnings("ignore", message="The last dimension of the tensordict")
sample = library.sample()
assert right_stacks(sample).all()
assert right_stacks(sample, ("next", "stack"), later=1).all()

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    Training only on these samples. The first rows of an episode are never drawn, and neither are
#    :doc:`short episodes </tutorials/debugging/short_episodes_are_never_replayed>`. The sampler
#    draws an episode and then a slice of it, so the rows of the remaining short episodes are drawn
#    too often.

assert sample["step_count"].min() == 3
for name, rows in {"stored": full, "sampled": sample}.items():
    early, ends = (rows["step_count"] < 3).float(), rows["next", "done"].float()
    print(f"{name:8}{early.mean():.0%} first steps, {ends.mean():.0%} ends")

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    ``CatFrames`` on longer slices, keeping every row. It treats the start of each slice as the
#    start of an episode, and repeats that frame. As a transform of the buffer, it takes frames of
#    the slice before instead: :ref:`symptom-stacked-frames-of-different-episodes`.


def draw_slices(rows, slice_len):
    sampler = SliceSampler(slice_len=slice_len, traj_key=TRAJ_KEY)
    storage = LazyTensorStorage(N_FRAMES)
    slices = TensorDictReplayBuffer(storage=storage, sampler=sampler)
    slices.extend(rows)
    sample = slices.sample(128 * slice_len).reshape(128, slice_len)
    sample.names = [None, "time"]
    return sample


wrong = ~right_stacks(cat(draw_slices(full.exclude(*STACKS), 8)))
assert wrong[:, :3].sum() > 0 == wrong[:, 3:].sum()
print(f"{wrong.float().mean():.0%} of the stacks are wrong")

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    Slices of five rows with one frame each, where the fifth frame completes the next stack. After
#    the last transition of an episode there is no fifth frame, so this transition is never drawn,
#    like :ref:`short episodes <symptom-short-episodes-are-never-replayed>`. Values then never learn
#    that episodes end.

ends = ("next", "terminated")
drawn = draw_slices(full.exclude(*STACKS, ("next", "pixels")), 5)[:, -2]
n_stored, n_drawn = int(full[ends].sum()), int(drawn[ends].sum())
assert n_stored > 0 == n_drawn
print(f"terminated: {n_stored} stored, {n_drawn} drawn")

# %%
# Below one frame: compression
# ----------------------------
#
# This storage replaces ``LazyTensorStorage`` and compresses only the pixels. The stacks stay the
# same. :claim:`stacked-rows-from-compressed-pixels` The saving depends on the game, and ``dumps``
# does not save the frames. :claim:`compressed-pixels-are-not-dumped`
#
# .. dropdown:: A storage that compresses the pixels
#
#    It needs ``import zlib``, and the names of the code to copy.
#
#    .. literalinclude:: ../../benchmarks/suites/bench_pixel_replay.py
#       :pyobject: CompressedPixels
#
# .. dropdown:: What it saves, by game
#
#    .. record-table:: pixel_replay@cpu
#       :rows: bytes-*-frame-compressed
#       :metrics: bytes_per_row frames_per_row
#       :caption: A compressed frame of random play, by game and rows of the buffer
#
# Do not use ``CompressedListStorage`` for single frames: its Python objects need more memory than a
# frame. :claim:`compressed-list-larger-than-frames`
#
# .. dropdown:: By how much the memory of a process grew
#
#    .. record-table:: pixel_replay@cpu
#       :rows: memory-100k-* memory-5k-frame-list memory-5k-frames memory-5k-sb3* memory-5k-stacks
#       :metrics: anonymous_per_row
#       :caption: A transition of Pong, by the way of storing it and the rows of the buffer
#
# Time of a sample
# ----------------
#
# The method of ``CatFrames`` takes :measured:`pixel_sampling@cpu:sample-frames:time_vs_stacks`
# times as long as stored stacks, and far longer than every other way.
# :claim:`catframes-samples-far-slower` Stable-Baselines3 is faster than all these ways: its buffer
# is a few arrays, and it indexes each of them once. :claim:`sb3-samples-stacks-faster` For faster
# sampling in TorchRL, see :ref:`performance-replay_buffers-pixels`.
#
# .. dropdown:: Times, by how the frames are stored
#
#    .. record-table:: pixel_sampling@cpu
#       :rows: sample-stacks sample-frame sample-frame-* sample-frames sample-sb3*
#       :metrics: sample_time time_vs_stacks
#       :caption: A sample of 32 transitions of Pong, from a buffer of 5,000
