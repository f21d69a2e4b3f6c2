"""Draw a metric of a record as an SVG that is part of the page.

Numbers along x give lines, each named where it ends; series of several panels stand one panel
below the other, on the same scales. Anything else gives rows with the value beside the dot. Bars
show the quartiles. The height follows from what has to fit, whatever the names are. The bytes
depend on the record and the options alone.
"""

import itertools
import math
import textwrap
from dataclasses import dataclass

from docs._ext.support.charts import (
    INK,
    LETTER,
    apart,
    part_of_page,
    render,
    settings,
    width_of,
    written,
)

# All in points. Narrower than charts.WIDTH: the letters are larger on a phone.
WIDTH = 352
LINE = 1.3 * LETTER  # from one line of text to the next
ALONE, SHARED = 185, 130  # height of a panel that stands alone, and of one among several
EDGE = 1.5  # from the left edge to text, whose first letter may reach over
ROW = 1.65 * LETTER  # height of a row
INSET = 9  # from the first and the last point to the edge of the panel
KEY = 14  # from the panel to the text of a label; the mark of its series stands between
GAP = 0.35 * LETTER  # from one label to the next
NAME = 20  # letters on one line of a label
SHORT = 12  # letters of names beside which a second column of panels fits
# The empty cell of the logo, as in tables: field-manual.css, .not-measured.
MISSING = {"boxstyle": "round,pad=0.25", "fill": False, "ls": (0, (3, 2)), "lw": 0.7, "ec": INK}
QUARTILES = {"alpha": 0.35, "linewidth": 5, "solid_capstyle": "butt"}


@dataclass(frozen=True)
class Series:
    """What is drawn in one color: *points* are ``[(x, values)]``, values as in a record.

    *label* is what stands beside the line, in a *panel* that has a name of its own.
    """

    name: str
    label: str
    color: str
    mark: str
    panel: str
    points: list
    line: object = "solid"  # a style of matplotlib's


@dataclass(frozen=True)
class Metric:
    """What is measured. *baseline* names what a ratio compares with, and is empty for others."""

    title: str
    unit: str
    baseline: str = ""
    better: str = ""  # which end of the axis is faster

    def tick(self, value):
        return written("×" if self.baseline else self.unit, value, None)

    def text(self, value):
        unit = "×" if self.baseline else self.unit
        if unit == "1" and value % 1:  # a mean of counts
            value = float(f"{value:.3g}")
        return written(unit, value, 2 if unit in "×%" else 3)

    def hover(self, series, x, values):
        text = f"{series.name}, {x}: " if series.name else f"{x}: "
        text += self.text(values["median"])
        if values["iqr"]:
            text += f" (quartiles {self.text(values['q1'])} and {self.text(values['q3'])})"
        return text


def draw(series, metric, *, x_title, x_unit, places, log, name, label):
    """Return SVG text of the *series*.

    *places* are the names along x in their order, or None where x are numbers; *x_unit* is that of
    the numbers. *log* names the axes with a logarithmic scale; *name* prefixes every id in the
    image, *label* is its alternative text.
    """
    import matplotlib as mpl

    panels = {}
    for one in series:
        panels.setdefault(one.name if places else one.panel, []).append(one)
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(settings())
        if places:
            sheet = _rows(panels, metric, places)
        else:
            sheet = _lines(panels, metric, x_title, x_unit, log)
        return part_of_page(render(sheet.figure), name, label, sheet.hovers)


class Sheet:
    """A figure of *height* points; places are in points from its upper left corner."""

    def __init__(self, height):
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
        from matplotlib.transforms import Affine2D

        self.height, self.hovers = height, {}
        self.figure = Figure(figsize=(WIDTH / 72, height / 72))
        FigureCanvasSVG(self.figure)
        down = Affine2D().scale(1, -1).translate(0, height).scale(1 / 72)
        self.places = down + self.figure.dpi_scale_trans

    def panel(self, left, top, width, height):
        box = (left, self.height - top - height, width, height)
        across = (WIDTH, self.height, WIDTH, self.height)
        axes = self.figure.add_axes([part / whole for part, whole in zip(box, across, strict=True)])
        axes.spines[["top", "left", "right"]].set_visible(False)
        axes.tick_params(length=0, pad=5)
        axes.set_axisbelow(True)
        return axes

    def text(self, x, y, text, **options):
        options = {"va": "center", "color": INK, "linespacing": LINE / LETTER / 1.2} | options
        self.figure.text(x, y, text, transform=self.places, **options)

    def line(self, xs, ys, **options):
        from matplotlib.lines import Line2D

        self.figure.add_artist(Line2D(xs, ys, transform=self.places, **options))

    def point(self, axes, x, y, series, text):
        """The mark of a value, which says *text* to a pointer."""
        gid = f"point-{len(self.hovers)}"
        self.hovers[gid] = text
        axes.plot([x], [y], series.mark, color=series.color, gid=gid, clip_on=False, zorder=4)


