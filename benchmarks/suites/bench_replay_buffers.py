"""Storages of a replay buffer: time and memory by element and access.

Every buffer holds the same transitions in the same flat layout: observation, next observation,
action, reward, done. Each round comes right after a round of the same work on tensors that were
allocated beforehand and are indexed by hand: ``plain`` reads ``tensor[rows]`` as a storage does,
``select`` reads ``tensor.index_select(0, rows)``. ``packed`` stores eight bytes of pixels as one
integer. The memory is the growth of a fresh process that fills one buffer, as Linux tells
anonymous, file and shared memory apart. Rows of pixels are drawn in blocks, as games are; ``noise``
cannot be compressed; ``pong`` are frames of the game.
"""

import ctypes
import functools
import gc
import multiprocessing
import shutil
import tempfile
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict
from torchrl.data import (
    CompressedListStorage,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    TensorDictReplayBuffer,
)

from benchmarks import measure, metrics
from benchmarks.interleaved import note, paired

BATCH = 256  # rows of one sample, one extend and one chunk that is read
ADDED = 64  # rows of one round that adds them one by one
READ = 1_024  # rows of one round that reads in order
CAPACITY = {"state": 10_000, "pixels": 2_048}
MEMORY_ROWS = {"state": 8_192, "pixels": 2_048}
ACTIONS = 2
STATE = (8,)
PIXELS = (4, 84, 84)
CONTENTS = ("blocks", "noise", "pong")
CONTENT_ROWS = 256
PONG_STEPS = 300
SECONDS = 0.3  # for the rounds of one configuration
MEMORY_ROUNDS = 2
SEED = 0

METRICS = metrics.declare(f"""
access_time [s] Time of an access: Wall time: extend and sample, {BATCH} rows at once; add, {ADDED}
    rows one by one; read, {READ} rows in order, {BATCH} at a time, and their largest observation.
time_vs_plain [1] Time against plain tensors: Time of the access, divided by that of the same access
    on preallocated tensors right before it.
bytes_per_row [B, exact] Bytes of the tensors per transition: Bytes of the tensors that the buffer
    keeps, divided by its rows. Bytes of objects are not counted.
saving [%, exact] Saving: Bytes of the tensors saved against the uncompressed transitions.
fill_time [s] Time to fill: Wall time of a fresh process that fills a buffer, its start included.
anonymous_per_row [B] Anonymous memory per transition: Growth of RssAnon while the buffer fills,
    divided by its rows.
file_per_row [B] File memory per transition: Growth of RssFile while the buffer fills, divided by
    its rows: pages of files that the system can write back and drop.
shared_per_row [B] Shared memory per transition: Growth of RssShmem while the buffer fills, divided
    by its rows: memory without a file, and files of a file system that is itself in memory.
disk_per_row [B, exact] Disk per transition: Bytes of the files of the buffer, divided by its rows.
""")

ELEMENTS = {"state": STATE, "pixels": PIXELS}
STORAGES = {
    "plain": "plain tensors",
    "select": "plain tensors, index_select",
    "tensor": "LazyTensorStorage",
    "packed": "LazyTensorStorage, packed pixels",
    "memmap": "LazyMemmapStorage(scratch_dir)",
    "shared": "LazyMemmapStorage()",
    "list": "ListStorage",
    "compressed": "CompressedListStorage",
    "sb3": "Stable-Baselines3",
}
CUDA_STORAGES = {"tensor-cpu": "LazyTensorStorage on the CPU", "tensor-pinned": "pin_memory=True"}
TITLES = STORAGES | CUDA_STORAGES
ACCESSES = ("extend", "add", "sample", "read")


# -- Rows ------------------------------------------------------------------------


def blocks(rows):
    """Frames with a moving block and a bar each on a plain background."""
    generator = np.random.default_rng(SEED)
    frames = np.zeros((rows + PIXELS[0], *PIXELS[1:]), np.uint8)
    for frame in frames:
        top, left = generator.integers(0, 60, 2)
        frame[top : top + 16, left : left + 20] = generator.integers(1, 255)
        frame[76:80, : left + 4] = generator.integers(1, 255)
    return frames


