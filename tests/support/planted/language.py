"""Symptoms of language models, which no pipeline here has: each is planted alone."""

import torch
from tensordict import TensorDict, lazy_stack
from torchrl.modules.llm import TransformersWrapper


class _Tokenizer:
    eos_token, eos_token_id = ".", 1

    def __init__(self, pad_token_id):
        self.pad_token, self.pad_token_id = "_", pad_token_id

    def __call__(self, text):
        return {"input_ids": [self.pad_token_id]}


def answers_lose_their_end(pipeline):
    if "collector" in pipeline:
        options = {"tokenizer": _Tokenizer(1), "input_mode": "tokens"}
        yield {"policy": TransformersWrapper(torch.nn.Linear(1, 1), **options)}


def grpo_clips_before_the_first_update(pipeline):
    if "collector" not in pipeline:
        return
    for first in (0, 1):
        rows = []
        for prompt, answer in ((2, 3), (3, 1)):
            log_prob = -torch.rand(prompt + answer) - 0.1
            log_prob[:prompt], log_prob[prompt] = torch.nan, 0.0
            tokens = torch.randint(2, 8, (prompt + answer,))
            row = TensorDict({"tokens": {"full": tokens}, "log_probs": {"full": log_prob}})
            if first:
                row["masks", "all_assistant_mask"] = torch.arange(prompt + answer) >= prompt
            else:
                row["tokens", "prompt"] = tokens[:prompt]
            rows.append(row)
        yield {"batch": lazy_stack(rows), "planted_in": "batch"}
