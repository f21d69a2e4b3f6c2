"""Tables of what extensions computed: records, evidence, and those of ``site_table``.

A cell is a text, a node, or a list of these. Columns of numbers are aligned right; a value and its
range in parentheses, ``1.04 (1.02–1.07) ms``, each stay in one line. Below 480 pixels the style
sheet draws each row as a card, with the header of a column before its cell: ``data-column`` of the
cell in HTML. So it does with the tables of pages that have three columns and more.

Switch on: ``app.setup_extension("docs._ext.support.table_nodes")``.
"""

import re
from html import escape

from docutils import nodes

# A sign, digits, an exponent or ×, a short unit behind a space that does not break.
NUMBER = re.compile(r"[\N{MINUS SIGN}-]?[\d.,]+(?:e[+-]?\d+|×)?(?:\u00a0\S{1,6})?")
WITH_RANGE = re.compile(r"(?P<value>[^ (]*\d[^ (]*) (?P<range>\([^ )]*\d[^ )]*\)[^ ]*)(?P<rest>.*)")
# Where a long name may end its line: before its arguments, and between its longer words.
BREAKS = re.compile(r"(?<=\w)(?=\(\w)|(?<=[A-Za-z]{11}[a-z])(?=[A-Z][a-z]{6})")
NO_NUMBER = ("", "–")
WIDE = 3  # columns that a phone has no room for


class table_cell(nodes.entry):
    """An entry that knows the header of its column."""


def table(header, rows, *, classes, title=None, widths=None, ids=()):
    """A table below an optional *title* node; without *widths* the browser chooses them.

    *ids* are those of the rows, each linked at the end of its first cell.
    """
    header, rows = list(header), [list(row) for row in rows]
    names = [_text(column) for column in header]
    numeric = [is_numeric(column) for column in zip(*rows, strict=True)] or [False] * len(header)
    group = nodes.tgroup("", cols=len(header))
    group += [nodes.colspec(colwidth=width) for width in widths or [1] * len(header)]
    group += nodes.thead("", _row(header, names, numeric))
    body = nodes.tbody("", *(_row(row, names, numeric) for row in rows))
    for row, own in zip(body, ids, strict=bool(ids)):
        row["ids"].append(own)
        link = nodes.reference("", "#", refid=own, internal=True, classes=["headerlink"])
        link["reftitle"] = "Link to this row"
        row[0][0] += link
    group += body
    # Cells hold arguments and messages, whose quotes are to stay as they are.
    parts = [title, group] if title else [group]
    return nodes.table("", *parts, classes=classes, support_smartquotes=False)


def is_numeric(column):
    """Whether every cell that holds something is a number, with or without a range."""
    found = [cell for cell in column if _text(cell) not in NO_NUMBER]
    return bool(found) and all(map(_is_number, found))


def _is_number(cell):
    if not isinstance(cell, str):
        return False
    cell = cell.removesuffix(", noisy").removesuffix(", one run")
    ranged = WITH_RANGE.fullmatch(cell)
    return bool(NUMBER.fullmatch(ranged["value"] if ranged else cell))


def _text(content):
    parts = content if isinstance(content, list) else [content]
    return "".join(part.astext() if isinstance(part, nodes.Node) else part for part in parts)


def _row(cells, names, numeric):
    return nodes.row("", *map(_cell, cells, names, numeric))


def _cell(content, column, is_number):
    parts = content if isinstance(content, list) else [content]
    found = [one for part in parts for one in _nodes(part)]
    classes = ["is-number"] if is_number else []
    return table_cell("", nodes.paragraph("", "", *found), column=column, classes=classes)


def _nodes(part):
    if isinstance(part, nodes.Node):
        return [part]
    if ranged := WITH_RANGE.fullmatch(part):
        value, around, rest = ranged["value"], ranged["range"], ranged["rest"]
        whole = [nodes.inline(text, text, classes=["one-line"]) for text in (value, around)]
        return [whole[0], nodes.Text(" "), whole[1], nodes.Text(rest)]
    first, *others = BREAKS.split(part)
    breaks = [(nodes.raw("", "<wbr>", format="html"), nodes.Text(other)) for other in others]
    return [nodes.Text(first), *(one for pair in breaks for one in pair)]


def name_columns(app, doctree):
    """doctree-read: the cells of wide tables written by hand know the header of their column."""
    for found in doctree.findall(nodes.table):
        head, body = (next(iter(found.findall(kind)), None) for kind in (nodes.thead, nodes.tbody))
        entries = list(found.findall(nodes.entry))
        spans = any("morecols" in entry or "morerows" in entry for entry in entries)
        if head is None or len(head) != 1 or len(head[0]) < WIDE or spans:
            continue
        names = [entry.astext() for entry in head[0]]
        for row in body:
            for entry, name in zip(list(row), names, strict=True):
                if not isinstance(entry, table_cell):
                    cell = table_cell("", *entry.children, column=name)
                    cell.update_basic_atts(entry)
                    entry.replace_self(cell)


def visit_cell(translator, node):
    translator.visit_entry(node)
    tag = translator.body.pop()
    translator.body.append(tag.replace("<td", f'<td data-column="{escape(node["column"])}"', 1))


def depart_cell(translator, node):
    translator.depart_entry(node)


def setup(app):
    app.add_node(table_cell, html=(visit_cell, depart_cell))
    app.connect("doctree-read", name_columns)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
