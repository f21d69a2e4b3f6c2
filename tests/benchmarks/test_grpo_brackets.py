"""The recipe of GRPO on brackets: what TorchRL computes is what plain torch does, and it learns."""

import multiprocessing
import os
import signal
from unittest import mock

import pytest
import torch
from torchrl.objectives.llm import GRPOLoss

from benchmarks.recipes import grpo_brackets as recipe
from benchmarks.suites import bench_recipe_grpo_brackets as suite
from tests.support.claims import guards
from tests.support.suites import CPU, noted

SMALL = ["--prompts", "4", "--group", "8"]
END, LIMIT = recipe.Tokenizer.eos_token_id, 4

pytestmark = [
    pytest.mark.filterwarnings("ignore:size_average and reduce args"),  # in TorchRL's own call
    pytest.mark.filterwarnings("ignore:The env passed to LLMCollector"),  # the policy has no memory
    pytest.mark.filterwarnings(r"ignore:.*fork\(\) may lead to deadlocks"),
]


def make_run(kind=recipe.Run):
    run = kind(recipe.parse(SMALL), 0)
    run.batches = iter(run.collector)
    return run


def collected(run):
    """A batch with log-probabilities and advantages, as the loss gets it."""
    batch = next(run.batches).view(-1)
    run.count(batch["next", "reward"])
    run.score(batch)
    run.buffer.extend(batch.select(*recipe.READ))
    run.collector.shutdown()
    return run.buffer.sample()


def answered(model, row):
    """Log-probability and entropy of each token of an answer; no padding, no mask, no TorchRL."""
    tokens, start = row["tokens", "full"], len(row["tokens", "prompt"])
    logits = model(tokens[None], torch.ones(1, len(tokens)))["logits"][0, start - 1 : -1]
    log_probs = logits.log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    return log_probs.gather(-1, tokens[start:, None]).squeeze(-1), entropy


@guards("brackets-loss-is-plain-torch")
def test_log_probs_masks_and_loss_are_those_of_plain_torch():
    run = make_run()
    batch = collected(run)
    lengths = {len(row["tokens", "full"]) for row in batch.unbind(0)}
    assert len(lengths) > 2, "rows of one length need neither padding nor masks"
    for row in batch.unbind(0):
        old = row["log_probs", "full"][len(row["tokens", "prompt"]) :]
        torch.testing.assert_close(old, answered(run.model, row)[0].detach())
    with torch.no_grad():  # so that ratios differ from one, some beyond the clip
        for parameter in run.parameters:
            parameter += 0.1 * torch.randn_like(parameter)
    gains, entropies, ratios = [], [], []
    for row in batch.unbind(0):
        new, entropy = answered(run.model, row)
        ratio = (new - row["log_probs", "full"][-len(new) :]).exp()
        clipped = ratio.clamp(1 - recipe.CLIP, 1 + recipe.CLIP)
        gains.append(torch.minimum(ratio * row["advantage"], clipped * row["advantage"]).flatten())
        entropies.append(entropy)
        ratios.append(ratio.detach())
    ratios = torch.cat(ratios)
    assert (ratios > 1 + recipe.CLIP).any()
    losses = run.loss(batch)
    objective, entropy = -torch.cat(gains).mean(), torch.cat(entropies).mean()
    torch.testing.assert_close(losses.loss_objective.squeeze(), objective)
    torch.testing.assert_close(losses.loss_entropy.squeeze(), -recipe.ENTROPY * entropy)
    weight = ratios.sum() ** 2 / ratios.square().sum() / len(ratios)
    torch.testing.assert_close(losses.ESS, weight)
    ours, plain = (
        torch.autograd.grad(one, run.parameters)
        for one in (losses.loss_objective.squeeze(), objective)
    )
    torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-6)


# -- What one iteration does -----------------------------------------------------


class WrongSign(GRPOLoss):
    def forward(self, tensordict):
        found = super().forward(tensordict)
        found.loss_objective = -found.loss_objective
        return found


class PaddedWithTheEnd(recipe.Tokenizer):
    """The wrapper gives it the end as padding."""

    pad_token = None

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "pad_token":
            super().__setattr__("pad_token_id", recipe.LETTERS.index(value))


def as_generated(run, batch):
    for row in batch.unbind(0):
        unknown = torch.full((len(row["tokens", "prompt"]),), torch.nan)
        row["log_probs", "full"] = torch.cat([unknown, row["log_probs", "response"]])


def one_token_late(run, batch, score=recipe.Run.score):
    score(run, batch)
    for row in batch.unbind(0):
        row["log_probs", "full"] = row["log_probs", "full"].roll(1)


PLANTED = {
    "nothing": (mock.patch.dict({}), set()),
    "sign": (mock.patch.object(recipe, "GRPOLoss", WrongSign), {"actor"}),
    "log-probs of generation": (
        mock.patch.object(recipe.Run, "score", as_generated),
        {"ratio"},
    ),
    "log-probs one token late": (
        mock.patch.object(recipe.Run, "score", one_token_late),
        {"ratio"},
    ),
    "end as padding": (mock.patch.object(recipe, "Tokenizer", PaddedWithTheEnd), {"end"}),
    "reward of another answer": (
        mock.patch.object(recipe, "reward", lambda response, answer: len(response) / 9),
        {"reward"},
    ),
}


