"""The findings of one examination."""

from __future__ import annotations

import json
import sys
from typing import NamedTuple

from torchrl_doctor.about import SITE, __version__
from torchrl_doctor.releases import installed_version
from torchrl_doctor.renderings import (
    as_document,
    as_html,
    as_markdown,
    as_text,
    takes_color,
)
from torchrl_doctor.roots import by_root
from torchrl_doctor.rows import Row
from torchrl_doctor.verdicts import APPLIES, STATES


class Finding(NamedTuple):
    """A verdict with the check that gave it."""

    slug: str
    title: str
    state: str
    evidence: str
    code: str | None = None  # the fix with names and values of the reader
    page: str = ""  # its address below that of the manual
    row: Row | None = None

    @property
    def effect(self):
        """Whether the symptom is "silent" or "loud"; None where nobody says so."""
        return self.row.effect if self.row else None


def versions():
    """Of what the findings were made with, by name; None where there is none."""
    return {name: installed_version(name) for name in ("torchrl", "tensordict", "torch")}


def in_words_of(names):
    """Names of arguments as a reader would give them: a sample comes from the buffer."""
    named = {"sample": "replay_buffer", "error": "an error"}
    return ", ".join(sorted({named.get(name, name) for name in names}))


class Report:
    """The findings, those that apply first; `str` is a text for a terminal."""

    def __init__(self, site=SITE):
        self.site = f"{site.rstrip('/')}/" if site else ""
        self.findings = []
        self.notes = []  # what could not be had, one sentence each
        self.refused = []  # arguments that are not what they should be
        self.lacking = {}  # by check, the arguments it would need
        self.savings = []  # what certainly costs time or memory, none of it a symptom
        self.unconcerned = []  # checks that do not concern these objects

    def __iter__(self):
        first = [one for root, below in self.roots for one in (root, *below)]
        rest = [one for one in self.findings if one.state != APPLIES]
        return iter(first + sorted(rest, key=lambda one: STATES.index(one.state)))

    def __len__(self):
        return len(self.findings)

    def of(self, state):
        return [one for one in self.findings if one.state == state]

    @property
    def applies(self):
        """The findings whose symptom is there."""
        return self.of(APPLIES)

    @property
    def roots(self):
        """Pairs of a finding that applies and the list of those that follow from it."""
        return by_root(self.applies)

    def address(self, one):
        """Where the page of a finding is; None where its check has none."""
        if not one.page or "://" in one.page:
            return one.page or None
        return self.site + one.page

    @property
    def counts(self):
        """How many checks said what, as a sentence."""
        numbers = {state: len(self.of(state)) for state in STATES}
        words = {APPLIES: "apply"} if numbers[APPLIES] > 1 else {}
        said = [f"{n} {words.get(state, state)}" for state, n in numbers.items() if n]
        if self.unconcerned:
            said.append(f"{len(self.unconcerned)} of no concern here")
        if self.lacking:
            names = {name for names in self.lacking.values() for name in names}
            said.append(f"{len(self.lacking)} not looked at for lack of {in_words_of(names)}")
        number = len(self) + len(self.unconcerned) + len(self.lacking)
        checks = "check" if number == 1 else "checks"
        return f"{number} {checks}: {', '.join(said) or 'none was run'}."

    @property
    def versions(self):
        """Those of the doctor and of what it looked at, by name."""
        return {"torchrl-doctor": __version__} | versions()

    def table(self, everything=False, color=False):
        """The report as text; *everything* adds what is clear and what nothing was given for."""
        return as_text(self, everything, color)

    __str__ = table

    def show(self, everything=False, file=None):
        """Print the report, with colors where *file* is a terminal that takes them."""
        file = sys.stdout if file is None else file
        print(self.table(everything, takes_color(file)), file=file)

    def __repr__(self):
        number = len(self.applies)
        what = f"{number} symptoms apply" if number != 1 else "1 symptom applies"
        names = ", ".join(root.slug for root, _ in self.roots)
        return f"<Report: {what}{': ' if names else ''}{names}>"

    def _repr_html_(self):
        return as_html(self)

    def to_markdown(self):
        """The report for an issue."""
        return as_markdown(self)

    def to_json(self, **more):
        """The report as a JSON document of the form `SCHEMA`; *more* is added to it."""
        return json.dumps(as_document(self) | more, indent=1, ensure_ascii=False)
