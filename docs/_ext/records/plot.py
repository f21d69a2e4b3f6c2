"""Draw metrics of a record as an SVG that is part of the page.

The bytes depend on the record and the options alone.
"""

from benchmarks.record import scale
from docs._ext.support.charts import INK, STYLES, part_of_page, render, settings

SHORT = 24  # letters of a name of which two fit beside each other
WIDE = 45  # letters of the names below the bars that still fit beside each other
SIZE = (5.4, 3.6)  # inches; small, so that the text is still legible on a phone


def draw(series, *, x_label, y_label, unit, numeric, log, name, label):
    """Return SVG text for *series*: ``{name: [(x, values)]}``, values as in a record.

    *numeric* x, in order, gives lines, anything else gives bars. *name* prefixes every id in the
    image, *label* is its alternative text.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(settings())
        figure = Figure(figsize=SIZE, layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        factor, unit_name = scale(
            unit, max(v["median"] for line in series.values() for _, v in line)
        )
        (_lines if numeric else _bars)(axes, series, factor)
        axes.set(xlabel=x_label, ylabel=y_label if unit_name == "1" else f"{y_label} [{unit_name}]")
        _scale_axes(axes, log, numeric)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, axis="y", color=INK, alpha=0.2)
        axes.set_axisbelow(True)
        if len(series) > 1:
            columns = 2 if max(map(len, series)) <= SHORT else 1
            figure.legend(loc="outside upper left", ncols=columns, frameon=False)
        return part_of_page(render(figure), name, label)


def _error(values, factor):
    """The distance of the quartiles from the median, or None where there is no spread."""
    if not any(v["iqr"] for v in values):
        return None
    return (
        [(v["median"] - v["q1"]) / factor for v in values],
        [(v["q3"] - v["median"]) / factor for v in values],
    )


def _lines(axes, series, factor):
    for (name, points), (color, marker) in zip(series.items(), _cycle(series), strict=True):
        values = [v for _, v in points]
        axes.errorbar(
            [x for x, _ in points],
            [v["median"] / factor for v in values],
            yerr=_error(values, factor),
            color=color,
            marker=marker,
            capsize=3,
            label=name,
        )
    axes.set_xticks(sorted({x for points in series.values() for x, _ in points}))
    axes.xaxis.set_major_formatter("{x:g}")


def _bars(axes, series, factor):
    places = list(dict.fromkeys(str(x) for points in series.values() for x, _ in points))
    width = 0.8 / len(series)
    for index, ((name, points), (color, _)) in enumerate(
        zip(series.items(), _cycle(series), strict=True)
    ):
        values = [v for _, v in points]
        axes.bar(
            [places.index(str(x)) + (index - (len(series) - 1) / 2) * width for x, _ in points],
            [v["median"] / factor for v in values],
            width,
            yerr=_error(values, factor),
            ecolor=INK,
            color=color,
            label=name,
        )
    crowded = sum(map(len, places)) > WIDE
    leaning = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
    axes.set_xticks(range(len(places)), places, **leaning)


def _cycle(series):
    return [STYLES[index % len(STYLES)] for index in range(len(series))]


def _scale_axes(axes, log, numeric):
    if "x" in log and numeric:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(_no_ticks())
        axes.set_xticks(axes.get_xticks())
    if "y" in log:
        axes.set_yscale("log")
    elif axes.dataLim.y0 >= 0:
        axes.set_ylim(bottom=0)


def _no_ticks():
    from matplotlib.ticker import NullLocator

    return NullLocator()
