"""The decision tables of docs/_ext/records/choice.py, on the fixture project of test_records.py."""

import json
import re

import pytest

from benchmarks import record as records
from docs._ext.records.choice import in_order_of
from tests.ext.records.test_directives import INDEX, clean, entry, project  # noqa: F401 - project is a fixture

CHOICE = """
.. record-choice:: toy@cpu
   :situation: size
   :choice: kind
   :metric: time
   :best: least
"""
SLOW = [0.2, 0.21, 0.22, 0.23, 0.24]
FAST = [0.01, 0.011, 0.012, 0.013, 0.014]
ALIKE = [0.012, 0.0125, 0.013, 0.0135, 0.014]


def take(project, **entries):  # noqa: F811
    """Replace the benchmarks of the toy record."""
    project.edit(benchmarks={key.replace("_", "-"): value for key, value in entries.items()})


@pytest.fixture
def taken(project):  # noqa: F811
    take(
        project,
        small_a=entry("A", 1000, SLOW, size=1, kind="A"),
        small_b=entry("B", 2000, FAST, size=1, kind="B"),
        small_c=entry("C", 3000, ALIKE, size=1, kind="C"),
        large_a=entry("A", 1000, FAST, size=4, kind="A"),
        large_b=entry("B", 2000, SLOW, size=4, kind="B"),
    )
    return project


def rows(project):  # noqa: F811
    text = " ".join(project.text().replace("#", "").split())  # without the links of the rows
    return text[text.index("Size ") : text.index("Measured on")]


def test_first_choice_next_and_factor(taken):
    taken.page(CHOICE + "   :rows: large-*\n")
    clean(taken)
    assert rows(taken).split("between ")[1] == ("4 A 12 ms (11–13) B: 220 ms (210–230) 18× "), rows(
        taken
    )


def test_most_turns_the_order_around(taken):
    taken.page(CHOICE.replace("least", "most") + "   :rows: large-*\n")
    clean(taken)
    assert "4 B 220 ms (210–230) A: 12 ms (11–13) 18×" in rows(taken)


def test_overlapping_quartiles_have_no_winner(taken):
    taken.page(CHOICE + "   :rows: small-*\n")
    clean(taken)
    assert "1 no clear winner: B or C 12 ms (11–13) A: 220 ms (210–230) 18×" in rows(taken)
    taken.page(CHOICE + "   :rows: small-b small-c\n")
    clean(taken)
    assert "1 no clear winner: B or C 12 ms (11–13) – –" in rows(taken)


def test_a_record_with_gaps_decides_what_has_two_options(taken):
    taken.page(CHOICE + "   :rows: small-* large-a\n   :if-absent: nothing to choose yet\n")
    assert "has one option, 'A'" in taken.build()[0]
    taken.edit(unmeasured=["bench_one[large-b]"])
    clean(taken)
    assert rows(taken).startswith("Size of a thing First choice")
    assert "between 1 no clear winner: B or C" in rows(taken)
    assert " 4 A" not in rows(taken)
    taken.page(CHOICE + "   :rows: large-a\n   :if-absent: nothing to choose yet\n")
    clean(taken)
    assert "nothing to choose yet" in taken.text()


def test_a_record_taken_anew_changes_the_choice(taken):
    taken.page(CHOICE + "   :rows: large-*\n")
    clean(taken)
    take(
        taken,
        large_a=entry("A", 1000, SLOW, size=4, kind="A"),
        large_b=entry("B", 2000, FAST, size=4, kind="B"),
    )
    clean(taken)
    assert "4 B 12 ms (11–13) A" in rows(taken)


def test_rows_stand_in_order_of_size_and_have_addresses():
    found = dict.fromkeys([(10, "waits"), (0, "none"), (1, "waits"), (1, "none")])
    ordered = [key for key, _ in sorted(found.items(), key=in_order_of(found))]
    assert ordered == [(0, "none"), (1, "waits"), (1, "none"), (10, "waits")]


def test_a_row_has_an_address(taken):
    taken.page(CHOICE)
    clean(taken)
    html = taken.html()
    for size in ("1", "4"):
        assert re.search(rf'<tr [^>]*id="choice-\w+-time-{size}"', html)
        assert f'-time-{size}" title="Link to this row">#</a>' in html


def test_a_second_table_of_a_page_has_other_addresses(taken):
    taken.page(CHOICE + CHOICE)
    clean(taken)
    found = re.findall(r'<tr [^>]*id="([^"]*)"', taken.html())
    assert len(found) == len(set(found)) == 4, found


def test_changed_code_shows_no_choice(taken):
    taken.page(CHOICE)
    (taken.benchmarks / "shared.py").write_text("ROUNDS = 6\n")
    clean(taken)
    assert records.AGAIN.capitalize() in taken.text()
    assert "220" not in taken.text()


