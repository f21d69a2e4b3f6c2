"""Every term of the manual from A to Z, and a strip of letters that stays in sight.

Switch on: ``"docs._ext.site"`` in ``extensions``, and the rules for ``.term-strip`` and
``.term-index`` in a style sheet. Markup, on the page that leads to the pages of the terms::

    .. term-index::

It writes the strip, in HTML alone, with a link to the top and one to each letter, and below it for
each letter, ``#terms-a``, its terms. Each has the id of the term, so ``index.html#term-carrier``
leads here, a link to its entry, and the first sentence of that. A term is filed under its first
letter or digit, so ``_AcceptedKeys`` under A. An edited definition writes the page again.
"""

from html import escape
from itertools import groupby

from docutils import nodes
from sphinx.util.nodes import make_refnode

from docs._ext.site.term_hints import DEFINED
from docs._ext.support.page_state import page_state
from docs._ext.support.site_table import SiteTable, add_site_table

DIGITS = "0-9"


def sort_key(name):
    """The letters and digits of a name, in lower case."""
    return "".join(filter(str.isalnum, name)).casefold()


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
        found = [nodes.raw("", strip(app.env.titles[docname].astext(), letters), format="html")]
        for letter, terms in letters.items():
            heading = nodes.rubric("", letter, ids=[anchor(letter)])
            heading["heading-level"] = 2
            together = groupby(terms, key=lambda term: (term[0], term[1].sentence))
            items = (
                item(app, docname, page, [one for _, one in group]) for (page, _), group in together
            )
            found += [heading, nodes.definition_list("", *items, classes=["term-index"])]
        return found


def item(app, docname, page, terms):
    """Terms of one entry, which follow each other, with links to it and its first sentence."""
    found = nodes.definition_list_item()
    for one in terms:
        link = make_refnode(app.builder, docname, page, one.id, nodes.Text(one.name))
        found += nodes.term("", "", link, ids=[one.id])
    found += nodes.definition("", nodes.paragraph("", terms[0].sentence))
    return found


def setup(app):
    app.setup_extension("docs._ext.site.term_hints")
    add_site_table(app, "term-index", TermIndex)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
