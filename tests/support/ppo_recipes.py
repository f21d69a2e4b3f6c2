"""What the tests of the recipes share: mistakes, what gives them away, and a run that is killed."""

from unittest import mock

import pytest
import torch
from torchrl.objectives import ClipPPOLoss

from benchmarks.suites.bench_recipe_ppo_cartpole import changed


class WrongSign(ClipPPOLoss):
    def forward(self, tensordict):
        found = super().forward(tensordict)
        found["loss_objective"] = -found["loss_objective"]
        return found


class WrongCritic(ClipPPOLoss):
    def forward(self, tensordict):
        found = super().forward(tensordict)
        found["loss_critic"] = -found["loss_critic"]
        return found


def planted_in(recipe):
    """By name: mistakes to plant in *recipe*, and what `complaints` finds of each."""

    def loss(other):
        return mock.patch.object(recipe, "ClipPPOLoss", other)

    def forgetful(run):
        """The optimizer knows the actor alone."""
        return torch.optim.Adam(run.actor.parameters(), recipe.LR)

    def frozen(run):
        """The optimizer has copies of the parameters."""
        copies = [torch.nn.Parameter(parameter.detach().clone()) for parameter in run.parameters]
        return torch.optim.Adam(copies, recipe.LR)

    def optimizer(make):
        return mock.patch.object(recipe.Run, "make_optimizer", make)

    return {
        "nothing": (mock.patch.dict({}), set()),
        "sign of the objective": (loss(WrongSign), {"actor"}),
        "sign of the critic": (loss(WrongCritic), {"critic"}),
        "advantage as it is": (loss(changed(ClipPPOLoss, normalize_advantage=False)), {"scale"}),
        "critic not trained": (optimizer(forgetful), {"critic"}),
        "optimizer of copies": (optimizer(frozen), {"actor", "critic"}),
        "targets without rewards": (mock.patch.object(recipe, "GAMMA", 0.0), {"horizon"}),
    }


def complaints(run, batch, read):
    """What *run* does wrong when it learns from a *batch* of rewards of one; it *read*s these."""
    run.note(batch)
    with torch.no_grad():
        run.advantage(batch)
    following = batch["value_target"][:, :-1][~batch["next", "done"][:, :-1]]
    batch = batch.select(*read).reshape(-1)

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


def assert_prints_a_table(recipe, arguments, capsys):
    """The command of *recipe* prints a row for each of its ten iterations, and ends as asked."""
    recipe.main([*arguments, "--seeds", "3"])
    head, lines = capsys.readouterr().out.split("\n", 1)
    assert tuple(head.split()) == recipe.COLUMNS
    rows = lines.strip().split("\r")
    assert len(rows) == 10 + 1  # one for each iteration, and the last once more
    assert rows[-1].split()[:2] == ["3", "320"]
    assert "not solved: collect" in rows[-1]


class Killed(Exception):
    pass


def assert_resumes(recipe, arguments, folder):
    """A run of *recipe* that was killed and goes on ends with the bits of one that was not."""

    def train(name, *, kill_after=None):
        def each(run):
            if run.progress["iterations"] == kill_after:
                run.collector.shutdown()
                raise Killed

        options = [*arguments, "--folder", str(folder / name), "--save-every", "3"]
        run = recipe.Run(recipe.parse(options), 0)
        run.train(each)
        return run

    whole = train("whole")
    with pytest.raises(Killed):
        train("killed", kill_after=8)
    resumed = train("killed")
    for one, other in zip(whole.parameters, resumed.parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    runs = (whole, resumed)
    counts = [{k: v for k, v in r.progress.items() if not isinstance(v, float)} for r in runs]
    assert counts[0] == counts[1]
