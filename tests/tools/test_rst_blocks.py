"""Every Python block of the RST pages runs, or says why not."""

import shutil
import subprocess
import sys

import pytest

from tests.support import ROOT
from tools import rst_blocks

PAGES = rst_blocks.rst_pages(ROOT / "docs")


def test_there_are_pages():
    assert PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_nothing_slips_through(page):
    complaints = list(rst_blocks.problems(page, ROOT))
    assert not complaints, "\n" + "\n".join(complaints)


RUNS = [
    ".. code-block:: python\n\n   x = 1\n",
    ".. code:: python\n\n   x = 1\n",
    ".. note::\n\n   .. code-block:: python\n\n      x = 1\n",
    "- item\n\n  .. code-block:: python\n     :caption: Caption\n\n     x = 1\n",
    ".. code-block:: python\n\n   >>> 1\n   1\n",
    ".. code-block:: pycon\n\n   >>> 1\n   1\n",
    ">>> 1\n1\n",
    ".. not-executed:: Needs a GPU.\n\n   x = 1\n",
    ".. code-block:: console\n\n   $ make html\n",
    ".. literalinclude:: ../tests/case.py\n",
]
SLIPS = [
    (".. code-block:: python3\n\n   x = 1\n", "nothing runs this 'code-block' block in 'python3'"),
    (".. code-block:: py\n\n   x = 1\n", "nothing runs this 'code-block' block in 'py'"),
    (".. code:: ipython\n\n   x = 1\n", "nothing runs this 'code' block in 'ipython'"),
    (".. sourcecode:: pycon\n\n   x = 1\n", "nothing runs this 'sourcecode' block in 'pycon'"),
    (".. testcode::\n\n   x = 1\n", "nothing runs this 'testcode' block"),
    (".. ipython::\n\n   x = 1\n", "nothing runs this 'ipython' block"),
    ("Text::\n\n   x = 1\n", "code without a language"),
    (".. code-block::\n\n   x = 1\n", "code without a language"),
    (".. invisible-code-block: python\n\n   x = 1\n", "invisible code"),
    (".. literalinclude:: ../elsewhere.py\n", "is not run by the build"),
]


@pytest.fixture
def problems(tmp_path):
    """A function from the text of a page to the complaints about it."""

    def check(text):
        page = tmp_path / "docs" / "page.rst"
        page.parent.mkdir()
        page.write_text(f"Title\n=====\n\nText.\n\n{text}")
        return list(rst_blocks.problems(page, tmp_path))

    return check


@pytest.mark.parametrize("text", RUNS)
def test_a_block_that_runs_or_explains_itself_passes(problems, text):
    assert problems(text) == []


@pytest.mark.parametrize(("text", "complaint"), SLIPS)
def test_a_block_that_slips_through_is_named(problems, text, complaint):
    (found,) = problems(text)
    assert found.startswith("docs/page.rst:")
    assert complaint in found


PAGE = '''\
Title
=====

.. code-block:: python

   x = 3

>>> x
3

.. not-executed:: Needs four
   GPUs.

   raise RuntimeError("must not run")

.. not-executed:: Shows a docstring.

   """
   >>> raise RuntimeError("must not run either")
   """
'''


@pytest.fixture
def run_pages(tmp_path):
    """A function that runs pages under the real docs/conftest.py in a fresh process."""

    def run(*options, **pages):
        docs = tmp_path / "docs"
        docs.mkdir()
        shutil.copy(ROOT / "docs" / "conftest.py", docs)
        for name, text in pages.items():
            (docs / f"{name}.rst").write_text(text)
        (tmp_path / "pytest.ini").write_text(
            f"[pytest]\npythonpath = {ROOT}\nfilterwarnings = error\n"
        )
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "docs", *options],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )

    return run


@pytest.mark.parametrize("workers", ["0", "2"])
def test_share_is_printed_with_reasons(run_pages, workers):
    run = run_pages("-n", workers, "--dist", "loadfile", page=PAGE)
    assert run.returncode == 0, run.stdout
    assert "RST Python blocks: 2 executed of 4 (50.0 %)" in run.stdout
    assert "not executed: docs/page.rst:11: Needs four GPUs." in run.stdout


@pytest.mark.parametrize("workers", ["0", "2"])
def test_share_of_a_selection_is_of_the_pages_that_ran(run_pages, workers):
    run = run_pages("-n", workers, "-k", "first", first=">>> 1\n1\n", second=">>> 1\n1\n")
    assert "RST Python blocks: 1 executed of 1 (100.0 %)" in run.stdout


def test_page_without_a_block_that_runs_still_counts(run_pages):
    run = run_pages(page=PAGE, only="T\n=\n\n.. not-executed:: Reason.\n\n   x = 1\n")
    assert "RST Python blocks: 2 executed of 5 (40.0 %)" in run.stdout


def test_block_that_was_not_reached_is_not_counted_as_executed(run_pages):
    run = run_pages("-x", page="T\n=\n\n>>> 1\n2\n\nText.\n\n>>> 1\n1\n")
    assert "RST Python blocks: 1 executed of 2 (50.0 %)" in run.stdout
    assert "not executed: docs/page.rst:9: did not run" in run.stdout


def test_wrong_output_a_warning_and_a_leaking_name_fail(run_pages):
    run = run_pages(
        output="T\n=\n\n>>> 1 + 1\n3\n",
        blanks="T\n=\n\n>>> \"a  b\"\n'a b'\n",
        warns="T\n=\n\n.. code-block:: python\n\n   import warnings\n\n   warnings.warn('no')\n",
        first="T\n=\n\n.. code-block:: python\n\n   leaked = 1\n",
        second="T\n=\n\n.. code-block:: python\n\n   print(leaked)\n",
    )
    assert run.returncode == 1
    failed = {line.split("::")[0] for line in run.stdout.splitlines() if line[:6] == "FAILED"}
    assert failed == {f"FAILED docs/{n}.rst" for n in ("output", "blanks", "warns", "second")}
