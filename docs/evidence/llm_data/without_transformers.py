"""Which classes for language models run without ``transformers``; for the page on LLM data."""

import importlib.util
import json
import os
import warnings

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import torch
from tensordict import TensorDict, lazy_stack
from torchrl.collectors.llm import LLMCollector
from torchrl.data import LazyStackStorage, ReplayBuffer
from torchrl.data.llm import History
from torchrl.envs import Transform
from torchrl.envs.llm import ChatEnv, GSM8KEnv
from torchrl.modules.llm import TransformersWrapper, vLLMWrapper
from torchrl.objectives.llm import GRPOLoss, MCAdvantage

warnings.filterwarnings("ignore", message="size_average and reduce args")
warnings.filterwarnings("ignore", message="The env passed to LLMCollector is missing")

LETTERS = "_.abc"
ANSWERS = 2


class Tokenizer:
    pad_token, pad_token_id, eos_token, eos_token_id = "_", 0, ".", 1

    def __call__(self, text, **options):
        if isinstance(text, str):
            return {"input_ids": [LETTERS.index(letter) for letter in text]}
        rows = [torch.tensor(self(one)["input_ids"]) for one in text]
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_side="left")
        return {"input_ids": tokens, "attention_mask": tokens != 0}

    def batch_decode(self, rows, **options):
        return ["".join(LETTERS[token] for token in row) for row in rows]

    def apply_chat_template(self, conversation, **options):
        return "".join(message["content"] for message in conversation)


class Table(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = torch.nn.Embedding(5, 5)

    def forward(self, input_ids, attention_mask, **options):
        return {"logits": self.logits(input_ids)}

    @torch.no_grad()
    def generate(self, input_ids, attention_mask, max_new_tokens, **options):
        logits = []
        for _ in range(max_new_tokens):
            logits.append(self.logits(input_ids[:, -1]))
            token = torch.randint(2, 5, (len(input_ids), 1))
            input_ids = torch.cat([input_ids, token], 1)
        return {"sequences": input_ids, "logits": logits}


class Paid(Transform):
    def _step(self, tensordict, next_tensordict):
        next_tensordict["reward"] = torch.rand(ANSWERS, 1, 1)
        for name in ("done", "terminated"):
            next_tensordict[name] = torch.ones_like(next_tensordict[name])
        return next_tensordict


model, options = Table(), {"tokenizer": Tokenizer()}
policy = TransformersWrapper(
    model, input_mode="text", generate_kwargs={"max_new_tokens": 3}, **options
)
trained = TransformersWrapper(model, input_mode="tokens", generate=False, **options)


def asked():
    return TensorDict({"query": ["ab", "c"]}, [ANSWERS])


def collect():
    loader = [{"query": ["abc"]}]
    env = ChatEnv.from_dataloader(
        loader, input_mode="text", repeats=ANSWERS, batch_size=(ANSWERS,), **options
    )
    collector = LLMCollector(
        env.append_transform(Paid()), policy=policy, dialog_turns_per_batch=ANSWERS
    )
    batch = next(iter(collector)).view(-1)
    collector.shutdown()
    return batch


def learn():
    batch = collect()
    with torch.no_grad():
        scored = trained(batch.select("tokens", "masks").copy())
    log_probs = scored.get(("log_probs", "full"), as_list=True)
    for row, one in zip(batch.unbind(0), log_probs, strict=True):
        row["log_probs", "full"] = one
    buffer = ReplayBuffer(storage=LazyStackStorage(ANSWERS), transform=MCAdvantage(ANSWERS))
    buffer.extend(batch)
    GRPOLoss(trained)(buffer.sample(ANSWERS)).loss_objective.backward()


ROWS = {
    '``History``, ``ChatEnv(input_mode="history")``': lambda: ChatEnv(batch_size=(ANSWERS,)).reset(
        asked()
    ),
    '``ChatEnv(input_mode="text")``, ``LLMCollector``': collect,
    "``TransformersWrapper(model)``, ``MCAdvantage``, ``GRPOLoss``": learn,
    '``TransformersWrapper("name")``': lambda: TransformersWrapper("name"),
    "``TransformersWrapper(model)(data, option=...)``": lambda: policy(
        lazy_stack([TensorDict({"text": {"prompt": "ab"}})]), do_sample=True
    ),
    '``vLLMWrapper("name")``': lambda: vLLMWrapper("name"),
    "``GSM8KEnv``": lambda: GSM8KEnv(tokenizer=Tokenizer()),
}
RUN = 3  # of the rows


def outcome(function):
    try:
        function()
    except ImportError as error:
        said, _, _ = str(error).partition(". ")
        return f"no: ``{type(error).__name__}: {said}``"
    return "yes"


def main():
    assert importlib.util.find_spec("transformers") is None, "what the page says is about a lack"
    found = {name: outcome(function) for name, function in ROWS.items()}
    runs = [one == "yes" for one in found.values()]
    assert runs == [True] * RUN + [False] * (len(ROWS) - RUN), found
    assert History(role="user", content="a").role == "user"
    rows = [list(one) for one in found.items()]
    print(json.dumps({"table": {"columns": ["", "Runs"], "rows": rows}}))


if __name__ == "__main__":
    main()
