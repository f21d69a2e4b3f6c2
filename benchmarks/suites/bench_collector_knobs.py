"""Knobs of the collectors: each argument on against off.

Two collectors that differ in one argument take turns, round by round, so that a change of the
machine's speed reaches both; the ratio of their times per frame is recorded. The frames of both are
checked: each environment goes on where it was, and actions and rewards are those of the policy. A
step of the environment costs nothing unless the row says otherwise, so that what a knob costs or
saves per step stands out. The keys ``batched-*`` cannot pause; they are timed one after another.
"""

import functools
import math
import multiprocessing
import time
from statistics import median
from typing import NamedTuple

import pytest
import torch
from torchrl.collectors import AsyncBatchedCollector, Collector, MultiSyncCollector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from benchmarks import interleaved, measure, metrics
from benchmarks.counting_env import (
    EPISODE,
    OBSERVED,
    Counting,
    StepCost,
    check_actions,
    check_frames,
    make_policy,
)

FRAMES = 128  # frames_per_batch, where it is not the knob
HIDDEN_UNITS = 64
SMALL_BYTES = OBSERVED * torch.float32.itemsize
IMAGE_BYTES = 4 * 84 * 84
IMAGES = ("image", ("next", "image"))
WORKERS = 2
SIZES = (8, 32, 512)  # frames_per_batch, each against FRAMES
SECONDS = 0.6
COMPILED_UNITS = (64, 1024)
THREADS_BEFORE = 2  # of the process that builds a collector with two workers
MATRIX = 512
UNEVEN_MS = 2  # cost of a step of the slow worker; the other takes a quarter of it
BATCHED_WORKERS = 4
BATCHED_ROUNDS, BATCHED_SECONDS = 7, 0.3
NO_END = 10**9

METRICS = metrics.declare("""
round_time [s] Time of a round: Wall time of the batches of one round with the knob turned.
time_vs_off [1] Time per frame against the default: Wall time per frame with the knob turned,
    divided by that of the round without it right before: below one, the knob gains. Keys batched-*:
    divided by the median of the default, timed before.
bytes_per_frame [B, exact] Bytes per frame: Bytes in a batch, divided by the frames collected, with
    the knob turned.
bytes_per_frame_off [B, exact] Bytes per frame by default: Bytes in a batch, divided by the frames
    collected, without the knob.
first_batch_time [s, exact] Time to the first batches: Wall time from the constructor to the end of
    the second batch: with compile_policy it holds the compilation, in a process that has compiled
    nothing alike.
break_even_frames [1, exact] Frames to break even: Time to the first batches over the default's,
    divided by what a frame saves afterwards. Absent where nothing is saved.
frames_kept [1] Frames kept: Share of the frames of a batch that were collected, not filled in.
time_per_kept_frame [1] Time per kept frame against the default: Ratio of the times, divided by the
    share of the frames kept.
threads_during [1, exact] Threads while the collector runs: torch.get_num_threads() of the process
    that built the collector.
threads_after [1, exact] Threads after shutdown: torch.get_num_threads() of that process after
    collector.shutdown().
frames_per_second [1] Frames per second: Frames of a round, divided by its wall time.
""")


# -- One process, one knob -------------------------------------------------------


class Knob(NamedTuple):
    """Arguments that differ from the default, and the size of a second observation."""

    title: str
    options: dict
    image_bytes: int = 0


