"""What the tests of the recipes share: losses with a mistake, and a run that is killed."""

import pytest
import torch
from torchrl.objectives import ClipPPOLoss


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