def _head(metric, log):
    """The lines above a chart: what the values are, and what the line at 1 is."""
    yield metric.title + (" (log scale)" if "y" in log else "")
    if metric.baseline:
        yield f"Line at 1×: {metric.baseline}" + (metric.better and f"; {metric.better}")


# -- Lines -----------------------------------------------------------------------


def _lines(panels, metric, x_title, x_unit, log):
    everything = [one for panel in panels.values() for one in panel]
    places = _x_places(sorted({x for one in everything for x, _ in one.points}), "x" in log)
    low, high, ticks = _y_range(everything, metric, "y" in log)
    end = max(places, key=places.get)
    labels = {one.name: _label(one, metric, end, x_unit) for one in everything}
    left = max(width_of(metric.tick(value)) for value in ticks) + 8
    right = max(map(width_of, labels.values())) + KEY if any(labels.values()) else INSET
    width = WIDTH - left - right
    head = list(_head(metric, log))
    named = len(panels) > 1
    heights = {
        title: max(ALONE if not named else SHARED, sum(map(_height, map(labels.get, names))))
        for title, panel in panels.items()
        for names in [[one.name for one in panel]]
    }
    top = len(head) * LINE + LETTER
    before = [2 * LINE, *[3 * LINE] * (len(panels) - 1)] if named else [0]  # with the title
    sheet = Sheet(top + sum(heights.values()) + sum(before) + 3 * LINE)
    for index, text in enumerate(head):
        sheet.text(EDGE, (index + 0.6) * LINE, text)
    for index, (title, panel) in enumerate(panels.items()):
        if named:
            sheet.text(EDGE, top + before[index] - LINE, title, weight="bold")
        top += before[index]
        axes = sheet.panel(left, top, width, heights[title])
        axes.set_yscale("log" if "y" in log else "linear")
        inset = INSET / (width - 2 * INSET)
        axes.set(xlim=(-inset, 1 + inset), ylim=(low, high))
        axes.set_yticks(ticks, [metric.tick(value) for value in ticks])
        axes.set_yticks([], minor=True)
        last = index == len(panels) - 1
        axes.set_xticks(
            list(places.values()), [written(x_unit, x, None) if last else "" for x in places]
        )
        axes.grid(True, axis="y", color=INK, alpha=0.18)
        if metric.baseline:
            axes.axhline(1, color=INK, alpha=0.75, linewidth=1, dashes=(4, 3), zorder=1.5)
        for one in panel:
            _line(sheet, axes, one, places, x_unit, metric)
        if right > INSET:
            _name_ends(sheet, axes, panel, labels, places, (left + width, top, heights[title]))
        top += heights[title]
    sheet.text(left + width / 2, top + 2.35 * LINE, x_title, ha="center")
    return sheet


def _x_places(xs, log):
    """Where the *xs* stand, from 0 to 1.

    At even distances where most of the axis would be empty, as with 0, 1, 10.
    """
    if len(xs) == 1:
        return {xs[0]: 0.5}
    wide = xs[-1] - xs[0]
    if log and xs[0] > 0:
        return {x: math.log(x / xs[0]) / math.log(xs[-1] / xs[0]) for x in xs}
    if min(b - a for a, b in itertools.pairwise(xs)) < wide / 8:
        return {x: index / (len(xs) - 1) for index, x in enumerate(xs)}
    return {x: (x - xs[0]) / wide for x in xs}


def _y_range(series, metric, log):
    """The ends of the y axis and its ticks."""
    values = [v[end] for one in series for _, v in one.points for end in ("q1", "median", "q3")]
    values += [1] * bool(metric.baseline)
    if not log:
        from matplotlib.ticker import MaxNLocator

        low, high = min(0, *values), max(values)
        for most in (5, 7, 9):
            ticks = MaxNLocator(most, steps=[1, 2, 5, 10]).tick_values(low, high).tolist()
            ticks = [value for value in ticks if low <= value <= high * 1.04]
            if len(ticks) > 2:
                break
        return low, high * 1.04, ticks
    low, high = min(values) / 1.25, max(values) * 1.15
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        ticks = [float(f"{step}e{power}") for power in powers for step in steps]
        ticks = [value for value in ticks if low <= value <= high]
        if len(ticks) > 3:
            break
    return low, high, ticks


