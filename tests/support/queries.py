"""The search queries of ``tests/search/queries.toml``, each with the addresses that answer it."""

import hashlib
import tomllib
from dataclasses import dataclass

from tests.support import ROOT

FILE = ROOT / "tests" / "search" / "queries.toml"


@dataclass(frozen=True)
class Query:
    """The *words* as typed, and the *targets*, of which one has to come among the first."""

    words: str
    kind: str
    targets: tuple
    thread: str = ""  # owner/repository#number of the public thread the words are from

    @property
    def held_out(self):
        """Whether it stays out of any tuning: a third, by the words alone."""
        return hashlib.sha256(self.words.encode()).digest()[0] % 3 == 0


def read():
    """All queries, in the order of the file."""
    found = []
    for kind, listed in tomllib.loads(FILE.read_text(encoding="utf-8")).items():
        if isinstance(listed, dict):
            listed = [{"words": words, "targets": targets} for words, targets in listed.items()]
        for one in listed:
            words, targets = one.pop("words").strip(), tuple(one.pop("targets"))
            found.append(Query(words, kind, targets, **one))
    return found
