"""GRPO on a small language model that learns to close brackets: ``([=`` is answered by ``]).``

    python grpo_brackets.py                                # one seed, about a minute on one core
    python grpo_brackets.py --seeds 0 1 2 --folder runs    # saves; the same command resumes

The reward is verifiable: the share of the right answer that an answer gets right before its first
mistake. Model and tokenizer are made here from ``CONFIG`` and ``LETTERS``; nothing is downloaded.
A comment with a path such as reference/llm_data names the page of the TorchRL Field Manual that
explains the line.
"""

import argparse
import itertools
import time
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.distributions import Categorical
from torch.utils.data import DataLoader
from torchrl.checkpoint import Checkpoint, CheckpointRotation, GlobalRNGState
from torchrl.collectors.llm import LLMCollector
from torchrl.data import LazyStackStorage, ReplayBuffer, SamplerWithoutReplacement, Unbounded
from torchrl.envs import Transform
from torchrl.envs.llm import ChatEnv
from torchrl.modules.llm import TransformersWrapper
from torchrl.objectives.llm import GRPOLoss, MCAdvantage

PAIRS = {"(": ")", "[": "]", "{": "}"}
LETTERS = "_." + "".join(PAIRS) + "".join(PAIRS.values()) + "="  # padding, end, brackets, question
CONFIG = {"width": 32, "heads": 4, "layers": 2, "positions": 16}
LR, CLIP, ENTROPY, EPOCHS = 2e-3, 0.2, 0.01, 4
ITERATIONS = 10  # whose mean share of right answers is compared with the threshold
# From the distribution that the loss computes; transformers samples from another one by default.
SAMPLING = {"do_sample": True, "temperature": 1.0, "top_k": None, "top_p": 1.0}
PARTS = ("collect", "score", "advantage", "update")
# Of a row, what MCAdvantage and GRPOLoss read; each further key costs time, row by row.
READ = ("tokens", "masks", "log_probs", "query", ("next", "reward"), ("next", "done"))
COLUMNS = ("seed", "answers", "seconds", "answers/s", "reward", "right", "ESS")


def parse(arguments=None):
    describe = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=describe)
    add = parser.add_argument
    add("--seeds", type=int, nargs="+", default=[0], help="trained one after another")
    add("--threshold", type=float, default=0.9, help="share of answers that are right as a whole")
    add("--answers", type=int, default=10_000, help="the most that a seed may take")
    add("--longest", type=int, default=2, help="brackets in a question")
    add("--prompts", type=int, default=16, help="in a batch")
    add("--group", type=int, default=8, help="answers to a prompt, compared with each other")
    add("--folder", type=Path, help="save here, and resume from what is saved here")
    add("--save-every", type=int, default=10, help="iterations from one save to the next")
    return parser.parse_args(arguments)


# -- A model and its tokenizer, in place of those of transformers ------------------


class Tokenizer:
    """What TorchRL calls of a tokenizer; a letter is a token."""

    pad_token, eos_token = "_", "."  # two tokens: tutorials/debugging/answers_lose_their_end
    pad_token_id, eos_token_id = 0, 1

    def __call__(self, text, **options):
        if isinstance(text, str):
            return {"input_ids": [LETTERS.index(letter) for letter in text]}
        rows = [torch.tensor(self(one)["input_ids"]) for one in text]
        tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_side="left")
        return {"input_ids": tokens, "attention_mask": tokens != self.pad_token_id}

    def batch_decode(self, rows, **options):
        return ["".join(LETTERS[token] for token in row.tolist()) for row in rows]

    def apply_chat_template(self, conversation, **options):
        return "".join(message["content"] for message in conversation)


