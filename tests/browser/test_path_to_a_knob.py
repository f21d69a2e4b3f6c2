"""From the landing page to the right knob and a number, as a reader with a slow collector goes."""

import re

import pytest


def number_in(text):
    return re.search(r"\d", text)


def test_a_slow_collector_in_three_clicks(at):
    page = at()
    page.locator('.entry-card-name a[href="performance/index.html"]').click()
    link = page.locator('a[href="collectors.html"]')
    card = page.locator(".entry-card", has=link).first
    assert number_in(card.locator(".measured").first.inner_text()), "the index shows a figure"
    card.locator(link).first.click()
    page.wait_for_url("**/performance/collectors.html")
    section = page.locator("section:has(> #performance-collectors-choose)")
    assert number_in(section.locator("table.record-table tbody tr").first.inner_text())
    entry = f'a[href="#{section.get_attribute("id")}"]'
    page.locator(f"nav.page-toc {entry}, .bd-toc-item {entry}").first.click()
    knob = page.locator("dl.knob", has=page.locator("#knob-num-collectors"))
    assert knob.is_visible()
    knob.locator("summary").click()
    assert number_in(knob.locator("dd:has(.measured)").last.inner_text())


@pytest.mark.parametrize("name", ["no_cuda_sync", "frames_per_batch"])
def test_a_knob_is_reached_by_its_name(at, name):
    page = at("performance/knobs.html")
    page.locator("table.knobs").get_by_role("link", name=name, exact=True).click()
    page.wait_for_url(f"**/performance/*.html#knob-{name.replace('_', '-')}")
    assert page.locator(f"#knob-{name.replace('_', '-')}").is_visible()
