"""How far a second run of a suite repeats the first: what a reader may read into a difference.

Switch on: ``"docs._ext.records"`` in ``extensions``. Markup::

    .. record-repeat::
       :caption: Ratios of two runs on one machine

       collectors@cpu: frames_vs_collector
       replay_buffers@cpu: time_vs_random time_vs_plain

Each line names a suite that has a second record under ``benchmarks/replicates/``, taken with
``python -m benchmarks --replicate``, and the metrics to compare.

What it writes: a table with a row per suite: how many values, how many stayed within the bound
above which a value is called noisy, how far they moved in the middle and at most, and which moved
most. Records of other code, another device or another stack do not compare: that is a warning.
"""

from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

from benchmarks import comparison
from benchmarks import record as records
from docs._ext.records.content import code, table
from docs._ext.records.store import complain, library, link_stamp, reach, split_address

HEADER = ["Suite", "Ratios", "Moved {} or less", "Median move", "Largest move", "Moved most"]


class RecordRepeat(SphinxDirective):
    """``record-repeat``: one row per suite."""

    has_content = True
    option_spec = {"caption": directives.unchanged}  # noqa: RUF012 - docutils' interface

    def run(self):
        self.assert_has_content()
        rows = []
        for line in self.content:
            address, _, metrics = line.partition(":")
            try:
                rows.append(self.row(address.strip(), metrics.split()))
            except (records.RecordError, comparison.IncomparableError, OSError) as error:
                complain(self.env, error, self.get_location())
        header = [name.format(share(records.NOISE_BOUND)) for name in HEADER]
        text = self.options.get("caption")
        title = nodes.title("", "", *self.parse_inline(text)[0]) if text else None
        return [table(header, rows, title)] if rows else []

    def row(self, address, metrics):
        suite, device = split_address(address)
        record, _ = reach(self.env, suite, device)
        path = library(self.env).replicate(suite, device)
        self.env.note_dependency(path)
        self.env.note_dependency(Path(comparison.__file__))
        found = comparison.repeat(record, records.load(path), metrics)
        return [
            link_stamp(self.env, address, suite),
            str(found.values),
            str(found.within),
            share(found.typical),
            share(found.largest),
            code(found.where),
        ]


def share(value):
    return records.text("%", 100 * value)


def setup(app):
    app.setup_extension("docs._ext.records.directives")
    app.add_directive("record-repeat", RecordRepeat)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
