"""Side bars, previous and next, and "On this page"."""

import re
from importlib.metadata import version
from urllib.parse import unquote

import pytest

from docs._ext.symptoms.store import SUBSYSTEMS

SYMPTOMS = "tutorials/debugging/"
FIRST, LAST = "lstm_forgets_every_step", "log_prob_not_found"
LONGEST = 15_000  # pixels of a page of the glossary, 390 wide


def in_view(page, entry):
    """Whether the whole entry shows between the header and the lower end of the window."""
    box, header = entry.bounding_box(), page.locator("#pst-header").bounding_box()
    return header["height"] <= box["y"] and box["y"] + box["height"] <= page.viewport_size["height"]


def test_the_side_bar_of_a_symptom_has_a_fold_for_each_subsystem(at):
    page = at(f"{SYMPTOMS}{LAST}.html")
    folds = page.locator(".symptom-nav details")
    labels = folds.locator("summary").all_inner_texts()
    names = [label.rpartition("\N{NO-BREAK SPACE}")[0] for label in labels]
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


def test_the_side_bar_is_named_as_its_section(at, sample):
    page = at(sample["internals"])
    title = page.locator(".bd-links__title")
    assert title.inner_text() == "Reference"
    title.get_by_role("link").click()
    page.wait_for_url("**/reference/index.html")
    assert page.locator(".bd-links__title").inner_text() == "Reference"


@pytest.mark.parametrize(
    "name",
    [
        "reference/debugging_map",
        "reference/triage",
        "reference/error_index",
        "reference/doctor",
        "reference/doctor_in_a_loop",
        f"{SYMPTOMS}index",
        SYMPTOMS + FIRST,
    ],
)
def test_header_way_and_side_bar_agree_on_debugging(at, name):
    page = at(f"{name}.html")
    assert page.locator("#pst-header .nav-item.current").all_inner_texts() == ["Debugging"]
    assert page.locator(".bd-links__title").inner_text() == "Debugging"
    way = page.locator(".bd-breadcrumbs .breadcrumb-item").all_inner_texts()[1:]
    assert way[0] == ("Debugging map" if name.endswith("_map") else "Debugging")


def test_previous_and_next_say_where_they_stay(at):
    page = at(f"{SYMPTOMS}{FIRST}.html")
    assert page.locator(".left-prev p").all_inner_texts() == ["All symptoms", "Debugging map"]
    label, title = page.locator(".right-next p").all_inner_texts()
    assert label == "Next in recurrent state"
    page.locator(".right-next").click()
    page.wait_for_url(lambda url: FIRST not in url)
    assert page.locator("article h1").inner_text().rstrip("#") == title
    assert page.locator(".left-prev").get_attribute("href") == f"{FIRST}.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_without_scripts_the_header_covers_what_scrolls_below_it(at, sample, scheme):
    page = at(sample["internals"], java_script_enabled=False, color_scheme=scheme)
    header = page.locator("#pst-header")
    assert header.evaluate("(e) => getComputedStyle(e).backgroundColor") == "rgb(255, 255, 255)"


@pytest.mark.parametrize("width", [390, 1280])
def test_the_header_names_the_release(at, sample, width):
    page = at(sample["tutorial"], width=width)
    name = page.locator("#pst-header").get_by_text(f"TorchRL {version('torchrl')}")
    assert name.is_visible()
    assert in_header(page, name)


def in_header(page, item):
    """Whether the item is wholly inside the header."""
    box, header = item.bounding_box(), page.locator("#pst-header").bounding_box()
    return box["y"] >= 0 and box["y"] + box["height"] <= header["height"]


# -- On this page --------------------------------------------------------------


def marked(page):
    """The entries that are marked as the current one, as fragments."""
    entries = page.locator("#on-this-page a[aria-current]")
    return entries.evaluate_all(
        "links => links.map(link => decodeURIComponent(link.hash.slice(1)))"
    )


def scroll_to(page, section, above):
    """Let the section begin that many pixels below the upper end of the window."""
    page.evaluate(
        "([id, above]) => scrollBy({top: document.getElementById(id).getBoundingClientRect().top"
        " - above, behavior: 'instant'})",
        [section, above],
    )
    page.wait_for_function("new Promise(done => requestAnimationFrame(() => done(true)))")


@pytest.mark.parametrize("width", [390, 1000, 1280])
def test_the_way_back_to_the_top_lies_over_no_text(at, sample, width):
    page = at(sample["internals"], width=width)
    page.wait_for_load_state("load")
    button = page.locator("#pst-back-to-top")
    for way in (2000, -200):  # it shows on the way up
        page.evaluate("(way) => scrollBy({top: way, behavior: 'instant'})", way)
        page.wait_for_function("new Promise(done => setTimeout(() => done(true), 200))")
    article = page.locator(".bd-article").bounding_box()
    if width < 1200:
        assert not button.is_visible()
    else:
        assert button.bounding_box()["x"] >= article["x"] + article["width"]


@pytest.fixture
def long_page(at, sample):
    page = at(sample["internals"])
    page.wait_for_load_state("load")
    return page


def sections(page):
    links = page.locator("#on-this-page > ul > li > a")
    return links.evaluate_all("links => links.map(link => link.hash.slice(1))")


