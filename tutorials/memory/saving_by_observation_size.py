"""
Saving by observation size
==========================

With large observations, ``Collector(compact_obs=True)`` saves nearly one half of a rollout, and
``NextObservationDelta`` nearly one quarter if they are ``float32``. With small observations, both
save less.
"""

# %%
# .. fold:: Seed, device and log level

import gymnasium as gym
import matplotlib.pyplot as plt
import numpy as np
import torch
import torchrl
from torchrl.collectors import Collector
from torchrl.envs import GymEnv, GymWrapper, TransformedEnv
from torchrl.envs.transforms import (
    Compose,
    InitTracker,
    NextObservationDelta,
    StepCounter,
)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SEED = 0
torch.set_num_threads(1)
torchrl.logger.setLevel("ERROR")  # it announces each storage

# %%
# .. list-table:: What to expect
#    :header-rows: 1
#
#    * - Your observation
#      - ``compact_obs``
#      - ``NextObservationDelta``
#    * - four floats, as CartPole's
#      - a quarter: look at the other entries first
#      - half as much
#    * - hundreds of floats and more
#      - nearly one half
#      - nearly one quarter
#    * - pixels as ``uint8``
#      - nearly one half
#      - nothing
#    * - floats whose change in one step is beyond the range of ``float16``
#      - as for other floats
#      - infinite values: scale first
#
# :doc:`memory_efficient_rl` introduces both options. To measure ``compact_obs`` on your
# environment, copy these functions. Four frames are enough: bytes grow in proportion to frames.


