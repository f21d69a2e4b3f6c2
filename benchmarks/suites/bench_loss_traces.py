"""Traces: one iteration of A2C, IMPALA and SAC, by the ranges of its parts.

The training loops are those of the suite loss_breakdown, and each part is the same range. Of some
iterations under torch.profiler, the one whose time is the median is kept. SAC makes many updates in
an iteration: they are one range, and one of them, whose time is the median, has keys of its own.
"""

import functools
import json
import tempfile
from pathlib import Path

import pytest
from torch.profiler import ProfilerActivity, profile

from benchmarks import metrics
from benchmarks.interleaved import report
from benchmarks.suites import bench_loss_breakdown as loops

WARMUP_ROUNDS = 3
TRACES = 5
UPDATES = "updates"
STEP = ("forward", "backward", "optimizer")
# Depth and name of each range, in order of time.
ON_POLICY = ("collect", "advantage", *STEP)
UPDATE = ("sample", *STEP, "target")
VIEWS = {
    "a2c": [(0, loops.WHOLE), *((1, name) for name in ON_POLICY)],
    "impala": [(0, loops.WHOLE), *((1, name) for name in ON_POLICY)],
    "sac": [(0, loops.WHOLE), (1, "collect"), (1, "extend"), (1, UPDATES)],
    "sac-update": [(0, "update"), *((1, name) for name in UPDATE)],
}

METRICS = metrics.declare("""
start [s] Start: When the range begins, from the begin of the window that is drawn.
duration [s] Duration: How long the range lasts, the ranges inside it included.
""")


def ranges_of(algorithm, device):
    """Name, start and end in seconds of each range of one iteration, in order of time."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        loops.timed_iteration(algorithm, device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text("utf-8"))["traceEvents"]
    found = [
        (event["name"].removeprefix(loops.RANGE), event["ts"] / 1e6, event["dur"] / 1e6)
        for event in events
        if event.get("cat") == "user_annotation" and event["name"].startswith(loops.RANGE)
    ]
    return sorted(((name, at, at + dur) for name, at, dur in found), key=lambda one: one[1:])


def middle(windows):
    """The one whose first range has the median duration."""
    return sorted(windows, key=lambda one: one[0][2] - one[0][1])[len(windows) // 2]


def updates_of(ranges):
    """The updates of an iteration, each a window that begins with the range of all of it."""
    parts = [one for one in ranges if one[0] in UPDATE]
    windows = [parts[at : at + len(UPDATE)] for at in range(0, len(parts), len(UPDATE))]
    return [[("update", one[0][1], one[-1][2]), *one] for one in windows]


@functools.cache
def traced(name, device):
    """The windows of the views of an algorithm."""
    algorithm = loops.ALGORITHMS[name](device)
    for _ in range(WARMUP_ROUNDS):
        loops.timed_iteration(algorithm, device)
    traces = []
    for _ in range(TRACES):
        found = ranges_of(algorithm, device)
        whole = [one for one in found if one[0] == loops.WHOLE]
        traces.append(whole + [one for one in found if one[0] != loops.WHOLE])
    algorithm.close()
    iteration = middle(traces)
    if name != "sac":
        return {name: iteration}
    updates = updates_of(iteration)
    whole, *parts = iteration
    others = [one for one in parts if one[0] not in UPDATE]
    every = (UPDATES, updates[0][0][1], updates[-1][0][2])
    return {"sac": [whole, *others, every], "sac-update": middle(updates)}


def cases():
    for view, ranges in VIEWS.items():
        for index in range(len(ranges)):
            yield view, index


@pytest.mark.parametrize(("view", "index"), list(cases()))
def bench_trace(benchmark, device, view, index):
    if device.type == "cuda":
        pytest.skip("the environments and these small networks are on the CPU")
    algorithm = view.partition("-")[0]
    window = traced(algorithm, device)[view]
    assert [one[0] for one in window] == [name for _, name in VIEWS[view]]
    name, start, end = window[index]
    report(
        benchmark,
        [end - start],
        WARMUP_ROUNDS,
        f"{view}-{index:02}",
        "duration",
        title=name,
        parameters={
            "algorithm": algorithm.upper(),
            "lane": "training",
            "depth": VIEWS[view][index][0],
            "name": name,
            "frames": loops.ALGORITHMS[algorithm].frames,
        },
        sampled={"start": [start - window[0][1]]},
    )
