"""Cells of numbers are told from words, and keep value and range in one line each."""

import re

import pytest
from docutils import nodes

from docs._ext.support.table_nodes import finish, is_numeric, table


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (["0", "1", "10"], True),
        (["1,583 (1,577–1,590)", "188 (182–188)"], True),
        (["275\u00a0µs (272–280)", "–", "1.2\u00a0ms, noisy"], True),
        (["10", "–", ""], True),
        (["1.05×", "18.3×"], True),
        (["\N{MINUS SIGN}4", "1e-5"], True),
        (["0 of 24", "12 of 1,024", "5 %"], True),
        (["1.2", "0.9", "1", "1.1", "no pixels"], True),
        (["1.2", "none", "1", "none"], False),
        (["–", ""], False),
        (["0.14.1", "0.13.0"], False),
        (["1, 2", "3"], False),
        (["4 workers", "10 workers"], False),
        (["1 (see below)", "2"], False),
    ],
)
def test_a_column_of_numbers(column, expected):
    assert is_numeric(column) is expected


def made(*rows, **more):
    return table(["Name", "Time"], rows, classes=["record-table"], **more)


def aligned(found):
    """Whether each cell of a table is a number's, when all pages are read."""
    finish(None, nodes.section("", found), "page")
    return ["is-number" in cell["classes"] for cell in found.findall(nodes.entry)]


def test_numbers_are_marked_with_their_header():
    found = made(["a", "2"], ["b", "10 (9–11)"])
    assert aligned(found) == [False, True] * 3
    assert [cell["column"] for cell in found.findall(nodes.entry)] == ["Name", "Time"] * 3


def test_markup_of_a_number_and_the_link_of_its_row_change_nothing():
    found = made(["4", "1"], [nodes.literal("", "16"), "none"], ids=["row-4", "row-16"])
    assert aligned(found) == [True, False] * 3


def test_a_header_with_markup_is_named_by_its_text():
    header = [[nodes.literal("", '"next"'), ", ", nodes.literal("", "h")], "Step"]
    found = table(header, [["1", "2"]], classes=[]).next_node(nodes.tbody)
    assert [cell["column"] for cell in found.findall(nodes.entry)] == ['"next", h', "Step"]


def test_value_and_range_break_between_and_not_inside():
    body = made(["a", "275\u00a0µs (272–280), noisy"]).next_node(nodes.tbody)
    parts = [one.astext() for one in body.findall(nodes.inline)]
    assert parts == ["275\u00a0µs", "(272–280)", "noisy"]
    assert body.astext().split("\n\n")[-1] == "275\u00a0µs (272–280) noisy"


def test_words_of_a_table_have_the_apostrophes_and_sizes_of_a_page_and_messages_their_quotes():
    found = made(["PyTorch's, 8 x 32", "key 'a' or \"b\""], title=nodes.title("", "Triton's"))
    aligned(found)
    shown = [one.astext() for one in found.findall(nodes.paragraph)]
    assert shown == ["Name", "Time", "PyTorch’s, 8\u00a0×\u00a032", "key 'a' or \"b\""]
    assert found.next_node(nodes.title).astext() == "Triton’s"


def test_a_row_has_an_address_and_its_link():
    first, second = made(["a", "1"], ["b", "2"], ids=["row-a", "row-b"]).next_node(nodes.tbody)
    assert (first["ids"], second["ids"]) == (["row-a"], ["row-b"])
    assert [one["refid"] for one in first.findall(nodes.reference)] == ["row-a"]
    with pytest.raises(ValueError, match="argument"):
        made(["a", "1"], ["b", "2"], ids=["row-a"])


def test_names_of_code_in_a_cell_are_code():
    linked = nodes.reference("", "", nodes.inline("", "with scratch_dir"))
    found = made(["SerialEnv, 4 workers", "2 (3)"], [linked, nodes.literal("", "a_b c")])
    aligned(found)
    code = [one.astext() for one in found.findall(nodes.literal)]
    assert code == ["SerialEnv", "scratch_dir", "a_b c"]
    assert [one.astext() for one in found.next_node(nodes.tbody)[0]] == [
        "SerialEnv, 4 workers",
        "2 (3)",
    ]
    assert linked.astext() == "with scratch_dir"


def test_names_of_code_in_a_caption_are_code():
    found = made(["a", "1"], title=nodes.title("", "Time of ndim=2"))
    aligned(found)
    assert [one.astext() for one in found.findall(nodes.literal)] == ["ndim=2"]


def test_quotes_of_a_computed_table_are_code_or_curly():
    found = table(["The env's work", "Time"], [['"scan" of PyTorch\'s', "2"]], classes=[])
    aligned(found)
    assert [cell.astext() for cell in found.findall(nodes.entry)][::2] == [
        "The env’s work",
        '"scan" of PyTorch’s',
    ]
    assert [one.astext() for one in found.findall(nodes.literal)] == ['"scan"']
    assert found.next_node(nodes.tbody).next_node(nodes.entry)["column"] == "The env’s work"


def test_a_header_of_collectors_is_no_class():
    found = table(["Collector", "Time"], [["Collector", "2"]], classes=[])
    aligned(found)
    [code] = found.findall(nodes.literal)
    assert code.parent.parent.parent.parent.tagname == "tbody"


def test_cells_of_wide_tables_of_a_page_know_their_header(tmp_path):
    from sphinx.testing.util import SphinxTestApp

    rows = [["One", "Two", "``three``"], ["a", ":term:`b`", "c"]]
    lines = [".. list-table::\n   :header-rows: 1\n"]
    for row in rows:
        lines += [
            f"   {'-' if number else '* -'} {text}".replace("   -", "     -")
            for number, text in enumerate(row)
        ]
    wide = "\n".join(lines)
    narrow = "= =\nA B\n= =\nc 2\n= =\n"
    spans = "=== === ===\nAll     One\n======= ===\n1   2   3\n=== === ===\n"
    (tmp_path / "conf.py").write_text('extensions = ["docs._ext.support.table_nodes"]\n')
    (tmp_path / "index.rst").write_text(f"T\n=\n\n{wide}\n\n{narrow}\n\n{spans}\n")
    app = SphinxTestApp("html", srcdir=tmp_path)
    app.build()
    html = (app.outdir / "index.html").read_text("utf-8")
    app.cleanup()
    assert re.findall(r'data-column="(.*?)"', html) == ["One", "Two", "three"]
    below_code = re.findall(r'data-column="(\w+)" class="[^"]*is-below-code', html)
    assert below_code == ["three"]
    assert re.findall(r'<t[hd] class="[^"]*is-number.*?<p>(.*?)</p>', html) == ["B", "2"]
