"""What wrappers do with the rewards of an action that they repeat."""

import functools

import gymnasium
import pytest
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymWrapper, SerialEnv, StepCounter, TransformedEnv
from torchrl_doctor import APPLIES, CLEAR, UNDECIDED, diagnose


class Repeats(gymnasium.Wrapper):
    """Takes each action four times, and returns what *paid* makes of the rewards."""

    def __init__(self, env, paid, times=4):
        super().__init__(env)
        self.paid, self.times = paid, times

    def step(self, action):
        rewards = []
        for _ in range(self.times):
            seen, reward, terminated, truncated, more = self.env.step(action)
            rewards.append(reward)
            if terminated or truncated:
                break
        return seen, self.paid(rewards), terminated, truncated, more


def last(rewards):
    return rewards[-1]


def mean(rewards):
    return sum(rewards) / len(rewards)


def wrapped(game, *arguments):
    return GymWrapper(Repeats(gymnasium.make(game), *arguments))


@pytest.mark.parametrize(
    ("game", "paid", "state"),
    [
        ("Pendulum-v1", (last,), APPLIES),
        ("Pendulum-v1", (sum,), CLEAR),
        ("Pendulum-v1", (mean,), None),
        ("Pendulum-v1", (max,), None),
        ("Pendulum-v1", (last, 1), None),
        ("CartPole-v1", (last,), UNDECIDED),  # a mean is the same
        ("CartPole-v1", (mean,), UNDECIDED),
        ("CartPole-v1", (sum,), CLEAR),
    ],
)
@pytest.mark.parametrize("batched", [False, True])
def test_rewards_of_a_repeat(game, paid, state, batched):
    make = functools.partial(wrapped, game, *paid)
    env = TransformedEnv(SerialEnv(2, make) if batched else make(), StepCounter())
    env.reset()
    report = diagnose(env=env, only="repeat_loses_rewards", seconds=60)
    assert next((one.state for one in report), None) == state
    env.close()


def test_what_gymnasium_and_torchrl_repeat_is_left_alone():
    env = GymWrapper(gymnasium.make("Pendulum-v1"), frame_skip=4)
    assert not list(diagnose(env=env, only="repeat_loses_rewards", seconds=60))


class Late(gymnasium.ObservationWrapper):
    """Returns the observation of one step before."""

    def reset(self, **options):
        self.kept, more = self.env.reset(**options)
        return self.kept, more

    def observation(self, seen):
        seen, self.kept = self.kept, seen
        return seen


@pytest.mark.parametrize(
    ("given", "said"), [((), "is the action off by a row"), (("env",), "observations late?")]
)
def test_late_observations_are_not_called_right(given, said):
    """Nothing tells them from a state that is observed in part, so no check clears their rows."""
    env = GymWrapper(Late(gymnasium.make("Pendulum-v1")))
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(500), batch_size=8)
    buffer.extend(env.rollout(200))
    parts = {"env": env} if given else {}
    report = diagnose(replay_buffer=buffer, only="data_set_is_shifted", seconds=60, **parts)
    (found,) = report
    assert found.state == UNDECIDED
    assert said in found.evidence
