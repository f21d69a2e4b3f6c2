"""Ways of storing Atari frames: bytes and memory of a transition.

The rows are frames of games as agents get them, gray and of 84 times 84 pixels, from random play,
with the entries that a TorchRL collector with a step counter delivers. Each buffer gives
transitions of stacks of four frames. ``StackFrames`` and ``CompressedPixels`` are those
of the guide on pixel replay.
"""

import atexit
import ctypes
import functools
import gc
import multiprocessing
import shutil
import tempfile
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import (
    CompressedListStorage,
    LazyMemmapStorage,
    LazyTensorStorage,
    ReplayBuffer,
    TensorDictReplayBuffer,
)
from torchrl.envs import CatFrames
from torchrl.envs.transforms import Transform

from benchmarks import measure, metrics

BATCH = 32  # transitions of a sample that is compared with what was stored
CHUNK = 1_000  # rows of an extend
GAME_ROWS = 2_000
FEW, MANY = 5_000, 100_000  # rows of a process whose memory is measured
STACKED = 4
FRAME = (1, 84, 84)
GAMES = ("Pong", "Breakout", "SpaceInvaders", "Qbert", "MsPacman", "Enduro")
MEMORY_ROUNDS = 2
SEED = 0
TRAJ_KEY = ("collector", "traj_ids")

METRICS = metrics.declare(f"""
bytes_per_row [B, exact] Bytes of the tensors per transition: Bytes of the tensors and arrays that
    the buffer keeps, compressed ones as they are, divided by its rows. Bytes of objects are not
    counted.
frames_per_row [1, exact] Frames per transition: Bytes per transition, divided by those of one
    frame.
extend_time [s] Time to extend: Wall time of writing {GAME_ROWS} rows, {CHUNK} at a time.
fill_time [s] Time to fill: Wall time of a fresh process that fills a buffer, its start included.
anonymous_per_row [B] Anonymous memory per transition: Growth of RssAnon while the buffer fills,
    divided by its rows.
file_per_row [B] File memory per transition: Growth of RssFile while the buffer fills, divided by
    its rows: pages of files that the system can write back and drop. The frames that are written
    are read from such a file, too, outside of the buffer.
""")

WAYS = {
    "stacks": "two stacks, LazyTensorStorage",
    "frames": "two frames, CatFrames",
    "frame": "one frame, LazyTensorStorage",
    "frame-memmap": "one frame, LazyMemmapStorage(scratch_dir)",
    "frame-list": "one frame, CompressedListStorage",
    "frame-compressed": "one frame, CompressedPixels",
    "sb3": "two stacks, Stable-Baselines3",
    "sb3-optimized": "one stack, Stable-Baselines3 with optimize_memory_usage",
}


# -- What the guide has ----------------------------------------------------------


class StackFrames(Transform):
    """Builds "stack" and ("next", "stack") from a storage with one frame in each row."""

    def __init__(self, storage, n_stacked=4):
        super().__init__()
        self.storage, self.n_stacked = storage, n_stacked

    def _inv_call(self, rows):  # when you extend the buffer
        return rows.exclude("stack", ("next", "stack"), ("next", "pixels"))

    def forward(self, rows):  # when you sample
        step = rows["step_count"]
        back = torch.arange(self.n_stacked - 1, -2, -1, device=step.device).minimum(step)
        places = (rows["index"].unsqueeze(-1) - back) % len(self.storage)
        near = self.storage.get(places.flatten()).view(places.shape)
        found = near[TRAJ_KEY] == rows[TRAJ_KEY].unsqueeze(-1)
        found &= near["step_count"].squeeze(-1) == step - back
        rows["stack"] = near["pixels"][:, :-1].flatten(1, 2)
        rows["next", "stack"] = near["pixels"][:, 1:].flatten(1, 2)
        terminated = rows["next", "terminated"].squeeze(-1)
        rows["complete"] = found[:, :-1].all(-1) & (found[:, -1] | terminated)
        return rows


