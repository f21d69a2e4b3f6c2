"""Which Python blocks of an RST page run, which are shown only, and which slip through.

``parse_python`` is the Sybil parser of docs/conftest.py. ``problems`` compares what it runs
with what docutils shows to the reader, so a block in a form that Sybil does not know
(``code-block:: py``, a literal block after ``::``) is found rather than silently skipped.
"""

from pathlib import Path

from sybil.document import Document
from sybil.parsers.rest import DocTestParser, PythonCodeBlockParser

from docs._ext.support import galleries
from tools import rst_reader

# Files in here run in the build or in the test suite, so quoting them shows code that runs.
QUOTABLE = ("benchmarks", "docs/_ext", "docs/evidence", "tests", "tools", *galleries.NAMES)


def line_of(document, region):
    return document.text.count("\n", 0, region.start) + 1


def within(block, line):
    return block.first_line <= line <= block.last_line


def parse_python(document):
    """Sybil parser: the regions to run, without the bodies of not-executed."""
    shown_only = []
    if "not-executed::" in document.text:  # reading a page as docutils does takes its time
        blocks = rst_reader.code_blocks(document.text, document.path)
        shown_only = [block for block in blocks if block.directive == "not-executed"]
    for region in [*PythonCodeBlockParser()(document), *DocTestParser()(document)]:
        if isinstance(region.parsed, str) and region.parsed.lstrip().startswith(">>>"):
            continue  # the doctest parser takes these, example by example
        if not any(within(block, line_of(document, region)) for block in shown_only):
            yield region


def python_blocks(page):
    """The Python blocks of a page, quotations of files apart: those run where they stand."""
    return [
        block
        for block in rst_reader.code_blocks(page.read_text(encoding="utf-8"), page)
        if rst_reader.is_python(block.language) and block.directive != "literalinclude"
    ]


def problems(page, root):
    """Complaints about blocks of a page which look like Python and which nothing runs."""
    document = Document.parse(str(page), parse_python)
    run = {line_of(document, region) for _, region in document.regions}
    name = page.relative_to(root).as_posix()
    for block in rst_reader.code_blocks(document.text, page):
        complaint = problem(block, run, page, root)
        if complaint:
            yield f"{name}:{block.first_line}: {complaint}"
    for line in invisible_blocks(document):
        yield f"{name}:{line}: invisible code; readers must see what runs: use code-block:: python"


def problem(block, run, page, root):
    """What is wrong with one block, or None."""
    if block.directive == "not-executed":
        return None  # its own errors come from docs/_ext/site/not_executed.py
    if block.directive == "literalinclude":
        return quotation_problem(block, page, root)
    if block.directive == "::" or (block.directive != ">>>" and not block.language):
        return "code without a language is shown as Python; name it with code-block::"
    if rst_reader.is_python(block.language) and not any(within(block, line) for line in run):
        return (
            f"nothing runs this {block.directive!r} block in {block.language!r}; "
            "use code-block:: python, or not-executed:: with the reason"
        )
    return None


def quotation_problem(block, page, root):
    """A quoted Python file has to be one that runs."""
    path = (page.parent / block.argument).resolve()
    if path.suffix == ".py" and not any((root / d).resolve() in path.parents for d in QUOTABLE):
        return f"{block.argument} is not run by the build; quote a file of {', '.join(QUOTABLE)}"
    return None


def invisible_blocks(document):
    """Lines of Sybil's comments that run without being shown."""
    visible = rst_reader.code_blocks(document.text, document.path)
    for _, region in document.regions:
        line = line_of(document, region)
        if not any(within(block, line) for block in visible):
            yield line


def rst_pages(docs: Path):
    """Every RST page that a person wrote, and no page of a gallery."""
    return [page for page in sorted(docs.rglob("*.rst")) if not galleries.is_generated(page, docs)]
