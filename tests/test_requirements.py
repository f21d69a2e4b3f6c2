"""The requirement index names pages, sections and tests that exist."""

import re
from pathlib import Path

import pytest
import rst_reader
from docutils import nodes
from sphinx_gallery.py_source_parser import split_code_and_text_blocks

ROOT = Path(__file__).parent.parent
INDEX = ROOT / "docs" / "reference" / "requirements.rst"
TUTORIAL = ROOT / "tutorials" / "memory" / "memory_efficient_rl.py"


def rows():
    """The cells of each row as text, without the header."""
    tree = rst_reader.parse(INDEX.read_text(encoding="utf-8"), INDEX)
    for row in next(iter(tree.findall(nodes.tbody))).findall(nodes.row):
        yield [entry.astext() for entry in row.findall(nodes.entry)]


ROWS = list(rows())


def test_ids_are_unique_and_sorted():
    ids = [re.fullmatch(r"([A-Z])(\d+)", row[0]).groups() for row in ROWS]
    order = [("MGQ".index(letter), int(number)) for letter, number in ids]
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
    assert {row[0] for row in SECTIONS} == {f"M{number}" for number in range(1, 14)} - {"M12"}


@pytest.mark.parametrize("row", SECTIONS, ids=lambda row: row[0])
def test_named_sections_exist(row):
    page, _, sections = row[2].partition(": ")
    assert page == "/tutorials/memory/memory_efficient_rl"
    blocks = split_code_and_text_blocks(str(TUTORIAL))[1]
    text = "\n".join(block.content for block in blocks if block.type == "text").replace("``", "")
    for section in sections.split(", "):
        assert re.search(rf"^{re.escape(section)}\n-+$", text, re.MULTILINE), section
