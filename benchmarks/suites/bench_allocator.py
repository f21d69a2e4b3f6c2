"""Large tensors on the CPU: memory that is mapped anew at each allocation, or kept.

The C library (glibc) takes a block of 32 MiB and more from the kernel at each allocation, unless a
free one happens to be at hand, and gives it back when the tensor dies; the kernel clears every page
again at its first touch. Two environment variables make it keep what was freed. The works run one
after the other in two processes in turn, one with the variables and one without.
"""

import contextlib
import functools
import multiprocessing
import os
import resource
import time
from collections import defaultdict
from unittest import mock

import pytest
import torch

from benchmarks import interleaved, measure, metrics

KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(8 * 2**30)}
FRAMES = 512
ROUNDS = 15
WARMUP = 8

METRICS = metrics.declare("""
work_time [s] Time: Wall time of the work once, its result dropped.
time_vs_default [1] Time against the default: Time of the work, divided by that in the other process
    right before it.
page_faults [1] Page faults: Pages that the kernel supplied during the work, 4 KiB each.
held [B] Held afterwards: Resident memory of the process once the results of this work and of those
    before it are gone, beyond what it was before the first.
""")


def fill(mebibytes):
    return torch.ones(mebibytes * 2**20, dtype=torch.uint8)


def scale(frames):
    """What a network for pixels is given: floats in place of bytes."""
    return torch.ones(frames, 4, 84, 84, dtype=torch.uint8).float() / 255


# key: title, function, argument, sum of the result
WORKS = {
    "fill-8": ("A tensor of 8 MiB, filled", fill, 8, 8 * 2**20),
    "scale": (f"{FRAMES} stacks of pixels to float", scale, FRAMES, FRAMES * 4 * 84 * 84 / 255),
    "fill-64": ("A tensor of 64 MiB, filled", fill, 64, 64 * 2**20),
}
WAYS = {"default": ("the default", {}), "kept": ("memory kept", KEPT)}


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def serve(pipe):
    """Run the works that the parent names; ``None`` ends it."""
    torch.set_num_threads(measure.THREADS)
    before_all = measure.resident_memory("VmRSS")
    while name := pipe.recv():
        _, function, argument, _ = WORKS[name]
        before, begin = faults(), time.perf_counter()
        result = function(argument)
        seconds, found = time.perf_counter() - begin, faults() - before
        total = float(result.numpy().sum())  # as torch's sum would allocate more than the work does
        del result
        pipe.send((total, seconds, found, measure.resident_memory("VmRSS") - before_all))


class Child:
    """A process in which the C library has read *variables*, as it does when a process starts."""

    def __init__(self, variables):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        with mock.patch.dict(os.environ, variables):
            self.process.start()
        theirs.close()

    def work(self, name):
        self.pipe.send(name)
        return self.pipe.recv()

    def close(self):
        self.pipe.send(None)
        self.process.join()


@functools.cache
def measured():
    """Samples of the metrics, by work and way."""
    with contextlib.ExitStack() as stack:
        children = {way: Child(variables) for way, (_, variables) in WAYS.items()}
        for child in children.values():
            stack.callback(child.close)
        return samples_of(children)


def samples_of(children):
    samples = {(name, way): defaultdict(list) for name in WORKS for way in WAYS}
    for name, (*_, expected) in WORKS.items():
        for turn in range(WARMUP + ROUNDS):
            spent = {}
            for way, child in children.items():
                total, spent[way], found, held = child.work(name)
                assert total == pytest.approx(expected, rel=1e-5), (way, name)
                if turn < WARMUP:
                    continue
                said = {"work_time": spent[way], "page_faults": found, "held": held}
                if way != "default":
                    said["time_vs_default"] = spent[way] / spent["default"]
                for metric, value in said.items():
                    samples[name, way][metric].append(value)
    return samples


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", WORKS)
def bench_work(benchmark, device, name, way):
    if device.type == "cuda":
        pytest.skip("the C library does not allocate on a GPU")
    sampled = dict(measured()[name, way])
    interleaved.report(
        benchmark,
        sampled.pop("work_time"),
        WARMUP,
        f"{name}-{way}",
        "work_time",
        title=f"{WORKS[name][0]}, {WAYS[way][0]}",
        parameters={"work": WORKS[name][0], "way": WAYS[way][0]} | WAYS[way][1],
        sampled=sampled,
    )
