"""The list of recipes: in each row, times that may be compared."""

import re

from benchmarks import record as records
from tests.support import ROOT

PAGE = (ROOT / "docs" / "performance" / "recipes" / "index.rst").read_text(encoding="utf-8")
CELL = re.compile(r":measured:`([^`|]+)`")


def tables():
    """The measured cells of each table, by row: pairs of the addresses on the two sides."""
    for table in PAGE.split(".. list-table:: Processor time")[1:]:
        table = table.partition("\n\n.. list-table")[0]
        rows = re.findall(r"(?m)^   \* - :doc:`\w+`\n((?:     - .*\n)+)", table)
        cells = [re.findall(r"(?m)^     - (.*)$", row) for row in rows]
        yield [tuple(m[1] for c in row if (m := CELL.fullmatch(c))) for row in cells]


def test_each_row_has_one_metric_of_one_record_on_both_sides():
    with_baseline, with_simulators = tables()
    assert (len(with_baseline), len(with_simulators)) == (5, 1)
    for sides in [*with_baseline, *with_simulators]:
        suites, devices, keys, metrics, _ = zip(*map(records.split, sides), strict=True)
        assert len(keys) == len(set(keys)) == 2, "one value in each of two cells, and nothing else"
        for same in (suites, devices, metrics):
            assert len(set(same)) == 1, sides


def test_only_the_first_column_of_the_first_table_is_torchrl():
    [with_baseline, _] = tables()
    for sides in with_baseline:
        ours, theirs = (records.split(side)[2] for side in sides)
        assert ours.startswith("torchrl")
        assert not theirs.startswith("torchrl")
