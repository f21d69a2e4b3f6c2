"""Side bars, previous and next, and "On this page"."""

import pytest

from docs._ext.symptoms.store import SUBSYSTEMS

SYMPTOMS = "tutorials/debugging/"
FIRST, LAST = "lstm_forgets_every_step", "log_prob_not_found"


def in_view(page, entry):
    """Whether the whole entry shows between the header and the lower end of the window."""
    box, header = entry.bounding_box(), page.locator("#pst-header").bounding_box()
    return header["height"] <= box["y"] and box["y"] + box["height"] <= page.viewport_size["height"]


def test_the_side_bar_of_a_symptom_has_a_fold_for_each_subsystem(open_page, site_url):
    page = open_page()
    page.goto(f"{site_url}{SYMPTOMS}{LAST}.html")
    folds = page.locator(".symptom-nav details")
    names = [name.rpartition(" ")[0] for name in folds.locator("summary").all_inner_texts()]
    assert sorted(names) == sorted(name.capitalize() for name in SUBSYSTEMS)
    opened = page.locator(".symptom-nav details[open]")
    assert opened.locator("summary").inner_text().startswith("Value estimation and losses")
    entry = opened.locator("a[aria-current=page]")
    assert entry.inner_text() == page.locator("article h1").inner_text().rstrip("#")
    assert in_view(page, entry)


def test_the_entry_is_in_view_behind_another_page(open_page, site_url):
    page = open_page()
    for slug in (FIRST, LAST, FIRST):
        page.goto(f"{site_url}{SYMPTOMS}{slug}.html")
        page.wait_for_load_state("load")
        assert in_view(page, page.locator(".symptom-nav a[aria-current=page]")), slug


def test_the_side_bar_is_named_as_its_section(open_page, site_url, sample):
    page = open_page()
    page.goto(site_url + sample["internals"])
    title = page.locator(".bd-links__title")
    assert title.inner_text() == "Reference"
    title.get_by_role("link").click()
    page.wait_for_url("**/reference/index.html")
    assert page.locator(".bd-links__title").inner_text() == "Reference"


def test_previous_and_next_say_where_they_stay(open_page, site_url):
    page = open_page()
    page.goto(f"{site_url}{SYMPTOMS}{FIRST}.html")
    assert page.locator(".left-prev").inner_text().split("\n") == ["All symptoms", "Debugging map"]
    label, title = page.locator(".right-next").inner_text().split("\n")
    assert label == "Next in recurrent state"
    page.locator(".right-next").click()
    page.wait_for_url(lambda url: FIRST not in url)
    assert page.locator("article h1").inner_text().rstrip("#") == title
    assert page.locator(".left-prev").get_attribute("href") == f"{FIRST}.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_without_scripts_the_header_covers_what_scrolls_below_it(
    open_page, site_url, sample, scheme
):
    page = open_page(java_script_enabled=False, color_scheme=scheme)
    page.goto(site_url + sample["internals"])
    header = page.locator("#pst-header")
    assert header.evaluate("(e) => getComputedStyle(e).backgroundColor") == "rgb(255, 255, 255)"
