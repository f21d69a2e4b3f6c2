"""The table of metrics of a suite: one entry a metric, ``name [unit] Title: Description.``

A value that depends on no machine is ``[unit, exact]``, one that sums up several runs, such as a
mean over seeds, ``[unit, summary]``; units are those of ``record.UNITS``. An entry goes on in
lines that are indented::

    METRICS = metrics.declare(\"\"\"
    bytes [B, exact] Bytes: What the batch holds.
    time [s] Time: Wall time of a round,
        with what it waits for.
    \"\"\")
"""

import re

from benchmarks.code_hash import UNITS

ENTRY = re.compile(r"([\w.-]+) \[([^],]+)(?:, (exact|summary))?\] (.+?): (.+)")


def declare(table):
    """Name -> title, description, unit and exactness, as a record has them."""
    found = {}
    for text in re.split(r"\n(?=\S)", table.strip()):
        entry = ENTRY.fullmatch(" ".join(text.split()))
        if not entry or entry[2] not in UNITS or entry[1] in found:
            raise ValueError(f"expected a new 'name [unit] Title: Description.', found {text!r}")
        name, unit, kind, title, description = entry.groups()
        said = {"title": title, "description": description, "unit": unit}
        found[name] = said | {"exact": False, **({kind: True} if kind else {})}
    return found
