"""The queries are many, cite what they are from, and lead to addresses that exist."""

import re
import tomllib
from collections import Counter

from tests.support import ROOT, queries

REGISTER = ROOT / "docs" / "addresses.txt"
MESSAGES = ROOT / "docs" / "reference" / "messages.toml"
THREAD = re.compile(r"[\w.-]+/[\w.-]+#\d+")
AT_LEAST = {"symptom": 60, "message": 30, "old name": 20, "misspelling": 20}


def unregistered(targets):
    """Those of *targets* that the register does not have, or has given up."""
    lines = REGISTER.read_text(encoding="utf-8").splitlines()
    return sorted(set(targets) - {line for line in lines if not line.startswith("#")})


def test_there_are_enough_of_each_kind():
    found = queries.read()
    assert len(found) >= 150
    kinds = Counter(query.kind for query in found)
    assert {kind: kinds[kind] for kind in AT_LEAST if kinds[kind] < AT_LEAST[kind]} == {}
    tracebacks = [query for query in found if "Traceback (most recent call last)" in query.words]
    assert len(tracebacks) >= 10


def test_no_query_stands_twice():
    times = Counter(" ".join(query.words.casefold().split()) for query in queries.read())
    assert [words for words, count in times.items() if count > 1] == []


def test_every_target_is_registered():
    found = queries.read()
    assert [query.words for query in found if not query.targets] == []
    assert unregistered(target for query in found for target in query.targets) == []


def test_threads_have_a_repository_and_a_number():
    found = queries.read()
    cited = [query.thread for query in found if query.thread or query.kind == "title"]
    assert [thread for thread in cited if not THREAD.fullmatch(thread)] == []


def test_about_a_third_is_held_out():
    found = queries.read()
    assert 0.25 <= sum(query.held_out for query in found) / len(found) <= 0.4


def test_messages_of_threads_lead_to_registered_addresses():
    found = tomllib.loads(MESSAGES.read_text(encoding="utf-8"))["message"]
    assert unregistered(target for one in found for target in one["targets"]) == []
    threads = [thread for one in found for thread in one["threads"]]
    assert [thread for thread in threads if not THREAD.fullmatch(thread)] == []
    assert len({one["text"] for one in found}) == len(found)
