"""What workers write into one buffer, and which slices of it are true; for the page on replay.

Each observation says which environment, which episode and which step it is. Lengths of episodes and
batches are chosen so that no batch ends where an episode does. In which order the workers write is
left to the machine: the tables hold verdicts that do not depend on it, and no counts.

The workers start by "forkserver" with TorchRL preloaded: objects reach them pickled, as under
"spawn", but TorchRL is imported once instead of once for each worker.
"""

import contextlib
import json
import multiprocessing
import os
import sys
import tempfile
import textwrap
import warnings
from functools import partial

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import torch
from tensordict import TensorDict
from torchrl.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from torchrl.data import (
    Binary,
    Categorical,
    Composite,
    LazyTensorStorage,
    SliceSampler,
    TensorDictReplayBuffer,
    Unbounded,
)
from torchrl.envs import EnvBase, SerialEnv, StepCounter, TransformedEnv

TRAJ_KEY = ("collector", "traj_ids")
MAX_ROWS = 2000
WORKER_FRAMES = 10  # in one batch
N_FRAMES = 200
SLICE_LEN = 4
N_SLICES = 5000  # so many that no place to start from is left out by chance
EPISODES = (3, 11, 6)  # lengths, in steps, after a first one that differs by environment
FIRST_EPISODE = (5, 4, 2, 8)


class Tape(EnvBase):
    """Observes ``(environment, episode, step)``; each episode has a length that is known before."""

    def __init__(self, number):
        super().__init__()
        self.number, self.episode, self.step_number = number, -1, 0
        self.observation_spec = Composite(observation=Unbounded((3,), dtype=torch.int64))
        self.action_spec = Categorical(2)
        self.reward_spec = Unbounded((1,))
        flag = Binary(1, dtype=torch.bool)
        self.full_done_spec = Composite(done=flag, terminated=flag.clone(), truncated=flag.clone())

    def _data(self, done):
        done = torch.tensor([done])
        return {
            "observation": torch.tensor([self.number, self.episode, self.step_number]),
            "done": done,
            "terminated": done.clone(),
            "truncated": torch.zeros_like(done),
        }

    def _reset(self, tensordict=None, **options):
        self.episode, self.step_number = self.episode + 1, 0
        return TensorDict(self._data(done=False), [])

    def _step(self, tensordict):
        self.step_number += 1
        done = self.step_number == length_of(self.number, self.episode)
        return TensorDict({**self._data(done), "reward": torch.ones(1)}, [])

    def _set_seed(self, seed):
        """Nothing here is random."""


def length_of(number, episode):
    return EPISODES[(episode - 1) % len(EPISODES)] if episode else FIRST_EPISODE[number]


def single(number):
    """One environment, with the step counter that ``fragmented=True`` needs."""
    return TransformedEnv(Tape(number), StepCounter())


def several(*numbers):
    """A batched environment."""
    return SerialEnv(len(numbers), [partial(single, number) for number in numbers])


SINGLE = [partial(single, 0), partial(single, 1)]
BATCHED = [partial(several, 0, 1), partial(several, 2, 3)]


def flat(batch):
    return batch.reshape(-1)


NAMELESS = (lambda batch: batch.reshape(-1),)[0]


# -- The truth ---------------------------------------------------------------


def has_false_slices(sample):
    """Whether some slice is not consecutive steps of one episode, with what each step led to."""
    now = sample["observation"].reshape(-1, SLICE_LEN, 3)
    following = sample["next", "observation"].reshape(-1, SLICE_LEN, 3)
    steps = torch.zeros(SLICE_LEN, 3, dtype=torch.int64)
    steps[:, 2] = torch.arange(SLICE_LEN)
    true = (now == now[:, :1] + steps) & (following == now + steps[1])
    return not bool(true.all())


def rows_of(data):
    return {tuple(row) for row in data["observation"].reshape(-1, 3).tolist()}


def in_reach(data):
    """The stored rows of those episodes that are long enough for a slice."""
    rows, lengths = rows_of(data), {}
    for number, episode, _ in rows:
        lengths[number, episode] = lengths.get((number, episode), 0) + 1
    return {row for row in rows if lengths[row[:2]] >= SLICE_LEN}


# -- Buffers that workers fill -----------------------------------------------


def by_done():
    return SliceSampler(slice_len=SLICE_LEN, end_key=("next", "done"))


def by_id(**options):
    return SliceSampler(slice_len=SLICE_LEN, traj_key=TRAJ_KEY, **options)


