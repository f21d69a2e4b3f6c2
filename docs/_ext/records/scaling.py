"""What collectors on Ray would do beyond what was measured: a model, fitted to records.

Switch on: ``"docs._ext.records"`` in ``extensions``. Markup::

    :modeled:`rate`

    .. scaling-model:: figure
       :caption: Frames per second by collectors

``scaling-model`` writes ``figure``, ``scenarios``, ``costs`` or ``errors``; ``modeled`` one of the
values of ``values``. All come from ``Costs``, whose numbers are fitted to the records in ``FITTED``
and to nothing else. Nothing is shown as measured but what a record has: the lines of the model are
dashed, and go beyond the measured points. Where the code of a benchmark that the model reads has
changed, each says "to be measured again".
"""

import csv
from dataclasses import dataclass, replace
from io import StringIO
from itertools import pairwise

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective, SphinxRole

from benchmarks import record as records
from docs._ext.records import plot
from docs._ext.records.content import described, table
from docs._ext.records.store import DOWNLOADS, complain, link_stamp, reach
from docs._ext.support.charts import COLORS, LINES, MARKS
from docs._ext.support.page_state import link_file

# -- The model -------------------------------------------------------------------


@dataclass(frozen=True)
class Costs:
    """Seconds that one synchronous batch takes. Every collector has a core of its own."""

    step: float  # of a collector, for a frame of one environment
    gather: float  # of the learner, to fetch the batch of one collector
    call: float  # of the learner, to send weights to one collector
    byte: float  # more of that for each byte of the weights
    shared: float  # the part of a step that the environments of a collector have in common
    frame_bytes: float
    link: float = 1.25e9  # bytes a second into and out of the learner's machine: 10 Gbit/s

    def parts(self, collectors, frames, environments=1, weights=20_000):
        """The seconds by part; *frames* are those of each collector in a batch."""
        sent = frames * self.frame_bytes + weights
        return {
            "steps": frames * self.step * (self.shared / environments + 1 - self.shared),
            "fetching": collectors * self.gather,
            "weights": collectors * (self.call + weights * self.byte),
            "network": collectors * sent / self.link,
        }

    def rate(self, collectors, frames, **more):
        """Frames per second."""
        return collectors * frames / sum(self.parts(collectors, frames, **more).values())

    def most(self, frames, **more):
        """Frames per second that no number of collectors exceeds."""
        parts = self.parts(1, frames, **more)
        return frames / (sum(parts.values()) - parts["steps"])


def fitted(rows):
    """The x and z, not below zero, with the least relative errors of a x + b z = y.

    *rows* are (a, b, y).
    """
    scaled = [(a / y, b / y) for a, b, y in rows]
    aa, ab, bb = (sum(p * q for p, q in one) for one in pairs(scaled))
    a, b = map(sum, zip(*scaled, strict=True))
    z = max(0.0, (aa * b - ab * a) / (aa * bb - ab * ab))
    return (a - ab * z) / aa, z


def pairs(rows):
    a, b = zip(*rows, strict=True)
    return zip(a, a, strict=True), zip(a, b, strict=True), zip(b, b, strict=True)


# Each of these makes a row for `fitted` of the parameters and metrics of a benchmark.


def of_batch(given, metrics):
    """Frames of a collector in a batch, collectors to fetch from, seconds."""
    workers, seconds = given["workers"], metrics["round_time"]["median"]
    return given["frames"] / workers, workers, seconds


def of_sync(given, metrics):
    """Collectors, bytes that they get together, seconds."""
    size = (
        metrics["model_bytes"]["median"] if "model_bytes" in metrics else 1e3 * given["kilobytes"]
    )
    return given["workers"], given["workers"] * size, metrics["update_time"]["median"]


def of_step(given, metrics):
    """One step of all environments of a collector, environments, seconds."""
    return 1, given["workers"], given["workers"] / metrics["frames_per_second"]["median"]


