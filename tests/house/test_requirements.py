"""The requirement index names pages, sections and tests that exist."""

import re

import pytest
from docutils import nodes
from sphinx_gallery.py_source_parser import split_code_and_text_blocks

from tests.support import ROOT
from tools import rst_reader

INDEX = ROOT / "docs" / "reference" / "requirements.rst"


def rows():
    """The cells of each row as text, without the header."""
    tree = rst_reader.parse(INDEX.read_text(encoding="utf-8"), INDEX)
    for row in next(iter(tree.findall(nodes.tbody))).findall(nodes.row):
        yield [entry.astext() for entry in row.findall(nodes.entry)]


ROWS = list(rows())


def test_ids_are_unique_and_sorted():
    ids = [re.fullmatch(r"([A-Z])(\d+)", row[0]).groups() for row in ROWS]
    order = [("MCTRDGPQ".index(letter), int(number)) for letter, number in ids]
    assert order == sorted(set(order))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_named_tests_exist(row):
    assert row[3].split(), "a promise needs a test"
    for test in row[3].split():
        file, function, case = re.fullmatch(r"([^:]+)(?:::(\w+)(?:\[(\w+)\])?)?", test).groups()
        source = (ROOT / file).read_text(encoding="utf-8")
        definition = rf"^def {function}\(" if function else r"^def test_"
        assert re.search(definition, source, re.MULTILINE), test
        assert not case or f'"{case}": ' in source, test


SECTIONS = [row for row in ROWS if ": " in row[2]]


def test_the_tutorial_is_listed_section_by_section():
    ids = {row[0] for row in SECTIONS if row[2].startswith("/tutorials/memory/")}
    assert ids == {f"M{number}" for number in range(1, 14)} - {"M12"}


def section_titles(page):
    """The titles below that of a page, given by its address without the ending."""
    script = ROOT / f"{page[1:]}.py"
    if script.is_file():
        blocks = split_code_and_text_blocks(str(script))[1]
        text = "\n".join(block.content for block in blocks if block.type == "text")
    else:
        text = (ROOT / "docs" / f"{page[1:]}.rst").read_text(encoding="utf-8")
    return re.findall(r"^(.+)\n-+$", text.replace("``", ""), re.MULTILINE)


@pytest.mark.parametrize("row", SECTIONS, ids=lambda row: row[0])
def test_named_sections_exist(row):
    page, _, sections = row[2].partition(": ")
    # a title may hold a comma itself
    for title in sorted(section_titles(page), key=len, reverse=True):
        sections = re.sub(rf"(^|, ){re.escape(title)}(?=, |$)", "", sections)
    assert sections == ""
