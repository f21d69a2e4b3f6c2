"""A way into the site that shows only once its page exists.

Switch on: ``"docs._ext.site"`` in ``extensions``. Markup, on any page:

    .. entry-card:: Fix
       :page: /reference/debugging_map

       Something is wrong and nothing crashes: start here.

What it writes: a list item whose first line links to the page, or nothing while there is no such
page. Adjacent cards stand in one ``.. container:: entry-cards``. A page that appears or goes makes
Sphinx read the pages with a card for it again.
"""

from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective

from docs._ext.support.page_state import page_state

TARGETS = "entry cards"  # page -> pages that its cards lead to


class EntryCard(SphinxDirective):
    required_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec: ClassVar = {"page": directives.unchanged_required}

    def run(self):
        page = self.options.get("page", "").strip("/")
        if not page:
            raise self.error(
                'The "entry-card" directive needs a :page: option, for example /tutorials/index.'
            )
        page_state(self.env, TARGETS).setdefault(self.env.docname, set()).add(page)
        if page not in self.env.found_docs:
            return []
        link = addnodes.pending_xref(
            "",
            nodes.inline("", self.arguments[0]),
            refdomain="std",
            reftype="doc",
            reftarget=f"/{page}",
            refdoc=self.env.docname,
            refexplicit=True,
            refwarn=True,
        )
        card = nodes.container(
            "", nodes.paragraph("", "", link, classes=["entry-card-name"]), classes=["entry-card"]
        )
        self.state.nested_parse(self.content, self.content_offset, card)
        return [card]


def reread(app, env, added, changed, removed):
    """env-get-outdated: a card shows and goes with its page."""
    moved = added | removed
    return [name for name, pages in page_state(env, TARGETS).items() if pages & moved]


def setup(app):
    app.setup_extension("docs._ext.support.page_state")
    app.add_directive("entry-card", EntryCard)
    app.connect("env-get-outdated", reread)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
