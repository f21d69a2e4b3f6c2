"""Which torch for which TorchRL: the page against the pairs that were tried, and this one."""

import csv
import importlib.metadata
import re
import sys

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.support import ROOT
from tests.support.claims import guards
from tools import torch_pairs

PAGE = (ROOT / "docs" / "reference" / "torch_versions.rst").read_text(encoding="utf-8")
ANSWERS = torch_pairs.COLUMNS[4:8]


@pytest.fixture(scope="module")
def rows():
    return torch_pairs.read()


def newest(rows, column):
    return torch_pairs.newest_first({row[column] for row in rows})[0]


def series(version):
    return ".".join(version.split(".")[:2])


@pytest.mark.parametrize("path", torch_pairs.TABLES, ids=lambda path: path.stem)
def test_the_tables_of_the_page_are_those_of_the_pairs(rows, path):
    assert f":file: {path.name}" in PAGE
    with path.open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == list(torch_pairs.TABLES[path](rows))


def test_the_installed_pair_is_in_the_table_and_answers_as_it_says(rows):
    installed = {name: importlib.metadata.version(name) for name in ("torchrl", "torch")}
    cure = f"run: python tools/torch_pairs.py --torchrl {installed['torchrl']} --torch ..."
    (row,) = [
        row
        for row in rows
        if [row["TorchRL"], row["torch"]] == [installed["torchrl"], installed["torch"]]
    ] or pytest.fail(cure)
    assert row["tensordict"] == importlib.metadata.version("tensordict")
    assert torch_pairs.asked(sys.executable) == {column: row[column] for column in ANSWERS}


def test_the_pair_to_install_is_the_newest_that_works(rows):
    (line,) = re.findall(r"pip install torch==(\S+) torchrl==(\S+)", PAGE)
    working = [(row["torch"], row["TorchRL"]) for row in rows if torch_pairs.works(row)]
    assert line == max(working, key=lambda pair: tuple(map(Version, reversed(pair))))
    above = PAGE.partition("\n==")[2].partition("\n.. code-block::")[0]
    assert set(re.findall(r"\b\d+\.\d+\b", above)) == {series(version) for version in line}


@guards("pairs-by-torch")
def test_which_torchrl_a_torch_goes_with(rows):
    beside = {series(row["torch"]): set() for row in rows}
    for row in rows:
        if torch_pairs.works(row):
            beside[series(row["torch"])].add(row["TorchRL"])
    current = {"0.14.1", "0.14.0"}
    assert beside.pop("2.15") == beside.pop("2.14") == current
    assert beside.pop("2.13") == set()
    assert all("0.13.3" in found and not found & current for found in beside.values())
    assert set(beside) == {"2.12", "2.11", "2.10"}


@guards("pairs-newest-torch")
def test_torchrl_takes_the_newest_torch(rows):
    assert {row["torch if none is named"] for row in rows} == {newest(rows, "torch")}
    asked_for = map(Requirement, importlib.metadata.requires("torchrl"))
    (torch,) = [one for one in asked_for if one.name == "torch" and not one.marker]
    assert str(torch.specifier) == ">=2.1.0"


@guards("pairs-silent-import")
def test_every_import_is_silent_and_older_releases_lack_the_extension(rows):
    assert {(row["Import"], row["Printed by the import"]) for row in rows} == {("works", "nothing")}
    current = series(newest(rows, "TorchRL"))
    with_newest = [row for row in rows if row["torch"] == newest(rows, "torch")]
    assert {series(row["TorchRL"]) for row in with_newest if torch_pairs.works(row)} == {current}
    for row in rows:
        assert (row["Extension"] == "loads") is (row["Prioritized replay"] == "samples")


def test_what_does_not_install_or_import_has_a_name_of_its_own(rows):
    works = next(row for row in rows if torch_pairs.works(row))
    changes = {
        "**loads**": {},
        "does not load": {"Extension": "ImportError: undefined symbol: x"},
        "import fails": {"Import": "OSError: libcudart.so"},
        "not installed": {"tensordict": "", "Import": "not installed: no solution"},
    }
    for verdict, change in changes.items():
        assert torch_pairs.verdict(works | change) == verdict
    (_, line) = torch_pairs.matrix([works])
    assert line == [works["TorchRL"], works["tensordict"], "**loads**"]
    other = works | {"TorchRL": "0.1", "torch": "2.0"}
    assert [torch_pairs.NOT_TRIED in line for line in torch_pairs.matrix([works, other])] == [
        False,
        True,
        True,
    ]


@guards("torchrl-requires-tensordict")
def test_torchrl_brings_tensordict():
    required = map(Requirement, importlib.metadata.requires("torchrl"))
    assert "tensordict" in {one.name for one in required if one.marker is None}
