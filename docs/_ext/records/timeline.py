"""A timeline out of a benchmark record: what ran when, and inside what.

Purpose
    A trace that a suite took is drawn in the page, as a profiler's viewer would show it, with text
    that is legible on a phone.

Switch on
    ``"docs._ext.records"`` in ``extensions``.

Markup
    ::

        .. record-timeline:: profiling@cpu
           :rows: iteration-*
           :caption: One iteration of PPO
           :if-absent: not measured on CUDA yet

    Each benchmark that ``:rows:`` chooses is one range. Its metrics ``start`` and ``duration`` say
    when it ran, in seconds; its parameters say where it stands: ``lane`` (a process or a thread),
    ``depth`` (how many ranges are around it) and ``name``. Ranges of one lane, depth and name share
    a line. Lines are numbered in order of time, so that a text can refer to them.

What it writes
    A figure with an SVG image, whose alternative text (or ``:alt:``) has every value in it, and the
    stamp of the record. A record without these metrics or parameters is the warning
    ``records.unknown`` with the line of the directive and the cure.
"""

from docutils import nodes
from docutils.parsers.rst import directives

from benchmarks import record as records
from docs._ext.records.directives import RecordDirective
from docs._ext.support import charts

# In points.
LETTER = 11.4  # lines of text bear larger letters than a chart has beside its marks
LINE = 3 * charts.LETTER  # the height of one line: its text, and the bar below
EDGES = 4 * charts.LETTER  # and of the axis
COLORS = [color for name, color in charts.COLORS.items() if name != "gray"]  # by depth
INDENT = "\u2007\u2007"  # of a name, for each range around it
CURE = {
    "metric": "let the suite note it for every range",
    "parameter": "let the suite give it to every range",
}


def needed(kind, name, found, address):
    """Return *found*'s entry *name*, or say what the suite has to write."""
    if name not in found:
        raise records.UnknownError(f"{address} has no {kind} {name!r}; {CURE[kind]}")
    return found[name]


def ranges_of(record, keys, address):
    """The chosen benchmarks as ``(lane, depth, name, start, duration)``."""
    for metric in ("start", "duration"):
        unit = needed("metric", metric, record["metrics"], address)["unit"]
        if unit != "s":
            raise records.UnknownError(
                f"{address} has {metric} in {unit!r}; a timeline is drawn of seconds"
            )
    for key in keys:
        place = f"{address}:{key}"
        benchmark = record["benchmarks"][key]
        times = (
            needed("metric", metric, benchmark["metrics"], place)["median"]
            for metric in ("start", "duration")
        )
        lane, depth, name = (
            needed("parameter", parameter, benchmark["parameters"], place)
            for parameter in ("lane", "depth", "name")
        )
        if type(depth) is not int or depth < 0:
            raise records.UnknownError(
                f"{place} has the depth {depth!r}; let the suite write 0, 1, 2 and so on"
            )
        yield str(lane), depth, str(name), *times


def lines_of(ranges):
    """``{lane: {(depth, name): [(start, duration)]}}``, each in order of time."""
    lanes = {}
    for lane, depth, name, start, duration in ranges:
        lanes.setdefault(lane, {}).setdefault((depth, name), []).append((start, duration))
    for lane, lines in lanes.items():
        ordered = sorted(lines.items(), key=lambda line: (min(line[1])[0], line[0][0]))
        lanes[lane] = {line: sorted(times) for line, times in ordered}
    return lanes


def lasting(times):
    """How long the ranges of a line last, in words."""
    total = records.text("s", sum(duration for _, duration in times))
    return f"{len(times)} ×, {total} together" if len(times) > 1 else total


def described(lanes):
    """The alternative text: every line with its place in time."""
    said, number = [], 0
    for lane, lines in lanes.items():
        said.append(f"{lane}:")
        for (_, name), times in lines.items():
            number += 1
            start = times[0][0]
            since = f"from {records.text('s', start)} on" if start else "from the start"
            said.append(f"{number}, {name}: {lasting(times)}, {since}.")
    return "Timeline. " + " ".join(said)


def draw(lanes, *, name, label):
    """The timeline as SVG text; *name* prefixes its ids, *label* is its alternative text."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import MaxNLocator

    ink = charts.INK
    heads = len(lanes) if len(lanes) > 1 else 0
    count = heads + sum(map(len, lanes.values()))
    height = LINE * count + EDGES
    longest = max(t + d for lines in lanes.values() for times in lines.values() for t, d in times)
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(charts.settings() | {"font.size": LETTER})
        figure = Figure(figsize=(charts.WIDTH / 72, height / 72))
        FigureCanvasSVG(figure)
        axes = figure.add_axes((0.03, (EDGES - 3) / height, 0.94, LINE * count / height))
        axes.set(xlim=(0, longest), ylim=(count, 0), yticks=[], xlabel="Time")
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(lambda value, _: charts.written("s", value, None))
        axes.spines[["top", "right", "left"]].set_visible(False)
        row = number = 0
        hovers = {}
        for lane, lines in lanes.items():
            if heads:
                axes.text(0, row + 0.62, lane, weight="bold", va="center", color=ink)
                row += 1
            for (depth, title), times in lines.items():
                number += 1
                text = f"{number}\u2007{INDENT * depth}{title}, {lasting(times)}"
                axes.text(0, row + 0.34, text, va="center", color=ink)
                color = COLORS[depth % len(COLORS)]
                for index, (start, duration) in enumerate(times):
                    bar = (start, row + 0.62), duration, 0.3 - index % 2 * 0.1
                    gid = f"range-{len(hovers)}"
                    since, time = (records.text("s", value) for value in (start, duration))
                    hovers[gid] = f"{title}: {time}, from {since} on"
                    # the edge shows a range that is shorter than a pixel
                    look = {"facecolor": color, "edgecolor": color, "lw": 0.4, "gid": gid}
                    axes.add_patch(Rectangle(*bar, **look))
                row += 1
        return charts.part_of_page(charts.render(figure), name, label, hovers)


class RecordTimeline(RecordDirective):
    """``record-timeline``."""

    option_spec = RecordDirective.option_spec | {"alt": directives.unchanged}

    def render(self, record, outdated):
        lanes = lines_of(ranges_of(record, self.keys(record), self.address))
        if outdated:
            return []
        svg = draw(
            lanes,
            name=f"timeline{self.env.new_serialno('record-timeline')}",
            label=self.options.get("alt") or described(lanes),
        )
        figure = nodes.figure("", nodes.raw("", svg, format="html"), classes=["record-plot"])
        if caption := self.options.get("caption"):
            figure += nodes.caption("", "", *self.parse_inline(caption)[0])
        return [figure]


def setup(app):
    app.setup_extension("docs._ext.records.directives")
    app.add_directive("record-timeline", RecordTimeline)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
