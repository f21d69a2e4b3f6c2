"""``python SCRIPT`` without the import of torchrl, which takes longer than most scripts.

Each script is a fork of a process that has imported torchrl and no part of it that ``import
torchrl`` leaves out; it ends as an interpreter does. For scripts that import torchrl themselves and
change nothing before that it would read: their environment is there from their first line on, but
torchrl was imported with that of the process.

As a program this is the process: it reads one script a line, a JSON object, and answers its status
and session.
"""

import gc
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LIMIT_S = 600  # a bound for a hung script, not an expectation
POLL_S = 0.05
SEED = "PYTHONHASHSEED"


class Run(NamedTuple):
    """How a script ended, what it printed, and the session that was its own."""

    returncode: int
    stdout: bytes
    stderr: bytes
    session: int


def run(script, cwd, env):
    """The `Run` of *script* in *cwd* with *env*."""
    from tests.support.forks import ask  # the process has nothing of the tests

    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("output", "errors")]
        order = {"script": str(script), "cwd": str(cwd), "env": dict(env)}
        order["files"] = [str(one) for one in files]
        status, session = ask(__file__, order, **{SEED: env[SEED]} if SEED in env else {})
        return Run(status, *(one.read_bytes() for one in files), session)


# -- In the process that has imported torchrl ------------------------------------------


def become(script, cwd, env, files):
    """In a fork: be the process that ``python script`` would be."""
    import multiprocessing.process

    from docs._ext.evidence.run_script import main_module

    os.setsid()
    os.chdir(cwd)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None
    multiprocessing.process.ORIGINAL_DIR = cwd
    sys.argv = [script]
    sys.path.remove(str(ROOT))
    sys.path[0] = str(Path(script).parent)
    gc.unfreeze()
    exec(compile(Path(script).read_bytes(), script, "exec"), main_module(Path(script)))


def status_of(pid):
    """The status with which a script ends: negative for a signal."""
    deadline = time.monotonic() + LIMIT_S
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
        time.sleep(POLL_S)
    return os.waitstatus_to_exitcode(ended[1])


def main():
    sys.path.insert(1, str(ROOT))
    from docs._ext.support.fork import preload

    preload(["torchrl"])
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            return become(**json.loads(line))  # and the interpreter ends
        print(json.dumps([status_of(pid), pid]), flush=True)
    os._exit(0)  # taking apart what was imported takes a second


if __name__ == "__main__":
    main()
