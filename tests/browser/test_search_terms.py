"""A search for a glossary term, or for an old name, leads to its entry: first of all hits."""

import re

import pytest

ROW = re.compile(r'<p id="old-([^"]+)"')
KNOB = re.compile(r'<dt id="(knob-[^"]+)"><code[^>]*>(?:<span[^>]*>)?([^<]+)<')
BEFORE_A_KNOB = re.compile("#(term|knob|old)-|^reference/api/")
TERM = re.compile(r'<dt id="(term-[^"]+)">(.*?)<a class="headerlink"')

# What a reader may type or paste -> the entry that comes first.
QUERIES = {
    '("collector","traj_ids")': "term-traj_ids",
    "('collector', 'traj_ids')": "term-traj_ids",
    '("next", "terminated")': "term-terminated",
    "Collector._shuttle_has_no_device": "term-_shuttle_has_no_device",
    "torchrl.collectors.SyncDataCollector": "term-SyncDataCollector",
    "syncdatacollector": "term-SyncDataCollector",
    "update_priorities()": "term-update_priorities",
    'cat_results="stack"': "term-cat_results",
    "cat results": "term-cat_results",
    "no_cuda_sync=True": "term-no_cuda_sync",
    "SliceSampler(trajectory_key=...)": "term-trajectory_key",
    "workers": "term-worker",
    "sync points": "term-sync-point",
    "time_dimension": "term-time-dimension",
    " LazyStackedTensorDict ": "term-LazyStackedTensorDict",
}

HITS = """(queries) => queries.map((query) =>
    Search._performSearch(...Search._parseQuery(query)).reverse()
        .slice(0, 3).map(([page, title, anchor]) => [page + anchor, title]))"""


@pytest.fixture(scope="module")
def terms(site):
    """Id of each entry -> the term as the page shows it."""
    text = (site / "reference" / "glossary.html").read_text(encoding="utf-8")
    found = dict(TERM.findall(text))
    assert len(found) > 90
    return found


@pytest.fixture(scope="module")
def search(browser, site_url):
    """A function that gives the first hits of each query, from one visit."""
    page = browser.new_page()
    page.goto(site_url + "search.html")
    page.wait_for_function("Search.hasIndex()")
    yield lambda queries: page.evaluate(HITS, list(queries))
    page.close()


def test_every_term_is_the_first_hit_under_its_own_name(search, terms):
    hits = search(terms.values())
    missed = {
        term: found
        for (entry, term), found in zip(terms.items(), hits, strict=True)
        if found[:1] != [[f"reference/glossary#{entry}", f"Glossary > {term}"]]
    }
    assert missed == {}


def test_what_readers_paste_leads_there_too(search):
    hits = search(QUERIES)
    missed = {
        query: found
        for (query, entry), found in zip(QUERIES.items(), hits, strict=True)
        if not found or found[0][0] != f"reference/glossary#{entry}"
    }
    assert missed == {}


def test_every_knob_is_found_by_its_name(search, site):
    """Behind its word in the glossary, its page of the API and the table of old names at most."""
    knobs = [
        (path.relative_to(site).with_suffix("").as_posix() + "#" + entry, name)
        for path in sorted((site / "performance").glob("*.html"))
        for entry, name in KNOB.findall(path.read_text(encoding="utf-8"))
    ]
    assert len(knobs) > 60
    hits = search(name for _, name in knobs)
    missed = {}
    for (entry, name), found in zip(knobs, hits, strict=True):
        places = [place for place, _ in found]
        others = places[: places.index(entry)] if entry in places else None
        if others is None or not all(BEFORE_A_KNOB.search(place) for place in others):
            missed[name] = found
    assert missed == {}


def test_every_old_name_leads_to_its_row(search, site):
    """Or to the glossary, the API page or the knob, where something of today has that name."""
    names = ROW.findall((site / "reference" / "api_changes.html").read_text(encoding="utf-8"))
    hits = search(names)
    rows, missed = [], {}
    for name, found in zip(names, hits, strict=True):
        first = found[0][0] if found else ""
        if first == f"reference/api_changes#old-{name}":
            rows.append(name)
        elif not re.search("^reference/glossary#term-|^reference/api/|#knob-", first):
            missed[name] = found
    assert missed == {}
    assert len(rows) > 40
    assert {"CompositeSpec", "TD0Estimate", "set_exploration_mode", "_make_shuttle"} <= set(rows)


def test_other_searches_are_as_they_were(search):
    """The name in a query takes the place of the query only where the index has an entry of it."""
    queries = ["TensorDict", "set_recurrent_mode", "memory efficient", "xyzzy=1"]
    (whole, api, words, nothing) = search(queries)
    assert whole[0][0].startswith("reference/api/tensordict.TensorDict")
    assert api[0][0].startswith("reference/api/torchrl.modules.set_recurrent_mode")
    assert words[0][0] == "tutorials/memory/memory_efficient_rl"
    assert nothing == []


def test_the_list_shows_the_definition(open_page, site_url):
    page = open_page()
    page.goto(site_url + "search.html?q=MultiaSyncDataCollector")
    first = page.locator("#search-results li").first
    first.locator("p.context").wait_for()
    assert first.locator("a").inner_text() == "Glossary > MultiaSyncDataCollector"
    assert "MultiAsyncCollector" in first.locator("p.context").inner_text()
    first.locator("a").click()
    page.wait_for_url("**/reference/glossary.html#term-MultiaSyncDataCollector")


def test_the_list_shows_the_row_of_an_old_name(open_page, site_url):
    page = open_page()
    page.goto(site_url + "search.html?q=CompositeSpec")
    first = page.locator("#search-results li").first
    first.locator("p.context").wait_for()
    assert re.search(
        r"CompositeSpec of torchrl.data: ImportError \| Composite\b", first.inner_text()
    )


def test_search_works_from_a_plain_folder(open_page, site):
    page = open_page()
    page.goto((site / "search.html").as_uri() + "?q=cat_results")
    first = page.locator("#search-results li a").first
    first.wait_for()
    assert first.get_attribute("href").endswith("glossary.html#term-cat_results")
