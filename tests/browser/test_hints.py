"""The hint beside a reference to a glossary term: pointer, keyboard, phone, print, no script."""

import pytest

from tests.browser.probes import settle, sideways, violations

CONTRAST = """(e) => {
    const { color, backgroundColor } = getComputedStyle(e);
    const light = (text) => {
        const [r, g, b] = text.match(/[\\d.]+/g).map((x) => x / 255)
            .map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
    };
    const [one, two] = [light(color), light(backgroundColor)];
    return Math.max(one, two) / Math.min(one, two);
}"""
LINK = "main a[aria-describedby='hint-term-{}']"


@pytest.fixture
def glossary(open_page, site_url, sample):
    """A function that opens a page of terms; the page, a link to a term, and its hint."""

    def opened(term="carrier", number=0, clock=False, **options):
        page = open_page(fresh=clock, **options)
        if clock:
            page.clock.install(time=0)
        page.goto(site_url + sample["terms"])
        page.wait_for_load_state("networkidle")
        link = page.locator(LINK.format(term)).nth(number)
        link.scroll_into_view_if_needed()
        if clock:  # time passes when the test says so
            page.clock.pause_at(3600)
        return page, link, page.locator(f"#hint-term-{term}")

    return opened


def visible(page):
    """Texts of the hints that show."""
    return page.locator(".term-hint:visible").all_inner_texts()


def focus(page, link):
    """Focus as the Tab key gives it."""
    link.evaluate("(e) => e.focus({focusVisible: true})")
    page.wait_for_function("document.activeElement.matches(':focus-visible')")


def test_hover_shows_the_first_sentence_and_leaving_hides_it(glossary):
    page, link, hint = glossary()
    assert visible(page) == []
    link.hover()
    hint.wait_for()
    assert visible(page) == [
        "The TensorDict with the current observation that a collector passes through the policy "
        "and the environment."
    ]
    assert hint.get_attribute("role") == "tooltip"
    page.mouse.move(1, 1)
    hint.wait_for(state="hidden")


def test_the_pointer_has_time_to_reach_the_hint_and_may_rest_on_it(glossary):
    page, link, hint = glossary(clock=True)
    link.hover()
    page.clock.run_for(1000)
    assert hint.is_visible()
    page.mouse.move(1, 1)
    page.clock.run_for(100)
    box = hint.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.clock.run_for(5000)
    assert hint.is_visible()
    page.mouse.move(1, 1)
    page.clock.run_for(1000)
    assert hint.is_hidden()


def test_a_pointer_that_passes_opens_nothing(glossary):
    page, link, hint = glossary(clock=True)
    link.hover()
    page.clock.run_for(50)
    assert hint.is_hidden()
    page.mouse.move(1, 1)
    page.clock.run_for(1000)
    assert hint.is_hidden()


def test_a_pointer_that_leaves_does_not_close_what_the_keyboard_opened(glossary):
    page, link, hint = glossary(clock=True)
    focus(page, link)
    link.hover()
    page.mouse.move(1, 1)
    page.clock.run_for(1000)
    assert hint.is_visible()


def test_the_keyboard_shows_it_and_the_next_stop_hides_it(glossary):
    page, link, hint = glossary(clock=True)
    focus(page, link)
    page.clock.run_for(60_000)
    assert hint.is_visible()  # until the reader moves on
    page.keyboard.press("Tab")
    hint.wait_for(state="hidden")


@pytest.mark.parametrize("way", ["hover", "focus"])
def test_escape_hides_it_where_it_is(glossary, way):
    page, link, hint = glossary(clock=True)
    if way == "hover":
        link.hover()
    else:
        focus(page, link)
    page.clock.run_for(1000)
    assert hint.is_visible()
    page.keyboard.press("Escape")
    assert hint.is_hidden()
    page.clock.run_for(1000)
    assert visible(page) == []
    if way == "focus":
        assert link.evaluate("(e) => e === document.activeElement")


def test_one_hint_at_a_time(glossary):
    page, link, hint = glossary()
    focus(page, link)
    hint.wait_for()
    other = page.locator(LINK.format("worker")).first
    other.scroll_into_view_if_needed()
    other.hover()
    page.locator("#hint-term-worker").wait_for()
    assert len(visible(page)) == 1


@pytest.mark.parametrize("width", [1280, 390, 360])
def test_every_hint_stays_in_the_window(open_page, site_url, width):
    page = open_page(width=width)
    page.goto(site_url + "reference/glossary/recurrent.html")  # no page has more
    page.wait_for_load_state("networkidle")
    links = page.locator("main a[aria-describedby^='hint-term-']")
    count = links.count()
    assert count > 30
    for number in range(0, count, 3):
        link = links.nth(number)
        block = ("center", "end")[number % 2]  # with room below the link, and without
        link.evaluate("(e, block) => e.scrollIntoView({block, behavior: 'instant'})", block)
        focus(page, link)
        box = page.locator(".term-hint:visible").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= 900
        assert sideways(page) == []
        target = link.bounding_box()
        apart = box["y"] >= target["y"] + target["height"] - 1
        assert apart or box["y"] + box["height"] <= target["y"] + 1, "the hint covers its link"


