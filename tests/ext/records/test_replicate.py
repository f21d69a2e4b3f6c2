"""How far a second record repeats the first, as docs/_ext/records/replicate.py shows it."""

import copy
import json

import pytest

from benchmarks import record as records
from tests.ext.records.test_directives import clean, project  # noqa: F401 - project is a fixture

REPEAT = "\n.. record-repeat::\n\n   toy@cpu: time\n"


@pytest.fixture
def repeated(project):  # noqa: F811
    again = copy.deepcopy(json.loads(project.path.read_text()))
    for point in ("min", "q1", "median", "q3", "max", "iqr"):
        again["benchmarks"]["small-a"]["metrics"]["time"][point] *= 1.5
    records.save(again, project.library.replicate("toy", "cpu"))
    project.page(REPEAT)
    return project


def test_it_says_how_far_the_values_moved(repeated):
    clean(repeated)
    text = " ".join(repeated.text().split())
    assert "Ratios Moved 25 % or less Median move" in text
    assert "Moved most toy 4 3 0 % 50 % small-a:time" in text


def test_a_second_record_taken_anew_changes_the_table(repeated):
    clean(repeated)
    path = repeated.library.replicate("toy", "cpu")
    records.save(json.loads(repeated.path.read_text()), path)
    clean(repeated)
    assert "toy 4 4 0 % 0 % " in " ".join(repeated.text().split())


@pytest.mark.parametrize("fault", ["code", "metric", "absent"])
def test_what_does_not_compare_is_named(repeated, fault):
    path = repeated.library.replicate("toy", "cpu")
    said = "No such file"
    if fault == "code":
        again = json.loads(path.read_text())
        again["code"]["bench_small"]["hash"] = "0" * 64
        records.save(again, path)
        said = "do not compare: code of bench_small"
    elif fault == "metric":
        repeated.page(REPEAT.replace("time", "tme"))
        said = "did you mean 'time'?"
    else:
        path.unlink()
    warnings, _ = repeated.build()
    assert warnings.count("WARNING") == 1
    assert said in warnings
    assert "index.rst:" in warnings