# -- Decision trees ------------------------------------------------------------------

SMALL, LARGE = "choice-toy-time-1", "choice-toy-time-4"
TREE = """
.. container:: decision-tree

   * **Is it large?**

     * *Yes.* :choice:`{large}`
     * *No.* :choice:`{small}`
"""


def tree(small=SMALL, large=LARGE):
    return TREE.format(small=small, large=large)


def leaves(project, name="index"):  # noqa: F811
    """What each leaf says, and where it leads."""
    found = re.findall(r'href="([^"]*)"[^>]*><span class="choice">([^<]*)<', project.html(name))
    return [(text, target.replace("index.html", "")) for target, text in found]


def test_leaves_of_a_tree_are_what_the_record_has_first(taken):
    taken.page(tree() + CHOICE)
    clean(taken)
    assert leaves(taken) == [("A", f"#{LARGE}"), ("B or C", f"#{SMALL}")]
    assert 'title="no clear winner: B or C: 12\N{NO-BREAK SPACE}ms (11–13); 18×' in taken.html()


def test_a_tree_on_another_page_follows_a_new_record(taken):
    taken.page(CHOICE)
    (taken.docs / "other.rst").write_text(":orphan:\n\nOther\n=====\n" + tree())
    clean(taken)
    assert [text for text, _ in leaves(taken, "other")] == ["A", "B or C"]
    stored = json.loads(taken.path.read_text())["benchmarks"]
    stored["large-a"]["metrics"], stored["large-b"]["metrics"] = (
        stored["large-b"]["metrics"],
        stored["large-a"]["metrics"],
    )
    taken.edit(benchmarks=stored)
    clean(taken)
    assert leaves(taken, "other")[0] == ("B", f"#{LARGE}")


def test_a_leaf_with_a_text_is_checked_by_its_row(taken):
    taken.page(tree(large=f"B <{LARGE}>", small=f"C <{SMALL}>") + CHOICE)
    clean(taken)
    assert [text for text, _ in leaves(taken)] == ["B", "C"]
    taken.page(tree(large=f"C <{LARGE}>") + CHOICE)
    line = INDEX.count("\n") + 6
    assert taken.build()[0].splitlines() == [
        f"{taken.docs / 'index.rst'}:{line}: WARNING: the row {LARGE} has 'A' or 'B', "
        "not 'C' [records.unknown]"
    ]


def test_a_leaf_that_names_a_class_has_it_as_code(taken):
    take(
        taken,
        large_a=entry("A", 1000, FAST, size=4, kind="SerialEnv"),
        large_b=entry("B", 2000, SLOW, size=4, kind="a loop"),
    )
    taken.page(tree(small=LARGE) + CHOICE)
    clean(taken)
    leaf = re.search(r'<span class="choice">(<code.*?)</span></a>', taken.html())[1]
    assert re.sub("<.*?>", "", leaf) == "SerialEnv"


def test_a_leaf_without_a_row_is_named(taken):
    taken.page(tree(large="choice-toy-time-5") + CHOICE)
    assert "no decision table has the row 'choice-toy-time-5'" in taken.build()[0]


def test_a_leaf_of_a_changed_benchmark_says_so(taken):
    taken.page(tree(large=f"A <{LARGE}>") + CHOICE)
    (taken.benchmarks / "shared.py").write_text("ROUNDS = 6\n")
    clean(taken)
    assert [text for text, _ in leaves(taken)] == ["A", records.AGAIN]


BROKEN = {
    "metric": (CHOICE.replace("time", "tme"), "has no metric 'tme'; did you mean 'time'?"),
    "choice": (CHOICE.replace("kind", "kin"), "has no parameter 'kin'; did you mean 'kind'?"),
    "best": (CHOICE.replace("least", "low"), "expected :best: most or least, found 'low'"),
    "missing": (CHOICE.replace("   :choice: kind\n", ""), "needs the option :choice:"),
    "single": (CHOICE + "   :rows: large-a\n", "the situation 4 has one option, 'A'"),
    "twice": (
        CHOICE.replace(":situation: size", ":situation: wait"),
        "the option 'A' stands twice in the situation yes; name what differs in :situation:",
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_table_that_decides_nothing_is_named(taken, broken):
    text, said = BROKEN[broken]
    benchmarks = json.loads(taken.path.read_text())["benchmarks"]
    for benchmark in benchmarks.values():
        benchmark["parameters"]["wait"] = True
    taken.edit(benchmarks=benchmarks)
    taken.page(text)
    warnings, _ = taken.build()
    assert warnings.count("WARNING") == 1
    assert f"index.rst:{INDEX.count(chr(10)) + 2}: WARNING: " in warnings
    assert said in warnings
