"""The index of the glossary from A to Z, on a small site of two pages of terms."""

import copy
import re

import pytest
from docutils import nodes

from docs._ext.site.term_hints import Definition
from docs._ext.site.term_index import by_letter, name_nodes, sort_key, strip
from tests.support.small_site import SmallSite

TERMS = ["worker", "_AcceptedKeys", "TED", "a <b>", "advantage", "two words", "1-step"]
LOOP = """Loop
====

.. own-terms::

.. glossary::

   carrier
   shuttle
   _shuttle
      What ``a < b`` leads to. More of it.

   Zeros
      Nothing.
"""
ROWS = """Rows
====

.. glossary::

   cast
      A move, see :term:`carrier`.
"""
PAGES = {
    "index.rst": "Home\n====\n\n.. toctree::\n\n   deep/loop\n   rows\n   terms\n",
    # names no page, or Sphinx would write it again with them
    "terms.rst": "Words & terms\n=============\n\n.. term-index::\n",
    "deep/loop.rst": LOOP,
    "rows.rst": ROWS,
    **{f"more{number}.rst": ":orphan:\n\nMore\n====\n" for number in range(4)},
}
ITEM = re.compile(r"((?:<dt .*?</dt>)+)<dd><p[^>]*>(.*?)</p>")
TERM = re.compile(
    r'<dt(?: class="is-alias")? id="([^"]+)">(?:also )?'
    r'<a class="reference internal" href="([^"]+)">([^<]+)</a></dt>'
)


def plain(page):
    """Without the marks of code."""
    return re.sub(r"</?(?:code|span)\b[^>]*>", "", page)


def rows(page):
    """Id, link and name of each term, and what it begins with."""
    found = ITEM.findall(plain(page))
    return [(*term, sentence) for terms, sentence in found for term in TERM.findall(terms)]


def build(site, *options):
    """Build; return the page of the index, and when each page was written."""
    site.built(*options)
    pages = {path.stem: path.stat().st_mtime_ns for path in site.html.rglob("*.html")}
    return site.page("terms"), pages


@pytest.fixture
def site(tmp_path):
    return SmallSite(tmp_path, PAGES, extensions="docs._ext.site.term_index")


def test_a_term_is_filed_under_its_first_letter_or_digit():
    found = [("page", Definition(name, "", "", "")) for name in sorted(TERMS, key=sort_key)]
    names = {letter: [one.name for _, one in own] for letter, own in by_letter(found).items()}
    assert names == {
        "0-9": ["1-step"],
        "A": ["a <b>", "advantage", "_AcceptedKeys"],
        "T": ["TED", "two words"],
        "W": ["worker"],
    }
    assert list(names) == ["0-9", "A", "T", "W"]


def test_the_strip_leads_to_the_top_and_to_each_letter():
    html = strip("Words & terms", ["0-9", "A"])
    assert (
        '<a href="#">Words &amp; terms</a> <a href="#terms-0-9">0-9</a> <a href="#terms-a">' in html
    )


def test_each_term_has_its_id_a_link_and_its_first_sentence(site):
    page, _ = build(site)
    sentence = "What a &lt; b leads to."
    see = 'see <a class="reference internal" href="deep/loop.html#term-carrier">carrier</a>'
    assert rows(page) == [
        ("term-carrier", "deep/loop.html#term-carrier", "carrier", sentence),
        ("term-cast", "rows.html#term-cast", "cast", "A move, see carrier."),
        ("term-shuttle", "deep/loop.html#term-shuttle", "shuttle", see),
        ("term-_shuttle", "deep/loop.html#term-_shuttle", "_shuttle", see),
        ("term-Zeros", "deep/loop.html#term-Zeros", "Zeros", "Nothing."),
    ]
    assert (plain(page).count(sentence), page.count("see <a")) == (1, 1)
    assert re.findall(r'<h2 class="rubric" id="([^"]+)">(.)</h2>', page) == [
        ("terms-c", "C"),
        ("terms-s", "S"),
        ("terms-z", "Z"),
    ]


def test_a_further_name_looks_like_none_of_an_entry(site):
    site.edit("rows.rst", "   cast\n", "   cast\n   casting\n")
    page, _ = build(site)
    aliases = re.findall(r'<dt class="is-alias" id="term-(\w+)">(also )?', page)
    assert aliases == [("casting", "also "), ("shuttle", ""), ("_shuttle", "")]
    assert page.index('id="term-cast"') < page.index('id="term-casting"') < page.index("A move")


def test_a_page_lists_its_entries_in_their_order(site):
    build(site)
    page = site.page("deep/loop")
    (own,) = re.findall(r'<ul class="own-terms simple">(.*?)</ul>', page, re.DOTALL)
    assert "carrier</a> (also <a" in own
    lines = [re.findall(r'href="#([^"]+)">([^<]+)<', plain(line)) for line in own.split("</li>")]
    assert lines[:-1] == [
        [("term-carrier", "carrier"), ("term-shuttle", "shuttle"), ("term-_shuttle", "_shuttle")],
        [("term-Zeros", "Zeros")],
    ]


def in_code(html):
    return [plain(found) for found in re.findall(r"(?s)<code\b.*?</code>", html)]


def test_code_is_code_in_names_and_in_first_sentences(site):
    index, _ = build(site)
    assert in_code(index) == ["a &lt; b", "_shuttle"]
    page = site.page("deep/loop")
    (own,) = re.findall(r'<ul class="own-terms simple">(.*?)</ul>', page, re.DOTALL)
    assert in_code(own) == ["_shuttle"]
    terms = "".join(re.findall(r"(?s)<dt id=.*?</dt>", page))
    assert in_code(terms) == ["_shuttle"]
    assert 'id="term-_shuttle"' in terms


@pytest.mark.parametrize(
    ("name", "code"),
    [("carrier", []), ("Composite", ["Composite"]), ("cat_results", ["cat_results"])],
)
def test_a_name_that_looks_like_a_word_is_listed(name, code):
    found = [one.astext() for one in name_nodes(name) if isinstance(one, nodes.literal)]
    assert found == code


def test_an_edited_definition_writes_the_index_again(site):
    _, before = build(site)
    site.write({"deep/loop.rst": LOOP.replace("Nothing.", "Nothing at all.")})
    page, after = build(site)
    assert rows(page)[-1][3] == "Nothing at all."
    assert before["rows"] == after["rows"]
    assert page == build(site, "-E", "-a")[0]


def test_what_no_first_sentence_says_leaves_the_index_as_it_is(site):
    page, before = build(site)
    site.write({"deep/loop.rst": LOOP.replace("More of it.", "And more of it.")})
    again, after = build(site)
    assert before["terms"] == after["terms"]
    assert page == again


def test_a_term_comes_and_goes(site):
    build(site)
    site.write({"rows.rst": ROWS.replace("   cast\n", "   root\n")})
    page, _ = build(site)
    assert [row[0] for row in rows(page)] == [
        "term-carrier",
        "term-root",
        "term-shuttle",
        "term-_shuttle",
        "term-Zeros",
    ]
    assert page == build(site, "-E", "-a")[0]


def test_two_processes_write_the_same(site, tmp_path_factory):
    other = copy.copy(site)
    other.html = tmp_path_factory.mktemp("parallel")
    assert build(site)[0] == build(other, "-j", "2")[0]
