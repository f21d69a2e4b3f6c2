"""What the guide to adapting an environment says and does not run is so."""

import functools
import multiprocessing
from unittest import mock

import gymnasium
import numpy as np
import pytest
import torch
from torchrl.collectors import MultiSyncCollector
from torchrl.envs import (
    GymWrapper,
    Transform,
    TransformedEnv,
    check_env_specs,
    default_info_dict_reader,
)

from tests.support.claims import guards


class Corridor(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 100.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length, kind=np.float32):
        self.length, self.kind = length, kind

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.goal = 0, int(self.length)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.place += 1
        arrived = self.place == self.goal
        return np.zeros(1, np.float32), 1.0, arrived, False, {"left": self.kind(self.goal)}


class Scaled(Transform):
    def __init__(self):
        super().__init__(in_keys=["observation"], out_keys=["scaled"])

    def _apply_transform(self, observation):
        return observation / 10

    def _reset(self, tensordict, tensordict_reset):
        return self._call(tensordict_reset)

    def transform_observation_spec(self, observation_spec):
        observation_spec["scaled"] = observation_spec["observation"].clone()
        return observation_spec


class WithoutReset(Scaled):
    _reset = Transform._reset


class WithoutSpec(Scaled):
    transform_observation_spec = Transform.transform_observation_spec


def make_env(length):
    return GymWrapper(Corridor(length))


@guards("info-reader-wants-numpy")
def test_the_reader_raises_for_a_plain_number():
    for kind in (np.float32, int):
        env = GymWrapper(Corridor(2, kind))
        env.set_info_dict_reader(default_info_dict_reader(["left"]))
        if kind is int:
            with pytest.raises(AttributeError, match="'int' object has no attribute 'dtype'"):
                env.rollout(2)
        else:
            assert env.rollout(2)["next", "left"].tolist() == [2.0, 2.0]


@guards("specs-check-finds-half-a-transform")
def test_the_check_of_specs_finds_what_a_transform_lacks():
    check_env_specs(TransformedEnv(make_env(2), Scaled()))
    with pytest.raises(RuntimeError, match="sets of keys"):
        check_env_specs(TransformedEnv(make_env(2), WithoutReset()))
    with pytest.raises(KeyError, match="'scaled' is unaccounted for"):
        check_env_specs(TransformedEnv(make_env(2), WithoutSpec()))


@guards("partial-copies-shared-tensors")
@pytest.mark.parametrize(
    ("start", "how"), [("fork", "partial"), ("spawn", "partial"), ("spawn", "kwargs")]
)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_see_a_shared_tensor(start, how):
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method(start, force=True)
    length = torch.tensor(2).share_memory_()
    kwargs = {"create_env_kwargs": [{"length": length}]} if how == "kwargs" else {}
    make = make_env if kwargs else functools.partial(make_env, length)
    try:
        collector = MultiSyncCollector([make], None, frames_per_batch=8, total_frames=-1, **kwargs)
        collector.next()
        length.fill_(8)
        collector.next()  # the episode under way is a short one
        ends = int(collector.next()["next", "done"].sum())
        collector.shutdown()
    finally:
        multiprocessing.set_start_method(before, force=True)
    assert ends == (4 if (start, how) == ("spawn", "partial") else 1)


@guards("atari-without-registration-raises")
def test_atari_games_have_to_be_registered():
    with mock.patch.dict(gymnasium.registry, clear=True):
        with pytest.raises(gymnasium.error.NamespaceNotFound, match="Namespace ALE not found"):
            gymnasium.make("ALE/Pong-v5")
        with pytest.raises(gymnasium.error.NameNotFound, match="`PongNoFrameskip` doesn't exist"):
            gymnasium.make("PongNoFrameskip-v4")
