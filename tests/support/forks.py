"""A function in a child process that has imported what this one has."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback

from docs._ext.support.fork import Fork


def in_a_fork(function, *arguments, limit_s=600):
    """What *function* returns in a child, through JSON; None where it raises, dies or hangs.

    A fork needs no import of torchrl, which costs more than most pages.
    """
    with tempfile.TemporaryFile() as answer:
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                signal.alarm(limit_s)
                if torch := sys.modules.get("torch"):
                    torch.set_num_threads(1)
                text = json.dumps(function(*arguments))
                os.pwrite(answer.fileno(), text.encode(), 0)
                sys.stdout.flush()
            except BaseException:
                traceback.print_exc()
            finally:  # whatever happens: what stands below the fork is the parent's
                os._exit(0)
        os.waitpid(pid, 0)
        # A pipe would stay open as long as a worker that outlives the child.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        text = answer.read()
    return json.loads(text) if text else None


def run_in_a_fork(command, *, cwd, env, timeout, **_):
    """In place of ``subprocess.run`` for ``python -c CODE ...``: its text output is captured."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = Fork(_run_code, command[2:], cwd, env, output, errors)
        try:
            process.wait(timeout)
        finally:
            process.kill()
        printed = []
        for file in (output, errors):
            file.seek(0)
            printed.append(file.read())
    return subprocess.CompletedProcess(command, process.returncode, *printed)


def _run_code(words, folder, environment, output, errors):
    """Be ``python -c CODE ...``; an exception ends the fork with a traceback and status 1."""
    for number, file in enumerate((output, errors), 1):
        os.dup2(file.fileno(), number)
    # whoever captures the output of the parent has other streams in their place
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.FileIO(n, "w", closefd=False)) for n in (1, 2))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-c", *words[1:]]
    exec(compile(words[0], "<string>", "exec"), {"__name__": "__main__"})
    return 0
