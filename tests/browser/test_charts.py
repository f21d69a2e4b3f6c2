"""Every drawing of the site, in wide and narrow windows, light and dark: a reader can make it out.

What counts as a drawing, and what is measured, is in ``charts``. A figure that is no drawing has to
say what it shows, too.
"""

import pytest

from tests.browser.charts import DRAWINGS, drawings, faults, names_nothing

# The look changes colors alone, the width places alone.
STATES = (("light", 1280), ("light", 390), ("dark", 390))
PICTURES = "article img:not(.sphx-glr-thumbcontainer img)"
DRAWING = """<html data-theme="light"><article style="background: #fff; color: #222">
<svg role="img" aria-label="{label}" width="200" height="100" viewBox="0 0 200 100"
  style="font: 12px sans-serif; fill: currentColor">{body}</svg></article></html>"""
RIGHT = """<path d="M 0 50 L 200 60" style="fill: none; stroke: #1f80c4"/>
<path d="M 0 40 H 200 V 70 H 0 z" style="fill: #1f80c4; opacity: 0.2"/>
<defs><path id="mark" d="M -5 -5 H 5 V 5 H -5 z"/></defs>
<use href="#mark" x="20" y="80" style="fill: #a03010"/>
<text x="17" y="84" style="fill: #fff">A</text>
<text x="20" y="20">one</text><text x="60" y="20">two</text>
<text x="20" y="33">three</text>
<text x="120" y="96" transform="rotate(-60 120 96)">leaning</text>
<text x="140" y="96" transform="rotate(-60 140 96)">leaning</text>"""
WRONG = [
    ("", '<text x="190" y="50">long</text>', "text leaves its drawing: ['long']"),
    ("", '<text x="90" y="4">high</text>', "text leaves its drawing: ['high']"),
    ("", '<text x="65" y="24">over</text>', "texts overlap: [['two', 'over']]"),
    ("", '<text x="81" y="20">next</text>', "texts overlap: [['two', 'next']]"),
    ("", '<text x="90" y="80" style="font-size: 8px">tiny</text>', "1 texts below 10 px: [(8, 't"),
    ("", '<text x="90" y="80" style="fill: #aaa">pale</text>', "contrast of text below 4.5: [['p"),
    ("", '<text x="17" y="84">B</text>', "contrast of text below 4.5: [['B"),
    ("", '<path d="M 0 0 H 9 V 9 z" style="fill: #fc8"/>', "contrast of a series below 3: [["),
    ("sphx_glr_page_001", "", "its alternative text says nothing: 'sphx_glr_page_001'"),
    (" ", "", "its alternative text says nothing: ' '"),
]


@pytest.mark.parametrize(("label", "body", "said"), WRONG)
def test_the_probe_finds(open_page, label, body, said):
    page = open_page(width=390)
    page.set_content(DRAWING.format(label="A line that rises", body=RIGHT))
    assert [faults(drawing, 390) for drawing in drawings(page)] == [[]]
    page.set_content(DRAWING.format(label=label or "A line that rises", body=RIGHT + body))
    assert any(fault.startswith(said) for fault in faults(drawings(page)[0], 390))


@pytest.fixture(scope="module")
def drawn(site, all_pages):
    """The pages with a drawing or a figure."""
    marks = ('<svg role="img" aria-label', "sphx-glr-single-img", "sphx-glr-multi-img")
    texts = {name: (site / name).read_text(encoding="utf-8") for name in all_pages}
    found = [name for name, text in texts.items() if any(mark in text for mark in marks)]
    assert len(found) > 15
    return found


def found_on(page, name):
    """``{drawing or picture: [faults, each with where it shows]}`` of an open page."""
    found = {}
    for mode, width in STATES:
        page.emulate_media(color_scheme=mode)
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_selector(f"html[data-theme={mode}]")
        for number, drawing in enumerate(drawings(page), 1):
            title = f"{name}, drawing {number}, {drawing['label'][:60]!r}"
            for fault in faults(drawing, width):
                found.setdefault(title, {}).setdefault(fault, []).append(f"{width} px {mode}")
    alts = page.locator(PICTURES).evaluate_all("all => all.map((e) => [e.src, e.alt])")
    for source, alt in alts:
        if names_nothing(alt, source):
            title = f"{name}, picture {source.rpartition('/')[2]}"
            found[title] = {f"its alternative text says nothing: {alt!r}": ["everywhere"]}
    return found


CHART = "figure.record-plot > svg"


