"""How much memory a rollout, a replay buffer and a recurrent update need, before they exist.

The formulas are strings that Python and JavaScript read alike, so that the page of the manual
evaluates these and no copy of them. Names stand for numbers; a comparison counts as 0 or 1. All
results are bytes of tensors: the Python objects around them come on top.
"""

from __future__ import annotations

import re
from typing import NamedTuple

ITEMSIZES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
    "float64": 8,
}

# One entry of the specs that a reader writes, as in `pixels: uint8 4x84x84; action: int64 6`.
SPEC_ENTRY = r"^([A-Za-z_][\w.]*)\s*:\s*([a-z]+\d*)((?:[\sx,]+\d+)*)$"

# Entries that are no observation, by their key.
ROLES = {"action": "action", "reward": "reward"}

# Entries that come without being asked for: key, dtype, number of elements, kind, condition.
FIXED = [
    ("done", "bool", "1", "flag", "1"),
    ("terminated", "bool", "1", "flag", "1"),
    ("truncated", "bool", "1", "flag", "1"),
    ("step_count", "int64", "1", "marker", "step_count"),
    ("is_init", "bool", "1", "marker", "is_init"),
    ("h", "float32", "layers * hidden", "state", "recurrent"),
    ("c", "float32", "layers * hidden", "state", "recurrent * lstm"),
    ("features", "float32", "hidden", "policy", "recurrent"),
    ("collector.traj_ids", "int64", "1", "policy", "traj_ids"),
]

# What the formulas of an entry may use besides the inputs: elements, itemsize, dims, floating.
OF_ENTRY = {
    "stacked": "at_sampling * (dims >= 3) * (frames > 1)",
    "size": "elements * itemsize",
    "frame": "size / (1 + stacked * (frames - 1))",
    "next_kept": "(1 - compact) * (1 - delta * floating)",
    "half": "delta * floating * 2 / itemsize",
}

# The parts of a row by kind of entry: name, bytes in a batch, share of them that the buffer gets.
PARTS = {
    "observation": [
        ("{}", "frame", "1"),
        ("next.{}", "next_kept * frame", "1"),
        ("next.delta.{}", "half * frame", "1"),
        ("{}_stack", "stacked * size", "0"),
        ("next.{}_stack", "stacked * next_kept * size", "0"),
        ("next.delta.{}_stack", "stacked * half * size", "0"),
    ],
    "marker": [("{}", "size", "1"), ("next.{}", "(1 - compact) * size", "1")],
    "action": [("{}", "size", "1")],
    "policy": [("{}", "size", "1")],
    "reward": [("next.{}", "size", "1")],
    "flag": [("{}", "size", "1"), ("next.{}", "size", "1")],
    "state": [("{}", "size", "1"), ("next.{}", "size", "1")],
}

# Results in bytes: `row` is the sum over the parts in a batch, `kept` over those in the buffer.
TOTALS = {
    "batch": "frames_per_batch * row",
    "collector_process": "(3 - (workers > 1)) * batch",
    "collector_shared": "(workers > 1) * batch",
    "stored_row": "kept + index * 8",
    "stored": "rows * stored_row",
    "buffer_process": "(tensor + list + compressed * share) * stored",
    "buffer_process_most": "(tensor + list + compressed * share_most) * stored",
    "buffer_shared": "memmap * (1 - scratch) * stored",
    "buffer_disk": "memmap * scratch * stored",
    "scan_recomputed": (
        "recurrent * slices * length * ((inputs + 2 * (1 + lstm) * layers * hidden) * 4 + 2)"
    ),
    # The weights are kept as copies, whose size does not depend on the batch.
    "gru_scanned": (
        "recurrent * (1 - lstm) * (slices * length * ((inputs + 6 * layers * hidden) * 4 + 2)"
        " + 4 * hidden * (slices * layers + 3 * (inputs + hidden) + (layers - 1) * 6 * hidden))"
    ),
    # As well, and those that meet a hidden state once more for each step.
    "lstm_scanned": (
        "recurrent * lstm * (slices * length * (inputs + (12 * layers - 1) * hidden + 1) * 4"
        " + 16 * length * (2 * layers - 1) * hidden * hidden"
        " + 16 * hidden * (inputs + hidden + 2 + (layers - 1) * (2 * hidden + 2))"
        " + 8 * slices * layers * hidden)"
    ),
    # With resets, pad packs the pieces between them, so that no padding is kept.
    "gru_padded": (
        "recurrent * (1 - lstm) * (slices * length * (inputs + (8 * layers - 1) * hidden) * 4"
        " + (resets > 0) * slices * (1 + resets) * (4 * layers * hidden + 16))"
    ),
    # Without resets, the layers are those of oneDNN, which keeps a workspace of several buffers.
    "lstm_padded": (
        "recurrent * lstm * (slices * length * (inputs + layers * hidden) * 4"
        " + (resets > 0) * (slices * length * (7 * layers - 1) * hidden * 4"
        " + slices * (1 + resets) * (8 * layers * hidden + 24))"
        " + (resets == 0) * (16 * slices * layers * hidden"
        " + 3 * pages(8 * slices * (length + 1)"
        " * aligned(hidden + (inputs > hidden) * (inputs - hidden)))"
        " + 3 * (layers - 1) * pages(8 * slices * (length + 1) * aligned(hidden))"
        " + layers * (2 * pages(8 * slices * (length + 1) * hidden)"
        " + pages(4 * slices * length * aligned(4 * hidden))"
        " + pages(4 * slices * length * aligned(hidden)))))"
    ),
}

