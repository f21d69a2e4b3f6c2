"""Tables: numbers stand below each other, names stay in sight, rows are cards on a phone; code."""

import pytest

from docs._ext.support import identifiers

COLLECTORS = "performance/collectors.html"
SHOWN = "article table.record-table"


@pytest.mark.parametrize(
    ("path", "table"),
    [
        (COLLECTORS, "table.record-table"),
        ("performance/environments.html", "table.evidence-table"),
        ("performance/device_placement.html", "table:not(.record-table, .evidence-table)"),
        ("reference/memory_planner.html", "table.planner-parts"),
    ],
)
def test_numbers_are_aligned_on_their_last_digit(at, path, table):
    page = at(path, 1280)
    cells = page.locator(f"article {table} td.is-number")
    assert cells.count() > 5
    assert set(cells.evaluate_all("all => all.map((e) => getComputedStyle(e).textAlign)")) == {
        "end"
    }


def test_a_page_of_one_table_has_the_room_of_on_this_page(at):
    page = at("performance/knobs.html", 1280)
    assert page.locator(".bd-sidebar-secondary").count() == 0
    assert page.locator("table.knobs").bounding_box()["width"] > 850


def test_value_and_range_stay_in_one_line_each(at):
    for width in (390, 1280):
        page = at(COLLECTORS, width)
        heights = page.locator(f"{SHOWN} .one-line").evaluate_all(
            "all => all.map((e) => e.getClientRects().length)"
        )
        assert set(heights) == {1}, width


def test_value_and_range_share_a_line_in_every_row_of_a_wide_page(at):
    tops = at(COLLECTORS, 1280).locator(f"{SHOWN} td.is-number p:has(.one-line):visible")
    tops = tops.evaluate_all(
        "all => all.map((e) => new Set([...e.querySelectorAll('.one-line')]"
        ".map((part) => Math.round(part.getBoundingClientRect().top))).size)"
    )
    assert set(tops) == {1}


def test_the_first_column_stays_where_a_table_scrolls(at):
    page = at("performance/replay_buffers.html", 600)
    page.locator("article details").evaluate_all("all => all.forEach((e) => (e.open = true))")
    moved = page.evaluate("""() => {
        const boxes = document.querySelectorAll(".pst-scrollable-table-container");
        const box = [...boxes].find((e) => e.scrollWidth > e.clientWidth + 50);
        const name = box.querySelector("tbody tr > :first-child");
        const before = name.getBoundingClientRect().x;
        box.scrollLeft = 50;
        return [box.scrollLeft, name.getBoundingClientRect().x - before];
    }""")
    assert moved[0] == 50
    assert abs(moved[1]) < 2, "the name of the row moves"  # a border wide


@pytest.mark.parametrize(
    "path", [COLLECTORS, "performance/knobs.html", "performance/recipes/index.html"]
)
def test_rows_are_cards_on_a_phone(at, path):
    page = at(path, 390)
    indented = page.locator("article td[data-column]:visible").evaluate_all(
        "all => all.map((e) => getComputedStyle(e).paddingInlineStart)"
    )
    assert len(set(indented)) == 1, "a text below a number begins elsewhere"
    wide = page.locator("article table:has([data-column])").evaluate_all(
        "all => all.filter((e) => e.scrollWidth > e.parentElement.clientWidth).length"
    )
    assert wide == 0
    cell = page.locator("article td[data-column]").last
    said = cell.evaluate("(e) => getComputedStyle(e, '::before').content")
    assert said.strip('"') == cell.get_attribute("data-column") != ""


@pytest.mark.parametrize("path", ["performance/recipes/index.html", "performance/knobs.html"])
def test_a_card_has_its_name_on_top_and_its_values_below_each_other(at, path):
    page = at(path, 390)
    rows = page.locator("article table:has([data-column]) tbody tr").evaluate_all("""all => all.map(
        (row) => [...row.cells].map((e) => {
            const shown = document.createRange();
            shown.selectNodeContents(e);
            return Math.round(shown.getBoundingClientRect().x);
        }))""")
    edge = round(page.locator("article h1").bounding_box()["x"])
    for name, *values in rows:
        assert abs(name - edge) <= 4, "the name of a card is not at the edge of the text"
        assert max(values) - min(values) <= 1, "its values begin at several places"
    assert len(rows) > 5


@pytest.mark.parametrize(
    "path",
    [
        "performance/environments.html",
        "reference/recurrent_state_lifecycle.html",
        "tutorials/memory/memory_efficient_rl.html",
    ],
)
def test_no_table_of_a_page_leaves_a_phone(at, path):
    page = at(path, 390)
    tables = page.locator("article table.table:visible")
    assert tables.count()
    beyond = "all => all.map((e) => e.scrollWidth - e.parentElement.clientWidth)"
    assert max(tables.evaluate_all(beyond)) <= 0


