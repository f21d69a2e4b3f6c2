"""Run the doctor beside releases of TorchRL: ``python tools/doctor_releases.py PYTHON...``.

Each PYTHON is an interpreter with a release of TorchRL, and with gymnasium, matplotlib, psutil and
sphinx. In it the doctor looks at both sides of each page of ``tutorials/debugging`` whose code runs
there. The counts go into ``docs/reference/doctor_releases.csv``, a row for each release; rows of
other releases stay. `KNOWN_RELEASES` of the doctor has to name the same ones.

    $ uv venv /tmp/older && uv pip install --python /tmp/older/bin/python "torchrl==0.13.*" torch \\
          gymnasium matplotlib psutil sphinx
    $ python tools/doctor_releases.py /tmp/older/bin/python .venv/bin/python
"""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.symptom_pages import ALSO_TRUE  # noqa: E402

TARGET = ROOT / "docs" / "reference" / "doctor_releases.csv"
PAGES = ROOT / "tutorials" / "debugging"
RUNNER = ROOT / "tests" / "support" / "symptom_pages.py"
COLUMNS = (
    "TorchRL",
    "torch",
    "Extension",
    "Pages that run",
    "Symptoms named",
    "Named on a fixed side",
    "Checks that failed",
)


def counts(pages):
    """How many pages ran, symptoms were named, were named on a fixed side, and checks failed."""
    ran = {slug: page for slug, page in pages.items() if not page["error"]}
    said = [
        finding for page in ran.values() for side in ("broken", "fixed") for finding in page[side]
    ]
    named = [
        slug
        for slug, page in ran.items()
        if any(one[0] == slug and one[2] == "applies" for one in page["broken"])
    ]
    alarms = [
        one
        for slug, page in ran.items()
        for one in page["fixed"]
        if one[2] == "applies" and one[0] not in ALSO_TRUE.get(slug, ())
    ]
    failed = [one for one in said if one[2] == "check failed"]
    return len(ran), len(named), len(alarms), len(failed)


def row_of(python):
    """A row of COLUMNS for the release that an interpreter has."""
    path = {**os.environ, "PYTHONPATH": str(ROOT / "doctor" / "src"), "OMP_NUM_THREADS": "1"}

    def run(*command):
        command = [python, *map(str, command)]
        return json.loads(subprocess.check_output(command, env=path, text=True))

    machine = run("-m", "torchrl_doctor", "env", "--json")
    loads = machine["Imports"]["extension of torchrl"] == "loads"
    versions = machine["Versions"]
    pages = run(RUNNER, *sorted(page.stem for page in PAGES.glob("*.py")))
    torch = versions["torch"].partition("+")[0]
    return [versions["torchrl"], torch, "loads" if loads else "does not load", *counts(pages)]


def main(pythons):
    rows = {}
    if TARGET.is_file():
        with TARGET.open(encoding="utf-8", newline="") as file:
            rows = {row[0]: row for row in list(csv.reader(file))[1:]}
    for python in pythons:
        row = row_of(python)
        rows[row[0]] = row
        print(*row, flush=True)
        newest_first = sorted(rows.values(), key=lambda row: Version(row[0]), reverse=True)
        with TARGET.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *newest_first])


if __name__ == "__main__":
    main(sys.argv[1:])
