"""A torchrl that changed its mind: the pages that speak of the change fail, the others do not.

Each test edits one thing in a copy of the installed package, executes scripts of ``docs/evidence``
with that copy, and looks up which pages show a script that failed.
"""

import re

import pytest

from docs._ext.evidence.store import Store
from tests.support import ROOT
from tests.support.torchrl_copy import copy_of_torchrl, edit

LIMIT_S = 600  # a bound for a hung child, not an expectation

CAST_FOR_THE_ENVIRONMENT = """\
                        env_input = self._carrier.to(
                            self.env_device, non_blocking=non_blocking
                        )
                        if not self.no_cuda_sync:
                            self._sync_env()
"""
SYNC_BEFORE_CAST = """\
                        if not self.no_cuda_sync:
                            self._sync_env()
                        env_input = self._carrier.to(
                            self.env_device, non_blocking=non_blocking
                        )
"""
PRELOAD = ["torchrl.collectors", "torchrl.data", "torchrl.modules", "torchrl.objectives"]
RNN = "modules/tensordict_module/rnn.py"
# name: (file, what stands there, what stands there instead, runs that fail, pages that fail,
#        a run that has nothing to do with it)
CHANGES = {
    "_sync_env has another name": (
        "collectors/_single.py",
        "_sync_env",
        "_sync_environment",
        {"collectors_internals/rollout_flow", "collectors_internals/devices"},
        {"collectors_internals", "collectors_devices", "collectors_hooks"},
        "data_layout/batch",
    ),
    "the cast for the environment comes after its sync": (
        "collectors/_single.py",
        CAST_FOR_THE_ENVIRONMENT,
        SYNC_BEFORE_CAST,
        {"collectors_internals/rollout_flow"},
        {"collectors_internals", "collectors_hooks"},
        "collectors_basics/parameters",
    ),
    "cat_results: stacking and concatenating are exchanged": (
        "collectors/_multi_sync.py",
        "        cat_results = self.cat_results\n",
        "        cat_results = 0 if self.cat_results in (None, 'stack') else 'stack'\n",
        {"collectors_basics/batch_shapes", "collectors_replay/slice_configurations"},
        {"collectors_basics", "collectors_replay", "upstream_errata"},
        "collectors_internals/rollout_flow",
    ),
    "recurrent mode puts zeros where is_init is True": (
        RNN,
        "        if not self.recurrent_mode and hidden0 is not None:\n",
        "        if hidden0 is not None:\n",
        {
            "recurrent_state_lifecycle/zeroing",
            "recurrent_slices/replay",
            "recurrent_state_lifecycle/shapes",
        },
        {"recurrent_state_lifecycle", "recurrent_slices"},
        "recurrent_mode/situations",
    ),
    "recurrent mode is on unless something says otherwise": (
        RNN,
        '"torchrl_recurrent_mode", default=None\n',
        '"torchrl_recurrent_mode", default=True\n',
        {"recurrent_mode/situations", "recurrent_state_lifecycle/trace"},
        {"recurrent_mode", "recurrent_state_lifecycle"},
        "collectors_replay/slice_configurations",
    ),
    "a loss does not set the recurrent mode": (
        "objectives/common.py",
        "        rm = set_recurrent_mode(True)\n",
        "        rm = set_recurrent_mode(None)\n",
        {"recurrent_mode/situations", "recurrent_state_lifecycle/trace"},
        {"recurrent_mode", "recurrent_state_lifecycle"},
        "recurrent_state_lifecycle/shapes",
    ),
    "a slice begins without is_init": (
        "data/replay_buffers/samplers/slice.py",
        "        init_marker[slice_starts] = True\n",
        "",
        {"recurrent_slices/replay"},
        {"recurrent_slices"},
        "recurrent_state_lifecycle/shapes",
    ),
    "the next values see no reset of their own": (
        "objectives/value/advantages.py",
        'data_next["is_init"] = data_next["is_init"] | data_root["is_init"]',
        'data_next["is_init"] = data_next["is_init"].clone()',
        {"recurrent_critics/advantages"},
        {"recurrent_critics"},
        "recurrent_slices/replay",
    ),
    "burn-in hands on its first state in place of its last": (
        "envs/transforms/_env.py",
        'td_burn_in["next"][..., -1][out_key]',
        'td_burn_in["next"][..., 0][out_key]',
        {"recurrent_slices/burn_in"},
        {"recurrent_slices"},
        "recurrent_slices/replay",
    ),
}


def failures(names, folder):
    """What the build would say about these scripts, by name; one import serves all of them."""
    for name in names:
        link = folder / "evidence" / f"{name}.py"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(ROOT / "docs" / "evidence" / f"{name}.py")
    store = Store(folder / "evidence", folder / "kept", preload=PRELOAD)
    store.refresh(LIMIT_S, print)
    return store.failures


def pages_that_show(names):
    """The pages whose build fails with these runs."""
    shown = re.compile(rf"(?:evidence-\w+:: |:evidence:`)(?:{'|'.join(sorted(names))}):")
    pages = (ROOT / "docs" / "reference").glob("*.rst")
    return {page.stem for page in pages if shown.search(page.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("change", CHANGES)
def test_the_right_pages_show_what_fails(change):
    _, _, _, runs, pages, _ = CHANGES[change]
    assert pages_that_show(runs) == pages


@pytest.mark.mutation
@pytest.mark.parametrize("change", CHANGES)
def test_the_right_runs_fail(tmp_path, monkeypatch, change):
    file, before, after, runs, _, unrelated = CHANGES[change]
    edit(copy_of_torchrl(tmp_path), file, before, after)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = failures([*runs, unrelated], tmp_path)
    assert set(said) == runs
    for name in runs:
        assert re.match(rf"{name}\.py:\d+: ", said[name]), said[name]
