"""Execute the scripts of ``docs/evidence`` and keep what they print; ``directives`` shows it.

A script is named by its page and itself, ``page/script``. It prints one JSON object, ``{"result":
value, ...}``, and nothing on standard error. A value is a table ``{"columns": [str, ...], "rows":
[[str, ...], ...]}``, a text, a number, a truth value, or the text of an SVG document. ``execute``
returns the object or raises ``EvidenceError`` with file, line and reason. ``Store`` keeps it, with
a checksum, until the script, what executes it or the installed stack is another one; what failed is
never kept, and what was kept and is damaged is not used.

Scripts run side by side, in forks of a process that imported the stack before (``preloaded``): what
one changes, another does not see, and each runs as ``python script.py`` would. A line that begins
with ``os.environ`` and sets more than ``RL_LOGGING_LEVEL`` has to come before an import, so its
script gets an interpreter of its own, which costs an import.
"""

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from docs._ext.gallery.stack import installed_closure, utc_now, visible_accelerator
from docs._ext.support import assertions, fork

# The server that starts workers ends by itself, once it has torn down what it imported.
CHILD_GRACE_S = 60
SHOWN_LINES = 6
ROOT = Path(__file__).parents[3]
EXECUTES = [Path(module.__file__) for module in (assertions, fork)]  # beside this package
ENVIRONMENT = {"RL_LOGGING_LEVEL": "ERROR", "MPLBACKEND": "agg"}
CHANGES_ENVIRONMENT = re.compile(r"^os\.environ\b(?!.*\"RL_LOGGING_LEVEL\"[],])", re.M)


class EvidenceError(Exception):
    """A script failed, or did not print what a page can show."""


def start_process(script, folder, environment, output, errors):
    """Start *script* in a process and a session of its own."""
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("run_script.py")), str(script)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        start_new_session=True,
    )


def execute(script, limit, start=start_process):
    """Run *script* in an empty folder for at most *limit* seconds; return what it printed."""
    folder = tempfile.mkdtemp()
    # Files, not pipes: a process that outlives the script would keep a pipe open.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        child = start(script, folder, {**os.environ, **ENVIRONMENT}, output, errors)
        try:
            child.wait(limit)
        except subprocess.TimeoutExpired:
            raise EvidenceError(
                f"{_shown(script)} ran longer than its limit of {limit:g} s and was killed; look "
                "for a blocking call, or make it faster"
            ) from None
        finally:
            survivors = _end_group(child)
            shutil.rmtree(folder, ignore_errors=True)
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode("utf-8", errors="replace"))
    return _judge(script, child.returncode, *texts, survivors)


def wants_own_process(text):
    """Whether a script changes the environment before it imports what reads it."""
    return CHANGES_ENVIRONMENT.search(text) is not None


def _shown(script):
    """A script as its address names it: its page and itself."""
    return f"{script.parent.name}/{script.name}"


