"""Fold a cell that a reader of the lesson may skip: imports, instruments, drawing code, checks.

Switch on with ``"docs._ext.gallery"`` in ``extensions`` and rules for ``.code-fold`` in a style
sheet. The last lines of a text cell say that the code below it is closed when the page opens::

    # %%
    # .. fold:: Imports and sizes

It is executed like any other, and the script and the notebook hold it. What it printed or drew
stays in view; ``:output:`` closes that as well. On the page it becomes a ``details`` element, in
the notebook a line in bold. A fold without code below it is a warning (``gallery.fold``).
"""

from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from docs._ext.support import identifiers

logger = logging.getLogger(__name__)
OUTPUT = "sphx-glr-script-out"


class code_fold(nodes.General, nodes.Element):
    """A ``details`` element around the code of a cell; ``title`` is its summary."""


class Fold(SphinxDirective):
    """``.. fold:: title`` at the end of a text cell."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar = {"output": directives.flag}

    def run(self):
        fold = code_fold(title=self.arguments[0], output="output" in self.options)
        self.set_source_info(fold)
        return [fold]


def cell_below(fold):
    """The nodes that follow up to the next cell, which sphinx-gallery announces by a comment."""
    siblings = fold.parent.children[fold.parent.index(fold) + 1 :]
    while siblings and isinstance(siblings[0], nodes.comment):
        siblings.pop(0)
    end = next((n for n, x in enumerate(siblings) if isinstance(x, nodes.comment)), None)
    return siblings[:end]


def close(app, doctree):
    """doctree-read: move the code below each fold into it, and its output where that is asked."""
    for fold in list(doctree.findall(code_fold)):
        cell = cell_below(fold)
        if not cell or not isinstance(cell[0], nodes.literal_block) or OUTPUT in cell[0]["classes"]:
            text = "no code follows 'fold:: %s'; let it be the last line of the text of a cell"
            logger.warning(text, fold["title"], location=fold, type="gallery", subtype="fold")
            continue
        for node in cell if fold["output"] else cell[:1]:
            node.parent.remove(node)
            fold += node


def visit_fold(translator, node):
    translator.body.append(translator.starttag(node, "details", CLASS="code-fold"))
    summary = translator.encode(identifiers.curled(node["title"]))
    translator.body.append(f"<summary>{summary}</summary>\n")


def depart_fold(translator, node):
    translator.body.append("</details>\n")


def setup(app):
    app.add_node(code_fold, html=(visit_fold, depart_fold))
    app.add_directive("fold", Fold)
    app.connect("doctree-read", close)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
