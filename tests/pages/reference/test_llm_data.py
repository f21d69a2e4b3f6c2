"""What docs/reference/llm_data.rst says without showing it."""

import pytest
import torch
from tensordict import TensorDict, lazy_stack
from torchrl.data import History, LazyStackStorage, ReplayBuffer
from torchrl.modules.distributions import LLMMaskedCategorical
from torchrl.modules.llm import TransformersWrapper
from torchrl.objectives.llm import GRPOLoss, MCAdvantage, SFTLoss

from tests.support.claims import guards


def padded(data, key, value=0):
    return data.get(key, as_padded_tensor=True, padding_side="left", padding_value=value)


class Even(torch.nn.Module):
    """All eight tokens are as likely."""

    def __init__(self):
        super().__init__()
        self.logits = torch.nn.Parameter(torch.zeros(8))

    def get_dist(self, data, **options):
        mask = padded(data, ("masks", "all_assistant_mask"), False)
        return LLMMaskedCategorical(self.logits.expand(*mask.shape, 8), mask)


def row(prompt, answer):
    number = prompt + answer
    row = TensorDict({"tokens": {"full": torch.ones(number, dtype=torch.long)}})
    row["masks", "all_assistant_mask"] = torch.arange(number) >= prompt
    row["log_probs", "full"] = torch.full((number,), -torch.tensor(8.0).log().item())
    return row


def objective(**options):
    """The first row has three tokens and an advantage of one; the second, one token and none."""
    data = lazy_stack([row(2, 3), row(2, 1)])
    data["advantage"] = torch.tensor([1.0, 0.0]).view(2, 1, 1)
    return GRPOLoss(Even(), **options)(data)


@guards("token-mean-favors-long-answers")
def test_long_answers_count_more():
    assert objective().loss_objective.item() == pytest.approx(-3 / 4)
    assert objective(aggregation="prompt_mean").loss_objective.item() == pytest.approx(-1 / 2)


@guards("kl-to-inference-has-the-same-mean")
def test_the_penalty_to_the_inference_policy_is_a_mean_over_all_positions():
    def penalty(prompt):
        one = row(prompt, 3)
        one["log_probs", "full"] -= 1
        data = lazy_stack([one])
        data["advantage"] = torch.ones(1, 1, 1)
        return GRPOLoss(Even(), kl_to_inference_coeff=1.0)(data).kl_to_inference.item()

    answer = torch.tensor(-1.0).expm1().item() + 1
    assert penalty(2) == pytest.approx(answer * 3 / 5)
    assert penalty(27) == pytest.approx(answer * 3 / 30)


@guards("groups-wait-outside-the-buffer")
def test_incomplete_groups_are_not_stored():
    group = MCAdvantage(grpo_size=2)
    buffer = ReplayBuffer(storage=LazyStackStorage(10), transform=group)
    done = torch.ones(1, 1, dtype=torch.bool)
    one = TensorDict({"query": torch.zeros(1), "next": {"reward": torch.ones(1, 1), "done": done}})
    one = one.auto_batch_size_(1)
    for prompt in range(3):
        buffer.extend(one.clone().set("query", torch.full((1,), float(prompt))))
    assert (len(buffer), group.queued_trajectories) == (0, 3)
    buffer.extend(one.clone())
    assert len(buffer) == 2


class Scored(torch.nn.Module):
    """Each token has a log-probability of minus one."""

    tokenizer = object()

    def forward(self, data):
        return lazy_stack([TensorDict({"log_probs": {"full": -torch.ones(3)}}) for _ in data])


def conversation(*mask):
    mask = torch.tensor(mask, dtype=torch.bool)
    masks = {"all_assistant_mask": mask, "all_attention_mask": torch.ones_like(mask)}
    history = History(role=["user", "assistant"], content=["one", "two"], batch_size=[2])
    return TensorDict({"masks": masks}).set("history", TensorDict({"full": history}))


@guards("sft-takes-empty-rows")
def test_an_empty_row_halves_the_loss():
    def loss(*rows):
        return SFTLoss(Scored())(lazy_stack(list(rows))).loss_sft.item()

    whole, empty = conversation(0, 1, 1), conversation(0, 0, 0)
    assert (loss(whole, whole), loss(whole, empty)) == (1.0, 0.5)
    with pytest.raises(ValueError, match="Some inputs have no valid assistant masks"):
        loss(empty, empty)


class Tokenizer:
    pad_token, pad_token_id = "_", 0

    def __call__(self, text):
        return {"input_ids": [self.pad_token_id]}


class Zeros(torch.nn.Module):
    def forward(self, input_ids, attention_mask, **options):
        return {"logits": torch.zeros(*input_ids.shape, 8)}


@guards("new-version-scores-the-prompt")
def test_a_new_version_reads_the_prompt():
    policy = TransformersWrapper(Zeros(), tokenizer=Tokenizer(), input_mode="text")
    assert policy.get_new_version(generate=False).in_keys == [("text", "prompt")]


@guards("scoring-drops-the-prompt")
@pytest.mark.filterwarnings("ignore:size_average and reduce args")
def test_scoring_takes_the_prompt_out_of_its_batch():
    options = {"tokenizer": Tokenizer(), "input_mode": "tokens"}
    tokens = torch.tensor([1, 2, 3])
    batch = lazy_stack([TensorDict({"tokens": {"full": tokens, "prompt": tokens[:1]}})])
    trained = TransformersWrapper(Zeros(), generate=False, **options)
    trained(batch.copy())
    assert batch.get(("tokens", "prompt"), None) is not None
    trained(batch)
    assert batch.get(("tokens", "prompt"), None) is None