class Model(nn.Module):
    """A transformer with the methods that TransformersWrapper calls."""

    def __init__(self, width, heads, layers, positions):
        super().__init__()
        self.token, self.position = (
            nn.Embedding(len(LETTERS), width),
            nn.Embedding(positions, width),
        )
        options = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, **options)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head, self.heads = nn.Linear(width, len(LETTERS)), heads

    def forward(self, input_ids, attention_mask, **options):
        there = attention_mask.bool()
        length = there.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        hidden = (later | ~there[:, None]) & ~torch.eye(length, dtype=torch.bool)
        position = (there.cumsum(1) - 1).clamp_min(0)  # padding on the left moves nothing
        found = self.token(input_ids) + self.position(position)
        found = self.layers(found, mask=hidden.repeat_interleave(self.heads, 0))
        return {"logits": self.head(found)}

    @torch.no_grad()
    def generate(self, input_ids, attention_mask, max_new_tokens, **options):
        there, logits = attention_mask.bool(), []
        goes_on = there.new_ones(len(there))
        for _ in range(max_new_tokens):
            logits.append(self(input_ids, there)["logits"][:, -1])
            token = Categorical(logits=logits[-1]).sample()
            token = token.where(goes_on, Tokenizer.pad_token_id)
            input_ids = torch.cat([input_ids, token[:, None]], 1)
            there = torch.cat([there, goes_on[:, None]], 1)
            goes_on = goes_on & (token != Tokenizer.eos_token_id)
        return {"sequences": input_ids, "logits": logits}


# -- The task ------------------------------------------------------------------------


def questions(longest):
    numbers = range(1, longest + 1)
    opened = itertools.chain.from_iterable(itertools.product(PAIRS, repeat=n) for n in numbers)
    return [
        {"query": "".join(one) + "=", "answer": "".join(PAIRS[o] for o in reversed(one)) + "."}
        for one in opened
    ]


def reward(response, answer):
    """The share of *answer* that *response* gets right before its first mistake."""
    agree = (ours == right for ours, right in zip(response, answer, strict=False))
    return sum(itertools.takewhile(bool, agree)) / len(answer)


class Reward(Transform):
    """A reward for each answer, after which the conversation is over."""

    def _step(self, tensordict, next_tensordict):
        pairs = zip(tensordict["text", "response"], tensordict["answer"], strict=True)
        # Of the shape that GRPOLoss wants advantages to have: reference/llm_data.
        next_tensordict["reward"] = torch.tensor([reward(*pair) for pair in pairs]).view(-1, 1, 1)
        for name in ("done", "terminated"):
            next_tensordict[name] = torch.ones_like(next_tensordict[name])
        return next_tensordict

    def transform_reward_spec(self, reward_spec):
        reward_spec["reward"] = Unbounded((*reward_spec.shape, 1, 1))
        return reward_spec


# -- The training --------------------------------------------------------------------


