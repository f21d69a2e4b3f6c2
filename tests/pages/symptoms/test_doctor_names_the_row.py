"""Each symptom has its page, its check and its place in the ranking, and the check is right."""

import inspect

import pytest
import torchrl_doctor

from docs._ext.gallery.order import read_order
from docs._ext.symptoms.store import read
from tests.support import ROOT
from tests.support.symptom_pages import ALSO_TRUE, FOLLOWS_ON, run_pages

PAGES = ROOT / "tutorials" / "debugging"
ROWS = {
    slug: one
    for slug, one in torchrl_doctor.CHECKS.items()
    if one.page == f"tutorials/debugging/{slug}.html"
}
SLUGS = sorted(page.stem for page in PAGES.glob("*.py"))


def test_each_page_has_a_check_and_a_place():
    """A row cannot exist without a run, and a run cannot lack a row."""
    assert sorted(ROWS) == SLUGS
    assert sorted(read_order(PAGES)) == SLUGS


def test_a_check_has_the_title_of_its_page():
    pages = {slug: read(PAGES / f"{slug}.py").title for slug in SLUGS}
    assert {slug: one.title for slug, one in ROWS.items()} == pages


def test_a_check_without_a_row_names_a_section_that_is_there():
    addresses = set((ROOT / "docs" / "addresses.txt").read_text(encoding="utf-8").splitlines())
    others = {slug: one.page for slug, one in torchrl_doctor.CHECKS.items() if slug not in ROWS}
    assert {slug: page for slug, page in others.items() if page not in addresses} == {}


def test_a_check_takes_what_diagnose_can_give():
    known = {*torchrl_doctor.ARGUMENTS, "sample", "own_batch", "by_group", "eval_collector"}
    taken = {slug: set(one.takes) - known for slug, one in torchrl_doctor.CHECKS.items()}
    assert {slug: names for slug, names in taken.items() if names} == {}


def test_an_argument_of_diagnose_is_an_object_of_the_reader_or_a_limit():
    names = set(inspect.signature(torchrl_doctor.diagnose).parameters)
    assert names == {*torchrl_doctor.ARGUMENTS, "frames", "seconds", "site", "only", "ignore"}


@pytest.fixture(scope="module")
def seen(request, tmp_path_factory):
    """Every selected page in a fork of its own, and what the doctor finds on both of its sides."""
    asked = {
        item.callspec.params["slug"]
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    }
    return run_pages(sorted(asked), folder=tmp_path_factory.mktemp("pages"))


def problems_of(slug, page):
    """Sentences about one entry of *seen*; none where the page and the doctor agree."""
    if page["error"]:
        return [f"the page raises {page['error']}"]
    said = []
    named = [finding[0] for finding in page["broken"] if finding[2] == torchrl_doctor.APPLIES]
    if slug not in named:
        others = f"; it names {', '.join(named)}" if named else ""
        own = [finding[2:] for finding in page["broken"] if finding[0] == slug]
        said.append(f"the doctor does not name the broken side ({own or 'nothing'}){others}")
    also_true = ALSO_TRUE.get(slug, set())
    roots = [one for one in page["roots"]["broken"] if one not in also_true]
    if slug in named and len(roots) != 1:
        roots = ", ".join(roots)
        said.append(f"one fault has several roots, {roots}; FOLLOWS has to say what follows")
    for one, _, state, evidence in page["fixed"]:
        if state == torchrl_doctor.APPLIES and one not in also_true:
            said.append(f"the doctor names {one} on the fixed side: {evidence}")
    for side in ("broken", "fixed"):
        for one, _, state, evidence in page[side]:
            if state == torchrl_doctor.FAILED:
                said.append(f"the check {one} fails on the {side} side: {evidence}")
        if unknown := set(page["arguments"][side]) - set(torchrl_doctor.ARGUMENTS):
            said.append(f"{side} holds {sorted(unknown)}, which diagnose does not take")
    return said + [f"the page leaves behind: {what}" for what in page["left"]]


@pytest.mark.slow
@pytest.mark.parametrize("slug", SLUGS)
def test_the_doctor_names_what_is_broken_and_nothing_that_is_fixed(seen, slug):
    said = problems_of(slug, seen[slug])
    assert not said, "\n" + "\n".join(said)


@pytest.mark.slow
@pytest.mark.parametrize("slug", FOLLOWS_ON)
def test_what_follows_is_there_with_its_root_and_gone_without(seen, slug):
    root, below = FOLLOWS_ON[slug]
    there = [one[0] for one in seen[slug]["broken"] if one[2] == torchrl_doctor.APPLIES]
    assert there[0] == root
    assert sorted(there[1:]) == sorted(below)
    assert seen[slug]["roots"] == {"broken": [root], "fixed": []}
