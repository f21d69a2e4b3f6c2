"""The recipe of SAC: it computes what plain torch does, what is planted is noticed, it resumes."""

from functools import partial
from unittest import mock

import gymnasium
import pytest
import torch
import torch.nn.functional as F
from gymnasium.error import DependencyNotInstalled
from torchrl.objectives import SACLoss, SoftUpdate

from benchmarks.recipes import sac_halfcheetah as recipe
from benchmarks.recipes import sac_halfcheetah_contenders as contenders
from benchmarks.recipes import sac_halfcheetah_peers_contenders as peers
from benchmarks.suites import bench_recipe_sac_halfcheetah_peers as suite
from tests.support.claims import guards
from tests.support.ppo_recipes import assert_prints_a_table, assert_resumes

SMALL = ["--env", "Pendulum-v1", "--envs", "4", "--steps", "8", "--frames", "320"]
SMALL += ["--random", "64", "--ratio", "0.25"]
GAMMA, TAU, ROWS = recipe.GAMMA, recipe.TAU, 16
BATCH = recipe.BATCH  # few_rows replaces it


@pytest.fixture(autouse=True)
def few_rows():
    with mock.patch.object(recipe, "BATCH", ROWS):
        yield


def make_run():
    """A run that stores rows of random actions, and learns only when it is told to."""
    run = recipe.Run(recipe.parse([*SMALL, "--random", "320"]), 0)
    run.batches = iter(run.collector)
    return run


# -- What one update does, in plain torch ----------------------------------------


def network(parameters, given):
    """The output of three layers, whose weights and biases take turns in *parameters*."""
    *hidden, last = zip(parameters[::2], parameters[1::2], strict=True)
    for weight, bias in hidden:
        given = F.relu(F.linear(given, weight, bias))
    return F.linear(given, *last)


def acted(parameters, seen):
    """An action of Pendulum, drawn as the recipe draws it, and its log-probability."""
    loc, raw = network(parameters, seen).chunk(2, -1)
    scale = F.softplus(raw + torch.tensor(0.99).expm1().log()) + 0.01  # one for zeros
    drawn = loc + scale * torch.randn_like(loc)
    log_prob = torch.distributions.Normal(loc, scale).log_prob(drawn)
    log_prob = log_prob - torch.log(2 * (1 - drawn.tanh() ** 2))
    return 2 * drawn.tanh(), log_prob.sum(-1, keepdim=True)


def parts_of(loss):
    """The parameters of actor, critics, targets and temperature."""
    named = dict(loss.named_parameters())
    actor, critics = (
        [value for name, value in named.items() if name.startswith(part)]
        for part in ("actor", "qvalue")
    )
    names = [name.removeprefix("qvalue_network_params.") for name in named if "qvalue" in name]
    targets = loss.target_qvalue_network_params.flatten_keys(".")
    return actor, critics, [targets[name].clone() for name in names], loss.log_alpha


def plain_losses(loss, rows):
    """The losses of actor, critics and temperature on *rows*."""
    actor, critics, targets, log_alpha = parts_of(loss)

    def values(parameters, seen, action):
        given = torch.cat([seen, action], -1)
        return torch.stack([network(list(one), given) for one in zip(*parameters, strict=True)])

    alpha = log_alpha.detach().exp()
    with torch.no_grad():
        following = rows["next", "observation"]
        action, log_prob = acted(actor, following)
        value = values(targets, following, action).min(0).values - alpha * log_prob
        value = rows["next", "reward"] + GAMMA * ~rows["next", "terminated"] * value
    error = (values(critics, rows["observation"], rows["action"]) - value).square()
    action, log_prob = acted(actor, rows["observation"])
    frozen = [one.detach() for one in critics]
    best = values(frozen, rows["observation"], action).min(0).values
    return {
        "actor": (alpha * log_prob - best).mean(),
        "critics": error.sum(0).mean(),
        "temperature": -(log_alpha * (log_prob.detach() - 1)).mean(),  # of one action
    }


def pendulum(rows):
    """Next observation and reward of *rows*, by the equations of Pendulum."""
    cos, sin, speed = rows["observation"].unbind(-1)
    push = rows["action"].squeeze(-1)
    angle = torch.atan2(sin, cos)
    reward = -(angle**2 + 0.1 * speed**2 + 0.001 * push**2)
    speed = (speed + (15 * sin + 3 * push) * 0.05).clamp(-8, 8)
    angle = angle + speed * 0.05
    return torch.stack([angle.cos(), angle.sin(), speed], -1), reward[:, None]


# -- Mistakes --------------------------------------------------------------------


def negated(name):
    class Negated(SACLoss):
        def forward(self, tensordict):
            found = super().forward(tensordict)
            found[name] = -found[name]
            return found

    return mock.patch.object(recipe, "SACLoss", Negated)


