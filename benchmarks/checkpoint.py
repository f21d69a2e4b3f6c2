"""Keep what an interrupted run has measured: one line of JSON as soon as a benchmark has passed.

``python -m benchmarks`` starts the file of a suite with the state of the tree, the plugin in
``conftest.py`` adds what the suite says about itself and each finished benchmark. The file goes
once the record is written. Until then a run of the same code, commit and versions goes on after it.
"""

import contextlib
import fcntl
import json
from pathlib import Path


class BusyError(RuntimeError):
    """Another process writes the same checkpoint."""


class Checkpoint:
    """The lines of one run of one suite."""

    def __init__(self, path):
        self.path = Path(path)

    @contextlib.contextmanager
    def locked(self):
        """Keep other processes out; raise :class:`BusyError` if one is in."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_suffix(".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusyError(f"{self.path.stem}: another process is measuring it") from None
            yield

    def start(self, state):
        self.path.write_text("", "utf-8")
        self.add(state=state)

    def add(self, **line):
        with self.path.open("a", encoding="utf-8") as file:
            # a number of NumPy or a tensor of one element is a number
            file.write(json.dumps(line, default=lambda value: value.item()) + "\n")

    def lines(self):
        """What was written; the line that an interruption cut short is left out."""
        if not self.path.is_file():
            return []
        found = []
        for line in self.path.read_text("utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return found

    def _all(self, name):
        return [line[name] for line in self.lines() if name in line]

    @property
    def state(self):
        """The tree that was measured, or None."""
        return next(iter(self._all("state")), None)

    @property
    def sittings(self):
        """What the suite said about itself, once per time that it was started."""
        return self._all("suite")

    @property
    def finished(self):
        """Every benchmark that passed, as the fixture has it."""
        return self._all("passed")

    @property
    def skipped(self):
        """Name -> reason of what was left out and has not been measured since."""
        passed = {entry["name"] for entry in self.finished}
        found = {one["name"]: one["reason"] for one in self._all("skipped")}
        return {name: reason for name, reason in sorted(found.items()) if name not in passed}

    def remove(self):
        self.path.unlink(missing_ok=True)
