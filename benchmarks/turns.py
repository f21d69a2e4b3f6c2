"""Time several ways of doing the same work in turn, once, and give each its own benchmark.

pytest-benchmark times one function a benchmark. Where many ways are compared with one, or a call is
divided into parts, each would run again for every benchmark. Here the rounds are timed by
:func:`rounds`, or by the suite, and :func:`report` hands them to the benchmark that states them.

A change here changes the hash of every suite that imports this module, so its records are to be
taken again.
"""

import time

import pytest

from benchmarks import measure


class Clock:
    """A clock that stands still until it is told how long something took."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


CLOCK = Clock()
reported = pytest.mark.benchmark(timer=CLOCK)


def rounds(device, ways, count, warmup):
    """Call each of *ways*, a mapping to functions, in turn; return the seconds of the rounds."""
    spent = {name: [] for name in ways}
    for turn in range(warmup + count):
        for name, function in ways.items():
            begin = time.perf_counter()
            measure.settled(device, function)
            if turn >= warmup:
                spent[name].append(time.perf_counter() - begin)
    return spent


def report(benchmark, seconds, warmup, key, timing, **said):
    """:func:`benchmarks.measure.note` for rounds that were timed before.

    The benchmark function carries the mark :data:`reported`.
    """
    left = iter(seconds)

    def again():
        CLOCK.now = next(left)

    def restart():
        CLOCK.now = 0.0

    benchmark.pedantic(again, setup=restart, rounds=len(seconds))
    measure.note(benchmark, key, timing, **said)
    benchmark.extra_info["warmup_rounds"] = warmup