def fill(buffer, workers, kind=MultiSyncCollector, **options):
    """Let the workers write, the asynchronous ones until they took turns; returns the warnings."""
    frames = WORKER_FRAMES * (2 if kind is MultiSyncCollector else 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        collector = kind(
            workers,
            None,
            frames_per_batch=frames,
            total_frames=N_FRAMES if kind is MultiSyncCollector else -1,
            replay_buffer=buffer,
            **options,
        )
    try:
        for yielded in collector:
            assert yielded is None, "a collector that writes to a buffer yields a batch"
            if kind is MultiAsyncCollector and in_pieces(buffer[-N_FRAMES // 2 :]):
                break
    finally:
        collector.shutdown()
    return [str(warning.message) for warning in caught]


def check(data, ndim, sampler):
    """Whether a buffer with this content and sampler gives false slices, and the rows it gives.

    No slice at all, and so no false one, where every piece is shorter than a slice.
    """
    storage = LazyTensorStorage(MAX_ROWS, ndim=ndim)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler)
    buffer.extend(data.clone())
    torch.manual_seed(0)
    try:
        sample = buffer.sample(N_SLICES * SLICE_LEN)
    except RuntimeError as error:
        if "Did not find a single trajectory with sufficient length" not in str(error):
            raise
        return False, set()
    return has_false_slices(sample), rows_of(sample)


def false_ends(data):
    """Rows marked done where the episode goes on."""
    ends = data["observation"][data["next", "done"].squeeze(-1)]
    return [
        (number, episode, step)
        for number, episode, step in ends.tolist()
        if step + 1 != length_of(number, episode)
    ]


def in_pieces(data):
    """Whether some episode does not stand in consecutive rows."""
    episodes = data["observation"][:, :2].unique_consecutive(dim=0)
    return len(episodes) > len(episodes.unique(dim=0))


def ids_are_unique(data):
    """Whether each trajectory id stands for one episode of one environment."""
    pairs = torch.cat([data[TRAJ_KEY][:, None], data["observation"][:, :2]], 1).unique(dim=0)
    return len(pairs) == len(pairs[:, 0].unique()) == len(pairs[:, 1:].unique(dim=0))


def whole_episodes(data):
    """Whether every stored episode is there from its first step to its end."""
    rows = rows_of(data)
    stored = {row[:2] for row in rows}
    return rows == {(*key, step) for key in stored for step in range(length_of(*key))}


def verdict(bad):
    return "**wrong slices**" if bad else "right"


def options_table():
    """One shared buffer for each option of the collector, cut into slices in three ways."""
    rows, said = [], set()
    for name, kind, options in (
        ("``MultiSyncCollector``", MultiSyncCollector, {}),
        ("``MultiAsyncCollector``", MultiAsyncCollector, {}),
        ("``extend_buffer=False``", MultiSyncCollector, {"extend_buffer": False}),
        ("``set_truncated=True``", MultiSyncCollector, {"set_truncated": True}),
        ("``trajs_per_batch=2``", MultiSyncCollector, {"trajs_per_batch": 2}),
    ):
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(MAX_ROWS), sampler=by_done())
        said |= set(warned := fill(buffer, SINGLE, kind, **options))
        data = buffer[-N_FRAMES:]
        cut_at_done, _ = check(data, 1, by_done())
        cut_at_ids, _ = check(data, 1, by_id())
        joined, seen = check(data, 1, by_id(fragmented=True))
        cured = bool(options.keys() & {"set_truncated", "trajs_per_batch"})
        assert cut_at_done is not cured, f"{name}: cut at done, false slices: {cut_at_done}"
        assert bool(warned) is not cured, f"{name}: {warned}"
        assert not cut_at_ids, f"{name}: slices cut at trajectory ids are false"
        assert not joined, f"{name}: joined pieces give false slices"
        assert seen == in_reach(data), f"{name}: joined pieces do not reach every long episode"
        # Rows that workers write one by one may alternate, as the machine has it.
        by_row = options.get("extend_buffer") is False
        assert by_row or check(data, 1, by_id())[1], f"{name}: no piece is long enough"
        whole = "trajs_per_batch" in options
        assert in_pieces(data) is not whole, f"{name}: episodes in pieces: {not whole}"
        assert whole_episodes(data) is whole, f"{name}: whole episodes: {not whole}"
        assert ids_are_unique(data), f"{name}: two episodes have one id"
        assert bool(false_ends(data)) is ("set_truncated" in options), name
        rows.append(
            [
                name,
                "yes" if warned else "no",
                verdict(cut_at_done),
                verdict(cut_at_ids) + (", or no piece is long enough" if by_row else ""),
                verdict(joined),
                "yes" if false_ends(data) else "no",
                "whole" if whole else "in pieces",
            ]
        )
    assert len(said) == 1, said
    columns = [
        "Collector",
        "Warns",
        '``end_key=("next", "done")``',
        "``traj_key``",
        "``traj_key``, ``fragmented=True``",
        "``done`` where the episode goes on",
        "Episodes in the buffer",
    ]
    return {"columns": columns, "rows": rows}, textwrap.fill(said.pop(), 80)


# -- Batched environments in the workers -------------------------------------


def prepared(storage):
    """A storage that the main process has given its layout, and emptied."""
    buffer = TensorDictReplayBuffer(storage=storage)
    collector = Collector(several(0, 1), None, frames_per_batch=8, total_frames=8)
    for batch in collector:
        buffer.extend(batch if storage.ndim == 2 else batch.reshape(-1))
    collector.shutdown()
    buffer.empty()
    return storage


def attempt(function, *arguments, **options):
    """The result, or the error that replaced it."""
    try:
        return function(*arguments, **options)
    except (RuntimeError, ValueError) as error:
        return error


def outcome(storage, written_by_dying_workers, **options):
    """The verdict on the slices, or the error."""
    buffer = TensorDictReplayBuffer(storage=storage)
    error = attempt(fill, buffer, BATCHED, **options)
    for worker in multiprocessing.active_children():
        worker.join(20)
    told = written_by_dying_workers()
    if isinstance(error, Exception):
        text = str(error).splitlines()[0]
        died = text.startswith("At least one process failed")
        assert died is bool(told), f"{error}\n{told}"
        assert ("indexed destination" in told) is died
        assert "indexed destination" not in text
        if died:  # which worker it names differs
            text = text.split(":")[0]
        return f"{type(error).__name__}: {text}"
    assert not error, error
    assert not told, told
    if "trajs_per_batch" in options:
        assert whole_episodes(buffer[:])
    else:
        assert len(buffer) == N_FRAMES, f"{len(buffer)} rows"
    false, seen = check(buffer[:], storage.ndim, by_id())
    assert seen, "no piece is long enough"
    assert not false, f"{storage.ndim}: slices cut at trajectory ids are false"
    joined = "" if storage.ndim > 1 else ", right when joined by ``fragmented=True``"
    if storage.ndim == 1:
        false, seen = check(buffer[:], 1, by_id(fragmented=True))
        assert seen, "no episode is long enough"
        assert not false, "joined pieces give false slices"
    return f"right slices by ``traj_key``{joined}"


def batched_table(written_by_dying_workers):
    layouts = {
        "``LazyTensorStorage(n, ndim=2)``": lambda: LazyTensorStorage(MAX_ROWS, ndim=2),
        "``LazyTensorStorage(n)``": lambda: LazyTensorStorage(MAX_ROWS),
        "``LazyTensorStorage(n, ndim=2, shared_init=True)``": lambda: LazyTensorStorage(
            MAX_ROWS, ndim=2, shared_init=True
        ),
        "``LazyTensorStorage(n, shared_init=True)``": lambda: LazyTensorStorage(
            MAX_ROWS, shared_init=True
        ),
        "``LazyTensorStorage(n, ndim=2)``, filled once": lambda: prepared(
            LazyTensorStorage(MAX_ROWS, ndim=2)
        ),
    }
    said = {
        None: "none",
        "postproc": "``reshape(-1)`` as ``postproc``",
        "trajs_per_batch": "``trajs_per_batch=2``",
    }
    cells = [(name, {} if "ndim=2" in name else {"postproc": flat}) for name in layouts]
    cells.append(("``LazyTensorStorage(n)``", {"trajs_per_batch": 2}))
    rows = []
    for name, options in cells:
        result = outcome(layouts[name](), written_by_dying_workers, **options)
        cured = "shared_init" in name or "filled" in name or "trajs_per_batch" in options
        assert ("right slices" in result) is cured, result
        rows.append([name, said[next(iter(options), None)], result])
    return {"columns": ["Storage", "Option", "Result"], "rows": rows}


def lambda_error():
    """A nameless function as postproc of workers that write to a buffer."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(MAX_ROWS, shared_init=True))
    error = attempt(fill, buffer, BATCHED, postproc=NAMELESS)
    assert isinstance(error, RuntimeError), "a lambda reaches the workers"
    return f"{type(error).__name__}: {error}"


def lambda_without_buffer():
    """Without a buffer the main process applies it."""
    collector = MultiSyncCollector(
        BATCHED,
        None,
        frames_per_batch=16,
        total_frames=16,
        cat_results="stack",
        postproc=NAMELESS,
    )
    try:
        return str(tuple(next(iter(collector)).shape))
    finally:
        collector.shutdown()


# -- All of it ---------------------------------------------------------------


@contextlib.contextmanager
def captured_stderr():
    """File descriptor 2, which workers inherit, goes to a file; yields what reads it anew."""
    with tempfile.TemporaryFile("w+") as target:
        kept = os.dup(2)
        os.dup2(target.fileno(), 2)
        position = 0

        def read():
            nonlocal position
            text = os.pread(target.fileno(), os.fstat(target.fileno()).st_size, 0).decode()
            new, position = text[position:], len(text)
            return new

        try:
            yield read
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            sys.stderr.write(read())


def main():
    with captured_stderr() as stderr:
        options, warning = options_table()
        result = {
            "options": options,
            "warning": warning,
            "batched": batched_table(stderr),
            "lambda": lambda_error(),
            "lambda-shape": lambda_without_buffer(),
        }
    assert not multiprocessing.active_children()
    return result


def start_workers_by_forkserver():
    """Import TorchRL once for all workers; call it before the first buffer or collector."""
    multiprocessing.set_start_method("forkserver", force=True)
    multiprocessing.set_forkserver_preload(["torchrl.collectors", "torchrl.envs"])


if __name__ == "__main__":
    start_workers_by_forkserver()
    torch.set_num_threads(1)
    result = main()
    print(json.dumps(result))
