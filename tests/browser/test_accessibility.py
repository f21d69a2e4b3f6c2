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


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_violation(open_page, site_url, sample, kind, mode, width):
    page = open_page(width=width, color_scheme=mode)
    query = "?q=tutorial" if kind == "search" else ""
    page.goto(site_url + sample[kind] + query)
    if query:
        page.wait_for_selector("#search-page-hits a")
    assert page.locator("html").get_attribute("data-theme") == mode
    assert violations(page) == []


def test_open_menus_have_no_violation(open_page, site_url, sample):
    page = open_page()
    page.goto(site_url + sample["tutorial"])
    page.keyboard.press("Control+k")
    page.wait_for_selector("#pst-search-dialog[open]")
    assert violations(page) == []
    phone = open_page(width=390)
    phone.goto(site_url + sample["tutorial"])
    phone.locator(".primary-toggle").click()
    phone.wait_for_selector("#pst-primary-sidebar-modal[open]")
    assert violations(phone) == []