def _end_group(child):
    """End what is left of the session of *child*; the names of what did not end by itself."""
    grace = CHILD_GRACE_S if child.poll() == 0 else 0
    if child.poll() is None:
        child.kill()
        child.wait()
    deadline = time.monotonic() + grace
    while (left := _session(child.pid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, CHILD_GRACE_S)
    return sorted(process.info["name"] for process in left)


def _session(leader):
    """The processes of a session that run; one that nobody has waited for does not."""
    found = []
    for process in psutil.process_iter(["name", "status"]):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            ended = process.info["status"] == psutil.STATUS_ZOMBIE
            if not ended and os.getsid(process.pid) == leader:
                found.append(process)
    return found


def _judge(script, status, output, errors, survivors):
    lines = errors.strip().splitlines()
    if status:
        raise EvidenceError(f"{_place(script, lines)}: {_reason(lines, status)}")
    if lines:
        text = "\n    ".join(lines[-SHOWN_LINES:])
        raise EvidenceError(
            f"{_shown(script)} wrote to standard error; catch a warning that is the subject, and "
            f"cure any other:\n    {text}"
        )
    if survivors:
        raise EvidenceError(
            f"{_shown(script)} left {len(survivors)} process(es) behind "
            f"({', '.join(survivors)}); shut down what the script starts"
        )
    try:
        results = json.loads(output)
    except ValueError as error:
        raise EvidenceError(
            f"{_shown(script)} did not print one JSON object ({error}); it printed {output[:80]!r}"
        ) from None
    if not isinstance(results, dict):
        raise EvidenceError(f"{_shown(script)} printed JSON that is no object of results")
    for name, value in results.items():
        _check_value(script, name, value)
    return results


def _place(script, lines):
    """The script with the last line of it that the traceback names."""
    frame = re.compile(rf'\s*File ".*\b{re.escape(script.name)}", line (\d+)')
    found = [match[1] for line in lines if (match := frame.match(line))]
    return f"{_shown(script)}:{found[-1]}" if found else _shown(script)


def _reason(lines, status):
    """The exception of a traceback with its whole message, or how the process ended.

    What an assertion saw stands in lines of its own; one without a message begins with its test.
    """
    last = [
        n for n, line in enumerate(lines) if re.match(r"[\w.]+(Error|Exception|Warning)\b", line)
    ]
    if last and status > 0:
        error = lines[last[-1] :]
        seen = next((n for n, line in enumerate(error) if line.startswith("    ")), len(error))
        said, values = " ".join(line.strip() for line in error[:seen]), error[seen:]
        if said == "AssertionError" and values:
            said += f": {values.pop(0).strip()}"
        return "\n".join([said, *values])
    how = (
        f"ended with status {status}" if status > 0 else f"{signal.Signals(-status).name} ended it"
    )
    return f"{how}; its last words: {lines[-1]}" if lines else f"{how} and it said nothing"


def _check_value(script, name, value):
    if isinstance(value, (str, int, float)):
        return
    try:
        columns, rows = value["columns"], value["rows"]
        cells = [columns, *rows]
        good = columns and all(len(row) == len(columns) for row in rows)
        good = good and all(isinstance(cell, str) for row in cells for cell in row)
    except (TypeError, KeyError):
        good = False
    if not good:
        raise EvidenceError(
            f"{_shown(script)}: the result {name!r} is no text, number, truth value or table; a "
            'table is {"columns": [texts], "rows": [[as many texts], ...]}'
        )


class Store:
    """The results of every script in *scripts*, kept in the folder *kept*.

    Two scripts or more run in forks of a process that has imported the modules *preload*, each
    while it holds one of the *slots* (see ``support.fork``).
    """

    def __init__(self, scripts, kept, preload=(), slots=None, stack=None):
        self.scripts, self.kept = Path(scripts).resolve(), Path(kept).resolve()
        self.failures = {}
        self.preload = list(preload)
        self.slots = slots or self.kept / "slots"
        self._stack = stack
        self._waiting = []

    def names(self):
        """The scripts that exist, sorted."""
        return sorted(self._name(path) for path in self.scripts.glob("*/*.py"))

    def _name(self, path):
        return path.relative_to(self.scripts).with_suffix("").as_posix()

    def script(self, name):
        return self.scripts / f"{name}.py"

    def path(self, name):
        """Where the results of a script are kept."""
        return self.kept / f"{name}.json"

    def refresh(self, limit, tell):
        """Execute what is not kept, and wait for it; ``start`` and ``finish`` in one."""
        self.start(limit, tell)
        self.finish()

    def start(self, limit, tell):
        """Begin to execute what is not kept; *tell* hears the names first."""
        self.failures.clear()
        names = self.names()
        self._stack = {
            "python": platform.python_version(),
            "distributions": installed_closure(["torch", "torchrl", "gymnasium", "matplotlib"]),
            "accelerator": visible_accelerator(),
            "store": _digest(*sorted(Path(__file__).parent.glob("*.py")), *EXECUTES),
            "preload": self.preload,
        }
        self.kept.mkdir(parents=True, exist_ok=True)
        for path in [*self.kept.glob("*/*.json"), *self.kept.glob("*/*.failure")]:
            stale = path.suffix == ".failure"
            if stale or path.relative_to(self.kept).with_suffix("").as_posix() not in names:
                path.unlink()
        self._waiting = [n for n in names if self._read(n).get("key") != self._key(n)]
        if not self._waiting:
            return
        for name in self._waiting:
            self.path(name).unlink(missing_ok=True)
            tell(name)
        job = {"scripts": self.scripts, "kept": self.kept, "limit": limit, "stack": self._stack}
        job |= {"names": self._waiting, "preload": self.preload if self._waiting[1:] else []}
        job["slots"] = self.slots
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open until finish
        self._pool = subprocess.Popen(
            [sys.executable, "-m", "docs._ext.evidence.preloaded"],
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
        )
        with self._pool.stdin as entry:
            entry.write(json.dumps(job, default=str).encode())

    def finish(self):
        """Wait for what was started; failures go to ``failures``."""
        if not self._waiting:
            return
        self._pool.wait()
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", errors="replace").strip().splitlines()[-1:]
        for name in self._waiting:
            failure = self.path(name).with_suffix(".failure")
            if failure.exists():
                self.failures[name] = failure.read_text(encoding="utf-8")
            elif not self._read(name):
                status = f"the process that executes scripts left with {self._pool.returncode}"
                self.failures[name] = ": ".join([f"{name}.py", status, *said])
        self._errors.close()
        self._waiting = []

    def execute_and_keep(self, name, limit, start):
        """Execute a script and keep its results, or why there are none."""
        if wants_own_process(self.script(name).read_text(encoding="utf-8")):
            start = start_process
        try:
            results = execute(self.script(name), limit, start)
            kept = {"key": self._key(name), "date": utc_now(), "results": results}
        except EvidenceError as error:
            _write(self.path(name).with_suffix(".failure"), str(error))
        else:
            _write(self.path(name), json.dumps(kept | {"sum": _sum(kept)}, indent=1))

    def _key(self, name):
        return {**self._stack, "script": _digest(self.script(name))}

    def results(self, name):
        """What a script printed; KeyError for one that failed or does not exist."""
        return self._read(name)["results"]

    def run(self, name):
        """When a script ran, with which release of TorchRL, and on what: a GPU or "cpu"."""
        kept = self._read(name)
        device = next(iter(kept["key"]["accelerator"]["devices"]), "cpu")
        return kept["date"], kept["key"]["distributions"]["torchrl"], device

    def _read(self, name):
        """What is kept of a script: nothing where there is nothing, or it is damaged."""
        try:
            kept = json.loads(self.path(name).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        whole = isinstance(kept, dict) and kept.pop("sum", None) == _sum(kept)
        return kept if whole else {}


def _sum(kept):
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _write(path, text):
    path.parent.mkdir(exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _digest(*files):
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
