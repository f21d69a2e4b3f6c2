"""
GRPO clips ratios before the first update
=========================================

Before the first update, the old and the new policy are the same, so each ratio of their
probabilities should be one. But ``GRPOLoss`` reports a ``clip_fraction`` above zero and an ``ESS``
below one, and bad answers keep beginning with the same token.

:Subsystem: value estimation and losses
:Effect: silent
:Cause: ``TransformersWrapper`` stores a log-probability of zero for the first token of each answer
   that it generates. This means a probability of one, but the model gives the token a lower
   probability.
:Fix: Score the generated tokens with a second wrapper, made with ``generate=False``, and store its
   log-probabilities.
:Source: :source:`torchrl.modules.llm.TransformersWrapper._log_probs_generate`
:Behind it: :doc:`/reference/llm_data`
:Threads: :thread:`4226`
:Also called: first token has log-prob zero, probability one, log_probs response, log_probs full,
   importance ratio of GRPO, effective sample size below one, prompt log-probs filled with zeros
"""

# %%
# Break it
# --------
#
# The language model is a table of logits with the methods that ``TransformersWrapper`` calls.
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
    pad_token, pad_token_id = "_", 0
    eos_token, eos_token_id = ".", 1

    def __call__(self, text):
        return {"input_ids": [self.letters.index(letter) for letter in text]}

    def batch_decode(self, rows, **options):
        return ["".join(self.letters[token] for token in row) for row in rows]


class Table(torch.nn.Module):
    """The logits of a token depend on the token before it; only the last five are generated."""

    def __init__(self):
        super().__init__()
        self.logits = torch.nn.Embedding(8, 8)
        self.logits.weight.data[:, :3] = -100

    def forward(self, input_ids, attention_mask, **options):
        return {"logits": self.logits(input_ids)}

    @torch.no_grad()
    def generate(self, input_ids, attention_mask, max_new_tokens, **options):
        logits = []
        for _ in range(max_new_tokens):
            logits.append(self.logits(input_ids[:, -1]))
            token = torch.distributions.Categorical(logits=logits[-1]).sample()
            input_ids = torch.cat([input_ids, token[:, None]], dim=1)
        return {"sequences": input_ids, "logits": logits}


# %%
# The wrapper writes the log-probabilities of the answer, but ``GRPOLoss`` also reads those of the
# prompt. Here NaN fills the prompt's positions, and the loss ignores NaN. The stored
# log-probabilities of the first answer:


def answers(score_again):
    torch.manual_seed(0)
    model, options = Table(), {"tokenizer": Tokenizer(), "input_mode": "tokens"}
    policy = TransformersWrapper(
        model, generate_kwargs={"max_new_tokens": 4}, **options
    )
    trained = TransformersWrapper(model, generate=False, **options)
    prompt = TensorDict({"tokens": {"prompt": torch.tensor([2, 2])}})
    batch = policy(lazy_stack([prompt.clone() for _ in range(64)]))
    if score_again:
        with torch.no_grad():
            scored = trained(batch.select("tokens", "masks").copy())
        log_probs = scored.get(("log_probs", "full"), as_list=True)
    else:
        responses = batch.get(("log_probs", "response"), as_list=True)
        log_probs = [torch.cat([torch.full((2,), torch.nan), one]) for one in responses]
    for row, log_prob in zip(batch.unbind(0), log_probs, strict=True):
        row["log_probs", "full"] = log_prob
    batch["advantage"] = -torch.linspace(0.5, 1, 64).view(
        64, 1, 1
    )  # every answer was bad
    return {"batch": batch, "loss_module": GRPOLoss(trained)}


broken = answers(score_again=False)
print([round(one, 2) for one in broken["batch"][0]["log_probs", "response"].tolist()])

# %%
# Check it
# --------
#
# Call the loss before the first step of the optimizer.


def check(batch, loss):
    values = loss(batch)
    return {
        name: round(values.get(name).item(), 2) for name in ("ESS", "clip_fraction")
    }


unhealthy = check(broken["batch"], broken["loss_module"])
print(unhealthy)
assert unhealthy["clip_fraction"] > 0.1, (
    "no longer reproduces: the first token has the log-probability that the model gives it"
)

# %%
# The ratio of a first token is its probability, here far below one. With a negative advantage, such
# a ratio is clipped and has no gradient, so no bad answer makes its first token less likely. Here
# only first tokens follow a question mark, so their gradient is in one row of the table. The norm
# of this row:


def gradient_of_first_tokens(batch, loss):
    table = loss.actor_network.model.logits
    table.zero_grad()
    loss(batch).loss_objective.backward()
    return round(table.weight.grad[2].norm().item(), 3)


stuck = gradient_of_first_tokens(broken["batch"], broken["loss_module"])
print(stuck)
assert stuck == 0, (
    "no longer reproduces: the first token of a bad answer becomes less likely"
)

# %%
# Do not write zeros for the prompt. With ``masking_strategy="generic"``, the loss reads these zeros
# as probability one. With ``"rlhf"``, it reads the zeros of earlier answers in the same way.
#
# Fix it
# ------
#
# The second wrapper reads the generated tokens. Make it from the model, not with
# ``policy.get_new_version(generate=False)``, which still reads only the key of the prompt.

fixed = answers(score_again=True)
healthy = check(fixed["batch"], fixed["loss_module"])
print(healthy)
assert healthy == {"ESS": 1.0, "clip_fraction": 0.0}, "the fix does not work"
assert gradient_of_first_tokens(fixed["batch"], fixed["loss_module"]) > 0, (
    "the fix does not work"
)
