"""A function in a child process that has imported what this one has."""

import contextlib
import json
import os
import signal
import tempfile

from docs._ext.support.fork import Fork


def in_a_fork(function, *arguments, limit_s=600):
    """What *function* returns in a child, through JSON; None where it raises, dies or hangs.

    A fork needs no import of torchrl, which costs more than most pages.
    """
    with tempfile.TemporaryFile() as answer:

        def child():
            import torch

            os.setsid()
            signal.alarm(limit_s)
            torch.set_num_threads(1)
            text = json.dumps(function(*arguments))
            os.pwrite(answer.fileno(), text.encode(), 0)
            return 0

        fork = Fork(child)
        fork.wait()
        # A pipe would stay open as long as a worker that outlives the child.
        with contextlib.suppress(ProcessLookupError):  # none is left
            os.killpg(fork.pid, signal.SIGKILL)
        text = answer.read()
    return json.loads(text) if text else None
