"""What readers called amateurish on photographs of the pages, and a browser can measure."""

import pytest

GUIDE = "how-to/from_one_process_to_ray.html"
LSTM = "tutorials/debugging/lstm_forgets_every_step.html"
COLOR = "all => [...new Set(all.map((e) => getComputedStyle(e).color))]"
# Contrast of the colors of some elements to what is behind them, the least of all.
CONTRAST = """all => {
    const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    const rgb = (color) => {
        canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const luminance = (color) => rgb(color).map((value) => value / 255)
        .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    return Math.min(...all.map((e) => {
        const behind = getComputedStyle(e.closest("pre")).backgroundColor;
        const [low, high] = [getComputedStyle(e).color, behind].map(luminance)
            .sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    }));
}"""


@pytest.fixture
def opened(open_page, site_url):
    def opened(path, **options):
        page = open_page(**options)
        page.goto(site_url + path)
        return page

    return opened


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_sides_of_a_difference_have_a_color(opened, scheme):
    page = opened(GUIDE, color_scheme=scheme)
    page.wait_for_selector(f"html[data-theme={scheme}]")
    code = page.locator("article .highlight-diff")
    red, green = ".gd", ".gi"
    colors = [code.locator(part).evaluate_all(COLOR) for part in (red, green)]
    colors.append(code.locator("pre").evaluate_all(COLOR))
    assert [len(found) for found in colors] == [1, 1, 1]
    assert len({found[0] for found in colors}) == 3
    assert code.locator(f"{red}, {green}").evaluate_all(CONTRAST) >= 4.5
    reds = "([[color]]) => color.match(/[\\d.]+/g).map(Number)"
    (r, g, b), (r2, g2, b2) = (page.evaluate(reds, [found]) for found in colors[:2])
    assert r > max(g, b), "what goes is red"
    assert g2 > max(r2, b2), "what comes is green"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "path",
    ["index.html", "performance/index.html", "performance/recipes/sac_halfcheetah.html"],
)
def test_a_command_has_one_color(opened, path, scheme):
    page = opened(path, color_scheme=scheme)
    page.wait_for_selector(f"html[data-theme={scheme}]")
    parts = page.locator("article .highlight-console pre span:not(.c1, .gp, .linenos)")
    assert parts.count()
    pre = page.locator("article .highlight-console pre").evaluate_all(COLOR)
    assert parts.evaluate_all(COLOR) == pre


def test_the_command_of_the_landing_page_is_one_line(opened):
    pre = opened("index.html").locator("section.beside .highlight-console pre")
    lines = "(e) => e.clientHeight / parseFloat(getComputedStyle(e).lineHeight)"
    assert pre.evaluate(lines) < 3  # with its padding


@pytest.mark.parametrize("path", ["tutorials/index.html", LSTM])
def test_the_ways_on_are_between_the_edges_of_the_text(opened, path):
    page = opened(path)
    stamp = page.locator(".page-stamp").bounding_box()
    before, after = (
        page.locator(f".prev-next-area {arrow}").bounding_box()
        for arrow in (".left-prev i", ".right-next i")
    )
    assert abs(before["x"] - stamp["x"]) < 6
    assert abs(after["x"] + after["width"] - stamp["x"] - stamp["width"]) < 6


def test_links_within_code_are_paler_than_the_code(opened):
    link = opened(LSTM).locator("article .highlight a").first
    found = link.evaluate(
        "(e) => [getComputedStyle(e).color, getComputedStyle(e).textDecorationColor]"
    )
    assert found[0] != found[1]


def test_code_in_a_link_has_the_color_of_the_link(opened):
    page = opened("tutorials/memory/memory_efficient_rl.html")
    inside = page.locator("article table a code")
    assert inside.count() > 2
    around = page.locator("article table a:has(code)").evaluate_all(COLOR)
    assert inside.evaluate_all(COLOR) == around


