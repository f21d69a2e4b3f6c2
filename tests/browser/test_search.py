"""The search fields: hits as one types, by keys, from a plain folder, and where they lead."""

import gzip
import re

import pytest

from docs._ext.site.search_index import KINDS, stems
from tests.browser.probes import CLIPBOARD, Traffic, settle, violations

BUDGET = 150_000  # bytes over the wire for everything that the search needs
FIRST_PAGES = {"index.html": "here", "search.html": "page"}
TRACEBACK = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 12, in <module>
    buffer.extend(data)
  File "/home/me/lib/buffers.py", line 812, in extend
    raise RuntimeError("no")
TypeError: 'NoneType' object is not subscriptable
"""

UNCOVERED = """(e) => {
    const { x, y, height } = e.getBoundingClientRect();
    return e.contains(document.elementFromPoint(x + 9, y + height / 2));
}"""


def ask(page, words, name="header"):
    """Type into a field; its hits."""
    page.locator(f"#search-{name}").fill(words)
    hits = page.locator(f"#search-{name}-hits [role=option]")
    hits.first.wait_for()
    return hits


def opened(page):
    page.keyboard.press("/")
    page.locator("#pst-search-dialog[open] #search-header:focus").wait_for()


def test_all_that_the_search_needs_is_light(site):
    names = ("search-box.js", "search.js")
    sizes = {n: len(gzip.compress((site / "_static" / n).read_bytes())) for n in names}
    print(sizes)
    assert sum(sizes.values()) < BUDGET


def test_the_index_is_fetched_when_a_field_is_focused(open_page, site_url):
    page = open_page()
    traffic = Traffic(page, site_url)
    page.goto(site_url, wait_until="networkidle")
    asked = [response.url for response in traffic.responses]
    assert not any("/search.js" in url for url in asked)
    with page.expect_response(re.compile(r"/_static/search\.js\?v=\w{8}$")):
        page.locator("#search-here").focus()


def test_the_index_is_read_in_short_steps(at):
    """With a clock on which each step takes long, the page gets its turn after each entry."""
    page = at()
    turns, entries = page.evaluate("""async () => {
        let now = 0, turns = 0;
        performance.now = () => (now += 50);
        const own = scheduler.yield.bind(scheduler);
        scheduler.yield = () => (turns++, own());
        const engine = await loadSearch();
        return [turns, engine.entries().length];
    }""")
    assert turns > entries > 900


def test_who_asks_before_the_index_is_read_gets_an_answer(at, site_url):
    page = at()
    page.add_script_tag(url=f"{site_url}_static/search.js")
    early, late = page.evaluate("""async () => {
        const first = () => ManualSearch.search("cat_results")[0].address;
        const early = first();
        await ManualSearch.ready();
        return [early, first()];
    }""")
    assert early == late == "reference/glossary/collecting.html#term-cat_results"


@pytest.mark.parametrize("key", ["/", "Control+k"])
def test_hits_by_keys(at, sample, key):
    page = at(sample["tutorial"])
    page.keyboard.press(key)
    page.get_by_role("dialog", name="Search").wait_for()
    page.keyboard.type("MultiaSyncDataCollecto")
    field = page.get_by_role("combobox", name="Search the manual")
    first = page.get_by_role("option").first
    first.wait_for()
    assert field.get_attribute("aria-expanded") == "true"
    assert field.get_attribute("aria-activedescendant") == first.get_attribute("id")
    assert first.get_attribute("aria-selected") == "true"
    page.keyboard.type("r")
    page.keyboard.press("ArrowDown")
    second = page.get_by_role("option").nth(1)
    assert field.get_attribute("aria-activedescendant") == second.get_attribute("id")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.wait_for_url("**/reference/glossary/old_names.html#term-MultiaSyncDataCollector")


def test_enter_opens_a_clear_hit_and_else_shows_all(at, site_url):
    page = at()
    chosen = page.locator("[aria-selected=true]")
    ask(page, "gpu", "here")
    assert chosen.count() == 0
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=gpu")
    first = page.locator("#search-page-hits [role=option]").first
    first.wait_for()
    assert chosen.count() == 0
    page.keyboard.press("Enter")  # all are here: the first one is selected, and opened by the next
    assert first.get_attribute("aria-selected") == "true"
    page.goto(site_url)
    address = ask(page, "gpu", "here").first.evaluate("(hit) => hit.pathname")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{address}*")
    page.goto(site_url)
    ask(page, "Too many open files", "here")
    page.keyboard.press("Enter")
    page.wait_for_url("**/too_many_open_files.html")


def test_a_slash_in_a_field_is_a_slash(at):
    page = at()
    page.locator("#search-here").focus()
    page.keyboard.type("a/b")
    assert page.locator("#search-here").input_value() == "a/b"
    assert not page.locator("#pst-search-dialog").is_visible()


def test_a_hit_says_what_it_is_and_marks_the_words(at):
    page = at()
    hit = ask(page, "hidden states zero", "here").filter(has_text="under").first
    assert hit.locator(".search-kind").inner_text() == "symptom"
    assert "hidden" in hit.locator(".search-title mark").all_inner_texts()
    row = ask(page, "CompositeSpec", "here").filter(has_text="ImportError").first
    assert "→ Composite" in row.locator(".search-snippet").inner_text()
    assert row.locator(".search-kind").inner_text() == "old name"
    page.keyboard.press("Escape")
    assert not page.locator("#search-here-hits").is_visible()


def test_a_hit_opens_with_a_marked_word_in_view(at):
    page = at()
    ask(page, "busy waiting", "here").filter(has_text="Busy waiting").first.click()
    page.wait_for_url("**/performance/environments.html#busy-waiting")
    page.locator("#busy-waiting .search-mark").first.wait_for()
    page.wait_for_timeout(200)
    height = page.viewport_size["height"]
    boxes = [mark.bounding_box() for mark in page.locator("#busy-waiting .search-mark").all()]
    assert any(60 < box["y"] < height for box in boxes if box)


def test_whole_words_of_the_text_are_marked_and_the_address_is_clean(at):
    page = at()
    hit = ask(page, "one kept step ram", "here").first
    address = hit.evaluate("(e) => e.href.split('?')[0]")
    hit.click()
    page.locator(".search-mark").first.wait_for()
    words = {word.lower() for word in page.locator(".search-mark").all_inner_texts()}
    assert "ram" in words
    assert not {word for word in words if "frame" in word}
    assert page.locator("pre .search-mark, nav .search-mark").count() == 0
    assert page.url.split("#")[0] == address


def marks(page, address):
    """The words that a page marks, in lower case."""
    page.goto(address)
    page.locator(".search-mark").first.wait_for()
    return {word.lower() for word in page.locator(".search-mark").all_text_contents()}


def test_a_name_is_marked_where_all_of_it_was_asked_for(open_page, site_url):
    page = open_page()
    layout = site_url + "reference/data_layout.html?mark="
    words = marks(page, layout + "step")
    assert {"step", "steps"} <= words
    assert [word for word in words if stems(word) != ["step"] or "_" in word.strip("_")] == []
    assert marks(page, layout + "step+mdp") == {*words, "step_mdp"}
    assert marks(page, layout + "step_mdp") == {"step_mdp"}
    # A long name may break, between its marked parts.
    assert {"break_", "when_", "any_", "done"} <= marks(page, layout + "break_when_any_done")
    assert "done" in marks(page, layout + "done")
    assert page.locator("wbr + .search-mark").count() == 0


def test_a_key_of_a_pasted_message_is_no_name(at):
    page = at()
    message = "KeyError: 'key \"is_init\" not found in TensorDict with keys ['action', 'pixels']'"
    first = ask(page, message, "here").first
    assert first.evaluate("(e) => e.href").partition("?")[0].endswith("/is_init_not_found.html")


def test_hits_are_grouped_under_the_names_of_their_kinds(at):
    page = at("search.html?q=replay+buffer")
    hits = page.locator("#search-page-hits")
    hits.get_by_role("option").first.wait_for()
    groups = hits.get_by_role("group")
    names = hits.locator(".search-group").all_inner_texts()
    assert names[0] == "Best matches"
    assert {"Symptoms", "How-to guides", "API"} <= set(names)
    assert len(names) == len(set(names)) == groups.count()
    for name in names:
        kinds = hits.get_by_role("group", name=name, exact=True).locator(".search-kind")
        shown = set(kinds.all_inner_texts())
        assert name == "Best matches" or len(shown) == 1
        assert shown <= {*KINDS.values(), "glossary term"}


def test_every_kind_has_a_name_for_its_group(site):
    script = (site / "_static" / "search-box.js").read_text(encoding="utf-8")
    names = re.search(r"GROUPS = \{(.*?)\}", script, re.DOTALL)[1]
    kinds = {one.strip('"') for one in re.findall(r'("[^"]+"|\w+): "', names)}
    assert kinds == {*KINDS.values(), "glossary term"}


def test_what_is_found_moves_nothing_below_the_field(at):
    page = at()
    cards = page.locator(".entry-cards")
    before = cards.bounding_box()
    ask(page, "replay buffer", "here")
    assert cards.bounding_box() == before


def test_nothing_found_leads_on(at):
    page = at()
    hits = ask(page, "xyzzyxyzzy", "here")
    titles = page.locator("#search-here-hits .search-title").all_inner_texts()
    assert titles == ["Error index", "Triage", "Doctor"]
    status = page.locator(".search-status").last
    assert "Nothing found" in status.inner_text()
    assert status.evaluate(UNCOVERED)
    for hit in hits.all():
        assert page.request.get(hit.evaluate("(e) => e.href")).ok
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/reference/triage.html")


def test_a_word_that_no_page_has_is_named(at):
    """Hits of the other words do not pass for an answer: the places that lead on follow them."""
    page = at()
    ask(page, "xyzzyxyzzy replay buffer", "here")
    titles = page.locator("#search-here-hits .search-title").all_inner_texts()
    assert len(titles) > 4
    assert titles[-3:] == ["Error index", "Triage", "Doctor"]
    status = page.locator(".search-status").last
    assert status.inner_text().startswith("No page has “xyzzyxyzzy”. ")
    ask(page, "replay bufer", "here")  # codespell:ignore bufer
    assert "No page" not in status.inner_text()


def test_of_a_message_that_no_page_knows_the_leads_come_first(at):
    page = at()
    ask(page, "PermissionError: [Errno 13] Permission denied", "here")
    titles = page.locator("#search-here-hits .search-title").all_inner_texts()
    assert titles[:3] == ["Error index", "Triage", "Doctor"]
    assert len(titles) > 3
    assert page.locator("[aria-selected=true]").count() == 0
    status = page.locator(".search-status").last.inner_text()
    assert status.startswith("No page knows this message. ")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/reference/error_index.html")


def test_of_a_pasted_traceback_the_message_counts(at):
    page = at(permissions=CLIPBOARD)
    page.evaluate("(text) => navigator.clipboard.writeText(text)", TRACEBACK)
    page.locator("#search-here").focus()
    page.keyboard.press("Control+v")
    page.locator("#search-here-hits [role=option]").first.wait_for()
    assert page.locator("#search-here").input_value() == TRACEBACK.splitlines()[-1]
    assert "None" in page.locator("#search-here-hits .search-title").first.inner_text()


# What a new user types on the landing page -> the page that answers, as a pattern.
SYMPTOMS = {
    "my lstm policy forgets everything": "lstm_forgets_every_step",
    "reward goes up but evaluation is bad": "good_in_training_poor_in_evaluation",
    "all workers play the same episode": "every_environment_starts_alike",
    "q values explode": "q_values_explode",
    "sampling gives way more rows than batch size": "sample_returns_far_more_rows",
    "script does not exit after training": "script_never_ends",
    "epsilon never decreases": "epsilon_never_goes_down",
    "weights of the workers never change": "workers_never_learn",
    "too many open files": "too_many_open_files",
    "slices mix two episodes": "sequences_(mix_workers|run_over_episode_ends)",
}


def test_ten_symptoms_are_a_few_views_from_the_landing_page(open_page, site_url):
    """Enter leads to the answer, or to all hits, among whose first ones it is."""
    page = open_page()
    paths = {}
    for words, slug in SYMPTOMS.items():
        page.goto(site_url)
        ask(page, words, "here")
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile(r"/(search|tutorials/debugging/\w+)\.html"))
        views = [site_url, page.url]
        if "/search.html" in page.url:
            hits = page.locator("#search-page-hits [role=option]")
            hits.first.wait_for()
            first = hits.evaluate_all("hits => hits.slice(0, 3).map((hit) => hit.href)")
            page.goto(next((at for at in first if re.search(f"/{slug}.html", at)), first[0]))
            views.append(page.url)
        paths[words] = [view.removeprefix(site_url).partition("?")[0] for view in views]
    for words, views in paths.items():
        print(f"{words}: {' > '.join(['landing page', *views[1:]])}")
    astray = {
        words: views
        for words, views in paths.items()
        if not re.search(f"/{SYMPTOMS[words]}.html", views[-1])
    }
    assert astray == {}


def test_the_search_page_shows_all_of_its_query(at):
    page = at("search.html?q=replay+buffer")
    hits = page.locator("#search-page-hits [role=option]")
    hits.first.wait_for()
    assert page.locator("#search-page").input_value() == "replay buffer"
    assert hits.count() > 20


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_open_hits_have_no_violation(at, site_url, sample, mode, width):
    page = at(width=width, color_scheme=mode)
    ask(page, "replay buffer", "here")
    # What the hits cover of the page is not judged: they leave a part of a link in sight.
    assert violations(page, within="form:has(#search-here)") == []
    page.goto(site_url + sample["reference"])
    opened(page)
    ask(page, "replay buffer")
    settle(page)
    assert violations(page) == []
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("start", FIRST_PAGES)
def test_from_a_plain_folder(open_page, site, start):
    page = open_page()
    traffic = Traffic(page, site.as_uri())
    page.goto((site / start).as_uri())
    ask(page, "cat_results", FIRST_PAGES[start]).first.click()
    page.wait_for_url("**/reference/glossary/collecting.html#term-cat_results")
    page.locator("dt .search-mark").first.wait_for()
    assert traffic.outside == traffic.failed == traffic.complaints == []


def test_a_page_that_is_not_there_has_a_search(at):
    page = at("reference/deep/not/there.html")
    ask(page, "cat_results", "here").first.click()
    page.wait_for_url("**/reference/glossary/collecting.html#term-cat_results")


def test_without_scripts_the_search_says_what_it_needs(at, site_url):
    page = at("search.html?q=buffer", java_script_enabled=False)
    assert "needs JavaScript" in page.locator("article noscript").inner_text()
    assert not page.locator("#search-page").is_visible()
    page.goto(site_url)
    assert not page.locator("#search-here").is_visible()
    assert not re.search("search", page.locator("article").inner_text(), re.IGNORECASE)
