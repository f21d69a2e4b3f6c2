"""What the page on recurrent PPO says of the record."""

from functools import partial

import gymnasium
import pytest

from benchmarks.recipes import recurrent_ppo_cartpole_contenders as contenders
from tests.support.claims import guards
from tests.support.suites import recorded as recorded_of

recorded = partial(recorded_of, "recipe_recurrent_ppo_cartpole")
RECIPE, PEER = "torchrl-recipe", "sb3-zoo"


@guards("recurrent-recipe-is-faster")
def test_the_recipe_takes_less_processor_time():
    assert recorded(RECIPE, "solved") == recorded(PEER, "solved") == 1
    assert recorded(RECIPE, "cpu_iqm_high") < recorded(PEER, "cpu_iqm_low")


@guards("recurrent-recipe-ahead-by-wall-time")
def test_each_seed_of_the_recipe_is_there_before_any_of_the_peer():
    slowest, fastest = (
        recorded(way, "time_to_threshold", of) for way, of in ((RECIPE, "max"), (PEER, "min"))
    )
    assert slowest < fastest


@guards("memory-and-scale-decide")
@pytest.mark.parametrize("way", ["torchrl-memoryless", "torchrl-unscaled"])
def test_without_memory_or_scale_no_seed_gets_there(way):
    assert recorded(way, "solved") == 0
    assert recorded(way, "frames_to_threshold", "min") >= 100_000


@guards("recurrent-updates-most")
def test_updates_are_most_of_the_time():
    for way in (RECIPE, PEER):
        others = ("collect_time", "advantage_time")
        assert recorded(way, "update_time", "q1") > sum(recorded(way, one, "q3") for one in others)


@guards("recurrent-peer-needs-fewer-frames")
def test_the_peer_needs_fewer_frames_and_less_memory():
    for metric in ("frames_to_threshold", "peak_memory"):
        assert recorded(PEER, metric) < recorded(RECIPE, metric)


@guards("thresholds-of-cartpole")
def test_gymnasium_has_these_thresholds():
    thresholds = [gymnasium.spec(f"CartPole-v{version}").reward_threshold for version in (0, 1)]
    assert thresholds == [contenders.THRESHOLD, 475]
