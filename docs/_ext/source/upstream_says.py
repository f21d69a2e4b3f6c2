"""Corrections of what upstream's docstrings, comments and pages say.

Purpose
    A correction names the words it corrects, so it is reported once they are gone; what it says
    instead is an example that fails once upstream's code does what the words say.

Switch on
    ``"docs._ext.source"`` in ``extensions``; :mod:`api_pages` does so, for its notes.

Markup
    ::

        .. upstream-says:: Defaults to ``True``.
           :of: torchrl.data.LazyMemmapStorage
           :instead: Defaults to ``False``.

           It is False, and False raises when a file is already there: ...

        .. upstream-claims::

    ``:of:`` names the symbol whose source holds the words; on an API page it is the page's own.
    ``:kind:`` is ``docstring`` (the default), ``comment`` or ``message``. Instead of these two,
    ``:page:`` gives the address of a page of upstream's; nothing looks there, the build reads no
    network. ``:instead:`` is what the words could be. The body's first sentence is the verdict.

    ``upstream-claims`` is the table of all corrections of the site, one row per claim.

What it writes
    An admonition per correction, and the table. Words that the source no longer holds are the
    warning ``api_pages.claim``.
"""

import re
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

from docs._ext.source import lookup as source_lookup
from docs._ext.source import role as source_role
from docs._ext.support import table_nodes
from docs._ext.support.page_domain import PageDomain

logger = logging.getLogger(__name__)

API = "reference/api/"
COLUMNS = {"Claim": 4, "Where": 3, "Verdict": 4}  # and the share of the width


class UpstreamDomain(PageDomain):
    """The corrections of each page, in its order."""

    name = "upstream"
    label = "Corrections of upstream"
    initial_data: ClassVar = {"claims": {}, "shown": {}}

    def claims(self):
        """Every claim once, although a class and its subclasses share a docstring."""
        once = {}
        for docname, claims in sorted(self.data["claims"].items()):
            for claim in claims:
                key = (
                    claim["words"],
                    claim["page"] or source_lookup.locate(claim["of"]).definition,
                )
                once.setdefault(key, (docname, claim))
        return list(once.values())


class claims_table(nodes.General, nodes.Element):
    """Where the table goes once all pages are read."""


class UpstreamSays(SphinxDirective):
    """``upstream-says``: one correction."""

    has_content = True
    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar = {
        "of": directives.unchanged_required,
        "page": directives.uri,
        "kind": lambda text: directives.choice(text, ("docstring", "comment", "message")),
        "instead": directives.unchanged_required,
    }

    def run(self):
        self.assert_has_content()
        words = " ".join(self.arguments[0].split())
        page = self.options.get("page", "")
        kind = "page" if page else self.options.get("kind", "docstring")
        symbol = self.options.get("of", self.env.docname.removeprefix(API))
        if not page:
            try:
                self.check(words, kind, symbol)
            except source_lookup.SymbolNotFound as problem:
                raise self.error(f"upstream-says: {problem}") from None
        claims = self.env.domains[UpstreamDomain.name].data["claims"]
        own = claims.setdefault(self.env.docname, [])
        note = nodes.admonition(classes=["warning", "upstream-says"])
        note["ids"].append(f"upstream-says-{len(own) + 1}")
        titles, messages = self.state.inline_text(f"The {kind} says “{words}”", self.lineno)
        note += nodes.title("", "", *titles)
        note += self.parse_content_to_nodes()
        if instead := self.options.get("instead"):
            text = self.parse_inline(f"It could say: “{' '.join(instead.split())}”")[0]
            note += nodes.paragraph("", "", *text, classes=["instead"])
        own.append(
            {
                "id": note["ids"][0],
                "words": words,
                "kind": kind,
                "of": symbol,
                "page": page,
                "verdict": verdict(note),
            }
        )
        return [note, *messages]

    def check(self, words, kind, symbol):
        source = source_lookup.locate(symbol).text
        if kind != "docstring":
            # a comment or a message that goes on in the next line
            source = re.sub(r"\n\s*#|[\"']\s*\n\s*f?[\"']", " ", source)
        if words not in " ".join(source.split()):
            logger.warning(
                "the %s of %s no longer says %r; delete the note or adapt it",
                kind,
                symbol,
                words,
                location=self.get_location(),
                type="api_pages",
                subtype="claim",
            )


def verdict(note):
    """The first sentence of the body, up to the example it announces."""
    body = next((node for node in note.children[1:] if isinstance(node, nodes.paragraph)), None)
    text = " ".join(body.astext().split()) if body is not None else ""
    return re.split(r"(?<=[.:;])\s", text, maxsplit=1)[0].rstrip(".:;")


class UpstreamClaims(SphinxDirective):
    """``upstream-claims``: the table of all corrections."""

    def run(self):
        self.env.domains[UpstreamDomain.name].data["shown"][self.env.docname] = None
        return [claims_table()]


def pages_to_write(app, env):
    """env-updated: a page with the table changes when a correction on another page does."""
    domain = env.domains[UpstreamDomain.name]
    claims = domain.claims()
    changed = [page for page, shown in domain.data["shown"].items() if shown != claims]
    domain.data["shown"].update(dict.fromkeys(changed, claims))
    return changed


def fill_table(app, doctree, docname):
    """doctree-resolved: every page is read; put the rows where the table goes."""
    for place in list(doctree.findall(claims_table)):
        rows = [row(app, docname, *claim) for claim in app.env.domains["upstream"].claims()]
        classes = ["upstream-claims", "colwidths-given"]
        place.replace_self(
            table_nodes.table(COLUMNS, rows, classes=classes, widths=COLUMNS.values())
        )


def row(app, docname, target, claim):
    words = re.sub(r"``|\*\*", "", claim["words"])
    link = make_refnode(app.builder, docname, target, claim["id"], nodes.Text(f"“{words}”"))
    if claim["page"]:
        name = claim["page"].rpartition("/")[2].removesuffix(".html")
        where = nodes.reference("", name, refuri=claim["page"], internal=False)
    else:
        # as text, which a narrow column can break
        name = source_lookup.locate(claim["of"]).name
        where = source_role.source_link(claim["of"], app.config.source_repositories, name)
    kind = "page " if claim["page"] else f"{claim['kind']} of "
    return [link, [kind, where], claim["verdict"]]


def setup(app):
    app.setup_extension("docs._ext.source.role")
    app.add_domain(UpstreamDomain)
    app.add_node(claims_table)
    app.add_directive("upstream-says", UpstreamSays)
    app.add_directive("upstream-claims", UpstreamClaims)
    app.connect("env-updated", pages_to_write)
    app.connect("doctree-resolved", fill_table)
    return {
        "version": "1",
        "env_version": 1,
        "parallel_read_safe": True,
        "parallel_write_safe": True,
    }
