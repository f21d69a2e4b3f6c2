"""The index of all terms and symbols: names of code as code, what they belong to quieter.

Switch on: ``"docs._ext.site"`` in ``extensions`` and the rules for ``.indextable`` in a style
sheet. There is no markup. It writes ``genindex.html`` alone, whose entries Sphinx gives as text:
``sample() (torchrl.data.ReplayBuffer method)`` is a name, and where it belongs.
"""

import re
from html import escape

from docutils import nodes
from markupsafe import Markup

from docs._ext.site.term_index import name_nodes

PAGE = "genindex"
KNOB = "#knob-"  # of the address of one: its name is code as a whole
ENTRY = re.compile(r"(?P<name>.*?) ?(?P<of>\([\w.-]+ [^()]*\))?")


def marked(text, links):
    """The *text* of an entry as HTML; *links* are pairs of whether one is the main, and address."""
    name, of = ENTRY.fullmatch(text).group("name", "of")
    whole = of or any(KNOB in address for _, address in links)
    found = [nodes.literal(name, name)] if whole and name else name_nodes(name)
    parts = [
        f"<code>{escape(one.astext())}</code>"
        if isinstance(one, nodes.literal)
        else escape(one.astext())
        for one in found
    ]
    belongs = [f"<span>{escape(of)}</span>"] if of else []
    return Markup(" ".join(filter(None, ["".join(parts), *belongs])))


def mark(app, pagename, templatename, context, doctree):
    """html-page-context: the entries of the index."""
    if pagename != PAGE:
        return
    context["genindexentries"] = [
        (
            letter,
            [
                (
                    marked(name, links),
                    (links, [(marked(below, own), own) for below, own in inner], key),
                )
                for name, (links, inner, key) in entries
            ],
        )
        for letter, entries in context["genindexentries"]
    ]


def setup(app):
    app.connect("html-page-context", mark)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
