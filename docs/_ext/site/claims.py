"""Claims: sentences with an id, which the tests guard.

Switch on: ``"docs._ext.site"`` in ``extensions``. Markup, at the end of a sentence or of a
table cell, in pages, text cells of tutorials, catalogs, and texts of evidence scripts::

    The carrier is bound anew at each step. :claim:`carrier-bound-anew` The next sentence.

It writes nothing: the mark and the blank before it are gone before anything reads the page. What
reads a source without Sphinx calls `unmarked`. An id is lower-case words with hyphens, once in the
tree; what is none is an error of the page. Where no markup is read, as in a literal block, mark the
sentence that introduces it.

`scan` finds the claims of a tree without Sphinx; ``tests/support/claims.py`` ties tests to them.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from docutils import nodes
from sphinx.transforms import SphinxTransform
from sphinx.util.docutils import SphinxRole

from docs._ext.support.galleries import GENERATED, NAMES

ID = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
MARK = re.compile(r":claim:`([^`\n]*)`")
END = re.compile(r"(?<=[.!?])[*\"')\]]*\s+(?=[^a-z\s])")
# What stands before the text of a list item, a cell, a field, a directive, a line of a catalog.
LEAD = re.compile(
    r"\s*(?:\* - |[*-] |#\. |\d+\. |:[A-Za-z][\w -]*: |\.\. [\w-]+:: |[\w\"./-]+ = \"+)"
)
SOURCES = (
    "docs/**/*.rst",
    "docs/reference/api/*.toml",
    "docs/evidence/**/*.py",
    *(f"{name}/**/*.{kind}" for name in NAMES for kind in ("py", "rst")),
)


@dataclass(frozen=True)
class Claim:
    """A sentence as it reads now, in a file below the repository."""

    id: str
    file: str
    line: int
    sentence: str

    def __str__(self):
        return f"{self.file}:{self.line}: {self.sentence}"


def unmarked(text):
    """The text without marks."""
    return re.sub(rf"\s*{MARK.pattern}", "", text)


def scan(root):
    """Every claim of the tree, in the order of the files."""
    files = sorted({path for pattern in SOURCES for path in Path(root).glob(pattern)})
    names = (path.relative_to(root).as_posix() for path in files if path.is_file())
    return [claim for name in names if not GENERATED.match(name) for claim in _of(root, name)]


def _of(root, name):
    source = Path(root, name).read_text(encoding="utf-8")
    for mark in MARK.finditer(source):
        before = source[: mark.start()]
        text = _python_text(source, before, mark[0]) if name.endswith(".py") else before
        yield Claim(mark[1], name, before.count("\n") + 1, last_sentence(text))


def _python_text(source, before, mark):
    """What stands before the mark in its comment, or in its string."""
    lines = [re.match(r"\s*#(?! %)(.*)|", line)[1] or "" for line in before.splitlines()]
    if lines[-1]:
        return "\n".join(lines)
    strings = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return next(text.partition(mark)[0] for text in strings if mark in str(text))


def last_sentence(text):
    """The end of the text, from the last sentence end or from the start of its block."""
    block, below = [], None
    for line in reversed(unmarked(text).rstrip().splitlines()):
        lead, indent = LEAD.match(line), len(line) - len(line.lstrip())
        if not line.strip() or (below is not None and not lead and indent != below):
            break  # a blank line, or the term above its definition
        block.insert(0, line[lead.end() :] if lead else line)
        if lead:
            break
        below = indent
    return END.split(" ".join(" ".join(block).split()))[-1]


class claim(nodes.Inline, nodes.Element):
    """A mark, until `DropMarks`."""


class ClaimRole(SphinxRole):
    """``:claim:`id```."""

    def run(self):
        if ID.fullmatch(self.text):
            return [claim()], []
        problem = f"{self.text!r} is no id of a claim; use lower-case words with hyphens"
        message = self.inliner.reporter.error(problem, line=self.lineno)
        return [self.inliner.problematic(self.rawtext, self.rawtext, message)], [message]


class DropMarks(SphinxTransform):
    """Remove each mark with the blank before it, as if neither had been written."""

    default_priority = 10  # before all that reads text

    def apply(self):
        for mark in list(self.document.findall(claim)):
            parent, at = mark.parent, mark.parent.index(mark)
            del parent[at]
            if at and isinstance(parent[at - 1], nodes.Text):
                text = parent[at - 1].rstrip()
                if at < len(parent) and isinstance(parent[at], nodes.Text):
                    text += parent.pop(at)
                parent[at - 1 : at] = [nodes.Text(text)] if text else []


def setup(app):
    app.add_role("claim", ClaimRole())
    app.add_transform(DropMarks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
