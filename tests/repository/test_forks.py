"""The child process of tests: what it says comes back, and nothing of it stays."""

import os
import signal
import time

import psutil

from tests.support.forks import in_a_fork

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
