"""How a chart names and colors what it shows: one table for the whole site, ``series.toml``.

``records_series`` names another table. A series, or a numeric axis, that it does not name is the
warning ``records.unknown``, which says what to add.
"""

import tomllib
from pathlib import Path

from benchmarks import record as records
from docs._ext.records.plot import Series
from docs._ext.support.charts import COLORS, LINES, MARKS

TABLE = Path(__file__).with_name("series.toml")
MOST = 5  # series in one panel


def axis(path, parameter, address):
    """Title and unit of the axis of a numeric *parameter*."""
    found = _entries(path, "axes", [parameter], address, '{ title = "…" }')[parameter]
    return found["title"], found.get("unit", "1")


def heading(path, parameter):
    """What a column with the values of a *parameter* is called."""
    found = tomllib.loads(Path(path).read_text("utf-8")).get("axes", {}).get(parameter)
    if found is None:
        words = parameter.replace("_", " ")
        return words[0].upper() + words[1:]
    return ", ".join(filter(None, (found["title"], found.get("unit"))))


def looking(path, parameter, points, address, lines=True):
    """The *points*, ``{name: [(x, values)]}``, as :class:`Series`, in the order of the table.

    *lines* says that a panel has more than one, which have to differ in color or in their line.
    """
    if parameter is None:
        [(name, only)] = points.items()
        return [Series(name, "", COLORS["blue"], MARKS["circle"], "", only)]
    split = len(points) > MOST
    series = []
    found = _entries(path, parameter, points, address, '{ look = "<color> <mark>" }')
    for name, one in found.items():
        color, mark, line = [*one["look"].split(), "solid"][:3]
        said = one.get("label", name)
        label = one.get("short", said) if split else said
        panel = one.get("panel", "") if split else ""
        look = COLORS[color], MARKS[mark], panel, points[name], LINES[line]
        series.append(Series(said, label, *look))
    for panel in dict.fromkeys(one.panel for one in series):
        inside = [one for one in series if one.panel == panel]
        if len(inside) > MOST:
            raise records.UnknownError(
                f"{address}: {len(inside)} series of {parameter!r} in one panel are too many to "
                f"name; give each a panel of at most {MOST} in {path}"
            )
        seen = {}
        for one in inside if lines else ():
            other = seen.setdefault((one.color, one.line), one)
            if other is not one:
                raise records.UnknownError(
                    f"{address}: {other.name!r} and {one.name!r} have the same color and line in "
                    f"one panel; name another line ({', '.join(LINES)}) of one in {path}"
                )
    return series


def _entries(path, table, names, address, example):
    """The entries of a *table* for *names*, in the order of the table."""
    found = tomllib.loads(Path(path).read_text("utf-8")).get(table, {})
    for name in names:
        if name not in found:
            raise records.UnknownError(
                f'{address}: {path} does not say how {name!r} looks; add "{name}" = {example} to '
                f"[{table}]"
            )
    return {name: entry for name, entry in found.items() if name in names}
