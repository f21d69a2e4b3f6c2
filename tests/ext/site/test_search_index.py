"""A search finds the same after an incremental build as after a full one."""

import json
import os
import subprocess
import sys

import pytest

from tests.support import ROOT

PAGES = {
    "index.rst": "Home\n====\n\n.. toctree::\n\n   other\n   words\n",
    "other.rst": "Other\n=====\n\n.. index:: pair: old; name\n\nText.\n",
    "words.rst": "Words\n=====\n\n.. glossary::\n\n   shuttle\n      See elsewhere.\n",
}


def build(folder, *options):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", *options, "-C"]
    command += [
        "-D",
        "project=Toy",
        "-D",
        "extensions=docs._ext.site.search_index,docs._ext.source.renamed_api",
    ]
    subprocess.run(
        [*command, str(folder / "docs"), str(folder / "html")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    return (folder / "html" / "searchindex.js").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "docs").mkdir()
    for name, text in PAGES.items():
        (tmp_path / "docs" / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_an_edit_elsewhere_loses_no_entry(folder):
    assert '"shuttle":[[' in build(folder)
    with (folder / "docs" / "index.rst").open("a", encoding="utf-8") as page:
        page.write("\nMore.\n")
    again = build(folder)
    assert '"shuttle":[[' in again
    assert again == build(folder, "-E", "-a")


def test_a_removed_page_takes_its_entries_along(folder):
    assert '"old":[[' in build(folder)
    (folder / "docs" / "other.rst").unlink()
    (folder / "docs" / "index.rst").write_text(PAGES["index.rst"].replace("   other\n", ""))
    again = build(folder)
    assert '"old":[[' not in again
    assert '"shuttle":[[' in again


def titles(index):
    return json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))["alltitles"]


def test_a_term_is_listed_as_it_is_spelled(folder):
    text = PAGES["words.rst"] + "\n   _AcceptedKeys\n   n-step return\n      More.\n"
    (folder / "docs" / "words.rst").write_text(text, encoding="utf-8")
    index = build(folder)
    words = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))["docnames"].index(
        "words"
    )
    assert titles(index)["_AcceptedKeys"] == [[words, "term-_AcceptedKeys"]]
    assert titles(index)["n-step return"] == [[words, "term-n-step-return"]]
    assert titles(index)["Words"] == [[words, None]]


def test_a_removed_term_leaves_the_index(folder):
    assert "shuttle" in titles(build(folder))
    text = PAGES["words.rst"].replace("shuttle", "carrier")
    (folder / "docs" / "words.rst").write_text(text, encoding="utf-8")
    again = build(folder)
    assert "shuttle" not in titles(again)
    assert "carrier" in titles(again)
    assert again == build(folder, "-E", "-a")


TABLE = """Changes
=======

.. list-table::
   :header-rows: 1

   * - Old
     - New
   * - ``OldSpec`` of ``toy.data``
     - ``Spec``
   * - ``KeptName`` of ``toy.other``
     - here
   * - ``StillThere(old_flag=...)``
     - nothing
   * - ``Loop._walk_back``
     - ``Loop.back``
   * - ``costs``
     - a word

.. py:class:: KeptName
.. py:class:: toy.StillThere

.. list-table::
   :header-rows: 1

   * - Name
   * - ``NotOld``
"""


def test_old_names_lead_to_their_row(folder):
    (folder / "docs" / "other.rst").write_text(TABLE, encoding="utf-8")
    index = build(folder)
    data = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))
    page = data["docnames"].index("other")
    rows = {"OldSpec", "old_flag", "_walk_back"}
    found = {title for title, places in data["alltitles"].items() if f"old-{title}" in str(places)}
    assert found == rows
    for name in rows:
        assert data["indexentries"][name.lower()] == [[page, f"old-{name}", True]]
    text = (folder / "html" / "other.html").read_text(encoding="utf-8")
    assert all(f'id="old-{name}"' in text for name in rows)
    assert 'id="old-NotOld"' not in text
    with (folder / "docs" / "index.rst").open("a", encoding="utf-8") as home:
        home.write("\nMore.\n")
    again = build(folder)
    assert again == build(folder, "-E", "-a")
    assert '"_walk_back":[[' in again
