"""Every page, once, on a phone: no sideways scroll, no foreign request, nothing in the console."""

import pytest

from tests.browser.probes import Traffic, overlaps, sideways
from tests.support.page_length import misfits, yardstick

STICK_OUT = """(selector) => {
    const edge = (e) => e.closest(".bd-sidebar-secondary").getBoundingClientRect().right;
    const right = (e) => {
        const range = document.createRange();
        range.selectNodeContents(e);
        return range.getBoundingClientRect().right;
    };
    return [...document.querySelectorAll(selector)]
        .filter((e) => e.checkVisibility() && right(e) > edge(e) + 1)
        .map((e) => e.textContent.trim());
}"""


@pytest.fixture(scope="module")
def visits(browser, site_url, all_pages):
    """Page -> its traffic, what sticks out on a small phone, and its height on a desktop.

    The height is that of the article, None where the page has no yardstick.
    """
    seen = {}
    context = browser.new_context()
    page = context.new_page()
    for name in all_pages:
        page.set_viewport_size({"width": 360, "height": 740})
        with Traffic(page, site_url) as traffic:
            page.goto(site_url + name)
            wide, height = sideways(page), None
            if most_screens(name):
                page.set_viewport_size({"width": 1280, "height": 800})
                height = page.locator("article").bounding_box()["height"]
            seen[name] = traffic, wide, height
        if height:
            page.goto("about:blank")  # which is resized at once
    context.close()
    return seen


def most_screens(name):
    return yardstick(name.removesuffix(".html"))[1]


def test_no_page_scrolls_sideways(visits):
    assert {name: wide for name, (_, wide, _) in visits.items() if wide} == {}


def test_no_request_to_another_host(visits):
    assert {name: seen.outside for name, (seen, *_) in visits.items() if seen.outside} == {}


def test_no_request_fails(visits):
    assert {name: seen.failed for name, (seen, *_) in visits.items() if seen.failed} == {}


def test_console_is_silent(visits):
    assert {name: seen.complaints for name, (seen, *_) in visits.items() if seen.complaints} == {}


