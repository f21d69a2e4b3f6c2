"""What the page on PPO on CartPole says, of the record and of tensordict."""

import importlib.util
import sys
from functools import partial
from importlib.machinery import PathFinder
from unittest import mock

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from tests.support.claims import guards
from tests.support.suites import recorded as recorded_of

recorded = partial(recorded_of, "recipe_ppo_cartpole")


@guards("forward-searches-pandas")
def test_each_output_of_a_module_searches_for_pandas():
    module = TensorDictModule(nn.Linear(1, 1), ["a"], ["b"])
    two = TensorDictModule(lambda a: (a, a), ["a"], ["b", "c"])
    given = TensorDict(a=torch.zeros(2, 1), batch_size=2)
    for one, outputs in ((module, 1), (two, 2)):
        with mock.patch.object(importlib.util, "find_spec", return_value=None) as search:
            one(given)
        assert [call.args for call in search.call_args_list] == [("pandas",)] * outputs


def test_a_name_without_a_module_ends_the_search():
    with (
        mock.patch.dict(sys.modules, {"pandas": None}),
        mock.patch.object(PathFinder, "find_spec") as search,
    ):
        assert importlib.util.find_spec("pandas") is None
    search.assert_not_called()


# -- The record ------------------------------------------------------------------

RECIPE = "torchrl-recipe"
PEERS = ("sb3-zoo", "sb3-wide")
TWINS = {"torchrl-recipe": "sb3-wide", "torchrl-zoo": "sb3-zoo"}  # the same batches


@guards("recipe-and-sb3-tie", "first-recipes-intervals-overlap")
def test_the_intervals_overlap():
    for way in PEERS:
        assert recorded(RECIPE, "cpu_iqm_low") < recorded(way, "cpu_iqm_high")
        assert recorded(way, "cpu_iqm_low") < recorded(RECIPE, "cpu_iqm_high")


@guards("defaults-and-plain-are-slower")
def test_defaults_and_plain_are_clearly_slower():
    for way in ("sb3-default", "torchrl-plain"):
        assert recorded(way, "cpu_iqm_low") > recorded(RECIPE, "cpu_iqm_high")


@guards("collection-and-advantage-lose")
def test_collection_and_advantage_take_longer_than_in_sb3_and_updates_do_not():
    for ours, theirs in TWINS.items():
        for part in ("collect_time", "advantage_time"):
            assert recorded(ours, part, "q1") > recorded(theirs, part, "q3")
        assert recorded(ours, "update_time", "q1") < recorded(theirs, "update_time", "q3")
    for part in ("collect_time", "cpu_iqm"):
        assert recorded("torchrl-recipe", part) < recorded("torchrl-zoo", part)


@guards("torchrl-imports-and-memory-lose")
def test_imports_take_longer_and_memory_peaks_higher():
    for ours, theirs in TWINS.items():
        assert recorded(ours, "import_time") > recorded(theirs, "import_time", "q3")
        assert recorded(ours, "peak_memory", "min") > recorded(theirs, "peak_memory", "max")


@guards("plain-loses-in-every-part")
def test_plain_takes_longer_in_every_part():
    for part in ("collect_time", "advantage_time", "update_time"):
        assert recorded("torchrl-plain", part, "q1") > recorded("torchrl-zoo", part, "q3")


@guards("batched-env-outweighs")
def test_batching_is_worth_more_than_all_other_knobs():
    losses = {
        knob: recorded(f"knob-{knob}", "time_vs_recipe") - 1
        for knob in ("batched-env", "ids", "not-fused", "functional", "explained")
    }
    assert losses.pop("batched-env") > sum(losses.values())


# -- SBX and Tianshou ------------------------------------------------------------

peer = partial(recorded_of, "recipe_ppo_cartpole_peers")


@guards("sbx-frames-cost-less")
def test_a_frame_costs_less_in_sbx_once_it_has_compiled():
    assert peer("sbx-wide", "later_cpu", "q3") < peer(RECIPE, "later_cpu", "q1")


@guards("sbx-and-tianshou-compile-first")
def test_the_first_iteration_is_a_large_part():
    for way in ("sbx-wide", "sbx-default", "tianshou-wide"):
        assert peer(way, "first_cpu") > peer(way, "cpu_to_threshold") / 4
        assert peer(way, "first_cpu", "q1") > 3 * peer(RECIPE, "first_cpu", "q3")


@guards("tianshou-is-slower")
def test_tianshou_is_clearly_slower():
    assert peer("tianshou-wide", "cpu_iqm_low") > peer(RECIPE, "cpu_iqm_high")


@guards("recipe-and-sbx-tie")
def test_the_intervals_of_sbx_and_the_recipe_overlap():
    for one, other in ((RECIPE, "sbx-wide"), ("sbx-wide", RECIPE)):
        assert peer(one, "cpu_iqm_low") < peer(other, "cpu_iqm_high")
