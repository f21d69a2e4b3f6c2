"""The time that an examination may take."""

from __future__ import annotations

import contextlib
import signal
import threading
import time


class TimeUp(BaseException):
    """Not an `Exception`, which an ``except Exception`` of the reader's code would swallow."""


class Clock:
    """The time that an examination may take, and each step of it."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds
        self.step = seconds / 3
        in_main_thread = threading.current_thread() is threading.main_thread()
        self.can_interrupt = hasattr(signal, "setitimer") and in_main_thread

    @contextlib.contextmanager
    def limit(self):
        """Raise `TimeUp` in what runs inside, once its share is used up."""
        started = time.monotonic()
        share = min(self.step, self.end - started)
        if share <= 0:
            raise TimeUp("no time was left")
        if not self.can_interrupt:
            yield
            return
        armed = [True]

        def ring(signum, frame):
            if armed and PUT_OFF:
                PUT_OFF[-1].append(signum)
            elif armed:
                raise TimeUp("it took too long")

        handler = signal.signal(signal.SIGALRM, ring)
        # Again after each second: a bare ``except`` may have swallowed the first.
        delay, interval = signal.setitimer(signal.ITIMER_REAL, share, 1.0)
        try:
            try:
                yield
            finally:
                armed.clear()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
            if delay:
                left = delay - (time.monotonic() - started)
                signal.setitimer(signal.ITIMER_REAL, max(left, 1e-3), interval)


PUT_OFF = []  # for each `uninterrupted` that is open: the rings of a clock inside it


@contextlib.contextmanager
def uninterrupted():
    """Put `TimeUp` off: an answer that nobody reads would be taken for that to the next order.

    Masking the signal would not do: the system gives it to another thread, and Python to this one.
    """
    PUT_OFF.append([])
    try:
        yield
    finally:
        rings = PUT_OFF.pop()
    if rings:
        raise TimeUp("it took too long")