def noise(rows):
    generator = np.random.default_rng(SEED)
    return generator.integers(0, 256, (rows + PIXELS[0], *PIXELS[1:]), np.uint8)


def pong(rows):
    """Frames of Pong as agents get them, gray and of 84 times 84 pixels; rows repeat at the end."""
    ale_py = pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    import gymnasium
    from gymnasium.wrappers import AtariPreprocessing

    gymnasium.register_envs(ale_py)
    env = AtariPreprocessing(gymnasium.make("ALE/Pong-v5", frameskip=1))
    env.action_space.seed(SEED)
    frames = [env.reset(seed=SEED)[0]]
    for _ in range(min(PONG_STEPS, rows + PIXELS[0])):
        frame, _, terminated, truncated, _ = env.step(env.action_space.sample())
        frames.append(env.reset()[0] if terminated or truncated else frame)
    env.close()
    return np.resize(np.stack(frames), (rows + PIXELS[0], *PIXELS[1:]))


DRAWN = {"blocks": blocks, "noise": noise, "pong": pong}


@functools.lru_cache(maxsize=1)
def make_rows(element, rows, content="blocks"):
    """Transitions whose reward is their number, so that a sample can be compared with them."""
    generator = torch.Generator().manual_seed(SEED)
    if element == "state":
        states = torch.randn(rows + 1, *STATE, generator=generator)
        observation, following = states[:-1].clone(), states[1:].clone()
    else:
        frames = torch.from_numpy(DRAWN[content](rows))
        stacks = frames.unfold(0, PIXELS[0], 1).movedim(-1, 1)
        observation, following = stacks[:rows].contiguous(), stacks[1 : rows + 1].contiguous()
    return TensorDict(
        {
            "observation": observation,
            "next_observation": following,
            "action": torch.rand(rows, ACTIONS, generator=generator),
            "reward": torch.arange(rows, dtype=torch.float32).unsqueeze(-1),
            "done": (torch.arange(rows) % 50 == 49).unsqueeze(-1),
        },
        [rows],
    )


def assert_true(sample, rows):
    """Every row of *sample*, a mapping, is one of *rows*, in all of its entries."""
    places = sample["reward"].flatten().long().cpu()
    assert len(places)
    for key in rows.keys():  # noqa: SIM118 - a tensordict iterates over its rows
        found = sample[key].cpu().to(rows[key].dtype)
        assert torch.equal(found, rows[key][places]), key


