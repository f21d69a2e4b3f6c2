"""A page is for one sitting: words of every page, lines of every lesson.

Words are what a reader reads on the open page: text and tables, without code, what it printed,
drawings and closed folds. ``tests/browser/test_every_page.py`` measures screens. A page above its
yardstick is a section of ``long_pages.toml`` with the reason, which is checked to be needed.
"""

import re
from html.parser import HTMLParser

import pytest

from tests.support import ROOT, SITE
from tests.support.page_length import LINES, misfits, yardstick

VOID = {"br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}
NOT_READ = {"pre", "svg", "math", "script", "style", "details", "form", "footer"}
WORD = re.compile(r"\S*\w\S*")


class Words(HTMLParser):
    """How many words of the article are in view; ``skipped`` is the depth in what is not read."""

    def __init__(self):
        super().__init__()
        self.inside, self.skipped, self.count = False, 0, 0

    def handle_starttag(self, tag, attributes):
        if tag == "article":
            self.inside = True
        elif tag not in VOID and (self.skipped or tag in NOT_READ):
            self.skipped += 1

    def handle_endtag(self, tag):
        if tag == "article":
            self.inside = False
        elif self.skipped and tag not in VOID:
            self.skipped -= 1

    def handle_data(self, data):
        if self.inside and not self.skipped:
            self.count += len(WORD.findall(data))


def words_of(html):
    parser = Words()
    parser.feed(html.replace("<wbr>", ""))  # where the line of a word may end
    return parser.count


def test_words_are_those_in_view():
    page = """<p>nine ten</p><article><h1>One</h1><p>two, <code>th<wbr>ree</code> &amp; <br>four</p>
        <pre>a <span>b</span> c</pre><table><tr><td>5</td></tr></table>
        <details><summary>no</summary><div><p>no</p><pre>no</pre></div></details><p>six</p>
        </article><p>ten</p>"""
    assert words_of(page) == 6


@pytest.mark.site
def test_no_page_is_longer_than_its_yardstick_without_a_reason():
    counts = {
        name: words_of(path.read_text())
        for path in SITE.rglob("*.html")
        if not (name := path.relative_to(SITE).with_suffix("").as_posix()).startswith("_")
    }
    print(f"{sum(counts.values()):,} words on {len(counts)} pages")
    for name in sorted(counts, key=counts.get, reverse=True)[:10]:
        print(f"{counts[name]:6,}  {name}")
    limits = {name: yardstick(name)[0] for name in counts}
    assert misfits(counts, limits, "words") == ({}, set())


def test_no_lesson_is_longer_than_its_yardstick_without_a_reason():
    lines = {
        path.relative_to(ROOT).with_suffix("").as_posix(): len(path.read_text().splitlines())
        for path in ROOT.glob("tutorials/*/*.py")
        if path.parent.name != "debugging"
    }
    assert misfits(lines, dict.fromkeys(lines, LINES), "lines") == ({}, set())
