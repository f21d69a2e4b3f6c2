"""What the objects certainly waste: time or memory, each with the knob of the performance pages.

None of them is a symptom: they have no verdict, and change no exit code.
"""

from __future__ import annotations

import functools
import inspect
from typing import NamedTuple

import torch

from torchrl_doctor.objects import batches_of, done_of, get_next, items_of, transforms_of

MANY_ROWS = 10_000
LARGE_ROW = 1_000  # bytes of one observation
LONG_ROW, FEW_ROWS = 128, 16  # steps in a row, and rows, at which the record shows a gain


class Saving(NamedTuple):
    """What is wasted, what to set, and the page with the record behind it."""

    slug: str
    title: str
    evidence: str
    page: str


SAVINGS = {}


def saving(slug, title, page):
    """Register a function of arguments of `diagnose`; it returns the evidence, or None."""

    def register(look):
        SAVINGS[slug] = (title, look, page.replace("#", ".html#"))
        return look

    return register


def in_bytes(number):
    """A number of bytes as people write it."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            return f"{number:.3g} {unit}"
        number /= 1000


@saving(
    "gae_loops_over_long_rows",
    "GAE loops over each step: set vectorized=True",
    "performance/advantages_and_losses#loop-or-vectorized",
)
def gae_loops_over_long_rows(value_estimator, batch):
    rows = batches_of(batch)[-1]
    gamma = torch.as_tensor(getattr(value_estimator, "gamma", torch.ones(2)))
    if getattr(value_estimator, "vectorized", True) or gamma.numel() > 1 or not rows.ndim:
        return None
    length, number = rows.shape[-1], rows.numel() // rows.shape[-1]
    if length < LONG_ROW or number > FEW_ROWS or int(done_of(rows).sum()) > number:
        return None
    return f"{number} rows of {length} steps, few of which end"


@saving(
    "rows_are_stacked_one_by_one",
    "A list of rows is stacked at each sample: use LazyTensorStorage",
    "performance/replay_buffers#storages",
)
def rows_are_stacked_one_by_one(replay_buffer):
    storage = replay_buffer.storage
    if type(storage).__name__ != "ListStorage" or len(replay_buffer) < 2:
        return None
    some = [storage.get(index) for index in (0, len(replay_buffer) // 2, len(replay_buffer) - 1)]
    kinds = [
        {key: (one[key].shape, one[key].dtype) for key in one.keys(True, True)}
        for one in some
        if hasattr(one, "keys") and hasattr(one, "batch_size")
    ]
    if len(kinds) < len(some) or any(one != kinds[0] for one in kinds):
        return None
    if any(kind == torch.uint8 and len(shape) > 1 for shape, kind in kinds[0].values()):
        return None  # a list samples such pixels faster
    return f"{len(replay_buffer)} tensordicts with the same entries and shapes"


@saving(
    "pixels_are_stored_as_floats",
    "Pixels are stored as floats: keep uint8, scale them in the network",
    "performance/checklist#performance-checklist-bytes",
)
def pixels_are_stored_as_floats(batch):
    rows = batches_of(batch)[-1].reshape(-1)
    for key, values in items_of(rows):
        if values.dtype == torch.float32 and values.ndim >= 3 and min(values.shape[-2:]) > 16:
            steps = values[:8] * 255
            if values.min() >= 0 and values.max() <= 1 and torch.allclose(steps, steps.round()):
                return f"{key} holds whole numbers of 1/255, in {in_bytes(values[0].nbytes)} a row"
    return None


@saving(
    "observations_are_stored_twice",
    "Each large observation is stored twice: compact_obs=True, and rebuild the next one",
    "tutorials/memory/memory_efficient_rl#memory-efficient-rl",
)
def observations_are_stored_twice(batch, replay_buffer):
    rows = batches_of(batch)[-1]
    if any("MultiStep" in type(one).__name__ for one in transforms_of(replay_buffer)):
        return None
    for key, values in items_of(rows):
        later = get_next(rows, key)
        if later is None or values[(0,) * rows.ndim].nbytes < LARGE_ROW or rows.shape[-1] < 2:
            continue
        go_on = ~done_of(rows)[..., :-1]
        now = values.movedim(rows.ndim - 1, 0)[1:]
        following = later.movedim(rows.ndim - 1, 0)[:-1]
        same = (now == following).flatten(rows.ndim).all(-1).movedim(0, -1)
        if go_on.any() and same[go_on].all():
            one = in_bytes(values[(0,) * rows.ndim].nbytes)
            return f"{key} takes {one} a row, and again under next"
    return None


@saving(
    "slices_are_searched_each_time",
    "Each sample searches the whole buffer for ends: cache_values=True",
    "performance/replay_buffers#knob-cache-values",
)
def slices_are_searched_each_time(replay_buffer):
    sampler = replay_buffer.sampler
    if getattr(sampler, "cache_values", True) or not hasattr(sampler, "slice_len"):
        return None
    if len(replay_buffer) < MANY_ROWS:
        return None
    return f"{len(replay_buffer)} rows; the cache holds until the next write"


def savings_of(examination):
    """What applies, for the objects that there are."""
    found = []
    for slug, (title, look, page) in SAVINGS.items():
        names = list(inspect.signature(look).parameters)
        given = {name: examination.given[name] for name in names if name in examination.given}
        if len(given) == len(names):
            evidence = examination.attempt(slug, functools.partial(look, **given))
            found += [Saving(slug, title, evidence, page)] if evidence else []
    return found
