"""Where an old address leads, with scripts and without, from a plain folder."""

import pytest

from tests.browser.probes import Traffic, violations
from tests.support import ROOT
from tests.support.small_site import SmallSite

PAGES = {
    "addresses.txt": "gone.html\ngone.html#a-part\nkept.html#went-away\n",
    "index.rst": "Home\n====\n\n.. toctree::\n\n   kept\n   deep/new\n",
    "kept.rst": "Kept\n====\n\n" + "Text.\n\n" * 200,
    "deep/new.rst": (
        "New\n===\n\n.. redirect-from:: gone.html\n\nUnchanged\n---------\n\n"
        "A part\n------\n\n.. redirect-from:: gone.html#a-part kept.html#went-away\n\nText.\n"
    ),
}


@pytest.fixture(scope="module")
def moved(wanted, tmp_path_factory):
    """Address of a small site from which things moved."""
    settings = {
        "extensions": "docs._ext.site.redirects,docs._ext.site.search_index",
        "templates_path": ROOT / "docs" / "_templates",
        "html_static_path": ROOT / "docs" / "_static",
        "html_css_files": "field-manual.css",
        "html_theme": "pydata_sphinx_theme",
        "html_context.default_mode": "auto",
    }
    site = SmallSite(tmp_path_factory.mktemp("moved"), PAGES, **settings).built()
    return f"{site.html.as_uri()}/"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("gone.html", "deep/new.html"),
        ("gone.html#a-part", "deep/new.html#a-part"),
        ("gone.html#unchanged", "deep/new.html#unchanged"),
        ("gone.html?q=word", "deep/new.html?q=word"),
        ("kept.html#went-away", "deep/new.html#a-part"),
    ],
)
def test_an_old_address_leads_on(open_page, moved, old, new):
    page = open_page()
    traffic = Traffic(page, moved)
    page.goto(moved + old, wait_until="commit")
    page.wait_for_url(moved + new)
    assert page.locator("h1").inner_text().startswith("New")
    # What the page was loading when it was left counts as failed.
    assert traffic.outside == traffic.complaints == []


def test_a_link_on_the_page_to_its_lost_anchor_leads_on(open_page, moved):
    page = open_page()
    page.goto(moved + "kept.html")
    page.evaluate("location.hash = 'went-away'")
    page.wait_for_url(moved + "deep/new.html#a-part")


def test_a_vanished_page_leads_on_without_scripts(open_page, moved):
    page = open_page(java_script_enabled=False)
    page.goto(moved + "gone.html#a-part", wait_until="commit")
    page.wait_for_url(moved + "deep/new.html**")


def test_a_lost_anchor_shows_its_line_without_scripts(open_page, moved):
    page = open_page(java_script_enabled=False)
    page.goto(moved + "kept.html")
    line = page.locator(".moved > p")
    assert not line.is_visible()
    page.goto(moved + "kept.html#went-away")
    assert line.is_visible()
    assert line.bounding_box()["y"] < 900
    line.locator("a").click()
    page.wait_for_url(moved + "deep/new.html#a-part")


def test_the_redirects_of_the_site_lead_to_what_is_there(open_page, site, redirects):
    assert redirects
    page = open_page()
    for name in redirects:
        page.goto((site / name).as_uri(), wait_until="commit")
        page.wait_for_url(lambda url, name=name: not url.endswith(name))
        assert page.locator("h1").first.is_visible()


def test_a_redirect_has_no_violation(open_page, site, redirects):
    """Seen by those whose browser does not go on at once."""
    page = open_page()
    page.route("**/*", lambda route: route.abort())
    html = (site / redirects[0]).read_text(encoding="utf-8")
    page.set_content(html.replace("location.replace(to)", ""))
    assert violations(page) == []
