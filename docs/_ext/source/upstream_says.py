"""Corrections of what upstream's docstrings, comments and pages say.

Purpose
    A correction names the words it corrects, so it is reported once they are gone; what it says
    instead is an example that fails once upstream's code does what the words say.

Switch on
    ``"docs._ext.source"`` in ``extensions``; ``api_pages`` switches it on for its notes.

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
from docs._ext.support.page_state import page_state
from docs._ext.support.site_table import SiteTable, add_site_table

logger = logging.getLogger(__name__)

API = "reference/api/"
CLAIMS = "upstream_says"  # page -> its corrections, in its order


def claims(env):
    """Every claim once, although a class and its subclasses share a docstring."""
    once = {}
    for docname, own in sorted(page_state(env, CLAIMS).items()):
        for claim in own:
            place = claim["page"] or source_lookup.locate(claim["of"]).definition
            once.setdefault((claim["words"], place), (docname, claim))
    return list(once.values())


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
        own = page_state(self.env, CLAIMS).setdefault(self.env.docname, [])
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


class UpstreamClaims(SiteTable):
    """``upstream-claims``: the table of all corrections."""

    columns: ClassVar = {"Claim": 4, "Where": 3, "Verdict": 4}
    classes: ClassVar = ["upstream-claims"]
    entries = staticmethod(claims)

    @staticmethod
    def row(app, docname, page, claim):
        words = re.sub(r"``|\*\*", "", claim["words"])
        link = make_refnode(app.builder, docname, page, claim["id"], nodes.Text(f"“{words}”"))
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
    app.setup_extension("docs._ext.support.page_state")
    app.add_directive("upstream-says", UpstreamSays)
    add_site_table(app, "upstream-claims", UpstreamClaims)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