def test_a_card_on_a_phone_keeps_the_button_beside_its_code(opened):
    page = opened(LSTM, width=390)
    code = page.locator(".symptom-card code.to-copy")
    button = page.locator(".symptom-card .copybtn").bounding_box()
    last = code.evaluate("""(e) => {
        const {x, y, width, height} = [...e.getClientRects()].at(-1);
        return {x, y, width, height};
    }""")
    assert last["y"] - 8 < button["y"] < last["y"] + last["height"]
    assert 0 <= button["x"] - last["x"] - last["width"] < 12
    run, mark = (
        page.locator(f".symptom-band {part}").bounding_box()
        for part in (".symptom-run", ".symptom-effect")
    )
    assert abs(run["x"] - mark["x"]) < 2


def test_a_label_of_code_on_a_card_has_code_letters(opened):
    page = opened("reference/collectors_internals.html", width=390)
    family = 'all => all.map((e) => getComputedStyle(e, "::before").fontFamily.split(",")[0])'
    code = page.locator('td[data-column^="device="]')
    assert code.count()
    assert set(code.evaluate_all(family)) == {'"Field Manual Mono"'}
    words = page.locator('td[data-column="all defaults"]')
    assert set(words.evaluate_all(family)) == {'"Field Manual Sans"'}


def test_the_planner_asks_for_what_the_storage_does(opened):
    page = opened("reference/memory_planner.html")
    shares = page.locator(".memory-planner [name^=share]")
    assert shares.count() == 2
    assert not shares.first.is_visible()
    page.locator(".memory-planner [name=storage]").select_option("compressed")
    assert shares.first.is_visible()


def test_the_planner_fits_a_phone(opened):
    page = opened("reference/memory_planner.html", width=390)
    edge = page.locator(".planner-fields").first.bounding_box()
    for table in page.locator(".planner-totals, .planner-parts").all():
        assert abs(table.bounding_box()["width"] - edge["width"]) < 2
    header = page.locator(".planner-parts th").nth(1)
    lines = """(e) => {
        const words = document.createRange();
        words.selectNodeContents(e);
        return words.getClientRects().length;
    }"""
    assert header.inner_text() == "Row of the batch"
    assert header.evaluate(lines) <= 3


def test_names_of_code_in_the_planner_are_code(opened):
    page = opened("reference/memory_planner.html")
    assert page.locator(".planner-parts th code").all_inner_texts()[:2] == [
        "observation",
        "next.observation",
    ]
    for place in ("fieldset label code", ".planner-savings code"):
        assert "compact_obs=True" in page.locator(f".memory-planner {place}").all_inner_texts()
    last = page.locator(".planner-savings li").last
    assert "LazyMemmapStorage with scratch_dir" in last.inner_text()
    assert last.locator("code").all_inner_texts() == ["LazyMemmapStorage", "scratch_dir"]


def test_an_empty_search_leads_on(opened):
    page = opened("search.html")
    ways = page.locator(".search-ways")
    assert ways.locator("a").count() == 4
    assert ways.is_visible()
    page.locator("#search-page").fill("loss is NaN")
    page.locator("#search-page-hits .search-hit").first.wait_for()
    assert not ways.is_visible()


@pytest.mark.parametrize(
    ("path", "place", "names"),
    [
        ("reference/glossary.html", ".term-index dt", ["_AcceptedKeys", "frames_per_batch"]),
        ("reference/glossary/collecting.html", ".own-terms", ["policy_device", "postproc"]),
        ("reference/glossary/collecting.html", "dl.glossary dt", ["policy_device", "postproc"]),
        ("genindex.html", ".indextable", ["ActionMask", "sample()", "frames_per_batch"]),
        ("reference/error_index.html", "h2", ["KeyError", "ValueError"]),
    ],
)
def test_names_are_code_where_code_is_meant(opened, path, place, names):
    found = opened(path).locator(f"article :is({place}) code").all_inner_texts()
    assert set(names) <= set(found)


def test_an_answer_of_the_error_index_is_one_link(opened):
    entries = opened("reference/error_index.html").locator(".error-entry")
    assert entries.count() > 50
    assert entries.get_by_role("link", name="in the map").count() == 0


def test_a_name_in_two_lines_on_a_card_is_close(opened):
    names = opened("performance/index.html").locator(".entry-card-name")
    apart = """(e) => {
        const {lineHeight, fontSize} = getComputedStyle(e);
        return parseFloat(lineHeight) / parseFloat(fontSize);
    }"""
    assert names.first.evaluate(apart) <= 1.35
