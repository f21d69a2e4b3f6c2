"""A search finds the same after an incremental build as after a full one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXTENSIONS = Path(__file__).parents[1] / "docs" / "_ext"
PAGES = {
    "index.rst": "Home\n====\n\n.. toctree::\n\n   other\n   words\n",
    "other.rst": "Other\n=====\n\n.. index:: pair: old; name\n\nText.\n",
    "words.rst": "Words\n=====\n\n.. glossary::\n\n   shuttle\n      See elsewhere.\n",
}


def build(folder, *options):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", *options, "-C"]
    command += ["-D", "project=Toy", "-D", "extensions=search_index"]
    subprocess.run(
        [*command, str(folder / "docs"), str(folder / "html")],
        env={**os.environ, "PYTHONPATH": str(EXTENSIONS)},
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
