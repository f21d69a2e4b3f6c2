"""Claims: each has one id and a test; a test that fails says which sentence it guards."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from docs._ext.site.claims import ID, scan, unmarked
from docs._ext.support import galleries
from tests.support import ROOT
from tests.support.claims import claims, guards
from tests.support.upstream_sources import read_claims

KNOWN = "auto-asks-compile-only"


def guarded(source):
    """The arguments of each ``guards`` in the source of a test module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "guards":
            yield from (getattr(one, "value", ast.unparse(one)) for one in node.args)


def problems(found, ids):
    """Claims without a test, tests without a claim, ids that are none or are there twice."""
    count = Counter(claim.id for claim in found)
    for claim in found:
        if claim.id not in ids:
            yield f"{claim.id!r} has no test: {claim}"
        if count[claim.id] > 1:
            yield f"{claim.id!r} is there {count[claim.id]} times: {claim}"
        if not ID.fullmatch(claim.id):
            yield f"{claim.id!r} is no id of lower-case words with hyphens: {claim}"
        if not claim.sentence:
            yield f"{claim.id!r} stands behind no sentence: {claim}"
    for name in sorted(ids - count.keys()):
        yield f"a test guards {name!r}, which no page claims"


def test_each_claim_has_one_id_and_a_test():
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)]
    ids = {name for path in files for name in guarded(path.read_text("utf-8"))}
    found = list(problems(scan(ROOT), ids | read_claims()))
    assert not found, "\n".join(["", *found])


def test_no_claim_shows_in_the_card_of_a_tutorial():
    """Its text is the first paragraph, which sphinx-gallery takes without reading the markup."""
    for claim in claims().values():
        if claim.file.startswith(tuple(f"{name}/" for name in galleries.NAMES)):
            source = (ROOT / claim.file).read_text("utf-8")
            introduction = "\n\n".join(source.split("\n\n")[:2])
            assert f":claim:`{claim.id}`" not in introduction, claim


PAGE = """
Title
=====

One sentence. Another one. :claim:`{}`
"""


@pytest.mark.parametrize(
    ("marks", "ids", "problem"),
    [
        (["a-b"], set(), "'a-b' has no test: docs/0.rst:5: Another one."),
        (["a-b", "a-b"], {"a-b"}, "'a-b' is there 2 times: docs/1.rst:5: Another one."),
        (["A b"], {"A b"}, "'A b' is no id of lower-case words with hyphens"),
        ([], {"a-b"}, "a test guards 'a-b', which no page claims"),
    ],
)
def test_what_is_out_of_step_is_named(tmp_path, marks, ids, problem):
    for number, name in enumerate(marks):
        path = tmp_path / "docs" / f"{number}.rst"
        path.parent.mkdir(exist_ok=True)
        path.write_text(PAGE.format(name))
    assert any(one.startswith(problem) for one in problems(scan(tmp_path), ids))


def test_a_guard_in_any_form_of_test_is_found():
    source = "@guards('a', 'b')\ndef test_x(): ...\nclass T:\n  @guards('c')\n  def test_y(): 0"
    assert list(guarded(source)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("file", "source", "sentence"),
    [
        ("docs/a.rst", "Before. It\nis :term:`so`. :claim:`x` After.", "It is :term:`so`."),
        ("docs/a.rst", "Text\n\n* Item.\n* **Bold.** Second\n  one :claim:`x`::\n", "Second one"),
        ("docs/a.rst", "It is. :claim:`w` This is ``a. b``: :claim:`x`", "This is ``a. b``:"),
        ("docs/a.rst", "   * - A\n     - Cell, not\n       more :claim:`x`", "Cell, not more"),
        (
            "docs/a.rst",
            "   :flip: Never, in\n      the end.\n      :claim:`x`",
            "Never, in the end.",
        ),
        ("docs/a.rst", ".. list-table:: A title :claim:`x`", "A title"),
        ("docs/a.rst", "term\n   Its definition :claim:`x`\n", "Its definition"),
        ("docs/reference/api/a.toml", '"a.b" = "is c :claim:`x`"', "is c"),
        ("tutorials/a/b.py", "x = 1\n# %%\n# Old. It\n# goes. :claim:`x` On.\n", "It goes."),
        ("tutorials/a/b.py", '"""Title\n=====\n\nIt goes :claim:`x`\n"""', "It goes"),
        ("docs/evidence/a.py", 'ROW = {"k": ("It says. " "So, " "no :claim:`x`")}', "So, no"),
    ],
)
def test_a_sentence_ends_with_its_mark(tmp_path, file, source, sentence):
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    claim = scan(tmp_path)[-1]
    line = source[: source.index(":claim:`x`")].count("\n") + 1
    assert (claim.id, claim.file, claim.line, claim.sentence) == ("x", file, line, sentence)


@pytest.mark.parametrize(
    "name", ["docs/_ext/a.py", "docs/tutorials/a/b.rst", "docs/reference/api/t.X.rst"]
)
def test_what_the_build_writes_has_no_claims_of_its_own(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text("# Said. :claim:`x`")
    assert scan(tmp_path) == []


def test_the_text_without_marks():
    assert unmarked("It is. :claim:`a-b` It was.\n:claim:`c`\n\nEnd") == "It is. It was.\n\nEnd"


def test_a_claim_that_is_gone_fails():
    with pytest.raises(AssertionError, match="no page claims no-such-claim"):
        guards("no-such-claim")(lambda: None)()


def test_a_failure_names_page_line_and_sentence():
    @guards(KNOWN)
    def fails():
        assert not KNOWN

    with pytest.raises(AssertionError) as failure:
        fails()
    said = claims()[KNOWN]
    assert failure.value.__notes__ == [f"This test guards {said.file}:{said.line}: {said.sentence}"]
    assert f":claim:`{KNOWN}`" in (ROOT / said.file).read_text("utf-8").splitlines()[said.line - 1]


def test_arguments_and_fixtures_pass_through(tmp_path):
    @guards(KNOWN)
    def takes(folder, *, name):
        return folder / name

    assert takes(tmp_path, name="a") == tmp_path / "a"
    assert takes.__name__ == "takes"


def test_a_missing_exception_is_named_too():
    @guards(KNOWN)
    def raises_nothing():
        with pytest.raises(ValueError, match="never"):
            pass

    with pytest.raises(pytest.fail.Exception) as failure:
        raises_nothing()
    assert claims()[KNOWN].sentence in failure.value.__notes__[0]
