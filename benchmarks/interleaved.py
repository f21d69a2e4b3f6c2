"""Time several ways of doing the same work in turn, so that their ratios survive a noisy machine.

:func:`paired` times two ways for one benchmark. Where many ways are compared with one, or a call is
divided into parts, each would run again for every benchmark: there the rounds are timed once, by
:func:`rounds` or by the suite, and :func:`report` hands them to the benchmark that states them.

A change here voids the benchmarks that reach it.
"""

import time

from benchmarks import measure

SECONDS = 1.0  # for all rounds of both ways together
LEAST_ROUNDS = 7
MOST_ROUNDS = 60
WARMUP_ROUNDS = 2


def paired(benchmark, device, ours, reference, seconds=SECONDS):
    """Time *ours*, each round right after a round of *reference*, over about *seconds*.

    Both are called without arguments. Return the ratios ours / reference of the rounds: below one,
    *ours* is faster. Both have to be able to pause: workers that go on in the background slow the
    other way down.
    """
    spent = {"ours": [], "reference": []}

    def step(function, name):
        begin = time.perf_counter()
        measure.settled(device, function)
        spent[name].append(time.perf_counter() - begin)

    step(reference, "reference")
    step(ours, "ours")
    both = spent["reference"].pop() + spent["ours"].pop()
    rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, int(seconds / both)))
    benchmark.pedantic(
        step,
        setup=lambda: step(reference, "reference") or ((ours, "ours"), {}),
        rounds=rounds,
        warmup_rounds=WARMUP_ROUNDS,
    )
    ratios = [a / b for a, b in zip(spent["ours"], spent["reference"], strict=True)]
    return ratios[WARMUP_ROUNDS:]


def note(benchmark, key, timing, **said):
    """:func:`benchmarks.measure.note` for a benchmark that :func:`paired` has timed."""
    measure.note(benchmark, key, timing, **said)
    benchmark.extra_info["warmup_rounds"] = WARMUP_ROUNDS


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
    """:func:`benchmarks.measure.note` for rounds that were timed before."""
    benchmark.state(seconds)
    measure.note(benchmark, key, timing, **said)
    benchmark.extra_info["warmup_rounds"] = warmup
