"""GRPO on brackets until they are closed: the recipe, plain torch, and plain torch with a mistake.

Solved means that at least 90 percent of the answers of ten iterations are right as a whole, their
end included. All contenders have the same model, task and hyperparameters, one process and one
thread, and take turns, seed by seed. Seconds begin when model and environment have been made. A
training stops when it is solved: later points of its curve repeat the last value. The peak memory
is that of the recipe's command over some answers, in a process of its own.
"""

import functools
import subprocess
import sys
import time

import pytest
import torch
from torch import nn
from torch.distributions import Categorical

from benchmarks import interleaved, metrics
from benchmarks.recipes import grpo_brackets as recipe

SEEDS = 5
ANSWERS = (1024, 2048, 3072, 4096)
MEMORY_ANSWERS, MEMORY_SEEDS = 1024, 3

CONTENDERS = {
    "torchrl": "GRPO, recipe",
    "plain": "GRPO, plain torch",
    "generated": "GRPO, first token certain",
}
pytestmark = [
    pytest.mark.filterwarnings("ignore:size_average and reduce args"),
    pytest.mark.filterwarnings("ignore:The env passed to LLMCollector"),
]
METRICS = metrics.declare("""
time_to_threshold [s] Time to the threshold: Wall time until 90 percent of the answers are right;
    each round is a seed.
cpu_to_threshold [s] Processor time to the threshold: The same in seconds of the processor.
answers_to_threshold [1] Answers to the threshold: Answers until then.
solved [1] Solved: Share of the seeds that reached the threshold within 10 000 answers.
collect_time [s] Collection: Wall time of collecting 1000 answers.
score_time [s] Scoring: Wall time of the log-probabilities of 1000 answers.
advantage_time [s] Advantage: Wall time of the advantages of 1000 answers, the buffer included.
update_time [s] Update: Wall time of the updates on 1000 answers.
command_time [s] Time of the command: Wall time of the command over 1024 answers, with the imports.
peak_memory [B] Peak memory: Highest resident memory of the process, with its libraries.
right [1] Right answers: Share of the answers of the last ten iterations that are right as a whole;
    each round is a seed.
""")


