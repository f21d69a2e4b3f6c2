"""The plan: which benchmarks a piece holds, in which order.

``plan.toml`` names benchmarks as ``suite:function[parameters]``, as pytest does, with ``*`` for
anything. A benchmark belongs to the first piece that names it, so the last one may say the rest;
one that ``late`` names belongs to the last piece that does.
"""

import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

PLAN = Path(__file__).with_name("plan.toml")


class PlanError(ValueError):
    """A plan that cannot be followed; the text says where."""


class Piece(NamedTuple):
    number: int
    title: str
    seconds: int  # its share of a command
    patterns: tuple


class Plan(NamedTuple):
    longest: int  # seconds that one benchmark may take; after that it is ended and noted
    first: int  # seconds to expect of a benchmark of which nothing is known
    start: int  # seconds until a suite has started
    end: int  # seconds kept back for packing
    kernels: list  # suites that may find kernels compiled: they time no compilation
    warm: list  # patterns of what compiles those kernels before anything is timed
    warm_seconds: int  # for all of them, side by side
    late: list  # patterns of what comes when all else has had its turn
    pieces: tuple
    left_out: dict  # suite -> why it has nothing to measure on the device

    def suites(self):
        """Every suite of the plan, in the order of its first mention."""
        return list(
            dict.fromkeys(
                pattern.partition(":")[0] for piece in self.pieces for pattern in piece.patterns
            )
        )

    def warms(self, name):
        return any(matches(name, pattern) for pattern in self.warm)

    def share_out(self, names):
        """Number of the piece -> the *names* (``suite:benchmark``) it holds, in order.

        Names that no piece holds come under 0.
        """
        rank = {}
        for name in names:
            places = [
                (piece.number, place)
                for piece in self.pieces
                for place, pattern in enumerate(piece.patterns)
                if matches(name, pattern)
            ] or [(0, 0)]
            late = any(matches(name, pattern) for pattern in self.late)
            rank[name] = places[-1 if late else 0]
        shares = {number: [] for number in range(len(self.pieces) + 1)}
        for name in sorted(names, key=rank.get):  # a stable sort keeps the order of the suite
            shares[rank[name][0]].append(name)
        return shares


def matches(name, pattern):
    """Whether *name* fits; a pattern without a colon is a whole suite."""
    pattern = pattern if ":" in pattern else f"{pattern}:*"
    return fnmatchcase(name, pattern.replace("[", "[[]"))


def load(path=PLAN):
    written = tomllib.loads(Path(path).read_text("utf-8"))
    try:
        pieces = tuple(
            Piece(number, one["title"], one["seconds"], tuple(one["benchmarks"]))
            for number, one in enumerate(written["piece"], start=1)
        )
        names = ("longest", "first", "start", "end", "kernels", "warm", "warm_seconds", "late")
        settings = (written[name] for name in names)
        return Plan(*settings, pieces, written.get("left_out", {}))
    except KeyError as error:
        raise PlanError(f"{path}: {error} is missing") from None
