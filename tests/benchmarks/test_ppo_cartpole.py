"""The recipe of PPO on CartPole: it learns, it resumes, and what is planted in it is noticed."""

from unittest import mock

import pytest
import torch
from torchrl.objectives import ClipPPOLoss

from benchmarks.recipes import ppo_cartpole as recipe
from benchmarks.recipes import ppo_cartpole_contenders as contenders
from benchmarks.suites import bench_recipe_ppo_cartpole as suite
from tests.support.claims import guards
from tests.support.ppo_recipes import WrongCritic, WrongSign, assert_prints_a_table, assert_resumes
from tests.support.suites import CPU, noted

SMALL = ["--envs", "4", "--steps", "8", "--frames", "320"]


@pytest.fixture(autouse=True)
def generators():
    """A run seeds Python, NumPy and torch; other tests go on with their own."""
    with torch.random.fork_rng():
        yield


def make_run(*arguments, seed=0):
    run = recipe.Run(recipe.parse([*SMALL, *map(str, arguments)]), seed)
    run.batches = iter(run.collector)
    return run


# -- What one iteration does -----------------------------------------------------


def of_loss(**options):
    return mock.patch.object(recipe, "ClipPPOLoss", suite.changed(ClipPPOLoss, **options))


def of_run(name, value):
    return mock.patch.object(recipe.Run, name, value)


def forgetful(run):
    """The optimizer knows the actor alone."""
    return torch.optim.Adam(run.actor.parameters(), recipe.LR)


def frozen(run):
    """The optimizer has copies of the parameters."""
    copies = [torch.nn.Parameter(parameter.detach().clone()) for parameter in run.parameters]
    return torch.optim.Adam(copies, recipe.LR)


PLANTED = {
    "nothing": (mock.patch.dict({}), set()),
    "sign of the objective": (mock.patch.object(recipe, "ClipPPOLoss", WrongSign), {"actor"}),
    "sign of the critic": (mock.patch.object(recipe, "ClipPPOLoss", WrongCritic), {"critic"}),
    "advantage as it is": (of_loss(normalize_advantage=False), {"scale"}),
    "critic not trained": (of_run("make_optimizer", forgetful), {"critic"}),
    "optimizer of copies": (of_run("make_optimizer", frozen), {"actor", "critic"}),
    "targets without rewards": (mock.patch.object(recipe, "GAMMA", 0.0), {"horizon"}),
}


def complaints(run):
    """What one iteration of *run* does wrong."""
    batch = next(run.batches)
    run.note(batch)
    with torch.no_grad():
        run.advantage(batch)
    following = batch["value_target"][:, :-1][~batch["next", "done"][:, :-1]]
    batch = batch.select(*recipe.READ).reshape(-1)

    def gradient(scale):
        scaled = batch.clone().set("advantage", batch["advantage"] * scale)
        loss = run.loss(scaled)["loss_objective"]
        return torch.cat(
            [g.flatten() for g in torch.autograd.grad(loss, list(run.actor.parameters()))]
        )

    def state():
        with torch.no_grad():
            log_prob = run.actor.get_dist(batch).log_prob(batch["action"])
            error = run.critic(batch.select("observation"))["state_value"] - batch["value_target"]
        advantage = batch["advantage"].squeeze(-1)
        gain = ((advantage - advantage.mean()) * log_prob).mean()
        return gain.item(), error.square().mean().item()

    found = set()
    if not torch.allclose(gradient(1.0), gradient(100.0), rtol=1e-3, atol=1e-6):
        found.add("scale")
    if not following.mean() > 1.5:  # a step's own reward is 1
        found.add("horizon")
    (gain, error), _ = state(), run.learn(batch)
    better, less = state()
    found |= set() if better > gain else {"actor"}
    found |= set() if less < error else {"critic"}
    run.collector.shutdown()
    return found


@pytest.mark.parametrize("planted", PLANTED)
def test_an_iteration_raises_what_was_good_and_fits_the_critic(planted):
    change, expected = PLANTED[planted]
    with change:
        assert complaints(make_run("--frames", 100_000)) == expected


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
