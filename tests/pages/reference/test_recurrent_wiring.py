"""What is wrong with a recurrent policy is seen, and right wirings pass."""

import inspect
import re
import textwrap
import types
import warnings
from unittest import mock

import pytest
import torch
from torchrl.envs import InitTracker, SerialEnv
from torchrl.modules import DTActor, GRUModule, set_recurrent_mode
from torchrl.modules.models import decision_transformer
from torchrl.modules.utils import get_primers_from_module

from tests.support import ROOT
from tests.support.claims import guards
from tests.support.evidence_module import load_evidence

RUN = load_evidence("recurrent_wiring/omissions")
NO_PRIMER = {"transforms": (InitTracker,)}
RIGHT = {
    "one environment": {},
    "batched": {"base": RUN.two},
    "primer of the module": {"transforms": (InitTracker, RUN.from_module)},
    "primer first": {"transforms": (RUN.hand_written, InitTracker)},
}
SILENT = {"InitTracker, no primer": NO_PRIMER} | {name: options for name, options, *_ in RUN.SILENT}


# -- Silent mistakes ---------------------------------------------------------


def policy_remembers(case, batch):
    for module in case.modules:
        key = module.out_keys[0]
        assert RUN.remembered(batch, module, key), f"{key}: collected otherwise"
        again = RUN.replayed(batch, module, key)
        assert RUN.remembered(again, module, key), f"{key}: replayed otherwise"


def check_is_empty(case, batch):
    assert RUN.check_recurrent_wiring(batch, *case.modules) == []


@pytest.mark.parametrize("name", RIGHT)
@guards("check-reports-faults")
def test_right_wiring(name):
    case = RUN.Case(**RIGHT[name])
    check_is_empty(case, case.batch())


@pytest.mark.parametrize("name", SILENT)
@guards("check-on-wirings")
def test_silent_mistake(name):
    """The mistake raises nothing by itself; the check sees it, as an independent LSTM does."""
    case = RUN.Case(**SILENT[name])
    batch = case.batch()
    assert RUN.check_recurrent_wiring(batch, *case.modules)


@guards("check-sees-data-only")
def test_the_check_sees_data_only():
    """Whatever mode is set around it: the check sets its own."""
    case = RUN.Case()
    batch = case.batch()
    for mode in (None, False, True):
        with set_recurrent_mode(mode):
            check_is_empty(case, batch)


# -- The check ---------------------------------------------------------------


@guards("check-stands-alone")
def test_the_check_stands_alone_and_is_short():
    source = inspect.getsource(RUN.check_recurrent_wiring)
    assert len(source.splitlines()) <= 20
    names = {"torch": torch, "set_recurrent_mode": set_recurrent_mode}
    exec(source, names)
    case = RUN.Case()
    assert names["check_recurrent_wiring"](case.batch(), *case.modules) == []


@guards("check-stands-alone")
def test_the_check_wants_an_end():
    case = RUN.Case()
    assert RUN.check_recurrent_wiring(case.batch()[:5], *case.modules) == [
        "no episode ends inside: collect more"
    ]


@guards("check-needs-next")
def test_the_check_wants_the_next_state():
    for options in ({}, {"use_buffers": False}):
        case = RUN.Case()
        env = RUN.wrapped(case.base(), *case.transforms)
        batch = RUN.collect(env, case.policy, compact_obs=True, **options)
        assert RUN.remembered(batch, *case.modules)
        assert RUN.check_recurrent_wiring(batch, *case.modules)


def test_the_check_takes_a_gru():
    gru = GRUModule(4, 8, in_keys=["observation", "h"], out_keys=["features", ("next", "h")])
    for transforms, faults in (
        ((InitTracker, gru.make_tensordict_primer), []),
        ((InitTracker,), ["h is missing", "replay changes features"]),
    ):
        torch.manual_seed(RUN.SEED)
        batch = RUN.collect(RUN.wrapped(RUN.make_env(), *transforms), RUN.policy_of(gru))
        assert RUN.check_recurrent_wiring(batch, gru) == faults


# -- Prose -------------------------------------------------------------------


@guards("no-spec-state-dropped")
def test_the_step_drops_what_is_in_no_spec():
    case = RUN.Case(**NO_PRIMER)
    for transforms, kept in ((case.transforms, False), ((InitTracker, RUN.hand_written), True)):
        env = RUN.wrapped(RUN.make_env(), *transforms)
        step = env.step(case.policy(env.reset()))
        assert step.get(("next", "h")) is not None
        assert (env.step_mdp(step).get("h") is not None) is kept


@guards("each-zeroes-at-start", "faults-cover-each-other")
def test_zeros_have_two_sources():
    env = RUN.wrapped(RUN.make_env(), InitTracker, RUN.hand_written)
    assert not env.reset()["h"].any()
    lstm = RUN.make_lstm()
    reset = env.reset().set("h", torch.ones(1, 8)).set("c", torch.ones(1, 8))
    for mode, fed in ((False, False), (True, True)):
        with set_recurrent_mode(mode):
            _, states = RUN.states_fed(lstm, lambda: lstm(reset.clone().unsqueeze(0)))
        assert states == [fed]


