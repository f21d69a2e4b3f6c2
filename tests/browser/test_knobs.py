"""The field above the table of knobs: it filters as the debugging map does."""

import pytest

from tests.browser.probes import violations

PAGE = "performance/knobs.html"
FIELD = "Which knob, or what for?"
# What a reader types, and what the first rows have to name.
WORDS = {
    "prefetch": {"prefetch"},
    "frames": {"frames_per_batch", "init_random_frames", "max_frames_per_traj"},
    "copy to gpu": {"non_blocking", "no_cuda_sync"},
    "compile": {"compile_policy", "compile_with_warmup"},
}


@pytest.fixture
def knobs(at):
    page = at(PAGE)
    return page


def shown(page):
    return page.locator("table.knobs tbody tr:visible td:first-child").all_inner_texts()


def ask(page, words):
    page.get_by_label(FIELD).fill(words)
    page.evaluate("loadSearch()")


def said(page):
    return page.locator(".row-filter output").inner_text()


def test_words_keep_the_rows_that_they_are_about(knobs):
    names = shown(knobs)
    assert said(knobs) == f"{len(names)} of {len(names)} knobs"
    for words, wanted in WORDS.items():
        ask(knobs, words)
        found = shown(knobs)
        assert wanted <= set(found), words
        assert len(found) < len(names) / 3
        assert said(knobs).startswith(f"{len(found)} of {len(names)} knobs, the nearest first.")
    ask(knobs, "zzzz")
    assert not knobs.locator("table.knobs").is_visible()
    assert said(knobs).startswith(f"0 of {len(names)} knobs.")
    ask(knobs, "")
    assert shown(knobs) == names, "in the order of the alphabet again"


def test_the_keyboard_is_enough_and_the_address_holds_the_words(knobs):
    knobs.get_by_label(FIELD).focus()
    knobs.keyboard.type("prefetch")
    knobs.evaluate("loadSearch()")
    assert knobs.url.endswith(f"{PAGE}?q=prefetch")
    found = shown(knobs)
    knobs.keyboard.press("Tab")  # the search of the whole manual
    knobs.keyboard.press("Tab")
    assert knobs.evaluate("document.activeElement.textContent") == found[0] == "prefetch"
    knobs.keyboard.press("Enter")
    knobs.wait_for_url("**/replay_buffers.html#knob-prefetch")
    knobs.go_back()
    knobs.evaluate("loadSearch()")
    assert (knobs.get_by_label(FIELD).input_value(), shown(knobs)) == ("prefetch", found)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_what_is_found_is_accessible(at, scheme, width):
    page = at(f"{PAGE}?q=device", color_scheme=scheme, width=width)
    page.evaluate("loadSearch()")
    assert "device" in shown(page)
    assert violations(page) == []


def test_without_scripts_the_table_is_whole(at, knobs):
    page = at(f"{PAGE}?q=prefetch", java_script_enabled=False)
    assert not page.locator("form.row-filter").is_visible()
    assert shown(page) == shown(knobs)


def test_paper_has_no_field(knobs):
    knobs.emulate_media(media="print")
    assert not knobs.get_by_label(FIELD).is_visible()
    assert knobs.locator("table.knobs tbody tr").first.is_visible()
