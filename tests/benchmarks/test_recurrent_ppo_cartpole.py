"""The recipe of recurrent PPO: it computes what plain torch does, it learns, and it resumes."""

import json
from unittest import mock

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs import InitTracker
from torchrl.objectives import ClipPPOLoss

from benchmarks.recipes import ppo_cartpole_contenders as feed_forward
from benchmarks.recipes import recurrent_ppo_cartpole as recipe
from benchmarks.recipes import recurrent_ppo_cartpole_contenders as contenders
from benchmarks.suites import bench_recipe_recurrent_ppo_cartpole as suite
from tests.support.claims import guards
from tests.support.ppo_recipes import WrongCritic, WrongSign, assert_prints_a_table, assert_resumes
from tests.support.suites import CPU, noted

SMALL = ["--envs", "4", "--steps", "8", "--frames", "320"]


def make_run(*arguments):
    run = recipe.Run(recipe.parse([*SMALL, *map(str, arguments)]), 0)
    run.batches = iter(run.collector)
    return run


# -- What one iteration does -----------------------------------------------------


def walked(run, batch):
    """Log-probabilities and values of *batch*, step by step in plain torch."""
    state, features = batch["recurrent_state"][:, 0].transpose(0, 1), []
    for first, seen in zip(batch["is_init"].unbind(1), batch["observation"].unbind(1), strict=True):
        found, state = run.memory.gru(seen[:, None], state.where(~first, 0).contiguous())
        features.append(found)
    found = TensorDict(features=torch.cat(features, 1), batch_size=batch.shape)
    policy = run.network.get_policy_head().get_dist(found)
    values = run.network.get_value_head()(found)["state_value"]
    return policy.log_prob(batch["action"]), values


def of_run(name, value):
    return mock.patch.object(recipe, name, value)


class Never(InitTracker):
    def _reset(self, tensordict, tensordict_reset):
        super()._reset(tensordict, tensordict_reset)["is_init"].fill_(False)
        return tensordict_reset


class Shuffled(ClipPPOLoss):
    """Frames in place of sequences."""

    def forward(self, tensordict):
        frames = tensordict.reshape(-1)[torch.randperm(tensordict.numel())]
        return super().forward(frames.reshape(tensordict.shape))


PLANTED = {
    "nothing": (mock.patch.dict({}), set()),
    "sign of the objective": (of_run("ClipPPOLoss", WrongSign), {"actor"}),
    "sign of the critic": (of_run("ClipPPOLoss", WrongCritic), {"critic"}),
    "state of another episode": (of_run("InitTracker", Never), {"first", "state", "ratio"}),
    "state of no step": (of_run("GRUModule", contenders.memoryless()), {"state", "value"}),
    "state not read": (of_run("READ", tuple({*recipe.READ} - {"recurrent_state"})), {"ratio"}),
    "shuffled frames": (of_run("ClipPPOLoss", Shuffled), {"ratio"}),
}


def complaints(run):
    """What one iteration of *run*, its second, does wrong."""
    with torch.no_grad():  # so that actions depend on what is remembered
        for head in (run.network.get_policy_head(), run.network.get_value_head()):
            next(head.parameters()).mul_(30)
    given, learn = [], run.learn
    run.note, run.learn = given.append, given.append
    run.iterate()
    run.iterate()
    run.collector.shutdown()
    _, _, whole, batch = given
    with torch.no_grad():
        log_prob, value = walked(run, whole)
        ratio = run.loss(batch)["ESS"]
    found = set()
    done = whole["next", "done"][:, :-1]
    assert done.any()
    if not torch.equal(whole["is_init"][:, 1:], done):
        found.add("first")
    if not torch.allclose(log_prob, batch["action_log_prob"], atol=1e-5):
        found.add("state")
    if not torch.allclose(value, batch["value_target"] - batch["advantage"], atol=1e-4):
        found.add("value")
    if not torch.allclose(ratio, torch.ones(())):
        found.add("ratio")
    learn(batch)
    with torch.no_grad():
        new, better = walked(run, whole)
    advantage = (batch["advantage"] - batch["advantage"].mean()).squeeze(-1)
    if not (advantage * (new - log_prob)).mean() > 0:
        found.add("actor")
    before, after = ((one - batch["value_target"]).square().mean() for one in (value, better))
    if not after < before:
        found.add("critic")
    return found


@guards("recurrent-recipe-is-plain-torch")
@pytest.mark.parametrize("planted", PLANTED)
def test_an_iteration_computes_what_plain_torch_does_and_gets_better(planted):
    change, expected = PLANTED[planted]
    with change:
        assert complaints(make_run("--envs", 8, "--steps", 32, "--frames", 100_000)) == expected


@pytest.mark.parametrize("seed", [0, 1])
def test_the_recipe_learns(seed):
    def in_time(run):
        assert run.progress["frames"] < 16_000

    run = recipe.Run(recipe.parse(["--threshold", "60"]), seed)
    run.train(in_time)
    assert run.solved


def test_with_a_wrong_sign_it_does_not():
    run = recipe.Run(recipe.parse(["--frames", "6144"]), 0)
    with of_run("ClipPPOLoss", WrongSign):
        run.loss = run.make_loss()
    run.train(lambda run: None)
    assert run.mean_return < 15


# -- The command -----------------------------------------------------------------


def test_the_command_prints_a_table_and_ends_with_its_frames(capsys):
    assert_prints_a_table(recipe, SMALL, capsys)


@guards("recurrent-recipe-resumes-with-the-same-bits")
def test_a_resumed_run_has_the_bits_of_one_that_nobody_killed(tmp_path):
    assert_resumes(recipe, SMALL, tmp_path)


# -- The suite -------------------------------------------------------------------


def test_contenders_agree_on_what_is_solved():
    options = recipe.parse([])
    assert options.threshold == contenders.THRESHOLD
    assert options.frames == feed_forward.FRAMES
    assert recipe.EPISODES == feed_forward.EPISODES
    assert suite.CONTENDERS.keys() == contenders.WAYS.keys()


def test_a_contender_reports_each_iteration(monkeypatch, capsys):
    monkeypatch.setattr(feed_forward, "FRAMES", 2048)
    contenders.main("torchrl-memoryless", 0)
    found = json.loads(capsys.readouterr().out)
    (first, begin, _, _), (last, end, _, mean) = found["points"]
    assert (first, last) == (1024, 2048)
    assert begin < end
    assert 5 < mean < 500
    assert not found["solved"]
    monkeypatch.setattr(suite, "trained", lambda: {"torchrl-memoryless": [found] * suite.SEEDS})
    said = noted(suite.bench_training, CPU, "torchrl-memoryless")
    assert said["parameters"]["threshold"] == contenders.THRESHOLD
    assert said["title"] == "TorchRL, no memory"
    assert said["sampled"]["solved"] == [0.0]
    curve = noted(suite.bench_curve, CPU, "torchrl-memoryless", "frames", 2048)
    assert curve["sampled"]["episode_return"] == [round(mean, 1)] * suite.SEEDS
