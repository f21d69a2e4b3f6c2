"""tests/promises.toml names pages, sections and tests that exist."""

import re
import tomllib

import pytest

from tests.support import ROOT
from tests.support.page_source import section_titles, source_of

PROMISES = tomllib.loads((ROOT / "tests" / "promises.toml").read_text(encoding="utf-8"))
MEMORY = "/tutorials/memory/"


def with_key(key):
    """Parameters of a test: the promises that have this key."""
    return [pytest.param(promise, id=id_) for id_, promise in PROMISES.items() if key in promise]


def test_ids_are_sorted():
    ids = [re.fullmatch(r"([A-Z])(\d+)", id_).groups() for id_ in PROMISES]
    order = [("MCTRDGFHPKSQZ".index(letter), int(number)) for letter, number in ids]
    assert order == sorted(order)


def test_a_promise_has_no_other_keys():
    """A misspelled one would check nothing."""
    found = {key for promise in PROMISES.values() for key in promise}
    assert found == {"promise", "pages", "sections", "tests"}


@pytest.mark.parametrize("promise", with_key("promise"))
def test_named_tests_exist(promise):
    assert promise["tests"], "a promise needs a test"
    for test in promise["tests"]:
        file, function, case = re.fullmatch(r"([^:]+)(?:::(\w+)(?:\[(\w+)\])?)?", test).groups()
        source = (ROOT / file).read_text(encoding="utf-8")
        definition = rf"^def {function}\(" if function else r"^def test_"
        assert re.search(definition, source, re.MULTILINE), f"{test} is not there"
        assert not case or f"\ndef {case}(" in source, f"{test}: the test has no such case"


@pytest.mark.parametrize("promise", with_key("pages"))
def test_named_pages_exist(promise):
    assert [page for page in promise["pages"] if not source_of(page).is_file()] == []


@pytest.mark.parametrize("promise", with_key("sections"))
def test_named_sections_exist(promise):
    (page,) = promise["pages"]  # so that it is clear whose sections they are
    assert set(promise["sections"]) <= set(section_titles(page)), f"sections of {page}"


def test_the_lessons_on_memory_are_listed():
    ids = {
        id_
        for id_, promise in PROMISES.items()
        if any(page.startswith(MEMORY) for page in promise.get("pages", ()))
    }
    assert ids == {f"M{number}" for number in range(1, 14)} - {"M12"}
