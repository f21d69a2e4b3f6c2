"""What is said of workers that outlive a loop, and of errors at their start; nothing is started."""

import errno
from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl_doctor import APPLIES, CHECKS, CLEAR, UNDECIDED


def state(slug, *given):
    """The state of a check's verdict; None where it does not concern what is given."""
    verdict = CHECKS[slug].look(*given)
    return verdict and verdict.state


class MultiCollector:
    """What the check reads of one."""

    def __init__(self, frames, *, total_frames=40, closed=False):
        self._frames, self.total_frames, self.closed = frames, total_frames, closed


@pytest.mark.parametrize(
    ("collector", "expected"),
    [
        (MultiCollector(40), APPLIES),
        (MultiCollector(20), UNDECIDED),
        (MultiCollector(10**6, total_frames=float("inf")), UNDECIDED),
        (MultiCollector(20, closed=True), CLEAR),
        (object(), None),
    ],
)
def test_workers_outlive_a_loop_unless_they_are_shut_down(collector, expected):
    assert state("script_never_ends", collector) == expected


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([None, None], CLEAR),
        ([0, -15], CLEAR),  # after shutdown()
        ([None, 1], APPLIES),
        ([-9, 0], APPLIES),
        ([], None),
    ],
)
def test_a_worker_that_died_is_told_from_one_that_was_stopped(codes, expected):
    collector = MultiCollector(20)
    collector.procs = [SimpleNamespace(exitcode=code) for code in codes]
    assert state("training_goes_on_without_a_worker", collector) == expected


ENDED = "Worker 0 failed to initialize and closed the connection before sending status."


def raised_in(tmp_path, text):
    """The error that a script with this *text* raises."""
    script = tmp_path / "train.py"
    script.write_text(text, encoding="utf-8")
    with pytest.raises(Exception) as caught:  # noqa: PT011
        exec(compile(text, str(script), "exec"), {"__name__": "__main__"})
    return caught.value


def test_a_script_without_a_guard_is_told_from_one_whose_worker_fails(tmp_path):
    start = f"def main():\n    raise RuntimeError({ENDED!r})\n\n"
    slug = "workers_run_the_script_again"
    assert state(slug, raised_in(tmp_path, start + "main()")) == APPLIES
    guarded = start + 'if __name__ == "__main__":\n    main()'
    (tmp_path / "guarded").mkdir()
    assert state(slug, raised_in(tmp_path / "guarded", guarded)) == UNDECIDED
    assert state(slug, RuntimeError(ENDED)) == UNDECIDED
    assert state(slug, EOFError()) is None


def test_other_errors_of_the_system_are_no_lack_of_files():
    error = OSError(errno.EMFILE, "Too many open files")
    assert state("too_many_open_files", error) == APPLIES
    assert state("too_many_open_files", OSError(errno.ENOENT, "No such file")) is None


def test_errors_of_workers_and_devices_are_told_from_others():
    assert state("one_file_is_passed_twice", ValueError("bad value(s) in fds_to_keep")) == APPLIES
    assert state("one_file_is_passed_twice", ValueError("bad value")) is None
    forked = RuntimeError("Cannot re-initialize CUDA in forked subprocess. To use CUDA")
    assert state("cuda_in_forked_workers", forked) == APPLIES
    assert state("cuda_in_forked_workers", RuntimeError("CUDA out of memory")) is None
    refused = TypeError("Cannot convert a MPS Tensor to float64 dtype")
    assert state("mps_refuses_float64", refused) == APPLIES
    assert state("mps_refuses_float64", TypeError("float64")) is None


@pytest.mark.parametrize(
    ("devices", "stale", "expected"),
    [
        (["cpu", "cuda"], [1], APPLIES),
        (["cpu", "cuda"], [], CLEAR),
        (["cpu", "cuda"], [0, 1], UNDECIDED),
        (["cpu", "cpu"], [1], None),
    ],
)
def test_a_worker_that_acts_with_other_weights_is_told_from_the_others(devices, stale, expected):
    policy = TensorDictModule(torch.nn.Linear(2, 1), ["observation"], ["action"])
    rows = TensorDict({"observation": torch.ones(2, 5, 2)}, [2, 5])
    with torch.no_grad():
        policy(rows)
        for worker in stale:
            rows["action"][worker] += 1
    collector = MultiCollector(40)
    collector.policy_device = devices
    assert state("one_worker_never_updates", collector, policy, rows) == expected
