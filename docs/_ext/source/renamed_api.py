"""Rows of a table of old names that a search can lead to.

Switch on: ``"docs._ext.source"`` in ``extensions``, beside ``site.search_index``. There is no
markup: it takes every table whose first column is headed "Old", such as those of
``docs/evidence/api_changes/names.py``.

What it writes: an id at the first cell of each row, ``old-CompositeSpec``, and on the environment
``renamed_api``: page -> [(name, id)]. ``site.search_index`` makes each an entry of the index unless
something of today has that name. The name is the last one of the code in the cell, or the argument
in ``Collector(exploration_mode=...)``; words of ordinary English are left to the full text.
"""

import re

from docutils import nodes

KEY = "old_names"
ARGUMENT = re.compile(r"\((\w+)=")
DOTTED = re.compile(r"(?:\w+\.)*(\w+)")
NAME = re.compile(r"\w*(?:_|[a-z0-9][A-Z])\w*")


def name_in(code):
    """``CompositeSpec``, ``_make_shuttle`` of ``Collector._make_shuttle``; None for a word."""
    found = ARGUMENT.search(code) or DOTTED.match(code)
    return found[1] if found and NAME.fullmatch(found[1]) else None


def start(app, env, docnames):
    """env-before-read-docs: make room for the names."""
    if not hasattr(env, KEY):
        setattr(env, KEY, {})


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
        getattr(app.env, KEY)[app.env.docname] = sorted(names.items())


def forget(app, env, docname):
    """env-purge-doc: drop what the page said."""
    getattr(env, KEY, {}).pop(docname, None)


def merge(app, env, docnames, other):
    """env-merge-info: collect what a parallel reader found."""
    found = getattr(other, KEY)
    getattr(env, KEY).update({page: found[page] for page in docnames if page in found})


def setup(app):
    app.connect("env-before-read-docs", start)
    app.connect("doctree-read", mark)
    app.connect("env-purge-doc", forget)
    app.connect("env-merge-info", merge)
    return {
        "version": "1",
        "env_version": 1,
        "parallel_read_safe": True,
        "parallel_write_safe": True,
    }
