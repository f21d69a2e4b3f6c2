"""Values, tables and plots out of the benchmark records.

Switch on: ``"docs._ext.records"`` in ``extensions``. It reads ``benchmarks/`` and
``requirements-docs.txt`` beside the folder ``docs``; ``records_folder`` and
``records_requirements`` name others.

Markup::

    :measured:`memory_footprint@cpu:compact-cartpole:saving`
    :measured:`memory_recurrent@cuda:lstm-triton-t128:step_time|not measured on CUDA yet`

    .. record-table:: memory_footprint@cpu
       :metrics: bytes_per_frame saving
       :rows: *-cartpole
       :names:
          delta-cartpole: Differences alone
       :caption: CartPole by configuration

    .. record-plot:: memory_footprint@cpu
       :x: observation_bytes
       :y: saving
       :series: configuration
       :rows: *-float32-* *-uint8-*
       :log: x

    .. record-list::

    .. record-index::

An address is ``suite@device:key:metric``. A value has the digits that its spread allows, and a
single measurement says "one run" (``content.last_digit``, ``content.once``). The metrics
``<metric>_low`` and ``<metric>_high`` are the range of ``<metric>``, in its cell. ``:rows:`` takes
shell patterns over keys. ``:names:`` has, a line each, a key and what its row is called in place of
the title in the record. ``:x:`` and ``:series:`` name parameters of the benchmarks, ``:y:`` a
metric; ``:log:`` is ``x``, ``y`` or ``xy``. What a series looks like and how an axis is called
stands in ``series.toml``. A ratio is drawn with the line of 1, named by ``:baseline:`` or by what
the title of the metric says after "against". Text after ``|``, or the option ``:if-absent:``,
stands where a record of an existing suite was not taken yet, or where its record lacks what was
skipped or is not measured yet; without it that is a warning. It excuses nothing else: unknown names
and malformed records are warnings (``records.unknown``, ``records.malformed``, ``records.absent``)
that name the nearest valid name or the place in the file. "To be measured again" stands for the
values of a benchmark whose code has changed since (``benchmarks/code_hash.py`` says what that is),
and for every value where torchrl or tensordict has another version than the pinned one. A figure or
a choice in which such a value has a part is left out. Another torch is named beside the stamp.

It writes links from each value to the record's stamp, which the page with ``record-index`` shows,
and the records themselves as ``_downloads/records/<suite>-<device>.json`` and, one line for each
value, ``.csv``; the values of each plot as ``_downloads/records/<page>-plot<number>.csv``. A page
with a plot loads ``chart-points.js``, by which its values are had without a mouse.
"""

from contextlib import suppress
from fnmatch import fnmatchcase
from operator import itemgetter
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective, SphinxRole

from benchmarks import record as records
from docs._ext.records import chart_names
from docs._ext.records import plot as record_plot
from docs._ext.records.content import (
    ONCE,
    code,
    described,
    hover,
    index_entry,
    index_list,
    once,
    points_table,
    shown,
    stamp_line,
    values_table,
    with_interval,
)
from docs._ext.records.store import (
    ABSENT,
    complain,
    library,
    link_chart_csv,
    link_stamp,
    note_outdated,
    reach,
    split_address,
    stamp_id,
)
from docs._ext.support.page_state import MISSING, note_target, page_state

ROOT = Path(__file__).parents[3]
BETTER = {"Time": "lower is faster", "Wall time": "lower is faster"}
BETTER["Frames per second"] = "higher is faster"
INDEX = "records: index"  # page with a list or an index -> the records that it shows


class Measured(SphinxRole):
    """``:measured:`suite@device:key:metric``` with an optional ``|text if absent``."""

    def run(self):
        try:
            return [self.render()], []
        except records.RecordError as error:
            complain(self.env, error, self.get_location())
            return [nodes.problematic(self.rawtext, self.rawtext)], []

    def render(self):
        suite, device, key, metric, if_absent = records.split(self.text)
        try:
            record, outdated = reach(self.env, suite, device)
            declared, values = records.value(record, key, metric)
            values = with_interval(record["benchmarks"][key]["metrics"], metric)
        except records.AbsentError:
            if not if_absent:
                raise
            return nodes.inline(if_absent, if_absent, classes=["not-measured"])
        reasons = outdated.get(key, [])
        text = shown(declared, values, reasons)
        if once(declared, values) and not reasons:
            text += f" in {ONCE}"
        note_outdated(f"{suite}@{device}", reasons, self.get_location())
        title = hover(record, declared, values, reasons)
        return link_stamp(self.env, f"{suite}@{device}", text, title)


