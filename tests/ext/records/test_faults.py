"""A damaged record through a whole build: named, never shown as valid, never published."""

import json
import shutil

import pytest

from benchmarks import record as records
from tests.ext.records.test_directives import TOY, toy_record
from tests.support.fixture_site import ROOT, Site, tree

pytestmark = pytest.mark.slow

PLACE = "benchmarks/results/toy/cpu.json"
PAGE = """
It takes :measured:`toy@cpu:small-b:bytes`.

.. record-table:: toy@cpu

.. record-index::
"""
SHOWN = "13,200\u00a0B"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A built site whose page quotes a record."""
    site = Site(tmp_path_factory.mktemp("measured") / "site")
    folder = site.root / "benchmarks"
    folder.mkdir()
    for name in ("__init__.py", "code_hash.py", "comparison.py", "record.py"):
        shutil.copy(ROOT / "benchmarks" / name, folder)
    site.write("benchmarks/bench_toy.py", TOY)
    site.write("benchmarks/shared.py", "ROUNDS = 5\n")
    shutil.copy(ROOT / "requirements-docs.txt", site.root)
    library = records.Library(folder, site.root / "requirements-docs.txt")
    record = toy_record(library)
    record["versions"] |= library.pins()
    records.save(record, site.root / PLACE)
    site.append("conf.py", '\nextensions.append("docs._ext.records.directives")\n')
    site.append("docs/other.rst", PAGE)
    status, output = site.build()
    assert status == 0, output
    assert (site.public / "other.html").read_text().count(SHOWN) >= 3
    return site


@pytest.fixture
def site(measured, tmp_path):
    return measured.copy(tmp_path / "site")


def damaged(site, damage):
    """Damage the record; build twice, because a repeated build has to fail, too."""
    path = site.root / PLACE
    path.write_text(damage(path.read_text()))
    before = tree(site.public)
    for _ in range(2):
        status, output = site.build()
        assert status == 1, output
        assert tree(site.public) == before
        yield output.partition("build failed: ")[2]


def edited(change):
    """A damage: *change* the record as a dictionary."""

    def damage(text):
        record = json.loads(text)
        change(record)
        return json.dumps(record)

    return damage


def mistype(record):
    record["machine"]["cores"] = "two"


def mistake(record):
    record["benchmarks"]["small-b"]["metrics"]["bytes"]["median"] = 1


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[:500], "expected JSON"),
        (edited(mistype), '$.machine.cores: expected type integer, found "two"'),
        (edited(mistake), "$.benchmarks.small-b.metrics.bytes: expected min <= q1 <= median"),
        (edited(lambda record: record.update(format=99)), "expected at most 2, found 99"),
    ],
    ids=["truncated", "mistyped", "edited", "future"],
)
def test_damaged_record_is_named(site, damage, said):
    for output in damaged(site, damage):
        assert said in output
        assert PLACE in output
        assert "docs/other.rst:" in output
        assert "Take it again: " in output or "Update the working copy." in output
        assert "build/html is untouched" in output


def test_record_of_other_code_is_not_shown(site):
    site.write("benchmarks/shared.py", "ROUNDS = 6\n")
    status, output = site.build()
    assert status == 0, output
    page = (site.public / "other.html").read_text()
    assert SHOWN not in page
    assert page.count(records.AGAIN) >= 3
    assert f"toy@cpu is {records.AGAIN}: the code of bench_small has changed" in output


def test_vanished_record_is_named(site):
    (site.root / PLACE).unlink()
    for _ in range(2):
        status, output = site.build()
        assert status == 1, output
        assert "toy@cpu is not measured yet. Take it: python -m benchmarks" in output
