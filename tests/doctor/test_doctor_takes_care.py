"""What looks like a symptom and is meant, and what of the reader's a look must not touch."""

import functools

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer, TensorStorage
from torchrl.envs import GymEnv, ParallelEnv, SerialEnv, StepCounter, TransformedEnv
from torchrl.modules import ProbabilisticActor, TanhDelta, ValueOperator
from torchrl.objectives import SACLoss
from torchrl_doctor import APPLIES, CLEAR, UNDECIDED, diagnose

from tests.support.claims import guards
from tests.support.defects.pipelines import Joined
from tests.support.healthy_pipelines import cartpole, collect_from


def said(slug, **given):
    """The state of one check; None where it says nothing."""
    return next((one.state for one in diagnose(**given, only=slug, seconds=60)), None)


@pytest.mark.parametrize("kind", [SerialEnv, ParallelEnv])
def test_specs_of_a_batched_environment_that_never_started_are_not_read(kind):
    env = TransformedEnv(kind(2, cartpole), StepCounter())
    batch = SerialEnv(2, cartpole).rollout(5)
    kept = dict(vars(env))
    assert said("specs_and_data_disagree", env=env, batch=batch) == UNDECIDED
    assert vars(env) == kept


class Counts(StepCounter):
    """Says how often it was asked for a spec."""

    asked = 0

    def transform_observation_spec(self, observation_spec):
        self.asked += 1
        return super().transform_observation_spec(observation_spec)


def test_specs_are_those_of_a_copy():
    env = TransformedEnv(cartpole(), Counts())
    batch = env.rollout(5)
    env.empty_cache()
    before = env.transform.asked
    assert said("specs_and_data_disagree", env=env, batch=batch) == CLEAR
    assert env.transform.asked == before


def pendulum():
    return GymEnv("Pendulum-v1")


def relabeled(rows, reward):
    rows["next", "reward"].copy_(reward(rows))
    return rows


def surprise(rows):
    return rows["observation"].sum(-1, keepdim=True).tanh()


def centered(rows):
    return rows["next", "reward"] - rows["next", "reward"].mean()


@pytest.mark.parametrize(
    ("reward", "state"), [(surprise, UNDECIDED), (centered, APPLIES)]
)  # a learned reward, as of preferences, is written to rows that are there
def test_rewards_that_are_learned_are_relabeled_on_purpose(reward, state):
    env = pendulum()
    collector = Collector(env, None, frames_per_batch=30, total_frames=-1)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=8)
    for batch, _ in zip(collector, range(3), strict=False):
        buffer.extend(batch)
        relabeled(buffer[:], reward)
    given = {"replay_buffer": buffer, "collector": collector}
    assert said("reading_changes_the_buffer", **given) == state


def test_a_data_set_that_was_scaled_before_it_was_stored():
    data = pendulum().rollout(40)
    data["next", "reward"].div_(10)
    buffer = TensorDictReplayBuffer(storage=TensorStorage(data), batch_size=8)
    assert said("reading_changes_the_buffer", replay_buffer=buffer) == UNDECIDED
    given = {"replay_buffer": buffer, "batch": data}
    assert said("reading_changes_the_buffer", **given) == UNDECIDED


def sac(env):
    net = TensorDictModule(torch.nn.Linear(3, 1), ["observation"], ["param"])
    actor = ProbabilisticActor(net, in_keys=["param"], distribution_class=TanhDelta)
    critic = ValueOperator(Joined(torch.nn.Linear(4, 1)), in_keys=["observation", "action"])
    return actor, SACLoss(actor, critic, action_spec=env.action_spec)


@pytest.mark.parametrize(
    ("unasked", "updates", "states"),
    [(60, 20, [UNDECIDED, CLEAR]), (900_000, 0, [UNDECIDED] * 2), (900_000, 20, [APPLIES] * 2)],
)
def test_more_random_frames_than_the_buffer_holds(unasked, updates, states):
    env = pendulum()
    actor, loss = sac(env)
    collector = collect_from(env, actor, 30, init_random_frames=unasked)
    batches = iter(collector)
    given = {"collector": collector, "loss_module": loss}
    given["replay_buffer"] = TensorDictReplayBuffer(storage=LazyTensorStorage(40), batch_size=8)
    for _ in range(updates):
        torch._foreach_add_([one.detach() for one in loss.parameters()], 0.0)
    found = []
    for number in (1, 2):
        for _ in range(number):
            given["replay_buffer"].extend(next(batches))
        found.append(said("actions_stay_random", **given))
    assert found == states


KEPT = []


def keeps(batch, number=0):
    KEPT.append(batch)
    return batch


def flat(batch):
    return batch.reshape(-1)


def through_another(batch):
    return keeps(flat(batch))


class Keeps(torch.nn.Module):
    def forward(self, batch):
        return keeps(batch)


@guards("doctor-postproc-reaches")
@pytest.mark.parametrize(
    ("postproc", "called"),
    [
        (flat, True),
        (functools.partial(flat), True),
        (keeps, False),
        (through_another, False),
        (functools.partial(keeps, number=1), False),
        (Keeps(), False),
        ("fills a buffer", False),
    ],
)
def test_a_postproc_that_could_change_something_is_not_called(postproc, called):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(1000), batch_size=8)
    if postproc == "fills a buffer":

        def postproc(batch):
            buffer.extend(batch)
            return batch

    KEPT.clear()
    options = {"frames_per_batch": 20, "total_frames": -1, "postproc": postproc}
    report = diagnose(collector=Collector(cartpole(), None, **options), seconds=60)
    assert KEPT == []
    assert buffer.write_count == 0
    assert any("postproc is not called" in note for note in report.notes) != called


@pytest.mark.parametrize("size", [(3, 4, 4), (8,)], ids=["images", "vectors"])
def test_images_of_a_simple_game_come_again(size):
    """Vectors do not, so there the same rows are rows that were stored twice."""
    frames = torch.rand(10, *size).repeat(6, *(1 for _ in size))
    rows = {"pixels": frames, "next": {"pixels": frames.roll(-1, 0)}, "action": torch.zeros(60, 1)}
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(60), batch_size=10)
    buffer.extend(TensorDict(rows, [60]))
    policy = TensorDictModule(torch.nn.Flatten(), ["pixels"], ["action"])
    state = said("rows_are_stored_twice", replay_buffer=buffer, policy=policy)
    assert state == {3: None, 1: APPLIES}[len(size)]