@pytest.mark.parametrize(
    "path",
    [
        COLLECTORS,
        "performance/compile.html",
        "performance/environments.html",
        "performance/profiling.html",
        "performance/recipes/ppo_cartpole.html",
        "performance/replay_buffers.html",
        "performance/weight_sync.html",
        "reference/collectors_hooks.html",
        "reference/collectors_replay.html",
        "reference/records.html",
        "reference/recurrent_mode.html",
        "reference/recurrent_state_lifecycle.html",
        "reference/recurrent_wiring.html",
        "reference/torch_versions.html",
        "reference/upstream_errata.html",
    ],
)
def test_no_table_scrolls_on_a_desktop(at, path):
    """In folds neither."""
    page = at(path, 1280)
    page.locator("article details").evaluate_all("all => all.forEach((e) => (e.open = true))")
    beyond = """all => all.filter((e) => e.scrollWidth > e.clientWidth)
        .map((e) => e.querySelector("caption, thead").textContent)"""
    assert page.locator("article .pst-scrollable-table-container").evaluate_all(beyond) == []


def test_knobs_fit_their_column(at):
    page = at("performance/knobs.html", 1280)
    table = page.locator("article table.knobs")
    assert table.evaluate("(e) => e.scrollWidth <= e.parentElement.clientWidth")


def test_the_link_of_a_row_marks_it(at):
    page = at(COLLECTORS, 1280)
    link = page.locator("article tbody a.headerlink").first
    link.evaluate("(e) => e.click()")
    assert page.locator("article tr:target").count() == 1


@pytest.mark.parametrize("name", ["collectors", "environments", "replay_buffers"])
def test_the_leaves_of_a_decision_tree_open_their_rows(at, name):
    """Also in a fold that was closed."""
    page = at(f"performance/{name}.html", 1280)
    leaves = page.locator(".decision-tree a:has(.choice)")
    assert leaves.count() > 2
    for index in range(leaves.count()):
        leaves.nth(index).click()
        assert page.locator("article tr:target").is_visible()
        page.evaluate("history.replaceState(null, '', location.pathname)")


@pytest.mark.parametrize(
    "path",
    [
        "performance/networks.html",
        "performance/recipes/ppo_cartpole.html",
        "reference/doctor_settings.html",
        "tutorials/collectors/rollout_trace.html",
    ],
)
def test_no_code_of_the_manual_scrolls_on_a_desktop(at, path):
    page = at(path, 1280)
    page.locator("article details").evaluate_all("all => all.forEach((e) => (e.open = true))")
    beyond = """all => all.filter((e) => e.scrollWidth > e.clientWidth)
        .map((e) => e.textContent.slice(0, 60))"""
    assert page.locator("article pre").evaluate_all(beyond) == []


SIZED = [
    COLLECTORS,
    "performance/knobs.html",
    "performance/recipes/index.html",
    "reference/records.html",
    "reference/triage.html",
    "reference/upstream_errata.html",
]


@pytest.mark.parametrize("width", [390, 1280])
def test_tables_have_letters_of_one_size(at, width):
    sizes = {}
    for path in SIZED:
        page = at(path, width)
        found = "all => all.map((e) => getComputedStyle(e).fontSize)"
        for size in page.locator("article table.table td").evaluate_all(found):
            sizes.setdefault(size, set()).add(path)
    assert set(sizes) == {"14px"}, sizes


def test_a_number_is_below_its_header(at):
    """Also where the link of the row comes behind it."""
    for path in (COLLECTORS, "performance/environments.html", "performance/replay_buffers.html"):
        page = at(path, 1280)
        beside = page.locator("article table.table:has(tr[id^=choice-])").evaluate_all("""all => {
            const edge = (cell) => {
                const words = document.createRange();
                words.selectNodeContents(cell.querySelector("p") ?? cell);
                const link = cell.querySelector(".headerlink");
                if (link) words.setEndBefore(link);
                return words.getBoundingClientRect().right;
            };
            return all.flatMap((table) => [...table.tBodies[0].rows].flatMap((row) =>
                [...row.cells].filter((cell) => cell.matches(".is-number"))
                    .filter((cell) => Math.abs(edge(cell)
                        - edge(table.tHead.rows[0].cells[cell.cellIndex])) > 1)
                    .map((cell) => cell.textContent)));
        }""")
        assert beside == [], path


# The texts of cells that are not set as code.
PLAIN = """all => all.flatMap((cell) => {
    const walk = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), found = [];
    for (let node; (node = walk.nextNode()); )
        if (!node.parentElement.closest("code")) found.push(node.data.trim());
    return found;
})"""


@pytest.mark.parametrize(
    "path",
    [
        COLLECTORS,
        "performance/replay_buffers.html",
        "reference/collectors_internals.html",
        "tutorials/memory/memory_efficient_rl.html",
    ],
)
def test_names_of_code_in_a_table_are_code(at, path):
    texts = at(path, 1280).locator("article table.table :is(th, td)").evaluate_all(PLAIN)
    assert len(texts) > 10
    found = [part for text in texts for part, code in identifiers.split(text) if code]
    assert [part for part in found if part != "Collector"] == []  # as a header, a kind of things
