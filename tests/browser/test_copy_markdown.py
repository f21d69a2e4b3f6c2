"""The button that copies the Markdown twin: from a server, from a plain folder, and refused."""

import pytest

from tests.browser.probes import CLIPBOARD, settle, sideways, violations

PAGE = "tutorials/debugging/lstm_forgets_every_step.html"
BUTTON = ".copy-markdown"


@pytest.fixture(params=["http", "file"])
def address(request, site, site_url):
    """The site, served and as a plain folder."""
    return site_url if request.param == "http" else f"{site.as_uri()}/"


def test_button_copies_the_twin(open_page, address, site):
    page = open_page(permissions=CLIPBOARD)
    page.goto(address + PAGE)
    requested = []
    page.on("request", lambda request: ".md" in request.url and requested.append(request.url))
    button = page.get_by_role("button", name="Copy page as Markdown")
    button.focus()
    assert requested == []  # a page weighs no more until somebody asks
    page.keyboard.press("Enter")
    page.get_by_role("status").filter(has_text="Copied").wait_for(state="attached")
    assert page.locator(BUTTON).inner_text() == "Copied"
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == (site / f"{PAGE}.md").read_text(encoding="utf-8")
    assert requested == [f"{address}{PAGE}.md.js"]
    button.wait_for()  # by its first name again


def test_button_leads_to_the_twin_where_the_clipboard_is_refused(open_page, address):
    page = open_page()
    page.add_init_script("delete Navigator.prototype.clipboard")
    page.goto(address + PAGE)
    page.locator(BUTTON).click()
    page.wait_for_url(f"{address}{PAGE}.md")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_button_shares_the_line_of_the_breadcrumbs(at, scheme):
    page = at(PAGE, color_scheme=scheme, wait_until="networkidle")
    for width in (1280, 768, 360):
        page.set_viewport_size({"width": width, "height": 900})
        settle(page)
        crumbs = page.locator(".bd-breadcrumbs").bounding_box()
        first = page.locator(".breadcrumb-home").bounding_box()
        button = page.locator(BUTTON).bounding_box()
        assert crumbs["x"] + crumbs["width"] <= button["x"], width
        assert button["x"] + button["width"] <= width
        middle = first["y"] + first["height"] / 2
        assert abs(middle - button["y"] - button["height"] / 2) < 4, width
        assert button["height"] >= 24, width
        assert sideways(page) == [], width
        assert violations(page, ".bd-header-article") == [], width


def test_button_is_not_printed_and_needs_a_script(at):
    page = at(PAGE, java_script_enabled=False)
    assert not page.locator(BUTTON).is_visible()
    page = at(PAGE)
    assert page.locator(BUTTON).is_visible()
    page.emulate_media(media="print")
    assert not page.locator(BUTTON).is_visible()
