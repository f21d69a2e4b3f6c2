"""Python in a process of its own."""

import os
import subprocess
import sys

LIMIT_S = 600  # a bound for a hung child, not an expectation


def run_python(*arguments, status=0, python=sys.executable, path=(), cwd=None, **environment):
    """What Python prints with these arguments, ``subprocess.CompletedProcess`` with text.

    It has to end with *status*, unless that is None. *path* are the folders of PYTHONPATH.
    """
    variables = {"PYTHONPATH": os.pathsep.join(map(str, path))} | environment
    done = subprocess.run(
        [python, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert status in (None, done.returncode), done.stdout + done.stderr
    return done
