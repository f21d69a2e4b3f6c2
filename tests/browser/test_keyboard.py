"""The site without a mouse."""

import pytest

from tests.browser.probes import CLIPBOARD, settle, unreachable_scrollers, walk


@pytest.mark.parametrize("kind", ["home", "gallery", "reference"])
def test_every_stop_shows_its_focus(at, sample, kind):
    page = at(sample[kind])
    stops, invisible = walk(page)
    assert len(stops) > 8
    assert invisible == []


def test_skip_link_comes_first_and_leads_to_the_text(at, sample):
    page = at(sample["tutorial"])
    page.keyboard.press("Tab")
    link = page.locator(":focus")
    assert link.inner_text() == "Skip to main content"
    settle(page)
    assert link.bounding_box()["y"] >= 0
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")


def test_theme_switch_by_keys_and_for_the_next_page(at, site_url, sample):
    page = at()
    page.locator("header .theme-switch-button").focus()
    page.keyboard.press("Enter")
    dark = page.locator("header .theme-change-button[data-mode=dark]")
    for _ in range(4):
        page.keyboard.press("ArrowDown")
        if dark.evaluate("(e) => e === document.activeElement"):
            break
    page.keyboard.press("Enter")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.goto(site_url + sample["tutorial"])
    assert page.locator("html").get_attribute("data-theme") == "dark"


def test_phone_menu_by_keys(at, sample):
    page = at(sample["tutorial"], width=390)
    page.locator(".primary-toggle").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#pst-primary-sidebar-modal[open]")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('dialog') !== null")
    page.keyboard.press("Escape")
    page.wait_for_selector("#pst-primary-sidebar-modal:not([open])", state="attached")
    assert page.locator(".primary-toggle").evaluate("(e) => e === document.activeElement")


def test_code_that_scrolls_takes_keys(at, sample):
    page = at(sample["tutorial"], width=390)
    block = page.locator("main pre[tabindex='0']:visible").first
    block.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("(e) => e.scrollLeft > 0", arg=block.element_handle())


@pytest.mark.parametrize("kind", ["tutorial", "reference", "glossary", "api"])
def test_every_scrolling_box_is_reachable(at, sample, kind):
    page = at(sample[kind], width=360)
    assert unreachable_scrollers(page) == []


def test_copy_button_copies_the_code(at, sample):
    page = at(sample["tutorial"], permissions=CLIPBOARD)
    block = page.locator("main .highlight-Python:visible").first
    block.locator("button.copybtn").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("button.copybtn.success", state="attached")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.strip() == block.locator("pre").inner_text().strip()
