"""The tables in which suites declare what they measure, and the records that repeat them."""

import importlib

import pytest

from benchmarks import __main__ as main
from benchmarks import metrics, record

BYTES = "bytes [B, exact] Bytes: Of it:\n    and more."


def test_an_entry_has_all_that_a_record_says_of_a_metric():
    mean = "mean [s, summary] Mean: Over the seeds."
    found = metrics.declare(f"\n{BYTES}\ntime [s] Wall time: Of a round.\n{mean}\n")
    assert found == {
        "bytes": {
            "title": "Bytes",
            "description": "Of it: and more.",
            "unit": "B",
            "exact": True,
        },
        "time": {"title": "Wall time", "description": "Of a round.", "unit": "s", "exact": False},
        "mean": {
            "title": "Mean",
            "description": "Over the seeds.",
            "unit": "s",
            "exact": False,
            "summary": True,
        },
    }


@pytest.mark.parametrize(
    "entry", ["time [ms] Time: Of it.", "time [s]: Of it.", "time [s] Time.", BYTES]
)
def test_a_faulty_entry_is_named(entry):
    with pytest.raises(
        ValueError, match=r"expected a new 'name \[unit\] Title: Description"
    ) as seen:
        metrics.declare(f"{BYTES}\n{entry}")
    assert repr(entry) in str(seen.value)


@pytest.mark.parametrize("suite", main.LIBRARY.suites())
def test_units_of_a_record_are_those_of_its_suite(suite):
    """They do not count as code of a benchmark: where they change, take the record again."""
    declared = importlib.import_module(f"benchmarks.suites.bench_{suite}").METRICS
    for path in main.LIBRARY.files():
        if path.parent.name != suite:
            continue
        for name, one in record.load(path)["metrics"].items():
            kind = {"unit", "exact", "summary"}
            found, asked = (
                {k: v for k, v in each.items() if k in kind} for each in (one, declared[name])
            )
            assert found == asked, (path, name)
