"""The recipe of PPO on CartPole: it learns, it resumes, and what is planted in it is noticed."""

from unittest import mock

import pytest
from torchrl.objectives import ClipPPOLoss

from benchmarks.recipes import ppo_cartpole as recipe
from benchmarks.recipes import ppo_cartpole_contenders as contenders
from benchmarks.suites import bench_recipe_ppo_cartpole as suite
from tests.support.claims import guards
from tests.support.ppo_recipes import (
    WrongSign,
    assert_prints_a_table,
    assert_resumes,
    complaints,
    planted_in,
)
from tests.support.suites import CPU, noted

SMALL = ["--envs", "4", "--steps", "8", "--frames", "320"]


def make_run(*arguments, seed=0):
    run = recipe.Run(recipe.parse([*SMALL, *map(str, arguments)]), seed)
    run.batches = iter(run.collector)
    return run


# -- What one iteration does -----------------------------------------------------


PLANTED = planted_in(recipe)


@pytest.mark.parametrize("planted", PLANTED)
def test_an_iteration_raises_what_was_good_and_fits_the_critic(planted):
    change, expected = PLANTED[planted]
    with change:
        run = make_run("--frames", 100_000)
        assert complaints(run, next(run.batches), recipe.READ) == expected


@pytest.mark.parametrize("loss", [ClipPPOLoss, WrongSign])
def test_the_recipe_learns_and_with_a_wrong_sign_it_does_not(loss, capsys):
    arguments = ["--threshold", "45", "--frames", "8192", "--envs", "32", "--steps", "8"]
    with mock.patch.object(recipe, "ClipPPOLoss", loss):
        recipe.main(arguments)
    assert ("not solved" in capsys.readouterr().out) == (loss is WrongSign)


# -- The command -----------------------------------------------------------------


def test_the_command_prints_a_table_and_ends_with_its_frames(capsys):
    assert_prints_a_table(recipe, SMALL, capsys)


@guards("recipe-resumes-with-the-same-bits")
def test_a_resumed_run_has_the_bits_of_one_that_nobody_killed(tmp_path):
    assert_resumes(recipe, SMALL, tmp_path)


# -- The suite -------------------------------------------------------------------


@guards("recipe-peers-share-hyperparameters")
def test_contenders_agree_on_what_is_solved():
    assert contenders.EPISODES == recipe.EPISODES
    assert recipe.parse([]).threshold == contenders.THRESHOLD
    assert recipe.parse([]).frames == contenders.FRAMES
    names = ("GAMMA", "LMBDA", "LR", "CLIP", "EPOCHS")
    assert all(getattr(recipe, name) == getattr(contenders, name) for name in names)
    assert suite.CONTENDERS.keys() == contenders.WAYS.keys()


@pytest.mark.parametrize("way", ["torchrl-recipe", "torchrl-plain"])
def test_a_contender_reports_each_iteration(way, monkeypatch):
    monkeypatch.setattr(contenders, "FRAMES", 512)
    found = contenders.WAYS[way](0).report()
    (first, begin, _, _), (last, end, _, mean) = found["points"]
    assert (first, last) == (256, 512)
    assert begin < end
    assert 5 < mean < 500
    assert not found["solved"]
    assert sum(found["parts"].values()) < end
    points = found["points"] + [(768, 60.0, 60.0, 480.0)]
    runs = [{**found, "points": points, "solved": True}] * suite.SEEDS
    monkeypatch.setattr(suite, "trained", lambda: {way: runs})
    said = noted(suite.bench_training, CPU, way)["sampled"]
    assert said["solved"] == [1.0]
    assert said["time_iqm"] == said["time_iqm_low"] == [60.0]
    curve = noted(suite.bench_curve, CPU, way, "frames", 600)["sampled"]
    assert curve["episode_return"] == [round(mean, 1)] * suite.SEEDS


def test_the_interquartile_mean_leaves_out_the_ends():
    found = suite.estimate([10.0, 1.0, 2.0, 3.0, 100.0], "time_iqm")
    assert found["time_iqm"] == [5.0]
    assert found["time_iqm_low"][0] < 5 < found["time_iqm_high"][0]