def tensor_bytes(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


# -- Buffers ---------------------------------------------------------------------

PACKED = ("observation", "next_observation")


def pack(rows):
    """The same bytes with eight pixels in one integer; nothing is copied."""
    return rows.replace({key: rows[key].flatten(-3).view(torch.int64) for key in PACKED})


def unpack(rows):
    if rows["observation"].dtype is not torch.int64:
        return rows
    return rows.replace({key: rows[key].view(torch.uint8).unflatten(-1, PIXELS) for key in PACKED})


class Plain:
    """Tensors that are allocated once, and indexed by hand."""

    def __init__(self, rows, capacity, device, *, select=False):
        self.capacity, self.length, self.cursor = capacity, 0, 0
        self.device, self.select = device, select
        self.tensors = {
            key: torch.empty(capacity, *value.shape[1:], dtype=value.dtype, device=device)
            for key, value in rows.items()
        }

    def extend(self, rows):
        count = len(rows)
        first = min(count, self.capacity - self.cursor)
        for key, tensor in self.tensors.items():
            value = rows[key]
            tensor[self.cursor : self.cursor + first] = value[:first]
            if first < count:
                tensor[: count - first] = value[first:]
        self.cursor = (self.cursor + count) % self.capacity
        self.length = min(self.length + count, self.capacity)

    def add(self, row):
        for key, tensor in self.tensors.items():
            tensor[self.cursor] = row[key]
        self.cursor = (self.cursor + 1) % self.capacity
        self.length = min(self.length + 1, self.capacity)

    def sample(self):
        places = torch.randint(self.length, (BATCH,), device=self.device)
        if self.select:
            return {key: value.index_select(0, places) for key, value in self.tensors.items()}
        return {key: tensor[places] for key, tensor in self.tensors.items()}

    def read(self):
        for begin in range(0, min(READ, self.length), BATCH):
            yield {key: tensor[begin : begin + BATCH] for key, tensor in self.tensors.items()}

    def bytes(self):
        return tensor_bytes(self.tensors.values())

    def close(self):
        """Nothing to remove."""


class TorchRL:
    """A TensorDictReplayBuffer with one of the storages."""

    def __init__(self, name, capacity, device):
        self.folder, self.device = None, device
        options = {}
        if name in ("tensor", "list", "compressed"):
            options["device"] = device
        if name == "memmap":
            self.folder = tempfile.mkdtemp(prefix="replay-")
            options["scratch_dir"] = self.folder
        kinds = {
            "memmap": LazyMemmapStorage,
            "shared": LazyMemmapStorage,
            "list": ListStorage,
            "compressed": CompressedListStorage,
        }
        self.buffer = TensorDictReplayBuffer(
            storage=kinds.get(name, LazyTensorStorage)(capacity, **options),
            batch_size=BATCH,
            pin_memory=name == "tensor-pinned",
        )
        if name == "packed":
            self.extend = lambda rows: self.buffer.extend(pack(rows))
            self.add = lambda row: self.buffer.add(pack(row))
        elif name == "tensor" and device.type != "cpu":
            self.extend = lambda rows: self.buffer.extend(rows.to(device))
            self.add = lambda row: self.buffer.add(row.to(device))
        else:
            self.extend, self.add = self.buffer.extend, self.buffer.add

    def sample(self):
        sample = unpack(self.buffer.sample())
        if isinstance(sample, LazyStackedTensorDict):  # each reading would stack it again
            sample = sample.contiguous()
        return sample if sample.device == self.device else sample.to(self.device)

    def read(self):
        for begin in range(0, min(READ, len(self.buffer)), BATCH):
            yield unpack(self.buffer[begin : begin + BATCH])

    def bytes(self):
        """Bytes of the rows that are stored; room that is still empty counts as well."""
        storage = self.buffer.storage
        if isinstance(storage, CompressedListStorage):
            return storage.bytes()
        if isinstance(storage, ListStorage):
            return sum(tensor_bytes(row.values()) for row in storage._storage)
        return tensor_bytes(storage._storage.values())

    def close(self):
        if self.folder:
            shutil.rmtree(self.folder)


class StableBaselines:
    """Stable-Baselines3's buffer for one environment, which takes one step at a time."""

    def __init__(self, element, capacity, device):
        buffers = pytest.importorskip("stable_baselines3.common.buffers")
        from gymnasium.spaces import Box

        if element == "state":
            observations = Box(-np.inf, np.inf, STATE)
        else:
            observations = Box(0, 255, PIXELS, np.uint8)
        self.buffer = buffers.ReplayBuffer(
            capacity, observations, Box(0, 1, (ACTIONS,)), device=device
        )

    def extend(self, rows):
        columns = [rows[key].numpy() for key in ORDER]
        for row in zip(*columns, strict=True):
            observation, following, action, reward, done = (value[None] for value in row)
            self.buffer.add(observation, following, action, reward[0], done[0], [{}])

    def add(self, row):
        observation, following, action, reward, done = (row[key].numpy()[None] for key in ORDER)
        self.buffer.add(observation, following, action, reward[0], done[0], [{}])

    def sample(self):
        sample = self.buffer.sample(BATCH)
        return {
            "observation": sample.observations,
            "next_observation": sample.next_observations,
            "action": sample.actions,
            "reward": sample.rewards,
            "done": sample.dones,
        }

    def bytes(self):
        arrays = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
        return sum(getattr(self.buffer, name).nbytes for name in arrays)

    def close(self):
        """Nothing to remove."""


ORDER = ("observation", "next_observation", "action", "reward", "done")


def make_buffer(name, rows, element, capacity, device):
    """An empty buffer for rows such as *rows*."""
    if name in ("plain", "select"):
        return Plain(rows, capacity, device, select=name == "select")
    if name == "sb3":
        return StableBaselines(element, capacity, device)
    return TorchRL(name, capacity, device)


# -- Time ------------------------------------------------------------------------


def make_access(access, buffer, rows):
    """A function that does one round of *access* and starts where the one before stopped."""
    if access == "sample":
        return buffer.sample
    if access == "read":
        return lambda: sum(chunk["observation"].amax().item() for chunk in buffer.read())
    count = BATCH if access == "extend" else ADDED
    chunks = list(rows.split(count))[: len(rows) // count]
    if access == "add":
        chunks = [chunk.unbind(0) for chunk in chunks[:8]]
    place = -1

    def write():
        nonlocal place
        place = (place + 1) % len(chunks)
        if access == "extend":
            buffer.extend(chunks[place])
        else:
            for row in chunks[place]:
                buffer.add(row)

    return write


def entry(element, storage, **varied):
    shown = ", ".join(str(value) for value in varied.values())
    return {
        "title": f"{TITLES[storage]}, {element}, {shown}",
        "parameters": {"element": element, "storage": TITLES[storage], **varied, "batch": BATCH},
    }


def cases():
    """Elements, accesses and storages; without what would measure the same as another case."""
    for element in ELEMENTS:
        for access in ACCESSES:
            for storage in TITLES:
                if storage == "packed" and element == "state":
                    continue
                if storage == "select" and access != "sample":
                    continue
                if storage == "sb3" and access == "read":
                    continue  # it has no way to be read in order
                marks = [pytest.mark.cuda] if storage in CUDA_STORAGES else []
                yield pytest.param(element, access, storage, marks=marks)


@pytest.mark.parametrize(("element", "access", "storage"), list(cases()))
def bench_access(benchmark, device, element, access, storage):
    capacity = CAPACITY[element]
    rows = make_rows(element, capacity)
    buffer = make_buffer(storage, rows, element, capacity, device)
    plain = make_buffer("plain", rows, element, capacity, device)
    for filled in (buffer, plain):
        for chunk in rows.split(BATCH):
            filled.extend(chunk)

    ours, theirs = (make_access(access, filled, rows) for filled in (buffer, plain))
    if access == "read":
        assert ours() == theirs()
    ratios = paired(benchmark, device, ours, theirs, SECONDS)

    for _ in range(2):
        assert_true(buffer.sample(), rows)
        assert_true(plain.sample(), rows)
    buffer.close()
    note(
        benchmark,
        f"{element}-{access}-{storage}",
        "access_time",
        **entry(element, storage, access=access, capacity=capacity),
        sampled={"time_vs_plain": ratios},
    )


# -- Memory ----------------------------------------------------------------------

VIEWS = ("select", "packed")  # they need the memory of another one
FIELDS = {"anonymous": "RssAnon", "file": "RssFile", "shared": "RssShmem"}


def resident():
    """Bytes of this process by kind, without what its allocator holds back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return {kind: measure.resident_memory(field) for kind, field in FIELDS.items()}


def allocated_on_disk(folder):
    files = [path.stat() for path in Path(folder).rglob("*") if path.is_file()]
    return sum(file.st_blocks * 512 for file in files)


def fill(pipe, storage, element, count):
    """Fill a buffer in this process; send how its memory grew and what the disk holds."""
    torch.set_num_threads(measure.THREADS)
    device = torch.device("cpu")
    rows = make_rows(element, BATCH)

    def filled(capacity):
        buffer = make_buffer(storage, rows, element, capacity, device)
        for begin in range(0, capacity, BATCH):
            chunk = rows[: min(BATCH, capacity - begin)].clone()
            buffer.extend(chunk)
        assert_true(buffer.sample(), rows)
        return buffer

    filled(BATCH).close()  # loads what is loaded late
    before = resident()
    buffer = filled(count)
    after = resident()
    found = {kind: after[kind] - before[kind] for kind in FIELDS}
    found["disk"] = allocated_on_disk(buffer.folder) if getattr(buffer, "folder", None) else 0
    buffer.close()
    pipe.send(found)


class Children:
    """Processes that start from a server which has imported this module and nothing else done."""

    def __init__(self):
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([__name__])

    def measure(self, *arguments):
        receiver, sender = self.context.Pipe(duplex=False)
        child = self.context.Process(target=fill, args=(sender, *arguments))
        child.start()
        sender.close()
        try:
            found = receiver.recv()
        except EOFError:
            found = None  # its error is on stderr
        child.join()
        assert found is not None, f"the child ended with {child.exitcode}"
        return found


@functools.lru_cache(maxsize=1)
def children():
    return Children()


def file_system(folder):
    """The type of the file system that *folder* is on."""
    folder = Path(folder).resolve()
    holding = [
        part for part in psutil.disk_partitions(all=True) if folder.is_relative_to(part.mountpoint)
    ]
    return max(holding, key=lambda part: len(part.mountpoint)).fstype


@pytest.mark.parametrize("storage", [name for name in STORAGES if name not in VIEWS])
@pytest.mark.parametrize("element", ELEMENTS)
def bench_memory(benchmark, element, storage):
    if storage == "sb3":
        pytest.importorskip("stable_baselines3")
    if storage == "memmap" and file_system(tempfile.gettempdir()) in ("tmpfs", "ramfs"):
        pytest.skip("files for temporary use are in memory here; set TMPDIR to a folder on a disk")
    count = MEMORY_ROWS[element]
    found = []
    children().measure("plain", element, BATCH)  # the server is up
    benchmark.pedantic(
        lambda: found.append(children().measure(storage, element, count)),
        rounds=MEMORY_ROUNDS,
        warmup_rounds=0,
    )
    assert len({each["disk"] for each in found}) == 1
    sampled = {
        f"{kind}_per_row": [max(0, round(each[kind] / count)) for each in found] for kind in FIELDS
    }
    note(
        benchmark,
        f"memory-{element}-{storage}",
        "fill_time",
        **entry(element, storage, rows=count),
        exact={"disk_per_row": round(found[0]["disk"] / count)},
        sampled=sampled,
    )
    benchmark.extra_info["warmup_rounds"] = 0


def contents():
    """Only compression depends on the content."""
    for content in ("state", *CONTENTS):
        for storage in STORAGES:
            if storage in VIEWS or (content in CONTENTS[1:] and storage != "compressed"):
                continue
            yield content, storage


@pytest.mark.parametrize(("content", "storage"), list(contents()))
def bench_bytes(benchmark, content, storage):
    """What the tensors of a buffer hold, by content."""
    element = "state" if content == "state" else "pixels"
    rows = make_rows(element, CONTENT_ROWS, content)
    buffer = make_buffer(storage, rows, element, CONTENT_ROWS, torch.device("cpu"))
    benchmark.pedantic(buffer.extend, args=(rows,), rounds=3, warmup_rounds=1)
    assert_true(buffer.sample(), rows)
    stored, raw = buffer.bytes(), rows.bytes()
    buffer.close()
    note(
        benchmark,
        f"bytes-{content}-{storage}",
        "access_time",
        title=f"{TITLES[storage]}, {content}",
        parameters={
            "element": element,
            "content": content,
            "storage": TITLES[storage],
            "rows": CONTENT_ROWS,
        },
        exact={
            "bytes_per_row": round(stored / CONTENT_ROWS),
            "saving": round(100 * (1 - stored / raw), 2),
        },
    )
    benchmark.extra_info["warmup_rounds"] = 1