class RecordDirective(SphinxDirective):
    """What the directives share: reaching the record, ``:if-absent:`` and warnings."""

    required_arguments = 1
    values = None  # a link to those that are shown, in place of all of the record
    option_spec = {  # noqa: RUF012 - docutils' interface
        "caption": directives.unchanged,
        "if-absent": directives.unchanged_required,
        "rows": str.split,
    }

    def run(self):
        self.address = self.arguments[0]
        try:
            record, outdated = reach(self.env, *split_address(self.address))
            outdated = {key: outdated[key] for key in self.keys(record) if key in outdated}
            note_outdated(self.address, records.reasons(outdated), self.get_location())
            shown = self.render(record, outdated)
            return [*shown, stamp_line(self.env, record, outdated, values=self.values)]
        except records.AbsentError as error:
            if text := self.options.get("if-absent"):
                return [nodes.paragraph("", text, classes=["not-measured"])]
            complain(self.env, error, self.get_location())
        except records.RecordError as error:
            complain(self.env, error, self.get_location())
        return []

    def title(self):
        """The caption of a table, or None; its markup is that of the page."""
        text = self.options.get("caption")
        return nodes.title("", "", *self.parse_inline(text)[0]) if text else None

    def keys(self, record):
        """The benchmarks that ``:rows:`` names, in the order of the patterns."""
        patterns = self.options.get("rows", ["*"])
        chosen = []
        for pattern in patterns:
            found = [key for key in record["benchmarks"] if fnmatchcase(key, pattern)]
            if not found and not records.has_gaps(record):
                records.choose(pattern, record["benchmarks"], "key", self.address)
            chosen += [key for key in found if key not in chosen]
        if not chosen:
            records.find(record, " ".join(patterns), record["benchmarks"], "key", self.address)
        return chosen


def names(argument):
    """Keys and what they are called: a line each, ``key: words``."""
    found = [line.partition(":") for line in (argument or "").splitlines()]
    if not found or not all(key.strip() and words.strip() for key, _, words in found):
        raise ValueError("needs lines of the form 'key: words'")
    return {key.strip(): words.strip() for key, _, words in found}


class RecordTable(RecordDirective):
    """``record-table``: benchmarks as rows, metrics as columns."""

    option_spec = RecordDirective.option_spec | {"metrics": str.split, "names": names}

    def render(self, record, outdated):
        metrics = self.options.get("metrics", list(record["metrics"]))
        for metric in metrics:
            records.choose(metric, record["metrics"], "metric", self.address)
        chosen = self.keys(record)
        titles = {key: record["benchmarks"][key]["title"] for key in chosen}
        for key, title in self.options.get("names", {}).items():
            titles[records.find(record, key, chosen, "row", self.address)] = title
        return [values_table(record, titles, metrics, outdated, self.title())]


class RecordPlot(RecordDirective):
    """``record-plot``: a metric over a parameter, one line or panel per series."""

    option_spec = RecordDirective.option_spec | {
        "x": directives.unchanged_required,
        "y": directives.unchanged_required,
        "series": directives.unchanged,
        "baseline": directives.unchanged_required,
        "log": directives.unchanged,
        "alt": directives.unchanged,
    }

    def render(self, record, outdated):
        if outdated:
            return []
        for option in ("x", "y"):
            if option not in self.options:
                raise records.UnknownError(f"record-plot needs the option :{option}:")
        metric, series, table = self.options["y"], {}, self.config.records_series
        self.env.note_dependency(table)
        for key in self.keys(record):
            declared, values = records.value(record, key, metric)
            x, name = self.parameter(record, key, "x"), self.parameter(record, key, "series")
            series.setdefault(str(name), []).append((x, values))
        xs = dict.fromkeys(self.parameter(record, key, "x") for key in self.keys(record))
        if len(xs) == 1 and "if-absent" in self.options:
            raise records.AbsentError(f"{self.address}: one {self.options['x']} is no curve")
        places = None
        if all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in xs):
            series = {name: sorted(points, key=itemgetter(0)) for name, points in series.items()}
            x_title, x_unit = chart_names.axis(table, self.options["x"], self.address)
        else:
            places, x_title, x_unit = [str(x) for x in xs], self.options["x"], "1"
            series = {name: [(str(x), v) for x, v in points] for name, points in series.items()}
        parameter, lines = self.options.get("series"), places is None
        series = chart_names.looking(table, parameter, series, self.address, lines)
        measured = self.measured(declared)
        name = f"plot{self.env.new_serialno('record-plot')}"
        self.values = link_chart_csv(self.env, record, name, self.keys(record), metric)
        svg = record_plot.draw(
            series,
            measured,
            x_title=x_title,
            x_unit=x_unit,
            places=places,
            log=self.options.get("log", ""),
            name=name,
            label=self.options.get("alt") or described(series, measured, x_title, x_unit),
        )
        figure = nodes.figure("", nodes.raw("", svg, format="html"), classes=["record-plot"])
        if caption := self.options.get("caption"):
            figure += nodes.caption("", "", *self.parse_inline(caption)[0])
        return [figure, *points_table(series, declared, x_title, x_unit)]

    def measured(self, declared):
        """The metric. What a ratio compares with, its title says after "against"."""
        title = declared["title"]
        if declared["unit"] != "1":
            return record_plot.Metric(title, declared["unit"])
        baseline = self.options.get("baseline") or title.partition("gainst ")[2]
        better = (
            text for start, text in BETTER.items() if declared["description"].startswith(start)
        )
        return record_plot.Metric(title, "1", baseline, next(better, ""))

    def parameter(self, record, key, option):
        name = self.options.get(option)
        if name is None:
            return ""
        parameters = record["benchmarks"][key]["parameters"]
        return parameters[records.choose(name, parameters, "parameter", f"{self.address}:{key}")]


