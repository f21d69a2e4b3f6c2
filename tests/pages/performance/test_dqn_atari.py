"""What the page on DQN says of the record."""

from functools import partial

from tests.support.claims import guards
from tests.support.suites import recorded as recorded_of

recorded = partial(recorded_of, "recipe_dqn_atari")
RECIPE, PRIORITIES, PEER, RANDOM = "torchrl-recipe", "torchrl-prioritized", "sb3", "random"


def knob(name, of):
    return recorded_of("recipe_dqn_atari_knobs", f"knob-{name}", "time_vs_recipe", of)


@guards("dqn-buffer-of-frames-is-smaller")
def test_rows_of_one_frame_take_an_eighth():
    for way in (RECIPE, PRIORITIES):
        assert 7.5 * recorded(way, "million_rows") < recorded(PEER, "million_rows")


@guards("dqn-recipe-learns")
def test_each_seed_scores_more_than_random_play():
    assert recorded(RECIPE, "last_score", "min") > 10 * recorded(RANDOM, "last_score", "max")


@guards("dqn-peer-is-faster")
def test_the_peer_is_faster():
    assert recorded(PEER, "cpu_time", "max") < recorded(RECIPE, "cpu_time", "min")


@guards("dqn-scores-overlap")
def test_the_scores_overlap():
    assert recorded(RECIPE, "last_score", "min") < recorded(PEER, "last_score", "max")
    assert recorded(PEER, "last_score", "min") < recorded(RECIPE, "last_score", "max")


@guards("dqn-peer-learns-sooner")
def test_the_peer_scores_more_on_the_way():
    for frames in (8_000, 16_000, 24_000, 32_000):
        ours, theirs = (
            recorded(f"{way}-frames-{frames}", "episode_score") for way in (RECIPE, PEER)
        )
        assert ours < theirs


@guards("dqn-priorities-do-not-pay")
def test_each_seed_with_priorities_scores_less():
    assert recorded(PRIORITIES, "last_score", "max") < recorded(RECIPE, "last_score", "min")


@guards("dqn-updates-most-of-the-time")
def test_updates_are_most_of_the_time():
    for way in (RECIPE, PRIORITIES, PEER):
        parts = ("collect_time", "store_time", "sample_time")
        assert recorded(way, "update_time", "min") > 3 * sum(recorded(way, one) for one in parts)


@guards("dqn-sampling-takes-longer")
def test_sampling_takes_longer():
    assert recorded(RECIPE, "sample_time", "min") > recorded(PEER, "sample_time", "max")


@guards("dqn-double-costs")
def test_double_dqn_costs_time():
    assert knob("not-double", "q3") < 0.95


@guards("dqn-knobs-without-gain")
def test_the_ranges_of_the_others_include_no_difference():
    for name in ("channels-first", "one-by-one", "not-fused"):
        assert knob(name, "q1") < 1 < knob(name, "q3")
