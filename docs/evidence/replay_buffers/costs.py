"""Where the bytes and the time of a replay buffer are, and its traps; for the page on buffers.

``examine`` is what the page gives to readers. The buffers that it judges here are so one-sided that
the verdict does not depend on the machine. Where the bytes are is read from ``/proc``: Linux only.
"""

import collections
import contextlib
import importlib.util
import io
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler reports on stderr

import psutil
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import (
    CompressedListStorage,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    SliceSampler,
    TensorDictReplayBuffer,
)
from torchrl.data.replay_buffers.samplers import prioritized
from torchrl.envs.transforms import Transform

# -- What readers take ------------------------------------------------------------


def leaves(data):
    """The tensors in what a storage keeps."""
    if isinstance(data, torch.Tensor):
        return [data]
    if hasattr(data, "keys"):
        data = list(data.values())
    return [leaf for item in data for leaf in leaves(item)] if isinstance(data, list) else []


def where_bytes_are(buffer):
    """Bytes of a buffer's tensors by kind of memory. What rows share counts once."""
    maps, mappings = Path("/proc/self/maps"), []  # of Linux
    for line in maps.read_text().splitlines() if maps.exists() else []:
        span, *_, name = (*line.split(maxsplit=5), "")[:6] if "/" in line else (line.split()[0], "")
        begin, _, end = span.partition("-")
        mappings.append((int(begin, 16), int(end, 16), name.removesuffix(" (deleted)")))
    partitions = psutil.disk_partitions(all=True)
    in_memory = [part.mountpoint for part in partitions if part.fstype == "tmpfs"]
    in_memory += ["/memfd:", "/dev/zero"]

    found, seen = collections.Counter(), set()
    for tensor in leaves(buffer.storage._storage):
        memory = tensor.untyped_storage()
        if memory.data_ptr() in seen:
            continue
        seen.add(memory.data_ptr())
        if memory.device.type != "cpu":
            kind = f"{memory.device.type} memory"
        elif not mappings:
            kind = "of a kind that only Linux tells"
        else:
            name = next(m[2] for m in mappings if m[0] <= memory.data_ptr() < m[1])
            kind = (
                "shared" if name.startswith(tuple(in_memory)) else "file" if name else "anonymous"
            )
        found[kind] += memory.nbytes()
    return dict(found)


def where_time_goes(buffer, batch_size, rounds=20):
    """Seconds of the parts of one sample, at the median."""
    storage, transform = buffer.storage, buffer.transform
    spent = collections.defaultdict(list)

    def timed(part, function, *arguments):
        begin = time.perf_counter()
        result = function(*arguments)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # else what a GPU has queued counts for a later part
        spent[part].append(time.perf_counter() - begin)
        return result

    for _ in range(rounds):
        index, _ = timed("sampler", buffer.sampler.sample, storage, batch_size)
        rows = timed("storage", storage.get, index)
        rows = timed("collate", buffer._collate_fn, rows)
        if transform is not None and len(transform):
            timed("transform", transform, rows)
    return {part: statistics.median(seconds) for part, seconds in spent.items()}


def examine(buffer, batch_size):
    """Say where the bytes of *buffer* are and which part of a sample takes longest."""
    advice = {
        "sampler": "the sampler: see Samplers",
        "storage": "reading the storage: see Storages, and Pixels if it holds small integers",
        "collate": "putting rows together: take a tensor storage, for images with packed pixels",
        "transform": "the transform: do its work once, before extend, or with prefetch",
    }
    seconds = where_time_goes(buffer, batch_size)
    slowest = max(seconds, key=seconds.get)
    for kind, size in where_bytes_are(buffer).items():
        print(f"{size:>15,} bytes {kind}")
    for part, spent in seconds.items():
        print(f"{1e6 * spent:>15,.0f} microseconds {part}")
    print(f"Most of the time goes into {advice[slowest]}.")
    return slowest


# -- What the page shows ------------------------------------------------------------

ROWS, BATCH = 512, 128
KEY = ("collector", "traj_ids")


def pixels(count=ROWS):
    """Transitions as collectors give them: with what follows under next."""
    frames = torch.zeros(count, 4, 84, 84, dtype=torch.uint8)
    frames[:, :, 10:30, 10:60] = torch.arange(count).remainder(250).view(-1, 1, 1, 1)
    return TensorDict({"pixels": frames, "next": {"pixels": frames + 1}}, [count])


