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
           :do: Pass ``existsok=True`` to open what is there.
           :instead: Defaults to ``False``.

           It is False, and False raises when a file is already there.

           >>> ...

        .. upstream-claims::

    ``:of:`` names the symbol whose source holds the words; on an API page it is the page's own.
    ``:kind:`` is ``docstring`` (the default), ``comment`` or ``message``. Instead of these two,
    ``:page:`` gives the address of a page of upstream's; nothing looks there, the build reads no
    network. ``:do:`` is what a reader does about it, ``:instead:`` what the words could be. The
    body's first sentence is the verdict. Its examples, and what stands between them, are folded.

    ``upstream-claims`` is the table of all corrections of the site, one row per claim.

What it writes
    An admonition per correction, and the table. On an API page the words are marked where the
    docstring has them, with a link to the correction; ``upstream-erratum`` is the class of both.
    Words that the source no longer holds are the warning ``api_pages.claim``.
"""

import itertools
import re
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
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
        "do": directives.unchanged_required,
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
        lead, proof, tail = parts(self.parse_content_to_nodes())
        note += [*lead, *self.labeled("do", "**What to do:** {}"), *tail]
        proof += self.labeled("instead", "It could say: “{}”")
        if proof:
            note += erratum_proof("", *proof)
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

    def labeled(self, option, template):
        """The paragraph of an option, if it is given."""
        if option not in self.options:
            return []
        text = template.format(" ".join(self.options[option].split()))
        return [nodes.paragraph("", "", *self.parse_inline(text)[0], classes=[option])]

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


class erratum_proof(nodes.General, nodes.Element):
    """The examples of a correction, in a fold."""


def visit_proof(translator, node):
    translator.body.append(translator.starttag(node, "details", CLASS="code-fold"))
    translator.body.append("<summary>Proof, and what the words could be</summary>\n")


def depart_proof(translator, node):
    translator.body.append("</details>\n")


def parts(body):
    """The paragraphs before the first example, all up to the last one, and those behind it."""
    blocks = [
        place
        for place, node in enumerate(body)
        if not isinstance(node, (nodes.paragraph, nodes.bullet_list))
        or "evidence-origin" in node["classes"]
    ]
    if not blocks:
        return body, [], []
    return body[: blocks[0]], body[blocks[0] : blocks[-1] + 1], body[blocks[-1] + 1 :]


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


# -- Marks in docstrings ------------------------------------------------------------------------

MARKED = "upstream_marks"  # API page -> the corrections that it marked
STRAIGHT = str.maketrans("‘’“”", "''\"\"")


def marks_of(app, docname):
    """The corrections of docstrings on an API page, its own and those made elsewhere."""
    symbol = docname.removeprefix(API)
    claims = page_state(app.env, CLAIMS)
    marks = {}
    for page in [docname, *sorted(claims)]:
        for claim in claims.get(page, ()):
            here = page == docname or app.api_catalog.owner(claim["of"]) == symbol
            if here and claim["kind"] == "docstring":
                marks.setdefault(claim["words"], (page, claim["id"], claim["words"]))
    return list(marks.values())


def pages_to_mark(app, env):
    """env-updated: an API page changes when a correction on another page does."""
    marked = page_state(env, MARKED)
    pages = [page for page in sorted(env.found_docs) if page.startswith(API)]
    changed = [page for page in pages if marked.get(page, []) != marks_of(app, page)]
    marked.update({page: marks_of(app, page) for page in changed})
    return changed


def mark(app, doctree, docname):
    """doctree-resolved: mark the words in the docstrings of an API page, once each."""
    if not docname.startswith(API):
        return
    texts = [
        node
        for content in doctree.findall(addnodes.desc_content)
        for node in content.findall(nodes.TextElement)
        if any(isinstance(child, nodes.Text) for child in node)
        and not any(child is not node for child in node.findall(nodes.paragraph))
    ]
    for page, fragment, words in marks_of(app, docname):
        plain = re.sub(r"``|\*\*|:[\w:]+:(?=`)|`", "", words).translate(STRAIGHT)
        both = plain, re.sub(r"^[\w.]+: ", "", plain)  # of a field, its colon is not shown
        patterns = [r"\s+".join(map(re.escape, one.split())) for one in both]
        found = (
            (text, match)
            for pattern in patterns
            for text in texts
            if (match := re.search(pattern, text.astext().translate(STRAIGHT)))
        )
        for text, match in itertools.islice(found, 1):
            link = make_refnode(app.builder, docname, page, fragment, nodes.Text("see erratum"))
            wrap(text, *match.span(), link)


def wrap(text, start, end, link):
    """Put the characters from *start* to *end* of *text* into an element, and *link* behind it."""
    marked = nodes.inline("", classes=["upstream-erratum"])
    before, after, place = [], [], 0
    for child in list(text.children):
        size = len(child.astext())
        pieces = [(child, place, place + size)]
        if isinstance(child, nodes.Text):
            cuts = sorted(
                {place, place + size, *(c for c in (start, end) if place < c < place + size)}
            )
            pieces = [
                (nodes.Text(child[a - place : b - place]), a, b)
                for a, b in itertools.pairwise(cuts)
            ]
        for piece, begin, stop in pieces:
            (before if stop <= start else after if begin >= end else marked).append(piece)
        place += size
    link["classes"] += ["upstream-erratum"]
    text.children = []
    text += [*before, marked, nodes.Text(" "), link, *after]


def setup(app):
    app.setup_extension("docs._ext.source.role")
    app.setup_extension("docs._ext.support.page_state")
    app.add_node(erratum_proof, html=(visit_proof, depart_proof))
    app.connect("env-updated", pages_to_mark)
    app.connect("doctree-resolved", mark)
    app.add_directive("upstream-says", UpstreamSays)
    add_site_table(app, "upstream-claims", UpstreamClaims)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
