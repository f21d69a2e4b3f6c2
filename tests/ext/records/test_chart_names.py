"""The reviewed table of what series look like, and drawings with the names that it has."""

import itertools
import re
import tomllib

import pytest

from benchmarks import record as records
from docs._ext.records import chart_names, plot
from docs._ext.support.charts import COLORS, LETTER, LINES, MARKS
from tests.support import ROOT

TABLE = tomllib.loads(chart_names.TABLE.read_text("utf-8"))
AXES = TABLE.pop("axes")


def test_the_table_names_what_the_pages_draw():
    sources = [*(ROOT / "docs").rglob("*.rst"), *(ROOT / "tutorials").rglob("*.py")]
    pages = "".join(page.read_text("utf-8") for page in sorted(sources))
    plot = re.compile(r"^((?:# )? *)\.\. record-plot::.*\n(?:\1   .*\n)*", re.MULTILINE)
    plots = "".join(found.group() for found in plot.finditer(pages))
    assert set(TABLE) == set(re.findall(r":series: (\S+)", plots))
    assert set(AXES) <= set(re.findall(r":x: (\S+)", plots))


@pytest.mark.parametrize("parameter", TABLE)
def test_no_two_series_share_color_and_mark(parameter):
    found = [one["look"] for one in TABLE[parameter].values()]
    assert len({tuple(look.split()[:2]) for look in found}) == len(found)
    for look in found:
        color, mark, *line = look.split()
        assert color in COLORS
        assert mark in MARKS
        assert set(line) <= set(LINES) - {"solid"}


def test_a_class_has_one_color():
    """Those of one parameter whose names begin with the same class, up to what varies it."""
    classes = ("AsyncBatchedCollector", "PrioritizedSampler", "ProbabilisticActor", "HardUpdate")
    classes += ("SliceSampler(", "PrioritizedSliceSampler(", "ParallelEnv")
    for name in classes:
        found = {
            one["look"].split()[0]
            for entries in TABLE.values()
            for series, one in entries.items()
            if series.startswith(name) or series == f"Collector, {name}"
        }
        assert len(found) == 1, name


@pytest.mark.parametrize("parameter", TABLE)
def test_panels_have_no_more_series_than_they_can_name(parameter):
    found = [one.get("panel") for one in TABLE[parameter].values()]
    for panel in set(found) - {None}:
        assert found.count(panel) <= chart_names.MOST


VALUES = records.measurement([1.0, 1.1, 1.2, 1.3, 1.4])


def drawn(names, points=((1, VALUES), (2, VALUES)), others=()):
    series = [plot.Series(name, name, "#1f80c4", "o", "", points) for name in names]
    series += others
    return plot.draw(
        series,
        plot.Metric("Time", "s"),
        x_title="Size",
        x_unit="1",
        places=None,
        log="",
        name="plot0",
        label="",
    )


def axis_of(svg):
    """Top and bottom of the panel: the grid lines and the axis run across it."""
    ys = [float(y) for y in re.findall(r'd="M [\d.]+ ([\d.]+) *\n?L [\d.]+ \1 ', svg)]
    return min(ys), max(ys)


def test_height_of_a_panel_does_not_depend_on_the_length_of_names():
    short = drawn(["a", "b", "c"])
    long = drawn([f"a name of {letter} so long that it takes three lines here" for letter in "abc"])
    low, high = axis_of(short)
    assert high - low > 105, "140 pixels"
    assert axis_of(long) == (low, high)


def test_labels_of_equal_lines_do_not_cover_each_other():
    svg = drawn(["one", "two", "three", "four", "five"])
    labels = re.findall(r'y="([\d.]+)"[^>]*>(?:one|two|three|four|five) ', svg)
    assert len(labels) == 5
    assert min(b - a for a, b in itertools.pairwise(sorted(map(float, labels)))) > LETTER


def test_a_line_that_ends_before_the_others_says_where():
    short = plot.Series("short", "short", "#d1661f", "s", "", [(1, VALUES)])
    svg = drawn(["whole"], others=[short]).replace("\u00a0", " ")
    assert ">short 1.20 s at 1<" in svg
    assert ">whole 1.20 s<" in svg


def test_a_column_is_called_as_an_axis_of_its_parameter():
    assert chart_names.heading(chart_names.TABLE, "step_ms") == "Cost of a step, ms"
    assert chart_names.heading(chart_names.TABLE, "rows") == "Rows in the buffer"
    assert chart_names.heading(chart_names.TABLE, "no_axis") == "No axis"


def test_an_axis_that_goes_below_zero_has_ticks_on_both_sides():
    values = {"q1": -265.0, "median": 300.0, "q3": 732.0}
    metric = plot.Metric("Return", "1")
    low, high, ticks = plot._y_range(
        [plot.Series("a", "a", "", "", "", [(1, values)])], metric, False
    )
    assert low < ticks[0] < 0 < ticks[-1] < high
    assert 0 in ticks