def collect(env, frames, **options):
    """One batch of random actions."""
    collector = Collector(
        env,
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


def saving_of_compact_obs(make_env, frames=4):
    full = collect(make_env(), frames)
    compact = collect(make_env(), frames, compact_obs=True)
    return 1 - compact.bytes() / full.bytes()


print(f"CartPole: {saving_of_compact_obs(lambda: GymEnv('CartPole-v1')):.1%}")

# %%
# How the saving grows with the observation
# -----------------------------------------
#
# .. redirect-from:: tutorials/memory/saving_by_observation_size.html#the-curve
#
# A frame holds two observations, ``o`` bytes each, and ``r`` bytes of everything else.
# ``compact_obs`` saves ``o / (2 * o + r)``, which approaches one half from below. The delta has
# half the width of a ``float32`` observation, so it saves half as much.
#
# .. fold:: An environment with random observations of a given shape


class SyntheticEnv(gym.Env):
    """Random observations of a given shape and type; ``scale`` applies to floats."""

    def __init__(self, shape, dtype, scale):
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


def seeded(env, *transforms):
    env.set_seed(SEED)
    return TransformedEnv(env, Compose(*transforms)) if transforms else env


def synthetic(shape, dtype=np.float32, *transforms, scale=1.0):
    return seeded(GymWrapper(SyntheticEnv(shape, dtype, scale)), *transforms)


# %%
# The saving follows the formula exactly:
#
# .. fold:: Collect observations of five sizes, with both options and without

FEW_FRAMES = 4
PIXELS = (4, 84, 84)
OBSERVATIONS = [
    ((4,), np.float32),
    ((64,), np.float32),
    ((1024,), np.float32),
    ((84, 84), np.uint8),
    (PIXELS, np.uint8),
]
REST_BYTES = 34  # one-hot action 16, trajectory id 8, reward 4, end flags 6


def frame_bytes(env, **options):
    return collect(env, FEW_FRAMES, **options).bytes() // FEW_FRAMES


sizes, compact_savings, delta_savings = [], [], []
print("observation     its bytes  bytes a frame  compact_obs   delta")
for shape, dtype in OBSERVATIONS:
    full = frame_bytes(synthetic(shape, dtype))
    compact = frame_bytes(synthetic(shape, dtype), compact_obs=True)
    delta = frame_bytes(synthetic(shape, dtype, NextObservationDelta()))
    o = int(np.prod(shape)) * np.dtype(dtype).itemsize
    assert full == 2 * o + REST_BYTES
    assert full - compact == o
    assert full - delta == (o / 2 if dtype == np.float32 else 0)
    sizes.append(o)
    compact_savings.append(1 - compact / full)
    delta_savings.append(1 - delta / full)
    name = f"{np.dtype(dtype).name} {'x'.join(map(str, shape))}"
    shares = f"{compact_savings[-1]:12.2%} {delta_savings[-1]:7.2%}"
    print(f"{name:14} {o:10,} {full:14,} {shares}")

# %%
# .. fold:: Draw the curve

SAVING_LIMIT = 0.5
fig, ax = plt.subplots(layout="constrained")
o = np.geomspace(min(sizes), max(sizes), 100)
curve = 100 * o / (2 * o + REST_BYTES)
ax.axhline(100 * SAVING_LIMIT, color="C8", linestyle="--")
ax.text(sizes[0], 100 * SAVING_LIMIT + 1, "limit", va="bottom", color="C8")
ax.plot(o, curve, color="C0")
ax.plot(o, curve / 2, color="C1")
ax.plot(sizes, 100 * np.array(compact_savings), "o", color="C0")
ax.plot(sizes, 100 * np.array(delta_savings), "s", color="C1")
ax.text(450, 43, "compact_obs", color="C0", va="top")
ax.text(450, 20, "delta on floats", color="C1", va="top")
ax.text(5000, 4, "delta on bytes", color="C1", va="bottom", ha="center")
ax.set_xscale("log")
ax.set(xlabel="size of one observation [bytes]", ylabel="saving [% of the rollout]")
ax.set_ylim(-3, 58)
ax.set_title("Lines: the formula. Points: measured")
fig.set_label(
    "The saving of compact_obs rises with the size of an observation, along the formula, to "
    f"{compact_savings[-1]:.2%}, just below its limit of one half. The delta saves half of that "
    "for floats, and nothing for unsigned bytes."
)

# %%
# Stacked frames also repeat pixels *inside* an observation, and neither option removes these.
# :doc:`/how-to/pixel_replay` stores each frame once.
#
# What else is in a frame
# -----------------------
#
# With a small observation, the other entries matter. On CartPole:
#
# * ``track_traj_ids=False`` saves as much as the delta. But then the slice sampler and the
#   reconstructor have no ``traj_key`` to read, only end flags and step counts.
# * The delta with ``compact_obs`` saves no more than the delta alone, which has already replaced
#   the next observation.
# * The markers, step count and ``is_init``, cost bytes. ``compact_obs`` drops their copies too,
#   because the collector counts them as observations, but they still cost more than half of what it
#   saves.
#
# .. fold:: Collect CartPole in seven configurations

N_FRAMES, TIME_LIMIT_STEPS = 200, 12


def cartpole(*transforms):
    return seeded(GymEnv("CartPole-v1"), *transforms)


def limited(*transforms):
    """CartPole with the step count and ``is_init``."""
    return cartpole(StepCounter(max_steps=TIME_LIMIT_STEPS), InitTracker(), *transforms)


batches = {
    "default": collect(cartpole(), N_FRAMES),
    "compact_obs": collect(cartpole(), N_FRAMES, compact_obs=True),
    "delta": collect(cartpole(NextObservationDelta()), N_FRAMES),
    "delta and compact_obs": collect(
        cartpole(NextObservationDelta()), N_FRAMES, compact_obs=True
    ),
    "no trajectory ids": collect(cartpole(), N_FRAMES, track_traj_ids=False),
    "markers": collect(limited(), N_FRAMES),
    "markers, compact_obs": collect(limited(), N_FRAMES, compact_obs=True),
}
PARTS = {
    "obs": [("observation",)],
    "next obs": [("next", "observation"), ("next", "delta", "observation")],
    "markers": [
        (*at, key) for at in ((), ("next",)) for key in ("step_count", "is_init")
    ],
}


def part_of(key):
    key = (key,) if isinstance(key, str) else key
    return next((part for part, keys in PARTS.items() if key in keys), "rest")


# %%
# The bytes of a frame by entry:
#
# .. fold:: Print the table

print(
    f"{'configuration':22}"
    + "".join(f"{p:>9}" for p in (*PARTS, "rest", "total", "saved"))
)
saved = {}
for name, batch in batches.items():
    n_bytes = dict.fromkeys((*PARTS, "rest"), 0)
    for key, entry in batch.items(include_nested=True, leaves_only=True):
        n_bytes[part_of(key)] += entry.nbytes // N_FRAMES
    total = sum(n_bytes.values())
    assert total * N_FRAMES == batch.bytes()
    saved[name] = 1 - batch.bytes() / batches["default"].bytes()
    cells = (*n_bytes.values(), total, f"{saved[name]:.1%}")
    print(f"{name:22}" + "".join(f"{cell:>9}" for cell in cells))

# %%
# .. _memory-delta-limits:
#
# Where the delta loses
# ---------------------
#
# The delta stores ``next - obs`` in ``delta_dtype``. Its rounding error is at most half a unit in
# the last place of the largest delta, the ``bound`` below; the sum is rounded once more, in the
# type of the observation. A delta in ``float32`` saves nothing on ``float32`` observations:

SHORT_FRAMES = 2 * TIME_LIMIT_STEPS  # at least one end of a trajectory
full = batches["markers"]
print("delta_dtype  bytes a frame    bound    error")
for dtype in (torch.float16, torch.bfloat16, torch.float32):
    env = limited(NextObservationDelta(delta_dtype=dtype))
    stored = collect(env, SHORT_FRAMES)
    restored = NextObservationDelta(in_keys=["observation"])(stored.clone())
    wanted = full["next", "observation"][:SHORT_FRAMES]
    error = (restored["next", "observation"] - wanted).abs().max().item()
    largest = stored["next", "delta", "observation"].abs().max().item()
    half_unit = torch.finfo(dtype).eps * 2 ** np.floor(np.log2(largest)) / 2
    rounding = torch.finfo(torch.float32).eps * full["observation"].abs().max().item()
    assert error <= half_unit + rounding
    n_bytes = stored.bytes() // SHORT_FRAMES
    print(f"{dtype!s:14} {n_bytes:12} {half_unit:10.0e} {error:8.0e}")

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    The delta on unsigned bytes, and on floats of a large scale. By default, the delta skips
#    integer keys, so it saves nothing on bytes. If you force it with ``in_keys``, the rollout
#    grows. A float that changes by more than ``delta_dtype`` can hold comes back infinite. None of
#    these raises an error.

forced_delta = NextObservationDelta(in_keys=["observation"])
plain = frame_bytes(synthetic(PIXELS, np.uint8))
silent = frame_bytes(synthetic(PIXELS, np.uint8, NextObservationDelta()))
forced = frame_bytes(synthetic(PIXELS, np.uint8, forced_delta))
assert silent == plain < forced
print(f"saving on pixels {1 - silent / plain:.0%}, forced {1 - forced / plain:.0%}")

LARGE_SCALE = 1e6
assert torch.finfo(torch.float16).max < LARGE_SCALE
wide_env = synthetic((8,), np.float32, NextObservationDelta(), scale=LARGE_SCALE)
wide = NextObservationDelta(in_keys=["observation"])(collect(wide_env, 16))
overflow = wide["next", "observation"].isinf()
assert overflow.any()
print(f"{int(overflow.sum())} of {overflow.numel()} restored values are infinite")

# %%
# Use the delta for normalized floats when the loss needs the last observation of a trajectory.
# Scale observations before you store their difference.
#
# Collection time and peak memory
# -------------------------------
#
# .. redirect-from::
#    tutorials/memory/saving_by_observation_size.html#time-and-the-peak-of-the-process
#
# While the collector stacks the rows, it holds the single rows as well. So ``compact_obs`` saves a
# smaller share of the peak memory of the process than of the batch.
#
# .. record-table:: memory_footprint@cpu
#    :rows: *-uint8-4x84x84
#    :metrics: saving resident_peak resident_saving
#    :caption: A batch of stacked pixels, and the process that collects it
#
# On CartPole, ``compact_obs`` alone hardly changes the time. ``StepCounter`` and the delta add
# collection time. ``NextStateReconstructor`` adds more to the sampling time than the delta does.
#
# .. dropdown:: Times of collecting and sampling CartPole, by configuration
#
#    .. record-table:: memory_footprint@cpu
#       :rows: *-cartpole
#       :metrics: bytes_per_frame collect_time sample_time restore_time
#       :caption: Collecting and sampling CartPole by configuration
#
# For what goes wrong with the delta, see :ref:`symptom-delta-saves-no-memory` and
# :ref:`symptom-restored-observations-infinite`; for rows that cannot be rebuilt, see
# :doc:`missing_next_observations`.
