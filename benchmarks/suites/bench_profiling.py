"""Profiling: a trace of a PPO iteration, the cost of its parts, and what profiling costs.

PPO learns CartPole-v1: a collector, generalized advantage estimates, minibatches, Adam. The keys
``iteration-*``, ``step-*`` and ``minibatch-*`` are ranges of one trace, of the iteration whose time
is the median: the whole of it, one step of its collector, one of its minibatches. The keys
``part-*`` sum up every range of all traces into parts that do not overlap, ``half-*`` say how long
collection, advantage and update take with and without the profiler. The keys ``overhead-*`` are
iterations under one way of profiling, each right after one without; ``off-again`` is no profiling
in a second process, and says how much of a ratio is noise. The keys ``range-*`` are the cost of one
range, with what it is made of beside it.
"""

import contextlib
import functools
import gc
import json
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torchrl import set_profiling_enabled, timeit
from torchrl._utils import _maybe_record_function_decorator
from torchrl.collectors import Collector
from torchrl.envs import GymEnv, StepCounter, TransformedEnv
from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from benchmarks import measure, metrics

VARIABLE = "TORCHRL_PROFILING"
ENVIRONMENT = "CartPole-v1"
SEED = 0
HIDDEN = 64
MINIBATCH = 64
FRAMES, EPOCHS = 256, 4  # of the iteration that is traced
SHORT_FRAMES, SHORT_EPOCHS = 64, 1  # of the iteration whose overhead is measured
TRACES = 7
WARMUP = 3  # iterations before anything is measured
ROUNDS = 7
SLOW_ROUNDS = 4  # with stacks, where writing the trace takes seconds
RANGE_CALLS = 5000  # in one round of range-*
RANGE_ROUNDS = 15

METRICS = metrics.declare("""
start [s] Start: When the range begins, from the begin of the window that is drawn.
duration [s] Duration: How long the range lasts, the ranges inside it included.
part_time [s] Time in the trace: Time of all ranges of the part, without the ranges of other parts
    inside them; median over the traces. Keys half-*: with all ranges inside.
share [%] Share of the iteration: Time in the trace, divided by that of the iteration.
python_share [%] Outside operators: Part of that time in which no operator of torch runs: Python,
    NumPy and the environment.
calls [1, exact] Calls: How often the part runs in one iteration.
plain_time [s] Time without the profiler: Time of the part by timeit, in iterations that no profiler
    watches.
plain_share [%] Share without the profiler: Time of the part by timeit, divided by that of the
    iteration.
iteration_time [s] Time of an iteration: Wall time of one short iteration, without starting and
    ending a profiler.
time_vs_off [1] Time against no profiling: Time of a short iteration, divided by that of one without
    profiling right before it.
finish_time [s] Time to the file: Wall time from the end of a short iteration to the trace on disk.
trace_bytes [B] Size of the trace: Bytes of the Chrome trace of one short iteration.
trace_vs_profiler [1] Size against no options: Bytes of the trace, divided by the median of those
    without options.
events_per_frame [1] Events per frame: Events in the trace, divided by the frames of the short
    iteration.
range_time [s] Time of a range: Time that one range adds to a call, the mean over a round of calls.
""")


def note(benchmark, *arguments, warmup_rounds=WARMUP, **keywords):
    measure.note(benchmark, *arguments, **keywords)
    benchmark.extra_info["warmup_rounds"] = warmup_rounds


# -- One iteration of PPO ------------------------------------------------------------


def no_mark(name):
    return contextlib.nullcontext()


