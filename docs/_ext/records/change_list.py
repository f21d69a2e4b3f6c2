"""What is new: pages by the day they came or went, and records by the day they were taken.

Switch on: ``"docs._ext.records"`` in ``extensions``, and ``changes.txt`` in the source folder,
which ``tools/addresses.py`` writes. Markup::

    .. change-list::

    .. change-list:: 1

With a number, so many of the last days, and of each kind the FEW first, without API pages.

What it writes: a definition list, a day each, with links to the pages of each kind (``KINDS``) and
to the stamps of the records. API pages, and more than MANY of a kind, are counted. A page that is
not there, as in a build of few pages, is left out. What the page says changes with the file, the
records and the pages.
"""

from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective
from sphinx.util.osutil import relative_uri

from benchmarks import record as records
from docs._ext.records.directives import INDEX
from docs._ext.records.store import library, link_stamp, reach, split_address
from docs._ext.support.page_state import page_state

FILE = "changes.txt"
SHOWN = "change list"  # page -> pages of its list
FEW, MANY = 2, 20
# Page, by the beginning of its name -> what it is, in the order of a day.
KINDS = {
    "performance/recipes/": "Recipes",
    "how-to/": "How-to guides",
    "tutorials/debugging/": "Symptoms",
    "tutorials/": "Tutorials",
    "performance/": "Performance",
    "reference/api/": "API",
    "": "Reference",
}
MEASURED, MOVED, API = "Measured", "Moved", KINDS["reference/api/"]


def kind_of(page):
    return next(KINDS[start] for start in KINDS if page.startswith(start))


def read(path):
    """Day, page and whether the page went, of each line."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            day, page, *gone = line.split()
            yield day, page, bool(gone)


class ChangeList(SphinxDirective):
    """``change-list``."""

    optional_arguments = 1

    def run(self):
        days = {}
        for day, kind, link in [*self.pages(), *self.records()]:
            days.setdefault(day, {}).setdefault(kind, []).append(link)
        newest = sorted(days, reverse=True)
        few = None
        if self.arguments:
            newest = newest[: directives.positive_int(self.arguments[0])]
            few = FEW
        order = [*dict.fromkeys(KINDS.values()), MEASURED, MOVED]
        result = nodes.definition_list(classes=["change-list"])
        for day in newest:
            items = nodes.bullet_list(bullet="*")
            for kind in sorted(days[day], key=order.index):
                if not few or kind != API:
                    items += nodes.list_item("", said(kind, days[day][kind], few))
            result += nodes.definition_list_item(
                "", nodes.term("", day), nodes.definition("", items)
            )
        return [result]

    def pages(self):
        """Day, kind and link of each page that came or went."""
        path = Path(self.env.srcdir, FILE)
        self.env.note_dependency(path)
        listed = list(read(path))
        page_state(self.env, SHOWN)[self.env.docname] = {page for _, page, _ in listed}
        for day, page, gone in listed:
            if gone:
                address = relative_uri(f"{self.env.docname}.html", f"{page}.html")
                name = nodes.literal("", f"{page}.html")
                yield day, MOVED, nodes.reference("", "", name, refuri=address, internal=True)
            elif page in self.env.found_docs:
                yield day, kind_of(page), link_page(self.env, page)

    def records(self):
        """Day, kind and link of each record."""
        addresses = [f"{suite}@{device}" for suite, device in library(self.env).taken()]
        page_state(self.env, INDEX)[self.env.docname] = addresses
        for address in addresses:
            try:
                record, _ = reach(self.env, *split_address(address))
            except records.RecordError:  # the page with record-index complains
                continue
            link = link_stamp(self.env, address, record["title"])
            yield record["taken"]["date"][:10], MEASURED, link


def link_page(env, page):
    """A link to the page with its title."""
    return addnodes.pending_xref(
        "",
        nodes.inline("", page),
        refdomain="std",
        reftype="doc",
        reftarget=f"/{page}",
        refdoc=env.docname,
        refexplicit=False,
        refwarn=True,
    )


def said(kind, links, few):
    """The paragraph of a kind: its name, and links, of *few* the others as a number."""
    paragraph = nodes.paragraph("", "", nodes.strong("", kind), nodes.Text(": "))
    if kind == API or (not few and len(links) > MANY):
        thing = "record" if kind == MEASURED else "page"
        paragraph += nodes.Text(f"{len(links)} {thing}{'s' * (len(links) > 1)}")
        return paragraph
    for position, link in enumerate(links[:few]):
        paragraph += [nodes.Text("; " if position else ""), link]
    if few and len(links) > few:
        paragraph += nodes.Text(f"; and {len(links) - few} more")
    return paragraph


def read_again(app, env, added, changed, removed):
    """env-get-outdated: the pages with a list, when a page of it comes or goes."""
    moved = added | removed
    lists = page_state(env, SHOWN).items()
    return [name for name, pages in lists if name in env.found_docs and pages & moved]


def setup(app):
    app.setup_extension("docs._ext.support.page_state")
    app.add_directive("change-list", ChangeList)
    app.connect("env-get-outdated", read_again)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
