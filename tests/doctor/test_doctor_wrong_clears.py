"""Ways in which a symptom hides from a look at one place: no check says ``clear`` to them."""

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import (
    Bounded,
    Categorical,
    Composite,
    LazyTensorStorage,
    TensorDictReplayBuffer,
    Unbounded,
)
from torchrl.envs import (
    DoubleToFloat,
    EnvBase,
    ObservationNorm,
    RewardSum,
    SerialEnv,
    TransformedEnv,
)
from torchrl.objectives import A2CLoss
from torchrl.objectives.value import GAE
from torchrl_doctor import APPLIES, CLEAR, UNDECIDED, diagnose

from tests.support.healthy_pipelines import cartpole


def said(slug, **given):
    """The state of one check; None where it says nothing."""
    return next((one.state for one in diagnose(**given, only=slug, seconds=60)), None)


class Sensor(EnvBase):
    """Observation and reward of one type, whatever the specs say."""

    def __init__(self, spec=torch.float32, data=torch.float32, reward=torch.float32, action=None):
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((1,), dtype=spec))
        self.action_spec = Categorical(2) if action is None else Bounded(-2, 2, (1,), dtype=action)
        self.reward_spec = Unbounded((1,), dtype=reward)
        self.data = data

    def seen(self):
        done = torch.zeros(1, dtype=torch.bool)
        value = (1000 * torch.rand(1, dtype=torch.float64) + 0.3).to(self.data)
        return {"observation": value, "done": done}

    def _reset(self, tensordict=None, **options):
        return TensorDict(self.seen())

    def _step(self, tensordict):
        return TensorDict({**self.seen(), "reward": torch.rand(1) + 0.1})

    def _set_seed(self, seed):
        torch.manual_seed(seed)


@pytest.mark.parametrize(
    ("options", "state"),
    [
        ([{}], CLEAR),
        ([{"spec": torch.int64}], APPLIES),
        ([{"spec": torch.int64, "data": torch.float64}], APPLIES),
        ([{"reward": torch.int64}], APPLIES),
        ([{"spec": torch.float32, "data": torch.float64}], UNDECIDED),
        ([{"spec": torch.float32, "data": torch.int64}], CLEAR),  # as small as these
        ([{"action": torch.int64}], UNDECIDED),
    ],
)
def test_decimals_are_looked_for_in_the_data(options, state):
    makers = [lambda one=one: Sensor(**one) for one in options]
    assert said("decimals_are_lost", env=SerialEnv(len(makers), makers)) == state


def test_actions_lose_decimals_too():
    env = SerialEnv(2, lambda: Sensor(action=torch.int64))
    rows = TensorDict(action=torch.rand(8, 2, 1), next={"done": torch.zeros(8, 2, 1).bool()})
    rows.batch_size = [8, 2]
    assert said("decimals_are_lost", env=env, batch=rows) == APPLIES
    whole = rows.clone().set("action", torch.ones(8, 2, 1, dtype=torch.int64))
    assert said("decimals_are_lost", env=env, batch=whole) == CLEAR


def waiting(rows, **options):
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(len(rows)), batch_size=8, prefetch=3, **options
    )
    buffer.extend(rows)
    buffer.sample()
    buffer.synchronize()
    return buffer


def rollout(env=None):
    torch.manual_seed(0)
    return (env or cartpole()).rollout(40, break_when_any_done=False)


def test_all_samples_that_wait_are_compared():
    slug, rows = "first_samples_after_refill_are_old", rollout()
    buffer = waiting(rows)
    assert said(slug, replay_buffer=buffer) == CLEAR
    first = buffer._prefetch_queue[0]
    buffer.extend(rows.clone().set("observation", rows["observation"] + 1))
    _, info = first.result()
    info = {"index": torch.as_tensor(info["index"])}
    first._result = (buffer[info["index"]], info)  # the next sample is new, the others are old
    assert said(slug, replay_buffer=buffer) == APPLIES
    buffer.shutdown()


def test_samples_that_wait_for_an_on_policy_loss_will_be_old():
    slug, rows = "first_samples_after_refill_are_old", rollout()
    loss = A2CLoss.__new__(A2CLoss)
    torch.nn.Module.__init__(loss)
    buffer = waiting(rows)
    assert said(slug, replay_buffer=buffer, loss_module=loss) == APPLIES
    buffer.extend(rows)
    assert said(slug, replay_buffer=buffer) in (APPLIES, UNDECIDED)  # refilled
    buffer.shutdown()


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.set("observation", (rows["observation"] - 0.5) / 0.1),
        lambda rows: rows.set("observation", rows["observation"].round()),
        lambda rows: rows.set("observation", rows["observation"].mul(9).to(torch.int32)),
        lambda rows: rows.set("observation", rows["observation"].flip(-1)),
    ],
)
def test_samples_are_compared_with_what_the_policy_saw(change):
    slug, rows = "samples_differ_from_what_the_policy_saw", rollout()
    rows["step_count"] = torch.arange(40)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(40), batch_size=16)
    buffer.extend(rows)
    given = {"env": cartpole(), "batch": rows}
    assert said(slug, replay_buffer=buffer, **given) == CLEAR
    other = TensorDictReplayBuffer(storage=LazyTensorStorage(40), batch_size=16)
    other.extend(change(rows.clone()))
    assert said(slug, replay_buffer=other, **given) == APPLIES
    unknown = TensorDictReplayBuffer(storage=LazyTensorStorage(40), batch_size=16)
    unknown.extend(torch.zeros_like(rows))
    assert said(slug, replay_buffer=unknown, **given) == UNDECIDED


def test_a_transform_of_the_buffer_is_not_taken_on_trust():
    slug, rows = "samples_differ_from_what_the_policy_saw", rollout()
    rows["step_count"] = torch.arange(40)
    norm = ObservationNorm(0.5, 3.0, in_keys=["observation"])
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(40), batch_size=16, transform=norm)
    buffer.extend(rows)
    env = TransformedEnv(cartpole(), DoubleToFloat())
    assert said(slug, replay_buffer=buffer, env=env, batch=rows) == APPLIES
    assert said(slug, replay_buffer=buffer, env=env) == UNDECIDED


def test_a_running_sum_that_begins_anew():
    env = TransformedEnv(cartpole(), RewardSum())
    rows, slug = rollout(env), "episode_return_looks_too_low"
    assert said(slug, env=env, batch=rows) is None
    rows["episode_reward"][3::5] = 0
    assert said(slug, env=env, batch=rows) == APPLIES


def test_two_shapes_in_an_estimator():
    estimator = GAE(gamma=0.99, lmbda=0.95, value_network=None)
    rows, slug = rollout(), "estimator_reads_two_shapes"
    assert said(slug, value_estimator=estimator, batch=rows) == CLEAR
    rows["next", "reward"] = torch.zeros(40, 3, 1)
    assert said(slug, value_estimator=estimator, batch=rows) == APPLIES
