"""Defaults of knobs that are no parameter's: each is a claim, and these tests are behind them.

The others are read from the installed signatures (docs/_ext/source/knobs.py).
"""

import os
import re
from unittest import mock

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import InteractionType, TensorDictModule
from tensordict.nn.probabilistic import interaction_type
from torchrl import _utils
from torchrl.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from torchrl.data import (
    tensor_specs,
)
from torchrl.modules.tensordict_module import _rnn_precision
from torchrl.objectives import A2CLoss, PPOLoss, SoftUpdate, ValueEstimators
from torchrl.weight_update import MultiProcessWeightSyncScheme, SharedMemWeightSyncScheme

from benchmarks.counting_env import Counting
from tests.support import ROOT
from tests.support.claims import guards
from tests.support.evidence_module import load_evidence
from tests.support.programs import run_python

PAGES = sorted((ROOT / "docs" / "performance").glob("*.rst"))
KNOB = re.compile(r"^\.\. knob:: (?P<name>.+)\n(?P<options>(?:   .*\n)+)", re.M)
DEFAULT = re.compile(r"^   :default: (?P<text>.*(?:\n      .*)*)$", re.M)
QUIET = {"auto_register_policy_transforms": False}
NOTHING_TO_CHECK = {"not used", "unset"}


def policy():
    return TensorDictModule(torch.nn.Linear(1, 1), ["observation"], ["action"])


def typed_defaults(text):
    """``(knob, default)`` of the entries whose default is a text of the page."""
    for knob in KNOB.finditer(text):
        if found := DEFAULT.search(knob["options"]):
            yield knob["name"], found["text"]


def unchecked(text):
    """The knobs whose default is typed and has no test."""
    return [
        name
        for name, default in typed_defaults(text)
        if default not in NOTHING_TO_CHECK and ":claim:`" not in default
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_default_that_is_typed_is_a_claim(page):
    text = page.read_text(encoding="utf-8")
    assert text.count("\n.. knob:: ") == len(KNOB.findall(text))
    assert unchecked(text) == [], "give ':of:' the parameter, or the default a claim and a test"


def test_a_default_without_a_test_is_found():
    entry = "\n.. knob:: name (place)\n   :source: a.b\n   :default: {}\n   :flip: no\n\n   What.\n"
    assert unchecked(entry.format("one")) == ["name (place)"]
    assert unchecked(entry.format("one\n      or two")) == ["name (place)"]
    assert unchecked(entry.format("one\n      or two :claim:`a-b`")) == []
    assert unchecked(entry.format("not used")) == []


# -- Environments and collectors -----------------------------------------------


@guards("knob-interaction-type-default", "actor-interaction-defaults")
def test_no_interaction_type_is_set_but_by_a_collector():
    seen = []

    def act(observation):
        seen.append(interaction_type())
        return torch.zeros(2)

    acting = TensorDictModule(act, ["observation"], ["action"])
    collector = Collector(Counting(0), acting, frames_per_batch=1, total_frames=1, **QUIET)
    list(collector)
    collector.shutdown()
    assert interaction_type() is None
    assert seen[-1] is InteractionType.RANDOM


@guards("knob-update-weights-default")
def test_a_collector_alone_updates_no_weights():
    with mock.patch.object(Collector, "update_policy_weights_") as update:
        collector = Collector(Counting(0), frames_per_batch=1, total_frames=3)
        list(collector)
        collector.shutdown()
    update.assert_not_called()


@pytest.mark.parametrize("kind", [MultiSyncCollector, MultiAsyncCollector])
@guards("knob-shared-scheme-default", "knob-queue-scheme-default")
def test_workers_read_the_weights_from_shared_memory(kind):
    with mock.patch.object(kind, "_run_processes"):
        collector = kind([Counting], policy(), frames_per_batch=4)
    (scheme,) = collector._weight_sync_schemes.values()
    assert type(scheme) is SharedMemWeightSyncScheme
    assert not isinstance(scheme, MultiProcessWeightSyncScheme)


@guards("knob-non-blocking-default")
def test_copies_do_not_block_and_one_wait_follows():
    copies = load_evidence("device_placement/copies")
    for device, expected in (("cpu", ["event"]), ("cuda:0", [])):
        with copies.watched() as (asked, waits):
            TensorDict(copies.entries()).to(device)
        assert asked == [True] * copies.ENTRIES
        assert waits == expected


# -- Variables that are read at import -------------------------------------------


@guards(
    "knob-profiling-variable-default", "knob-profiling-enabled-default", "knob-check-spec-default"
)
def test_what_the_import_reads():
    for name in ("TORCHRL_PROFILING", "CHECK_SPEC_ENCODE"):
        assert name not in os.environ
    assert not _utils._PROFILING_ALLOWED
    assert not _utils._PROFILING_ENABLED
    assert not tensor_specs._CHECK_SPEC_ENCODE
    program = (
        "from torchrl import _utils; from torchrl.data import tensor_specs\n"
        "assert _utils._PROFILING_ALLOWED and _utils._PROFILING_ENABLED\n"
        "assert tensor_specs._CHECK_SPEC_ENCODE\n"
    )
    run_python("-c", program, TORCHRL_PROFILING="1", CHECK_SPEC_ENCODE="1")


@guards("knob-recurrent-precision-default")
def test_where_the_precision_comes_from(monkeypatch):
    assert _rnn_precision._GLOBAL_OVERRIDE is None
    monkeypatch.setattr(_rnn_precision, "_is_tensor_core_capable", lambda index: True)
    for given, taken in (("highest", "ieee"), ("high", "tf32x3"), ("medium", "tf32")):
        monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda given=given: given)
        assert _rnn_precision.get_recurrent_matmul_precision() == taken
    monkeypatch.setenv("TORCHRL_RNN_PRECISION", "tf32")
    assert _rnn_precision._read_env_default() == "tf32"  # what the import puts first


# -- Networks and losses -----------------------------------------------------------


@guards("knob-soft-update-default")
def test_a_soft_update_needs_its_share():
    with pytest.raises(RuntimeError, match="Neither eps nor tau"):
        SoftUpdate(mock.Mock())


@guards("knob-autocast-default")
def test_autocast_is_off():
    assert not torch.is_autocast_enabled("cpu")


@guards("knob-multi-agent-gae-default")
def test_losses_make_a_gae():
    for loss in (PPOLoss, A2CLoss):
        assert loss.default_value_estimator is ValueEstimators.GAE