class Plain(recipe.Run):
    """The recipe in padded tensors, without TorchRL."""

    def make_collector(self):
        return None

    def make_buffer(self):
        return None

    def train(self, each_iteration):
        self.asked = self.ask()
        while not self.over:
            self.iterate()
            each_iteration(self)

    def ask(self):
        order = torch.Generator().manual_seed(self.seed)
        questions = recipe.questions(self.options.longest)
        while True:
            for one in torch.randperm(len(questions), generator=order).tolist():
                yield from [questions[one]] * self.options.group

    def iterate(self):
        marks = [time.perf_counter()]
        asked = [next(self.asked) for _ in range(self.rows)]
        given = self.tokenizer([one["query"] for one in asked])
        limit = self.options.longest + 2
        out = self.model.generate(**given, max_new_tokens=limit)
        tokens = out["sequences"][:, -limit:]
        there = tokens != self.tokenizer.pad_token_id
        texts = self.tokenizer.batch_decode(
            [row[mask] for row, mask in zip(tokens, there, strict=True)]
        )
        pairs = zip(texts, asked, strict=True)
        rewards = torch.tensor([recipe.reward(text, one["answer"]) for text, one in pairs])
        marks.append(time.perf_counter())
        self.count(rewards)
        logits = torch.stack(out["logits"], 1)
        old = self.rated(Categorical(logits=logits).log_prob(tokens))
        marks.append(time.perf_counter())
        groups = rewards.view(-1, self.options.group)
        scale = groups.std(1, keepdim=True).clamp_min(1e-6)
        advantage = ((groups - groups.mean(1, keepdim=True)) / scale).view(-1, 1)
        marks.append(time.perf_counter())
        mask = torch.cat([given["attention_mask"], there], 1)
        for _ in range(recipe.EPOCHS):
            logits = self.model(out["sequences"], mask)["logits"][:, -limit - 1 : -1]
            new = Categorical(logits=logits)
            ratio = (new.log_prob(tokens) - old).exp()
            clipped = ratio.clamp(1 - recipe.CLIP, 1 + recipe.CLIP)
            gain = torch.min(ratio * advantage, clipped * advantage)
            (-gain - recipe.ENTROPY * new.entropy())[there].mean().backward()
            nn.utils.clip_grad_norm_(self.parameters, 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
        weights = ratio[there].detach()
        self.progress["ess"].append(
            (weights.sum() ** 2 / weights.square().sum() / len(weights)).item()
        )
        marks.append(time.perf_counter())
        self.spent(marks)

    def rated(self, log_probs):
        return log_probs


class Generated(Plain):
    """The mistake: zero for the first token, as TransformersWrapper stores it in generation."""

    def rated(self, log_probs):
        log_probs[:, 0] = 0
        return log_probs


RUNS = {"torchrl": recipe.Run, "plain": Plain, "generated": Generated}


def train(way, seed):
    """What a training has come to, one point after each iteration, and its run."""
    run = RUNS[way](recipe.parse([]), seed)
    begin, cpu, points = time.perf_counter(), time.process_time(), []

    def note(run):
        spent = time.perf_counter() - begin, time.process_time() - cpu
        right = run.progress["right"][-recipe.ITERATIONS :]
        points.append((run.progress["answers"], *spent, sum(right) / len(right)))

    run.train(note)
    return points, run


@functools.cache
def trained():
    """What each contender came to, by seed."""
    torch.set_num_threads(1)
    found = {way: [] for way in CONTENDERS}
    for seed in range(SEEDS):
        for way in CONTENDERS:
            found[way].append(train(way, seed))
            print(way, seed, found[way][-1][0][-1], file=sys.stderr, flush=True)
    return found


@pytest.mark.parametrize("way", CONTENDERS)
def bench_training(benchmark, device, way):
    if device.type == "cuda":
        pytest.skip("the networks are too small for a GPU")
    points, runs = zip(*trained()[way], strict=True)
    answers, seconds, cpu, _ = zip(*(one[-1] for one in points), strict=True)
    parts = {
        f"{part}_time": [1000 * run.progress[part] / run.progress["answers"] for run in runs]
        for part in recipe.PARTS
    }
    interleaved.report(
        benchmark,
        seconds,
        0,
        way,
        "time_to_threshold",
        title=CONTENDERS[way],
        parameters={"contender": CONTENDERS[way], "seeds": SEEDS, "threshold": 0.9},
        sampled={
            "cpu_to_threshold": list(cpu),
            "answers_to_threshold": list(answers),
            "solved": [sum(run.solved for run in runs) / SEEDS],
            **parts,
        },
    )


@pytest.mark.parametrize("answers", ANSWERS)
@pytest.mark.parametrize("way", CONTENDERS)
def bench_curve(benchmark, device, way, answers):
    if device.type == "cuda":
        pytest.skip("the networks are too small for a GPU")
    curves = [points for points, _ in trained()[way]]
    right = [[point[-1] for point in points if point[0] <= answers][-1] for points in curves]
    interleaved.report(
        benchmark,
        [points[-1][1] for points in curves],
        0,
        f"{way}-answers-{answers}",
        "time_to_threshold",
        title=f"{CONTENDERS[way]}, after {answers} answers",
        parameters={"contender": CONTENDERS[way], "answers": answers, "seeds": SEEDS},
        sampled={"right": [round(one, 3) for one in right]},
    )


def bench_memory(benchmark, device):
    if device.type == "cuda":
        pytest.skip("the networks are too small for a GPU")
    seconds, peaks = [], []
    for seed in range(MEMORY_SEEDS):
        begin = time.perf_counter()
        peaks.append(peak_of("--seeds", str(seed), "--answers", str(MEMORY_ANSWERS)))
        seconds.append(time.perf_counter() - begin)
    interleaved.report(
        benchmark,
        seconds,
        0,
        "memory",
        "command_time",
        title="The recipe's command",
        parameters={"answers": MEMORY_ANSWERS, "seeds": MEMORY_SEEDS},
        sampled={"peak_memory": peaks},
    )


# Runs a script and prints its VmHWM. What wait4 says of a child has the parent's memory in it.
PEAK = """
import runpy, sys
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
status = open("/proc/self/status").read()
print(status.partition("VmHWM:")[2].split()[0])
"""


def peak_of(*arguments):
    """Highest resident bytes of the recipe's command."""
    command = [sys.executable, "-c", PEAK, recipe.__file__, *arguments]
    child = subprocess.run(command, capture_output=True, text=True, check=True)
    return 1024 * int(child.stdout.splitlines()[-1])
