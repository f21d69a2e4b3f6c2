"""Tables whose rows come from every page: of knobs, of corrections, of terms.

Switch on: a subclass of ``SiteTable`` says what it shows, and the extension that defines it calls
``add_site_table(app, "knob-index", KnobIndex)`` in its ``setup``. Markup is that directive::

    .. knob-index::

What it writes: the table, filled in when every page has been read. A page with the table is written
again when a row of it changed on another page.
"""

from typing import ClassVar

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from docs._ext.support import table_nodes
from docs._ext.support.page_state import page_state

TABLES = {}  # name of the directive -> its class
SHOWN = "site_table"  # page -> {name of the directive: what its table showed}


class site_table(nodes.General, nodes.Element):
    """Where a table goes once all pages are read."""


class SiteTable(SphinxDirective):
    """A directive without arguments; a subclass says what the table shows.

    Its static methods are ``entries(env)``, which gives ``(page, entry)`` of each row, and
    ``row(app, docname, page, entry)``, which gives the cells of a row on the page *docname*. One
    that is no table has a ``content(app, docname)`` of its own.
    """

    columns: ClassVar = {}  # title -> share of the width
    classes: ClassVar = []

    def run(self):
        page_state(self.env, SHOWN).setdefault(self.env.docname, {})[self.name] = None
        return [site_table(table=self.name)]

    @classmethod
    def content(cls, app, docname):
        """What goes where the directive stands."""
        rows = [cls.row(app, docname, *found) for found in cls.entries(app.env)]
        classes = [*cls.classes, "colwidths-given"]
        return table_nodes.table(cls.columns, rows, classes=classes, widths=cls.columns.values())


def pages_to_write(app, env):
    """env-updated: a page with a table changes when an entry on another page does."""
    changed = []
    for page, shown in page_state(env, SHOWN).items():
        now = {name: TABLES[name].entries(env) for name in shown}
        if now != shown:
            shown.update(now)
            changed.append(page)
    return changed


def fill(app, doctree, docname):
    """doctree-resolved: every page is read; put the rows where the table goes."""
    for place in list(doctree.findall(site_table)):
        place.replace_self(TABLES[place["table"]].content(app, docname))


def add_site_table(app, name, table):
    """Make *table* the directive *name*."""
    app.setup_extension(__name__)
    TABLES[name] = table
    app.add_directive(name, table)


def setup(app):
    app.setup_extension("docs._ext.support.page_state")
    app.setup_extension("docs._ext.support.table_nodes")
    app.add_node(site_table)
    app.connect("env-updated", pages_to_write)
    app.connect("doctree-resolved", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
