"""What the page on SAC says of the record."""

from functools import partial

import pytest

from tests.support.claims import guards
from tests.support.suites import recorded as recorded_of

recorded = partial(recorded_of, "recipe_sac_halfcheetah")
RECIPE, PEER, DEFAULTS = "torchrl-recipe", "sb3-wide", "sb3-default"


@guards("sac-defaults-do-not-get-there")
def test_the_defaults_do_not_get_there():
    assert recorded(RECIPE, "solved") == 1
    assert recorded(DEFAULTS, "solved") == 0
    assert recorded(DEFAULTS, "frames_to_threshold", "min") >= 24_000


@guards("sac-updates-nearly-all")
def test_updates_are_nearly_all_of_the_time():
    for way in (RECIPE, PEER, DEFAULTS):
        others = sum(recorded(way, f"{part}_time", "q3") for part in ("collect", "sample"))
        assert recorded(way, "update_time", "q1") > 8 * others


@guards("sac-peer-is-faster", "sac-update-takes-longer")
def test_the_peer_is_faster():
    assert recorded(PEER, "solved") == 1
    assert recorded(PEER, "cpu_to_threshold") < recorded(RECIPE, "cpu_to_threshold")
    for part in ("update_time", "collect_time"):
        assert recorded(PEER, part, "max") < recorded(RECIPE, part, "min")
    assert recorded(RECIPE, "sample_time", "max") < recorded(PEER, "sample_time", "min")


@guards("sac-peer-ahead-by-wall-time")
def test_the_peer_has_the_higher_return_after_the_last_seconds():
    ours, theirs = f"{RECIPE}-seconds-600", f"{PEER}-seconds-600"
    assert recorded(ours, "episode_return", "max") < recorded(theirs, "episode_return", "min")


@guards("sac-knobs-without-gain")
@pytest.mark.parametrize("knob", ["ids", "loop", "not-fused", "one-by-one", "one-env"])
def test_the_range_of_a_knob_includes_no_difference(knob):
    quartiles = [recorded(f"knob-{knob}", "time_vs_recipe", of) for of in ("q1", "q3")]
    assert quartiles[0] < 1 < quartiles[1]


# -- SBX, Tianshou and a compiled loss -------------------------------------------

peer = partial(recorded_of, "recipe_sac_halfcheetah_peers")
FIRST, FRAMES = 1280, 3072


def spent(way, of="median"):
    """Seconds of the processor of a whole training."""
    return peer(way, "first_cpu", of) + peer(way, "later_cpu", of) * (FRAMES - FIRST) / 1000


@guards("sac-sbx-half")
def test_a_frame_costs_about_half_in_sbx():
    assert 0.4 < peer("sbx-wide", "later_cpu") / peer(RECIPE, "later_cpu") < 0.6
    assert peer("sbx-wide", "later_cpu", "max") < 0.7 * peer(RECIPE, "later_cpu", "min")


@guards("sac-sbx-pays-back")
def test_sbx_makes_up_for_its_compilation():
    assert peer("sbx-wide", "first_cpu", "min") > 1.5 * peer(RECIPE, "first_cpu", "max")
    assert spent("sbx-wide", "max") < spent(RECIPE, "min")


@guards("sac-sb3-frames-cost-less")
def test_a_frame_costs_less_in_sb3():
    assert peer(PEER, "later_cpu", "q3") < peer(RECIPE, "later_cpu", "q1")
    assert peer(PEER, "later_cpu") > 0.8 * peer(RECIPE, "later_cpu")


@guards("sac-tianshou-costs-more")
def test_a_frame_costs_more_in_tianshou():
    for metric in ("later_cpu", "first_cpu"):
        assert peer("tianshou-wide", metric, "q1") > peer(RECIPE, metric, "q3")


@guards("sac-compiling-does-not-pay")
def test_a_compiled_loss_costs_time_first_and_saves_none_later():
    compiled = "torchrl-compiled"
    assert 2.5 < peer(compiled, "first_cpu") / peer(RECIPE, "first_cpu") < 3.5
    assert peer(compiled, "first_cpu", "min") > peer(RECIPE, "first_cpu", "max")
    assert peer(compiled, "later_cpu", "q3") > peer(RECIPE, "later_cpu", "q1")
    assert peer(compiled, "later_cpu") > 0.95 * peer(RECIPE, "later_cpu")
