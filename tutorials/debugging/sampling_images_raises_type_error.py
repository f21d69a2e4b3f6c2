"""
Sampling images raises TypeError: non-floating dtype
====================================================

You store images that were collected with ``compact_obs=True``, and the first ``sample()`` raises.
The message asks for a ``fill_value``. But with that value, no NaN marks a missing image.

:Subsystem: memory and storage
:Effect: loud
:Cause: ``NextStateReconstructor`` marks a missing next observation with NaN. Images are stored as
   bytes, which cannot be NaN.
:Fix: Convert the bytes to floats first: ``Compose(ToTensorImage(in_keys=["pixels"]),
   NextStateReconstructor(["pixels"], ...))``.
:Source: :source:`torchrl.envs.transforms.NextStateReconstructor.forward`
:Behind it: :doc:`/tutorials/memory/missing_next_observations`
:Threads: :thread:`3743`
:Also called: fill_value, uint8, pixels, compact_obs, Atari
"""

# %%
# Break it
# --------
#
# The rows are images of one trajectory, as a collector with ``compact_obs=True`` returns them.

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import Compose
from torchrl.envs.transforms import NextStateReconstructor, ToTensorImage

torch.manual_seed(0)
rows = TensorDict(
    {
        "pixels": torch.randint(256, (40, 8, 8, 3), dtype=torch.uint8),
        "step_count": torch.arange(40).unsqueeze(-1),
        "collector": {"traj_ids": torch.zeros(40, dtype=torch.int64)},
        "next": {"done": torch.zeros(40, 1, dtype=torch.bool)},
    },
    [40],
)


def sample_pictures(*before):
    rebuild = NextStateReconstructor(["pixels"], step_count_key="step_count")
    replay_buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(40),
        sampler=SliceSampler(slice_len=5, traj_key=("collector", "traj_ids")),
        transform=Compose(*before, rebuild),
        batch_size=20,
    )
    replay_buffer.extend(rows)
    try:
        return {"replay_buffer": replay_buffer, "sample": replay_buffer.sample()}
    except TypeError as error:
        return {"replay_buffer": replay_buffer, "error": error}


outcome = sample_pictures()
assert "error" in outcome, "no longer reproduces: bytes are rebuilt without a number"
error = outcome["error"]
print(f"{type(error).__name__}: {error}")
assert "has non-floating dtype" in str(error), "no longer reproduces: another message"

broken = {"error": error}

# %%
# Check it
# --------
#
# Compare the dtype in the storage with the one that the reconstructor gets.


def check(storage, *before):
    seen = Compose(*before)(storage.get(slice(0, 4)).clone())
    dtypes = storage.get(0)["pixels"].dtype, seen["pixels"].dtype
    return dict(zip(("stored", "rebuilt"), map(str, dtypes), strict=True))


unhealthy = check(outcome["replay_buffer"].storage)
print(unhealthy)
assert unhealthy["rebuilt"] == "torch.uint8", (
    "no longer reproduces: bytes become floats"
)

# %%
# Fix it
# ------
#
# The storage still holds bytes. Only the samples are floats, between zero and one.

to_floats = ToTensorImage(in_keys=["pixels"])
outcome = sample_pictures(to_floats)
assert "error" not in outcome, "the fix does not work: sampling still raises"
fixed = {"replay_buffer": outcome["replay_buffer"]}
healthy = check(fixed["replay_buffer"].storage, to_floats)
print(healthy)
missing = outcome["sample"]["next", "pixels"].isnan().flatten(1).any(1)
print({"rows": len(missing), "NaN": int(missing.sum())})
assert healthy == {"stored": "torch.uint8", "rebuilt": "torch.float32"}
assert 0 < missing.sum() <= 4, "the fix does not work: NaN inside of slices"
