"""Tables: those of what extensions computed, and what holds for those of pages as well.

``table`` makes one of records, of evidence, of ``site_table``. A cell is a text, a node, or a list
of these; a value and its range in parentheses, ``1.04 ms (1.02–1.07)``, each stay in one line.

A column of numbers is aligned right, and what ``identifiers`` takes for code is set as code,
whoever wrote the table. Below 480 pixels the style sheet
draws each row as a card, with the header of a column before its cell: ``data-column`` of the cell
in HTML. So it does with the tables of pages that have three columns and more.

Switch on: ``app.setup_extension("docs._ext.support.table_nodes")``.
"""

import re
from html import escape

from docutils import nodes

from docs._ext.support import identifiers

# A sign, digits, an exponent or ×, a short unit or the whole that it is a part of; no version.
NUMBER = re.compile(
    r"[\N{MINUS SIGN}-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+|×)?"
    r"(?: of \d+(?:,\d{3})*|[\u00a0 ][^\s\d()]\S{0,5})?"
)
WITH_RANGE = re.compile(r"(?P<value>[^ (]*\d[^ (]*) (?P<range>\([^ )]*\d[^ )]*\)[^ ]*)(?P<rest>.*)")
NO_NUMBER = ("", "–")
MOST = 0.8  # "none", "not measured" and the like may stand among numbers
HEADERLINK = "headerlink"
BELOW_CODE = "is-below-code"  # a cell whose header, and so its label on a card, is code
WIDE = 3  # columns that a phone has no room for


class table_cell(nodes.entry):
    """An entry that knows the header of its column."""


def table(header, rows, *, classes, title=None, widths=None, ids=()):
    """A table below an optional *title* node; without *widths* the browser chooses them.

    *ids* are those of the rows, each linked at the end of its first cell.
    """
    header, rows = list(header), [list(row) for row in rows]
    names = [_text(column) for column in header]
    group = nodes.tgroup("", cols=len(header))
    group += [nodes.colspec(colwidth=width) for width in widths or [1] * len(header)]
    group += nodes.thead("", _row(header, names))
    body = nodes.tbody("", *(_row(row, names) for row in rows))
    for row, own in zip(body, ids, strict=bool(ids)):
        row["ids"].append(own)
        link = nodes.reference("", "#", refid=own, internal=True, classes=[HEADERLINK])
        link["reftitle"] = "Link to this row"
        row[0][0] += link
    group += body
    # Cells hold arguments and messages; of the quotes of the rest see `identifiers`.
    group["support_smartquotes"] = False
    return nodes.table("", *([title, group] if title else [group]), classes=classes)


def is_numeric(column):
    """Whether the texts that say something are numbers, with or without a range, but for few."""
    found = [text for text in column if text not in NO_NUMBER]
    return bool(found) and sum(map(_is_number, found)) >= MOST * len(found)


def _is_number(text):
    text = text.removesuffix(", noisy").removesuffix(", one run")
    ranged = WITH_RANGE.fullmatch(text)
    return bool(NUMBER.fullmatch(ranged["value"] if ranged else text))


def _text(content):
    parts = content if isinstance(content, list) else [content]
    return "".join(part.astext() if isinstance(part, nodes.Node) else part for part in parts)


def _row(cells, names):
    return nodes.row("", *map(_cell, cells, names))


def _cell(content, column):
    parts = content if isinstance(content, list) else [content]
    found = [one for part in parts for one in _nodes(part)]
    column = identifiers.curled(column)
    return table_cell("", nodes.paragraph("", "", *found), column=column)


def _nodes(part):
    if isinstance(part, nodes.Node):
        return [part]
    if ranged := WITH_RANGE.fullmatch(part):
        value, around, rest = ranged["value"], ranged["range"], ranged["rest"]
        remark = [nodes.Text(rest)]
        if rest == " noisy":  # in a line of its own by the style sheet, which needs no comma
            around = around.removesuffix(",")
            remark = [nodes.Text(" "), nodes.inline("", "noisy", classes=["noisy"])]
        whole = [nodes.inline(text, text, classes=["one-line"]) for text in (value, around)]
        return [whole[0], nodes.Text(" "), whole[1], *remark]
    return [nodes.Text(part)]


def finish(app, doctree, docname):
    """doctree-resolved, when all tables are there: numbers to the right, names to their cells."""
    for found in doctree.findall(nodes.table):
        head, body = (next(iter(found.findall(kind)), []) for kind in (nodes.thead, nodes.tbody))
        entries = list(found.findall(nodes.entry))
        for row in (*found.findall(nodes.title), *head, *body):
            for text in list(row.findall(nodes.Text)):
                marked = isinstance(text.parent, nodes.FixedTextElement | nodes.literal | nodes.raw)
                kind = row.parent is head and text == "Collector"  # of things, not the class
                if not marked and not kind:
                    text.parent.replace(text, identifiers.nodes_of(text))
        if any("morecols" in entry or "morerows" in entry for entry in entries):
            continue
        for column in zip(*body, strict=True):
            if is_numeric([_own_text(entry) for entry in column]):
                place = column[0].parent.index(column[0])
                for entry in (*(row[place] for row in head), *column):
                    entry["classes"].append("is-number")
            if len(head) == 1 and _is_code(head[0][column[0].parent.index(column[0])]):
                for entry in column:
                    entry["classes"].append(BELOW_CODE)
        if len(head) == 1 and len(head[0]) >= WIDE:
            _name_cells([entry.astext() for entry in head[0]], body)


def _own_text(entry):
    """The text of a cell without the link of its row."""
    links = (one.astext() for one in entry.findall(nodes.reference) if HEADERLINK in one["classes"])
    return entry.astext().removesuffix("".join(links))


def _is_code(entry):
    code = "".join(one.astext() for one in entry.findall(nodes.literal))
    return bool(code) and code == entry.astext()


def _name_cells(names, body):
    """Make cells of a table written by hand know the header of their column."""
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
    app.connect("doctree-resolved", finish, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