class RecordList(SphinxDirective):
    """``record-list``: a line for each suite, with links to its records, and which are missing."""

    def run(self):
        found, taken = library(self.env), []
        for suite, device in found.taken():
            with suppress(records.RecordError):  # ``record-index`` complains
                taken.append((f"{suite}@{device}", reach(self.env, suite, device)[0]))
        addresses = [address for address, _ in taken]
        page_state(self.env, INDEX)[self.env.docname] = addresses
        result = [index_list(self.env, taken)] if taken else []
        every = {f"{suite}@{device}" for suite in found.suites() for device in records.DEVICES}
        if missing := sorted(every - set(addresses)):
            result.append(not_taken(missing, sorted(every)))
        return result


class RecordIndex(SphinxDirective):
    """``record-index``: each record with its stamp, metrics and values."""

    def run(self):
        addresses, result = [], []
        for suite, device in library(self.env).taken():
            try:
                record, outdated = reach(self.env, suite, device)
            except records.RecordError as error:
                complain(self.env, error, self.get_location())
                continue
            addresses.append(f"{suite}@{device}")
            note_target(self.env, "stamp", addresses[-1], stamp_id(addresses[-1]))
            result.append(index_entry(self.env, record, outdated))
        page_state(self.env, INDEX)[self.env.docname] = addresses
        return result


def not_taken(missing, every):
    """The paragraph of the records that are missing; a device that has none is named alone."""
    named, devices = list(missing), []
    for device in records.DEVICES:
        of_device = [address for address in every if address.endswith(f"@{device}")]
        if len(of_device) > 1 and set(of_device) <= set(missing):
            devices.append(device)
            named = [address for address in named if address not in of_device]
    paragraph = nodes.paragraph("", "No record has been taken yet ")
    for position, text in enumerate([*devices, *named]):
        before = "on " if position < len(devices) else "of "
        first = position in (0, len(devices))
        paragraph += nodes.Text((", " if position else "") + (before if first else ""))
        paragraph += code(text)
    paragraph += nodes.Text(".")
    return paragraph


def read_again(app, env, added, changed, removed):
    """env-get-outdated: pages whose missing record now exists, and the index when one came or went.

    No dependency tells this.
    """
    absent, index = page_state(env, ABSENT), page_state(env, INDEX)
    waiting = {page for page, paths in absent.items() if any(path.is_file() for path in paths)}
    taken = {f"{suite}@{device}" for suite, device in library(env).taken()}
    waiting |= {page for page, known in index.items() if set(known) != taken}
    return sorted(waiting & env.found_docs)


def setup(app):
    app.add_config_value("records_folder", str(ROOT / "benchmarks"), "env", [str])
    app.add_config_value("records_series", str(chart_names.TABLE), "env", [str])
    app.add_config_value("records_requirements", str(ROOT / "requirements-docs.txt"), "env", [str])
    app.setup_extension("docs._ext.support.page_state")
    app.setup_extension("docs._ext.support.table_nodes")
    MISSING["stamp"] = "no page shows the stamp of %(target)s; put '.. record-index::' on one"
    app.add_role("measured", Measured())
    app.add_directive("record-table", RecordTable)
    app.add_directive("record-plot", RecordPlot)
    app.add_directive("record-list", RecordList)
    app.add_directive("record-index", RecordIndex)
    app.connect("env-get-outdated", read_again)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