class EndsAtTruncation(SACLoss):
    def make_value_estimator(self, *arguments, **named):
        self.set_keys(terminated="done")
        super().make_value_estimator(*arguments, **named)


def shifted(run, batch, note=recipe.Run.note):
    """Each row gets the next observation of the row before it."""
    note(run, batch)
    batch["next", "observation"] = batch["next", "observation"].roll(1, 1)


def of_run(name, value):
    return mock.patch.object(recipe.Run, name, value)


def of_recipe(name, value):
    return mock.patch.object(recipe, name, value)


PLANTED = {
    "nothing": (mock.patch.dict({}), set()),
    "sign of the actor": (negated("loss_actor"), {"actor"}),
    "sign of the critics": (negated("loss_qvalue"), {"critics"}),
    "sign of the temperature": (negated("loss_alpha"), {"temperature"}),
    "discount": (of_recipe("GAMMA", 0.9), {"critics"}),
    "truncated as terminated": (of_recipe("SACLoss", EndsAtTruncation), {"critics"}),
    "frozen targets": (mock.patch.object(SoftUpdate, "step"), {"targets"}),
    "targets that move too fast": (of_recipe("TAU", 0.05), {"targets"}),
    "another next observation": (of_run("note", shifted), {"rows"}),
}


def complaints(run):
    """What the first update of *run* does wrong, and the rows that it learns from."""
    run.iterate()
    run.iterate()
    found = set()
    rows = run.buffer[:]
    ends = rows["next", "done"]
    assert ends.any()
    assert not rows["next", "terminated"].any()
    following, reward = pendulum(rows)
    if not torch.allclose(rows["next", "observation"], following, atol=1e-4):
        found.add("rows")
    if not torch.allclose(rows["next", "reward"], reward, atol=1e-4):
        found.add("rewards")
    (minibatch,) = run.draw(1)
    assert minibatch["next", "done"].any()
    actor, critics, targets, log_alpha = parts_of(run.loss)
    state = torch.get_rng_state()
    losses = plain_losses(run.loss, minibatch)
    groups = {"actor": actor, "critics": critics, "temperature": [log_alpha]}
    gradients = {name: torch.autograd.grad(losses[name], groups[name]) for name in groups}
    torch.set_rng_state(state)
    given = {}

    def keep(optimizer, *_):
        given.update({name: [one.grad.clone() for one in groups[name]] for name in groups})

    run.optimizer.register_step_pre_hook(keep)
    run.learn(minibatch)
    for name, expected in gradients.items():
        pairs = zip(given[name], expected, strict=True)
        if not all(torch.allclose(one, other, rtol=1e-3, atol=1e-5) for one, other in pairs):
            found.add(name)
    _, critics, moved, _ = parts_of(run.loss)
    for before, source, after in zip(targets, critics, moved, strict=True):
        if not torch.allclose(after, before.lerp(source.detach(), TAU), atol=1e-7):
            found.add("targets")
    run.collector.shutdown()
    return found


@guards("sac-recipe-is-plain-torch")
@pytest.mark.parametrize("planted", PLANTED)
def test_an_update_computes_what_plain_torch_does(planted):
    change, expected = PLANTED[planted]
    short = partial(gymnasium.make, max_episode_steps=5)
    with change, mock.patch.object(recipe.gymnasium, "make", short):
        assert complaints(make_run()) == expected


# -- The command -----------------------------------------------------------------


def test_the_command_prints_a_table_and_ends_with_its_frames(capsys):
    assert_prints_a_table(recipe, SMALL, capsys)


@guards("sac-recipe-resumes-with-the-same-bits")
def test_a_resumed_run_has_the_bits_of_one_that_nobody_killed(tmp_path):
    assert_resumes(recipe, SMALL, tmp_path)


def test_without_mujoco_the_command_says_what_to_install_or_to_do():
    missing = DependencyNotInstalled("MuJoCo is not installed, run `pip install mujoco`")
    with (
        mock.patch.object(recipe.gymnasium, "make", side_effect=missing),
        pytest.raises(SystemExit, match=r"HalfCheetah-v5: .*pip install.* --env Pendulum-v1"),
    ):
        recipe.main([])


# -- The suites ------------------------------------------------------------------


@guards("sac-peers-share-hyperparameters")
def test_contenders_share_the_hyperparameters():
    options = recipe.parse([])
    names = ("envs", "steps", "ratio", "random")
    assert all(getattr(options, name) == getattr(contenders, name.upper()) for name in names)
    names = ("GAMMA", "LR", "TAU", "ALPHA")
    assert all(getattr(recipe, name) == getattr(contenders, name) for name in names)
    assert (peers.BATCH, list(peers.CELLS)) == (BATCH, recipe.CELLS)
    assert suite.CONTENDERS.keys() == peers.WAYS.keys()
