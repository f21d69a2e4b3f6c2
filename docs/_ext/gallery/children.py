"""Find and end the child processes that a tutorial leaves behind; ``guard`` calls it."""

import multiprocessing.forkserver
import multiprocessing.resource_tracker
from pathlib import Path

import psutil

# A child that was told to stop gets this long to be gone.
CHILD_GRACE_S = 3


def end_server():
    """End the process that starts workers by "forkserver".

    It would end with this process, and no public call ends it earlier (python/cpython#81688): the
    next tutorial would get workers with what this one had preloaded.
    """
    multiprocessing.forkserver._forkserver._stop()


def children():
    """Descendants of this process, less the two helpers that multiprocessing keeps on purpose.

    Nothing public tells their ids (not reported).
    """
    helpers = {
        multiprocessing.resource_tracker._resource_tracker._pid,
        multiprocessing.forkserver._forkserver._forkserver_pid,
    }
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if child.pid not in helpers and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def end_children(known):
    """Kill the children whose id is not in ``known``; return the names of their programs."""
    _, left = psutil.wait_procs(
        [child for child in children() if child.pid not in known], timeout=CHILD_GRACE_S
    )
    names = []
    for child in left:
        try:
            name = Path((child.cmdline() or [child.name()])[0]).name
            child.kill()
        except psutil.NoSuchProcess:
            continue
        names.append(name)
    return sorted(names)
