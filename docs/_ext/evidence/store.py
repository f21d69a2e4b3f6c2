"""Execute the scripts of ``docs/evidence`` and keep what they print; ``directives`` shows it.

A script is named by its page and itself, ``page/script``. It prints one JSON object, ``{"result":
value, ...}``, and nothing on standard error. A value is a table ``{"columns": [str, ...], "rows":
[[str, ...], ...]}``, a text, a number, a truth value, or the text of an SVG document. ``execute``
returns the object or raises ``EvidenceError`` with file, line and reason. ``Store`` keeps it, with
a checksum, until the script, this module or the installed stack is another one; what failed is
never kept, and what was kept and is damaged is not used.
"""

import contextlib
import hashlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from docs._ext.gallery.stack import installed_closure, visible_accelerator

# The server that starts workers ends by itself, once it has torn down what it imported.
CHILD_GRACE_S = 60
SHOWN_LINES = 6


class EvidenceError(Exception):
    """A script failed, or did not print what a page can show."""


def execute(script, limit):
    """Run *script* in an empty folder for at most *limit* seconds; return what it printed."""
    environment = {**os.environ, "RL_LOGGING_LEVEL": "ERROR", "MPLBACKEND": "agg"}
    # Files, not pipes: a process that outlives the script would keep a pipe open.
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        child = subprocess.Popen(
            [sys.executable, str(script)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        try:
            child.wait(limit)
        except subprocess.TimeoutExpired:
            raise EvidenceError(
                f"{script.name} ran longer than its limit of {limit:g} s and was killed; look for "
                "a blocking call, or make it faster"
            ) from None
        finally:
            survivors = _end_group(child)
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode("utf-8", errors="replace"))
    return _judge(script, child.returncode, *texts, survivors)


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
            f"{script.name} wrote to standard error; catch a warning that is the subject, and cure "
            f"any other:\n    {text}"
        )
    if survivors:
        raise EvidenceError(
            f"{script.name} left {len(survivors)} process(es) behind ({', '.join(survivors)}); "
            "shut down what the script starts"
        )
    try:
        results = json.loads(output)
    except ValueError as error:
        raise EvidenceError(
            f"{script.name} did not print one JSON object ({error}); it printed {output[:80]!r}"
        ) from None
    if not isinstance(results, dict):
        raise EvidenceError(f"{script.name} printed JSON that is no object of results")
    for name, value in results.items():
        _check_value(script, name, value)
    return results


def _place(script, lines):
    """The script with the last line of it that the traceback names."""
    frame = re.compile(rf'\s*File ".*\b{re.escape(script.name)}", line (\d+)')
    found = [match[1] for line in lines if (match := frame.match(line))]
    return f"{script.name}:{found[-1]}" if found else script.name


def _reason(lines, status):
    """The exception of a traceback with its whole message, or how the process ended."""
    last = [
        n for n, line in enumerate(lines) if re.match(r"[\w.]+(Error|Exception|Warning)\b", line)
    ]
    if last and status > 0:
        return " ".join(line.strip() for line in lines[last[-1] :])
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
            f"{script.name}: the result {name!r} is no text, number, truth value or table; a table "
            'is {"columns": [texts], "rows": [[as many texts], ...]}'
        )


class Store:
    """The results of every script in *scripts*, kept in the folder *kept*."""

    def __init__(self, scripts, kept):
        self.scripts, self.kept = Path(scripts), Path(kept)
        self.failures = {}

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
        """Execute what is not kept; *tell* hears the name first. Failures go to ``failures``."""
        self.failures.clear()
        names = self.names()
        stack = {
            "python": platform.python_version(),
            "distributions": installed_closure(["torch", "torchrl", "gymnasium", "matplotlib"]),
            "accelerator": visible_accelerator(),
            "store": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
        }
        self.kept.mkdir(parents=True, exist_ok=True)
        for path in self.kept.glob("*/*.json"):
            if path.relative_to(self.kept).with_suffix("").as_posix() not in names:
                path.unlink()
        for name in names:
            key = {**stack, "script": hashlib.sha256(self.script(name).read_bytes()).hexdigest()}
            if self._read(name).get("key") == key:
                continue
            self.path(name).unlink(missing_ok=True)
            tell(name)
            try:
                kept = {"key": key, "results": execute(self.script(name), limit)}
            except EvidenceError as error:
                self.failures[name] = str(error)
                continue
            self.path(name).parent.mkdir(exist_ok=True)
            part = self.path(name).with_suffix(".part")
            part.write_text(json.dumps(kept | {"sum": _sum(kept)}, indent=1), encoding="utf-8")
            part.replace(self.path(name))

    def results(self, name):
        """What a script printed; KeyError for one that failed or does not exist."""
        return self._read(name)["results"]

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