class CompressedPixels(LazyTensorStorage):
    """Keeps the pixels of each row as compressed bytes, and everything else in tensors."""

    def __init__(self, max_size, level=1):
        super().__init__(max_size)
        self.level, self.frames = level, [b""] * max_size

    def set(self, cursor, data, **options):
        places = torch.arange(self.max_size)[cursor].reshape(-1).tolist()
        pixels = data["pixels"].reshape(len(places), -1).numpy()
        for place, frame in zip(places, pixels, strict=True):
            self.frames[place] = zlib.compress(frame, self.level)
        super().set(cursor, data.exclude("pixels"), **options)

    def get(self, index):
        rows = super().get(index)
        places = torch.arange(len(self))[index].reshape(-1).tolist()
        frames = b"".join(zlib.decompress(self.frames[place]) for place in places)
        pixels = torch.frombuffer(bytearray(frames), dtype=torch.uint8)
        return rows.copy().set("pixels", pixels.view(*rows.shape, 1, 84, 84))


# -- Rows ------------------------------------------------------------------------


@functools.cache
def scratch():
    """A folder for the frames, until this process ends."""
    folder = tempfile.mkdtemp(prefix="frames-")
    atexit.register(shutil.rmtree, folder)
    return Path(folder)


@functools.cache
def play(game, count):
    """Frames of random play in a file; for each its episode, its step, and whether it ends."""
    ale_py = pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    import gymnasium
    from gymnasium.wrappers import AtariPreprocessing

    gymnasium.register_envs(ale_py)
    env = AtariPreprocessing(gymnasium.make(f"ALE/{game}-v5", frameskip=1))
    env.action_space.seed(SEED)
    name = scratch() / f"{game}-{count}"
    frames = np.memmap(name, np.uint8, "w+", shape=(count + 1, *FRAME))
    marks = np.zeros((count + 1, 3), np.int64)  # episode, step, terminated
    frames[0], episode, step = env.reset(seed=SEED)[0], 0, 0
    for row in range(count):
        frame, _, terminated, truncated, _ = env.step(env.action_space.sample())
        marks[row] = episode, step, terminated
        if terminated or truncated:
            frame, episode, step = env.reset()[0], episode + 1, -1
        frames[row + 1], step = frame, step + 1
    marks[count] = episode, step, 0
    env.close()
    frames.flush()
    return name, marks


def read_frames(name, count):
    return np.memmap(name, np.uint8, "r", shape=(count + 1, *FRAME))


def stacks_at(frames, marks, rows):
    """The stacks of *rows*; the first frame of an episode is repeated."""
    back = np.minimum(np.arange(STACKED - 1, -1, -1), marks[rows, 1:2])
    return torch.from_numpy(frames[rows[:, None] - back]).flatten(1, 2)


def make_rows(frames, marks, begin, end, way):
    """Rows as a collector delivers them, with what *way* stores of the observations."""
    marks = torch.from_numpy(marks)
    count, following = end - begin, torch.arange(begin + 1, end + 1)
    terminated = marks[begin:end, 2:].bool()
    rows = TensorDict(
        {
            "action": torch.zeros(count, dtype=torch.int64),
            "step_count": marks[begin:end, 1:2].clone(),
            "collector": {"traj_ids": marks[begin:end, 0].clone()},
            "next": {
                "reward": torch.arange(begin, end, dtype=torch.float32).unsqueeze(-1),
                "done": terminated,
                "terminated": terminated.clone(),
                "truncated": torch.zeros(count, 1, dtype=torch.bool),
            },
            "done": torch.zeros(count, 1, dtype=torch.bool),
            "terminated": torch.zeros(count, 1, dtype=torch.bool),
            "truncated": torch.zeros(count, 1, dtype=torch.bool),
        },
        [count],
    )
    if way in ("stacks", "sb3", "sb3-optimized"):
        rows["stack"] = stacks_at(frames, marks.numpy(), np.arange(begin, end))
        rows["next", "stack"] = stacks_at(frames, marks.numpy(), following.numpy())
    else:
        rows["pixels"] = torch.from_numpy(np.array(frames[begin:end]))
        if way == "frames":
            rows["next", "pixels"] = torch.from_numpy(np.array(frames[begin + 1 : end + 1]))
    return rows


