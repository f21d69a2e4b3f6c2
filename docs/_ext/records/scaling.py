"""What collectors on Ray would do beyond what was measured: a model, fitted to records.

Switch on: ``"docs._ext.records"`` in ``extensions``. Markup::

    :modeled:`rate`

    .. scaling-model:: figure
       :caption: Frames per second by workers

``scaling-model`` writes ``figure``, ``scenarios``, ``costs`` or ``errors``; ``modeled`` one of the
values of ``values``. All come from ``Costs``, whose numbers are fitted to the records in ``FITTED``
and to nothing else. Nothing is shown as measured but what a record has: the lines of the model are
dashed, and go beyond the measured points. Where the code of a benchmark that the model reads has
changed, each says "to be measured again".
"""

import csv
from dataclasses import dataclass
from io import StringIO

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
    """Seconds that one synchronous batch takes. Every worker has a core of its own."""

    step: float  # of a worker, for a frame of one environment
    gather: float  # of the learner, to fetch the batch of one worker
    call: float  # of the learner, to update one worker
    byte: float  # more of that for each byte of the weights
    shared: float  # the part of a step that the environments of a worker have in common
    frame_bytes: float
    link: float = 1.25e9  # bytes a second into the learner's machine: 10 Gbit/s

    def parts(self, workers, frames, environments=1, weights=20_000):
        """The seconds by part; *frames* are those of each worker in a batch."""
        sent = frames * self.frame_bytes + weights
        return {
            "steps": frames * self.step * (self.shared / environments + 1 - self.shared),
            "fetching": workers * self.gather,
            "weights": workers * (self.call + weights * self.byte),
            "network": workers * sent / self.link,
        }

    def rate(self, workers, frames, **more):
        """Frames per second."""
        return workers * frames / sum(self.parts(workers, frames, **more).values())

    def most(self, frames, **more):
        """Frames per second that no number of workers exceeds."""
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
    """Frames of a worker in a batch, workers to fetch from, seconds."""
    workers, frames = given["workers"], given.get("frames") or given["frames_per_batch"]
    seconds = frames / metrics["frames_per_second"]["median"]
    return frames / max(workers, 1), workers, seconds  # no workers: one process


def of_update(given, metrics):
    """Workers, bytes that they get together, seconds."""
    sent = given["workers"] * metrics["model_bytes"]["median"]
    return given["workers"], sent, metrics["update_time"]["median"]


def of_step(given, metrics):
    """One step of all environments of a worker, environments, seconds."""
    return 1, given["workers"], given["workers"] / metrics["frames_per_second"]["median"]


FRAME = "memory_footprint", "default-cartpole", "bytes_per_frame"
# Subject -> what makes its rows, the record, and by key what they are called.
FITTED = {
    "batch": (
        of_batch,
        "scaling_ray",
        {
            "throughput-one": "Batch, one process",
            "throughput-ray-1": "Batch, one remote collector",
            "throughput-ray-2": "Batch, two remote collectors",
        },
    ),
    "update": (
        of_update,
        "weight_sync_ray",
        {
            "update-w2-20kb": "Update of two, small weights",
            "update-w2-16mb": "Update of two, large weights",
        },
    ),
    "step": (
        of_step,
        "collectors",
        {
            "throughput-n1-collector-none-0": "Step of one environment",
            "throughput-n2-serial-none-0": "Step of two in one worker",
            "throughput-n4-serial-none-0": "Step of four in one worker",
        },
    ),
}
# Whether the form holds for more workers than it was fitted to, without Ray: the last row of each
# is not fitted.
HELD_OUT = {
    "local batch": (
        of_batch,
        "collectors",
        {
            "throughput-n1-multi-sync-sleep-1": "",
            "throughput-n2-multi-sync-sleep-1": "",
            "throughput-n4-multi-sync-sleep-1": "Batch, four local workers",
        },
    ),
    "local update": (
        of_update,
        "weight_sync",
        {
            "pipe-sync-w1-4mb-elsewhere": "",
            "pipe-sync-w2-20kb-elsewhere": "",
            "pipe-sync-w2-4mb-elsewhere": "",
            "pipe-sync-w2-16mb-elsewhere": "",
            "pipe-sync-w4-4mb-elsewhere": "Update of four local workers",
        },
    ),
}
SUITES = sorted({FRAME[0], *(suite for _, suite, _ in [*FITTED.values(), *HELD_OUT.values()])})


def rows_of(subject, found):
    """The rows for `fitted`; *found* are the records by suite."""
    make, suite, keys = (FITTED | HELD_OUT)[subject]
    benchmarks = [found[suite]["benchmarks"][key] for key in keys]
    return [make(one["parameters"], one["metrics"]) for one in benchmarks]


def fit(found):
    """The `Costs` by the records *found*."""
    step, gather = fitted(rows_of("batch", found))
    call, byte = fitted(rows_of("update", found))
    common, own = fitted(rows_of("step", found))
    suite, key, metric = FRAME
    size = found[suite]["benchmarks"][key]["metrics"][metric]["median"]
    return Costs(step, gather, call, byte, common / (common + own), size)


