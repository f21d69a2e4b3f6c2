"""Series of numbers that a training loop has logged."""

from __future__ import annotations

import csv
import math
import re
import struct
from pathlib import Path

MOST_POINTS = 4096  # of one series: beyond that every other point goes


class Series:
    """Values by step under the *name* that the reader gave; `kind` is what they are, or None."""

    def __init__(self, name, values=(), steps=None):
        self.name = name
        self.kind = kind_of(name)
        self.values = [float(value) for value in values]
        self.steps = list(range(len(self.values)) if steps is None else steps)
        self.every, self.seen = 1, 0

    def __len__(self):
        return len(self.values)

    def add(self, step, value):
        """Add a point, or leave it out, so that the series stays below MOST_POINTS."""
        self.seen += 1
        if self.seen % self.every:
            return
        self.steps.append(step)
        self.values.append(float(value))
        if len(self.values) >= MOST_POINTS:
            del self.steps[::2], self.values[::2]
            self.every *= 2

    @property
    def finite(self):
        return [value for value in self.values if math.isfinite(value)]


class Log:
    """Several `Series`."""

    def __init__(self, series=()):
        self.series = list(series)

    def of(self, *kinds):
        """The series of these kinds that have values."""
        return [one for one in self.series if one.kind in kinds and len(one)]


def kind_of(name):
    """What a series of this name is, by the spellings of common loggers; None for others."""
    text = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    words = set(text.split("_"))
    if words & {"coef", "coeff", "coefficient", "target", "std", "min", "max", "scale", "lr"}:
        return None
    if "loss" in words or "loss" in text.rpartition("losses_")[2]:
        if words & {"entropy", "alpha"}:
            return None
        of_values = "value" in text or words & {"critic", "vf", "td", "q", "qf", "qf1", "qf2", "v"}
        return "value loss" if of_values else "loss"
    for kind, spellings in SPELLINGS.items():
        if any(re.search(rf"(^|_){one}(_|$)", text) for one in spellings):
            return f"evaluation {kind}" if kind == "return" and "eval" in text else kind
    return None


SPELLINGS = {
    "value loss": ("td_error", "value_error"),
    "explained variance": ("explained_variance", "explained_var"),
    "clip fraction": ("clip_fraction", "clipfrac", "clip_frac", "clipfracs"),
    "kl": ("kl", "approx_kl", "kl_approx", "kl_div"),
    "entropy": ("entropy",),
    "gradient norm": ("grad_norm", "gradient_norm", "gradnorm", "grad_norms"),
    "throughput": ("fps", "sps", "frames_per_second", "steps_per_second", "throughput"),
    "return": ("return", "returns", "episodic_return", "reward", "rewards", "ep_rew_mean", "score"),
}


STEPS = ("step", "steps", "global_step", "frames", "timesteps", "total_timesteps", "iteration")


class UnreadableError(Exception):
    """Why a log cannot be read; the message is for the reader."""


def read_log(source):
    """The `Log` in a dictionary of series, a CSV file, or a folder of CSV files or TensorBoard's.

    Raises UnreadableError where there is nothing that can be read.
    """
    if isinstance(source, Log):
        return source
    if hasattr(source, "items"):
        found = [one for name, values in source.items() if (one := series_of(str(name), values))]
    else:
        found = list(series_in(Path(source)))
    if not found:
        raise UnreadableError("it holds no series of numbers")
    return Log(found)


def series_of(name, values):
    """The series of a list, an array or a tensor of numbers; None for anything else."""
    if isinstance(values, Series):
        return values
    values = values.tolist() if hasattr(values, "tolist") else values
    try:
        return Series(name, values)
    except (TypeError, ValueError):  # not numbers
        return None


def series_in(path):
    """The series of a file or a folder."""
    if path.is_file() and path.suffix == ".csv":
        yield from series_of_table(path)
    elif path.is_file() and "tfevents" not in path.name:
        raise UnreadableError(f"{path.name} is no CSV file; give a dictionary of series")
    elif any(path.rglob("*tfevents*")) or path.is_file():
        yield from series_of_events(path)
    elif path.is_dir():
        for one in sorted(path.rglob("*.csv")):
            yield from series_of_table(one)
    else:
        raise UnreadableError(f"there is no {path.name}")


def series_of_table(path):
    """The columns of a CSV file. Without a header it has steps and values, as `CSVLogger` writes.

    A cell without a number is no point.
    """
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file) if row and not row[0].startswith("#")]
    if not rows:
        return
    header = [cell.strip() for cell in rows.pop(0)] if number_in(rows[0][0]) is None else None
    names = header or ["step", path.stem]
    steps = next((place for place, name in enumerate(names) if name.lower() in STEPS), None)
    for place, name in enumerate(names):
        cells = [(row, number_in(row[place])) for row in rows if place < len(row)]
        points = [(row, value) for row, value in cells if value is not None]
        if place != steps and points:
            at = [
                n if steps is None else number_in(row[steps]) for n, (row, _) in enumerate(points)
            ]
            yield Series(name, [value for _, value in points], at)


def number_in(text):
    try:
        return float(text)
    except ValueError:
        return None


def series_of_events(path):
    """The scalars of TensorBoard's event files, read without TensorBoard."""
    points = {}
    for file in [path] if path.is_file() else sorted(path.rglob("*tfevents*")):
        for step, tag, value in scalars_of(file.read_bytes()):
            points.setdefault((file.parent, tag), []).append((step, value))
    for (_, tag), found in sorted(points.items()):
        yield Series(tag, [value for _, value in found], [step for step, _ in found])


def scalars_of(data):
    """Step, tag and value of each scalar in an event file; a last record may be half written.

    A record is its length in 8 bytes, 4 bytes of checksum, a message ``Event``, and 4 more bytes.
    """
    place = 0
    while place + 12 <= len(data):
        (size,) = struct.unpack_from("<Q", data, place)
        event = data[place + 12 : place + 12 + size]
        place += size + 16
        if place > len(data):
            return
        fields = dict(fields_of(event))
        step = fields.get(2, 0)
        for number, value in fields_of(fields.get(5, b"")):  # the values of a summary
            parts = dict(fields_of(value)) if number == 1 else {}
            tensor = dict(fields_of(parts.get(8, b"")))
            if tensor.get(1) == FLOAT:
                parts.setdefault(2, tensor.get(4, tensor.get(5)))
            if 1 in parts and len(parts.get(2) or b"") == 4:
                yield step, parts[1].decode(), struct.unpack("<f", parts[2])[0]


FLOAT = 1  # the type of a tensor


def fields_of(message):
    """The number and the value of each field of a protocol buffer: whole numbers, or bytes."""
    place = 0

    def number():
        nonlocal place
        found = shift = 0
        while True:
            byte = message[place]
            place += 1
            found |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return found

    while place < len(message):
        field, kind = divmod(number(), 8)
        if kind == 0:
            yield field, number()
            continue
        size = {1: 8, 5: 4}.get(kind) or number()
        yield field, message[place : place + size]
        place += size
