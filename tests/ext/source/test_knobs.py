"""What docs/_ext/source/knobs.py writes on a small site, and what it refuses."""

import inspect
import os
import re

import pytest
from torchrl.objectives import HardUpdate

from docs._ext.source.knobs import default
from docs._ext.source.lookup import SymbolNotFound
from tests.support import ROOT, sphinx_forks
from tests.support.search import titles_and_addresses

KNOB = """
.. knob:: no_cuda_sync
   :of: torchrl.collectors.Collector
   :trade-off: Speed for safety.
   :flip: Never blindly.
   :benchmark: not measured on CUDA yet

   Leaves out a wait.
"""
PLAIN = KNOB.replace("no_cuda_sync", "SWITCH (driver)").replace(
    ":of: torchrl.collectors.Collector",
    ":source: torchrl.collectors.Collector\n   :default: unset",
)
PAGES = {
    "index.rst": "Home\n====\n\n:knob:`no_cuda_sync`, :knob:`a switch <SWITCH (driver)>`\n\n"
    ".. toctree::\n\n   page\n   other\n\n.. knob-index::\n",
    "page.rst": f"Page\n====\n{KNOB}",
    "other.rst": f"Other\n=====\n{PLAIN}",
}


def build(folder, *options):
    options = ["-q", "-W", "--keep-going", "-n", *options, "-C"]
    options += [
        "-D",
        "project=Toy",
        "-D",
        "extensions=docs._ext.source.knobs,docs._ext.site.search_index",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    done = sphinx_forks.run(*options, folder / "docs", folder / "html", env=environment)
    return done.returncode, done.stderr


def found_in(folder):
    """Titles and addresses of the search index."""
    return titles_and_addresses(folder / "html")


def text(folder, name):
    page = (folder / "html" / f"{name}.html").read_text(encoding="utf-8")
    body = page.partition('role="main"')[2].partition("sphinxsidebar")[0]
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "docs").mkdir()
    for name, content in PAGES.items():
        (tmp_path / "docs" / name).write_text(content, encoding="utf-8")
    return tmp_path


def test_an_entry_has_the_installed_default_and_its_source(folder):
    assert build(folder) == (0, "")
    shown = text(folder, "page")
    assert "no_cuda_sync Leaves out a wait. Default: False . When to turn it, trade-off, " in shown
    assert "measured When : Never blindly. Trade-off : Speed for safety. Measured" in shown
    assert 'id="knob-no-cuda-sync"' in (folder / "html" / "page.html").read_text()
    assert "github.com/pytorch/rl/blob/v" in (folder / "html" / "page.html").read_text()
    assert "SWITCH (driver) Leaves out a wait. Default: unset" in text(folder, "other")


def test_a_dotted_name_is_the_parameter_of_its_last_part(folder):
    page = folder / "docs" / "page.rst"
    page.write_text(page.read_text() + KNOB.replace(":: no_cuda", ":: Collector.no_cuda"))
    assert build(folder) == (0, "")
    assert "Collector.no_cuda_sync Leaves out a wait. Default: False" in text(folder, "page")
    assert ("Collector.no_cuda_sync", "page.html#knob-collector-no-cuda-sync") in found_in(folder)


def test_a_parameter_of_another_name_is_read(folder):
    page = folder / "docs" / "page.rst"
    knob = KNOB.replace("knob:: no_cuda_sync", "knob:: HardUpdate").replace(
        ":of: torchrl.collectors.Collector",
        ":of: torchrl.objectives.HardUpdate\n   :parameter: value_network_update_interval\n"
        "   :source: torchrl.objectives.SoftUpdate",
    )
    page.write_text(page.read_text() + knob)
    assert build(folder) == (0, "")
    installed = inspect.signature(HardUpdate).parameters["value_network_update_interval"].default
    assert f"Default: value_network_update_interval={installed} . When" in text(folder, "page")
    assert "Source : SoftUpdate" in text(folder, "page")


def test_the_table_and_the_role_lead_to_the_entries(folder):
    build(folder)
    page = (folder / "html" / "index.html").read_text()
    assert page.count('href="page.html#knob-no-cuda-sync"') == 2
    assert page.count('href="other.html#knob-switch-driver"') == 2
    assert "no_cuda_sync Leaves out a wait. False" in text(folder, "index")


def test_a_default_in_words_is_no_code(folder):
    other = folder / "docs" / "other.rst"
    other.write_text(other.read_text().replace(":default: unset", ":default: unset, no checks"))
    build(folder)
    table = (folder / "html" / "index.html").read_text().partition("<table")[2]
    assert "<p>unset, no checks</p>" in table
    assert '<span class="pre">False</span></code></p>' in table


def test_an_edited_entry_changes_the_table_elsewhere(folder):
    build(folder)
    page = folder / "docs" / "page.rst"
    page.write_text(page.read_text().replace("out a wait", "out a sync"))
    assert build(folder) == (0, "")
    assert "no_cuda_sync Leaves out a sync. False" in text(folder, "index")


def test_search_finds_an_entry_by_its_name(folder):
    build(folder)
    found = found_in(folder)
    assert ("no_cuda_sync", "page.html#knob-no-cuda-sync") in found
    assert ("SWITCH (driver)", "other.html#knob-switch-driver") in found
    build(folder)
    assert found_in(folder) == found


BROKEN = {
    "renamed": ("no_cuda_sync", "no_cuda_synch", "did you mean 'no_cuda_sync'?"),
    "vanished": ("collectors.Collector", "collectors.Gatherer", "has no 'Gatherer'"),
    "field": ("   :flip: Never blindly.\n", "", "needs the options flip"),
    "neither": ("   :of: torchrl.collectors.Collector\n", "", "either of or default"),
    "typed": ("   :flip:", "   :default: False\n   :flip:", "either of or default"),
    "parameter": ("   :flip:", "   :parameter: no_cuda\n   :flip:", "has no parameter 'no_cuda'"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_entry_is_named(folder, broken):
    before, after, said = BROKEN[broken]
    (folder / "docs" / "page.rst").write_text(PAGES["page.rst"].replace(before, after))
    status, output = build(folder)
    assert status == 1
    assert "page.rst:4: " in output
    assert said in output


def test_a_reference_to_no_knob_is_named(folder):
    index = folder / "docs" / "index.rst"
    index.write_text(index.read_text().replace(":knob:`no_cuda_sync`", ":knob:`no_sync`"))
    status, output = build(folder)
    assert status == 1
    assert "index.rst:4: WARNING: there is no knob 'no_sync'" in output


def test_a_second_entry_is_named(folder):
    (folder / "docs" / "other.rst").write_text(PAGES["other.rst"] + KNOB)
    for _ in range(2):
        status, output = build(folder)
        assert status == 1
        assert "page.rst:4: WARNING: the knob 'no_cuda_sync' has an entry on page other" in output


def test_defaults_of_parameters_and_fields():
    assert default("torchrl.collectors.Collector", "no_cuda_sync") == "False"
    assert default("torchrl.collectors.Collector", "create_env_fn") is None
    assert default("torchrl.collectors.ProfileConfig", "with_stack") == "True"
    assert default("torchrl.objectives.utils.SoftUpdate", "eps") is not None
    assert default("torchrl.envs.GymEnv._build_env", "num_envs") == "0"  # popped from kwargs
    # A parameter that the class annotates as an attribute, too.
    assert default("gymnasium.vector.SyncVectorEnv", "autoreset_mode") is not None
    with pytest.raises(SymbolNotFound, match="has no parameter 'nothing'; it has: "):
        default("torchrl.collectors.Collector", "nothing")
