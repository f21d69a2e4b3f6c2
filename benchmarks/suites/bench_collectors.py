"""Collectors: frames per second against the cost of a step, by number of workers, and their start.

One environment counts its steps; a step costs nothing else, or burns processor time ("busy", which
keeps the interpreter's lock) or waits ("sleep"). Every collector collects the same number of frames
per batch with the same policy, and every frame is checked: each environment goes on where it was.
Collectors with workers go on while nobody asks, so they are timed one after another, and the
batches that are ready beforehand are discarded. The keys ``trap-*`` do not discard enough of them.
The keys ``start-*`` are the time from the constructor to the first batch, by start method.
"""

import contextlib
import functools
import math
import multiprocessing
import time
from statistics import median

import pytest
import torch
from torchrl.collectors import (
    AsyncBatchedCollector,
    Collector,
    MultiAsyncCollector,
    MultiSyncCollector,
)
from torchrl.envs import ParallelEnv, SerialEnv

from benchmarks import measure, metrics
from benchmarks.counting_env import Counting, StepCost, check_actions, check_frames, make_policy

FRAMES = 64  # frames_per_batch of every collector
HIDDEN_UNITS = 64
SITUATIONS = ((0, "none"), (1, "busy"), (1, "sleep"), (10, "busy"), (10, "sleep"))
WORKERS = {  # number of environments, each in a worker where there are workers: situations
    1: ((0, "none"), (1, "sleep")),
    2: SITUATIONS,
    4: ((0, "none"), (1, "busy"), (1, "sleep")),
}
SECONDS = 0.7  # for the rounds of one configuration
ROUND_SECONDS = 0.15
LEAST_ROUNDS, MOST_ROUNDS = 3, 9
START_METHODS = {"forkserver-first": 1, "forkserver": 3, "fork": 3, "spawn": 2}  # rounds
START_WORKERS = 2
TRAP_WORKERS = 2
TRAP_PAUSE = 0.15  # seconds, as an update between two batches takes them
TRAP_DISCARDED = (0, 1, 2, 3, 4)
TRAP_TIMED = 2 * TRAP_WORKERS  # batches, so that every worker takes part
TRAP_ROUNDS = 7

METRICS = metrics.declare("""
round_time [s] Time of a round: Wall time of the batches of one round, which are as many as fill a
    part of a second.
frames_per_second [1] Frames per second: Frames of a round, divided by its wall time; frames of all
    environments.
vs_collector [1] Frames per second against Collector: Frames per second, divided by the median of
    Collector with one environment at the same cost of a step, in the same run: above one, the row
    is faster.
vs_steady [1] Frames per second against steady state: Frames per second of the batches after a
    pause, divided by those of the batches that follow in the same round: above one, the timing
    promises too much.
start_time [s] Time to the first batch: Wall time from the constructor of the collector to its first
    batch.
""")

TITLES = {
    "rollout": "env.rollout",
    "collector": "Collector",
    "serial": "Collector, SerialEnv",
    "parallel": "Collector, ParallelEnv",
    "multi-sync": "MultiSyncCollector",
    "multi-async": "MultiAsyncCollector",
    "batched-threads": "AsyncBatchedCollector, threads",
    "batched-processes": "AsyncBatchedCollector, processes",
    "batched-slots": 'AsyncBatchedCollector, transport="auto"',
}
ONE = ("rollout", "collector")
SEVERAL = tuple(name for name in TITLES if name not in ONE)
WITH_ONE_WORKER = ("multi-sync", "multi-async", "batched-threads", "batched-slots")


def build(name, workers, step_cost, frames, device):
    factories = [functools.partial(Counting, number, step_cost) for number in range(workers)]
    policy = make_policy(HIDDEN_UNITS)
    common = {"frames_per_batch": frames, "total_frames": -1}
    if name.startswith("batched"):
        if name == "batched-threads":
            where = {"policy": policy, "env_backend": "threading"}
        elif name == "batched-processes":
            where = {"policy": policy, "env_backend": "multiprocessing"}
        else:
            where = {
                "policy_factory": functools.partial(make_policy, HIDDEN_UNITS),
                "env_backend": "multiprocessing",
                "transport": "auto",
            }
        if device is not None and device.type != "cpu":
            where["device"] = device
        return AsyncBatchedCollector(factories, **common, **where)
    common["auto_register_policy_transforms"] = False
    if device is not None and device.type != "cpu":
        policy = policy.to(device)
        place = next(policy.parameters()).device
        common |= {"policy_device": place, "env_device": "cpu", "storing_device": "cpu"}
    if name == "multi-sync":
        return MultiSyncCollector(factories, policy, **common)
    if name == "multi-async":
        return MultiAsyncCollector(factories, policy, **common)
    if name == "collector":
        return Collector(factories[0](), policy, **common)
    kind = {"serial": SerialEnv, "parallel": ParallelEnv}[name]
    return Collector(kind(workers, factories), policy, **common)


