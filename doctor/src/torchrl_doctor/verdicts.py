"""What a check says, and the table of all checks."""

from __future__ import annotations

import inspect
from typing import NamedTuple

from torchrl_doctor.other_rows import OTHER_ROWS
from torchrl_doctor.rows import ROWS, Row

APPLIES = "applies"


CLEAR = "clear"


UNDECIDED = "cannot decide"


FAILED = "check failed"  # an error in the check itself


STATES = (APPLIES, FAILED, UNDECIDED, CLEAR)  # in the order of a report


class Verdict(NamedTuple):
    """What one check found: `state` is APPLIES, CLEAR or UNDECIDED."""

    state: str
    evidence: str
    fix: str | None = None


def applies(evidence, fix=None):
    """The symptom is there; *evidence* says what was seen, in a few words with numbers.

    *fix* is code with the reader's own names and values; without it the row of the page has one.
    """
    return Verdict(APPLIES, evidence, fix)


def clear(evidence):
    """The symptom is not there, and the check could have seen it."""
    return Verdict(CLEAR, evidence)


def undecided(reason):
    """The check concerns these objects but cannot tell; *reason* says what it would need."""
    return Verdict(UNDECIDED, reason)


class Check(NamedTuple):
    """One symptom: its name, its title, the function that looks, and the page that explains it."""

    slug: str
    title: str
    look: object
    page: str = ""  # below the address of the manual, or a whole address
    row: Row | None = None

    @property
    def needs(self):
        """The arguments of `diagnose` that the check cannot do without."""
        parameters = inspect.signature(self.look).parameters.values()
        return [p.name for p in parameters if p.default is p.empty]

    @property
    def takes(self):
        return list(inspect.signature(self.look).parameters)


CHECKS = {}


def check(slug, title, page="", row=None):
    """Register a function whose parameters are arguments of `diagnose`.

    *page* is the page of the manual that explains it, ``reference/doctor#name`` say, or a whole
    address; without one it is that of the symptom *slug* in the debugging map, if there is one.
    *row* has effect, cause and fix where that map has none.
    It returns `applies`, `clear` or `undecided`, or None where it does not concern the objects.
    It may change nothing that it is given.
    """
    page = page or (f"tutorials/debugging/{slug}" if slug in ROWS else "")
    if page and "://" not in page:
        name, sharp, anchor = page.partition("#")
        page = f"{name}.html{sharp}{anchor}"
    row = row or ROWS.get(slug) or OTHER_ROWS.get(slug)

    def register(look):
        if slug in CHECKS:
            raise ValueError(f"two checks for {slug!r}")
        CHECKS[slug] = Check(slug, title, look, page, row)
        return look

    return register
