"""A function in a child process that has imported what this one has."""

import json
import os
import signal
import sys
import traceback


def in_a_fork(function, *arguments, limit_s=600):
    """What *function* returns in a child, through JSON; None where it raises, dies or hangs.

    A fork needs no import of torchrl, which costs more than most pages.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        import torch

        signal.alarm(limit_s)
        torch.set_num_threads(1)
        try:
            text = json.dumps(function(*arguments))
        except BaseException:
            traceback.print_exc()
            text = ""
        sys.stdout.flush()
        sys.stderr.flush()
        with os.fdopen(write, "wb") as pipe:
            pipe.write(text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else None
