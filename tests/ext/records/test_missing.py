"""What was not measured is the dashed cell of the logo, in tables and in drawings."""

from docutils import nodes

from docs._ext.records import plot
from docs._ext.records.content import MOST_METRICS, parts, points_table, values_table

TIME = {"title": "Time", "description": "", "unit": "s", "exact": True}
VALUES = {"median": 2.0, "q1": 2.0, "q3": 2.0, "iqr": 0.0, "rounds": 3}


def empty(table):
    return [one.astext() for one in table.findall(nodes.inline) if "not-measured" in one["classes"]]


def series(name, *places):
    points = [(place, VALUES) for place in places]
    return plot.Series(name, name, "#1f80c4", "o", "", points)


def test_a_table_of_benchmarks():
    record = {
        "metrics": {"time": TIME},
        "benchmarks": {"a": {"title": "A", "metrics": {}}},
    }
    assert empty(values_table(record, {"a": "A"}, ["time"], {})) == ["–"]


def test_benchmarks_with_the_same_metrics_share_tables_that_a_page_has_room_for():
    names = [f"m{number}" for number in range(MOST_METRICS + 1)]
    has = {"a": names, "b": names[:2], "c": names}
    benchmarks = {
        key: {"title": key, "metrics": dict.fromkeys(own, VALUES)} for key, own in has.items()
    }
    found = list(parts({"metrics": dict.fromkeys(names, TIME), "benchmarks": benchmarks}))
    assert [list(titles) for titles, _ in found] == [["a", "c"], ["a", "c"], ["b"]]
    assert [len(metrics) for _, metrics in found] == [3, 3, 2]
    assert [name for _, own in found[:2] for name in own] == names


def test_the_table_and_the_rows_of_a_drawing():
    both = [series("A", "one", "two"), series("B", "one")]
    _, table, _ = points_table(both, TIME, "Size", "1")
    assert empty(table) == ["–"]
    drawn = [
        plot.draw(
            shown,
            plot.Metric("Time", "s"),
            x_title="Size",
            x_unit="1",
            places=["one", "two"],
            log="",
            name="plot",
            label="",
        )
        for shown in (both, both[:1])
    ]
    dashed = [svg.count("stroke-dasharray") for svg in drawn]
    assert dashed[0] == dashed[1] + 1