def test_the_hint_follows_its_link_when_the_page_scrolls(glossary):
    page, link, hint = glossary()
    focus(page, link)
    hint.wait_for()
    distance = hint.bounding_box()["y"] - link.bounding_box()["y"]
    page.evaluate("window.scrollBy({top: 60, behavior: 'instant'})")
    page.wait_for_function(
        """([link, hint, distance]) => {
            const y = (e) => e.getBoundingClientRect().y;
            return Math.abs(y(hint) - y(link) - distance) < 1;
        }""",
        arg=[link.element_handle(), hint.element_handle(), distance],
    )


def test_a_tap_follows_the_link(glossary):
    page, link, _ = glossary("worker", width=390, has_touch=True, is_mobile=True)
    link.tap()
    page.wait_for_url("**/collecting.html#term-worker")
    assert visible(page) == []


def test_an_entry_leads_back_to_where_the_reader_came_from(at, site_url, sample):
    page = at(sample["tutorial"], width=390, has_touch=True, is_mobile=True)
    link = page.locator("main a[aria-describedby^='hint-term-']").last
    link.scroll_into_view_if_needed()
    link.tap()
    page.wait_for_url("**/reference/glossary/*.html#term-*")
    back = page.locator("dt:target ~ dd a.term-back")
    back.tap()
    page.wait_for_url(f"**/{sample['tutorial']}")
    link.wait_for()
    assert link.evaluate("(e) => e.getBoundingClientRect().top > 0 && scrollY > 844")
    page.goto(f"{site_url}{sample['terms']}#term-carrier")
    assert back.count() == 0, "nobody led here"


def test_a_tap_that_goes_nowhere_shows_nothing(glossary):
    page, link, hint = glossary("worker", width=390, has_touch=True, is_mobile=True, clock=True)
    link.evaluate("(e) => e.addEventListener('click', (event) => event.preventDefault())")
    link.tap()
    page.clock.run_for(1000)
    assert link.evaluate("(e) => e === document.activeElement")
    assert hint.is_hidden()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_a_shown_hint_has_no_violation(glossary, mode, width):
    page, link, hint = glossary(width=width, color_scheme=mode)
    focus(page, link)
    hint.wait_for()
    assert page.locator("html").get_attribute("data-theme") == mode
    assert violations(page, within="#hint-term-carrier") == []
    # axe leaves out what lies over other text
    assert hint.evaluate(CONTRAST) >= 4.5


def test_tutorials_have_them_too(at, sample):
    page = at(sample["tutorial"])
    link = page.locator("main a[aria-describedby^='hint-term-']").first
    link.scroll_into_view_if_needed()
    link.hover()
    page.locator(".term-hint:visible").wait_for()


def test_a_plain_folder_has_them_too(open_page, site, sample):
    page = open_page()
    page.goto((site / sample["terms"]).as_uri())
    focus(page, page.locator(LINK.format("carrier")).first)
    page.locator("#hint-term-carrier").wait_for()


def test_paper_has_none(glossary):
    page, link, hint = glossary()
    focus(page, link)
    hint.wait_for()
    page.emulate_media(media="print")
    assert hint.is_hidden()


def test_without_script_a_reference_is_a_link_with_a_description(at, sample):
    page = at(sample["terms"], java_script_enabled=False)
    link = page.locator(LINK.format("worker")).first
    assert link.get_attribute("title") is None
    link.hover()
    assert visible(page) == []
    link.click()
    page.wait_for_url("**/collecting.html#term-worker")


def test_the_script_stays_away_from_pages_without_terms(site, all_pages):
    for name in all_pages:
        text = (site / name).read_text(encoding="utf-8")
        assert ("term-hints.js" in text) == ('role="tooltip"' in text), name
    assert "term-hints.js" not in (site / "genindex.html").read_text(encoding="utf-8")


def test_nothing_moves_when_a_hint_opens(glossary):
    page, link, hint = glossary()
    settle(page)
    page.evaluate("""() => {
        window.moved = 0;
        new PerformanceObserver((list) => list.getEntries().forEach((e) => { moved += e.value; }))
            .observe({type: "layout-shift"});
    }""")
    height = page.evaluate("document.documentElement.scrollHeight")
    focus(page, link)
    hint.wait_for()
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollHeight") == height
    assert page.evaluate("moved") == 0


def test_a_further_name_of_an_entry_says_also(at):
    page = at("reference/glossary/collecting.html")
    names = page.locator("dl.glossary dt:has(+ dt), dl.glossary dt + dt")
    before = "(e) => getComputedStyle(e, '::before').content"
    weight = "(e) => getComputedStyle(e).fontWeight"
    shown = names.evaluate_all(f"all => all.map((e) => [({before})(e), ({weight})(e)])")
    assert len(shown) > 4
    assert shown[0] == ["none", "700"]
    assert shown[1] == ['"also "', "400"]