def episodes(count):
    place = torch.arange(count)
    return TensorDict(
        {"observation": torch.zeros(count, 8), "collector": {"traj_ids": place // 50}}, [count]
    )


def make(storage, rows, **options):
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=BATCH, **options)
    buffer.extend(rows)
    return buffer


def storages(rows):
    """Title, memory and a filled buffer of each storage."""
    on_disk = {"scratch_dir": tempfile.mkdtemp(dir="."), "auto_cleanup": True}
    return [
        (title, memory, make(storage, rows))
        for title, memory, storage in (
            ("``LazyTensorStorage(n)``", "anonymous", LazyTensorStorage(ROWS)),
            (
                "``LazyMemmapStorage(n, scratch_dir=folder)``",
                "file",
                LazyMemmapStorage(ROWS, **on_disk),
            ),
            ("``LazyMemmapStorage(n)``", "shared", LazyMemmapStorage(ROWS)),
            ("``ListStorage(n)``", "anonymous", ListStorage(ROWS)),
            ("``CompressedListStorage(n)``", "anonymous", CompressedListStorage(ROWS)),
        )
    ]


def show_memory():
    table = []
    here_in_memory = "tmpfs" in {
        part.fstype
        for part in psutil.disk_partitions(all=True)
        if Path.cwd().is_relative_to(part.mountpoint) and part.mountpoint != "/"
    }
    for title, memory, buffer in storages(pixels()):
        found = where_bytes_are(buffer)
        if not (memory == "file" and here_in_memory):
            assert list(found) == [memory], f"{title} is in {found}"
        table.append([title, memory])
    return {"columns": ["Storage", "Its tensors are in"], "rows": table}


# -- The verdict ----------------------------------------------------------------------


def slow_transform(rows):
    return rows.set("sum", torch.stack([rows["observation"].sin() for _ in range(300)]).sum(0))


def one_sided():
    """Buffers of which one part takes nearly all of the time."""
    many, few = episodes(100_000), episodes(1_000)
    slices = SliceSampler(slice_len=16, traj_key=KEY)
    return {
        "Pixels in a ``LazyTensorStorage``": ("storage", make(LazyTensorStorage(ROWS), pixels())),
        "Pixels in a ``ListStorage``": ("collate", make(ListStorage(ROWS), pixels())),
        "Pixels in a ``CompressedListStorage``": (
            "storage",
            make(CompressedListStorage(ROWS), pixels()),
        ),
        "``SliceSampler(traj_key)``, many small rows": (
            "sampler",
            make(LazyTensorStorage(len(many)), many, sampler=slices),
        ),
        "A transform that computes": (
            "transform",
            make(LazyTensorStorage(len(few)), few, transform=slow_transform),
        ),
    }


# What a sample of each buffer calls, and the others do not, or far less often.
TELL_TALES = {
    "storage": "aten::index",
    "collate": "aten::select",
    "decompress": "aten::reshape",
    "sampler": "aten::nonzero",
    "transform": "aten::sin",
}


def calls_per_sample(buffer, operator, samples=5):
    """How often a sample calls *operator*, and the share of its time that the profiler sees."""
    with torch.profiler.profile() as profiler:
        begin = time.perf_counter()
        for _ in range(samples):
            buffer.sample()
        spent = time.perf_counter() - begin
    events = profiler.key_averages()
    count = next((event.count for event in events if event.key == operator), 0)
    seen = sum(event.self_cpu_time_total for event in events) / 1e6
    assert count % samples == 0
    return count // samples, seen / spent


def show_verdicts():
    table = []
    for title, (expected, buffer) in one_sided().items():
        with contextlib.redirect_stdout(io.StringIO()):
            slowest = examine(buffer, BATCH)
        assert slowest == expected, f"{title}: the {slowest} takes longest"
        compressed = isinstance(buffer.storage, CompressedListStorage)
        operator = TELL_TALES["decompress" if compressed else slowest]
        calls, share = calls_per_sample(buffer, operator)
        assert calls, f"{title}: no {operator}"
        if compressed:
            assert share < 0.5, "the profiler sees the decompression"
        table.append([title, f"``{operator}``: {calls}", f"``{slowest}``"])
    return {"columns": ["Buffer", "Calls in one sample", "Verdict"], "rows": table}


# -- Pixels ----------------------------------------------------------------------------


class PackedPixels(Transform):
    """Stores eight bytes of pixels as one integer; samples have pixels again."""

    def __init__(self, keys, shape):
        super().__init__(in_keys=keys, out_keys=keys, in_keys_inv=keys, out_keys_inv=keys)
        self.shape = shape

    def _inv_apply_transform(self, pixels):  # when the buffer is extended
        return pixels.flatten(-len(self.shape)).contiguous().view(torch.int64)

    def _apply_transform(self, packed):  # when it is sampled
        return packed.view(torch.uint8).unflatten(-1, self.shape)


def show_packed():
    """Whether samples of packed pixels are those of pixels."""
    rows = pixels()
    keys = ["pixels", ("next", "pixels")]
    buffer = make(LazyTensorStorage(ROWS), rows, transform=PackedPixels(keys, (4, 84, 84)))
    sample = buffer.sample()
    for key in keys:
        assert buffer.storage[:][key].dtype is torch.int64, "the pixels are not packed"
        assert torch.equal(sample[key], rows[key][sample["index"]]), "other pixels"
    plain = make(LazyTensorStorage(ROWS), rows)
    sizes = [sum(t.nbytes for t in leaves(b.storage._storage)) for b in (buffer, plain)]
    assert sizes[0] == sizes[1], "packing changes the size"
    return True


# -- Traps -----------------------------------------------------------------------------


def show_aliases():
    """Whether a change of the batch reaches the buffer that was extended with it."""
    table = []
    for title, _, buffer in storages(rows := pixels()):
        rows["pixels"].fill_(255)
        rows["next", "pixels"].fill_(255)
        stored = buffer.sample()
        changed = [bool((stored[key] == 255).all()) for key in ("pixels", ("next", "pixels"))]
        lists = "List" in title
        assert changed == [lists and "Compressed" not in title, lists], f"{title}: {changed}"
        table.append([title, *("**changed**" if each else "as stored" for each in changed)])
        rows.update(pixels())
    columns = ["Storage", "``pixels`` in the buffer", '``("next", "pixels")`` in the buffer']
    return {"columns": columns, "rows": table}


def show_nested():
    """Bytes of rows in a compressed storage, as collectors give them and flattened."""
    rows = pixels()
    forms = {
        "as a collector gives them": rows,
        "with ``flatten_keys()``": rows.flatten_keys(),
    }
    sizes = {
        form: make(CompressedListStorage(ROWS), data).storage.bytes()
        for form, data in forms.items()
    }
    nested, flat = sizes.values()
    assert nested > rows["next"].bytes(), "what is under next is compressed"
    assert flat < 0.1 * nested, "the flattened rows are not compressed"
    table = [[form, f"{100 * size / rows.bytes():.0f} %"] for form, size in sizes.items()]
    return {"columns": ["Rows", "Bytes, of those not compressed"], "rows": table}


def memmap_bytes(folder):
    """Bytes of the tensors below *folder*."""
    return sum(file.stat().st_size for file in Path(folder).rglob("*.memmap"))


def show_checkpoints():
    """Bytes on the disk, in those of one buffer, after dumps to its folder or to the one above."""
    table = []
    for scratch, target in (("checkpoint", "checkpoint"), ("checkpoint/storage", "checkpoint")):
        with tempfile.TemporaryDirectory(dir=".") as folder:
            buffer = make(LazyMemmapStorage(ROWS, scratch_dir=f"{folder}/{scratch}"), pixels())
            before = memmap_bytes(folder)
            buffer.dumps(f"{folder}/{target}")
            copies, rest = divmod(memmap_bytes(folder), before)
            assert rest == 0
            restored = TensorDictReplayBuffer(storage=LazyMemmapStorage(ROWS), batch_size=BATCH)
            restored.loads(f"{folder}/{target}")
            assert (restored[:] == buffer[:]).all(), "other rows come back"
            table.append([f"``{scratch}``", f"``{target}``", str(copies)])
    assert [row[-1] for row in table] == ["2", "1"]
    columns = ["``scratch_dir``", "``dumps`` to", "Copies of the rows on the disk"]
    return {"columns": columns, "rows": table}


def refuses(function):
    try:
        function()
    except RuntimeError:
        return True
    return False


def show_pinned():
    """Which samples of a buffer with pin_memory=True are pinned at all."""
    table = []
    for title, storage in {
        "``LazyTensorStorage(n)``": LazyTensorStorage(ROWS),
        "``LazyMemmapStorage(n)``": LazyMemmapStorage(ROWS),
        "``ListStorage(n)``": ListStorage(ROWS),
        '``ListStorage(n, device="cpu")``': ListStorage(ROWS, device="cpu"),
    }.items():
        buffer = make(storage, pixels(), pin_memory=True)
        pinning = mock.patch.object(TensorDictBase, "pin_memory", side_effect=ReferenceError)
        with pinning as pin, contextlib.suppress(ReferenceError):
            buffer.sample()
        asked = bool(pin.call_count)
        if not torch.accelerator.is_available():
            assert asked is refuses(buffer.sample), f"{title}: pins without an accelerator"
        assert asked is (title != "``ListStorage(n)``")
        table.append([title, "yes" if asked else "**no**"])
    return {"columns": ["Storage", "Does ``pin_memory=True`` pin its samples?"], "rows": table}


def show_missing_extension():
    """What PrioritizedSampler says where the compiled part of TorchRL cannot be loaded."""
    name = f"{prioritized.__package__}.without_compiled_part"
    spec = importlib.util.spec_from_file_location(name, prioritized.__file__)
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {"torchrl._torchrl": None}):
        spec.loader.exec_module(module)
    try:
        module.PrioritizedSampler(100, alpha=0.6, beta=0.4)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("the sampler works without its compiled part")


def main():
    return {
        "memory": show_memory(),
        "verdicts": show_verdicts(),
        "packed": show_packed(),
        "aliases": show_aliases(),
        "nested": show_nested(),
        "checkpoints": show_checkpoints(),
        "pinned": show_pinned(),
        "extension": show_missing_extension(),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(main()))