class Run:
    """One seed: what it trains with, and what it has done so far."""

    def __init__(self, options, seed):
        self.options, self.seed = options, seed
        torch.manual_seed(seed)
        self.progress = {"answers": 0, "rewards": [], "right": [], "ess": []}
        self.progress |= dict.fromkeys(("seconds", *PARTS), 0.0)
        self.rows = options.prompts * options.group
        self.tokenizer = self.make_tokenizer()
        self.model = self.make_model().eval()  # as GRPOLoss asks for
        # Generation and loss share the weights, so nothing has to be sent.
        generation = SAMPLING | {"max_new_tokens": options.longest + 2}
        self.policy = self.wrapped(input_mode="text", generate_kwargs=generation)
        # The tokens that were generated, not the text tokenized again.
        self.trained = self.wrapped(input_mode="tokens", generate=False)
        self.collector = self.make_collector()
        self.buffer = self.make_buffer()
        self.loss = GRPOLoss(self.trained, clip_epsilon=CLIP, entropy_coeff=ENTROPY)
        self.parameters = list(self.loss.parameters())
        self.optimizer = torch.optim.Adam(self.parameters, LR, fused=True)

    def make_tokenizer(self):
        return Tokenizer()

    def make_model(self):
        return Model(**CONFIG)

    def wrapped(self, **options):
        return TransformersWrapper(self.model, tokenizer=self.tokenizer, **options)

    def make_collector(self):
        asked = questions(self.options.longest)
        order = torch.Generator().manual_seed(self.seed + self.progress["answers"])
        loader = DataLoader(asked, shuffle=True, generator=order)
        env = ChatEnv.from_dataloader(
            loader,
            tokenizer=self.tokenizer,
            input_mode="text",
            repeats=self.options.group,
            batch_size=(self.rows,),
        )
        env.append_transform(Reward())
        return LLMCollector(env, policy=self.policy, dialog_turns_per_batch=self.rows)

    def make_buffer(self):
        return ReplayBuffer(
            storage=LazyStackStorage(self.rows),  # rows of any length
            sampler=SamplerWithoutReplacement(),
            transform=MCAdvantage(self.options.group),  # compares the answers to a prompt
            batch_size=self.rows,
        )

    def iterate(self):
        """Collect answers and learn from them, and keep the seconds of each part."""
        marks = [time.perf_counter()]
        batch = next(self.batches).view(-1)
        marks.append(time.perf_counter())
        self.count(batch["next", "reward"])
        self.score(batch)
        marks.append(time.perf_counter())
        self.buffer.extend(batch.select(*READ))
        batch = self.buffer.sample()
        marks.append(time.perf_counter())
        self.learn(batch)
        marks.append(time.perf_counter())
        self.spent(marks)

    def spent(self, marks):
        for part, (begin, end) in zip(PARTS, itertools.pairwise(marks), strict=True):
            self.progress[part] += end - begin
        self.progress["seconds"] += marks[-1] - marks[0]

    def count(self, rewards):
        self.progress["rewards"].append(rewards.mean().item())
        self.progress["right"].append((rewards == 1).float().mean().item())
        self.progress["answers"] += rewards.numel()

    @torch.no_grad()
    def score(self, batch):
        # Those of generation are wrong: tutorials/debugging/grpo_clips_before_the_first_update.
        scored = self.trained(batch.select("tokens", "masks").copy())
        log_probs = scored.get(("log_probs", "full"), as_list=True)
        for row, one in zip(batch.unbind(0), log_probs, strict=True):
            row["log_probs", "full"] = one

    def learn(self, batch):
        for _ in range(EPOCHS):
            losses = self.loss(batch)
            (losses.loss_objective + losses.loss_entropy).backward()
            nn.utils.clip_grad_norm_(self.parameters, 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.progress["ess"].append(losses.ESS.item())

    def recent(self, name):
        values = self.progress[name][-ITERATIONS:]
        return sum(values) / len(values) if len(values) == ITERATIONS else float("nan")

    @property
    def solved(self):
        return self.recent("right") >= self.options.threshold

    @property
    def over(self):
        return self.solved or self.progress["answers"] >= self.options.answers

    def train(self, each_iteration):
        """Train until the threshold or the last answer; call *each_iteration* with the run."""
        saves = self.resume()
        self.batches = iter(self.collector)
        while not self.over:
            self.iterate()
            iterations = self.progress["answers"] // self.rows
            if saves and (self.over or iterations % self.options.save_every == 0):
                saves.save(self.checkpoint, step=self.progress["answers"])
                self.start_anew()
            each_iteration(self)
        self.collector.shutdown()

    def resume(self):  # how-to/save_and_resume
        if self.options.folder is None:
            return None
        parts = {"model": self.model, "optimizer": self.optimizer, "progress": self.progress}
        self.checkpoint = Checkpoint(**parts, rng=GlobalRNGState())
        saves = CheckpointRotation(self.options.folder / f"seed-{self.seed}", keep_last=2)
        if saves.latest() is not None:
            saves.load_latest(self.checkpoint)
            self.start_anew()
        return saves

    def start_anew(self):
        """Nothing saves the order of the questions, so begin one after a save and after a load."""
        self.collector.shutdown()
        self.collector, self.buffer = self.make_collector(), self.make_buffer()
        self.batches = iter(self.collector)


def row(run):
    """The line of the table that says where *run* is."""
    done = run.progress
    speed = done["answers"] / done["seconds"]
    means = "".join(f" {run.recent(name):>7.2f}" for name in ("rewards", "right", "ess"))
    return f"{run.seed:>4} {done['answers']:>8,} {done['seconds']:>8.1f} {speed:>9,.0f}{means}"


def main(arguments=None):
    options = parse(arguments)
    torch.set_num_threads(1)  # networks this small lose time with more
    for of_torchrl in ("size_average and reduce args", "The env passed to LLMCollector is missing"):
        warnings.filterwarnings("ignore", message=of_torchrl)
    print("{:>4} {:>8} {:>8} {:>9} {:>7} {:>7} {:>7}".format(*COLUMNS))
    for seed in options.seeds:
        run = Run(options, seed)
        run.train(lambda run: print(row(run), end="\r", flush=True))
        share = ", ".join(f"{part} {run.progress[part]:.1f} s" for part in PARTS)
        print(f"{row(run)}  {'solved' if run.solved else 'not solved'}: {share}", flush=True)


if __name__ == "__main__":
    main()
