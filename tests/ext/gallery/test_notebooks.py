"""The notebooks that readers download: readable text, the script's code, and that they run.

The gallery has executed the code of each script, so here one notebook shows that a kernel can
execute it too, workers included; `make notebook-test` executes all.
"""

import ast
import io
import json
import sys
import zipfile

import nbclient
import nbformat
import pytest
from sphinx_gallery.gen_gallery import DEFAULT_GALLERY_CONF

from docs._ext.gallery import notebooks
from docs._ext.support import galleries
from tests.support import ROOT

TUTORIALS = galleries.scripts(ROOT)
SYMPTOMS = [script for script in TUTORIALS if script.parent.name == "debugging"]
LESSONS = [script for script in TUTORIALS if script not in SYMPTOMS]
PAGE = "``tutorials/memory/x.html``"
REQUIREMENTS = ["torchrl", "numpy"]

SCRIPT = '''"""
Title
=====

About :class:`~torchrl.collectors.Collector` and ``:class:`literal```.
"""

import math  # sphinx_gallery_thumbnail_number = 1

# %%
# Section
# -------
#
# .. tip::
#    :class: wide
#
#    Read :term:`rollouts <rollout>`.
#
#    Second paragraph.
#
# .. record-table:: memory@cpu
#    :columns: value
#
# After it :math:`a^2`.

print(math.pi)
'''


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        (":class:`torch.nn.LSTM`", "``torch.nn.LSTM``"),
        (":class:`~torch.nn.LSTM`", "``LSTM``"),
        (":py:meth:`!step`", "``step``"),
        (":func:`its name <torch.nn.LSTM>`", "its name"),
        (":source:`torchrl.envs.GymEnv.step`", "``torchrl.envs.GymEnv.step``"),
        (":source:`the code <torchrl.envs.GymEnv>`", "the code"),
        (":term:`rollout`", "rollout"),
        (":thread:`1406`", "pytorch/rl#1406"),
        (":term:`two\nlines <rollout>`", "two lines"),
        (":doc:`/reference/collectors_basics`", "*collectors basics*"),
        (":ref:`its title <label>`", "its title"),
        (":math:`x^2`", ":math:`x^2`"),
        ("``:class:`kept```", "``:class:`kept```"),
        ("it. :claim:`an-id`", "it."),
    ],
)
def test_role(markup, expected):
    assert notebooks.readable(f"Before {markup} after", PAGE) == f"Before {expected} after\n"


def test_measured_role_names_its_record():
    text = notebooks.readable("It takes :measured:`memory@cpu:compact:bytes`.", PAGE)
    assert "``memory@cpu:compact:bytes``" in text
    assert ":measured:" not in text


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        (".. note:: One line.\n", "> **Note**\n> \n> One line."),
        (".. admonition:: Gotcha\n   :class: x\n\n   Text.\n", "> **Gotcha**\n> \n> Text."),
        (".. record-plot:: memory@cpu\n", "``memory@cpu``"),
        (".. only:: html\n\n   Web.\n", "Before\n\n"),
        (
            ".. list-table:: Sizes\n   :header-rows: 1\n\n   * - a\n     - b\n   * - c\n     - d\n",
            "| a | b |\n| --- | --- |\n| c | d |",
        ),
        (
            ".. literalinclude:: ../page.py\n   :pyobject: f\n",
            f"The listing stands on the page {PAGE}.",
        ),
        (
            ".. not-executed:: It needs GPUs.\n\n   run()\n",
            "This code is not executed here. It needs GPUs.\n\n.. code-block:: python\n\n    run()",
        ),
    ],
)
def test_directive(markup, expected):
    text = notebooks.readable(f"Before\n\n{markup}\nAfter\n", PAGE)
    assert expected in text
    assert text.rstrip().endswith("\nAfter")
    assert markup.splitlines()[0] not in text


def test_definition_list():
    text = "Before:\n\n``a``\n    first\n    second\n``b``\n    third\n\nAfter\n"
    expected = "Before:\n\n* ``a``:\n  first\n  second\n* ``b``:\n  third\n\nAfter\n"
    assert notebooks.readable(text, PAGE).rstrip() == expected.rstrip()


def test_field_list():
    text = "Before\n\n:Cause: one line\n:Source: another\n   and its rest\n\nAfter\n"
    expected = "Before\n\n* **Cause:** one line\n* **Source:** another\n   and its rest\n\nAfter"
    assert notebooks.readable(text, PAGE).rstrip() == expected


@pytest.mark.parametrize(
    "text", ["* item\n  goes on\n\nAfter", ".. image:: x\n   :alt: y\n\nAfter", "Code::\n\n   x\n"]
)
def test_what_is_no_definition_list_stays(text):
    assert notebooks.readable(text, PAGE).rstrip() == text.rstrip()


