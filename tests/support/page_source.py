"""The source of a page of the manual, and the titles in it."""

import re

from sphinx_gallery.py_source_parser import split_code_and_text_blocks

from docs._ext.support import galleries
from tests.support import ROOT


def source_of(page):
    """The script or RST file of a page, given by its address without the ending."""
    script = ROOT / f"{page[1:]}.py"
    if not page.startswith(tuple(f"/{name}/" for name in galleries.NAMES)):
        return ROOT / "docs" / f"{page[1:]}.rst"
    return script.with_name("GALLERY_HEADER.rst") if script.stem == "index" else script


def section_titles(page):
    """The titles below that of a page."""
    source = source_of(page)
    if source.suffix == ".py":
        blocks = split_code_and_text_blocks(str(source))[1]
        text = "\n".join(block.content for block in blocks if block.type == "text")
    else:
        text = source.read_text(encoding="utf-8")
    return re.findall(r"^(.+)\n-+$", text.replace("``", ""), re.MULTILINE)
