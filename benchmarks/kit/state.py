"""What has been measured so far: a folder of few, small files.

``measured.jsonl`` has one line of JSON for each thing that happened; the first says on what
machine, with what versions. ``triton.tar.xz.*`` are Triton's compiled kernels. Both fit what a
machine that is lent for minutes sends back: ``FILES`` files of ``FILE_BYTES`` at most.
"""

import io
import json
import os
import tarfile
from pathlib import Path

from benchmarks.checkpoint import Checkpoint

FILES, FILE_BYTES = 8, 16 * 2**20
NAME = "measured.jsonl"
# What ends a benchmark: it is not measured again unless somebody asks for it.
ENDED = ("passed", "skipped", "failed", "hung", "died")


class StateError(RuntimeError):
    """A state that cannot be used or kept; the text says why and what to do."""


class Part(Checkpoint):
    """The lines of one suite, in the file that all suites share."""

    def __init__(self, path, suite):
        super().__init__(path)
        self.suite = suite

    def add(self, **line):
        super().add(of=self.suite, **line)

    def lines(self):
        return [line for line in super().lines() if line.get("of") == self.suite]

    def ended(self):
        """Every benchmark that has an end, good or bad."""
        return {line[how]["name"] for line in self.lines() for how in ENDED if how in line}

    @property
    def skipped(self):
        """Name -> why it has no result: skipped, failed, or ended from outside."""
        found = super().skipped
        for how in ("failed", "hung", "died"):
            found |= {one["name"]: f"{how}: {one['reason']}" for one in self._all(how)}
        return dict(sorted(found.items()))

    def seconds(self):
        """Benchmark -> seconds to expect of it: what it took, or twice when it was cut short."""
        took = {one["name"]: one["seconds"] for one in self._all("took")}
        return took | {one["name"]: 2 * one["seconds"] for one in self._all("cut")}


class State:
    """The folder."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.path = self.folder / NAME

    def part(self, suite):
        return Part(self.path, suite)

    def lines(self):
        return Checkpoint(self.path).lines()

    @property
    def header(self):
        found = self.lines()
        if not found or "machine" not in found[0]:
            raise StateError(f"{self.path} is missing or is no state of this kit")
        return found[0]["machine"]

    def suites(self):
        return list(dict.fromkeys(line["of"] for line in self.lines() if "of" in line))

    def open(self):
        """See at once whether results can be kept."""
        self.write(self.lines())

    def begin(self, header, sources, retry=False):
        """Write what *sources*, other states of the same machine and code, hold already."""
        kept = []
        for source in sources:
            refuse_another(source.header, header, source.path)
            lines = [line for line in source.lines() if "machine" not in line]
            kept += [line for line in lines if line not in kept]
        if retry:
            kept = [line for line in kept if not {"failed", "hung", "died"} & line.keys()]
        self.write([{"machine": header}, *kept])

    def write(self, lines):
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            draft = self.path.with_suffix(".new")
            draft.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
            os.replace(draft, self.path)  # noqa: PTH105
        except OSError as error:
            raise StateError(f"cannot keep results in {self.folder}: {error}") from None

    def mend(self):
        """Cut off the line that a killed process left half written."""
        content = self.path.read_bytes()
        os.truncate(self.path, content.rfind(b"\n") + 1)


def refuse_another(found, header, path):
    """Raise :class:`StateError` unless both headers are of one device, stack and code."""
    reasons = []
    for field in ("device", "machine", "versions", "code"):
        one, other = found[field], header[field]
        if isinstance(one, dict):
            names = sorted(
                name for name in one.keys() | other.keys() if one.get(name) != other.get(name)
            )
            if names and field == "code":
                reasons.append(f"the code of {', '.join(names)} has changed")
            elif names:
                reasons += [f"{name} {one.get(name)} against {other.get(name)}" for name in names]
        elif one != other:
            reasons.append(f"{field} {one} against {other}")
    if found["rehearsal"] != header["rehearsal"]:
        reasons.append("a rehearsal measures nothing")
    if reasons:
        raise StateError(
            f"{path} does not go on here: {'; '.join(reasons)}. Measure in a new state, or go back"
        )


# -- Triton's cache --------------------------------------------------------------


def save_kernels(cache, folder):
    """Pack *cache* into *folder*; return its bytes there, or None where it is too large."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz", preset=1) as tar:
        tar.add(cache, arcname=".")
    content = packed.getvalue()
    if len(content) > (FILES - 2) * FILE_BYTES:  # beside the results and a log
        return None
    for old in Path(folder).glob("triton.tar.xz.*"):
        old.unlink()
    for number, begin in enumerate(range(0, len(content), FILE_BYTES)):
        Path(folder, f"triton.tar.xz.{number}").write_bytes(content[begin : begin + FILE_BYTES])
    return len(content)


def load_kernels(folder, cache):
    """Add to *cache* what *folder* has; a machine that is still held has its own there."""
    parts = sorted(Path(folder).glob("triton.tar.xz.*"))
    Path(cache).mkdir(parents=True, exist_ok=True)
    if parts:
        packed = io.BytesIO(b"".join(part.read_bytes() for part in parts))
        with tarfile.open(fileobj=packed, mode="r:xz") as tar:
            tar.extractall(cache, filter="data")