class Rollouts:
    """``env.rollout`` in the place of a collector: what a loop without one gives."""

    def __init__(self, step_cost, frames):
        self.env, self.policy, self.frames = (
            Counting(0, step_cost),
            make_policy(HIDDEN_UNITS),
            frames,
        )

    def __iter__(self):
        while True:
            with torch.no_grad():
                yield self.env.rollout(self.frames, self.policy, break_when_any_done=False)

    def shutdown(self):
        self.env.close()


class Running:
    """A collector that runs until the next one is asked for."""

    def __init__(self, name, workers, step_cost, device):
        self.name, self.workers, self.step_cost, self.device = name, workers, step_cost, device
        self.collector = (
            Rollouts(step_cost, FRAMES)
            if name == "rollout"
            else build(name, workers, step_cost, FRAMES, device)
        )
        self.iterator = iter(self.collector)

    def collect(self, batches):
        return measure.settled(self.device, lambda: [next(self.iterator) for _ in range(batches)])

    def set_cost(self, step_ms, wait):
        """Change the cost of a step, and discard what was collected at another."""
        self.step_cost.set(step_ms, wait)
        self.collect(self.ready)

    @property
    def ready(self):
        """The batches that may hold frames of another cost."""
        if self.name == "multi-async":
            return self.workers + 2  # one from each worker, one in the queue, one under way
        if self.name == "batched-slots":  # a message is a batch; up to two wait for each worker
            return 2 * self.workers + 2
        return 2 if self.name.startswith("batched") else 1

    @property
    def cycle(self):
        """Batches in which every worker takes part."""
        return self.workers if self.name in ("multi-async", "batched-slots") else 1

    def close(self):
        self.step_cost.set(0, "none")
        self.collector.shutdown()
        torch.set_num_threads(measure.THREADS)  # collectors with workers leave another number


class Kept:
    """At most one collector runs at a time."""

    def __init__(self, step_cost, device):
        self.step_cost, self.device, self.asked, self.running = step_cost, device, None, None
        self.of_collector = {}

    def get(self, name, workers):
        if self.asked != (name, workers):
            self.close()
            self.running = Running(name, workers, self.step_cost, self.device)
            self.asked = (name, workers)
        return self.running

    def close(self):
        if self.running is not None:
            self.running.close()
        self.asked = self.running = None


@pytest.fixture(scope="module", autouse=True)
def start_method():
    """Workers of a fork server import TorchRL once, not once each."""
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("forkserver", force=True)
    multiprocessing.set_forkserver_preload(["torchrl.collectors", "torchrl.envs"])
    yield
    multiprocessing.set_start_method(before, force=True)
    torch.set_num_threads(measure.THREADS)


@pytest.fixture(scope="module")
def kept(device, tmp_path_factory):
    kept = Kept(StepCost(tmp_path_factory.mktemp("dial") / "cost"), device)
    yield kept
    kept.close()


# -- The start -------------------------------------------------------------------


# Python 3.12 warns about fork in a process with threads: that is what is measured.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("method", START_METHODS)
def bench_start(benchmark, device, tmp_path, method):
    if method == "fork" and device.type == "cuda":
        pytest.skip("a process that has used CUDA cannot be forked")
    step_cost = StepCost(tmp_path / "cost")
    started = []

    def start():
        collector = build("multi-sync", START_WORKERS, step_cost, FRAMES, device)
        iterator = iter(collector)
        started.append((collector, next(iterator)))

    def stop():
        for collector, batch in started:
            check_frames([batch])
            collector.shutdown()
        started.clear()

    name = method.removesuffix("-first")
    with using(name):
        benchmark.pedantic(start, setup=stop, rounds=START_METHODS[method], warmup_rounds=0)
        stop()
    torch.set_num_threads(measure.THREADS)
    note(
        benchmark,
        f"start-{method}",
        "start_time",
        title=f"Start with {method}",
        parameters={
            "collector": TITLES["multi-sync"],
            "workers": START_WORKERS,
            "start_method": name,
            "first": method.endswith("-first"),
        },
    )


