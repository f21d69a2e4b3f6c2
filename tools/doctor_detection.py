"""Measure what the doctor finds of planted defects: ``python tools/doctor_detection.py``.

It looks at all healthy pipelines and all defects of ``tests/support/defects``, which takes some
minutes, and writes two tables that ``docs/reference/doctor.rst`` shows: how many defects are named,
by subsystem, and what of healthy pipelines is accused or wrongly called clear, with the versions of
the run.
"""

import collections
import csv
import importlib.metadata
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "doctor" / "src")]

TARGET = ROOT / "docs" / "reference" / "doctor_detection.csv"
RUN = ROOT / "docs" / "reference" / "doctor_detection_run.csv"
COLUMNS = (
    "Subsystem",
    "In the map, seen",
    "In the map, kept aside",
    "In the map, newer",
    "Others, seen",
    "Others, kept aside",
)
FIELDS = (
    "torchrl-doctor",
    "TorchRL",
    "Healthy pipelines",
    "Accused",
    "Defects",
    "Kept aside",
    "Wrong clears",
    "Checks that failed",
)


def counts(defects, results, planting):
    """For each subsystem and for all: how many are named and how many planted, by its `GROUPS`."""
    found = collections.defaultdict(lambda: [[0, 0] for _ in planting.GROUPS])
    for one in defects:
        group = planting.GROUPS.index(one.kind)
        for row in (one.subsystem, "all"):
            found[row][group][0] += planting.is_named(one, results[one.name])
            found[row][group][1] += 1
    names = sorted(found.keys() - {"all"})
    return {name: found[name] for name in (*names, "all")}


def cell(named, planted):
    return f"{named} of {planted}" if planted else ""


def run_of(defects, results, planting):
    """What `FIELDS` names, of one run."""
    import torchrl_doctor

    healthy = [results[name] for name in planting.PIPELINES]
    failed = [one for result in results.values() for one in result["findings"]]
    return [
        torchrl_doctor.__version__,
        importlib.metadata.version("torchrl"),
        len(healthy),
        sum(bool(planting.alarms(one)) for one in healthy),
        len(defects),
        sum(one.group != "seen" for one in defects),
        sum(len(planting.wrongly_clear(one, results[one.name])) for one in defects),
        sum(one["state"] == "check failed" for one in failed),
    ]


def written(target, *rows):
    with target.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def read():
    """The table as `counts` gives it, and the run as a dictionary by `FIELDS`."""
    with TARGET.open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    pairs = {row[0]: [tuple(map(int, one.split(" of "))) if one else (0, 0) for one in row[1:]]
             for row in rows}  # fmt: skip
    with RUN.open(encoding="utf-8", newline="") as file:
        return pairs, dict(csv.reader(file))


def main():
    from tests.support.defects import planting
    from tests.support.defects.diagnoses import DEFECTS, NAMES, looked_at

    results, defects = looked_at(NAMES), list(DEFECTS.values())
    table = counts(defects, results, planting)
    rows = [[name, *(cell(*pair) for pair in pairs)] for name, pairs in table.items()]
    written(TARGET, COLUMNS, *rows)
    written(RUN, *zip(FIELDS, run_of(defects, results, planting), strict=True))
    accused = {name: planting.alarms(results[name]) for name in planting.PIPELINES}
    print("accused:", {name: alarms for name, alarms in accused.items() if alarms} or "none")
    print(planting.misses(defects, results), planting.table(defects, results), sep="\n\n")


if __name__ == "__main__":
    main()
