"""Head, entry cards and address of a small site, built in a fresh process as the real one is."""

import re
import shutil
from pathlib import Path

import pytest

from docs._ext.site.page_meta import shortened
from tests.support import ROOT
from tests.support.small_site import build, built

CONF = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
project = html_title = "Small Site"
extensions = [
    "docs._ext.site.entry_cards",
    "docs._ext.site.html_fixes",
    "docs._ext.site.mathml",
    "docs._ext.site.page_meta",
]
html_math_renderer = "mathml"
template_bridge = "docs._ext.site.html_fixes.Templates"
templates_path = [{str(ROOT / "docs" / "_templates")!r}]
html_static_path = [{str(ROOT / "docs" / "_static")!r}]
html_theme = "pydata_sphinx_theme"
"""
PAGES = {
    "index": """
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
    "sub/page": """
:description: Said by the page itself.

Page
====

Not this, but :math:`x_t` and

.. math:: a &= \\frac{b}{c} \\\\ &= d
""",
    "404": """
:orphan:

Page not found
==============

Go :doc:`home </index>`.
""",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return built(tmp_path_factory.mktemp("small"), PAGES, CONF)


@pytest.fixture
def site(source, tmp_path):
    """A copy of the built site that a test may change and build again."""
    return Path(shutil.copytree(source, tmp_path / "site"))


def content(html, kind, name):
    return re.findall(rf'<meta {kind}="{name}" content="([^"]*)"', html)


def test_description_is_the_first_paragraph_or_the_field(source):
    home = (source / "out" / "index.html").read_text()
    expected = ["The first paragraph, with code and “quotes”."]
    assert content(home, "name", "description") == expected
    assert content(home, "property", "og:description") == expected
    page = (source / "out" / "sub" / "page.html").read_text()
    assert content(page, "name", "description") == ["Said by the page itself."]
    assert content(page, "property", "og:title") == ["Page"]


def test_without_an_address_no_host_is_named(source):
    for path in (source / "out").glob("*.html"):
        assert "og:url" not in path.read_text()
        assert "canonical" not in path.read_text()
    assert not (source / "out" / "sitemap.xml").exists()


def test_an_address_gives_absolute_links_and_a_sitemap(site):
    done = build(site, "https://example.org/manual")
    assert (done.returncode, done.stderr) == (0, "")
    page = (site / "out" / "sub" / "page.html").read_text()
    here = "https://example.org/manual/sub/page.html"
    assert content(page, "property", "og:url") == [here]
    assert f'<link rel="canonical" href="{here}" />' in page
    card = content(page, "property", "og:image")[0]
    assert (site / "out" / card.removeprefix("https://example.org/manual/")).is_file()
    sitemap = (site / "out" / "sitemap.xml").read_text()
    assert f"<loc>{here}</loc>" in sitemap
    assert "404" not in sitemap
    assert (
        "Sitemap: https://example.org/manual/sitemap.xml"
        in (site / "out" / "robots.txt").read_text()
    )
    assert 'href="/manual/index.html"' in (site / "out" / "404.html").read_text()


def test_without_its_address_the_next_build_drops_the_sitemap(site):
    build(site, "https://example.org/manual")
    build(site)
    assert [n for n in ("robots.txt", "sitemap.xml") if (site / "out" / n).exists()] == []


def test_a_relative_address_is_refused(site):
    done = build(site, "example.org")
    assert done.returncode != 0
    assert "SITE_URL is 'example.org'" in done.stderr


def test_404_is_absolute_and_not_indexed(source):
    html = (source / "out" / "404.html").read_text()
    assert '<meta name="robots" content="noindex" />' in html
    relative = re.findall(r'(?:href|src)="(?!https?:|[/#])[^"]*"', html)
    assert relative == []


def test_a_card_shows_and_goes_with_its_page(site):
    home, later = site / "out" / "index.html", site / "src" / "sub" / "later.rst"
    assert "There is a page." in home.read_text()
    assert "There is none yet." not in home.read_text()
    later.write_text("Later\n=====\n\nText.\n")
    assert build(site).returncode == 0
    assert '<a class="reference internal" href="sub/later.html">' in home.read_text()
    assert "There is none yet." in home.read_text()
    later.unlink()
    assert build(site).returncode == 0
    assert "There is none yet." not in home.read_text()


def test_a_card_needs_a_page(site):
    (site / "src" / "index.rst").write_text(
        PAGES["index"] + "\n.. entry-card:: Nowhere\n\n   Text.\n"
    )
    done = build(site)
    assert done.returncode != 0
    assert "needs a :page: option" in done.stderr


def test_formulas_need_no_script(source):
    html = (source / "out" / "sub" / "page.html").read_text()
    assert html.count("<math ") == 2
    assert "<mfrac>" in html
    source = '<annotation encoding="application/x-tex">'
    assert f"{source}x_t</annotation></semantics></math>" in html
    assert f"{source}a &amp;= \\frac" in html
    assert "mathjax" not in html.lower()


def test_an_unknown_formula_fails_with_its_place(site):
    page = site / "src" / "sub" / "page.rst"
    page.write_text(page.read_text() + "\nThis :math:`\\nonsense{a}`.\n")
    done = build(site)
    assert done.returncode != 0
    assert "page.rst:" in done.stderr
    assert "cannot convert this formula" in done.stderr


def test_shortened_cuts_after_a_word():
    assert shortened("one  two\nthree") == "one two three"
    assert shortened("one two three", limit=9) == "one two …"
