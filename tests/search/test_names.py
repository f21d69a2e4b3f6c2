"""A search for a glossary term, a knob or an old name leads to its entry: first of all hits."""

import re
import tomllib

import pytest

from docs._ext.site.search_index import GERMAN, QUESTIONS, SYNONYMS, plain, split, stems
from tests.support import ROOT, SITE
from tests.support.search import evaluate, index_of

pytestmark = pytest.mark.site

ROW = re.compile(r'<p id="old-([^"]+)"')
KNOB = re.compile(r'<dt id="(knob-[^"]+)"><code[^>]*>(?:<span[^>]*>)?((?:[^<]|<wbr>)+)<')
PARAMETER = re.compile(r'class="sig-param">(?:<[^>]+>)*?<span class="n"><span class="pre">(\w+)<')
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

HITS = """(query) => ManualSearch.search(query).slice(0, 3)
    .map(({ address, title }) => [address, title])"""


@pytest.fixture(scope="module")
def terms():
    """Address of each entry of a term -> the term as its page shows it."""
    found = {
        f"{path.relative_to(SITE).as_posix()}#{entry}": re.sub("<[^>]*>", "", term)
        for path in sorted((SITE / "reference" / "glossary").glob("*.html"))
        for entry, term in TERM.findall(path.read_text(encoding="utf-8"))
    }
    assert len(found) > 110
    return found


@pytest.fixture(scope="module")
def search():
    """A function that gives the first hits of each query."""
    return lambda queries: evaluate(SITE, list(queries), HITS)["answers"]


def test_every_term_is_the_first_hit_under_its_own_name(search, terms):
    hits = search(terms.values())
    missed = {
        term: found
        for (address, term), found in zip(terms.items(), hits, strict=True)
        if found[:1] != [[address, term]]
    }
    assert missed == {}


def test_what_readers_paste_leads_there_too(search, terms):
    hits = search(QUERIES)
    addresses = {address.partition("#")[2]: address for address in terms}
    missed = {
        query: found
        for (query, entry), found in zip(QUERIES.items(), hits, strict=True)
        if not found or found[0][0] != addresses[entry]
    }
    assert missed == {}


