"""The faces that the site brings along have what its pages show."""

import html
import re

import pytest

from tests.support import ROOT, SITE
from tools.subset_fonts import CHARACTERS, FACES

# Formulas take a font with mathematics, and code may quote whatever a terminal shows.
ELSEWHERE = re.compile(r"<(script|style|math|pre)\b.*?</\1>", re.DOTALL)
TAG = re.compile(r"<[^>]+>")


def shown(page):
    return set(html.unescape(TAG.sub("", ELSEWHERE.sub("", page))))


@pytest.mark.site
def test_no_character_of_a_page_is_missing():
    missing = {}
    for page in sorted(SITE.rglob("*.html")):
        for character in shown(page.read_text(encoding="utf-8")) - set(CHARACTERS) - {"\n", "\t"}:
            missing.setdefault(character, str(page.relative_to(SITE)))
    assert missing == {}, "run tools/subset_fonts.py with them, or write them otherwise"


def test_the_style_sheet_declares_each_face():
    style = (ROOT / "docs" / "_static" / "field-manual.css").read_text(encoding="utf-8")
    assert set(re.findall(r'url\("fonts/((?:sans|mono)[\w.-]+)"\)', style)) == set(FACES)
    folder = ROOT / "docs" / "_static" / "fonts"
    assert {path.name for path in folder.iterdir()} == {*FACES, "icons.woff2", "LICENSE.txt"}