FRAME = "memory_footprint", "default-cartpole", "bytes_per_frame"
ALONE = "scaling_ray", "throughput-one", "frames_per_second"
RAYS = "scaling_ray_workers"
# Subject -> what makes its rows, the record, and by key what they are called.
FITTED = {
    "batch": (
        of_batch,
        RAYS,
        {
            "w1": "Batch of one, steps that wait",
            "w2": "Batch of two, steps that wait",
            "w4": "Batch of four, steps that wait",
            "w8": "Batch of eight, steps that wait",
        },
    ),
    "sync": (
        of_sync,
        "weight_sync_ray",
        {
            "update-w2-20kb": "Weights to two, small",
            "update-w2-16mb": "Weights to two, large",
        },
    ),
    "step": (
        of_step,
        "collectors",
        {
            "throughput-n1-collector-none-0": "Step of one counting environment",
            "throughput-n2-serial-none-0": "Step of two in one collector",
            "throughput-n4-serial-none-0": "Step of four in one collector",
        },
    ),
}
# What the same costs say of measurements that they were not fitted to.
HELD_OUT = {
    "cartpole": (
        of_batch,
        "scaling_ray",
        {
            "throughput-ray-1": "Batch of one, CartPole",
            "throughput-ray-2": "Batch of two, CartPole",
        },
    ),
    "sync": (
        of_sync,
        RAYS,
        {
            "w1": "Weights to one, small",
            "w2": "Weights to two, small (again)",
            "w4": "Weights to four, small",
            "w8": "Weights to eight, small",
        },
    ),
}
PARTS = [*FITTED.values(), *HELD_OUT.values()]
SUITES = sorted({FRAME[0], ALONE[0], *(suite for _, suite, _ in PARTS)})


def rows_of(part, found):
    """The rows for `fitted` of a *part* of the tables above; *found* are the records by suite."""
    make, suite, keys = part
    benchmarks = [found[suite]["benchmarks"][key] for key in keys]
    return [make(one["parameters"], one["metrics"]) for one in benchmarks]


def fits(found):
    """The two numbers of each subject; a step of CartPole is that of one process."""
    numbers = {subject: fitted(rows_of(part, found)) for subject, part in FITTED.items()}
    return numbers | {"cartpole": (1 / median(found, *ALONE), numbers["batch"][1])}


def median(found, suite, key, metric):
    return found[suite]["benchmarks"][key]["metrics"][metric]["median"]


def fit(found):
    """The `Costs` by the records *found*."""
    numbers = fits(found)
    common, own = numbers["step"]
    shared, size = common / (common + own), median(found, *FRAME)
    return Costs(*numbers["cartpole"], *numbers["sync"], shared, size)


def gathers(found):
    """The least and the most that a further collector added to a batch."""
    rows = rows_of(FITTED["batch"], found)
    added = [(u - t) / (n - m) for (_, m, t), (_, n, u) in pairwise(rows)]
    return min(added), max(added)


def errors(found):
    """What was timed, its seconds in the record and by the model, and whether it was fitted."""
    numbers = fits(found)
    for table_of, seen in ((FITTED, True), (HELD_OUT, False)):
        for subject, part in table_of.items():
            x, z = numbers[subject]
            for title, (a, b, seconds) in zip(part[2].values(), rows_of(part, found), strict=True):
                yield title, seconds, a * x + b * z, seen


# -- What the page shows ---------------------------------------------------------

COLLECTORS, FEW, MANY = 100, 200, 2000  # on ten machines; frames of each in a batch
DRAWN = (1, 2, 5, 10, 20, 50, COLLECTORS)
LARGE = 16_000_000  # bytes of the weights
SCENARIOS = {  # what a batch has -> frames of each collector, and what else
    "200 frames of each collector": (FEW, {}),
    "200, weights of 16 MB": (FEW, {"weights": LARGE}),
    "200, four environments in each": (FEW, {"environments": 4}),
    "2000 frames of each collector": (MANY, {}),
    "2000, four environments in each": (MANY, {"environments": 4}),
}
LONGEST = {
    "steps": "steps of the environments",
    "fetching": "fetching batches",
    "weights": "sending weights",
    "network": "network",
}