def _line(sheet, axes, one, places, x_unit, metric):
    axes.plot(
        [places[x] for x, _ in one.points],
        [values["median"] for _, values in one.points],
        color=one.color,
        linestyle=one.line,
        clip_on=False,
        zorder=3,
    )
    for x, values in one.points:
        if values["iqr"]:
            axes.plot([places[x]] * 2, [values["q1"], values["q3"]], color=one.color, **QUARTILES)
        text = metric.hover(one, written(x_unit, x, None), values)
        sheet.point(axes, places[x], values["median"], one, text)


def _label(one, metric, end, x_unit):
    """The name of a series and its last value, in lines that fit beside a panel."""
    if not one.label:
        return ""
    x, values = one.points[-1]
    text = f"{one.label} {metric.text(values['median'])}"
    if x != end:
        text += f" at {written(x_unit, x, None)}"
    return "\n".join(textwrap.wrap(text, NAME, break_long_words=False, break_on_hyphens=False))


def _height(label):
    return (label.count("\n") + 1) * LINE + GAP


def _name_ends(sheet, axes, panel, labels, places, box):
    """Name the lines at the right edge of their panel, each near the end of its line."""
    edge, top, height = box
    end = max(places.values())
    wanted = []
    for one in panel:
        share = axes.transLimits.transform(
            axes.transScale.transform((0, one.points[-1][1]["median"]))
        )[1]
        wanted.append(top + height * (1 - share))
    heights = [_height(labels[one.name]) for one in panel]
    found = apart(wanted, heights, top - LETTER / 2, top + height + LETTER / 2)
    reach = [places[one.points[-1][0]] == end for one in panel]
    moved = (abs(y - start) > LETTER / 3 for start, y in zip(wanted, found, strict=True))
    keyed = not all(reach) or any(moved)
    for one, start, y, ends in zip(panel, wanted, found, reach, strict=True):
        if keyed:
            mark = edge + KEY / 2 - 2
            if ends:  # dots, and a mark smaller than those of points: no value is here
                dots = {"color": one.color, "linewidth": 0.8, "linestyle": (0, (1, 2))}
                sheet.line([edge - INSET / 2, mark], [start, y], **dots)
            sheet.line([mark], [y], color=one.color, marker=one.mark, markersize=4)
        sheet.text(edge + (KEY if keyed else 3), y, labels[one.name])


# -- Rows ------------------------------------------------------------------------


def _rows(panels, metric, names):
    """One row for each of the *names*, a panel for each series; what is missing is a dash."""
    everything = [one for panel in panels.values() for one in panel]
    medians = [values["median"] for one in everything for _, values in one.points]
    high = max(values["q3"] for one in everything for _, values in one.points)
    columns = 2 if len(panels) > 2 and max(map(len, names)) <= SHORT else 1
    left = max(map(width_of, names)) + 14
    right = max(width_of(metric.text(value)) for value in medians) + 10
    across = (WIDTH - (columns - 1) * 2 * LETTER) / columns
    head = list(_head(metric, ""))
    titled = len(panels) > 1
    top = len(head) * LINE + LETTER
    step = ROW * len(names) + (2.4 * LINE if titled else 0)
    sheet = Sheet(top + step * math.ceil(len(panels) / columns))
    for index, text in enumerate(head):
        sheet.text(EDGE, (index + 0.6) * LINE, text)
    for index, (title, [one]) in enumerate(panels.items()):
        start = index % columns * (across + 2 * LETTER)
        at = top + index // columns * step
        if titled:
            sheet.text(start + EDGE, at + 0.8 * LINE, title, weight="bold")
            at += 1.5 * LINE
        axes = sheet.panel(start + left, at, across - left - right, ROW * len(names))
        axes.set(xlim=(0, high), ylim=(len(names) - 0.5, -0.5), xticks=[])
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(pad=11)
        axes.spines["bottom"].set_visible(False)
        axes.axvline(0, color=INK, alpha=0.4, linewidth=1)
        found = dict(one.points)
        for row, x in enumerate(names):
            beside = start + across - right + 8, at + (row + 0.5) * ROW
            if x not in found:
                sheet.text(*beside, "–", bbox=MISSING)
                continue
            values = found[x]
            axes.plot([0, values["median"]], [row, row], color=one.color, linewidth=1.5)
            if values["iqr"]:
                axes.plot([values["q1"], values["q3"]], [row] * 2, color=one.color, **QUARTILES)
            sheet.point(axes, values["median"], row, one, metric.hover(one, x, values))
            sheet.text(*beside, metric.text(values["median"]))
    return sheet
