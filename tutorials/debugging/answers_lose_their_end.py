"""
Answers of a language model lose their end
==========================================

The model ends its answers, but the answers that you train on lack the end token. The words improve,
but the end itself is never trained, and answers can get longer.

:Subsystem: value estimation and losses
:Effect: silent
:Cause: The tokenizer uses the same token for padding and for the end of an answer.
   ``TransformersWrapper`` sets this up if the tokenizer has no ``pad_token``. By default, the
   wrapper removes padding from answers, and so removes the end.
:Fix: Give the tokenizer a ``pad_token`` that the model never generates, before you make the
   wrapper.
:Source: :source:`torchrl.modules.llm.TransformersWrapper`
:Behind it: :doc:`/reference/llm_data`
:Threads: :thread:`3580`
:Also called: pad_token is eos_token, end of sequence, generation does not stop, answers get longer,
   model never learns to stop, EOS has no gradient, EOS log-prob zero
"""

# %%
# Break it
# --------
#
# A table of logits, with the methods that ``TransformersWrapper`` calls, stands in for a language
# model.
#
# .. fold:: The model and its tokenizer

import warnings

import torch
from tensordict import TensorDict, lazy_stack
from torchrl.modules.llm import TransformersWrapper
from torchrl.objectives.llm import GRPOLoss

warnings.filterwarnings("ignore", message="size_average and reduce args")


class Tokenizer:
    letters = "_.?abcde"
    eos_token, eos_token_id = ".", 1

    def __init__(self, pad_token):
        self.pad_token = pad_token

    @property
    def pad_token_id(self):
        return self.letters.index(self.pad_token)

    def __call__(self, text):
        return {"input_ids": [self.letters.index(letter) for letter in text]}

    def batch_decode(self, rows, **options):
        return ["".join(self.letters[token] for token in row) for row in rows]


class Table(torch.nn.Module):
    """The logits of a token depend on the token before it; "_" and "?" are never generated."""

    def __init__(self, pad_token_id):
        super().__init__()
        self.logits = torch.nn.Embedding(8, 8)
        self.logits.weight.data[:, [0, 2]] = -100
        self.pad_token_id = pad_token_id

    def forward(self, input_ids, attention_mask, **options):
        return {"logits": self.logits(input_ids)}

    @torch.no_grad()
    def generate(self, input_ids, attention_mask, max_new_tokens, **options):
        logits, goes_on = [], torch.ones(len(input_ids), dtype=torch.bool)
        for _ in range(max_new_tokens):
            logits.append(self.logits(input_ids[:, -1]))
            token = torch.distributions.Categorical(logits=logits[-1]).sample()
            token = token.where(goes_on, self.pad_token_id)
            input_ids = torch.cat([input_ids, token[:, None]], dim=1)
            goes_on = goes_on & (token != 1)
        return {"sequences": input_ids, "logits": logits}


# %%
# An answer gets the advantage 1 if it is shorter than ``max_new_tokens``, else 0.


def answers(pad_token):
    torch.manual_seed(0)
    tokenizer = Tokenizer(pad_token)
    options = {"tokenizer": tokenizer, "input_mode": "tokens"}
    model = Table(1 if pad_token is None else tokenizer.pad_token_id)
    policy = TransformersWrapper(
        model, generate_kwargs={"max_new_tokens": 8}, **options
    )
    prompt = TensorDict({"tokens": {"prompt": torch.tensor([2])}})
    batch = policy(lazy_stack([prompt.clone() for _ in range(100)]))
    trained = TransformersWrapper(model, generate=False, **options)
    with torch.no_grad():
        scored = trained(batch.select("tokens", "masks").copy())
    log_probs = scored.get(("log_probs", "full"), as_list=True)
    for row, log_prob in zip(batch.unbind(0), log_probs, strict=True):
        row["log_probs", "full"] = log_prob
        row["advantage"] = torch.full((1, 1), float(len(row["tokens", "response"]) < 8))
    return {"batch": batch, "policy": policy, "loss_module": GRPOLoss(trained)}


broken = answers(pad_token=None)

# %%
# Check it
# --------
#
# Count the answers that are shorter than ``max_new_tokens``, and those that contain the end token.


def check(batch, end, longest):
    rows = batch.get(("tokens", "response"), as_list=True)
    held = sum(end in row.tolist() for row in rows)
    return {"shorter": sum(len(row) < longest for row in rows), "with their end": held}


unhealthy = check(broken["batch"], end=1, longest=8)
print(unhealthy)
assert unhealthy["with their end"] == 0, (
    "no longer reproduces: answers keep a token that is both padding and end"
)
assert unhealthy["shorter"] > 40, "no answer ended"

# %%
# The loss sees the words of an answer, but never its end. Here a step makes the words of good
# answers more likely, and so the end less likely. The mean probability of the end before and after
# a step:


def end_before_and_after_a_step(batch, loss):
    table = loss.actor_network.model.logits.weight
    (gradient,) = torch.autograd.grad(loss(batch).loss_objective, table)
    tables = table, table - 10 * gradient
    return [round(one.softmax(-1)[3:, 1].mean().item(), 3) for one in tables]


before, after = end_before_and_after_a_step(broken["batch"], broken["loss_module"])
print(before, after)
assert after < before, "no longer reproduces: a good end becomes more likely"

# %%
# Fix it
# ------
#
# Choose a token that is in the vocabulary and that the model never generates, such as a reserved
# token.

fixed = answers(pad_token="_")
healthy = check(fixed["batch"], end=1, longest=8)
print(healthy)
assert healthy["with their end"] >= healthy["shorter"] > 40, "the fix does not work"

# %%
# Now a step makes the end more likely:

before, after = end_before_and_after_a_step(fixed["batch"], fixed["loss_module"])
print(before, after)
assert after > before, "the fix does not work: a good end does not become more likely"
