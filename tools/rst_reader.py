"""Read RST as docutils does, without Sphinx: the prose a reader sees and the code blocks.

``prose(text, path)`` yields ``Passage(line, text)``; ``code_blocks(text, path)`` yields
``Block(first_line, last_line, language, directive, argument, code)``.

Unknown directives are not errors here: their argument, their captions and their parsed
content count as prose. Unknown roles keep the text that the writer typed (``text`` of
``text <target>``), except for the roles whose text is computed by the build.
"""

import functools
import re
from dataclasses import dataclass

from docutils import nodes
from docutils.frontend import get_default_settings
from docutils.parsers.rst import Directive, Parser, directives
from docutils.parsers.rst.directives import images, misc, tables
from docutils.utils import new_document, unescape
from sphinx.util.docutils import CustomReSTDispatcher

# The text of these roles comes from a record, not from the writer, or is checked against one.
COMPUTED_ROLES = {"measured", "modeled", "choice"}
COMPUTED = "\N{OBJECT REPLACEMENT CHARACTER}"

CODE_DIRECTIVES = {
    "code",
    "code-block",
    "sourcecode",
    "not-executed",
    "testcode",
    "testsetup",
    "testcleanup",
    "testoutput",
    "doctest",
    "ipython",
    "jupyter-execute",
    "literalinclude",
    "parsed-literal",
    "plot",
    "prompt",
    "raw",
}
# What these show is Python whatever their argument says.
PYTHON_DIRECTIVES = {
    "not-executed": "python",
    "testcode": "python",
    "testsetup": "python",
    "testcleanup": "python",
    "doctest": "pycon",
    "ipython": "ipython",
    "jupyter-execute": "python",
    "plot": "python",
}
TEXT_OPTIONS = {"alt", "caption", "header", "title", "subtitle", "if-absent"}


class CSVTable(tables.CSVTable):
    """What stands in another file is not the writer's text."""

    def run(self):
        return [] if "file" in self.options else super().run()


NATIVE = {
    "csv-table": CSVTable,
    "figure": images.Figure,
    "image": images.Image,
    "list-table": tables.ListTable,
    "replace": misc.Replace,
    "table": tables.RSTTable,
    "unicode": misc.Unicode,
}


@dataclass(frozen=True)
class Passage:
    """Prose, and the line on which it starts."""

    line: int
    text: str


@dataclass(frozen=True)
class Block:
    """A code block; ``directive`` is ``::`` for a literal block, ``>>>`` for a bare doctest."""

    first_line: int
    last_line: int
    language: str
    directive: str
    argument: str
    code: str


class AnyOption(dict):
    """An option_spec that takes every option."""

    def __contains__(self, name):
        return True

    def __getitem__(self, name):
        return directives.unchanged

    def __bool__(self):
        return True


class Lenient(Directive):
    """Any directive: its visible words become nodes, its code becomes a literal block."""

    optional_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec = AnyOption()

    def run(self):
        if self.name in CODE_DIRECTIVES:
            reason = self.argument() if self.name == "not-executed" else {}
            return [*self.spoken(self.options), *self.spoken(reason), self.code()]
        box = nodes.container("", *self.spoken(self.options), *self.spoken(self.argument()))
        self.state.nested_parse(self.content, self.content_offset, box)
        return [box]

    def argument(self):
        return {"argument": self.arguments[0]} if self.arguments else {}

    def spoken(self, options):
        """Paragraphs for the options (or the argument) that end up as text on the page."""
        for name, text in options.items():
            if text and name in {*TEXT_OPTIONS, "argument"}:
                found, _ = self.state.inline_text(text, self.lineno)
                paragraph = nodes.paragraph("", "", *found)
                paragraph.line = self.lineno
                yield paragraph

    def code(self):
        argument = self.arguments[0] if self.arguments else ""
        code = "\n".join(self.content)
        block = nodes.literal_block(code, code)
        block.line = self.lineno
        block["block"] = Block(
            first_line=self.lineno,
            last_line=max(self.lineno, self.content_offset + len(self.content)),
            language=PYTHON_DIRECTIVES.get(
                self.name, argument or self.options.get("language", "")
            ).strip(),
            directive=self.name,
            argument=argument,
            code=code,
        )
        return block


def lenient_role(name, rawtext, text, lineno, inliner, options=None, content=()):
    """Keep what the writer typed, drop what the build computes."""
    if name == "claim":  # a mark, which no page shows
        return [], []
    if name in COMPUTED_ROLES:
        return [nodes.inline("", COMPUTED)], []
    typed = unescape(text, restore_backslashes=name == "math")
    if name != "math":
        typed = re.sub(r"\s*<[^<>]*>$", "", typed, flags=re.DOTALL)
    return [nodes.inline("", typed)], []


class LenientDispatcher(CustomReSTDispatcher):
    """Serve every directive and role, whatever other packages registered."""

    def directive(self, directive_name, language_module, document):
        return NATIVE.get(directive_name, Lenient), []

    def role(self, role_name, language_module, lineno, reporter):
        return lenient_role, []


@functools.lru_cache(maxsize=1)  # for prose and code of one text; nobody changes the tree
def parse(text, path="<rst>"):
    """The document tree of RST source, problems of markup ignored: Sphinx reports those."""
    settings = get_default_settings(Parser)
    settings.report_level = settings.halt_level = 5
    settings.file_insertion_enabled = False
    document = new_document(str(path), settings)
    with LenientDispatcher():
        Parser().parse(text, document)
    return document


def start_line(node):
    """Line of a node, or of its nearest ancestor that knows its own."""
    while node is not None:
        if node.line:
            return node.line
        node = node.parent
    return 1


def prose(text, path="<rst>"):
    """Every passage a reader sees as text, code blocks in other languages included."""
    document = parse(text, path)
    for node in document.findall(nodes.TextElement):
        if isinstance(node, nodes.comment | nodes.system_message | nodes.doctest_block):
            continue
        if isinstance(node.parent, nodes.TextElement | nodes.system_message):
            continue  # part of its parent's text
        block = node.get("block")
        if block is None or not is_python(block.language):
            yield Passage(start_line(node), node.astext())
    for image in document.findall(nodes.image):
        if image.get("alt"):
            yield Passage(start_line(image), image["alt"])


def code_blocks(text, path="<rst>"):
    """Every code block, in the order of the page."""
    document = parse(text, path)
    lines = text.splitlines()
    place = 0
    found = []
    for node in document.findall(nodes.FixedTextElement):
        if isinstance(node, nodes.literal_block | nodes.doctest_block):
            block = node.get("block") or bare_block(node, lines, place)
            place = block.last_line if block.directive == ">>>" else place
            found.append(block)
    return found


def bare_block(node, lines, place):
    """A block without a directive. docutils keeps no line for it, so the source is searched."""
    code = node.astext().splitlines()
    count = len(code)
    doctest = isinstance(node, nodes.doctest_block)
    for start in range(place, len(lines) - count + 1):
        window = lines[start : start + count]
        if [line.strip() for line in window] == [line.strip() for line in code]:
            break
    else:
        start = start_line(node) - 1
    return Block(
        first_line=start + 1,
        last_line=start + count,
        language="pycon" if doctest else "",
        directive=">>>" if doctest else "::",
        argument="",
        code=node.astext(),
    )


def is_python(language):
    """Whether Pygments shows this language as Python, in any of its dialects."""
    return re.fullmatch(
        r"(i?python|py)([23](\.\d+)?)?|pycon3?|ipython[23]?|default", language or ""
    )
