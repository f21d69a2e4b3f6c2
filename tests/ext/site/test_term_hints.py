"""What docs/_ext/site/term_hints.py writes, on a small site; tests/browser has what readers see."""

import re

import pytest

from docs._ext.site.term_hints import SCRIPT, first_sentence
from tests.support import ROOT
from tests.support.small_site import SmallSite

WORDS = """Words
=====

.. glossary::

   carrier
   shuttle
      What ``a < b`` leads to, see :term:`slice` and :math:`x^2`. More of it.

      A second paragraph.

   slice
      A "piece" of rows.
"""
PAGES = {
    "index.rst": "Home\n====\n\nA :term:`carrier`, once more :term:`the <carrier>`.\n\n"
    ".. toctree::\n\n   plain\n   words\n   deep/page\n",
    "plain.rst": "Plain\n=====\n\nNo term, but :doc:`words`.\n",
    "words.rst": WORDS,
    "deep/page.rst": "Deep\n====\n\n:term:`SLICE`, `carrier <../words.html#term-carrier>`_.\n",
    **{f"more{number}.rst": ":orphan:\n\nMore\n====\n" for number in range(4)},
}
HINT = re.compile(r'<div class="term-hint" role="tooltip" id="([^"]+)" hidden>(.*)</div>')
DESCRIBED = re.compile(r'<a aria-describedby="([^"]+)" class="reference internal" href="([^"]+)"')


def build(site, *options, **environment):
    """Each page of the site."""
    site.built(*options, **environment)
    return {
        path.relative_to(site.html).as_posix(): path.read_text(encoding="utf-8")
        for path in site.html.rglob("*.html")
    }


def make_site(site, sources=PAGES):
    return SmallSite(site, sources, extensions="docs._ext.site.term_hints", smartquotes=0)


@pytest.fixture
def site(tmp_path):
    return make_site(tmp_path)


def written(site):
    """When each page was written."""
    return {path.name: path.stat().st_mtime_ns for path in site.html.rglob("*.html")}


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("One thing. Another.", "One thing."),
        ("Over\ntwo  lines", "Over two lines"),
        ("With 0.9 and e.g. this. Then more.", "With 0.9 and e.g. this."),
        ("See ``a.b``. 3 rows.", "See ``a.b``."),
        ("Is it? Yes.", "Is it?"),
    ],
)
def test_the_first_sentence_stands_in_one_line(text, first):
    assert first_sentence(text) == first


def test_each_reference_names_its_hint(site):
    pages = build(site)
    home, deep, words = (pages[name] for name in ("index.html", "deep/page.html", "words.html"))
    sentence = "What <code>a &lt; b</code> leads to, see slice and x^2."
    assert HINT.findall(home) == [("hint-term-carrier", sentence)]
    assert DESCRIBED.findall(home) == [("hint-term-carrier", "words.html#term-carrier")] * 2
    # not a link that the page spells by itself
    assert DESCRIBED.findall(deep) == [("hint-term-slice", "../words.html#term-slice")]
    assert HINT.findall(deep) == [("hint-term-slice", 'A "piece" of rows.')]
    assert DESCRIBED.findall(words) == [("hint-term-slice", "#term-slice")]


def test_the_script_is_on_pages_with_a_hint_alone(site):
    pages = build(site)
    with_script = {name for name, text in pages.items() if SCRIPT in text}
    assert with_script == {"index.html", "deep/page.html", "words.html"}
    assert {name for name, text in pages.items() if 'role="tooltip"' in text} == with_script
    assert "../_static/term-hints.js" in pages["deep/page.html"]


def test_an_edited_definition_writes_the_pages_with_the_term(site):
    build(site)
    before = written(site)
    site.edit("words.rst", "leads to", "returns")
    pages = build(site)
    assert "What <code>a &lt; b</code> returns" in pages["index.html"]
    after = written(site)
    assert {name for name in before if before[name] != after[name]} >= {"index.html", "words.html"}
    assert before["page.html"] == after["page.html"]
    assert before["plain.html"] == after["plain.html"]
    assert pages == build(site, "-E", "-a")


def test_a_build_without_changes_writes_nothing(site):
    build(site)
    before = written(site)
    build(site)
    after = written(site)
    assert {name: after[name] for name in ("index.html", "page.html", "words.html")} == {
        name: before[name] for name in ("index.html", "page.html", "words.html")
    }


def test_a_moved_term_is_found_where_it_is(site):
    build(site)
    site.edit("words.rst", '   slice\n      A "piece" of rows.\n', "")
    yard = ":orphan:\n\nYard\n====\n\n.. glossary::\n\n   slice\n      Moved here.\n"
    site.write({"yard.rst": yard})
    pages = build(site)
    assert DESCRIBED.findall(pages["deep/page.html"]) == [
        ("hint-term-slice", "../yard.html#term-slice")
    ]
    assert HINT.findall(pages["deep/page.html"]) == [("hint-term-slice", "Moved here.")]
    assert pages == build(site, "-E", "-a")


def test_two_processes_write_the_same(site, tmp_path_factory):
    other = make_site(tmp_path_factory.mktemp("parallel"))
    assert build(site) == build(other, "-j", "2", PYTHONHASHSEED="1")


def test_the_site_has_script_and_rules():
    assert (ROOT / "docs" / "_static" / SCRIPT).is_file()
    assert ".term-hint {" in (ROOT / "docs" / "_static" / "field-manual.css").read_text("utf-8")
