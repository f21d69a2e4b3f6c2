"""The site's figures come from runs and records; the check that says so finds what it should."""

import pytest

from tests.support import ROOT
from tools import typed_numbers

TYPED = [
    "13,200 B",
    "10 kB",
    "1.5 KiB",
    "3 MB",
    "3\u00a0MiB",
    "64 GB",
    "13 200 bytes".replace(" ", "\u202f", 1),
    "12 ms",
    "4 µs",
    "2 s",
    "30 seconds",
    "30-second",
    "5 minutes",
    "40 fps",
    "900 frames/s",
    "900 frames per second",
    "3.2 GHz",
    "24.2 %",
    "24.2%",
    "50 percent",
    "2x",
    "3.1×",
    "2 × slower",
    "10 times faster",
    "7 times the",
    "200 frames",
    "1,000 steps",
    "two seconds",
    "ten times faster",
    "half the memory",
    "twice as fast",
    "a third of the time",
]
UNTYPED = [
    "84 x 84 pixels",
    "4x84x84",
    "4 × 84 × 84",
    "4x 84x 84",
    "torchrl 0.14.1",
    "Python 3.11 to 3.13",
    "step 3 of 5 steps",
    "32-bit",
    "the second half of the page",
    "issue #2",
    "(T-1) observations",
    "float32",
    "one of the two sides",
    "called 3 times",
    "half as many keys",
    "double precision",
]


@pytest.mark.parametrize("text", TYPED)
def test_typed_figure_is_found(text):
    assert [figure for _, figure in typed_numbers.figures_in(f"It is {text}, then more.")] == [
        " ".join(text.split())
    ]


@pytest.mark.parametrize("text", UNTYPED)
def test_other_number_is_left_alone(text):
    assert list(typed_numbers.figures_in(f"It is {text}, then more.")) == []


RST = """\
Title of 11 kB
==============

A buffer takes 12
kB in prose; :measured:`suite@cpu:95 kB:bytes` is fine, and so is :math:`T - 1`.

.. note:: argument of 13 kB

   * item of 14 kB

.. figure:: a.png
   :alt: alternative of 15 kB

   caption of 16 kB

.. record-plot:: suite@cpu
   :caption: caption of 17 kB

.. list-table::

   * - cell of 18 kB

.. code-block:: python

   # comment of 19 kB
   print("90 kB")

.. code-block:: console

   $ du  # 20 kB

>>> print("91 kB")
92 kB

:math:`24.2\\,\\%`, ``22 kB``, :ref:`23 kB <target>`

.. a comment of 93 kB
"""

TUTORIAL = '''\
"""
Title
=====

Docstring of 31 kB.
"""

# %%
# Cell of 32
# kB.

saving = 1  # comment of 33 kB
ax.set_title("title of 34 kB")
ax.set_ylabel(f"label of 35 kB and {saving} kB")
print("printed 36 kB")
assert text == "94 kB"
# code comment split after 37
# kB
'''


@pytest.fixture
def repository(tmp_path):
    """A repository whose typed figures are 11 to 23 kB in RST and 31 to 38 kB elsewhere."""
    for folder in ("docs", "tutorials/topic", "tests/tools"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "docs" / "page.rst").write_text(RST)
    (tmp_path / "tutorials" / "topic" / "lesson.py").write_text(TUTORIAL)
    (tmp_path / "README.md").write_text("# Name\n\nIt takes 38\nkB.\n")
    (tmp_path / typed_numbers.ALLOWED).write_text("")
    return tmp_path


def found(root, file):
    return {f.text: f.line for f in typed_numbers.figures(root) if f.file == file}


def test_every_place_of_rst_is_read_and_lines_are_right(repository):
    figures = found(repository, "docs/page.rst")
    assert {f"{n} kB" for n in (*range(11, 21), 22, 23)} | {"24.2 %"} == set(figures)
    lines = RST.splitlines()
    for text, line in figures.items():
        assert text.split()[0] in lines[line - 1]


def test_every_place_of_a_tutorial_is_read_and_lines_are_right(repository):
    figures = found(repository, "tutorials/topic/lesson.py")
    assert {f"{n} kB" for n in range(31, 38)} == set(figures)
    lines = TUTORIAL.splitlines()
    for text, line in figures.items():
        assert text.split()[0] in lines[line - 1]


def test_markdown_is_read(repository):
    assert found(repository, "README.md") == {"38 kB": 3}


def test_complaint_names_place_figure_and_cure(repository):
    complaint = next(c for c in typed_numbers.check(repository) if "README" in c)
    assert complaint.startswith("README.md:3: figure '38 kB' is typed by hand; print it in a run")


def test_allowed_figure_is_not_reported(repository):
    before = typed_numbers.check(repository)
    (repository / typed_numbers.ALLOWED).write_text("README.md | 38 kB | by definition\n")
    assert set(before) - set(typed_numbers.check(repository)) == {
        f"README.md:3: figure '38 kB' is typed by hand; {typed_numbers.CURE}"
    }


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ("README.md | 39 kB | gone", "'39 kB' is no longer in README.md; delete the line"),
        ("README.md | 38 kB |", "with a reason"),
        ("README.md | 38 kB", "with a reason"),
        ("README.md | 38 kB | a\nREADME.md | 38 kB | b", "listed twice"),
        ("docs/page.rst | 11 kB | a\nREADME.md | 38 kB | b", "not sorted"),
    ],
)
def test_bad_exception_is_reported(repository, lines, complaint):
    (repository / typed_numbers.ALLOWED).write_text(lines + "\n")
    assert any(complaint in each for each in typed_numbers.check(repository))


def test_command_line(repository, capsys):
    assert typed_numbers.main(["--root", str(repository)]) == 1
    assert "README.md:3" in capsys.readouterr().out


def test_no_figure_is_typed_in_this_repository():
    complaints = typed_numbers.check(ROOT)
    assert not complaints, "\n" + "\n".join(complaints)
