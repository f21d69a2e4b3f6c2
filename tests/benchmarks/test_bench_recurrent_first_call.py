"""The suite recurrent_first_call, run small: what the child reports, never a time."""

from unittest import mock

import pytest
import torch

from benchmarks.suites import bench_recurrent_first_call as bench

CPU = torch.device("cpu")
SMALL = {"batch": 2, "steps": 4, "hidden": 3, "resets": 1}


@pytest.fixture(autouse=True)
def small():
    with mock.patch.object(bench, "SIZES", SMALL):
        yield


def test_both_steps_are_timed(tmp_path):
    first, second, binaries = bench.run_child("gru", "pad", CPU, tmp_path)
    assert min(first, second) > 0
    assert binaries == 0  # no GPU, no kernel


def test_a_child_that_fails_says_why(tmp_path):
    """One that imports nothing: importing torchrl takes longer than to fail."""
    with (
        mock.patch.object(bench, "CHILD", "import sys\nraise KeyError(sys.argv[1])"),
        pytest.raises(AssertionError, match=r"KeyError: .*no such backend"),
    ):
        bench.run_child("gru", "no such backend", CPU, tmp_path)


def test_kernels_of_the_second_step_are_refused(tmp_path):
    """They would be compiled within a time that claims to be free of it."""
    late = bench.CHILD.replace(
        "    seconds.append(binaries)",
        "    Path(kernels).mkdir(exist_ok=True)\n"
        "    (Path(kernels) / f'{binaries}.cubin').touch()\n"
        "    seconds.append(binaries)",
    )
    with (
        mock.patch.object(bench, "CHILD", late),
        pytest.raises(AssertionError, match="the second step compiled as well"),
    ):
        bench.run_child("gru", "pad", CPU, tmp_path)
