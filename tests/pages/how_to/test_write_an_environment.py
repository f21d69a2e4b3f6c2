"""What the guide to writing an environment says and does not run is so."""

import multiprocessing

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.envs import (
    EnvBase,
    ParallelEnv,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    check_env_specs,
)

from tests.support.claims import guards


class Count(EnvBase):
    """Rows that end after different numbers of steps; *change* alters what a step returns."""

    speed = 3

    def __init__(self, change=None):
        super().__init__(batch_size=[2])
        self.observation_spec = Composite(observation=Unbounded((2, 1)), shape=[2])
        self.action_spec = Bounded(-1, 1, (2, 1))
        self.reward_spec = Unbounded((2, 1))
        self.change, self.resets = change, []

    def _reset(self, tensordict):
        mask = None if tensordict is None else tensordict.get("_reset", None)
        self.resets.append(mask if mask is None else mask.flatten().tolist())
        return TensorDict(observation=torch.zeros(2, 1), batch_size=[2])

    def _step(self, tensordict):
        now = tensordict["observation"] + 1
        ends = now >= torch.tensor([[2.0], [5.0]])
        step = TensorDict(observation=now, reward=now.clone(), terminated=ends, batch_size=[2])
        return step if self.change is None else self.change(step)

    def _set_seed(self, seed):
        torch.manual_seed(seed)


@guards("done-is-filled-from-terminated")
def test_done_is_filled_in():
    assert sorted(Count().done_spec.keys()) == ["done", "terminated"]
    steps = Count().rollout(4, break_when_any_done=False)["next"]
    assert steps["terminated"].any()
    assert torch.equal(steps["done"], steps["terminated"])
    steps = TransformedEnv(Count(), StepCounter(max_steps=3)).rollout(4, break_when_any_done=False)
    either = steps["next", "terminated"] | steps["next", "truncated"]
    assert steps["next", "truncated"].any()
    assert torch.equal(steps["next", "done"], either)


CHANGES = {
    "a missing key": lambda step: step.exclude("observation"),
    "another shape": lambda step: step.set("observation", torch.zeros(2, 3)),
    "another type": lambda step: step.set("observation", torch.zeros(2, 1, dtype=torch.double)),
}


@guards("specs-check-finds-key-shape-dtype")
@pytest.mark.parametrize("change", CHANGES)
def test_the_check_of_specs_finds(change):
    check_env_specs(Count())
    with pytest.raises((AssertionError, KeyError, RuntimeError)):
        check_env_specs(Count(CHANGES[change]))


@guards("reset-mask-marks-rows", "reset-keeps-other-rows")
def test_a_reset_of_some_rows_has_a_mask():
    env = Count()
    env.reset()
    steps = env.rollout(4, break_when_any_done=False)
    assert env.resets[0] is None
    assert env.resets[-1] == [True, False]
    assert steps["observation"].squeeze(-1).tolist() == [[0, 1, 0, 1], [0, 1, 2, 3]]


@guards("attributes-of-batched-environments")
def test_attributes_of_environments_in_a_batch(forkserver):
    envs = SerialEnv(2, Count)
    with pytest.raises(RecursionError):
        envs.speed  # noqa: B018
    envs.reset()
    assert envs.speed == [3, 3]
    envs.close()

    envs = ParallelEnv(2, Count)
    envs.reset()
    assert list(envs.speed) == [3, 3]
    with pytest.raises((EOFError, BrokenPipeError)):
        list(envs.no_such_attribute)
    with pytest.raises((EOFError, BrokenPipeError, RuntimeError)):
        envs.reset()
    for process in multiprocessing.active_children():
        process.kill()