def errors(found):
    """What was timed, its seconds in the record and by the model, and whether it was fitted."""
    for subject, (_, _, keys) in (FITTED | HELD_OUT).items():
        rows, held = rows_of(subject, found), subject in HELD_OUT
        x, z = fitted(rows[:-1] if held else rows)
        for title, (a, b, seconds) in zip(keys.values(), rows, strict=True):
            if title:
                yield title, seconds, a * x + b * z, not held


# -- What the page shows ---------------------------------------------------------

WORKERS, FEW, MANY = 100, 200, 2000  # workers on ten machines; frames of each in a batch
DRAWN = (1, 2, 5, 10, 20, 50, WORKERS)
LARGE = 16_000_000  # bytes of the weights
SCENARIOS = {  # what a batch has -> frames of each worker, and what else
    "200 frames of each worker": (FEW, {}),
    "200, weights of 16 MB": (FEW, {"weights": LARGE}),
    "200, four environments in each worker": (FEW, {"environments": 4}),
    "2000 frames of each worker": (MANY, {}),
    "2000, four environments in each worker": (MANY, {"environments": 4}),
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


def values(costs):
    """What sentences of the page say."""
    alone = 1 / costs.step
    few, many = costs.rate(WORKERS, FEW), costs.rate(WORKERS, MANY)
    return {
        "rate": rounded(few),
        "gain": f"{rounded(few / alone)} times",
        "rate-many": rounded(many),
        "gain-many": f"{rounded(many / alone)} times",
        "frames-to-fetch": rounded(costs.gather / costs.step),
        "link": f"{8 * costs.link / 1e9:g} Gbit/s",
    }


def scenarios(costs):
    """The rows of the table of what would be."""
    for name, (frames, more) in SCENARIOS.items():
        parts = costs.parts(WORKERS, frames, **more)
        sent = WORKERS * (frames * costs.frame_bytes + more.get("weights", 20_000))
        longest = max(parts, key=parts.get)
        share = parts[longest] / sum(parts.values())
        yield [
            name,
            rounded(costs.rate(WORKERS, frames, **more)),
            rounded(costs.most(frames, **more)),
            f"{LONGEST[longest]}, {records.text('%', 100 * float(f'{share:.2g}'))}",
            records.text("B", float(f"{sent:.2g}")),
        ]


def costs_table(costs):
    return [
        ["Step of CartPole in a worker", records.text("s", costs.step)],
        [
            "The part of a step that the environments of a worker share",
            f"{100 * costs.shared:.0f} %",
        ],
        ["Fetching the batch of a worker", records.text("s", costs.gather)],
        ["Update of a worker", records.text("s", costs.call)],
        ["Each further megabyte of weights", records.text("s", 1e6 * costs.byte)],
        ["Bytes of a frame", records.text("B", costs.frame_bytes)],
    ]


def error_rows(found):
    for title, measured, modeled, seen in errors(found):
        error = f"{100 * (modeled / measured - 1):+.0f} %".replace("-", "\N{MINUS SIGN}")
        shown = (records.text("s", float(f"{seconds:.2g}")) for seconds in (measured, modeled))
        yield [title, *shown, error, "yes" if seen else "no"]


def series_of(costs, found):
    """The measured points, and the lines of the model, which are dashed."""

    def line(name, look, rate):
        color, mark = look.split()
        points = [(n, exactly(rate(n))) for n in DRAWN]
        return plot.Series(name, name, COLORS[color], MARKS[mark], "", points, LINES["dashed"])

    _, suite, keys = FITTED["batch"]
    benchmarks = [found[suite]["benchmarks"][key] for key in keys]
    taken = [
        (one["parameters"]["workers"], one["metrics"]["frames_per_second"])
        for one in benchmarks
        if one["parameters"]["workers"]
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
    keys = [(suite, key) for _, suite, keys in (FITTED | HELD_OUT).values() for key in keys]
    for suite, key in [*keys, FRAME[:2]]:
        found[suite], outdated = reach(env, suite, "cpu")
        records.find(found[suite], key, found[suite]["benchmarks"], "key", suite)
        reasons += outdated.get(key, [])
    return found, reasons


class Modeled(SphinxRole):
    """``:modeled:`name```: one of `values`."""

    def run(self):
        try:
            found, reasons = read(self.env)
            said = values(fit(found))
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
            ["A batch has", "Frames per second", "Limit with any workers", "Longest part", "Sent"],
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
        label = "A model; only the points at one and two workers are measured. "
        svg = plot.draw(
            series,
            metric,
            x_title="Workers",
            x_unit="1",
            places=None,
            log="xy",
            name=name,
            label=label + described(series, metric, "Workers", "1"),
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
    writer.writerow(["series", "workers", "frames_per_second"])
    writer.writerows([one.name, x, v["median"]] for one in series for x, v in one.points)
    return output.getvalue()


def setup(app):
    app.setup_extension("docs._ext.records.directives")
    app.add_directive("scaling-model", ScalingModel)
    app.add_role("modeled", Modeled())
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