def test_the_section_that_is_read_is_marked(long_page):
    assert marked(long_page) == []
    names = sections(long_page)
    assert len(names) >= 4
    for name in [*names[:-1], *names[-2::-1]]:
        scroll_to(long_page, name, above=200)
        assert marked(long_page) == [name]
    scroll_to(long_page, names[2], above=600)  # upwards, out of the section
    assert marked(long_page) != [names[2]]
    entry = long_page.locator("#on-this-page a[aria-current]")
    assert in_view(long_page, entry)


def test_a_jump_marks_the_section_that_holds_its_target(long_page):
    ids = long_page.evaluate("""() => {
        const links = [...document.querySelectorAll("#on-this-page a")];
        const listed = new Set(links.map((link) => link.hash.slice(1)));
        const inner = [...document.querySelectorAll("article section [id]")];
        const found = inner.filter((e) => !listed.has(e.id) && e.checkVisibility());
        const own = (e) => e.closest([...listed].map((id) => `#${CSS.escape(id)}`).join());
        return found.filter(own).map((e) => [e.id, own(e).id]);
    }""")
    assert len(ids) > 3
    for anchor, section in [ids[0], ids[-1], ids[len(ids) // 2]]:
        long_page.evaluate("(id) => { location.hash = id; }", anchor)
        long_page.wait_for_function("new Promise(done => setTimeout(() => done(true), 200))")
        assert marked(long_page) == [section], anchor


def test_of_many_entries_the_inner_ones_of_the_current_section_show(at):
    page = at("reference/upstream_errata.html")
    page.wait_for_load_state("load")
    names = sections(page)
    shown = page.locator("#on-this-page a:visible")
    assert shown.count() == len(names)
    own = page.locator(f"#on-this-page a[href='#{names[1]}'] + ul a")
    scroll_to(page, names[1], above=200)
    assert shown.count() == len(names) + own.count() > len(names)
    assert own.first.is_visible()


def test_a_click_marks_its_own_entry_also_at_the_end_of_the_page(long_page):
    last_two = long_page.locator("#on-this-page a:visible")
    for number in (-1, -2):
        link = last_two.nth(last_two.count() + number)
        name = link.get_attribute("href").removeprefix("#")
        link.click()
        long_page.wait_for_function("new Promise(done => setTimeout(() => done(true), 200))")
        assert marked(long_page) == [name]
    long_page.mouse.wheel(0, -100_000)
    long_page.wait_for_function("scrollY === 0")
    long_page.wait_for_function("!document.querySelector('#on-this-page a[aria-current]')")


# -- Glossary ------------------------------------------------------------------


def test_the_index_has_every_term_once(at, site, sample):
    """Under the id that its entry has: an address from before the pages were split shows it."""
    page = at(sample["glossary"])
    links = page.locator(".term-index dt a")
    listed = links.evaluate_all("as => as.map(a => [a.parentNode.id, a.getAttribute('href')])")
    entries = {
        (term, f"glossary/{path.name}#{term}")
        for path in (site / "reference" / "glossary").glob("*.html")
        for term in re.findall('<dt id="(term-[^"]+)"', path.read_text(encoding="utf-8"))
    }
    assert len(entries) > 110
    assert sorted((term, unquote(href)) for term, href in listed) == sorted(entries)


@pytest.mark.parametrize("width", [390, 1280])
def test_a_term_is_in_sight_below_the_strip_of_letters(at, site_url, sample, width):
    page = at(sample["glossary"], width=width, height=844)
    strip = page.locator(".term-strip")
    assert in_view(page, strip)
    strip.get_by_role("link", name="T", exact=True).click()
    assert below_strip(page, page.locator("#terms-t"))
    page.goto(site_url + sample["glossary"] + "#term-truncated")
    row = page.locator("dt:target")
    assert below_strip(page, row)
    assert page.evaluate("scrollY") > 2000, "far down, and the letters are still there"
    strip.locator("a").first.click()
    page.wait_for_function("scrollY < 200")
    page.locator("#term-truncated a").click()
    page.wait_for_url("**/reference/glossary/batches.html#term-truncated")
    assert in_view(page, page.locator("dt:target"))


def test_no_page_of_the_glossary_is_long_on_a_phone(open_page, site, site_url):
    page = open_page(width=390, height=844)
    heights = {}
    for path in [site / "reference" / "glossary.html", *site.glob("reference/glossary/*.html")]:
        page.goto(site_url + path.relative_to(site).as_posix())
        heights[path.name] = page.evaluate("document.documentElement.scrollHeight")
    assert len(heights) > 6
    assert {name: height for name, height in heights.items() if height > LONGEST} == {}


def below_strip(page, item):
    """Whether the item shows, and the strip above it, below the header."""
    page.wait_for_function("new Promise(done => setTimeout(() => done(true), 200))")
    header, strip = page.locator("#pst-header").bounding_box(), page.locator(".term-strip")
    top, bottom = strip.bounding_box()["y"], item.bounding_box()["y"]
    end = top + strip.bounding_box()["height"]
    return header["height"] - 1 <= top and end <= bottom < end + 150
