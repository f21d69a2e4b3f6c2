"""The suite on learning dynamics, run small, and what the symptom pages say of its record."""

from functools import partial

import pytest

from benchmarks.suites import bench_learning_dynamics as suite
from tests.support.claims import guards
from tests.support.suites import CPU, noted
from tests.support.suites import recorded as recorded_of

SYMPTOMS = {way.partition("-")[0] for way in suite.WAYS}
RANDOM = 25  # steps of an episode of a random policy, about


def last(way, of="median", frames=suite.FRAMES):
    return recorded_of("learning_dynamics", f"{way}-f{frames}", "episode_return", of)


@pytest.mark.parametrize("way", ["rewards-smooth", "epsilon-soon"])
def test_a_training_gives_a_return_for_each_stage_and_seed(way, monkeypatch):
    monkeypatch.setattr(suite, "FRAMES", 2048)
    monkeypatch.setattr(suite, "SEEDS", 1)
    monkeypatch.setattr(suite, "trained", suite.trained.__wrapped__)
    said = noted(suite.bench_training, CPU, way, 1)
    assert said["key"] == f"{way}-f512"
    assert len(said["seconds"]) == len(said["sampled"]["episode_return"]) == 1
    assert said["sampled"]["episode_return"][0] > 8


def test_rewards_are_scaled_and_the_return_is_not():
    env = suite.make_env(0, 100.0)
    rows = env.rollout(30, break_when_any_done=False)
    assert set(rows["next", "reward"].unique().tolist()) == {100.0}
    assert rows["next", "episode_reward"][:, 0].unique().tolist() == [1.0]
    env.close()


def test_ways_of_a_symptom_differ_in_one_setting():
    for symptom in SYMPTOMS:
        ways = [options for way, (*_, options) in suite.WAYS.items() if way.startswith(symptom)]
        changed = [dict(ways[0].items() ^ other.items()).keys() for other in ways[1:]]
        assert all(len(keys) == 1 for keys in changed)


@guards("large-rewards-harm-shared-layers")
def test_large_rewards_harm_shared_layers_alone():
    for way in ("rewards-scaled", "rewards-separate", "rewards-two"):
        assert last(way, "q1") > 2 * last("rewards-large", "max")
    assert last("rewards-large", "q3") < 1.5 * RANDOM


@guards("smooth-l1-does-not-save-shared-layers")
def test_smooth_l1_learns_as_little():
    assert last("rewards-smooth", "max") < last("rewards-scaled", "min")
    assert last("rewards-smooth") < 1.5 * RANDOM


@guards("entropy-collapses-in-some-seeds")
def test_some_seeds_collapse_without_a_bonus():
    assert last("entropy-gone", "q1") < 10
    assert last("entropy-gone", "max") > 4 * RANDOM
    for way in ("entropy-kept", "entropy-slow"):
        assert last(way, "min") > 3 * RANDOM
    assert last("entropy-kept", "rounds") == 5


@guards("epsilon-too-soon-costs-frames")
def test_an_epsilon_that_ends_too_soon_costs_frames():
    half = partial(last, frames=suite.FRAMES // 2)
    assert half("epsilon-soon", "q3") < 0.5 * half("epsilon-right", "q1")
    assert half("epsilon-soon") < 0.5 * RANDOM
    assert last("epsilon-soon", "q3") < last("epsilon-right", "q1")
    assert last("epsilon-soon") > 2 * half("epsilon-soon")
