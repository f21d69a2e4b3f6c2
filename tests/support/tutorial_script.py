"""Run a tutorial as readers do, or a driver that runs it with a changed torchrl."""

import ast
import contextlib
import io
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

from tests.support import ROOT

TIMEOUT_S = 600  # a bound for a hung child, not an expectation


def environment(tmp_path, **extra):
    """Of a child whose temporary files land in *tmp_path*."""
    temporary = tmp_path / "tmp"
    temporary.mkdir(exist_ok=True)
    return {**os.environ, "TMPDIR": str(temporary), "MPLBACKEND": "agg", **extra}


def run_page(page, tmp_path, hash_seed):
    """The text that the script *page* prints in a folder of its own, where it leaves nothing."""
    folder = tmp_path / f"cwd{hash_seed}"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, str(page)],
        cwd=folder,
        env=environment(tmp_path, PYTHONHASHSEED=hash_seed),
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    assert list(folder.iterdir()) == []
    return done.stdout.decode()


def run_driver(driver, page, tmp_path):
    """The JSON object in the last line that the Python text *driver* prints about *page*.

    The driver finds the path of the page in ``sys.argv[1]`` and can import from this module.
    """
    done = subprocess.run(
        [sys.executable, "-c", driver, str(page)],
        env=environment(tmp_path, PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# -- For drivers ---------------------------------------------------------------


def failing_assertion(page):
    """The assertion of *page* that fails, as text; or what else it raises; or "the page passed"."""
    page = str(page)
    source = Path(page).read_text(encoding="utf-8")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(source, page, "exec"), {"__name__": "__main__"})
    except BaseException as error:
        if isinstance(error, AssertionError):
            frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == page]
            line = frames[-1].lineno
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.Assert) and node.lineno <= line <= node.end_lineno:
                    return ast.unparse(node)
        return f"{type(error).__name__}: {error}"
    return "the page passed"


def in_a_fork(mutation, page):
    """In a child: what *mutation* returns, or where nothing, the failing assertion of *page*.

    A fork per mutation needs one import of torchrl, which costs more than most pages.
    """
    import torch

    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                text = mutation() or failing_assertion(page)
        except BaseException:
            text = traceback.format_exc()
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return text.decode()
