"""Cells of a tutorial that are closed when its page opens."""

import re

import pytest

from tests.support.small_site import SmallSite

PAGE = """\
Lesson
======

Text that stays.

.. fold:: Sizes & <units>
{option}

.. GENERATED FROM PYTHON SOURCE LINES 1-2

.. code-block:: python

    size_of_cell = 3

.. rst-class:: sphx-glr-script-out

 .. code-block:: none

    what it printed

.. GENERATED FROM PYTHON SOURCE LINES 3-4

Text of the next cell.

.. code-block:: python

    next_cell = 4
"""


def lesson(folder, text):
    return SmallSite(folder, {"index.rst": text}, extensions="docs._ext.gallery.folds")


def folded(page):
    """What the only fold of a page holds."""
    (fold,) = re.findall(r'<details class="code-fold">.*?</details>', page, re.S)
    return fold


@pytest.mark.parametrize(("option", "output"), [("", False), ("   :output:", True)])
def test_a_fold_holds_the_code_of_its_cell(tmp_path, option, output):
    page = lesson(tmp_path, PAGE.format(option=option)).built().page("index")
    fold = folded(page)
    assert "<summary>Sizes &amp; &lt;units&gt;</summary>" in fold
    assert "size_of_cell" in fold
    assert ("what it printed" in fold) == output
    rest = page.replace(fold, "")
    assert "size_of_cell" not in rest
    assert "next_cell" in rest
    assert "Text of the next cell" in rest
    assert ("what it printed" in rest) != output


def test_an_apostrophe_of_a_title_is_curly(tmp_path):
    text = PAGE.format(option="").replace("Sizes &", "A script's &")
    assert "<summary>A script’s &amp;" in folded(lesson(tmp_path, text).built().page("index"))


def test_a_fold_without_code_is_a_warning(tmp_path):
    page = "Lesson\n======\n\n.. fold:: Nothing\n\n.. GENERATED FROM LINES 1-2\n\nOnly text.\n"
    done = lesson(tmp_path, page).build()
    assert done.returncode
    assert "index.rst:4: WARNING: no code follows 'fold:: Nothing'" in done.stderr
