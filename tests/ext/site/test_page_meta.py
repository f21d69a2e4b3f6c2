"""Head, entry cards and address of a small site, built in a fresh process as the real one is."""

import re

import pytest

from docs._ext.site.page_meta import shortened
from tests.support import ROOT
from tests.support.small_site import SmallSite

EXTENSIONS = ("entry_cards", "html_fixes", "mathml", "page_meta")
SETTINGS = {
    "html_title": "Small Site",
    "extensions": ",".join(f"docs._ext.site.{name}" for name in EXTENSIONS),
    "html_math_renderer": "mathml",
    "template_bridge": "docs._ext.site.html_fixes.Templates",
    "templates_path": ROOT / "docs" / "_templates",
    "html_static_path": ROOT / "docs" / "_static",
    "html_theme": "pydata_sphinx_theme",
}
PAGES = {
    "index.rst": """
Home
====

The first paragraph, with ``code`` and "quotes".

.. container:: entry-cards

   .. entry-card:: Open
      :page: /sub/page

      There is a page.

   .. entry-card:: Closed
      :page: /sub/later

      There is none yet.

.. toctree::
   :glob:

   sub/*
""",
    "sub/page.rst": """
:description: Said by the page itself.

Page
====

Not this, but :math:`x_t` and

.. math:: a &= \\frac{b}{c} \\\\ &= d
""",
    "404.rst": """
:orphan:

Page not found
==============

Go :doc:`home </index>`.
""",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return SmallSite(tmp_path_factory.mktemp("small"), PAGES, **SETTINGS).built()


@pytest.fixture
def site(source, tmp_path):
    """A copy of the built site that a test may change and build again."""
    return source.copy(tmp_path)


def content(html, kind, name):
    return re.findall(rf'<meta {kind}="{name}" content="([^"]*)"', html)


def test_description_is_the_first_paragraph_or_the_field(source):
    home = source.page("index")
    expected = ["The first paragraph, with code and “quotes”."]
    assert content(home, "name", "description") == expected
    assert content(home, "property", "og:description") == expected
    page = source.page("sub/page")
    assert content(page, "name", "description") == ["Said by the page itself."]
    assert content(page, "property", "og:title") == ["Page"]


def test_without_an_address_no_host_is_named(source):
    for path in source.html.glob("*.html"):
        assert "og:url" not in path.read_text()
        assert "canonical" not in path.read_text()
    assert not (source.html / "sitemap.xml").exists()


def test_an_address_gives_absolute_links_and_a_sitemap(site):
    site.built(SITE_URL="https://example.org/manual")
    page = site.page("sub/page")
    here = "https://example.org/manual/sub/page.html"
    assert content(page, "property", "og:url") == [here]
    assert f'<link rel="canonical" href="{here}" />' in page
    card = content(page, "property", "og:image")[0]
    assert (site.html / card.removeprefix("https://example.org/manual/")).is_file()
    sitemap = (site.html / "sitemap.xml").read_text()
    assert f"<loc>{here}</loc>" in sitemap
    assert "404" not in sitemap
    robots = (site.html / "robots.txt").read_text()
    assert "Sitemap: https://example.org/manual/sitemap.xml" in robots
    assert 'href="/manual/index.html"' in site.page("404")


def test_without_its_address_the_next_build_drops_the_sitemap(site):
    site.build(SITE_URL="https://example.org/manual")
    site.build()
    assert [n for n in ("robots.txt", "sitemap.xml") if (site.html / n).exists()] == []


def test_a_relative_address_is_refused(site):
    assert "SITE_URL is 'example.org'" in site.fails(SITE_URL="example.org")


def test_404_is_absolute_and_not_indexed(source):
    html = source.page("404")
    assert '<meta name="robots" content="noindex" />' in html
    relative = re.findall(r'(?:href|src)="(?!https?:|[/#])[^"]*"', html)
    assert relative == []


def test_a_card_shows_and_goes_with_its_page(site):
    assert "There is a page." in site.page("index")
    assert "There is none yet." not in site.page("index")
    site.write({"sub/later.rst": "Later\n=====\n\nText.\n"})
    home = site.built().page("index")
    assert '<a class="reference internal" href="sub/later.html">' in home
    assert "There is none yet." in home
    (site.docs / "sub" / "later.rst").unlink()
    assert "There is none yet." not in site.built().page("index")


def test_a_card_needs_a_page(site):
    site.append("index.rst", "\n.. entry-card:: Nowhere\n\n   Text.\n")
    assert "needs a :page: option" in site.fails()


def test_formulas_need_no_script(source):
    html = source.page("sub/page")
    assert html.count("<math ") == 2
    assert "<mfrac>" in html
    source = '<annotation encoding="application/x-tex">'
    assert f"{source}x_t</annotation></semantics></math>" in html
    assert f"{source}a &amp;= \\frac" in html
    assert "mathjax" not in html.lower()


def test_an_unknown_formula_fails_with_its_place(site):
    site.append("sub/page.rst", "\nThis :math:`\\nonsense{a}`.\n")
    said = site.fails()
    assert "page.rst:" in said
    assert "cannot convert this formula" in said


def test_shortened_cuts_after_a_word():
    assert shortened("one  two\nthree") == "one two three"
    assert shortened("one two three", limit=9) == "one two …"
