"""The memory plan of one's own collector and replay buffer, from what they say of themselves."""

from __future__ import annotations

from typing import NamedTuple

from torchrl_doctor.planner import Part, total
from torchrl_doctor.private import private
from torchrl_doctor.savings import in_bytes

STORAGE_KINDS = {
    "LazyTensorStorage": "tensor",
    "LazyMemmapStorage": "memmap",
    "ListStorage": "list",
    "CompressedListStorage": "compressed",
}
LISTS = ("list", "compressed")
WITHOUT_COMPRESSION = "without compression: put some rows in to see how much it saves"
WITHOUT_OBJECTS = "without the Python objects of the list, which take most where rows are small"
MOST_READ = 1_000  # compressed rows
PLAN_LINES = {
    "collector_process": "main process, while collecting",
    "collector_shared": "shared memory of the workers",
    "stored_row": "row of the buffer",
    "buffer_process": "buffer in process memory",
    "buffer_shared": "buffer in shared memory",
    "buffer_disk": "buffer on disk",
}


class OwnPlan(NamedTuple):
    """Bytes of a row by key, bytes of `planner.TOTALS`, and what the plan leaves out."""

    parts: list
    totals: dict
    notes: list

    def __str__(self):
        width = max(
            len(text) for text in [*PLAN_LINES.values(), *(part.key for part in self.parts)]
        )
        lines = [f"{part.key:{width}}  {in_bytes(part.in_batch):>8}" for part in self.parts]
        lines.append(f"{'row of a batch':{width}}  {in_bytes(self.totals['row']):>8}")
        for name, title in PLAN_LINES.items():
            if self.totals.get(name):
                lines.append(f"{title:{width}}  {in_bytes(self.totals[name]):>8}")
        return "\n".join([*lines, *self.notes])


def rows_of(collector, batch):
    """Data with the keys of a row, or None; and a note where it lacks some."""
    if batch is not None:
        return batch, None
    made = private(collector, "_final_rollout", None) if collector is not None else None
    if made is not None:
        return made, None
    env = getattr(collector, "env", None)
    if env is None:
        return None, None
    return env.fake_tensordict(), "without what the policy adds: give a batch for it"


def bytes_of(item):
    """Bytes of the tensors of an item of a list."""
    if isinstance(item, dict):
        return sum(bytes_of(value) for value in item.values())
    return item.bytes() if hasattr(item, "bytes") else getattr(item, "nbytes", 0)


def bytes_of_compressed_row(items):
    """The mean over at most some of the rows, from the whole list; None where there is none."""
    items = [item for item in items[:: 1 + len(items) // MOST_READ] if item is not None]
    return sum(map(bytes_of, items)) / len(items) if items else None


def plan(collector=None, replay_buffer=None, batch=None):
    """How much memory the collector and the buffer need, from one row and the storage.

    The row is that of *batch*, else of the collector, else the fake data of its environment.
    Nothing is collected or written. ValueError where neither a row nor a filled buffer is given.
    """
    rows, note = rows_of(collector, batch)
    storage = getattr(replay_buffer, "storage", None)
    notes = [note] if note else []
    inputs, parts = {"index": 0, "tensor": 0, "rows": 0}, []
    if rows is not None:
        for key, value in rows.items(True, True):
            name = key if isinstance(key, str) else ".".join(key)
            size = value.nbytes / max(rows.numel(), 1)
            parts.append(Part(name, size, size))
    inputs["frames_per_batch"] = getattr(collector, "requested_frames_per_batch", 0)
    inputs["workers"] = getattr(collector, "num_workers", 1)
    if storage is not None:
        kind = STORAGE_KINDS.get(type(storage).__name__)
        notes += [] if kind else [f"no formula for {type(storage).__name__}"]
        inputs["rows"] = storage.max_size
        inputs |= {kind: 1} if kind else {}
        inputs["scratch"] = int(getattr(storage, "scratch_dir", None) is not None)
        inner, stored = private(storage, "_storage", None), None
        if getattr(storage, "initialized", False) and hasattr(inner, "items"):
            n_rows = max(inner.numel(), 1)
            stored = sum(value.nbytes for value in inner.values(True, True)) / n_rows
        elif kind == "compressed":
            stored = bytes_of_compressed_row(inner or [])
            notes += [] if stored else [WITHOUT_COMPRESSION]
        if kind in LISTS:
            notes.append(WITHOUT_OBJECTS)
        if stored is not None:
            parts = parts or [Part("all keys", 0, 0)]
            parts = [part._replace(in_buffer=0) for part in parts]
            parts.append(Part("stored", 0, stored))
        else:
            inputs["index"] = int("TensorDict" in type(replay_buffer).__name__)
    if not parts:
        raise ValueError("give a batch, a Collector, or a buffer that holds rows")
    totals = total(parts, **inputs)
    return OwnPlan([part for part in parts if part.in_batch], totals, notes)
