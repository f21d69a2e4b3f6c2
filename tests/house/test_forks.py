"""The child process of tests: what it says comes back, and nothing of it stays."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.support.forks import in_a_fork, run_in_a_fork

NAP_S = 600
GRACE_S = 30  # to be gone after the signal, on a busy machine


def runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def leaves_a_worker():
    pid = os.fork()
    if pid == 0:
        time.sleep(NAP_S)
        os._exit(0)
    return pid


def dies():
    leaves_a_worker()
    os.kill(os.getpid(), signal.SIGALRM)


def test_a_worker_that_outlives_the_child_is_ended_and_not_waited_for():
    worker = in_a_fork(leaves_a_worker)
    deadline = time.monotonic() + GRACE_S
    while runs(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not runs(worker)


def test_a_child_that_dies_says_nothing():
    assert in_a_fork(dies) is None


def test_a_long_answer_comes_back_whole():
    assert in_a_fork(str.__mul__, "x", 1_000_000) == "x" * 1_000_000


def test_code_in_a_fork_is_code_of_a_process(tmp_path):
    code = (
        "import os, sys\n"
        "print(sys.argv, os.environ, os.path.basename(os.getcwd()))\n"
        "raise KeyError(sys.argv[1])"
    )
    options = {"cwd": tmp_path, "env": {"A": "b"}, "capture_output": True, "text": True}
    for run in (run_in_a_fork, subprocess.run):
        done = run([sys.executable, "-c", code, "x"], **options, timeout=60, check=False)
        assert done.returncode == 1
        assert done.stderr.endswith("KeyError: 'x'\n")
        assert done.stdout.startswith("['-c', 'x'] environ({'A': 'b'")
        assert done.stdout.endswith(f" {tmp_path.name}\n")
    with pytest.raises(subprocess.TimeoutExpired):
        run_in_a_fork(["", "", "import time\ntime.sleep(600)"], **options, timeout=0)
