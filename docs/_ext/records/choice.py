"""Decision tables that a record decides: which option is first in each situation, and by how much.

Switch on: ``"docs._ext.records"`` in ``extensions``. Markup::

    .. record-choice:: collectors@cpu
       :situation: step_ms wait
       :choice: collector
       :metric: frames_per_second
       :best: most
       :rows: throughput-*
       :caption: Collectors by the cost of a step

``:situation:`` and ``:choice:`` name parameters of the benchmarks, ``:metric:`` one of the metrics,
``:best:`` is ``most`` or ``least``. ``:rows:``, ``:caption:`` and ``:if-absent:`` are those of
``record-table``. Nobody types which option wins: a record taken on another day may say otherwise.

What it writes: a row per situation, numbers by size, each with an address of its own: the first
choice, its value, the next option with its value, and the factor between the two. Options whose
quartiles overlap those of the first are named together, and a row in which none is clearly worse
says so. Below the table stands the stamp. Unknown names, a situation with a single option and two
benchmarks of one option in one situation are warnings; a record with gaps shows the situations that
have two options.

A decision tree is a nested list in ``.. container:: decision-tree``: questions in strong type,
answers emphasized, and leaves that link a row of such a table, on this page or another::

    .. container:: decision-tree

       * **Does the step wait?**

         * *No.* :choice:`choice-collectors-frames-per-second-1-busy`
         * *Yes.* :choice:`MultiSyncCollector <choice-collectors-frames-per-second-1-sleep>`

A leaf without a text shows the first choice of its row. A text has to be the first choice, one of
several without a clear winner, or the next option; another one is the warning ``records.unknown``.
Where the code of a benchmark has changed, a leaf shows its text or "to be measured again". A page
is written again when the row of a leaf changed on another page.
"""

from itertools import groupby
from typing import NamedTuple

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole

from benchmarks import record as records
from docs._ext.records import chart_names
from docs._ext.records.content import ratio, shown_with_spread, table
from docs._ext.records.directives import RecordDirective
from docs._ext.support import identifiers
from docs._ext.support.page_state import MISSING, link, note_target, page_state

logger = logging.getLogger(__name__)
OPTIONS = ("situation", "choice", "metric", "best")
ROWS = "choices"  # page -> {id of a row: (names of the first choice, name of the next)}
LEAVES = "leaves of decision trees"  # page -> {id of a row: what its leaves showed}


class Option(NamedTuple):
    name: str
    declared: dict
    values: dict

    def beats(self, other, most):
        """Whether the quartiles of the two lie apart, this one's on the better side."""
        if most:
            return self.values["q1"] > other.values["q3"]
        return self.values["q3"] < other.values["q1"]


class RecordChoice(RecordDirective):
    """``record-choice``: one row per situation."""

    option_spec = RecordDirective.option_spec | dict.fromkeys(OPTIONS, str)

    def render(self, record, outdated):
        for option in OPTIONS:
            if option not in self.options:
                raise records.UnknownError(f"record-choice needs the option :{option}:")
        if self.options["best"] not in ("most", "least"):
            raise records.UnknownError(
                f"record-choice: expected :best: most or least, found {self.options['best']!r}"
            )
        metric = self.options["metric"]
        records.choose(metric, record["metrics"], "metric", self.address)
        if outdated:
            for situation in self.situations(record):
                self.note_row(self.row_id(record, situation), "", records.AGAIN, [records.AGAIN])
            return []
        title = record["metrics"][metric]["title"]
        table_of_looks = self.config.records_series
        parameters = self.options["situation"].split()
        header = [chart_names.heading(table_of_looks, parameter) for parameter in parameters]
        header += ["First choice", title, "Next", "Factor between"]
        found = self.situations(record)
        rows, ids = [], []
        for situation, options in found.items():
            alike, behind = self.ranked(situation, options)
            rows.append([*map(said, situation), *self.row(alike, behind)])
            ids.append(self.row_id(record, situation))
            first, value, _, factor = rows[-1][-4:]
            hover = f"{first}: {value}"
            hover += f"; {factor} against {behind[0].name}" if behind else ""
            names = [[option.name for option in group] for group in (alike, behind[:1])]
            self.note_row(ids[-1], ids[-1], hover, *names)
        return [table(header, rows, self.title(), ids)]

    def note_row(self, name, anchor, hover, first, after=None):
        """Let leaves of decision trees lead to the row; None *after*: nothing to check them by."""
        page_state(self.env, ROWS).setdefault(self.env.docname, {})[name] = first, after
        note_target(self.env, "choice", name, anchor, hover)

    def row_id(self, record, situation):
        """``choice-suite-metric-situation``, with a number behind it in a later table of a page."""
        words = ["choice", record["suite"], self.options["metric"], *map(said, situation)]
        found = nodes.make_id(" ".join(words))
        taken = self.env.temp_data.setdefault("record-choice", {})
        taken[found] = taken.get(found, 0) + 1
        return found if taken[found] == 1 else f"{found}-{taken[found]}"

    def situations(self, record):
        """Each combination of the situation's parameters -> its options by name."""
        found = {}
        for key in self.keys(record):
            parameters = record["benchmarks"][key]["parameters"]

            def parameter(name, key=key, parameters=parameters):
                where = f"{self.address}:{key}"
                return parameters[records.choose(name, parameters, "parameter", where)]

            situation = tuple(map(parameter, self.options["situation"].split()))
            name = said(parameter(self.options["choice"]))
            options = found.setdefault(situation, {})
            if name in options:
                raise records.UnknownError(
                    f"{self.address}:{key}: the option {name!r} stands twice in the situation "
                    f"{', '.join(map(said, situation))}; name what differs in :situation:, or "
                    "choose the benchmarks with :rows:"
                )
            options[name] = Option(name, *records.value(record, key, self.options["metric"]))
        if records.has_gaps(record):
            found = {situation: options for situation, options in found.items() if len(options) > 1}
            if not found:
                raise records.AbsentError(f"{self.address}: no situation has two options yet")
        return dict(sorted(found.items(), key=in_order_of(found)))

    def ranked(self, situation, options):
        """The options that are first, and those that are clearly worse, each by rank."""
        if len(options) < 2:
            raise records.UnknownError(
                f"{self.address}: the situation {', '.join(map(said, situation))} has one option, "
                f"{next(iter(options))!r}: there is nothing to choose"
            )
        most = self.options["best"] == "most"
        ranked = sorted(options.values(), key=lambda option: option.values["median"], reverse=most)
        best = ranked[0]
        groups = groupby(ranked, key=lambda option: option is not best and best.beats(option, most))
        return list(next(groups)[1]), list(next(groups, (None, ()))[1])

    def row(self, alike, behind):
        best = alike[0]
        names = " or ".join(option.name for option in alike)
        first = [names if len(alike) == 1 else f"no clear winner: {names}", cell(best)]
        if not behind:
            return [*first, "–", "–"]
        sides = best.values, behind[0].values
        shown = ratio(*(sides if self.options["best"] == "most" else sides[::-1]))
        line_end = nodes.raw("", "<br>", format="html")
        return [*first, [f"{behind[0].name}: ", line_end, cell(behind[0])], shown]


