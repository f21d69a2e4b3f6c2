"""The button of a block copies what a reader pastes: no prompt, and not what is printed below."""

import pytest

from tests.browser.probes import CLIPBOARD

PRINTED = "pre:has(.gp):has(.go)"


@pytest.mark.parametrize(
    ("name", "block", "prompts"),
    [
        ("index.html", "pre:has(.gp)", "$ "),
        ("performance/replay_buffers.html", PRINTED, (">>> ", "...")),
        ("tutorials/debugging/lstm_forgets_every_step.html", "pre:not(:has(.gp))", ()),
    ],
)
def test_prompts_and_output_stay_behind(at, name, block, prompts):
    page = at(name, permissions=CLIPBOARD)
    page.locator("button.copybtn").first.wait_for(state="attached")
    shown = page.locator(f"article .highlight > {block}").first
    lines = shown.text_content().rstrip("\n").split("\n")
    asked = [line for line in lines if line.startswith(prompts)] if prompts else lines
    shown.locator("xpath=following-sibling::button").dispatch_event("click")
    page.locator("button.copybtn.success").wait_for(state="attached")
    copied = page.evaluate("navigator.clipboard.readText()").split("\n")
    for prompt in ("$ ", ">>> ", "... "):
        asked = [line.removeprefix(prompt) for line in asked]
    assert list(filter(str.strip, copied)) == [line for line in asked if line.strip(". ")]
