"""Queries of readers lead to a right page among the first three: the engine, run on the built site.

A third of ``queries.toml`` is held out of tuning; both shares are printed (``-s`` or ``-rP``), and
the misses with what came first: those of the third when the test fails, for who reads them tunes.
"""

import statistics
from functools import cache

import pytest

from tests.support import SITE, queries
from tests.support.search import evaluate, sections

FIRST = 3
SHARE = 0.95
HITS = "(query) => ManualSearch.search(query).map(({ address }) => address)"
SURE = "(query) => ManualSearch.search(query).filter((hit) => hit.sure).map((hit) => hit.address)"
ROW = "reference/debugging_map.html#symptom-"


@cache
def own_ids(page):
    return sections(SITE / page)


def place(address):
    """The page of an address, and the id of the section where its anchor is one of several."""
    if address.startswith(ROW):
        return f"tutorials/debugging/{address.removeprefix(ROW).replace('-', '_')}.html", ""
    page, _, anchor = address.partition("#")
    return page, own_ids(page).get(anchor, anchor)


def answers(hit, target):
    """Whether a hit is the target, or a place on the page where the page is the target."""
    (page, anchor), (wanted, section) = place(hit), place(target)
    return page == wanted and (not section or anchor == section)


@pytest.mark.site
def test_readers_find_the_answer_among_the_first_hits():
    asked = queries.read()
    found = evaluate(SITE, [query.words for query in asked], HITS)
    right = {
        query: any(answers(hit, one) for hit in hits[:FIRST] for one in query.targets)
        for query, hits in zip(asked, found["answers"], strict=True)
    }
    enough = True
    for name, group in (
        ("tuned on", [query for query in asked if not query.held_out]),
        ("held out", [query for query in asked if query.held_out]),
    ):
        hits = sum(right[query] for query in group)
        print(f"{name}: {hits} of {len(group)} ({hits / len(group):.1%})")
        enough = enough and hits >= SHARE * len(group)
    slowest, median = max(found["times"]), statistics.median(found["times"])
    print(f"index read in {found['load']:.0f} ms, hits in {median:.1f} ms (longest {slowest:.0f})")
    for query, hits in zip(asked, found["answers"], strict=True):
        if not right[query] and not (query.held_out and enough):
            print(f"missed ({query.kind}): {query.words!r}\n    first: {', '.join(hits[:FIRST])}")
    assert enough


@pytest.mark.site
def test_what_enter_opens_at_once_is_right():
    """The field opens the first hit where the engine calls it sure, and all hits elsewhere."""
    asked = queries.read()
    found = evaluate(SITE, [query.words for query in asked], SURE)["answers"]
    sure = [(query, hits[0]) for query, hits in zip(asked, found, strict=True) if hits]
    assert len(sure) >= len(asked) / 3
    right = sum(any(answers(hit, one) for one in query.targets) for query, hit in sure)
    print(f"sure of {len(sure)} of {len(asked)}, {right} are right ({right / len(sure):.1%})")
    assert right >= 0.9 * len(sure)
