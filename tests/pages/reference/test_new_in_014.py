"""What 0.14 added: the names of the page are in the comparison of two releases, and importable."""

import csv
import importlib
import re

import pytest

from tests.support import ROOT
from tests.support.claims import guards
from tests.support.shown_calls import bound_calls

REFERENCE = ROOT / "docs" / "reference"
PAGE = (REFERENCE / "new_in_014.rst").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def added():
    """The new names, by package."""
    with (REFERENCE / "new_in_014.csv").open(encoding="utf-8", newline="") as file:
        return {row["Package"]: set(row["New names"].split(", ")) for row in csv.DictReader(file)}


def test_the_names_are_exported(added):
    for package, names in added.items():
        module = importlib.import_module(package)
        assert [name for name in names if not hasattr(module, name.strip("`"))] == []


def test_what_the_page_calls_new_is_new(added):
    new = {name.strip("`") for names in added.values() for name in names}
    used = set(re.findall(r"^>>> from torchrl\.\S+ import (\w+)$", PAGE, re.M))
    used |= set(re.findall(r"^>>> .* import .*\b(ProcessInferenceServer)$", PAGE, re.M))
    assert used >= {"Sequence", "traj", "PolicyAgeFilter", "ProcessInferenceServer"}
    assert "StreamingSliceSampler" in used
    assert used <= new


@guards("not-new-in-014")
def test_what_is_called_new_and_is_not_is_older(added):
    new = set.union(*added.values())
    for package, name in [
        ("torchrl.envs", "AsyncEnvPool"),
        ("torchrl.data", "RayReplayBuffer"),
        ("torchrl.data", "StoreStorage"),
    ]:
        assert hasattr(importlib.import_module(package), name)
        assert f"``{name}``" not in new


def test_what_is_shown_without_a_run_fits_the_installed_signatures():
    assert bound_calls("docs/reference/new_in_014.rst") == [
        "RayReplayBuffer",
        "RayReplayBuffer.extend",
        "RayReplayBuffer.client",
        "RayReplayBuffer.close",
        "StoreStorage",
        "ReplayBuffer",
        "ReplayBuffer.extend",
        "ReplayBuffer.sample",
    ]