# -- Buffers ---------------------------------------------------------------------


class TorchRL:
    def __init__(self, way, capacity):
        self.folder, options, kind = None, {}, TensorDictReplayBuffer
        if way == "frame-memmap":
            self.folder = tempfile.mkdtemp(prefix="replay-")
            self.storage = LazyMemmapStorage(capacity, scratch_dir=self.folder)
        else:
            kinds = {"frame-list": CompressedListStorage, "frame-compressed": CompressedPixels}
            self.storage = kinds.get(way, LazyTensorStorage)(capacity)
        if way == "frames":
            keys = {"in_keys": ["pixels"], "out_keys": ["stack"], "reset_key": "_reset"}
            cat = CatFrames(N=STACKED, dim=-3, **keys)
            transform, sampler = cat.make_rb_transform_and_sampler(BATCH, traj_key=TRAJ_KEY)
            kind, options = ReplayBuffer, {"transform": transform, "sampler": sampler}
        elif way not in ("stacks", "frame-list"):
            options = {"transform": StackFrames(self.storage)}
        self.buffer = kind(storage=self.storage, batch_size=BATCH, **options)
        self.flat = way == "frame-list"  # it compresses the first level of a row alone

    def extend(self, rows):
        self.buffer.extend(rows.flatten_keys() if self.flat else rows)

    def sample(self):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The last dimension of the tensordict")
            return self.buffer.sample()

    def stacks(self):
        """Numbers of the rows of a sample, their stacks and the next ones."""
        sample = self.sample()
        if "complete" in sample.keys():  # noqa: SIM118 - a tensordict iterates over its rows
            sample = sample[sample["complete"]]
        sample = sample[~sample["next", "terminated"].squeeze(-1)]
        numbers = sample["next", "reward"].flatten().long()
        return numbers, sample["stack"], sample["next", "stack"]

    def bytes(self):
        if isinstance(self.storage, CompressedListStorage):
            return self.storage.bytes()
        frames = sum(map(len, getattr(self.storage, "frames", [])))
        return frames + LazyTensorStorage.get(self.storage, slice(None)).bytes()

    def close(self):
        if self.folder:
            shutil.rmtree(self.folder)


class StableBaselines:
    def __init__(self, way, capacity):
        buffers = pytest.importorskip("stable_baselines3.common.buffers")
        from gymnasium.spaces import Box, Discrete

        stack = Box(0, 255, (STACKED, *FRAME[1:]), np.uint8)
        optimized = way == "sb3-optimized"
        self.buffer = buffers.ReplayBuffer(
            capacity,
            stack,
            Discrete(2),
            device="cpu",
            optimize_memory_usage=optimized,
            handle_timeout_termination=not optimized,
        )

    def extend(self, rows):
        following = rows["next"]
        columns = (rows["stack"], following["stack"], rows["action"], following["reward"])
        arrays = [column.numpy() for column in (*columns, following["done"])]
        for stack, later, action, reward, done in zip(*arrays, strict=True):
            self.buffer.add(stack[None], later[None], action[None], reward, done, [{}])

    def sample(self):
        return self.buffer.sample(BATCH)

    def stacks(self):
        sample = self.sample()
        kept = sample.dones.flatten() == 0
        numbers = sample.rewards.flatten().long()
        return numbers[kept], sample.observations[kept], sample.next_observations[kept]

    def bytes(self):
        names = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
        return sum(getattr(self.buffer, name, np.empty(0)).nbytes for name in names)

    def close(self):
        """Nothing to remove."""


def make_buffer(way, capacity):
    return (StableBaselines if way.startswith("sb3") else TorchRL)(way, capacity)


def fill(buffer, way, frames, marks, count):
    for begin in range(0, count, CHUNK):
        buffer.extend(make_rows(frames, marks, begin, min(begin + CHUNK, count), way))