def test_two_modules_with_one_name():
    """Both continue from what the second wrote."""
    case = RUN.Case(modules=(RUN.make_lstm, RUN.second(RUN.STATES)))
    batch = case.batch()
    assert torch.equal(batch["next", "h"].squeeze(-2), batch["value_features"])
    assert RUN.remembered(batch, case.modules[1], "value_features")
    assert not RUN.remembered(batch, case.modules[0])


def test_a_state_without_next_is_stored_one_step_ahead():
    batch = RUN.Case(**RUN.WRITTEN).batch()
    assert torch.equal(batch["h"].squeeze(-2), batch["features"])


@guards("primers-from-module")
def test_primers_of_all_modules():
    case = RUN.Case(modules=(RUN.make_lstm, RUN.second(RUN.SECOND)))
    case.transforms = (InitTracker, lambda: get_primers_from_module(case.policy))
    policy_remembers(case, case.batch())


@guards("policy-argument-adds-both")
def test_the_environments_argument():
    assert RUN.policy_of_the_env()


@pytest.mark.parametrize("place", RUN.PLACES, ids=lambda place: f"primer {place[3]}")
@guards("primer-is-memory")
def test_the_warning_names_the_primer_where_the_policy_forgets(place):
    """In one environment and in a batched one; the run of the page looks at workers too."""
    worker, around, _, primer, *results, _ = place
    lstm = RUN.make_lstm()
    for base, result in zip((worker(), SerialEnv(2, worker)), results, strict=True):
        found = RUN.placed(RUN.wrapped(base, *around), lstm, RUN.policy_of(lstm))
        assert found == (result, "nowhere" in primer)
        assert not (found[1] and result == RUN.RIGHT)


@guards("primer-is-memory")
def test_the_warning_names_the_primer_if_one_of_two_modules_lacks_it():
    case = RUN.Case(modules=(RUN.make_lstm, RUN.second(RUN.SECOND)))
    env = RUN.wrapped(RUN.make_env(), *case.transforms)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batch = RUN.collect(env, case.policy, auto_register_policy_transforms=None)
    (warning,) = caught
    assert "(TensorDictPrimer)" in str(warning.message)
    with_primer, without = case.modules
    assert RUN.remembered(batch, with_primer)
    assert not RUN.remembered(batch, without, "value_features")


@pytest.mark.parametrize("n", range(len(RUN.POLICIES)))
@guards("tracker-warning-broad", "default-flag-warns", "function-hides-modules")
def test_the_flag_of_the_collector(n):
    _, *case = RUN.POLICIES[n]
    found = [
        RUN.registered(*case, auto_register_policy_transforms=flag) for flag in (None, False, True)
    ]
    assert found == RUN.REGISTERED[n]


@guards("auto-register-warning")
def test_the_message_of_the_warning():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        RUN.collect(RUN.make_env(), **RUN.feed_forward(), auto_register_policy_transforms=None)
    (warning,) = caught
    assert "From torchrl v0.15 the collector will append them" in str(warning.message)
    assert "(InitTracker)" in str(warning.message)


# -- A transformer -------------------------------------------------------------


@pytest.fixture(scope="module")
def transformer():
    """What the last code block of the page defines."""
    text = (ROOT / "docs/reference/recurrent_wiring.rst").read_text(encoding="utf-8")
    blocks = [
        textwrap.dedent(block)
        for block in re.findall(r"\.\. code-block:: python\n\n((?:   .*\n|\n)+)", text)
    ]
    page = types.ModuleType("page")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for block in blocks:
            exec(block, vars(page))
    return page


@guards("windows-stay-in-their-episode")
def test_windows_do_not_reach_into_the_episode_before(transformer):
    batch, size = transformer.batch, transformer.WINDOW
    assert batch["next", "done"][:, :-1].any()
    for row in batch:
        first = 0
        for step in range(len(row)):
            if step and row["next", "done"][step - 1]:
                first = step
            seen = row["observation"][max(first, step - size + 1) : step + 1]
            start = row["observation"][first].expand(size - len(seen), -1)
            assert torch.equal(row["window"][step], torch.cat([start, seen]))


@guards("dropout-moves-the-ratio")
def test_dropout_changes_log_probabilities(transformer):
    rows = transformer.rows
    for part in transformer.actor.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.1
        if isinstance(part, torch.nn.MultiheadAttention):
            part.dropout = 0.1
    first, second = (
        transformer.actor.get_dist(rows).log_prob(rows["action"]).detach() for _ in range(2)
    )
    assert (first - second).abs().max() > 1e-3


@guards("decision-transformer-needs-transformers")
def test_a_decision_transformer_needs_another_package():
    assert {"return_to_go", "observation", "action"} == set(
        inspect.signature(DTActor.forward).parameters
    ) - {"self"}
    absent = mock.patch.object(decision_transformer, "_has_transformers", False)
    with absent, pytest.raises(ImportError, match="transformers"):
        DTActor(state_dim=4, action_dim=2)
