"""No finding of axe on one page of each kind, light and dark, desktop and phone."""

import pytest

from tests.browser.probes import COLOR_RULES, violations

KINDS = [
    "home",
    "gallery",
    "tutorial",
    "how-to",
    "reference",
    "internals",
    "glossary",
    "terms",
    "api",
    "not found",
    "search",
]


@pytest.mark.parametrize("kind", KINDS)
def test_no_violation(open_page, site_url, sample, kind):
    page = open_page()
    query = "?q=tutorial" if kind == "search" else ""
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme="light")
        page.goto(site_url + sample[kind] + query)
        if query:
            page.wait_for_selector("#search-page-hits a")
        page.wait_for_selector("html[data-theme=light]")
        assert violations(page) == [], ("light", width)
        page.emulate_media(color_scheme="dark")
        page.wait_for_selector("html[data-theme=dark]")
        assert violations(page, rules=COLOR_RULES) == [], ("dark", width)


def test_open_menus_have_no_violation(at, sample):
    """On a short page: axe looks at all of it, and the long ones were seen above."""
    page = at(sample["reference"])
    page.keyboard.press("Control+k")
    page.wait_for_selector("#pst-search-dialog[open]")
    assert violations(page) == []
    phone = at(sample["reference"], width=390)
    phone.locator(".primary-toggle").click()
    phone.wait_for_selector("#pst-primary-sidebar-modal[open]")
    assert violations(phone) == []