def assert_true(buffer, frames, marks):
    if getattr(buffer, "flat", False):
        sample = buffer.sample()
        numbers = sample["next.reward"].flatten().long().numpy()
        assert torch.equal(sample["pixels"], torch.from_numpy(frames[numbers]))
        return
    rows, stacks, following = buffer.stacks()
    assert len(rows)
    assert torch.equal(stacks, stacks_at(frames, marks, rows.numpy()))
    assert torch.equal(following, stacks_at(frames, marks, rows.numpy() + 1))


def entry(way, **varied):
    shown = ", ".join(str(value) for value in varied.values())
    return {
        "title": f"{WAYS[way]}, {shown}",
        "parameters": {"way": WAYS[way], **varied},
    }


# -- Benchmarks ------------------------------------------------------------------


def games():
    """Only compression depends on the game."""
    for way in WAYS:
        for game in GAMES if way == "frame-compressed" else GAMES[:1]:
            yield way, game


@pytest.mark.parametrize(("way", "game"), list(games()))
def bench_bytes(benchmark, way, game):
    name, marks = play(game, GAME_ROWS)
    frames = read_frames(name, GAME_ROWS)
    buffer = make_buffer(way, GAME_ROWS)
    benchmark.pedantic(
        fill, args=(buffer, way, frames, marks, GAME_ROWS), rounds=2, warmup_rounds=1
    )
    assert_true(buffer, frames, marks)
    stored = buffer.bytes() / GAME_ROWS
    buffer.close()
    measure.note(
        benchmark,
        f"bytes-{game.lower()}-{way}",
        "extend_time",
        **entry(way, game=game, rows=GAME_ROWS),
        exact={
            "bytes_per_row": round(stored),
            "frames_per_row": round(stored / np.prod(FRAME).item(), 3),
        },
    )
    benchmark.extra_info["warmup_rounds"] = 1


FIELDS = {"anonymous": "RssAnon", "file": "RssFile"}


def resident():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return {kind: measure.resident_memory(field) for kind, field in FIELDS.items()}


def fill_and_measure(pipe, way, name, marks, count):
    """Fill a buffer in this process; send how its memory grew."""
    torch.set_num_threads(measure.THREADS)
    frames = read_frames(name, len(marks) - 1)
    first = make_buffer(way, CHUNK)  # loads what is loaded late
    fill(first, way, frames, marks, CHUNK)
    assert_true(first, frames, marks)
    first.close()
    del first
    before = resident()
    buffer = make_buffer(way, count)
    fill(buffer, way, frames, marks, count)
    after = resident()
    assert_true(buffer, frames, marks)
    buffer.close()
    pipe.send({kind: after[kind] - before[kind] for kind in FIELDS})


@functools.cache
def context():
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([__name__])
    return server


def measured(*arguments):
    receiver, sender = context().Pipe(duplex=False)
    child = context().Process(target=fill_and_measure, args=(sender, *arguments))
    child.start()
    sender.close()
    try:
        found = receiver.recv()
    except EOFError:
        found = None  # its error is on stderr
    child.join()
    assert found is not None, f"the child ended with {child.exitcode}"
    return found


CASES = [(way, FEW) for way in WAYS if way != "frame-memmap"]
CASES += [("frame", MANY), ("frame-compressed", MANY)]


@pytest.mark.parametrize(("way", "count"), CASES)
def bench_memory(benchmark, way, count):
    name, marks = play("Pong", MANY)
    found = []
    benchmark.pedantic(
        lambda: found.append(measured(way, name, marks, count)),
        rounds=MEMORY_ROUNDS,
        warmup_rounds=0,
    )
    sampled = {
        f"{kind}_per_row": [max(0, round(each[kind] / count)) for each in found] for kind in FIELDS
    }
    measure.note(
        benchmark,
        f"memory-{count // 1_000}k-{way}",
        "fill_time",
        **entry(way, game="Pong", rows=count),
        sampled=sampled,
    )
    benchmark.extra_info["warmup_rounds"] = 0
