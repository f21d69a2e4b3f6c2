"""Run a tutorial as readers do, or with a changed torchrl."""

import ast
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.support import ROOT, torchrl_forks
from tests.support.symptom_pages import new_shared_files, shared_files

TIMEOUT_S = 600  # a bound for a hung child, not an expectation
IMPORTS = re.compile(r"^(import|from) torchrl\b", re.MULTILINE)
EVALUATE = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("module", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(json.dumps(eval({!r}, vars(module))))
"""


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
    shared = shared_files()
    run = torchrl_forks.run if imports_first(page) else run_fresh
    with environment(PYTHONHASHSEED=hash_seed) as own:
        done = run(page, folder, own)
        left = [path for path in Path(own["TMPDIR"]).iterdir() if not is_compiler_cache(path)]
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b"", done.stderr.decode()
    left += [*folder.iterdir(), *new_shared_files(shared, done.session)]
    assert left == [], f"left behind: {left}"
    return done.stdout.decode()


def imports_first(page):
    """Whether a script imports torchrl itself, and sets before that nothing that torchrl reads."""
    text = Path(page).read_text(encoding="utf-8")
    return bool(IMPORTS.search(text)) and "os.environ" not in text


def run_fresh(page, folder, own):
    command, pipe = [sys.executable, str(page)], subprocess.PIPE
    with subprocess.Popen(
        command, cwd=folder, env=own, stdout=pipe, stderr=pipe, start_new_session=True
    ) as child:
        said = child.communicate(timeout=torchrl_forks.LIMIT_S)
    return torchrl_forks.Run(child.returncode, *said, session=child.pid)


def is_compiler_cache(path):
    """Importing torchrl alone creates this folder, empty; a page puts nothing into it."""
    return path.name.startswith("torchinductor_") and list(path.iterdir()) == []


def run_driver(driver, page, **variables):
    """The JSON object in the last line that the Python text *driver* prints about *page*.

    The driver finds the path of the page in ``sys.argv[1]`` and can import from this module.
    """
    with environment(PYTHONPATH=str(ROOT), **variables) as own:
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


# -- With a changed torchrl ----------------------------------------------------


class Change(NamedTuple):
    """A function, and what fails where it is applied: the assertion of a page, as text.

    It returns a context manager, in which torchrl is another one.
    """

    apply: Callable
    page: Path
    assertion: str

    @property
    def name(self):
        return self.apply.__name__


class Changes(list):
    """Changes that *page*, or *text* in its place, has to notice, or the page that one names."""

    def __init__(self, page=None, text=None):
        super().__init__()
        self.page, self.text = page, text

    def caught_by(self, assertion, page=None):
        """Decorator: add a function."""

        def add(function):
            self.append(Change(function, page or self.page, normal(assertion)))
            return function

        return add

    def outcomes(self, check=None):
        """Name of each change -> what then stops its page, or why it cannot be made.

        *check* stands for the page: it is called with the change. For `in_a_process`.
        """
        check = check or (lambda change: failing_assertion(change.page, self.text))
        found = {}
        for change in self:
            try:
                with change.apply():
                    found[change.name] = check(change)
            except Exception:
                found[change.name] = traceback.format_exc()
        return found


def normal(assertion):
    """As `failing_assertion` writes it; the beginning of one, or another error, as it is."""
    try:
        return ast.unparse(ast.parse(assertion))
    except SyntaxError:
        return assertion


@contextlib.contextmanager
def all_of(*managers):
    """Enter several context managers."""
    with contextlib.ExitStack() as stack:
        for manager in managers:
            stack.enter_context(manager)
        yield


def in_a_process(file, expression):
    """The value of *expression* in the module *file*, through JSON.

    In a process that has run no test, imports it, and finds no GPU.
    """
    variables = {"CUDA_VISIBLE_DEVICES": "", "RL_LOGGING_LEVEL": "ERROR"}
    return run_driver(EVALUATE.format(expression), file, **variables)


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
