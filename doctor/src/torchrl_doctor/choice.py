"""Which checks are run: those of the doctor and of others, less what the reader leaves out."""

from __future__ import annotations

import difflib
import functools
import importlib.metadata

from torchrl_doctor.objects import in_words
from torchrl_doctor.verdicts import CHECKS

GROUP = "torchrl_doctor.checks"


def unknown_name(name, known, what):
    """A sentence about a name that is none, with those that it may stand for."""
    close = difflib.get_close_matches(name, known, 3, 0.6)
    close = close or [one for one in known if name in one][:3]
    return f"no {what} {name!r}" + (f" (did you mean {' or '.join(close)}?)" if close else "")


def chosen_checks(only=(), ignore=()):
    """The checks to run; ValueError for a name that is none of them."""
    only, ignore = ([one] if isinstance(one, str) else list(one or ()) for one in (only, ignore))
    for name in (*only, *ignore):
        if name not in CHECKS:
            raise ValueError(unknown_name(name, CHECKS, "check"))
    wanted = only or CHECKS
    return [one for slug, one in CHECKS.items() if slug in wanted and slug not in ignore]


@functools.cache
def checks_of_others():
    """Import the modules that installed packages name in `GROUP`; a note for each that fails."""
    notes = []
    for point in importlib.metadata.entry_points(group=GROUP):
        try:
            point.load()
        except (Exception, SystemExit) as error:
            notes.append(f"The checks of {point.value} are left out: {in_words(error)}")
    return tuple(notes)
