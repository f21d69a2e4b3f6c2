"""Every term of the manual from A to Z, and a strip of letters that stays in sight.

Switch on: ``"docs._ext.site"`` in ``extensions``, and the rules for ``.term-strip`` and
``.term-index`` in a style sheet. Markup, on the page that leads to the pages of the terms::

    .. term-index::

It writes the strip, in HTML alone, with a link to the top and one to each letter, and below it for
each letter, ``#terms-a``, its terms. Each has the id of the term, so ``index.html#term-carrier``
leads here, a link to its entry, and the first sentence of that. A further name of an entry says
"also" behind the first, and elsewhere "see" and the first. A term is filed under its first letter
or digit, one that begins with a sign after the others. An edited definition writes the page again.

On a page of terms ``.. own-terms::`` writes a list of its entries, in their order, with a link to
each of their names; below it, a further name has "also" before it by the style sheet.
"""

from html import escape
from itertools import groupby

from docutils import nodes
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

from docs._ext.site.term_hints import DEFINED, definitions, sentence_parts
from docs._ext.support import identifiers
from docs._ext.support.page_state import page_state
from docs._ext.support.site_table import SiteTable, add_site_table

DIGITS = "0-9"
CODE = {"aSyncDataCollector", "Composite", "ndim", "postproc"}  # that look like words


def name_nodes(name):
    """The name of a term: what is code as code."""
    return [nodes.literal(name, name)] if name in CODE else identifiers.nodes_of(name)


def sentence_nodes(term):
    """The first sentence of a term, with its code."""
    parts = sentence_parts(term)
    return [nodes.literal(part, part) if code else nodes.Text(part) for part, code in parts]


def sort_key(name):
    """The first letter or digit of a name, whether a sign stands before it, and all of them."""
    letters = "".join(filter(str.isalnum, name)).casefold()
    return letters[0], not name[0].isalnum(), letters


def entries(env):
    """``(page, definition)`` of every term, from A to Z."""
    found = [(page, one) for page, own in page_state(env, DEFINED).items() for one in own.values()]
    return sorted(found, key=lambda pair: (sort_key(pair[1].name), pair[1], pair[0]))


def by_letter(found):
    """Each first letter -> its pairs of page and definition, in the order given."""
    letters = {}
    for page, one in found:
        first = sort_key(one.name)[0].upper()
        letters.setdefault(DIGITS if first.isdigit() else first, []).append((page, one))
    return letters


def anchor(letter):
    return f"terms-{letter.lower()}"


def strip(title, letters):
    """HTML of the strip, whose first link leads to the top."""
    links = [f'<a href="#">{escape(title)}</a>']
    links += [f'<a href="#{anchor(letter)}">{letter}</a>' for letter in letters]
    return f'<nav class="term-strip" aria-label="A to Z">\n{" ".join(links)}\n</nav>\n'


class TermIndex(SiteTable):
    """``term-index``."""

    entries = staticmethod(entries)

    @classmethod
    def content(cls, app, docname):
        letters = by_letter(cls.entries(app.env))
        heads = {(page, one.id): one for terms in letters.values() for page, one in terms}
        found = [nodes.raw("", strip(app.env.titles[docname].astext(), letters), format="html")]
        for letter, terms in letters.items():
            heading = nodes.rubric("", letter, ids=[anchor(letter)])
            heading["heading-level"] = 2
            together = groupby(terms, key=lambda term: (term[0], term[1].head))
            items = (
                item(app, docname, page, [one for _, one in group], heads[page, head])
                for (page, head), group in together
            )
            found += [heading, nodes.definition_list("", *items, classes=["term-index"])]
        return found


def item(app, docname, page, terms, head):
    """Terms of one entry, which follow each other, with links to it and what it begins with.

    Only the first name of the entry looks like one; another points to it.
    """

    def term(one):
        link = make_refnode(app.builder, docname, page, one.id, name_nodes(one.name))
        if one is head:
            return nodes.term("", "", link, ids=[one.id])
        also = [nodes.Text("also ")] if head in terms else []
        return nodes.term("", "", *also, link, ids=[one.id], classes=["is-alias"])

    found = nodes.definition_list_item(
        "", *map(term, sorted(terms, key=lambda one: one is not head))
    )
    if head in terms:
        text = nodes.paragraph("", "", *sentence_nodes(head))
    else:
        link = make_refnode(app.builder, docname, page, head.id, name_nodes(head.name))
        text = nodes.paragraph("", "see ", link, classes=["see"])
    found += nodes.definition("", text)
    return found


class own_terms(nodes.General, nodes.Element):
    """Where the list of a page's terms goes once the page is read."""


class OwnTerms(SphinxDirective):
    """``own-terms``."""

    def run(self):
        return [own_terms()]


def list_own_terms(app, doctree):
    """doctree-read: the entries of the page are known."""
    for term in doctree.findall(nodes.term):
        if isinstance(term.parent.parent.parent, addnodes.glossary):
            for text in [child for child in term if isinstance(child, nodes.Text)]:
                term.replace(text, name_nodes(text.astext()))
    for place in list(doctree.findall(own_terms)):
        together = groupby(definitions(doctree).values(), key=lambda one: one.head)
        items = (nodes.list_item("", names(list(group))) for _, group in together)
        place.replace_self(nodes.bullet_list("", *items, classes=["own-terms"]))


def names(terms):
    """Links to the names of one entry, in a line."""
    line = nodes.paragraph()
    for number, one in enumerate(terms):
        line += nodes.Text(("", " (also ", ", ")[min(number, 2)])
        line += nodes.reference("", "", *name_nodes(one.name), internal=True, refid=one.id)
    line += nodes.Text(")" if terms[1:] else "")
    return line


def setup(app):
    app.setup_extension("docs._ext.site.term_hints")
    add_site_table(app, "term-index", TermIndex)
    app.add_node(own_terms)
    app.add_directive("own-terms", OwnTerms)
    app.connect("doctree-read", list_own_terms)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