class Training:
    """PPO on CartPole; *mark* is what each part of an iteration runs under."""

    def __init__(self, device, frames, epochs):
        torch.manual_seed(SEED)
        self.device, self.frames, self.epochs = device, frames, epochs
        env = TransformedEnv(GymEnv(ENVIRONMENT), StepCounter())
        env.set_seed(SEED)
        sizes = {"num_cells": [HIDDEN, HIDDEN], "activation_class": nn.Tanh, "device": device}
        actor = ProbabilisticActor(
            TensorDictModule(MLP(4, 2, **sizes), ["observation"], ["logits"]),
            in_keys=["logits"],
            distribution_class=OneHotCategorical,
            return_log_prob=True,
        )
        critic = ValueOperator(MLP(4, 1, **sizes), in_keys=["observation"])
        devices = {}
        if device.type != "cpu":
            place = next(actor.parameters()).device  # with its index, else the policy is copied
            devices = {"policy_device": place, "env_device": "cpu", "storing_device": "cpu"}
        self.collector = Collector(
            env,
            actor,
            frames_per_batch=frames,
            total_frames=-1,
            auto_register_policy_transforms=False,
            **devices,
        )
        self.batches = iter(self.collector)
        self.advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
        self.loss = ClipPPOLoss(actor, critic)
        self.optimizer = torch.optim.Adam(self.loss.parameters(), 3e-4)

    def iterate(self, mark=no_mark):
        """Collect and learn once; return the last loss."""
        with mark("iteration"):
            with mark("collect"):
                batch = next(self.batches)
            with mark("advantage"):
                batch = self.advantage(batch.to(self.device))
            batch = batch.reshape(-1)
            for _ in range(self.epochs):
                with mark("epoch"):
                    for rows in torch.randperm(self.frames, device=self.device).split(MINIBATCH):
                        with mark("minibatch"):
                            loss = self.learn(batch, rows, mark)
            return measure.settled(self.device, loss.detach)

    def learn(self, batch, rows, mark):
        with mark("sample"):
            sample = batch[rows]
        with mark("loss"):
            losses = self.loss(sample)
            loss = sum(value for key, value in losses.items() if key.startswith("loss_"))
        with mark("backward"):
            loss.backward()
        with mark("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss

    def close(self):
        self.collector.shutdown()


def activities(device):
    found = [ProfilerActivity.CPU]
    return [*found, ProfilerActivity.CUDA] if device.type == "cuda" else found


# -- Reading a trace ------------------------------------------------------------------


class Range(NamedTuple):
    """A named range of a trace, in seconds, with the ranges and the operators right inside it."""

    name: str
    start: float
    duration: float
    inner: list
    operators: list  # how long each lasts

    @property
    def end(self):
        return self.start + self.duration

    @property
    def own(self):
        return self.duration - sum(part.duration for part in self.inner)

    def walk(self, depth=0):
        """This range and all inside it, in order of time, each with its depth."""
        yield depth, self
        for part in self.inner:
            yield from part.walk(depth + 1)

    def find(self, name):
        return [found for _, found in self.walk() if found.name == name]


def events_of(profiler):
    """The events of *profiler*'s Chrome trace, and the bytes of the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_bytes())["traceEvents"], path.stat().st_size


KINDS = ("user_annotation", "cpu_op")  # ranges, and operators such as aten::addmm


def read_ranges(events):
    """The outermost range with the name "iteration", as a tree."""
    found = [e for e in events if e.get("ph") == "X" and e.get("cat") in KINDS]
    root, around = None, []
    for event in sorted(found, key=lambda e: (e["ts"], -e["dur"])):
        operator = event["cat"] == "cpu_op"
        item = Range(event["name"], event["ts"] / 1e6, event["dur"] / 1e6, [], [])
        while around and around[-1].end < item.end:
            around.pop()
        if around:
            place = around[-1].operators if operator else around[-1].inner
            place.append(item.duration if operator else item)
        elif item.name == "iteration":
            root = item
        if around or item is root:
            around.append(item)
    return root


def trace(training):
    """The ranges of one iteration under the profiler."""
    with profile(activities=activities(training.device)) as profiler:
        training.iterate(record_function)
    return read_ranges(events_of(profiler)[0])


# Which ranges are a part. What lies in a range and in no range of its own is the first's.
PARTS = {
    "policy": ("Policy", ("Collector.policy",)),
    "env": (
        "Environment",
        (
            "EnvBase.step_and_maybe_reset",
            "EnvBase.step",
            "EnvBase.reset",
            "TransformedEnv._step",
            "TransformedEnv._reset",
        ),
    ),
    "collector": ("Collector's own work", ("Collector.rollout", "collect")),
    "advantage": ("Advantage", ("advantage",)),
    "sample": ("Rows of a minibatch", ("sample",)),
    "loss": ("Loss, forward", ("loss",)),
    "backward": ("Backward", ("backward",)),
    "optimizer": (
        "Optimizer",
        ("optimizer", "Optimizer.step#Adam.step", "Optimizer.zero_grad#Adam.zero_grad"),
    ),
    "rest": ("The loop itself", ("iteration", "epoch", "minibatch")),
}
HALVES = {
    "collect": ("Collection", "collect"),
    "advantage": ("Advantage", "advantage"),
    "update": ("Update", "epoch"),
}
CALLS = {  # the range that says how often a part runs
    "policy": "Collector.policy",
    "env": "EnvBase.step_and_maybe_reset",
    "collector": "Collector.rollout",
    **dict.fromkeys(("advantage", "sample", "loss", "backward", "optimizer")),
    "rest": "iteration",
}


def parts_of(root):
    """Seconds, those in operators, and calls of each part; the seconds fill the iteration."""
    whose = {name: part for part, (_, names) in PARTS.items() for name in names}
    seconds, operators = dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, 0.0)
    calls = dict.fromkeys(PARTS, 0)
    for _, found in root.walk():
        assert found.name in whose, f"{found.name!r} belongs to no part"
        part = whose[found.name]
        seconds[part] += found.own
        operators[part] += sum(found.operators)
        calls[part] += found.name == (CALLS[part] or part)
    assert abs(sum(seconds.values()) - root.duration) < 1e-6
    return seconds, operators, calls


# -- What is drawn ----------------------------------------------------------------------

# Depth and name of each range in order of time; the same in every trace.
VIEWS = {
    "iteration": [
        (0, "iteration"),
        (1, "collect"),
        (2, "Collector.rollout"),
        (1, "advantage"),
        *[(1, "epoch")] * EPOCHS,
    ],
    "step": [
        (0, "one step"),
        (1, "Collector.policy"),
        (1, "EnvBase.step_and_maybe_reset"),
        (2, "EnvBase.step"),
        (3, "TransformedEnv._step"),
    ],
    "minibatch": [
        (0, "minibatch"),
        (1, "sample"),
        (1, "loss"),
        (1, "backward"),
        (1, "optimizer"),
        (2, "Optimizer.step#Adam.step"),
        (2, "Optimizer.zero_grad#Adam.zero_grad"),
    ],
}
VIEW_TITLES = {
    "iteration": "One iteration",
    "step": "One step of the collector",
    "minibatch": "One minibatch",
}
RANGES = [(view, index) for view, shown in VIEWS.items() for index in range(len(shown))]


def middle(ranges):
    """The one with the median duration."""
    return sorted(ranges, key=lambda found: found.duration)[len(ranges) // 2]


def steps_of(root):
    """The steps of the rollout without a reset, each from one call of the policy to the next."""
    (rollout,) = root.find("Collector.rollout")
    begins = [i for i, part in enumerate(rollout.inner) if part.name == "Collector.policy"]
    for first, following in pairwise(begins):
        inner = rollout.inner[first:following]
        start, end = inner[0].start, rollout.inner[following].start
        step = Range("one step", start, end - start, inner, [])
        if [(d, found.name) for d, found in step.walk()] == VIEWS["step"]:
            yield step


def view_of(root, view):
    """The range that is drawn, and those inside it that are, with their depths."""
    if view == "iteration":
        window = root
        found = [(d, r) for d, r in root.walk() if (d, r.name) in VIEWS[view]]
    else:
        window = middle(list(steps_of(root)) if view == "step" else root.find("minibatch"))
        found = list(window.walk())
    assert [(depth, part.name) for depth, part in found] == VIEWS[view]
    return [(part.start - window.start, part.duration) for _, part in found]


# -- A second process --------------------------------------------------------------------


def serve(pipe, armed, device, threads):
    """What a child does: one short training, and whatever the parent asks of it."""
    torch.set_num_threads(threads)
    bench = Bench(device)
    assert (os.environ.get(VARIABLE) == "1") == armed
    while order := pipe.recv():
        name, *arguments = order
        pipe.send(getattr(bench, name)(*arguments))
    bench.training.close()
    pipe.close()


class Child:
    """A :class:`Bench` in a process of its own, with or without the variable."""

    def __init__(self, device, armed):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, armed, device, torch.get_num_threads())
        self.process = context.Process(target=serve, args=arguments, daemon=True)
        with mock.patch.dict(os.environ, {VARIABLE: "1" if armed else "0"}):
            self.process.start()
        theirs.close()

    def __getattr__(self, name):
        return lambda *arguments: self.pipe.send((name, *arguments)) or self.pipe.recv()

    def close(self):
        self.pipe.send(None)
        self.process.join()


class Bench:
    """What is measured in the parent and, the same, in a child."""

    def __init__(self, device):
        self.training = Training(device, SHORT_FRAMES, SHORT_EPOCHS)
        self.loss = self.training.iterate().item()
        for _ in range(WARMUP):
            self.training.iterate()

    def first_loss(self):
        return self.loss

    def plain(self, mark=no_mark):
        gc.collect()  # what earlier traces left behind, which is no part of an iteration
        return self.timed(mark)

    def timed(self, mark):
        begin = time.perf_counter()
        self.training.iterate(mark)
        return {"iteration_time": time.perf_counter() - begin}

    def timeit(self):
        return self.plain(timeit)

    def disabled(self):
        """With the variable set, and switched off at run time."""
        set_profiling_enabled(False)
        found = self.plain()
        set_profiling_enabled(True)
        return found

    def profiled(self, options):
        """One iteration under the profiler, with its trace written."""
        gc.collect()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.json")
            with profile(activities=activities(self.training.device), **options) as profiler:
                found = self.timed(record_function)
                begin = time.perf_counter()
            profiler.export_chrome_trace(str(path))
            found["finish_time"] = time.perf_counter() - begin
            found["trace_bytes"] = path.stat().st_size
            text = path.read_bytes()
        found["events_per_frame"] = text.count(b'"ph": ') / SHORT_FRAMES
        found["ranges"] = text.count(b'"name": "Collector.policy"')
        return found

    def loss_under(self, way):
        """The loss of a fresh training under *way*: no way of profiling changes it."""
        before, self.training = self.training, Training(self.training.device, 64, 1)
        name, *arguments = way
        losses = []
        iterate = self.training.iterate
        self.training.iterate = lambda mark=no_mark: losses.append(iterate(mark).item())
        getattr(self, name)(*arguments)
        self.training.close()
        self.training = before
        return losses

    def traces(self, count):
        """Traces of whole iterations and, in turn with them, the seconds of parts by timeit."""
        training = Training(self.training.device, FRAMES, EPOCHS)
        for _ in range(WARMUP):
            training.iterate()
        roots, plain = [], []
        for _ in range(count):
            timeit.erase()
            training.iterate(timeit)
            plain.append(timeit.todict(percall=False))
            roots.append(trace(training))
        training.close()
        return roots, plain

    def range_cost(self, kind, calls, rounds):
        """Seconds that one range adds to a call, in each round."""
        wrapped = {
            "torchrl": lambda: _maybe_record_function_decorator("range")(nothing),
            "timeit": lambda: timeit("range")(nothing),
            "record_function": lambda: record_function("range")(nothing),
        }[kind]()
        found = []
        for _ in range(measure.WARMUP_ROUNDS + rounds):
            found.append((seconds_of(wrapped, calls) - seconds_of(nothing, calls)) / calls)
        return found[measure.WARMUP_ROUNDS :]

    def range_cost_disabled(self, *arguments):
        set_profiling_enabled(False)
        found = self.range_cost("torchrl", *arguments)
        set_profiling_enabled(True)
        return found

    def range_cost_profiled(self, *arguments):
        with profile(activities=activities(self.training.device)):
            return self.range_cost("torchrl", *arguments)


def nothing():
    pass


def seconds_of(function, calls):
    begin = time.perf_counter()
    for _ in range(calls):
        function()
    return time.perf_counter() - begin


# -- Everything is measured in turn, once --------------------------------------------------

STACK, SHAPES, MEMORY = ({name: True} for name in ("with_stack", "record_shapes", "profile_memory"))
# key: title, process, the call that is measured
WAYS = {
    "off": ("No profiling", "parent", ("plain",)),
    "off-again": ("No profiling, another process", "plain", ("plain",)),
    "timeit": ("timeit around the parts", "parent", ("timeit",)),
    "armed": (f"{VARIABLE}=1, no profiler", "armed", ("plain",)),
    "armed-disabled": (f"{VARIABLE}=1, set_profiling_enabled(False)", "armed", ("disabled",)),
    "profiler": ("torch.profiler", "parent", ("profiled", {})),
    "profiler-armed": (f"torch.profiler with {VARIABLE}=1", "armed", ("profiled", {})),
    "profiler-shapes": ("torch.profiler, record_shapes", "parent", ("profiled", SHAPES)),
    "profiler-memory": ("torch.profiler, profile_memory", "parent", ("profiled", MEMORY)),
    "profiler-stack": ("torch.profiler, with_stack", "parent", ("profiled", STACK)),
    "profiler-defaults": (
        "Options of enable_profile by default",
        "armed",
        ("profiled", SHAPES | STACK),
    ),
}
SLOW = [way for way, (_, _, call) in WAYS.items() if "with_stack" in call[-1]]
PROFILED = [way for way, (_, _, call) in WAYS.items() if call[0] == "profiled"]
RANGE_KINDS = {
    "armed": (f"Range of TorchRL, {VARIABLE}=1", "armed", ("range_cost", "torchrl")),
    "disabled": ("The same, set_profiling_enabled(False)", "armed", ("range_cost_disabled",)),
    "profiled": ("The same, under torch.profiler", "armed", ("range_cost_profiled",)),
    "record-function": (
        "record_function, no profiler",
        "parent",
        ("range_cost", "record_function"),
    ),
    "timeit": ("timeit", "parent", ("range_cost", "timeit")),
}


def alike(losses, bench):
    """Whether *losses* is the one loss of *bench*'s first iteration, but for rounding on a GPU."""
    return len(losses) == 1 and math.isclose(losses[0], bench.loss, rel_tol=1e-4)


@functools.cache
def measured(device):
    """Per way: samples of the metrics. Per kind of range: seconds. The traces, and their halves."""
    children = {name: Child(device, name == "armed") for name in ("plain", "armed")}
    parent = Bench(device)
    for child in children.values():
        assert alike([child.first_loss()], parent), "the processes learn different things"
    places = {"parent": parent, **children}
    samples = {way: {} for way in WAYS}
    for way, (_, place, call) in WAYS.items():
        assert alike(places[place].loss_under(call), parent), f"{way} changes the loss"
    for turn in range(ROUNDS):
        for way, (_, place, (name, *arguments)) in WAYS.items():
            if way in SLOW and turn >= SLOW_ROUNDS:
                continue
            for idle in (places[place], parent):  # while the way before wrote its trace
                idle.plain()
            reference = parent.plain()["iteration_time"]
            found = getattr(places[place], name)(*arguments)
            found["time_vs_off"] = found["iteration_time"] / reference
            if "ranges" in found:
                armed = place == "armed"
                assert found.pop("ranges") == (SHORT_FRAMES if armed else 0), way
            for metric, value in found.items():
                samples[way].setdefault(metric, []).append(value)
    ranges = {
        kind: getattr(places[place], name)(*arguments, RANGE_CALLS, RANGE_ROUNDS)
        for kind, (_, place, (name, *arguments)) in RANGE_KINDS.items()
    }
    found_traces = children["armed"].traces(TRACES)
    parent.training.close()
    for child in children.values():
        child.close()
    usual = statistics.median(samples["profiler"]["trace_bytes"])
    for way in PROFILED:
        samples[way]["trace_vs_profiler"] = [b / usual for b in samples[way]["trace_bytes"]]
    return samples, ranges, found_traces


def traces(device):
    return measured(device)[2]


SIZES = {
    "environment": ENVIRONMENT,
    "frames": FRAMES,
    "epochs": EPOCHS,
    "minibatch": MINIBATCH,
    "hidden": HIDDEN,
}
SHORT_SIZES = SIZES | {"frames": SHORT_FRAMES, "epochs": SHORT_EPOCHS}


@pytest.mark.parametrize(("view", "index"), RANGES)
def bench_ranges(benchmark, device, view, index):
    roots, _ = traces(device)
    drawn = middle(roots)
    depth, name = VIEWS[view][index]
    shown = view_of(drawn, view)
    start, duration = shown[index]

    assert start >= 0
    assert start + duration <= shown[0][1] + 1e-9, "a range outlasts what it is in"
    benchmark.state([duration])
    note(
        benchmark,
        f"{view}-{index:02}",
        "duration",
        title=name,
        parameters={"view": VIEW_TITLES[view], "lane": "driver", "depth": depth, "name": name}
        | SIZES,
        sampled={"start": [start]},
    )


@pytest.mark.parametrize("part", PARTS)
def bench_parts(benchmark, device, part):
    roots, _ = traces(device)
    found = [parts_of(root) for root in roots]
    seconds, operators = ([parts[which][part] for parts in found] for which in (0, 1))
    calls = {counts[part] for *_, counts in found}

    updates = EPOCHS * FRAMES // MINIBATCH
    per_frame, once = ("policy", "env"), ("collector", "advantage", "rest")
    wanted = FRAMES if part in per_frame else 1 if part in once else updates
    assert calls == {wanted}
    benchmark.state(seconds)
    note(
        benchmark,
        f"part-{part}",
        "part_time",
        title=PARTS[part][0],
        parameters={"part": part} | SIZES,
        exact={"calls": wanted},
        sampled={
            "share": [100 * s / r.duration for s, r in zip(seconds, roots, strict=True)],
            "python_share": [100 - 100 * o / s for o, s in zip(operators, seconds, strict=True)],
        },
    )


@pytest.mark.parametrize("half", HALVES)
def bench_halves(benchmark, device, half):
    roots, plain = traces(device)
    title, name = HALVES[half]
    seconds = [sum(found.duration for found in root.find(name)) for root in roots]
    unwatched = [found[name] for found in plain]

    assert all(found[name] <= found["iteration"] for found in plain)
    benchmark.state(seconds)
    note(
        benchmark,
        f"half-{half}",
        "part_time",
        title=title,
        parameters={"half": half} | SIZES,
        sampled={
            "share": [100 * s / r.duration for s, r in zip(seconds, roots, strict=True)],
            "plain_time": unwatched,
            "plain_share": [100 * found[name] / found["iteration"] for found in plain],
        },
    )


@pytest.mark.parametrize("way", WAYS)
def bench_overhead(benchmark, device, way):
    found = dict(measured(device)[0][way])
    title, place, _ = WAYS[way]
    benchmark.state(found.pop("iteration_time"))
    note(
        benchmark,
        f"overhead-{way}",
        "iteration_time",
        title=title,
        parameters={"way": title, "variable_set": place == "armed"} | SHORT_SIZES,
        sampled=found,
    )


@pytest.mark.parametrize("kind", RANGE_KINDS)
def bench_range_cost(benchmark, device, kind):
    seconds = measured(device)[1][kind]
    benchmark.state([max(0.0, s) for s in seconds])
    note(
        benchmark,
        f"range-{kind}",
        "range_time",
        title=RANGE_KINDS[kind][0],
        parameters={"kind": RANGE_KINDS[kind][0], "calls": RANGE_CALLS},
        warmup_rounds=measure.WARMUP_ROUNDS,
    )
