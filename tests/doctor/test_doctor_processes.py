"""What is said of workers that outlive a loop, and of errors at their start; nothing is started."""

import errno

import pytest
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
