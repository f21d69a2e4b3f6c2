"""The suite allocator, run small, and what the page on large tensors says of the C library."""

import json
import os
from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from benchmarks.suites import bench_allocator as suite
from tests.support import ROOT
from tests.support.claims import guards
from tests.support.programs import run_python
from tests.support.suites import recorded as recorded_of

PAGE = "docs/performance/networks.rst"
BOUND = 4 * 1024 * 1024 * 8  # DEFAULT_MMAP_THRESHOLD_MAX of glibc, where a long has eight bytes

pytestmark = pytest.mark.skipif(
    "CS_GNU_LIBC_VERSION" not in getattr(os, "confstr_names", {}), reason="needs glibc"
)

FAULTS = """\
import json, resource, sys
import torch

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

found = []
for size in map(int, sys.argv[1:]):
    found.append([])
    for _ in range(40):
        before = faults()
        torch.ones(size, dtype=torch.uint8)
        found[-1].append(faults() - before)
print(json.dumps([each[20:] for each in found]))
"""


def faults(*sizes, **variables):
    """Page faults of each tensor, by *sizes* in bytes, in a process with *variables*, settled."""
    return json.loads(run_python("-c", FAULTS, *sizes, **variables).stdout)


@guards("glibc-keeps-small-tensors", "large-tensors-mapped-anew")
def test_a_tensor_above_the_bound_is_mapped_anew():
    pages = BOUND // os.sysconf("SC_PAGE_SIZE")
    below, above = faults(BOUND // 2, BOUND)
    assert min(above) >= pages
    assert max(below) < pages / 100


@guards("glibc-variables-keep-memory")
def test_the_variables_end_it():
    printed = " ".join(f"{name}={value}" for name, value in suite.KEPT.items())
    assert f"   $ {printed} python train.py\n" in (ROOT / PAGE).read_text()
    (above,) = faults(2 * BOUND, **suite.KEPT)
    assert max(above) < 100


@guards("pixel-minibatch-above-bound")
def test_a_large_minibatch_of_pixels_is_above_the_bound():
    assert suite.scale(1).nbytes * suite.FRAMES > BOUND


@guards("large-tensors-kernel-time", "small-tensors-unchanged")
def test_above_the_bound_most_of_the_time_is_spared():
    for work in ("fill-64", "scale"):
        assert recorded(f"{work}-kept", "time_vs_default", "q3") < 0.5
        assert recorded(f"{work}-default", "page_faults") > BOUND / 4096
    for work in suite.WORKS:
        assert recorded(f"{work}-kept", "page_faults") == 0
    assert 0.75 < recorded("fill-8-kept", "time_vs_default") < 1.25


@guards("kept-memory-exceeds-largest")
def test_kept_memory_is_held():
    kept, default = (recorded(f"fill-64-{way}", "held") for way in ("kept", "default"))
    assert kept - default > 2 * suite.fill(64).nbytes


recorded = partial(recorded_of, "allocator")


# -- The suite ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured():
    with mock.patch.multiple(suite, WARMUP=0, ROUNDS=1):
        yield suite.measured()
    suite.measured.cache_clear()


def test_every_work_runs_in_both_ways(measured):
    assert set(measured) == {(name, way) for name in suite.WORKS for way in suite.WAYS}
    for (_, way), samples in measured.items():
        assert set(suite.METRICS) - set(samples) == (
            {"time_vs_default"} if way == "default" else set()
        )
        assert {len(values) for values in samples.values()} == {1}


def test_a_wrong_result_gives_no_record():
    totals = {name: expected for name, (*_, expected) in suite.WORKS.items()}
    child = SimpleNamespace(work=lambda name: (totals[name], 1.0, 0, 0))
    children = dict.fromkeys(suite.WAYS, child)
    assert suite.samples_of(children)
    totals["fill-8"] *= 1.001
    with pytest.raises(AssertionError, match="fill-8"):
        suite.samples_of(children)


def test_a_gpu_is_skipped_with_the_reason():
    with pytest.raises(pytest.skip.Exception, match="does not allocate on a GPU"):
        suite.bench_work(None, torch.device("cuda"), "fill-8", "kept")
