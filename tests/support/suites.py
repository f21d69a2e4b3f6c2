"""What tests of the suites share: the committed records, and the entry that a benchmark notes."""

import functools
import re
import sys

import torch

from benchmarks.record import SCHEMA, Library
from benchmarks.timing import Benchmark
from tests.support import ROOT

COMMITTED = Library(ROOT / "benchmarks", ROOT / "requirements-docs.txt")
CPU = torch.device("cpu")
KEY = re.compile(SCHEMA["properties"]["benchmarks"]["propertyNames"]["pattern"])


@functools.cache
def benchmarks_of(suite, device="cpu"):
    """The benchmarks of the record of *suite* on *device*."""
    return COMMITTED.find(suite, device)["benchmarks"]


def recorded(suite, key, metric, of="median", device="cpu"):
    """A value of that record."""
    return benchmarks_of(suite, device)[key]["metrics"][metric][of]


def noted(bench, *arguments, **named):
    """What *bench* of a suite notes for its record, with its ``metrics`` and ``seconds``.

    It is called with a benchmark and the *arguments*. Pages can cite its key, the suite declares
    its metrics, and each sample has values.
    """
    benchmark = Benchmark()
    bench(benchmark, *arguments, **named)
    said = benchmark.extra_info
    metrics = {said["timing"], *said["exact"], *said["sampled"]}
    assert KEY.match(said["key"])
    assert said["title"]
    assert metrics <= set(sys.modules[bench.__module__].METRICS)
    assert all(said["sampled"].values())
    return said | {"metrics": metrics, "seconds": benchmark.seconds}
