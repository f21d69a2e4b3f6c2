"""Show Python that does not run, and say why.

Every Python block in RST runs in ``make test``. The few that cannot run here carry this
directive instead of ``code-block``, and the reader sees the reason above the code.

Switch on: ``"docs._ext.site"`` in ``extensions``.

Markup; the argument is the reason, in one sentence, and is required::

    .. not-executed:: It needs four GPUs; the CPU form above runs.

       collector = MultiSyncCollector([make_env] * 4, policy, device="cuda")

It writes a ``div.not-executed`` holding a paragraph "This code is not executed here. <reason>" and
the highlighted code, which still has to parse as Python. A missing reason, a missing body and a
body that is not Python are errors with file and line. The test run does not execute the
block, counts it, and lists it with its reason (docs/conftest.py).
"""

import ast
import textwrap

from docutils import nodes
from sphinx.util.docutils import SphinxDirective


class NotExecuted(SphinxDirective):
    """``.. not-executed:: reason`` with a Python body."""

    required_arguments = 0  # checked below, for a message that says what to write
    optional_arguments = 1
    final_argument_whitespace = True
    has_content = True

    def run(self):
        if not self.arguments:
            raise self.error("not-executed needs a reason: '.. not-executed:: why it cannot run'")
        if not self.content:
            raise self.error("not-executed needs the Python code it shows as its body")
        code = "\n".join(self.content)
        try:
            ast.parse(textwrap.dedent(code))
        except SyntaxError as error:
            raise self.error(f"the body of not-executed is not Python: {error.msg}") from error
        return [self.shown(code)]

    def shown(self, code):
        """The container a reader sees: the reason, then the code."""
        reason, messages = self.state.inline_text(self.arguments[0], self.lineno)
        label = nodes.strong("", "This code is not executed here. ")
        block = nodes.literal_block(code, code, language="python")
        box = nodes.container("", nodes.paragraph("", "", label, *reason), *messages, block)
        box["classes"].append("not-executed")
        self.set_source_info(box)
        self.set_source_info(block)
        return box


def setup(app):
    app.add_directive("not-executed", NotExecuted)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