def complaints(run):
    """What one iteration of *run* does wrong."""
    batch = collected(run)
    rows = batch.unbind(0)
    found = set()
    if not any(END in row["tokens", "response"].tolist() for row in rows):
        found.add("end")
    for row in rows:
        right = dict(map(dict.values, recipe.questions(2)))[row["query"]]
        said = "".join(recipe.LETTERS[token] for token in row["tokens", "response"])
        if (row["next", "reward"].item() == 1) != (said == right):
            found.add("reward")
    if not torch.isclose(run.loss(batch).ESS, torch.ones(())):
        found.add("ratio")

    def gain():
        with torch.no_grad():
            each = [row["advantage"] * answered(run.model, row)[0] for row in rows]
        return torch.cat([one.flatten() for one in each]).mean()

    before, _ = gain(), run.learn(batch)
    return found if gain() > before else found | {"actor"}


@pytest.mark.parametrize("planted", PLANTED)
def test_an_iteration_makes_good_answers_more_likely(planted):
    change, expected = PLANTED[planted]
    with change:
        assert complaints(make_run()) == expected


def test_answers_to_a_question_are_compared_with_each_other():
    groups = {}
    for row in collected(make_run()).unbind(0):
        groups.setdefault(row["query"], []).append((row["advantage"], row["next", "reward"]))
    assert len(groups) == 4
    for group in groups.values():
        advantage, rewards = (torch.stack(one).flatten() for one in zip(*group, strict=True))
        plain = (rewards - rewards.mean()) / rewards.std().clamp_min(1e-6)
        torch.testing.assert_close(advantage, plain)


def test_the_recipe_in_plain_torch_learns_and_with_a_wrong_sign_it_does_not():
    for solved in (True, False):
        run = suite.Plain(recipe.parse(["--answers", "4096", "--threshold", "0.5"]), 0)
        run.optimizer.param_groups[0]["maximize"] = not solved
        run.train(lambda run: None)
        assert run.solved == solved


# -- The command and the suite ---------------------------------------------------


def test_the_command_prints_a_table_and_ends_with_its_answers(capsys):
    recipe.main([*SMALL, "--answers", "64", "--seeds", "3"])
    head, lines = capsys.readouterr().out.split("\n", 1)
    assert tuple(head.split()) == recipe.COLUMNS
    rows = lines.strip().split("\r")
    assert len(rows) == 2 + 1  # one for each iteration, and the last once more
    assert rows[-1].split()[:2] == ["3", "64"]
    assert "not solved: collect" in rows[-1]


def train(folder, *, kill_after=None):
    def each(run):
        if run.progress["answers"] == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)  # the bits are those of one thread
    options = [*SMALL, "--answers", "160", "--folder", str(folder), "--save-every", "2"]
    run = recipe.Run(recipe.parse(options), 0)
    run.train(each)
    return run


@guards("brackets-recipe-resumes-with-the-same-bits")
def test_a_resumed_run_has_the_bits_of_one_that_nobody_killed(tmp_path):
    whole = train(tmp_path / "whole")
    options = {"folder": tmp_path / "killed", "kill_after": 96}
    child = multiprocessing.get_context("spawn").Process(target=train, kwargs=options)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    resumed = train(tmp_path / "killed")
    for one, other in zip(whole.parameters, resumed.parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    for name in ("answers", "rewards", "right", "ess"):
        assert resumed.progress[name] == whole.progress[name]
    assert len(whole.progress["rewards"]) == 5


def test_peak_memory_is_that_of_the_command(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text("import sys; held = b'x' * int(sys.argv[1])")
    monkeypatch.setattr(recipe, "__file__", str(script))
    small, large = suite.peak_of("1000000"), suite.peak_of("200000000")
    assert 190e6 < large - small < 210e6


def test_the_suite_reports_what_each_contender_came_to(monkeypatch):
    monkeypatch.setattr(recipe, "parse", lambda _: parsed)
    parsed = recipe.argparse.Namespace(threshold=0.9, answers=64, longest=2, prompts=4, group=8)
    parsed.folder = None
    found = {way: [suite.train(way, 0)] * suite.SEEDS for way in suite.CONTENDERS}
    monkeypatch.setattr(suite, "trained", lambda: found)
    monkeypatch.setattr(suite, "ANSWERS", (64,))
    for way in suite.CONTENDERS:
        said = noted(suite.bench_training, CPU, way)["sampled"]
        assert said["answers_to_threshold"] == [64] * suite.SEEDS
        assert said["solved"] == [0]
        assert len(noted(suite.bench_curve, CPU, way, 64)["sampled"]["right"]) == suite.SEEDS
    monkeypatch.setattr(suite, "peak_of", lambda *arguments: len(arguments))
    assert noted(suite.bench_memory, CPU)["sampled"] == {"peak_memory": [4] * suite.MEMORY_SEEDS}
