"""A function in a child that has imported what this one has; a process that answers in lines."""

import atexit
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
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


def ask(program, order, **environment):
    """What a process of *program* answers to *order*, a line of JSON each.

    It starts with the first order of this process, with this *environment*, and ends with it.
    """
    server = _server(program, tuple(environment.items()))
    server.stdin.write(json.dumps(order) + "\n")
    server.stdin.flush()
    return json.loads(server.stdout.readline())


@functools.cache
def _server(program, environment):
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    server = subprocess.Popen(
        [sys.executable, program],
        env=inherited | dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.communicate)
    return server