def test_anonymous_link():
    assert notebooks.readable("`T <https://a.b/c>`__.", PAGE).rstrip() == "`T <https://a.b/c>`_."


@pytest.fixture
def notebook(tmp_path):
    script = tmp_path / "example.py"
    script.write_text(SCRIPT, encoding="utf-8")
    return notebooks.notebook_of(script, dict(DEFAULT_GALLERY_CONF), PAGE, REQUIREMENTS)


def test_notebook_text_and_code(notebook):
    content, left = notebook
    assert left == []
    kinds = [cell["cell_type"] for cell in content["cells"]]
    assert kinds == ["code", "markdown", "code", "markdown", "code"]
    texts = ["".join(cell["source"]) for cell in content["cells"]]
    assert "# %pip install torchrl==" in texts[0]
    assert all(line.startswith("#") for line in texts[0].splitlines())
    assert texts[1] == "# Title\n\nAbout ``Collector`` and ``:class:`literal```."
    assert texts[3].startswith("## Section\n")
    assert "> **Tip**\n> \n> Read rollouts.\n> \n> Second paragraph." in texts[3]
    assert "record ``memory@cpu``" in texts[3]
    assert "$a^2$" in texts[3]
    assert texts[4] == "print(math.pi)"


def test_notebook_is_valid_and_stable(notebook, tmp_path):
    content, _ = notebook
    nbformat.validate(content)
    again, _ = notebooks.notebook_of(
        tmp_path / "example.py", dict(DEFAULT_GALLERY_CONF), PAGE, REQUIREMENTS
    )
    assert json.dumps(again) == json.dumps(content)
    assert sys.version.split()[0] not in json.dumps(content["metadata"])


def test_unknown_markup_is_reported(tmp_path):
    script = tmp_path / "example.py"
    script.write_text('"""\nT\n=\n\n.. csv-table:: x\n\n   a, b\n\nSee :odd:`x`.\n"""\n')
    _, left = notebooks.notebook_of(script, dict(DEFAULT_GALLERY_CONF), PAGE, REQUIREMENTS)
    assert left == [".. csv-table::", ":odd:`x"]


def test_archive_depends_on_its_members_alone(monkeypatch):
    first = notebooks.archive({"x.py": b"1"})
    monkeypatch.setattr("time.time", lambda: 2_000_000_000.0)
    assert notebooks.archive({"x.py": b"1"}) == first
    assert zipfile.ZipFile(io.BytesIO(first)).namelist() == ["x.py"]


def notebook_without_leftovers(script):
    content, left = notebooks.notebook_of(
        script, dict(DEFAULT_GALLERY_CONF), PAGE, ["torch", "torchrl"]
    )
    assert left == [], script.name
    return nbformat.reads(json.dumps(content), as_version=4)


def execute(book, folder, monkeypatch):
    """As a reader runs it: no repository around, the code cells in order, no error."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    client = nbclient.NotebookClient(
        book, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))


@pytest.mark.parametrize("script", TUTORIALS, ids=lambda s: s.stem)
def test_notebook_has_the_code_of_its_script_and_no_other(script):
    cells = notebook_without_leftovers(script).cells
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    written = ast.parse(script.read_text(encoding="utf-8"))
    del written.body[0]  # the text at the top
    assert ast.unparse(ast.parse(code)) == ast.unparse(written)


@pytest.mark.slow
def test_a_notebook_with_workers_runs_in_an_empty_folder(tmp_path, monkeypatch):
    """A worker of a notebook finds no main module that it could import again."""
    (script,) = (script for script in SYMPTOMS if script.stem == "workers_act_alike")
    execute(notebook_without_leftovers(script), tmp_path, monkeypatch)


@pytest.mark.notebook
@pytest.mark.parametrize("script", LESSONS, ids=lambda s: s.stem)
def test_notebook_runs_in_an_empty_folder(script, tmp_path, monkeypatch):
    execute(notebook_without_leftovers(script), tmp_path, monkeypatch)


EMPTY = "for name in set(dir()) - {'In', 'Out', 'exit', 'quit', 'get_ipython'}:\n"
EMPTY += "    if not name.startswith('_'):\n        del globals()[name]"


@pytest.mark.notebook
def test_notebooks_of_symptoms_run_in_an_empty_folder(tmp_path, monkeypatch):
    """One kernel for all, emptied before each: most of a page's cost is the import of TorchRL.

    ``%reset`` would also take what multiprocessing needs of the main module.
    """
    assert SYMPTOMS
    book = nbformat.v4.new_notebook()
    for script in SYMPTOMS:
        book.cells.append(nbformat.v4.new_code_cell(f"# {script.stem}\n{EMPTY}"))
        book.cells += notebook_without_leftovers(script).cells
    execute(book, tmp_path, monkeypatch)
