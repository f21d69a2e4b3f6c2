"""Every drawing of the site, in wide and narrow windows, light and dark: a reader can make it out.

What counts as a drawing, and what is measured, is in ``charts``. A figure that is no drawing has to
say what it shows, too.
"""

import matplotlib as mpl
import pytest
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from docs._ext.support import charts as look
from tests.browser.charts import DRAWINGS, FLAT, drawings, faults, names_nothing

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
<text x="140" y="96" transform="rotate(-60 140 96)">leaning</text>
<path d="M 150 12 H 198" style="fill: none; stroke: currentColor; stroke-opacity: 0.2"/>
<path d="M 150 26 H 198" style="fill: none; stroke: currentColor"/>
<circle cx="160" cy="26" r="9" style="fill: #fff; stroke: currentColor"/>
<clipPath id="clip"><rect x="0" y="0" width="120" height="20"/></clipPath>
<path clip-path="url(#clip)" d="M 100 40 H 198" style="fill: none; stroke: currentColor"/>
<text x="156" y="30">B</text><text x="174" y="16">grid</text><text x="165" y="44">cut</text>"""
STROKE = 'style="fill: none; stroke: #1f80c4"'
WRONG = [
    ("", '<text x="190" y="50">long</text>', "text leaves its drawing: ['long']"),
    ("", '<text x="90" y="4">high</text>', "text leaves its drawing: ['high']"),
    ("", '<text x="65" y="24">over</text>', "texts overlap: [['two', 'over']]"),
    ("", '<text x="81" y="20">next</text>', "texts overlap: [['two', 'next']]"),
    ("", '<text x="175" y="30">axis</text>', "a line or a mark crosses text: ['axis']"),
    ("", f'<path d="M 15 20 L 28 10" {STROKE}/>', "a line or a mark crosses text: ['one']"),
    ("", f'<path d="M 60 16 h 0.1 h 30" {STROKE}/>', "a line or a mark crosses text: ['two']"),
    ("", f'<path d="M 67 10 V 40" {STROKE}/>', "a line or a mark crosses text: ['two']"),
    (
        "",
        f'<g transform="scale(2)"><path d="M 5 15 H 40" {STROKE}/></g>',
        "a line or a mark crosses",
    ),
    ("", '<use href="#mark" x="62" y="14" style="fill: #a03010"/>', "a line or a mark crosses"),
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


def as_charts_once_were():
    """Twelve lines over three sizes, as a chart of replay buffers first showed them."""
    sizes = [2**16, 2**20 - 2**17, 2**20]
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(look.settings())
        figure = Figure(figsize=(look.WIDTH / 72, 3.8), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        for line in range(12):
            axes.plot(sizes, [line, line + 1, line + 3], color="C0", label=f"sampler {line}")
        axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
        axes.set(xlabel="rows", ylabel="median time of a call that draws 256 rows [ms]")
        figure.legend(loc="outside upper left", frameon=False)
        svg = look.render(figure)
    return look.part_of_page(svg, "old", "Twelve lines that rise")


def test_the_faults_of_the_first_charts_are_named(open_page):
    page = open_page(width=390)
    page.set_content(f'<html data-theme="light"><article>{as_charts_once_were()}</article>')
    [drawing] = drawings(page)
    said = faults(drawing, 390)
    assert said[:2] == [
        "text leaves its drawing: ['median time of a call that draws 256 rows [ms]']",
        "texts overlap: [['917504', '1.04858e+06']]",
    ]
    assert "a legend of 12 names: name a line where it is" in said
    [height] = drawing["flat"]
    assert height < 42
    assert f"axes lower than {FLAT} px: [{height}]" in said


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


def test_the_values_of_a_chart_are_had_by_keyboard(at):
    page = at("index.html")
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
    ("name", "starts"),
    [
        ("tutorials/memory/saving_by_observation_size", "series,line,"),
        ("tutorials/recurrent/sequence_training", "series,line,"),
        ("reference/recurrent_slices", "state,"),
        ("reference/recurrent_state_lifecycle", "feature,"),
    ],
)
def test_a_chart_has_its_values_by_keyboard_and_as_a_file(at, name, starts):
    page = at(f"{name}.html")
    plate = page.locator(".plate:has(svg[role=slider])").first
    chart, value = plate.locator("svg[role=slider]"), page.locator(".chart-value")
    texts = chart.locator("title").all_text_contents()
    assert len(texts) > 5
    chart.evaluate("(e) => e.focus({focusVisible: true})")
    page.keyboard.press("ArrowRight")
    assert value.inner_text() == texts[1]
    assert chart.get_attribute("aria-valuetext") == texts[1]
    link = plate.locator(".evidence-origin a", has_text="CSV of this chart")
    lines = page.request.get(link.evaluate("(e) => e.href")).text().splitlines()
    assert lines[0].startswith(starts)
    assert len(lines) > len(texts) / 2


def test_a_finger_shows_the_nearest_value_of_a_chart(at):
    page = at("index.html", width=390, has_touch=True, is_mobile=True)
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
def test_a_drawing_takes_the_margins_of_a_phone(at, name):
    page = at(name, width=390)
    [drawing] = drawings(page)
    assert min(size for _, size in drawing["sizes"]) > 10
    box = page.locator(DRAWINGS).bounding_box()
    assert box["x"] > 0
    assert box["width"] > 370


PLATE = """(plate) => {
    const figure = plate.querySelector("figure").getBoundingClientRect();
    const stamp = plate.querySelector(".record-stamp, .evidence-origin").getBoundingClientRect();
    const fold = plate.querySelector("details")?.getBoundingClientRect();
    return [stamp.top - figure.bottom, stamp.left - figure.left,
        (fold ?? plate.nextElementSibling.getBoundingClientRect()).top - stamp.bottom];
}"""


@pytest.mark.parametrize(("width", "medium"), [(1280, "screen"), (412, "screen"), (680, "print")])
@pytest.mark.parametrize(
    "name", ["performance/recipes/sac_halfcheetah.html", "reference/collectors_internals.html"]
)
def test_a_stamp_is_below_its_figure_and_clear_of_what_follows(at, name, width, medium):
    """Beside a figure, its few lines leave a column blank."""
    page = at(name, width=width)
    page.emulate_media(media=medium)
    plates = page.locator("article .plate")
    assert plates.count()
    for index in range(plates.count()):
        above, aside, below = plates.nth(index).evaluate(PLATE)
        assert 4 <= above <= 16
        assert aside == 0
        assert below >= 6


@pytest.mark.parametrize(
    "name", ["performance/recipes/sac_halfcheetah.html", "reference/collectors_internals.html"]
)
def test_no_strip_beside_a_drawing_is_blank(open_page, site_url, name):
    """A frame as wide as the text has it in its middle."""
    page = open_page()
    page.goto(site_url + name)
    plates = page.locator("article .plate:not(details .plate)")
    assert plates.count()
    width = page.locator("article h1").bounding_box()["width"]
    for plate in plates.all():
        frame, drawing = (
            place.bounding_box() for place in (plate, plate.locator("figure > svg").first)
        )
        assert frame["width"] == width
        before = drawing["x"] - frame["x"]
        assert abs(before - (width - before - drawing["width"])) < 2
        assert plate.evaluate("(e) => getComputedStyle(e).borderTopStyle") == "solid"


@pytest.mark.parametrize("name", ["performance/profiling.html", "performance/collectors.html"])
def test_a_drawing_in_a_fold_is_as_large_as_one_beside_the_text(at, name):
    page = at(name, width=390)
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
