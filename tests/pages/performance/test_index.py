"""What the first page of the performance section promises of its pages and records."""

import re

import pytest

from benchmarks import measure
from tests.support import ROOT
from tests.support.claims import guards
from tests.support.suites import COMMITTED, benchmarks_of, recorded

PAGE = "docs/performance/index.rst"
NO_PART = ("index", "knobs")
SECTION = sorted(one for one in (ROOT / PAGE).parent.glob("*.rst") if one.stem not in NO_PART)


@guards("suites-one-thread", "suites-one-thread-workers")
@pytest.mark.parametrize(("suite", "device"), sorted(COMMITTED.taken()))
def test_every_record_was_taken_with_one_thread(suite, device):
    assert COMMITTED.find(suite, device)["taken"]["threads"] == measure.THREADS == 1


@guards("pages-have-own-script")
@pytest.mark.parametrize("path", SECTION, ids=lambda path: path.stem)
def test_every_page_has_its_check(path):
    text = path.read_text("utf-8")
    assert re.search(rf"^\.\. _performance-{path.stem}-check:\n\n.+\n---", text, re.M)
    assert f"   {path.stem}\n" in (ROOT / PAGE).read_text("utf-8").partition("toctree::")[2]


@guards("two-workers-two-cores")
def test_the_collectors_had_two_cores():
    assert COMMITTED.find("collectors", "cpu")["machine"]["cores"] == 2
    key = "throughput-n2-multi-sync-busy-10"
    parameters = benchmarks_of("collectors")[key]["parameters"]
    assert (parameters["workers"], parameters["wait"]) == (2, "busy")
    assert recorded("collectors", key, "vs_collector", "q1") > 1


@guards("shared-memory-or-queue")
def test_the_two_ways_of_the_weights_carry_the_same():
    found = benchmarks_of("weight_sync")
    ours, theirs = (
        found[f"{way}-sync-w2-4mb-elsewhere"]["parameters"] for way in ("shared", "pipe")
    )
    assert {key for key in ours if ours[key] != theirs[key]} == {"scheme"}
    assert ours["workers"] == 2


@guards("vectorized-gae-range")
def test_the_rows_of_the_advantage_are_the_outer_ones():
    found = benchmarks_of("advantages").values()
    steps = {one["parameters"]["steps"] for one in found if "steps" in one.get("parameters", {})}
    assert (min(steps), max(steps)) == (8, 2048)


@guards("all-items-together", "compiled-ppo-pays")
def test_the_words_of_the_table_fit_the_figures():
    assert recorded("checklist", "cartpole-after", "gain_with_all_above", "q1") > 1
    assert recorded("compile", "clip-ppo-b256", "time_vs_eager", "q3") < 1