# Functions of x in the formulas: oneDNN rounds the bytes of a buffer and the numbers of its rows.
FUNCTIONS = {
    "pages": "x + (4096 - x % 4096) % 4096",
    "aligned": "x + (16 - x % 16) % 16 + 16 * ((x - 1) % 256 >= 240)",
}

DEFAULTS = {
    "frames": 1,
    "frames_per_batch": 1_000,
    "workers": 1,
    "rows": 100_000,
    "traj_ids": 1,
    "step_count": 0,
    "is_init": 0,
    "compact": 0,
    "delta": 0,
    "at_sampling": 0,
    "tensor": 1,
    "memmap": 0,
    "scratch": 0,
    "list": 0,
    "compressed": 0,
    "share": 1,
    "share_most": 1,
    "index": 1,
    "recurrent": 0,
    "lstm": 0,
    "layers": 1,
    "hidden": 64,
    "inputs": 4,
    "slices": 8,
    "length": 16,
    "resets": 0,
}

STORAGES = ("tensor", "memmap", "list", "compressed")

PRESETS = {
    "cartpole": {
        "title": "CartPole",
        "specs": "observation: float32 4; action: int64 2; reward: float32 1",
    },
    "halfcheetah": {
        "title": "HalfCheetah",
        "specs": "observation: float64 17; action: float32 6; reward: float32 1",
        "inputs": 17,
    },
    "atari": {
        "title": "Atari, 4 frames of 84 x 84",
        "specs": "pixels: uint8 4x84x84; action: int64 6; reward: float32 1",
        "frames": 4,
        "inputs": 512,
    },
    "rgb": {
        "title": "Color images of 64 x 64",
        "specs": "pixels: uint8 3x64x64; action: float32 6; reward: float32 1",
        "inputs": 512,
    },
}


class SpecError(ValueError):
    """Specs that cannot be read; the message says which entry, and what one looks like."""


class Part(NamedTuple):
    """A part of a row: its key, its bytes in a batch, and in the buffer."""

    key: str
    in_batch: float
    in_buffer: float


class Plan(NamedTuple):
    """The parts of a row, and the bytes of `TOTALS` by name."""

    parts: list
    totals: dict


KNOWN = {"__builtins__": {}}
KNOWN |= {name: eval(f"lambda x: {body}", dict(KNOWN)) for name, body in FUNCTIONS.items()}


def computed(formula, names):
    """The value of a formula of this module, where *names* stand for numbers."""
    return eval(formula, KNOWN, names)


def entries_of(specs):
    """Key, dtype and shape of each entry of specs that are written as text."""
    found = []
    for text in filter(None, (one.strip() for one in re.split(r"[;\n]", specs))):
        match = re.match(SPEC_ENTRY, text)
        if not match or match[2] not in ITEMSIZES:
            known = ", ".join(ITEMSIZES)
            raise SpecError(f"{text!r}: write observation: float32 4, with one of {known}")
        shape = [int(one) for one in re.findall(r"\d+", match[3])]
        found.append((match[1], match[2], shape))
    return found


def product(shape):
    """The number of elements."""
    number = 1
    for one in shape:
        number *= one
    return number


def parts_of_row(specs, policy="", drop=(), **inputs):
    """The parts of a row that are not empty, those of *drop* not in the buffer."""
    inputs = {**DEFAULTS, **inputs}
    entries = [
        (key, dtype, product(shape), len(shape), ROLES.get(key, "observation"))
        for key, dtype, shape in entries_of(specs)
    ]
    entries += [(key, dtype, product(s), len(s), "policy") for key, dtype, s in entries_of(policy)]
    for key, dtype, elements, kind, condition in FIXED:
        if computed(condition, inputs):
            entries.append((key, dtype, computed(elements, inputs), 1, kind))
    parts = []
    for key, dtype, elements, dims, kind in entries:
        floating = int("float" in dtype)
        names = {
            **inputs,
            "elements": elements,
            "itemsize": ITEMSIZES[dtype],
            "dims": dims,
            "floating": floating,
        }
        for name, formula in OF_ENTRY.items():
            names[name] = computed(formula, names)
        for name, *formulas in PARTS[kind]:
            n_bytes, stored = (computed(formula, names) for formula in formulas)
            name = name.format(key)
            if n_bytes:
                parts.append(Part(name, n_bytes, n_bytes * stored * (name not in drop)))
    return parts


def total(parts, **inputs):
    """The bytes of `TOTALS` for a row of these parts; *inputs* are those of `DEFAULTS`."""
    names = {**DEFAULTS, **inputs}
    names["row"] = sum(part.in_batch for part in parts)
    names["kept"] = sum(part.in_buffer for part in parts)
    totals = {name: names[name] for name in ("row", "kept")}
    for name, formula in TOTALS.items():
        totals[name] = names[name] = computed(formula, names)
    return totals


def planned(specs, policy="", drop=(), **inputs):
    """The plan of a pipeline with these specs; *inputs* are those of `DEFAULTS`."""
    parts = parts_of_row(specs, policy, drop, **inputs)
    return Plan(parts, total(parts, **inputs))
