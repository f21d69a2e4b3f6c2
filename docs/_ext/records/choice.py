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
choice, its value, the next option, its value and the factor between the two. Options whose
quartiles overlap those of the first are named together, and a row in which none is clearly worse
says so. Below the table stands the stamp. Unknown names, a situation with a single option and two
benchmarks of one option in one situation are warnings; a record with gaps shows the situations that
have two options.
"""

from itertools import groupby
from typing import NamedTuple

from docutils import nodes

from benchmarks import record as records
from docs._ext.records.content import shown_with_spread, table
from docs._ext.records.directives import RecordDirective

OPTIONS = ("situation", "choice", "metric", "best")


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
        if outdated:
            return []
        metric = self.options["metric"]
        records.choose(metric, record["metrics"], "metric", self.address)
        title = record["metrics"][metric]["title"]
        words = [name.replace("_", " ") for name in self.options["situation"].split()]
        header = [*(word[0].upper() + word[1:] for word in words)]
        header += ["First choice", title, "Next", f"{title}, next", "Factor between"]
        found = self.situations(record)
        rows = [
            [*map(said, situation), *self.row(situation, options)]
            for situation, options in found.items()
        ]
        return [table(header, rows, self.title(), [self.row_id(record, one) for one in found])]

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

    def row(self, situation, options):
        if len(options) < 2:
            raise records.UnknownError(
                f"{self.address}: the situation {', '.join(map(said, situation))} has one option, "
                f"{next(iter(options))!r}: there is nothing to choose"
            )
        most = self.options["best"] == "most"
        ranked = sorted(options.values(), key=lambda option: option.values["median"], reverse=most)
        best = ranked[0]
        groups = groupby(ranked, key=lambda option: option is not best and best.beats(option, most))
        alike = list(next(groups)[1])
        behind = list(next(groups, (None, ()))[1])
        names = " or ".join(option.name for option in alike)
        first = [names if len(alike) == 1 else f"no clear winner: {names}", cell(best)]
        if not behind:
            return [*first, "–", "–", "–"]
        factor = best.values["median"] / behind[0].values["median"]
        factor = factor if most else 1 / factor
        # Three digits: between 1 and 1.04 lies the question whether it is worth the change.
        shown = f"{factor:.3g}" if factor < 100 else records.text("1", factor)
        return [*first, behind[0].name, cell(behind[0]), f"{shown}×"]


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


def setup(app):
    app.setup_extension("docs._ext.records.directives")
    app.add_directive("record-choice", RecordChoice)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
