"""What is heard of an examination while it runs: a line on a terminal, and no library."""

from __future__ import annotations

import contextlib
import logging
import threading
import time

DOING = ["looking"]  # what an examination is at, in words


@contextlib.contextmanager
def shown_progress(stream, delay=1.0):
    """Say on a terminal what is going on, once it has taken *delay* seconds, and take it back."""
    if not stream.isatty():
        yield
        return
    started, ended = time.monotonic(), threading.Event()

    def show():
        wait = delay
        while not ended.wait(wait):
            wait = min(delay, 0.25)
            text = f"{time.monotonic() - started:.0f} s: {DOING[0]}"
            stream.write(f"\r{text[:79]:79}")
            stream.flush()

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if time.monotonic() - started > delay:
            stream.write(f"\r{'':79}\r")
            stream.flush()


@contextlib.contextmanager
def quiet_libraries():
    """Let TorchRL log no messages: checks use what reports success in them."""
    loggers = [logging.getLogger(name) for name in ("torchrl", "tensordict")]
    levels = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for one, level in zip(loggers, levels, strict=True):
            one.setLevel(level)
