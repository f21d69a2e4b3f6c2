"""What docs/_ext/source/knobs.py writes on a small site, and what it refuses."""

import inspect
import re

import pytest
from torchrl.objectives import HardUpdate

from docs._ext.source.knobs import default
from docs._ext.source.lookup import SymbolNotFound
from tests.support.search import titles_and_addresses
from tests.support.small_site import SmallSite

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
    ":source: torchrl.collectors.Collector\n   :default: unset :claim:`a-default`",
)
PAGES = {
    "index.rst": "Home\n====\n\n:knob:`no_cuda_sync`, :knob:`a switch <SWITCH (driver)>`\n\n"
    ".. toctree::\n\n   page\n   other\n\n.. knob-index::\n",
    "page.rst": f"Page\n====\n{KNOB}",
    "other.rst": f"Other\n=====\n{PLAIN}",
}


EXTENSIONS = "docs._ext.source.knobs,docs._ext.site.search_index,docs._ext.site.claims"


def text(site, name):
    body = site.page(name).partition('role="main"')[2].partition("sphinxsidebar")[0]
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())


@pytest.fixture
def site(tmp_path):
    return SmallSite(tmp_path, PAGES, extensions=EXTENSIONS)


def test_an_entry_has_the_installed_default_and_its_source(site):
    site.built()
    shown = text(site, "page")
    assert "no_cuda_sync Leaves out a wait. Default: False . When to turn it, trade-off, " in shown
    assert "measured When : Never blindly. Trade-off : Speed for safety. Measured" in shown
    assert 'id="knob-no-cuda-sync"' in site.page("page")
    assert "github.com/pytorch/rl/blob/v" in site.page("page")
    assert "SWITCH (driver) Leaves out a wait. Default: unset" in text(site, "other")
    assert "Default: <span>unset</span>. When" in site.page("other")  # the mark leaves no blank


def test_a_dotted_name_is_the_parameter_of_its_last_part(site):
    site.append("page.rst", KNOB.replace(":: no_cuda", ":: Collector.no_cuda"))
    site.built()
    assert "Collector.no_cuda_sync Leaves out a wait. Default: False" in text(site, "page")
    address = "page.html#knob-collector-no-cuda-sync"
    assert ("Collector.no_cuda_sync", address) in titles_and_addresses(site.html)


def test_a_parameter_of_another_name_is_read(site):
    knob = KNOB.replace("knob:: no_cuda_sync", "knob:: HardUpdate").replace(
        ":of: torchrl.collectors.Collector",
        ":of: torchrl.objectives.HardUpdate\n   :parameter: value_network_update_interval\n"
        "   :source: torchrl.objectives.SoftUpdate",
    )
    site.append("page.rst", knob)
    site.built()
    installed = inspect.signature(HardUpdate).parameters["value_network_update_interval"].default
    assert f"Default: value_network_update_interval={installed} . When" in text(site, "page")
    assert "Source : SoftUpdate" in text(site, "page")


def test_the_table_and_the_role_lead_to_the_entries(site):
    site.built()
    page = site.page("index")
    assert page.count('href="page.html#knob-no-cuda-sync"') == 2
    assert page.count('href="other.html#knob-switch-driver"') == 2
    assert "no_cuda_sync Leaves out a wait. False" in text(site, "index")


def test_a_field_filters_the_table(site):
    page = site.built().page("index")
    form = page[page.index("<form") : page.index("</form>")]
    assert 'class="row-filter pst-js-only" data-rows="table.knobs tbody tr"' in form
    assert 'data-kind="performance"' in form
    assert "2 of 2 knobs" in form
    assert "row-filter.js" in page
    assert "row-filter.js" not in site.page("page")
    assert page.index("</form>") < page.index("<table")


def test_a_default_in_words_is_no_code(site):
    table = site.built().page("index").partition("<table")[2]
    assert "<p>unset</p>" in table
    assert '<span class="pre">False</span></code></p>' in table


def test_apostrophes_of_a_knob_are_curly_and_its_code_is_code(site):
    site.edit("page.rst", "Leaves out a wait.", 'Waits in the GPU\'s ``"auto"`` mode.')
    site.edit("other.rst", ":default: unset", ":default: the driver's")
    site.built()
    assert 'title="Waits in the GPU’s &quot;auto&quot; mode."' in site.page("index")
    assert re.search(
        "Waits in the GPU’s <code .*?&quot;auto&quot;.*?</code> mode", site.page("index")
    )
    assert "Default: <span>the driver’s</span>" in site.page("other")
    assert "Default: <span><code>False</code></span>" in site.page("page")


def test_an_edited_entry_changes_the_table_elsewhere(site):
    site.built()
    site.edit("page.rst", "out a wait", "out a sync")
    site.built()
    assert "no_cuda_sync Leaves out a sync. False" in text(site, "index")


def test_search_finds_an_entry_by_its_name(site):
    site.built()
    found = titles_and_addresses(site.html)
    assert ("no_cuda_sync", "page.html#knob-no-cuda-sync") in found
    assert ("SWITCH (driver)", "other.html#knob-switch-driver") in found
    site.built()
    assert titles_and_addresses(site.html) == found


BROKEN = {
    "renamed": ("no_cuda_sync", "no_cuda_synch", "did you mean 'no_cuda_sync'?"),
    "vanished": ("collectors.Collector", "collectors.Gatherer", "has no 'Gatherer'"),
    "field": ("   :flip: Never blindly.\n", "", "needs the options flip"),
    "neither": ("   :of: torchrl.collectors.Collector\n", "", "either of or default"),
    "typed": ("   :flip:", "   :default: False\n   :flip:", "either of or default"),
    "parameter": ("   :flip:", "   :parameter: no_cuda\n   :flip:", "has no parameter 'no_cuda'"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_entry_is_named(site, broken):
    before, after, complaint = BROKEN[broken]
    site.edit("page.rst", before, after)
    said = site.fails()
    assert "page.rst:4: " in said
    assert complaint in said


def test_a_reference_to_no_knob_is_named(site):
    site.edit("index.rst", ":knob:`no_cuda_sync`", ":knob:`no_sync`")
    assert "index.rst:4: WARNING: there is no knob 'no_sync'" in site.fails()


def test_a_second_entry_is_named(site):
    site.append("other.rst", KNOB)
    for _ in range(2):
        said = "page.rst:4: WARNING: the knob 'no_cuda_sync' has an entry on page other"
        assert said in site.fails()


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
