"""Losses, buffers and policies by name: each group is looked at with its own, and said by name."""

import pytest
import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.modules import ValueOperator
from torchrl.objectives import A2CLoss, DQNLoss, SoftUpdate
from torchrl.objectives.value import GAE
from torchrl_doctor import APPLIES, CLEAR, UNDECIDED, diagnose, look, watch

from tests.support.claims import guards
from tests.support.defects.environments import Team
from tests.support.healthy_pipelines import cartpole, categorical_actor, logits, q_policy

SECONDS = 60


@pytest.fixture
def agents():
    """Two groups with a loss, an updater and a buffer each, which share the environment."""
    env = cartpole()
    losses = {name: DQNLoss(q_policy(env), delay_value=True) for name in ("hunters", "prey")}
    for loss in losses.values():
        loss.make_value_estimator(gamma=0.99)
    buffers = {}
    for name in losses:
        buffers[name] = TensorDictReplayBuffer(storage=LazyTensorStorage(50), batch_size=8)
        buffers[name].extend(env.rollout(40, break_when_any_done=False))
    updaters = {name: SoftUpdate(loss, tau=0.1) for name, loss in losses.items()}
    return {"loss_module": losses, "replay_buffer": buffers, "target_updater": updaters, "env": env}


def test_two_looks_tell_which_group_does_not_learn(agents):
    losses = agents["loss_module"]
    trained = {
        name: list(loss.value_network_params.values(True, True)) for name, loss in losses.items()
    }
    trained["prey"] = trained["prey"][:1]
    before = look(**agents)
    with torch.no_grad():
        for weight in (*trained["hunters"], *trained["prey"]) * 12:
            weight.add_(0.01)
    only = "part_of_the_network_never_changes"
    found = diagnose(**agents, since=before, only=only, seconds=SECONDS).applies
    assert [one.evidence.partition(":")[0] for one in found] == ["prey"]


@guards("doctor-watch-groups")
def test_a_watched_loop_records_each_group(agents):
    """Of `prey` the optimizer has a part, and gradients stay: both are said of it alone."""
    losses, env = agents["loss_module"], agents["env"]
    held = {name: list(loss.parameters()) for name, loss in losses.items()}
    held["prey"] = held["prey"][:1]
    optimizers = {name: torch.optim.Adam(one) for name, one in held.items()}
    batch = env.rollout(20, break_when_any_done=False)
    with watch(**agents, share=1, seconds=SECONDS, frames=10) as watching:
        for _ in range(15):
            for name, loss in losses.items():
                loss(batch)["loss"].backward()
                optimizers[name].step()
                agents["target_updater"][name].step()
                if name == "hunters":
                    loss.zero_grad()
            watching.record(batch)
    assert {f"{name}: {what}" for name in losses for what in ("loss", "grad_norm")} <= {
        *watching.series
    }
    assert watching.series["prey: loss"].kind == watching.series["hunters: loss"].kind == "loss"
    said = {one.slug: one.evidence.partition(":")[0] for one in watching.report.applies}
    assert said == {
        "part_of_the_network_never_changes": "prey",
        "gradients_are_never_zeroed": "prey",
    }


@guards("doctor-groups")
def test_a_symptom_of_one_group_is_said_with_its_name(agents):
    agents["target_updater"]["prey"] = SoftUpdate(agents["loss_module"]["prey"], eps=1.0)
    found = diagnose(**agents, seconds=SECONDS).applies
    assert {one.slug for one in found} == {"target_updater_never_steps"}
    assert all(one.evidence.startswith("prey: ") for one in found)


def test_healthy_groups_are_told_nothing(agents):
    report = diagnose(**agents, seconds=SECONDS)
    assert [one for one in report if one.state in ("applies", "check failed")] == []
    said = [(one.slug, one.evidence) for one in report]
    assert len(said) == len(set(said))


def test_what_all_groups_say_is_said_once(agents):
    losses = agents["loss_module"]
    agents["target_updater"] = {name: SoftUpdate(one, eps=1.0) for name, one in losses.items()}
    found = diagnose(**agents, seconds=SECONDS).applies
    assert len(found) == len({one.slug for one in found})


def test_a_group_without_a_loss_lacks_only_that(agents):
    del agents["loss_module"]["prey"]
    report = diagnose(**agents, seconds=SECONDS)
    said = [one.evidence for one in report if one.slug == "off_policy_loss_is_nan"]
    assert len(said) == 1
    assert said[0].startswith("hunters: ")
    assert report.refused == []


class Deaf(Team):
    def _step(self, tensordict):
        still = torch.zeros_like(tensordict["agents", "action"])
        return super()._step(tensordict.clone().set(("agents", "action"), still))


@pytest.mark.parametrize(("env", "states"), [(Team, []), (Deaf, [APPLIES])])
def test_whether_the_actions_of_a_group_have_an_effect(env, states):
    report = diagnose(env=env(continuous=True), seconds=SECONDS, only="actions_have_no_effect")
    assert [one.state for one in report] == states


@pytest.mark.parametrize(
    ("keys", "buffers", "times", "states"),
    [
        (["advantage"] * 2, 1, 1, [APPLIES]),
        (["advantage"] * 2, 1, 2, [UNDECIDED]),
        (["advantage"] * 2, 2, 1, [UNDECIDED]),
        (["advantage", "other"], 1, 1, [CLEAR]),
    ],
)
def test_two_estimators_write_one_advantage(keys, buffers, times, states):
    env = cartpole()
    critics = {n: ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"]) for n in "ab"}
    estimators = {n: GAE(gamma=0.9, lmbda=0.9, value_network=critics[n]) for n in "ab"}
    losses = {n: A2CLoss(categorical_actor(env, logits()), critics[n]) for n in "ab"}
    for one, key in zip("ab", keys, strict=True):
        estimators[one].set_keys(advantage=key)
        losses[one].set_keys(advantage=key)
    options = {"frames_per_batch": 30, "total_frames": -1}
    collector = Collector(env, None, **options)
    stored = [
        TensorDictReplayBuffer(storage=LazyTensorStorage(30), batch_size=8) for _ in range(buffers)
    ]
    for _, batch in zip(range(2), collector, strict=False):
        for one in estimators.values():
            one(batch)
        for buffer in stored * times:
            buffer.extend(batch)
    buffer = dict(zip("ab", stored, strict=True)) if buffers > 1 else stored[0]
    given = {"value_estimator": estimators, "loss_module": losses, "replay_buffer": buffer}
    given |= {"collector": collector, "batch": batch}
    report = diagnose(**given, seconds=SECONDS, only="two_critics")
    assert [one.state for one in report] == states