def rounded(value):
    """Two digits, as ``13,000`` or ``9.5``."""
    return f"{float(f'{value:.2g}'):,g}" if value < 1e6 else f"{value / 1e6:.2g} million"


def values(costs, found):
    """What sentences of the page say."""
    alone = 1 / costs.step
    least, most = (replace(costs, gather=one) for one in gathers(found)[::-1])
    few, many = costs.rate(COLLECTORS, FEW), costs.rate(COLLECTORS, MANY)
    return {
        "rate": rounded(few),
        "gain": f"{rounded(few / alone)} times",
        "rate-many": rounded(many),
        "rate-least": rounded(least.rate(COLLECTORS, FEW)),
        "rate-most": rounded(most.rate(COLLECTORS, FEW)),
        "rate-many-least": rounded(least.rate(COLLECTORS, MANY)),
        "rate-many-most": rounded(most.rate(COLLECTORS, MANY)),
        "fetch": records.text("s", float(f"{costs.gather:.2g}")),
        "frames-to-fetch": rounded(costs.gather / costs.step),
        "link": f"{8 * costs.link / 1e9:g} Gbit/s",
    }


def scenarios(costs):
    """The rows of the table of what would be."""
    for name, (frames, more) in SCENARIOS.items():
        parts = costs.parts(COLLECTORS, frames, **more)
        sent = COLLECTORS * (frames * costs.frame_bytes + more.get("weights", 20_000))
        longest = max(parts, key=parts.get)
        share = parts[longest] / sum(parts.values())
        yield [
            name,
            rounded(costs.rate(COLLECTORS, frames, **more)),
            rounded(costs.most(frames, **more)),
            f"{LONGEST[longest]}, {records.text('%', 100 * float(f'{share:.2g}'))}",
            records.text("B", float(f"{sent:.2g}")),
        ]


def costs_table(costs):
    return [
        ["Step of CartPole", records.text("s", costs.step)],
        [
            "The part of a step that the environments of a collector share",
            f"{100 * costs.shared:.0f} %",
        ],
        ["Fetching the batch of a collector", records.text("s", costs.gather)],
        ["Sending weights to a collector", records.text("s", costs.call)],
        ["Each further megabyte of weights", records.text("s", 1e6 * costs.byte)],
        ["Bytes of a frame", records.text("B", costs.frame_bytes)],
    ]


def error_rows(found):
    for title, measured, modeled, seen in errors(found):
        off = round(100 * (modeled / measured - 1))
        error = f"{off:+d} %".replace("-", "\N{MINUS SIGN}") if off else "0 %"
        shown = (records.text("s", float(f"{seconds:.3g}")) for seconds in (measured, modeled))
        yield [title, *shown, error, "yes" if seen else "no"]


def series_of(costs, found):
    """The measured points, and the lines of the model, which are dashed."""

    def line(name, look, rate):
        color, mark = look.split()
        points = [(n, exactly(rate(n))) for n in DRAWN]
        return plot.Series(name, name, COLORS[color], MARKS[mark], "", points, LINES["dashed"])

    _, suite, keys = HELD_OUT["cartpole"]
    benchmarks = [found[suite]["benchmarks"][key] for key in keys]
    taken = [
        (one["parameters"]["workers"], one["metrics"]["frames_per_second"]) for one in benchmarks
    ]
    return [
        line("200 frames each", "orange square", lambda n: costs.rate(n, FEW)),
        line("2000 frames each", "blue triangle", lambda n: costs.rate(n, MANY)),
        line("steps alone", "green plus", lambda n: n / costs.step),
        plot.Series("measured", "measured", COLORS["gray"], MARKS["circle"], "", taken),
    ]


def exactly(value):
    return dict.fromkeys(("q1", "median", "q3"), float(f"{value:.3g}")) | {"iqr": 0}


# -- Reaching the records --------------------------------------------------------


