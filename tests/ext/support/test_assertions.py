"""What a failed assertion of a script or tutorial says beside its message."""

import ast

import pytest
import torch

from docs._ext.support import galleries
from docs._ext.support.assertions import explain, operands
from tests.support import ROOT

SCRIPTS = sorted([*(ROOT / "docs/evidence").glob("*/*.py"), *galleries.scripts(ROOT)])


def notes(tmp_path, text):
    """The lines that are added when the script *text* fails."""
    path = tmp_path / "toy.py"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(AssertionError) as caught:
        exec(compile(text, str(path), "exec"), {"torch": torch})
    explain(caught.value)
    return [line.strip() for note in caught.value.__notes__ for line in note.splitlines()]


TENSORS = "where tensors differ"
SEEN = {
    "both sides": ("a = 1\nassert a + 1 == len('abc')", ["a + 1 = 2", "len('abc') = 3"]),
    "a chain": ("a, b = 1, [5]\nassert 0 < a < b[0] < 4", ["a = 1", "b[0] = 5", "b = [5]"]),
    "a message": ("a = 1\nassert a == 2, 'wrong'", ["a = 1"]),
    "several lines": ("a = 1\nassert (\n    a\n    == 2\n)", ["a = 1"]),
    "parts": ("a, b = 1, 0\nassert a and not b > -1", ["a = 1", "b = 0"]),
    "what an attribute is of": ("a = 1j\nassert a.real", ["a.real = 0.0", "a = 1j"]),
    "a call": ("a = 'ab'\nassert a.startswith('b')", ["a.startswith('b') = False", "a = 'ab'"]),
    "what fails in all": (
        "def f(limit):\n    assert all(x < limit for x in (1, 5, 2))\n\n\nf(3)",
        ["[x for x in (1, 5, 2) if not x < limit] = [5]"],
    ),
    "what all is asked of": (
        "a = ([1, 2], [1, 3])\nassert all(map(int.__eq__, *a))",
        ["list(map(int.__eq__, *a)) = [True, False]", "a = ([1, 2], [1, 3])"],
    ),
    "what holds in any": (
        "assert not any(x > y for x, y in ((1, 2), (2, 1)))",
        ["[(x, y) for x, y in ((1, 2), (2, 1)) if x > y] = [(2, 1)]"],
    ),
    TENSORS: (
        "a, b = torch.zeros(999), torch.zeros(999)\nb[500] = 1\nassert torch.equal(a, b)",
        ["(a != b).nonzero() = tensor([[500]])"],
    ),
    "where it is not all": (
        "a = torch.ones(999)\na[3] = 0\nassert a.bool().all()",
        ["(a.bool() == 0).nonzero() = tensor([[3]])"],
    ),
    "where it is any": (
        "a = torch.zeros(999)\na[3] = 1\nassert not a.any()",
        ["a.nonzero() = tensor([[3]])"],
    ),
    "a value without a text": (
        "class A:\n    def __repr__(self):\n        raise KeyError('b')\n\na = A()\nassert a == 1",
        ["a = <KeyError: 'b'>"],
    ),
}


@pytest.mark.parametrize("case", SEEN)
def test_the_operands_are_shown(tmp_path, case):
    text, expected = SEEN[case]
    lines = notes(tmp_path, text)
    assert set(expected) <= set(lines), lines


def test_a_module_is_no_operand(tmp_path):
    assert not any(line.startswith("torch = ") for line in notes(tmp_path, SEEN[TENSORS][0]))


def test_long_values_are_cut(tmp_path):
    (line,) = (x for x in notes(tmp_path, "a = 'b' * 9999\nassert a == ''") if x.startswith("a ="))
    assert len(line) < 400


TUTORIAL = '''"""
Title
=====

First paragraph.
"""
a = 1

# %%
# Cell
# ----
#
# A claim of the cell. **One** is e.g. two. It is
# also three.

b = a

# by hand
assert a == 2


# %%
# Another cell.


def f():
    """What the function does.

    More of it.
    """
    assert a == 3
'''


def test_the_text_of_the_cell_is_quoted(tmp_path):
    said = notes(tmp_path, TUTORIAL)[-1]
    assert said == "toy.py says there: **One** is e.g. two. It is also three."


def test_the_docstring_of_the_function_is_quoted(tmp_path):
    said = notes(tmp_path, TUTORIAL.replace("a == 2", "a == 1") + "\n\nf()\n")[-1]
    assert said == "toy.py says there: What the function does. Another cell."


def test_a_script_without_cells_quotes_its_docstring(tmp_path):
    said = notes(tmp_path, '"""What it shows."""\n\nassert [] == [1]\n')[-1]
    assert said == "toy.py says there: What it shows."


def test_an_error_from_elsewhere_stays_as_it_is(tmp_path):
    with pytest.raises(AssertionError) as caught:
        torch.testing.assert_close(torch.zeros(1), torch.ones(1))
    explain(caught.value)
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_assertion_fails_without_a_word(path):
    """One without a message has operands to show; a bare constant, say, would have none."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assert):
            assert node.msg or operands(node.test), f"{path}:{node.lineno}"
