"""Tables of what extensions computed: records, evidence, and those of ``site_table``.

A cell is a text, a node, or a list of these.
"""

from docutils import nodes


def table(header, rows, *, classes, title=None, widths=None):
    """A table below an optional *title* node; without *widths* the browser chooses them."""
    group = nodes.tgroup("", cols=len(header))
    group += [nodes.colspec(colwidth=width) for width in widths or [1] * len(header)]
    group += nodes.thead("", _row(header))
    group += nodes.tbody("", *map(_row, rows))
    # Cells hold arguments and messages, whose quotes are to stay as they are.
    parts = [title, group] if title else [group]
    return nodes.table("", *parts, classes=classes, support_smartquotes=False)


def _row(cells):
    return nodes.row("", *map(_cell, cells))


def _cell(content):
    parts = content if isinstance(content, list) else [content]
    found = (part if isinstance(part, nodes.Node) else nodes.Text(part) for part in parts)
    return nodes.entry("", nodes.paragraph("", "", *found))
