"""What looks like a symptom of trajectories or of a loss, and is none."""

import copy

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import CompositeDistribution, TensorDictModule, set_composite_lp_aggregate
from torch.distributions import Categorical, Normal
from torchrl.data import LazyTensorStorage, ReplayBuffer, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import GymEnv, InitTracker, SerialEnv, TransformedEnv
from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss, DQNLoss
from torchrl.objectives.value import GAE
from torchrl_doctor import APPLIES, FAILED, diagnose

from tests.support.healthy_pipelines import (
    cartpole,
    categorical_actor,
    collect_from,
    logits,
    q_policy,
)
from tests.support.planted import language


def collect(env, policy=None, frames=200, batches=1, **options):
    env.set_seed(0)
    collector = collect_from(env, policy, frames, total_frames=frames * batches, **options)
    return [batch.clone() for batch in collector]


def critic():
    return ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"])


def gae(**options):
    return GAE(gamma=0.99, lmbda=0.95, value_network=critic(), **options)


def fill(kind, batches, size, **of_the_sampler):
    rows = of_the_sampler.pop("rows", 64)
    sampler = SliceSampler(**of_the_sampler)
    buffer = kind(storage=LazyTensorStorage(size), sampler=sampler, batch_size=rows)
    for batch in batches:
        buffer.extend(batch)
    return buffer


def slices_that_are_reshaped():
    batches = collect(TransformedEnv(cartpole(), InitTracker()))
    buffer = fill(ReplayBuffer, batches, 200, slice_len=8)
    return {"replay_buffer": buffer, "value_estimator": gae()}, buffer.sample().reshape(-1, 8)


def slices_with_padding():
    batches = collect(TransformedEnv(cartpole(), InitTracker()))
    options = {"slice_len": 16, "strict_length": False, "pad_output": True}
    buffer = fill(TensorDictReplayBuffer, batches, 200, **options)
    return {"replay_buffer": buffer, "value_estimator": gae()}, buffer.sample()


def batches_with_a_cut_at_the_end():
    batches = collect(cartpole(), frames=50, batches=6, set_truncated=True)
    return {"replay_buffer": fill(TensorDictReplayBuffer, batches, 400, slice_len=4)}, None


def a_trajectory_across_the_end_of_the_storage():
    batches = collect(GymEnv("Pendulum-v1"), frames=50, batches=9)
    buffer = fill(TensorDictReplayBuffer, batches, 300, slice_len=160, rows=320)
    return {"replay_buffer": buffer}, None


def time_in_front():
    (batch,) = collect(SerialEnv(4, cartpole))
    return {"value_estimator": gae(time_dim=0)}, batch.transpose(0, 1).contiguous()


def flat_after_gae():
    estimator = gae()
    estimator.set_keys(advantage="adv")
    (batch,) = collect(SerialEnv(4, cartpole))
    return {"value_estimator": estimator}, estimator(batch).reshape(-1)


def an_estimator_of_the_loss_that_nobody_set():
    network = critic()
    loss = ClipPPOLoss(categorical_actor(cartpole(), logits()), network)
    assert loss.value_estimator is not None
    return {
        "loss_module": loss,
        "value_estimator": GAE(gamma=0.9, lmbda=0.8, value_network=network),
    }, None


def q_values_in_the_batch():
    policy = q_policy(cartpole())
    (batch,) = collect(cartpole(), policy)
    loss = DQNLoss(policy, action_space="one-hot")
    loss.make_value_estimator(gamma=0.9)
    return {"loss_module": loss, "value_estimator": loss.value_estimator}, batch


class TwoParts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 4)

    def forward(self, observation):
        out, shape = self.net(observation), observation.shape[:-1]
        of_second = {"loc": out[..., 2], "scale": out[..., 3].exp()}
        parts = {"a": {"logits": out[..., :2]}, "b": of_second}
        return TensorDict(parts, shape)


def an_action_of_two_parts():
    parts = {"a": Categorical, "b": Normal}
    keys = [("action", name) for name in parts]
    with set_composite_lp_aggregate(False):
        actor = ProbabilisticActor(
            TensorDictModule(TwoParts(), ["observation"], ["params"]),
            in_keys=["params"],
            out_keys=keys,
            distribution_class=CompositeDistribution,
            distribution_kwargs={
                "distribution_map": parts,
                "name_map": dict(zip(parts, keys, strict=True)),
            },
            return_log_prob=True,
        )
        (batch,) = collect(cartpole())
        with torch.no_grad():
            batch = actor(batch.exclude("action"))
        loss = ClipPPOLoss(actor, critic())
        of_parts = [("action", f"{name}_log_prob") for name in parts]
        loss.set_keys(action=keys, sample_log_prob=of_parts)
        assert loss(gae()(batch))["loss_objective"].isfinite()
    return {"loss_module": loss}, batch


HEALTHY = [
    slices_that_are_reshaped,
    slices_with_padding,
    batches_with_a_cut_at_the_end,
    a_trajectory_across_the_end_of_the_storage,
    time_in_front,
    flat_after_gae,
    an_estimator_of_the_loss_that_nobody_set,
    q_values_in_the_batch,
    an_action_of_two_parts,
]


@pytest.mark.parametrize("make", HEALTHY)
def test_what_looks_like_a_mistake_and_is_none(make):
    torch.manual_seed(0)
    given, batch = make()
    if batch is not None:
        given["batch"] = batch
    report = diagnose(**given, seconds=60)
    assert [one[:4] for one in report if one.state in (APPLIES, FAILED)] == []


@pytest.mark.parametrize(
    "net",
    [
        lambda: torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2)),
        lambda: torch.nn.LazyLinear(2),
    ],
)
def test_an_actor_that_changes_when_it_is_called_stays_as_it_is(net):
    module = TensorDictModule(net(), ["observation"], ["logits"])
    options = {"distribution_class": OneHotCategorical, "return_log_prob": True}
    actor = ProbabilisticActor(module, in_keys=["logits"], **options)
    (batch,) = collect(cartpole(), categorical_actor(cartpole(), logits()), 20)
    loss = ClipPPOLoss(actor, critic())
    kinds = [type(one) for one in loss.parameters()]
    buffers = copy.deepcopy(dict(loss.named_buffers()))
    diagnose(loss_module=loss, batch=batch)
    assert [type(one) for one in loss.parameters()] == kinds
    assert all(one.equal(buffers[name]) for name, one in loss.named_buffers())


def test_answers_of_several_lengths_are_looked_at():
    """No tensor holds them all, so no entry of their stack can be asked for."""
    for planted in language.grpo_clips_before_the_first_update({"collector": None}):
        report = diagnose(batch=planted["batch"], seconds=60)
        assert {one.slug: one.state for one in report} == {
            "grpo_clips_before_the_first_update": APPLIES
        }
        assert report.notes == []
