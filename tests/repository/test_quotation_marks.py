"""Quotation marks and apostrophes of the built site are curly outside of code."""

import re
from html import unescape

import pytest

from tests.support import SITE

ARTICLE = re.compile(r"(?<=<article class=\"bd-article\">).*(?=</article>)", re.DOTALL)
CODE = re.compile(r"<(code|pre|script|style|kbd|svg|math)\b.*?</\1>", re.DOTALL)
CELL = re.compile(r"<td\b.*?</td>", re.DOTALL)
TAG = re.compile(r"<[^>]*>")
MESSAGE = re.compile(r"\w(?:Error|Exception|Warning): ")  # stays as it is raised


def straight(article):
    """The texts with a straight mark."""
    for cell in CELL.findall(article):
        if MESSAGE.search(TAG.sub("", cell)):
            article = article.replace(cell, "")
    texts = map(unescape, TAG.split(CODE.sub("", article)))
    return [text for text in texts if re.search("['\"]", text)]


def test_a_straight_mark_is_found():
    code = """<code><span>'a'</span></code> <pre>"b"</pre>"""
    cells = """<td>its e</td> <td><code>KeyError</code>: it isn't</td> <td>it isn&#x27;t: g</td>"""
    assert straight(f'<p title="x">{code} one’s</p> <b>one\'s</b> {cells}') == [
        "one's",
        "it isn't: g",
    ]


@pytest.mark.site
def test_marks_of_running_text_are_curly():
    found = {}
    for path in sorted(SITE.rglob("*.html")):
        name = path.relative_to(SITE).as_posix()
        article = ARTICLE.search(path.read_text(encoding="utf-8"))
        if article and not name.startswith("reference/api/"):  # upstream's words
            found[name] = straight(article[0])
    assert any(name.startswith("performance/") for name in found)
    assert {name: texts for name, texts in found.items() if texts} == {}
