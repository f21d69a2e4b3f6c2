"""The terms of a glossary from A to Z, and a strip of letters that stays in sight.

Switch on: ``"docs._ext.site"`` in ``extensions``, and the rules for ``.term-strip`` and
``.term-index`` in a style sheet. Markup, once, on the page of the glossary, below its title::

    .. term-index::

It writes, in HTML, a strip with a link to the title and one to each letter, and below it a line for
each letter, ``#terms-a``, with links to its terms. A term is filed under its first letter or digit,
so ``_AcceptedKeys`` under A.
"""

from html import escape

from docutils import nodes
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective

DIGITS = "0-9"


class term_index(nodes.Invisible, nodes.Element):
    """The place of the index, until the page is read."""


class TermIndex(SphinxDirective):
    """``term-index``."""

    def run(self):
        return [term_index()]


def sort_key(name):
    """The letters and digits of a name, in lower case."""
    return "".join(filter(str.isalnum, name)).casefold()


def by_letter(terms):
    """Each first letter, in order -> its pairs of name and id, in order."""
    found = {}
    for name, target in sorted(terms, key=lambda term: (sort_key(term[0]), term)):
        first = sort_key(name)[0].upper()
        found.setdefault(DIGITS if first.isdigit() else first, []).append((name, target))
    return found


def terms_of(doctree):
    """Name and id of each term that the page defines."""
    for glossary in doctree.findall(addnodes.glossary):
        for term in glossary.findall(nodes.term):
            yield from ((term.astext(), target) for target in term["ids"])


def markup(top, letters):
    """The strip, whose first link leads to *top*, and the index."""
    anchors = {letter: f"terms-{letter.lower()}" for letter in letters}
    strip = [f'<a href="#{top[1]}">{escape(top[0])}</a>']
    strip += [f'<a href="#{anchors[letter]}">{letter}</a>' for letter in letters]
    lines = []
    for letter, terms in letters.items():
        links = (f'<a href="#{target}">{escape(name)}</a>' for name, target in terms)
        lines.append(f'<p id="{anchors[letter]}"><b>{letter}</b> {", ".join(links)}</p>\n')
    return (
        f'<nav class="term-strip" aria-label="A to Z">\n{" ".join(strip)}\n</nav>\n'
        f'<div class="term-index">\n{"".join(lines)}</div>\n'
    )


def fill(app, doctree):
    """doctree-read: put the terms of the whole page where the directive stood."""
    for place in list(doctree.findall(term_index)):
        section = place.parent
        top = section.next_node(nodes.title).astext(), section["ids"][0]
        html = markup(top, by_letter(terms_of(doctree)))
        place.replace_self(nodes.raw("", html, format="html"))


def setup(app):
    app.add_node(term_index)
    app.add_directive("term-index", TermIndex)
    app.connect("doctree-read", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
