"""Time two ways of doing the same work in turn, so that their ratio survives a noisy machine.

A change here changes the hash of every suite that imports this module, so its records are to be
taken again.
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
