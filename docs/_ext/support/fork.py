"""Run a function in a fork of this process, and a stack that is imported once for many forks."""

import contextlib
import fcntl
import gc
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from pathlib import Path

POLL_S = 0.02
# What Python itself hides from who runs a script, unless the script's own lines warn.
HIDDEN = DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning


class Fork:
    """A function that runs in a fork of this process, with what is used of ``subprocess.Popen``.

    Its status is what *function* returns. Nothing of the frames below it runs in the fork.
    """

    def __init__(self, function, *arguments):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self.returncode = None
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                status = function(*arguments)
            except BaseException:
                traceback.print_exc()
            finally:
                try:
                    for stream in (sys.stdout, sys.stderr):
                        if not stream.closed:
                            stream.flush()
                finally:  # whatever happens: what stands below the fork is the parent's
                    os._exit(status if isinstance(status, int) else 1)

    def poll(self):
        """The status of a process that ended: negative for a signal; or None."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, limit=float("inf")):
        """Wait for the end, at most *limit* seconds."""
        deadline = time.monotonic() + limit
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a fork", limit)
            time.sleep(POLL_S)
        return self.returncode

    def kill(self):
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def preload(modules):
    """Import *modules* for forks to come; refuse one that starts a thread, which no fork has.

    A warning that a script would show which imports them itself is refused as well. The filters of
    warnings that the modules set, as torchrl does, stay.
    """
    with warnings.catch_warnings(record=True) as shown:
        warnings.resetwarnings()
        for category in HIDDEN:
            warnings.simplefilter("ignore", category)
        ours = len(warnings.filters)
        for name in modules:
            importlib.import_module(name)
        theirs = warnings.filters[: len(warnings.filters) - ours]
    for action, message, category, module, line in reversed(theirs):
        said, place = (part.pattern if part else "" for part in (message, module))
        warnings.filterwarnings(action, said, category, place, line)
    if shown:
        said = "; ".join(f"{one.category.__name__}: {one.message}" for one in shown)
        raise RuntimeError(f"importing {', '.join(modules)} warns: {said}")
    if threading.active_count() > 1:
        names = ", ".join(thread.name for thread in threading.enumerate())
        raise RuntimeError(f"a module among {', '.join(modules)} starts threads: {names}")
    # What is here now is no garbage: without this, each collection of each fork would look at all
    # of it, and copy its pages.
    gc.collect()
    gc.freeze()


def cores():
    """How many processes can run at once here."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


class Slots:
    """As many slots as cores, for all processes that name the same folder.

    A process that died holds none.
    """

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def one(self):
        """Wait for a slot, and hold it."""
        while (slot := self.take()) is None:
            time.sleep(POLL_S)
        try:
            yield
        finally:
            self.give(slot)

    def take(self):
        """A slot that is free, or None."""
        for number in range(cores()):
            slot = (self.folder / str(number)).open("w")
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return slot
            slot.close()
        return None

    def give(self, slot):
        fcntl.flock(slot, fcntl.LOCK_UN)  # a fork of this process may have it open
        slot.close()


def slots(app):
    """What everything shares that a build executes at the same time."""
    return Slots(Path(app.doctreedir, "slots"))