def test_every_knob_is_found_by_its_name(search):
    """Behind its word in the glossary, its page of the API and the table of old names at most."""
    knobs = [
        (path.relative_to(SITE).as_posix() + "#" + entry, name.replace("<wbr>", ""))
        for path in sorted((SITE / "performance").glob("*.html"))
        for entry, name in KNOB.findall(path.read_text(encoding="utf-8").replace("<wbr>", ""))
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


def test_every_old_name_leads_to_its_row(search):
    """Or to the glossary, the API page or the knob, where something of today has that name."""
    names = ROW.findall((SITE / "reference" / "api_changes.html").read_text(encoding="utf-8"))
    hits = search(names)
    rows, missed = [], {}
    for name, found in zip(names, hits, strict=True):
        first = found[0][0] if found else ""
        if first == f"reference/api_changes.html#old-{name}":
            rows.append(name)
        elif not re.search("^reference/glossary/.*#term-|^reference/api/|#knob-", first):
            missed[name] = found
    assert missed == {}
    assert len(rows) > 40
    assert {"CompositeSpec", "TD0Estimate", "set_exploration_mode", "_make_shuttle"} <= set(rows)


def test_an_old_name_in_other_words_leads_to_the_name_of_today(search):
    """Beside what answers the rest, and first where a message or the query is about the name."""
    beside, missed, asked = search(
        [
            "MultiSyncDataCollector hangs",
            "AttributeError: module 'torchrl.data' has no attribute 'CompositeSpec'",
            "split_trajs deprecated",
        ]
    )
    places = [
        address.partition("#")[2] for address, _ in (beside[0], beside[1], missed[0], asked[0])
    ]
    names = ["term-MultiSyncDataCollector", "old-CompositeSpec", "old-split_trajs"]
    assert places == ["it-hangs", *names]


def test_a_sentence_gets_one_place_for_each_old_name(search):
    queries = ["SyncDataCollector crashes", "SyncDataCollector or MultiaSyncDataCollector"]
    for found in search(queries):
        titles = [title for _, title in found if title.endswith("DataCollector")]
        assert len(titles) == len(set(titles)) > 0


def test_an_argument_leads_to_what_takes_it():
    """Where no term, knob or old name is called like it: one that takes it is among the first."""
    entries = evaluate(SITE, [None], "() => ManualSearch.entries()")["answers"][0]
    taken = {plain(one["title"].partition(" (")[0]) for one in entries}
    owners = {}
    for path in sorted((SITE / "reference" / "api").glob("*.html")):
        for name in PARAMETER.findall(path.read_text(encoding="utf-8")):
            if len(split(name)) > 1 and plain(name) not in taken:
                owners.setdefault(name, set()).add(path.relative_to(SITE).as_posix())
    found = evaluate(SITE, list(owners), HITS)["answers"]
    missed = {
        name: hits
        for (name, pages), hits in zip(owners.items(), found, strict=True)
        if not any(address.partition("#")[0] in pages for address, _ in hits)
    }
    print(f"{len(owners)} arguments, not found: {missed}")
    assert len(owners) > 250
    assert len(missed) <= 0.1 * len(owners)  # where pages of the manual come first


def test_names_of_the_api_and_plain_words():
    queries = ["TensorDict", "set_recurrent_mode", "memory efficient", "xyzzy=1"]
    whole, api, words, nothing = evaluate(SITE, queries, HITS)["answers"]
    assert whole[0][0].startswith("reference/api/tensordict.TensorDict")
    assert any(at.startswith("reference/api/torchrl.modules.set_recurrent_mode") for at, _ in api)
    assert words[0][0] == "tutorials/memory/memory_efficient_rl.html"
    assert nothing == []


def test_every_entry_has_an_address_of_the_site():
    entries = evaluate(SITE, [None], "() => ManualSearch.entries()")["answers"][0]
    ids = {}
    lost = []
    for page, _, anchor in (one["address"].partition("#") for one in entries):
        if page not in ids:
            ids[page] = set(
                re.findall(r'\bid="([^"]+)"', (SITE / page).read_text(encoding="utf-8"))
            )
        if anchor and anchor not in ids[page]:
            lost.append(f"{page}#{anchor}")
    assert lost == []
    assert len(entries) > 900


def test_a_term_is_in_the_index_where_it_is_defined(terms):
    """Not where it is listed, from A to Z."""
    entries = evaluate(SITE, [None], "() => ManualSearch.entries()")["answers"][0]
    listed = [one["address"] for one in entries if "#term-" in one["address"]]
    assert sorted(listed) == sorted(terms)


def test_every_place_with_other_names_or_questions_is_in_the_index():
    """A place that moved takes its words along; they would be lost without a word."""
    entries = evaluate(SITE, [None], "() => ManualSearch.entries()")["answers"][0]
    known = {one["address"] for one in entries}
    words, questions = (
        tomllib.loads((ROOT / "docs" / name).read_text(encoding="utf-8"))
        for name in (SYNONYMS, QUESTIONS)
    )
    assert sorted({*words["also_called"], *questions} - known) == []


def test_no_word_of_the_site_is_read_as_a_german_one():
    entries = evaluate(SITE, [None], "() => ManualSearch.entries()")["answers"][0]
    names = ("title", "also", "messages", "snippet", "body")
    terms = {term for one in entries for name in names for term in one["fields"][name]}
    german = tomllib.loads((ROOT / "docs" / GERMAN).read_text(encoding="utf-8"))
    words = " ".join(german.values()).split()
    assert len(words) == len(set(words)) > 150
    assert [word for word in words if terms.intersection(split(word))] == []


def test_every_word_has_the_same_stems_in_the_engine():
    shown = [" ".join(entry[1:4]) for entry in index_of(SITE)["entries"]]
    entries = evaluate(SITE, [None], "() => ManualSearch.entries()")["answers"][0]
    terms = {term for one in entries for name in ("also", "body") for term in one["fields"][name]}
    words = sorted({word for text in shown for word in text.split()} | terms)
    found = evaluate(SITE, words, "(text) => ManualSearch.stems(text)")["answers"]
    differ = {
        word: answer for word, answer in zip(words, found, strict=True) if answer != stems(word)
    }
    assert differ == {}
    assert len(words) > 5000
