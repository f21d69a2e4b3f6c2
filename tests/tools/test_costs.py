"""The table of what commands cost comes from a run."""

import re

import pytest

from tests.support import ROOT
from tools import costs
from tools.typed_numbers import figures_in

TAKEN = [5.4, 299.6, 61, 59.6, 3, 4, 70, 200]


def test_the_table_has_a_row_for_each_step_and_one_for_all():
    text = costs.table(TAKEN, "abc1234", "2026-01-02", "a machine, 2 cores")
    rows = dict(re.findall(r"^\| (`.+?) \| ([\d:]+) \|$", text, re.MULTILINE))
    assert list(rows) == [*(said for said, *_ in costs.STEPS), costs.WHOLE[0]]
    assert rows["`make unit`"] == "5:00"
    assert rows["`make html` with nothing changed"] == "0:03"
    assert rows["`make test` in a fresh clone"] == "7:06"
    assert "Taken at abc1234 on 2026-01-02, a machine, 2 cores;" in text
    assert list(figures_in(text)) == []


def test_the_committed_table_is_one_that_a_run_wrote():
    (shown,) = costs.TABLE.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    if shown.strip() != "Not taken yet.":
        assert re.findall(r"^\| (`.+?) \| [\d:]+ \|$", shown, re.MULTILINE) == [
            *(said for said, *_ in costs.STEPS),
            costs.WHOLE[0],
        ]
        assert re.search(r"Taken at \w+ on 20\d\d-\d\d-\d\d, .+ cores;", shown)


def test_the_page_that_is_edited_exists():
    assert (ROOT / costs.PAGE).is_file()


@pytest.fixture
def taken(tmp_path, monkeypatch):
    """A run in a folder of its own that measures nothing."""
    monkeypatch.setattr(costs, "ROOT", tmp_path)
    monkeypatch.setattr(costs, "clone", lambda folder: folder.mkdir())
    monkeypatch.setattr(costs, "measure", lambda folder: TAKEN)
    run = costs.subprocess.CompletedProcess([], 0, stdout="abc1234\n")
    monkeypatch.setattr(costs.subprocess, "run", lambda *_, **__: run)
    return tmp_path / "CONTRIBUTING.md"


def test_a_run_replaces_the_table_alone(taken):
    text = "Before\n<!-- costs: make costs -->\nold\n<!-- costs: end -->\nAfter\n"
    taken.write_text(text)
    costs.main([])
    written = taken.read_text()
    assert written.startswith("Before\n<!-- costs: make costs -->\n\n| Command |")
    assert written.endswith("is there.\n<!-- costs: end -->\nAfter\n")
    assert "old" not in written


def test_a_table_without_a_place_is_no_success(taken):
    taken.write_text("No markers.\n")
    with pytest.raises(SystemExit, match="no place for the table"):
        costs.main([])


def test_a_step_that_fails_ends_it(tmp_path, monkeypatch):
    monkeypatch.setattr(costs, "STEPS", [("`true`", ["true"], None), ("`false`", ["false"], None)])
    with pytest.raises(SystemExit, match=r"false failed in .*: nothing is written"):
        costs.measure(tmp_path)


def test_a_step_gets_no_arguments_of_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("ARGS", "--keep here")
    monkeypatch.setenv("MAKEFLAGS", " -- ARGS=--keep here")
    empty = ["sh", "-c", 'test -z "$ARGS$MAKEFLAGS"']
    monkeypatch.setattr(costs, "STEPS", [("`make`", empty, None)])
    assert len(costs.measure(tmp_path)) == 1