KNOBS = {
    "no-traj-ids": Knob("track_traj_ids=False", {"track_traj_ids": False}),
    "compact-small": Knob("compact_obs=True", {"compact_obs": True}),
    "compact-image": Knob(
        "compact_obs=True, large observations", {"compact_obs": True}, IMAGE_BYTES
    ),
    "trust-policy": Knob("trust_policy=True", {"trust_policy": True}),
    "random-frames": Knob("init_random_frames", {"init_random_frames": NO_END}),
    "max-frames": Knob("max_frames_per_traj", {"max_frames_per_traj": EPISODE // 2}),
    "split-trajs": Knob("split_trajs=True", {"split_trajs": True}),
    "no-buffers": Knob("use_buffers=False", {"use_buffers": False}),
    "same-td": Knob("return_same_td=True", {"return_same_td": True}),
    "same-td-image": Knob(
        "return_same_td=True, large observations", {"return_same_td": True}, IMAGE_BYTES
    ),
    **{
        f"frames-{size}": Knob(f"frames_per_batch={size}", {"frames_per_batch": size})
        for size in SIZES
    },
}
CUDAGRAPH = Knob("cudagraph_policy=True", {"cudagraph_policy": True})


def make_collector(options, image_bytes=0, hidden_units=HIDDEN_UNITS, device=None):
    policy = make_policy(hidden_units)
    devices = {}
    if device is not None and device.type != "cpu":
        policy = policy.to(device)
        place = next(policy.parameters()).device
        devices = {"policy_device": place, "env_device": "cpu", "storing_device": "cpu"}
    return Collector(
        Counting(0, image_bytes=image_bytes),
        policy,
        **{
            "frames_per_batch": FRAMES,
            "total_frames": -1,
            "auto_register_policy_transforms": False,
            **devices,
            **options,
        },
    )


class Side:
    """One of two collectors that take turns."""

    def __init__(self, collector, frames, keep=True, hidden_units=HIDDEN_UNITS):
        self.collector, self.iterator = collector, iter(collector)
        self.hidden_units = hidden_units
        self.frames = frames  # of a round
        self.batch = collector.requested_frames_per_batch
        self.kept, self.keep = [], keep

    def collect(self):
        """The batches of a round; a round has the same frames on both sides."""
        for _ in range(self.frames // self.batch):
            batch = next(self.iterator)
            self.size = batch.bytes()
            if self.keep:
                self.kept.append(batch.exclude(*IMAGES))
        return batch

    def close(self):
        self.collector.shutdown()
        torch.set_num_threads(measure.THREADS)


def flat(batch):
    """The frames that were collected, without those that fill a row up."""
    mask = batch.get(("collector", "mask"), None)
    return batch.reshape(-1) if mask is None else batch[mask]


def with_next(batch):
    """A compact batch, with the next observation of each step but the last of a trajectory."""
    if ("next", "observation") in batch.keys(True):
        return batch
    following = batch["observation"].clone()
    following[..., 2] += 1
    batch = batch.copy()
    batch["next", "observation"] = following
    return batch


def check(side, actions=True, episode_steps=EPISODE):
    """Assert that the frames that *side* has kept are right; return bytes per frame."""
    batches = [flat(with_next(batch)) for batch in side.kept]
    assert check_frames(batches, episode_steps=episode_steps) == side.batch * len(batches)
    if actions:
        check_actions(batches[-1], make_policy(side.hidden_units))
    return round(side.size / side.batch)


def note(benchmark, key, *, title, parameters, **said):
    parameters = {
        "knob": title,
        "environment": "counting",
        "frames_per_batch": FRAMES,
        "hidden_units": HIDDEN_UNITS,
        "observation_bytes": SMALL_BYTES,
        "workers": 0,
        "step_ms": 0,
        **parameters,
    }
    interleaved.note(benchmark, key, "round_time", title=title, parameters=parameters, **said)


@pytest.fixture(autouse=True)
def steady():
    yield
    torch.set_num_threads(measure.THREADS)


# It advises another layout.
@pytest.mark.filterwarnings("ignore:split_trajs=True produces a:UserWarning")
@pytest.mark.parametrize("key", KNOBS)
def bench_knob(benchmark, device, key):
    measure_knob(benchmark, device, key, KNOBS[key])


def measure_knob(benchmark, device, key, knob):
    size = knob.options.get("frames_per_batch", FRAMES)
    frames = max(size, FRAMES)
    keep = "return_same_td" not in knob.options
    ours = Side(make_collector(knob.options, knob.image_bytes, device=device), frames, keep)
    reference = Side(make_collector({}, knob.image_bytes, device=device), frames)
    ratios = interleaved.paired(benchmark, device, ours.collect, reference.collect, SECONDS)
    if not keep:
        ours.kept = [ours.collect().clone()]
    exact = {
        "bytes_per_frame": check(
            ours,
            actions="init_random_frames" not in knob.options,
            episode_steps=knob.options.get("max_frames_per_traj", EPISODE),
        ),
        "bytes_per_frame_off": check(reference),
    }
    ours.close()
    reference.close()
    note(
        benchmark,
        key,
        title=knob.title,
        parameters={
            "frames_per_batch": size,
            "observation_bytes": SMALL_BYTES + knob.image_bytes,
            "collector": "Collector",
        },
        exact=exact,
        sampled={"time_vs_off": ratios},
    )


# -- Into a buffer ---------------------------------------------------------------


class Filling:
    """A collector and a buffer, filled in one of three ways."""

    def __init__(self, way, device):
        storage = LazyTensorStorage(4 * FRAMES)
        self.buffer, self.way = TensorDictReplayBuffer(storage=storage, batch_size=FRAMES), way
        options = {} if way == "extend" else {"replay_buffer": self.buffer}
        if way == "row by row":
            options["extend_buffer"] = False
        self.collector = make_collector(options, device=device)
        self.iterator = iter(self.collector)

    def collect(self):
        batch = next(self.iterator)
        if self.way == "extend":
            self.buffer.extend(batch)
        else:
            assert batch is None


@pytest.mark.parametrize("way", ["direct", "row by row"])
def bench_buffer(benchmark, device, way):
    ours, reference = Filling(way, device), Filling("extend", device)
    ratios = interleaved.paired(benchmark, device, ours.collect, reference.collect, SECONDS)
    for filling in (ours, reference):
        written = filling.buffer.write_count
        assert written % FRAMES == 0, written
        first = written % (4 * FRAMES)  # the oldest frame, once the buffer is full
        rows = filling.buffer[:]
        check_frames([torch.cat([rows[first:], rows[:first]]).reshape(-1)])
        check_actions(rows, make_policy(HIDDEN_UNITS))
        filling.collector.shutdown()
    title = "replay_buffer" if way == "direct" else "replay_buffer, extend_buffer=False"
    note(
        benchmark,
        f"buffer-{way.replace(' ', '-')}",
        title=title,
        parameters={"collector": "Collector", "against": "buffer.extend(batch) in the loop"},
        sampled={"time_vs_off": ratios},
    )


# -- Compilation -----------------------------------------------------------------


@pytest.fixture
def empty_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def first_batches(options, units, device):
    """A side and the seconds until its second batch is there: then everything is compiled."""
    begin = time.perf_counter()
    collector = make_collector(options, hidden_units=units, device=device)
    side = Side(collector, FRAMES, hidden_units=units)
    for _ in range(2):
        side.collect()
    return side, time.perf_counter() - begin


# Dynamo breaks the graph where tensordict sets an environment variable.
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin:UserWarning")
@pytest.mark.parametrize("units", COMPILED_UNITS)
def bench_compile(benchmark, device, empty_caches, units):
    reference, seconds_off = first_batches({}, units, device)
    ours, seconds = first_batches({"compile_policy": True}, units, device)
    ratios = interleaved.paired(benchmark, device, ours.collect, reference.collect, SECONDS)
    check(ours)
    check(reference)
    exact = {"first_batch_time": seconds}
    per_frame = median(benchmark.seconds) / FRAMES
    saved = per_frame / median(ratios) - per_frame
    if saved > 0:
        exact["break_even_frames"] = math.ceil((seconds - seconds_off) / saved)
    ours.close()
    reference.close()
    note(
        benchmark,
        f"compile-h{units}",
        title=f"compile_policy=True, {units} hidden units",
        parameters={"hidden_units": units, "collector": "Collector"},
        exact=exact,
        sampled={"time_vs_off": ratios},
    )


# -- Workers that wait between batches -------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def start_method():
    """Workers of a fork server import TorchRL once, not once each."""
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("forkserver", force=True)
    multiprocessing.set_forkserver_preload(["torchrl.collectors", "torchrl.envs"])
    yield
    multiprocessing.set_start_method(before, force=True)
    torch.set_num_threads(measure.THREADS)


WORKER_KNOBS = {
    "cat-0": ("cat_results=0", {"cat_results": 0}, None),
    "cat-last": ("cat_results=-1", {"cat_results": -1}, None),
    "update-each-batch": ("update_at_each_batch=True", {"update_at_each_batch": True}, None),
    "workers-no-buffers": ("use_buffers=False, workers", {"use_buffers": False}, None),
    "workers-frames-32": ("frames_per_batch=32, workers", {"frames_per_batch": 32}, None),
    "workers-frames-512": ("frames_per_batch=512, workers", {"frames_per_batch": 512}, None),
    "preempt-even": (
        "preemptive_threshold=0.5, even workers",
        {"preemptive_threshold": 0.5},
        (1.0, 1.0),
    ),
    "preempt-uneven": (
        "preemptive_threshold=0.5, one slow worker",
        {"preemptive_threshold": 0.5},
        (1.0, 0.25),
    ),
}


def make_workers(options, step_cost, shares=None):
    factories = [
        functools.partial(Counting, number, step_cost, *(shares or ())[number : number + 1])
        for number in range(WORKERS)
    ]
    return MultiSyncCollector(
        factories,
        make_policy(HIDDEN_UNITS),
        **{
            "frames_per_batch": FRAMES,
            "total_frames": -1,
            "auto_register_policy_transforms": False,
            **options,
        },
    )


@pytest.mark.parametrize("key", WORKER_KNOBS)
def bench_workers(benchmark, device, tmp_path, key):
    title, options, shares = WORKER_KNOBS[key]
    step_cost = StepCost(tmp_path / "cost")
    if shares:
        step_cost.set(UNEVEN_MS, "sleep")
    size = options.get("frames_per_batch", FRAMES)
    frames = max(size, FRAMES)
    ours = Side(make_workers(options, step_cost, shares), frames)
    reference = Side(make_workers({}, step_cost, shares), frames)
    ratios = interleaved.paired(benchmark, device, ours.collect, reference.collect, SECONDS)
    preempts = "preemptive_threshold" in options
    kept = [collected(batch) for batch in ours.kept]
    counted = check_frames(kept)
    sampled = {"time_vs_off": ratios}
    if preempts:
        shares_kept = [batch.numel() / size for batch in kept][-len(ratios) :]
        sampled["frames_kept"] = shares_kept
        sampled["time_per_kept_frame"] = [a / b for a, b in zip(ratios, shares_kept, strict=True)]
    else:
        assert counted == size * len(ours.kept)
    check_frames(reference.kept)
    check_actions(kept[-1], make_policy(HIDDEN_UNITS))
    ours.close()
    reference.close()
    note(
        benchmark,
        key,
        title=title,
        parameters={
            "collector": "MultiSyncCollector",
            "frames_per_batch": size,
            "workers": WORKERS,
            "step_ms": UNEVEN_MS if shares else 0,
        },
        sampled=sampled,
    )


def collected(batch):
    """The frames of a batch that its workers collected before they were stopped, flat."""
    return batch.reshape(-1)[batch["collector", "traj_ids"].reshape(-1) != -1]


@pytest.mark.parametrize("given", [None, THREADS_BEFORE])
def bench_threads(benchmark, device, tmp_path, given):
    """A matrix product of the learner while a collector with two workers waits."""
    torch.set_num_threads(THREADS_BEFORE)
    collector = make_workers({"num_threads": given}, StepCost(tmp_path / "cost"))
    check_frames([next(iter(collector))])
    during = torch.get_num_threads()
    matrix = torch.rand(MATRIX, MATRIX)
    expected = matrix @ matrix

    def multiply(threads):
        torch.set_num_threads(threads)
        return matrix @ matrix

    ratios = interleaved.paired(
        benchmark,
        torch.device("cpu"),
        lambda: multiply(during),
        lambda: multiply(THREADS_BEFORE),
        SECONDS,
    )
    torch.testing.assert_close(multiply(during), expected)
    torch.set_num_threads(during)
    collector.shutdown()
    after = torch.get_num_threads()
    note(
        benchmark,
        "threads-default" if given is None else "threads-given",
        title="num_threads not given" if given is None else f"num_threads={given}",
        parameters={
            "collector": "MultiSyncCollector",
            "workers": WORKERS,
            "threads_before": THREADS_BEFORE,
            "timed": f"matrix product, {MATRIX} x {MATRIX}",
        },
        exact={"threads_during": during, "threads_after": after},
        sampled={"time_vs_off": ratios},
    )


# -- AsyncBatchedCollector -------------------------------------------------------

THREADS = {"env_backend": "threading"}
PROCESSES = {"env_backend": "multiprocessing", "transport": "driver"}
SLOTS = {"env_backend": "multiprocessing", "transport": "auto"}
BATCHED = {  # key: title, options, key of the default
    "batched-threads": ("threads", THREADS, None),
    "batched-threads-min-batch": (
        "threads, min_batch_size=4",
        THREADS | {"min_batch_size": BATCHED_WORKERS},
        "batched-threads",
    ),
    "batched-processes": ("processes", PROCESSES, None),
    "batched-processes-queue": (
        'processes, env_exchange="queue"',
        PROCESSES | {"env_exchange": "queue"},
        "batched-processes",
    ),
    "batched-processes-grouped": (
        "processes, envs_per_worker=2",
        PROCESSES | {"envs_per_worker": 2},
        "batched-processes",
    ),
    "batched-slots": ('transport="auto"', SLOTS, "batched-processes"),
    "batched-slots-chunk": (
        'transport="auto", transition_chunk_size=1',
        SLOTS | {"transition_chunk_size": 1},
        "batched-slots",
    ),
}


@pytest.fixture(scope="module")
def seconds_of():
    """Median seconds of a frame by key, for the ratios to the default."""
    return {}


@pytest.mark.parametrize("key", BATCHED)
def bench_batched(benchmark, device, seconds_of, key):
    title, options, default = BATCHED[key]
    collector = AsyncBatchedCollector(
        [functools.partial(Counting, number) for number in range(BATCHED_WORKERS)],
        policy_factory=functools.partial(make_policy, HIDDEN_UNITS),
        frames_per_batch=FRAMES,
        total_frames=-1,
        **({} if device.type == "cpu" else {"device": device}),
        **options,
    )
    iterator = iter(collector)
    # With slots each worker sends whole batches, two of which may wait.
    cycle = BATCHED_WORKERS if options.get("transport") == "auto" else 1
    batches = [next(iterator) for _ in range(2 * cycle + 2)]
    begin = time.perf_counter()
    batches.extend(next(iterator) for _ in range(cycle))
    once = time.perf_counter() - begin
    number = cycle * math.ceil(BATCHED_SECONDS / once)
    seconds = []

    def collect():
        start = time.perf_counter()
        batches.extend(next(iterator) for _ in range(number))
        seconds.append((time.perf_counter() - start) / (number * FRAMES))

    benchmark.pedantic(collect, rounds=BATCHED_ROUNDS, warmup_rounds=0)
    assert check_frames(batches) == FRAMES * len(batches)
    check_actions(batches[-1], make_policy(HIDDEN_UNITS))
    collector.shutdown()
    seconds_of[key] = median(seconds)
    sampled = {"frames_per_second": [1 / each for each in seconds]}
    if default in seconds_of:
        sampled["time_vs_off"] = [each / seconds_of[default] for each in seconds]
    note(
        benchmark,
        key,
        title=f"AsyncBatchedCollector, {title}",
        parameters={
            "collector": "AsyncBatchedCollector",
            "workers": BATCHED_WORKERS,
            "options": title,
        },
        sampled=sampled,
    )
    benchmark.extra_info["warmup_rounds"] = 0


# -- CUDA graphs -----------------------------------------------------------------


# Last: in a process that has made a CudaGraphModule, TensorDict is no pytree any more.
# It says that, and that without CUDA it passes its calls through.
@pytest.mark.filterwarnings("ignore:This module is instantiated on a machine without CUDA")
@pytest.mark.filterwarnings("ignore:Tensordict is registered in PyTree:UserWarning")
def bench_cudagraph(benchmark, device):
    measure_knob(benchmark, device, "cudagraph", CUDAGRAPH)
