"""How long a page may be, by its kind, and the pages that may be longer."""

import tomllib
from fnmatch import fnmatch

from tests.support import ROOT

# Most words and screens, by the first pattern that an address matches. An index has no yardstick:
# nobody reads it from end to end. Nor have pages of upstream's docstrings.
YARDSTICKS = {
    "reference/api/*": (None, None),
    "tutorials/debugging/index": (None, None),
    "tutorials/debugging/*": (300, None),
    "tutorials/*": (2000, None),
    "reference/*": (3000, 15),
    "performance/*": (3000, 15),
    "how-to/index": (None, None),
    "how-to/*": (800, None),
    "index": (800, None),
}
LINES = 300  # of a lesson's script


def yardstick(name):
    """The most words and screens of a page, by its address without ``.html``; None is no limit."""
    return next((most for like, most in YARDSTICKS.items() if fnmatch(name, like)), (None, None))


def misfits(measured, limits, unit):
    """Two results: pages above their limit without a reason, and reasons that none needs.

    *measured* and *limits* are numbers by address. ``long_pages.toml`` has a section for each page
    that is longer, with ``reason`` and, in ``units``, what it has more of.
    """
    long_pages = tomllib.loads((ROOT / "tests/repository/long_pages.toml").read_text())
    allowed = {name for name, page in long_pages.items() if unit in page["units"]}
    over = {name for name, count in measured.items() if count > (limits.get(name) or count)}
    return {name: (measured[name], limits[name]) for name in over - allowed}, allowed - over
