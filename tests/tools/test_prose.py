"""Habits of prose: what the patterns find and leave alone, what is read, and the exceptions."""

import pytest

from tests.support import ROOT
from tools import prose

FOUND = {
    "clause as subject": [
        "Who keeps that object writes into the batch.",
        "What the policy writes is missing from such a row.",
        "Which symbol decides what, at the lines of the release.",
        "Whether two trunks cost more.",
        "What to read out of it:",
        "Right are the slices that begin a trajectory.",
    ],
    "figure alone": [
        "Two environments on two cores gain nothing: 1.",
        "That shows, with four environments: 1.9 and 1.2.",
        "It gains little: :measured:`suite@cpu:a:ratio`.",
        "It gains little: :measured:`suite@cpu:a:ratio` and :measured:`suite@cpu:b:ratio`.",
    ],
    "digits": [
        "It takes 78.97 % of an iteration.",
        "A ratio of 1.057x.",
        "It is 13,245 times as long.",
    ],
    "builder's talk": [
        "A release with another order stops the build.",
        "Every sentence here is a test against the record.",
        "If it changes, the build fails.",
        "A test holds the table against the run.",
        "The run behind the table does more.",
    ],
    "home-made term": [
        "All claims, each with its run.",
        "Its doors are two functions.",
        "Compare it with the truth.",
        "It counts the wrong rows.",
    ],
    "stands": ["All sizes stand here.", "The reward stands under ``next``."],
    "speaking object": ["The docstring says of itself that it gets states."],
}
LEFT = [
    "Who resets the state?",
    "What waits? Nothing does.",
    "What you see",
    "The rights are yours.",
    "Batching pays: 1.2x with two environments, 1.9x with four.",
    "Three parts: 3 reads and a write.",
    "The ratio is 1 : 2 at most.",
    "It takes 79 % of an iteration, on torch 2.15.0.",
    "A state of 1,024 B in 4096 rows.",
    "The build has two parts, and the page says so.",
    "A run of your script takes long.",
    "Rows of the ground truth.",
    "Two things stand for one: it cannot stand alone.",
    "``What stands here is code.``",
]


def found(text):
    """Pairs (pattern, line) in RST."""
    return [
        (pattern.name, line)
        for line, paragraph in prose.paragraphs(text.splitlines())
        for sentence in prose.SENTENCE_END.split(prose.plain(paragraph))
        for pattern in prose.PATTERNS
        if pattern.regex.search(sentence)
    ]


def test_every_pattern_has_examples():
    assert list(FOUND) == [pattern.name for pattern in prose.PATTERNS]


@pytest.mark.parametrize(("name", "text"), [(name, text) for name in FOUND for text in FOUND[name]])
def test_habit_is_found(name, text):
    assert found(f"So it is. {text} More follows.") == [(name, 1)]


@pytest.mark.parametrize("text", LEFT)
def test_other_sentence_is_left_alone(text):
    assert found(text) == []


RST = """\
What the page has
=================

A sentence in two lines
stands here.

.. note:: An argument stands here.

   * An item stands
     here.

.. list-table:: A caption stands here.

   * - A cell stands here.
     - :doc:`A link stands here <target>`.

.. record-plot:: suite@cpu
   :caption: A caption stands here.
   :rows: a row stands here

.. code-block:: python

   # code stands here

   # code stands here too

Literal stands here::

    code stands here

>>> print("code stands here")
code stands here

.. a comment stands here
   and here it stands here

The last one stands here. :claim:`stands-here`
"""

TUTORIAL = '''\
"""
The docstring stands here.
"""

import torch

# %%
# The cell
# stands here.

size = 1  # a comment stands here
# another stands here
'''


def test_every_place_of_rst_is_read():
    lines = RST.splitlines()
    starts = [
        "A sentence",
        ".. note",
        "   * An",
        ".. list",
        "   * - A",
        "     - :doc",
        "   :caption",
    ]
    starts += ["Literal", "The last"]
    expected = [next(i for i, s in enumerate(lines, 1) if s.startswith(start)) for start in starts]
    assert [line for _, line in found(RST)] == expected


@pytest.fixture
def repository(tmp_path):
    """A repository with one habit on a page, two in a tutorial, and more in generated files."""
    for folder in ("docs/tutorials", "docs/reference/api/notes", "tutorials", "tests/tools"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "docs" / "page.rst").write_text("All sizes stand here.\n")
    for generated in ("docs/tutorials/page.rst", "docs/reference/api/torch.rst"):
        (tmp_path / generated).write_text("All sizes stand here.\n")
    (tmp_path / "tutorials" / "lesson.py").write_text(TUTORIAL)
    (tmp_path / prose.EXCEPTIONS).write_text("# sorted\n")
    return tmp_path


def test_text_cells_are_read_and_generated_pages_are_not(repository):
    findings = [(finding.file, finding.line) for finding in prose.findings(repository)]
    assert findings == [
        ("docs/page.rst", 1),
        ("tutorials/lesson.py", 2),
        ("tutorials/lesson.py", 8),
    ]


def test_complaint_names_file_line_pattern_excerpt_and_cure(repository):
    assert "docs/page.rst:1: stands: 'All sizes stand here.'; is, has, comes after" in prose.check(
        repository
    )


ENTRIES = "docs/page.rst | stands | All sizes stand here.\ntutorials/lesson.py | stands | The {}\n"


def test_listed_sentence_is_not_reported(repository):
    (repository / prose.EXCEPTIONS).write_text(ENTRIES.format("cell stands here."))
    (complaint,) = prose.check(repository)
    assert "docstring" in complaint


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (ENTRIES.format("roof stands here."), "The roof stands here. is mended; take the line out"),
        ("docs/page.rst | stands", "write 'file | pattern | excerpt'"),
        ("b | stands | x\na | stands | x", "not sorted"),
        ("a | stands | x\na | stands | x", "or twice"),
    ],
)
def test_bad_exception_is_reported(repository, lines, complaint):
    (repository / prose.EXCEPTIONS).write_text(lines)
    assert any(complaint in each for each in prose.check(repository))


def test_prune_takes_out_what_is_mended_and_adds_nothing(repository, capsys):
    path = repository / prose.EXCEPTIONS
    page, docstring = ENTRIES.format("docstring stands here.").splitlines(keepends=True)
    gone = page.replace("All", "Some")
    path.write_text("".join(["# sorted\n", docstring, page, gone, page]))
    assert prose.main(["--root", str(repository), "--prune"]) == 1
    assert path.read_text() == f"# sorted\n{page}{docstring}"
    assert "tutorials/lesson.py:8" in capsys.readouterr().out


def test_this_repository_has_no_habit_but_the_listed_ones():
    complaints = prose.check(ROOT)
    assert not complaints, "\n" + "\n".join(complaints)
