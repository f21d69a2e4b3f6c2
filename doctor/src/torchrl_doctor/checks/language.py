"""Symptoms of language models."""

from __future__ import annotations

import torch

from torchrl_doctor.objects import keys_of, kinds_of, one_batch
from torchrl_doctor.verdicts import applies, check, clear

ANSWERS_READ = 32


@check("answers_lose_their_end", "Answers of a language model lose their end")
def answers_lose_their_end(policy=None, loss_module=None):
    for one in (policy, getattr(loss_module, "actor_network", None)):
        if "TransformersWrapper" not in kinds_of(one):
            continue
        tokenizer = getattr(one, "tokenizer", None)
        names = ("pad_token_id", "eos_token_id")
        padding, end = (getattr(tokenizer, name, None) for name in names)
        if padding is not None and padding == end:
            return applies(f"pad_token_id and eos_token_id of the tokenizer are both {end}")
        if end is not None:
            return clear(f"pad_token_id is {padding}, eos_token_id is {end}")
    return None


@check("grpo_clips_before_the_first_update", "GRPO clips ratios before the first update")
def grpo_clips_before_the_first_update(batch, loss_module=None):
    key = getattr(keys_of(loss_module), "sample_log_prob", None) or ("log_probs", "full")
    data = one_batch(batch)
    if data.get("log_probs", None) is None or data.get("tokens", None) is None:
        return None
    first = []
    for row in data.reshape(-1)[:ANSWERS_READ].unbind(0):
        stored, answered = row.get(key, None), answer_of(row)
        if not isinstance(stored, torch.Tensor) or answered is None:
            continue
        if stored.shape == answered.shape and answered.any():
            first.append(stored[answered][0])
    if not first:
        return None
    first = torch.stack(first)
    if (first == 0).all():
        return applies(f"the first token of {len(first)} answers has a log-probability of zero")
    return clear(f"the first tokens of answers have log-probabilities down to {first.min():.2g}")


def answer_of(row):
    """Which tokens of a conversation belong to its last answer; None where nothing says it."""
    tokens, prompt = row.get(("tokens", "full"), None), row.get(("tokens", "prompt"), None)
    if isinstance(tokens, torch.Tensor) and isinstance(prompt, torch.Tensor):
        return torch.arange(len(tokens), device=tokens.device) >= len(prompt)
    mask = row.get(("masks", "all_assistant_mask"), None)
    return mask if isinstance(mask, torch.Tensor) else None
