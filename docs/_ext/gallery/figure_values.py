"""The values that a tutorial's figure is drawn from: to point at, and as a file.

Used by ``figures``, which saves the figure; it has no switch and no markup. A tutorial draws as it
likes: what is read are the lines, the points and the bars of each axes that stand in the
coordinates of its data. A series is called by its label, or else by the text in the axes that has
its color. Ticks that have names give their names.

What it writes: for each value an invisible point into the drawing, whose title says it, as a point
of a record's plot does (at most ``MOST`` of a figure, evenly taken from each series; the first and
the last are among them), and a CSV file with all. Images, areas, arrows and lines across the whole
axes hold no values, and a figure of these alone has no file.
"""

import csv
from dataclasses import dataclass
from html import escape
from io import StringIO
from math import ceil, isfinite

from docs._ext.support.charts import with_unit

MOST = 150  # values of a figure that a pointer finds: more would lie on each other
RADIUS = 4  # points, of what a pointer has to meet
DIGITS = 6  # of a value in the file; a value to point at has four


@dataclass(frozen=True)
class Series:
    """*places* are those of its *points*, pairs of numbers, in the drawing, from its top left."""

    axes: object
    name: str
    points: list
    places: list


def series_of(figure):
    """Every series of a figure that has been drawn, in the order of its axes."""
    return [one for axes in figure.axes for one in _of_axes(axes) if one.points]


def _of_axes(axes):
    from matplotlib.collections import PathCollection
    from matplotlib.container import BarContainer

    def of_data(transform):  # an axvline has one coordinate of the data alone
        return all(transform.contains_branch_seperately(axes.transData))

    for line in axes.lines:
        if of_data(line.get_transform()):
            yield _series(axes, line.get_xydata(), line.get_label(), line.get_color())
    for dots in axes.collections:
        if isinstance(dots, PathCollection) and of_data(dots.get_offset_transform()):
            color = next(iter([*dots.get_facecolor(), *dots.get_edgecolor()]), None)
            yield _series(axes, dots.get_offsets(), dots.get_label(), color)
    for bars in axes.containers:
        if isinstance(bars, BarContainer) and bars.patches:
            ends = [_end(bar, bars.orientation) for bar in bars]
            yield _series(axes, ends, bars.get_label(), bars.patches[0].get_facecolor())


def _end(bar, orientation):
    """The middle of the end of a bar."""
    share = (0.5, 1) if orientation == "vertical" else (1, 0.5)
    corner, size = bar.get_xy(), (bar.get_width(), bar.get_height())
    return tuple(c + s * part for c, s, part in zip(corner, size, share, strict=True))


def _series(axes, points, label, color):
    points = [(float(x), float(y)) for x, y in points if isfinite(x) and isfinite(y)]
    height, scale = axes.figure.bbox.height, 72 / axes.figure.dpi
    places = axes.transData.transform(points).tolist() if points else []
    places = [(scale * x, scale * (height - y)) for x, y in places]
    return Series(axes, _name(axes, label, color), points, places)


def _name(axes, label, color):
    """The label that the tutorial gave, or the text that has the color of the series."""
    from matplotlib.colors import to_rgb

    if label and not label.startswith("_"):
        return label
    if color is not None:
        for text in axes.texts:
            if to_rgb(text.get_color()) == to_rgb(color):
                return " ".join(text.get_text().split())
    return ""


def _title(axes, which):
    """What an axis is called, or nothing; where axes share it, one of them says so."""
    shared = getattr(axes, f"get_shared_{which}_axes")().get_siblings(axes)
    titles = [getattr(one, f"get_{which}label")() for one in (axes, *shared)]
    return next(filter(None, titles), "")


def _writer(axes, which, digits):
    """A function that writes a value of an axis: by the name of its tick, or in *digits*."""
    from matplotlib.ticker import FixedFormatter, FuncFormatter

    axis = getattr(axes, f"{which}axis")
    formatter, named = axis.get_major_formatter(), {}
    if isinstance(formatter, FixedFormatter | FuncFormatter):  # what set_yticks makes of names
        ticks = axis.get_majorticklocs().tolist()
        named = {tick: formatter(tick, place) for place, tick in enumerate(ticks)}

    def write(value):
        grouped = "," if digits < DIGITS and abs(value) >= 10_000 else ""
        return named.get(value) or f"{float(f'{value:.{digits}g}') + 0.0:{grouped}.10g}"

    return write


def _panel(axes):
    """What tells axes from the others of a figure."""
    titles = filter(None, map(axes.get_title, ("left", "center", "right")))
    return next(titles, "") or f"panel {axes.figure.axes.index(axes) + 1}"


def as_csv(found):
    """All values of the series, one on a line; a line of the drawing has its number."""
    panels = {one.axes: _panel(one.axes) for one in found}
    titles = [{_title(axes, which) for axes in panels} for which in "xy"]
    columns = [
        (title.pop() if len(title) == 1 else "") or which
        for title, which in zip(titles, "xy", strict=True)
    ]
    output = StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow([*["panel"] * (len(panels) > 1), "series", "line", *columns])
    for number, one in enumerate(found, 1):
        write_x, write_y = (_writer(one.axes, which, DIGITS) for which in "xy")
        for x, y in one.points:
            panel = [panels[one.axes]] * (len(panels) > 1)
            writer.writerow([*panel, one.name, number, write_x(x), write_y(y)])
    return output.getvalue()


def to_point_at(found):
    """The elements of an SVG that say the values to a pointer."""
    step = ceil(sum(len(one.points) for one in found) / MOST)
    drawn = []
    for one in found:
        write_x, write_y = (_writer(one.axes, which, 4) for which in "xy")
        x_title, y_title = (_title(one.axes, which) for which in "xy")
        chosen = sorted({*range(0, len(one.points), step), len(one.points) - 1})
        for (x, y), (across, down) in ((one.points[at], one.places[at]) for at in chosen):
            said = f"{one.name}, " if one.name else ""
            said += f"{with_unit(x_title, write_x(x))}: {with_unit(y_title, write_y(y))}"
            drawn.append(
                f"<g><title>{escape(said, quote=False)}</title>"
                f'<circle cx="{across:.1f}" cy="{down:.1f}" r="{RADIUS}" fill="transparent"/></g>'
            )
    return '<g class="chart-points">\n' + "\n".join(drawn) + "\n</g>\n" if drawn else ""
