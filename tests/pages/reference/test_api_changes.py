"""Old names come back, new ones go: the run behind reference/api_changes has to say so."""

import ast
import re
import warnings
from pathlib import Path

import pytest
import torchrl

from tests.support import ROOT
from tests.support.claims import guards
from tests.support.evidence_module import load_evidence

PAGE = (ROOT / "docs" / "reference" / "api_changes.rst").read_text(encoding="utf-8")
SCRIPT = ROOT / "docs" / "evidence" / "api_changes" / "names.py"

# What readers search for; each stands in some old or new cell.
ASKED_FOR = """
    SyncDataCollector MultiSyncDataCollector MultiaSyncDataCollector aSyncDataCollector
    DataCollectorBase DistributedDataCollector RPCDataCollector _shuttle _shuttle_has_no_device
    _make_shuttle _carrier devices passing_devices storing_devices trajectory_key traj_key
    VanillaWeightUpdater MultiProcessedWeightUpdater update_priorities update_priority
    CompressedStorage CompressedListStorage set_recurrent_mode NextStateReconstructor
    RandomPolicy make_functional vmap_randomness set_interaction_mode set_interaction_type
    set_exploration_mode TensorDictSequential NoopResetEnv CompositeSpec BoundedTensorSpec
    UnboundedContinuousTensorSpec DiscreteTensorSpec OneHotDiscreteTensorSpec EGreedyWrapper
    AdditiveGaussianWrapper create_env_fn next_observation postprocs TDLambdaEstimate
    TD1Estimate
"""


@pytest.fixture(scope="module")
def run():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return load_evidence("api_changes/names")


def shown():
    return re.findall(r"evidence-table:: api_changes/names:(\w+)", PAGE)


def test_the_page_shows_every_table_once():
    made = re.findall(r'"(\w+)": \w+\(\)', SCRIPT.read_text(encoding="utf-8"))
    assert sorted(shown()) == sorted(made)


def test_what_readers_search_for_is_there(run, capsys):
    run.main()
    words = set(re.findall(r"\w+", capsys.readouterr().out))
    assert set(ASKED_FOR.split()) <= words


def test_an_old_name_that_comes_back_fails_the_run(run, monkeypatch):
    monkeypatch.setattr(run.collectors, "SyncDataCollector", object, raising=False)
    with pytest.raises(AssertionError, match=r"SyncDataCollector exists; the page says"):
        run.collector_names()


def test_a_private_member_that_comes_back_fails_the_run(run, monkeypatch):
    monkeypatch.setattr(run.collectors.Collector, "_make_final_rollout", print, raising=False)
    with pytest.raises(AssertionError, match=r"Collector\._make_final_rollout exists"):
        run.carrier_names()


@pytest.mark.parametrize(
    ("package", "name", "tables"),
    [
        ("data", "Composite", "spec_names"),
        ("data", "CompressedListStorage", "buffer_names"),
        ("collectors", "MultiAsyncCollector", "collector_names"),
        ("modules", "EGreedyModule", "module_names"),
    ],
)
def test_a_new_name_that_goes_fails_the_run(run, monkeypatch, package, name, tables):
    monkeypatch.delattr(getattr(run, package), name)
    with pytest.raises((AssertionError, AttributeError), match=name):
        getattr(run, tables)()


def test_a_new_argument_that_goes_fails_the_run(run, monkeypatch):
    def renamed(self, *, sequence_key=None):
        """Stand in for a sampler whose argument has another name."""

    with monkeypatch.context() as patch:
        patch.setattr(run.data.SliceSampler, "__init__", renamed)
        with pytest.raises(AssertionError, match="SliceSampler has no traj_key="):
            run.checked("{torchrl.data.SliceSampler(traj_key)}")
    assert "traj_key" in run.checked("{torchrl.data.SliceSampler(traj_key)}")


def test_an_old_argument_that_works_again_fails_the_run(run):
    with pytest.raises(AssertionError, match="ends in nothing"):
        run.ends_in("TypeError", "call(old=...)", lambda: None, "nothing")


def test_another_exception_fails_the_run(run):
    def use():
        raise ValueError("Refused. For a reason.")

    with pytest.raises(AssertionError, match="ends in ValueError: Refused; the page expects"):
        run.ends_in("TypeError", "call(old=...)", use, "nothing")


def test_a_message_is_text_and_not_markup(run):
    message = "No __init__(x) got *args, use :meth:`~a.b` or ``c``. More."
    assert run.first_sentence(message) == r"No \_\_init\_\_(x) got \*args, use a.b or c"


@guards("llm-collectors-keep-shuttle")
def test_the_language_model_collectors_kept_the_shuttle():
    from docs._ext.source.lookup import find

    assert find("torchrl.collectors.llm.LLMCollector._shuttle")


def noted():
    """The names in the first paragraph of each note that leads to the tables there, by symbol."""
    for file in (ROOT / "docs" / "reference" / "api" / "notes").glob("*.rst"):
        first = file.read_text(encoding="utf-8").partition("\n\n")[0]
        if ":doc:`/reference/api_changes`" in first:
            yield from ((file.stem, name) for name in re.findall(r"``(\w+)``", first))


def test_a_former_name_on_an_api_page_is_in_the_tables(run):
    pairs = set()
    for rows in (run.collector_names(), run.spec_names(), run.buffer_names()):
        for old, new in rows["rows"]:
            name, path = re.match(r"``(\w+)`` of", old), re.search(r"<([\w.]+)>", new)
            if name and path:
                pairs.add((path.group(1), name.group(1)))
    renamed = {symbol for symbol, _ in pairs}
    former = {pair for pair in noted() if pair[0] in renamed}
    assert len(former) >= 17
    assert former <= pairs


# What in TorchRL announces a change for a release, by file, and its name on the page.
ANNOUNCING = {
    "_utils": "use_ray_service",
    "collectors/_async_batched": "AsyncBatchedCollector",
    "collectors/_single": "auto_register_policy_transforms",
    "collectors/utils": "traj_format",
    "envs/async_envs": "AsyncEnvPool",
    "envs/common": "set_state",
    "envs/llm/transforms/tokenizer": "Tokenizer",
    "envs/transforms/_tensor": "Tokenizer",
    "envs/transforms/utils": "KLRewardTransform",  # and the other transforms with a device
    "modules/value_norm": "ValueNorm",
    "objectives/bc": "BCLoss",
    "objectives/dreamer_v3": "DreamerV3Loss",
    "record/loggers/ray": "RayLogger",
    "render/checkpoint": "save_render_checkpoint",
    "trainers/trainers": "Trainer",
}


def announcing_files():
    """The files of TorchRL with a warning that names a release from 0.15 on."""
    root = Path(torchrl.__file__).parent
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "warn":
                parts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
                if re.search(r"v0\.1[5-9]", " ".join(map(str, parts))):
                    yield file.relative_to(root).with_suffix("").as_posix()


@guards("announced-is-complete")
def test_every_announced_change_is_on_the_page():
    assert set(announcing_files()) == set(ANNOUNCING)
    table = SCRIPT.with_name("announced.py").read_text(encoding="utf-8")
    assert [name for name in ANNOUNCING.values() if name not in PAGE + table] == []