def read(env):
    """The records by suite, and why a benchmark that the model reads no longer stands."""
    found, reasons = {}, []
    keys = [(suite, key) for _, suite, keys in PARTS for key in keys]
    for suite, key in [*keys, FRAME[:2], ALONE[:2]]:
        found[suite], outdated = reach(env, suite, "cpu")
        records.find(found[suite], key, found[suite]["benchmarks"], "key", suite)
        reasons += outdated.get(key, [])
    return found, reasons


class Modeled(SphinxRole):
    """``:modeled:`name```: one of `values`."""

    def run(self):
        try:
            found, reasons = read(self.env)
            said = values(fit(found), found)
            text = said[records.choose(self.text, said, "value", "scaling-model")]
        except records.RecordError as error:
            complain(self.env, error, self.get_location())
            return [nodes.problematic(self.rawtext, self.rawtext)], []
        return [nodes.inline("", records.AGAIN if reasons else text, classes=["modeled"])], []


class ScalingModel(SphinxDirective):
    """``scaling-model``: a figure or a table of the model."""

    required_arguments = 1
    option_spec = {"caption": directives.unchanged}  # noqa: RUF012 - docutils' interface
    TABLES = {  # noqa: RUF012
        "scenarios": (
            ["A batch has", "Frames per second", "Limit with any number", "Longest part", "Sent"],
            lambda costs, found: scenarios(costs),
        ),
        "costs": (["Cost", "Fitted"], lambda costs, found: costs_table(costs)),
        "errors": (
            ["Time", "Measured", "Model", "Error", "Fitted to it"],
            lambda costs, found: error_rows(found),
        ),
    }

    def run(self):
        try:
            name = records.choose(
                self.arguments[0], [*self.TABLES, "figure"], "part", "scaling-model"
            )
            found, reasons = read(self.env)
        except records.RecordError as error:
            complain(self.env, error, self.get_location())
            return []
        if reasons:
            text = f"{records.AGAIN.capitalize()}: {'; '.join(dict.fromkeys(reasons))}."
            return [nodes.paragraph("", text, classes=["not-measured"])]
        costs = fit(found)
        if name == "figure":
            return self.figure(costs, found)
        header, rows = self.TABLES[name]
        return [table(header, rows(costs, found), self.title())]

    def title(self):
        text = self.options.get("caption")
        return nodes.title("", "", *self.parse_inline(text)[0]) if text else None

    def figure(self, costs, found):
        series, metric = series_of(costs, found), plot.Metric("Frames per second", "1")
        name = f"plot{self.env.new_serialno('record-plot')}"
        label = "A model; only the points at one and two collectors are measured. "
        svg = plot.draw(
            series,
            metric,
            x_title="Collectors",
            x_unit="1",
            places=None,
            log="xy",
            name=name,
            label=label + described(series, metric, "Collectors", "1"),
        )
        figure = nodes.figure("", nodes.raw("", svg, format="html"), classes=["record-plot"])
        if caption := self.options.get("caption"):
            figure += nodes.caption("", "", *self.parse_inline(caption)[0])
        return [figure, self.origin(series, name)]

    def origin(self, series, name):
        """The paragraph below: which records the model is fitted to."""
        paragraph = nodes.paragraph("", "", classes=["record-stamp"])
        paragraph += [nodes.strong("", "Modeled"), nodes.Text(" from the records ")]
        for position, suite in enumerate(SUITES):
            paragraph += nodes.Text(", " if position else "")
            paragraph += link_stamp(self.env, f"{suite}@cpu", suite)
        path = f"{DOWNLOADS}/{self.env.docname.replace('/', '-')}-{name}.csv"
        text = nodes.inline("", "CSV of this chart")
        paragraph += [nodes.Text(". "), link_file(self.env, as_csv(series), path, text)]
        paragraph += nodes.Text(".")
        return paragraph


def as_csv(series):
    output = StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(["series", "collectors", "frames_per_second"])
    writer.writerows([one.name, x, v["median"]] for one in series for x, v in one.points)
    return output.getvalue()


def setup(app):
    app.setup_extension("docs._ext.records.directives")
    app.add_directive("scaling-model", ScalingModel)
    app.add_role("modeled", Modeled())
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