def in_order_of(situations):
    """Sort key: numbers by size, words as the record has them."""
    words = [list(dict.fromkeys(column)) for column in zip(*situations, strict=True)]

    def key(item):
        return [
            value if isinstance(value, int | float) else column.index(value)
            for value, column in zip(item[0], words, strict=True)
        ]

    return key


def cell(option):
    return shown_with_spread(option.declared, option.values)


def said(value):
    """A parameter as a reader would say it."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


# -- Leaves of decision trees ------------------------------------------------------


class chosen(nodes.inline):
    """The text of a leaf, until all rows are known."""


class ChoiceRole(SphinxRole):
    """``:choice:`id of a row``` and ``:choice:`option <id of a row>```."""

    def run(self):
        text, bracket, target = self.text.rpartition("<")
        target = target.rstrip(">").strip()
        page_state(self.env, LEAVES).setdefault(self.env.docname, {})[target] = None
        text = text.strip() if bracket else ""
        label = chosen("", text, row=target, classes=["choice"])
        reference = link(self.env, "choice", target, label)
        self.set_source_info(reference)
        self.set_source_info(label)
        return [reference], []


def every_row(env):
    found = {}
    for rows in page_state(env, ROWS).values():
        found.update(rows)
    return found


def pages_to_write(app, env):
    """env-updated: a page with a leaf changes when its row on another page does."""
    known, changed = every_row(env), []
    for page, shown in page_state(env, LEAVES).items():
        now = {row: known.get(row) for row in shown}
        if now != shown:
            shown.update(now)
            changed.append(page)
    return changed


def fill(app, doctree, docname):
    """doctree-resolved: what the record has first, or whether the page names one that it has."""
    known = every_row(app.env)
    for leaf in doctree.findall(chosen):
        if leaf["row"] not in known:
            continue  # a reference to no row, which is reported as such
        first, after = known[leaf["row"]]
        if leaf.astext() and after is not None and leaf.astext() not in first + after:
            logger.warning(
                "the row %s has %s, not %r",
                leaf["row"],
                " or ".join(map(repr, first + after)),
                leaf.astext(),
                location=leaf,
                type="records",
                subtype="unknown",
            )
        leaf[:] = identifiers.nodes_of(leaf.astext() or " or ".join(first))


def setup(app):
    app.setup_extension("docs._ext.records.directives")
    app.setup_extension("docs._ext.support.page_state")
    MISSING["choice"] = "no decision table has the row %(target)r"
    app.add_directive("record-choice", RecordChoice)
    app.add_role("choice", ChoiceRole())
    app.connect("env-updated", pages_to_write)
    app.connect("doctree-resolved", fill, priority=400)  # before what reads the text of a page
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