@contextlib.contextmanager
def using(method):
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method(method, force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(before, force=True)


def note(benchmark, key, timing, *, parameters, **said):
    measure.note(
        benchmark,
        key,
        timing,
        parameters=parameters
        | {
            "environment": "counting",
            "frames_per_batch": FRAMES,
            "hidden_units": HIDDEN_UNITS,
        },
        **said,
    )
    benchmark.extra_info["warmup_rounds"] = 0


# -- Throughput ------------------------------------------------------------------


def runs():
    """Name, number of environments and situation; those of one start stand in a row."""
    for name in ONE:
        for situation in SITUATIONS if name == "collector" else WORKERS[1]:
            yield name, 1, situation
    for workers, situations in WORKERS.items():
        for name in WITH_ONE_WORKER if workers == 1 else SEVERAL:
            for situation in situations:
                yield name, workers, situation


def key_of(name, workers, situation):
    return f"throughput-n{workers}-{name}-{situation[1]}-{situation[0]}"


@pytest.mark.parametrize(
    ("name", "workers", "situation"),
    [pytest.param(*run, id=key_of(*run)) for run in runs()],
)
def bench_throughput(benchmark, device, kept, name, workers, situation):
    running = kept.get(name, workers)
    running.set_cost(*situation)
    begin = time.perf_counter()
    batches = running.collect(running.cycle)
    once = time.perf_counter() - begin
    cycles = max(1, math.ceil(ROUND_SECONDS / once))
    rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, int(SECONDS / (cycles * once))))
    seconds = []

    def collect():
        start = time.perf_counter()
        batches.extend(running.collect(cycles * running.cycle))
        seconds.append(time.perf_counter() - start)

    benchmark.pedantic(collect, rounds=rounds, warmup_rounds=0)
    # A rollout begins with a reset. What waits for a second in a worker of the asynchronous
    # collector is thrown away and collected anew.
    counted = check_frames(batches, contiguous=name not in ("rollout", "multi-async"))
    assert counted == FRAMES * running.cycle * (1 + cycles * rounds), counted
    check_actions(batches[-1], make_policy(HIDDEN_UNITS))
    rates = [FRAMES * running.cycle * cycles / spent for spent in seconds]
    if name == "collector":
        kept.of_collector[situation] = median(rates)
    sampled = {"frames_per_second": rates}
    if situation in kept.of_collector:
        sampled["vs_collector"] = [rate / kept.of_collector[situation] for rate in rates]
    step_ms, wait = situation
    note(
        benchmark,
        key_of(name, workers, situation),
        "round_time",
        title=f"{TITLES[name]}, {workers} environments, {step_ms} ms {wait}",
        parameters={
            "collector": TITLES[name],
            "workers": workers,
            "step_ms": step_ms,
            "wait": wait,
        },
        sampled=sampled,
    )


# -- The trap --------------------------------------------------------------------


@pytest.mark.parametrize("discarded", TRAP_DISCARDED)
def bench_trap(benchmark, device, kept, discarded):
    running = kept.get("multi-async", TRAP_WORKERS)
    running.set_cost(0, "none")
    rates, ratios, batches = [], [], []

    def timed(number):
        begin = time.perf_counter()
        found = running.collect(number)
        seconds = time.perf_counter() - begin
        batches.extend(found)
        return FRAMES * number / seconds

    def setup():
        time.sleep(TRAP_PAUSE)  # the workers fill the queue meanwhile
        batches.extend(running.collect(discarded))

    def collect():
        rates.append(timed(TRAP_TIMED))

    def compare():
        batches.extend(running.collect(max(TRAP_DISCARDED)))
        ratios.append(rates[-1] / timed(2 * TRAP_TIMED))

    benchmark.pedantic(
        collect,
        setup=setup,
        teardown=compare,
        rounds=TRAP_ROUNDS,
        warmup_rounds=0,
    )
    check_frames(batches, contiguous=False)
    note(
        benchmark,
        f"trap-{discarded}",
        "round_time",
        title=f"{discarded} batches discarded after a pause",
        parameters={
            "collector": TITLES["multi-async"],
            "workers": TRAP_WORKERS,
            "discarded": discarded,
            "timed_batches": TRAP_TIMED,
            "step_ms": 0,
            "wait": "none",
        },
        sampled={"frames_per_second": rates, "vs_steady": ratios},
    )
