"""Run a tutorial as readers do, or a driver that runs it with a changed torchrl."""

import ast
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

from tests.support import ROOT
from tests.support.forks import in_a_fork

TIMEOUT_S = 600  # a bound for a hung child, not an expectation


@contextlib.contextmanager
def environment(**extra):
    """Of a child whose temporary files land in a folder of their own, which goes at the end.

    Its path is short: workers put sockets there, whose paths may have about a hundred letters.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        yield {**os.environ, "TMPDIR": temporary, "MPLBACKEND": "agg", **extra}


def run_page(page, tmp_path, hash_seed):
    """The text that the script *page* prints in a folder of its own, where it leaves nothing."""
    folder = tmp_path / f"cwd{hash_seed}"
    folder.mkdir()
    with environment(PYTHONHASHSEED=hash_seed) as own:
        done = subprocess.run(
            [sys.executable, str(page)],
            cwd=folder,
            env=own,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        left = [path for path in Path(own["TMPDIR"]).iterdir() if not is_compiler_cache(path)]
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    assert [*folder.iterdir(), *left] == []
    return done.stdout.decode()


def is_compiler_cache(path):
    """Importing torchrl alone creates this folder, empty; a page puts nothing into it."""
    return path.name.startswith("torchinductor_") and list(path.iterdir()) == []


def run_driver(driver, page):
    """The JSON object in the last line that the Python text *driver* prints about *page*.

    The driver finds the path of the page in ``sys.argv[1]`` and can import from this module.
    """
    with environment(PYTHONPATH=str(ROOT)) as own:
        done = subprocess.run(
            [sys.executable, "-c", driver, str(page)],
            env=own,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# -- For drivers ---------------------------------------------------------------


def failing_assertion(page, text=None, printed=None):
    """What stops *page*, or *text* in its place; "the page passed" where nothing does.

    What it prints goes to the stream *printed*, if there is one.
    """
    source = text or Path(page).read_text(encoding="utf-8")
    code = compile(source, str(page), "exec")
    return failing_in(page, lambda: exec(code, {"__name__": "__main__"}), source, printed)


def failing_in(path, function, source=None, printed=None):
    """The assertion of the file *path* that fails in *function*, or another error, as text.

    An assertion is an ``assert`` or the call of a function that raises an AssertionError.
    """
    source = source or Path(path).read_text(encoding="utf-8")
    try:
        with contextlib.redirect_stdout(printed or io.StringIO()):
            function()
    except BaseException as error:
        if isinstance(error, AssertionError):
            lines = [
                frame.lineno
                for frame in traceback.extract_tb(error.__traceback__)
                if frame.filename == str(path)
            ]
            for node in ast.walk(ast.parse(source)):
                is_check = isinstance(node, ast.Assert | ast.Expr)
                if is_check and node.lineno <= lines[-1] <= node.end_lineno:
                    return ast.unparse(node)
        return f"{type(error).__name__}: {error}"
    return "the page passed"


def mutated(mutation, page, text=None):
    """In a child: what *mutation* returns, or where nothing, the failing assertion.

    It is that of *page*, or of *text* in its place.
    """
    return in_a_fork(_mutate, mutation, page, text)


def _mutate(mutation, page, text):
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return mutation() or failing_assertion(page, text)
    except BaseException:
        return traceback.format_exc()
