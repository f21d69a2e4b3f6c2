"""What the page about too many open files says of semaphores, and does not run."""

import subprocess
import sys

import pytest

from tests.support.claims import guards

START = """
import multiprocessing, os, signal
from pathlib import Path

if __name__ == "__main__":
    semaphore = multiprocessing.get_context({method!r}).Semaphore()
"""
KILL = "    os.kill(os.getpid(), signal.SIGKILL)"
MINUTE_S = 60


def run(method, then):
    """What a process prints that makes a semaphore, also after its end."""
    script = START.format(method=method) + then
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=MINUTE_S
    )
    return done.stdout, done.stderr


@guards("semaphores-are-files-in-shared-memory")
def test_a_semaphore_is_a_file_in_shared_memory():
    name = """semaphore._semlock.name.strip("/")"""
    out, _ = run("spawn", f"    print(Path('/dev/shm', 'sem.' + {name}).is_file())")
    assert out == "True\n"


@guards("leaked-semaphores-after-a-kill")
@pytest.mark.parametrize(
    ("method", "then", "said"),
    [
        ("spawn", KILL, True),
        ("forkserver", KILL, True),
        ("spawn", KILL.replace("SIGKILL", "SIGTERM"), True),
        ("spawn", "    os._exit(1)", True),
        ("spawn", "    raise RuntimeError", False),
        ("spawn", "    pass", False),
        ("fork", KILL, False),
    ],
)
def test_semaphores_are_leaked_by_a_process_that_cannot_clean_up(method, then, said):
    _, printed = run(method, then)
    assert ("leaked semaphore objects to clean up at shutdown" in printed) == said
