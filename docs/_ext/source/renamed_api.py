"""Rows of a table of old names that a search can lead to.

Switch on: ``"docs._ext.source"`` in ``extensions``, beside ``"docs._ext.site"``. There is no
markup: it takes every table whose first column is headed "Old", such as those of
``docs/evidence/api_changes/names.py``.

What it writes: an id at the first cell of each row, ``old-CompositeSpec``, and into ``page_state``
``renamed_api``: page -> [(name, id)]. ``site.search_index`` makes each an entry of the index unless
something of today has that name. The name is the last one of the code in the cell, or the argument
in ``Collector(exploration_mode=...)``; words of ordinary English are left to the full text.
"""

import re

from docutils import nodes

from docs._ext.support.page_state import page_state

NAMES = "renamed_api"
ARGUMENT = re.compile(r"\((\w+)=")
DOTTED = re.compile(r"(?:\w+\.)*(\w+)")
NAME = re.compile(r"\w*(?:_|[a-z0-9][A-Z])\w*")


def name_in(code):
    """``CompositeSpec``, ``_make_shuttle`` of ``Collector._make_shuttle``; None for a word."""
    found = ARGUMENT.search(code) or DOTTED.match(code)
    return found[1] if found and NAME.fullmatch(found[1]) else None


def mark(app, doctree):
    """doctree-read: give the rows their ids."""
    names = {}
    for table in doctree.findall(nodes.table):
        head = next(iter(table.findall(nodes.thead)), None)
        if head is None or not (cells := list(head.findall(nodes.entry))):
            continue
        if cells[0].astext() != "Old":
            continue
        for row in table.next_node(nodes.tbody).findall(nodes.row):
            cell = row.next_node(nodes.paragraph)
            code = cell and cell.next_node(nodes.literal)
            name = name_in(code.astext()) if code else None
            if name and name not in names:
                names[name] = f"old-{name}"
                cell["ids"].append(names[name])
    if names:
        page_state(app.env, NAMES)[app.env.docname] = sorted(names.items())


def setup(app):
    app.setup_extension("docs._ext.support.page_state")
    app.connect("doctree-read", mark)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