def test_sample_at_tablet_and_common_phone_width(open_page, site_url, sample):
    page = open_page()
    for path in sample.values():
        page.goto(site_url + path)
        for width in (1000, 768, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert sideways(page) == [], (path, width)


COVERED_LINKS = """() => [...document.querySelectorAll(".entry-card a")].filter((a) => {
    a.scrollIntoView({ block: "center" });
    const { left, top, height } = a.getClientRects()[0];
    return document.elementFromPoint(left + 2, top + height / 2).closest("a") !== a;
}).map((a) => a.textContent)"""


def test_a_link_in_an_entry_card_leads_to_its_own_page(at):
    page = at("index.html")
    assert page.locator(".entry-card p:not(.entry-card-name) a").count() > 5
    assert page.evaluate(COVERED_LINKS) == []


CUT_CAPTIONS = """() => [...document.querySelectorAll(".bd-article table caption .caption-text")]
    .map((e) => [e.textContent, e.getBoundingClientRect(), e.closest("table").parentElement])
    .filter(([, text, box]) => text.left < box.getBoundingClientRect().left - 1
        || text.right > box.getBoundingClientRect().right + 1)
    .map(([name]) => name)"""


def test_the_caption_of_a_wide_table_is_in_sight(open_page, site_url):
    page = open_page(width=500)  # on a phone the rows are cards, and nothing is wide
    page.goto(site_url + "reference/collectors_replay.html")
    assert page.locator(".bd-article table caption .caption-text").count() > 5
    assert page.evaluate(CUT_CAPTIONS) == []
    page.add_style_tag(content=".bd-article table.table caption { text-align: center; }")
    assert page.evaluate(CUT_CAPTIONS) != []


@pytest.mark.parametrize("width", [390, 1280])
def test_a_class_name_in_the_list_of_errata_keeps_to_one_line(at, width):
    page = at("reference/upstream_errata.html", width=width)
    page.locator("details", has=page.locator("table.upstream-claims")).locator("summary").click()
    name = page.locator("table.upstream-claims a", has_text="NextStateReconstructor").first
    assert name.evaluate("(e) => e.getClientRects().length") == 1


def test_header_items_stand_apart(at, sample):
    page = at(sample["tutorial"])
    selector = "#pst-header :is(.navbar-brand, .nav-internal, button)"
    for width in (360, 390, 768, 960, 1000, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.locator(selector).count() > 4
        assert overlaps(page, selector) == [], width


def test_a_plain_folder_works_search_included(open_page, site):
    page = open_page()
    traffic = Traffic(page, site.as_uri())
    page.goto((site / "index.html").as_uri())
    page.locator('.entry-card-name a[href="tutorials/index.html"]').click()
    page.wait_for_url("**/tutorials/index.html")
    page.keyboard.press("Control+k")
    page.keyboard.insert_text("carrier")  # at once: each letter has hits of its own
    page.locator("#search-header-hits a").first.click()
    page.wait_for_url("**/reference/glossary/collecting.html*")
    page.wait_for_selector("article h1")
    assert traffic.outside == traffic.failed == traffic.complaints == []


@pytest.mark.parametrize("width", [390, 1280])
def test_side_bars_do_not_cut_their_entries(open_page, site_url, width):
    page = open_page(width=width)
    symbol = "torchrl.objectives.value.ValueEstimatorBase"
    # there, for the entries of members unfold only where the reader is
    page.goto(f"{site_url}reference/api/{symbol}.html#{symbol}._sanitize_next_obs_nan")
    if width == 390:
        page.locator(".secondary-toggle").click()
    page.wait_for_selector(".page-toc a >> text=_sanitize_next_obs_nan")
    assert page.evaluate(STICK_OUT, ".page-toc a") == []


def test_a_side_bar_entry_that_sticks_out_is_found(open_page):
    page = open_page()
    page.set_content(
        '<div class="bd-sidebar-secondary page-toc" style="width:50px"><a>LongName</a></div>'
    )
    assert page.evaluate(STICK_OUT, ".page-toc a") == ["LongName"]


@pytest.mark.parametrize(
    "name",
    ["shuttle", "SyncDataCollector", "MultiaSyncDataCollector", "compact_obs", "hidden state"],
)
def test_a_search_for_a_word_lands_on_its_entry(at, name):
    page = at(f"search.html?q={name.replace(' ', '+')}")
    page.locator("#search-page-hits a").first.click()
    page.wait_for_url("**/reference/glossary/*.html**")
    entry = page.locator(f"dt#term-{name.replace(' ', '-')}")
    box = entry.bounding_box()
    header = page.locator("#pst-header").bounding_box()
    assert header["height"] <= box["y"] + box["height"] / 2 < 900


def test_readable_without_scripts(at, sample):
    page = at(sample["tutorial"], java_script_enabled=False)
    assert page.locator("article h1").is_visible()
    assert page.locator("header a", has_text="Reference").first.is_visible()
    assert not page.locator("header .theme-switch-button").is_visible()


def test_unknown_address_gets_the_404_page_with_its_assets(open_page, site_url):
    page = open_page()
    # The answer itself is 404; everything that page asks for must be there.
    address = site_url + "some/deep/place/nothing.html"
    traffic = Traffic(page, site_url)
    assert page.goto(address).status == 404
    assert traffic.failed == [f"404 {address}"]
    page.get_by_role("link", name="landing page").click()
    page.wait_for_selector(".entry-cards")
    assert page.url == site_url + "index.html"


def test_the_404_page_of_a_folder_has_its_assets(open_page, site):
    page = open_page()
    page.goto((site / "404.html").as_uri())
    page.wait_for_function("getComputedStyle(document.body).fontFamily.includes('Field Manual')")
    root = f"{site.as_uri()}/"
    links = page.locator("a[href]").evaluate_all("all => all.map((e) => e.href)")
    assert {link for link in links if not link.startswith(("http", root))} == set()
    page.locator("article .manual-search input").fill("SliceSampler")
    first = page.locator("article .search-hit").first
    assert first.get_attribute("href").startswith(root)


def test_no_page_has_more_screens_than_its_yardstick_without_a_reason(visits):
    heights = {name: height for name, (*_, height) in visits.items() if height}
    screens = {
        name.removesuffix(".html"): round(height / 800, 1) for name, height in heights.items()
    }
    assert len(screens) > 20
    for name in sorted(screens, key=screens.get, reverse=True):
        print(f"{screens[name]:6}  {name}")
    limits = {name: most_screens(name) for name in screens}
    assert misfits(screens, limits, "screens") == ({}, set())
