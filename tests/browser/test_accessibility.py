"""No finding of axe on one page of each kind, light and dark, desktop and phone."""

import pytest

from tests.browser.probes import violations

KINDS = [
    "home",
    "gallery",
    "tutorial",
    "reference",
    "internals",
    "glossary",
    "terms",
    "api",
    "not found",
    "search",
]


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_violation(open_page, site_url, sample, kind, mode):
    page = open_page(color_scheme=mode)
    query = "?q=tutorial" if kind == "search" else ""
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(site_url + sample[kind] + query)
        if query:
            page.wait_for_selector("#search-page-hits a")
        assert page.locator("html").get_attribute("data-theme") == mode
        assert violations(page) == [], width


def test_open_menus_have_no_violation(open_page, site_url, sample):
    """On a short page: axe looks at all of it, and the long ones were seen above."""
    page = open_page()
    page.goto(site_url + sample["reference"])
    page.keyboard.press("Control+k")
    page.wait_for_selector("#pst-search-dialog[open]")
    assert violations(page) == []
    phone = open_page(width=390)
    phone.goto(site_url + sample["reference"])
    phone.locator(".primary-toggle").click()
    phone.wait_for_selector("#pst-primary-sidebar-modal[open]")
    assert violations(phone) == []