def test_the_values_of_a_chart_are_had_by_keyboard(open_page, site_url):
    page = open_page()
    page.goto(site_url + "index.html")
    chart, value = page.locator(CHART), page.locator(".chart-value")
    assert chart.get_attribute("role") == "slider"
    assert chart.get_attribute("aria-label")
    texts = chart.locator("title").all_text_contents()
    chart.evaluate("(e) => e.focus({focusVisible: true})")
    for key, number in (("", 0), ("ArrowRight", 1), ("ArrowUp", 2), ("ArrowLeft", 1), ("End", -1)):
        if key:
            page.keyboard.press(key)
        assert value.inner_text() == texts[number]
        assert chart.get_attribute("aria-valuetext") == texts[number]
    assert int(chart.get_attribute("aria-valuenow")) == len(texts)
    page.keyboard.press("ArrowRight")  # no point follows
    assert value.inner_text() == texts[-1]
    page.keyboard.press("Escape")
    assert not value.is_visible()
    page.keyboard.press("Home")
    assert value.inner_text() == texts[0]
    page.keyboard.press("Tab")  # the chart is one stop
    assert not value.is_visible()
    assert not chart.evaluate("(e) => e.contains(document.activeElement)")


@pytest.mark.parametrize(
    "name", ["tutorials/memory/saving_by_observation_size", "tutorials/recurrent/sequence_training"]
)
def test_the_figure_of_a_lesson_has_its_values_by_keyboard_and_as_a_file(open_page, site_url, name):
    page = open_page()
    page.goto(f"{site_url}{name}.html")
    chart, value = page.locator("figure.gallery-figure > svg").first, page.locator(".chart-value")
    texts = chart.locator("title").all_text_contents()
    assert len(texts) > 5
    chart.evaluate("(e) => e.focus({focusVisible: true})")
    page.keyboard.press("ArrowRight")
    assert value.inner_text() == texts[1]
    assert chart.get_attribute("aria-valuetext") == texts[1]
    link = page.locator(".plate .evidence-origin a.download").first
    assert link.inner_text() == "CSV of this chart"
    lines = page.request.get(link.evaluate("(e) => e.href")).text().splitlines()
    assert lines[0].startswith("series,line,")
    assert len(lines) > len(texts) / 2


def test_a_finger_shows_the_nearest_value_of_a_chart(open_page, site_url):
    page = open_page(width=390, has_touch=True, is_mobile=True)
    page.goto(site_url + "index.html")
    chart = page.locator(CHART)
    chart.scroll_into_view_if_needed()
    point = chart.locator("g:has(> title)").nth(2)
    box = point.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] / 2 + 3, box["y"] + box["height"] / 2)
    value = page.locator(".chart-value")
    assert value.inner_text() == point.locator("title").text_content()
    shown = value.bounding_box()
    assert shown["x"] >= 0
    assert shown["x"] + shown["width"] <= 390


@pytest.mark.parametrize("name", ["index.html", "reference/data_layout.html"])
def test_a_drawing_takes_the_margins_of_a_phone(open_page, site_url, name):
    page = open_page(width=390)
    page.goto(site_url + name)
    [drawing] = drawings(page)
    assert min(size for _, size in drawing["sizes"]) > 10
    box = page.locator(DRAWINGS).bounding_box()
    assert box["x"] > 0
    assert box["width"] > 370


@pytest.mark.parametrize("name", ["performance/profiling.html", "performance/collectors.html"])
def test_a_drawing_in_a_fold_is_as_large_as_one_beside_the_text(open_page, site_url, name):
    page = open_page(width=390)
    page.goto(site_url + name)
    page.locator("article details").evaluate_all("all => all.forEach((e) => (e.open = true))")
    folded = page.locator("article details .plate > figure > svg")
    assert folded.count()
    assert min(folded.evaluate_all("all => all.map((e) => e.clientWidth)")) > 370
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    sizes = [size for one in drawings(page) for _, size in one["sizes"]]
    assert min(sizes) > 10.9


def test_every_drawing_can_be_made_out(open_page, site_url, drawn):
    page, said, count = open_page(), [], 0
    for name in drawn:
        page.goto(site_url + name)
        count += page.locator(DRAWINGS).count()
        for title, found in found_on(page, name).items():
            said.append(title)
            said += [f"    {', '.join(where)}: {fault}" for fault, where in found.items()]
    assert not said, "\n".join(["", *said])
    assert count > 25
