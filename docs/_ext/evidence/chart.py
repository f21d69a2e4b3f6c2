"""A table that a script printed, as a chart; ``directives`` shows it.

Its three columns are the series, x and y. A unit stands in brackets behind the name of a column::

    {"columns": ["state", "rows of burn-in", "error of the state [%]"],
     "rows": [["zeros", "0", "100"], ...], "log": "y"}

It is drawn as the plot of a record; *log* names the axes with a logarithmic scale. A script that
draws more than lines adds ``"svg"``, in which the gid of the mark of row 3 is ``point-3``.
"""

import csv
from io import StringIO

from docs._ext.records import plot
from docs._ext.support import charts


def draw(table, name, label):
    """SVG text; *name* prefixes every id in it, *label* is its alternative text."""
    _, x_title, y_title = table["columns"]
    if "svg" in table:
        said = (
            f"{one}, {charts.with_unit(x_title, x)}: {charts.with_unit(y_title, y)}"
            for one, x, y in table["rows"]
        )
        hovers = {f"point-{row}": text for row, text in enumerate(said)}
        return charts.part_of_page(table["svg"], name, label, hovers)
    points = {}
    for one, x, y in table["rows"]:
        values = {**dict.fromkeys(("q1", "median", "q3"), float(y)), "iqr": 0}
        points.setdefault(one, []).append((float(x), values))
    looks = zip(charts.COLORS.values(), charts.MARKS.values(), strict=True)
    series = [
        plot.Series(one, one, *look, "", found)
        for (one, found), look in zip(points.items(), looks, strict=False)
    ]
    title, _, unit = y_title.removesuffix("]").partition(" [")
    return plot.draw(
        series,
        plot.Metric(title, unit or "1"),
        x_title=x_title,
        x_unit="1",
        places=None,
        log=table.get("log", ""),
        name=name,
        label=label,
    )


def as_csv(table):
    output = StringIO()
    csv.writer(output, lineterminator="\n").writerows([table["columns"], *table["rows"]])
    return output.getvalue()
