"""Old addresses lead on: a page that moved, and a section that moved to another page or name.

Switch on: ``"docs._ext.site"`` in ``extensions``, ``redirect.html`` in a folder of
``templates_path``, and the rule for ``.moved`` in a style sheet. Markup, where the content is now,
with addresses as ``docs/addresses.txt`` has them::

    .. redirect-from:: reference/old.html
       reference/old.html#an-old-section

It leads to the section in which it stands, or to the page if that is the title's; below a term of
a glossary it leads to the term.

What it writes
    For a page that is no longer there, a page that leads on at once, to the right place for each
    of its old anchors; without scripts it leads to where the page went. A page that lost an anchor
    gets a line at its end, which shows when a reader comes with that anchor, and leads on at once
    if scripts run. An anchor of the page of the directive is just another id of the section.

An address that two places claim, that the register does not have, or that the site still has, and
an anchor of a vanished page that leads nowhere itself, are warnings (``redirects.*``).

``sphinx-reredirects`` would do for whole pages: it maps them in ``conf.py`` and knows no anchors.
"""

import difflib
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.osutil import relative_uri

from docs._ext.support.page_state import page_state

logger = logging.getLogger(__name__)

CLAIMED = "redirects"  # page -> {old address: (fragment, title) of its new place}
LOST = "lost anchors"  # page -> {anchor: (new address, title)}
SCRIPT = """\
(() => {
  const follow = () => {
    const part = document.getElementById(location.hash.slice(1))?.closest(".moved > p");
    const link = (part ?? document.querySelector("main.moved > p"))?.querySelector("a");
    if (!link) return;
    const to = new URL(link.href);
    to.search = location.search;
    if (!part && !to.hash) to.hash = location.hash;
    location.replace(to);
  };
  addEventListener("hashchange", follow);
  follow();
})();
"""


class redirect_marker(nodes.Invisible, nodes.Element):
    """Where the directive stands; gone once the page is read."""


class RedirectFrom(SphinxDirective):
    """``redirect-from``."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self):
        marker = redirect_marker("", addresses=self.arguments[0].split())
        self.set_source_info(marker)
        return [marker]


def page_of(docname):
    """The address of a page."""
    return f"{docname}.html"


def place_of(marker):
    """The term, entry or section in which the directive stands; above the title, the page's."""
    node = marker.parent
    while not isinstance(node, nodes.section):
        if isinstance(node, nodes.document):
            return node.next_node(nodes.section)
        if isinstance(node, (nodes.definition, addnodes.desc_content)) and node.parent[0]["ids"]:
            return node.parent[0]
        node = node.parent
    return node


def title_of(place):
    """What a link to the place says."""
    return (place.next_node(nodes.title) or place).astext()


def claim(app, doctree):
    """doctree-read: note what the page claims; an anchor of its own becomes an id."""
    docname = app.env.docname
    claimed = {}
    for marker in list(doctree.findall(redirect_marker)):
        place = place_of(marker)
        whole_page = isinstance(place.parent, nodes.document)
        fragment = "" if whole_page else f"#{place['ids'][0]}"
        for address in marker["addresses"]:
            if address in claimed:
                complain("twice", f"{address} is claimed twice on this page", marker)
            claimed[address] = (fragment, title_of(place))
            page, _, anchor = address.partition("#")
            if page == page_of(docname) and anchor in doctree.ids:
                complain("there", f"{address} is a part of this page", marker)
            elif page == page_of(docname) and anchor:
                place["ids"].append(anchor)
        marker.parent.remove(marker)
    if claimed:
        page_state(app.env, CLAIMED)[docname] = claimed


def complain(kind, text, location):
    logger.warning("%s", text, location=location, type="redirects", subtype=kind)


def leads(env):
    """Old page -> {anchor, or nothing for the page itself: (new address, title)}."""
    found = {}
    claimed = page_state(env, CLAIMED)
    for docname in sorted(claimed):
        for address, (fragment, title) in claimed[docname].items():
            page, _, anchor = address.partition("#")
            if page != page_of(docname):
                found.setdefault(page, {})[anchor] = (page_of(docname) + fragment, title)
    return found


def check(app, env):
    """env-check-consistency: each claim is for an address that the site had and no longer has."""
    claimed = page_state(env, CLAIMED)
    if not claimed:
        return
    known = set(map(page_of, env.found_docs))
    register = Path(app.srcdir, "addresses.txt").read_text(encoding="utf-8").splitlines()
    register = [line.partition(" ")[0] for line in register]
    owners = {}
    for docname in sorted(claimed):
        for address in claimed[docname]:
            page, _, anchor = address.partition("#")
            if owner := owners.get(address):
                complain("twice", f"{address} is claimed by {owner}, too", docname)
            elif address not in register:
                near = difflib.get_close_matches(address, register, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                complain("unknown", f"docs/addresses.txt has no {address}{hint}", docname)
            elif page in known and not anchor:
                complain("there", f"{address} is a page of this site", docname)
            owners.setdefault(address, docname)
    for address, docname in owners.items():
        page = address.partition("#")[0]
        if page not in known and page not in owners:
            text = f"{address} leads on, and {page} itself does not: claim both"
            complain("page", text, docname)


def write_again(app, env):
    """env-updated: the pages whose lost anchors are others than when they were written."""
    found, lost = leads(env), page_state(env, LOST)
    before = dict(lost)
    lost.clear()
    lost.update({doc: found[page] for doc in env.found_docs if (page := page_of(doc)) in found})
    moved = {doc for doc in {*before, *lost} if before.get(doc) != lost.get(doc)}
    return sorted(moved & env.found_docs)


def lines(page, anchors):
    """HTML for what leads away from the address *page*: one paragraph for each anchor."""
    return "".join(
        f'<p id="{escape(anchor)}">This part is now at {link(page, *target)}.</p>\n'
        for anchor, target in sorted(anchors.items())
        if anchor
    )


def link(page, address, title):
    return f'<a href="{escape(relative(page, address))}">{escape(title)}</a>'


def relative(page, address):
    """The address as a link on the page; ``relative_uri`` drops the fragment."""
    _, mark, fragment = address.partition("#")
    return relative_uri(page, address) + mark + fragment


def add_lost_anchors(app, pagename, templatename, context, doctree):
    """html-page-context: what leads away from a page that is there."""
    lost = page_state(app.env, LOST).get(pagename)
    if lost:
        for anchor in lost:
            if anchor and f' id="{anchor}"' in context["body"]:
                text = f"{page_of(pagename)}#{anchor} is a part of that page"
                complain("there", text, lost[anchor][0].partition(".html")[0])
        text = lines(page_of(pagename), lost)
        context["body"] += f'<div class="moved">\n{text}</div>\n<script>\n{SCRIPT}</script>\n'


def redirect_pages(app):
    """html-collect-pages: a page for each that is no longer there."""
    for page, anchors in sorted(leads(app.env).items()):
        if "" in anchors and page.removesuffix(".html") not in app.env.found_docs:
            address, title = anchors[""]
            context = {
                "title": title,
                "address": address,
                "refresh": relative(page, address),
                "link": link(page, address, title),
                "lines": lines(page, anchors),
                "script": SCRIPT,
            }
            yield page.removesuffix(".html"), context, "redirect.html"


def setup(app):
    app.setup_extension("docs._ext.support.page_state")
    app.add_node(redirect_marker)
    app.add_directive("redirect-from", RedirectFrom)
    app.connect("doctree-read", claim)
    app.connect("env-check-consistency", check)
    app.connect("env-updated", write_again)
    app.connect("html-collect-pages", redirect_pages)
    app.connect("html-page-context", add_lost_anchors)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
