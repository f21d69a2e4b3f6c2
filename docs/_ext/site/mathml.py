"""Formulas as MathML, converted while the site is built.

Switch on: ``"docs._ext.site"`` in ``extensions`` and ``html_math_renderer = "mathml"``. Markup is
Sphinx's own: the role ``math`` and the directive ``math``, in pages and in the docstrings of API
pages.

It writes ``<math>`` elements, which browsers lay out themselves: no script, no font, no request to
another host, and screen readers read them. Each has its LaTeX as annotation, which nobody sees and
``markdown_twin`` reads. docutils converts; LaTeX that it does not know is the
warning ``mathml.latex``, and the page shows the source instead. Labels become anchors; equations
carry no numbers.
"""

import re
from html import escape

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

logger = logging.getLogger(__name__)

PARTS = re.compile(r"(<math\b[^>]*>)(.*)(</math>)", re.DOTALL)


def converted(translator, node, block):
    code = node.astext()
    try:
        opening, content, closing = PARTS.fullmatch(tex2mathml(code, as_block=block)).groups()
    except MathError as error:
        logger.warning(
            "cannot convert this formula: %s", error, location=node, type="mathml", subtype="latex"
        )
        return f"<code>{translator.encode(code)}</code>"
    source = f'<annotation encoding="application/x-tex">{escape(code, quote=False)}</annotation>'
    return f"{opening}<semantics><mrow>{content}</mrow>{source}</semantics>{closing}"


def visit_math(translator, node):
    translator.body.append(converted(translator, node, block=False))
    raise nodes.SkipNode


def visit_math_block(translator, node):
    translator.body.append(translator.starttag(node, "div", CLASS="math"))
    translator.body.append(converted(translator, node, block=True) + "</div>\n")
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
