"""The lessons on memory can fail, and what they say and do not run is so."""

import functools
import inspect
import itertools
from unittest import mock

import pytest
import torch
from tensordict import TensorDict
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    SliceSampler,
    TensorDictReplayBuffer,
)
from torchrl.envs import GymEnv, SerialEnv, StepCounter, TransformedEnv
from torchrl.envs.transforms import (
    MultiStepTransform,
    NextObservationDelta,
    NextStateReconstructor,
)
from torchrl.objectives.value import TD0Estimator, TDLambdaEstimator, ValueEstimatorBase

from tests.support import ROOT
from tests.support.claims import guards
from tests.support.suites import recorded
from tests.support.tutorial_script import Changes, all_of

LESSONS = ROOT / "tutorials" / "memory"

CHANGES = Changes()


def caught_by(assertion, lesson):
    return CHANGES.caught_by(assertion, LESSONS / f"{lesson}.py")


def defaults(cls, **new):
    """Other defaults of keyword arguments, signature included."""
    init = cls.__init__
    signature = inspect.signature(init)

    @functools.wraps(init)
    def wrapper(self, *args, **kwargs):
        init(self, *args, **{**new, **kwargs})

    parameters = signature.parameters.values()
    wrapper.__signature__ = signature.replace(
        parameters=[one.replace(default=new.get(one.name, one.default)) for one in parameters]
    )
    return mock.patch.object(cls, "__init__", wrapper)


@caught_by("assert all(row[0] == 0 for row in nan_rows.values())", "missing_next_observations")
def no_sanitizer():
    unchanged = staticmethod(lambda data, keys: data)
    return mock.patch.object(ValueEstimatorBase, "_sanitize_next_obs_nan", unchanged)


@caught_by(
    "assert all(row[2] > 0 for name, row in nan_rows.items() if name != 'GAE')",
    "missing_next_observations",
)
def sanitized_estimate():
    def patch(cls):
        plain = cls.value_estimate

        def value_estimate(self, data, *args, **kwargs):
            return plain(self, self._sanitize_next_obs_nan(data, ["observation"]), *args, **kwargs)

        return mock.patch.object(cls, "value_estimate", value_estimate)

    return all_of(patch(TD0Estimator), patch(TDLambdaEstimator))


@caught_by("assert wrong.any()", "memory_efficient_rl")
def reconstructor_checks_steps():
    return defaults(NextStateReconstructor, step_count_key="step_count")


@caught_by(
    "assert set(plain.keys(True, True)) - set(compact.keys(True, True)) == {NEXT_OBS}",
    "memory_efficient_rl",
)
def compact_keeps_everything():
    def setup(self, *args, **kwargs):
        self._compact_next_keys = ()

    return mock.patch.object(Collector, "_setup_compact_obs", setup)


@caught_by("assert overflow.any()", "saving_by_observation_size")
def delta_in_bfloat16():
    return defaults(NextObservationDelta, delta_dtype=torch.bfloat16)


@caught_by(
    "assert inspect.signature(LazyMemmapStorage).parameters['existsok'].default is False",
    "buffers_on_disk",
)
def existsok_true():
    return defaults(LazyMemmapStorage, existsok=True)


@caught_by("assert predicted < meter.peak < predicted + 2 * batch.bytes()", "activation_memory")
def no_chunks():
    return mock.patch.object(
        ValueEstimatorBase, "_split_value_net_input", lambda self, data: (data,)
    )


@caught_by("assert torch.equal(n_step[NEXT_OBS], full[NEXT_OBS][lookup])", "n_step_and_truncations")
def reward_not_n_step():
    return mock.patch.object(MultiStepTransform, "_inv_call", lambda self, td: td)


@pytest.mark.slow
@pytest.mark.mutation
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_page_notices_a_changed_torchrl(caught, change):
    assert caught[change.name] == change.assertion


def steps_of_cartpole():
    return TransformedEnv(GymEnv("CartPole-v1"), StepCounter())


@guards("workers-rows-are-rebuilt")
@pytest.mark.parametrize("workers", [False, True])
def test_rows_of_several_environments_are_rebuilt(workers):
    make = [steps_of_cartpole] * 2 if workers else SerialEnv(2, steps_of_cartpole)
    make_collector = MultiSyncCollector if workers else Collector
    collector = make_collector(make, frames_per_batch=200, total_frames=-1, compact_obs=True)
    sampler = SliceSampler(slice_len=4, traj_key=("collector", "traj_ids"))
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(1000, ndim=2),
        sampler=sampler,
        transform=NextStateReconstructor(step_count_key="step_count"),
        batch_size=400,
    )
    try:
        for batch in itertools.islice(collector, 2):
            assert batch.shape == (2, 100)
            first, second = batch["collector", "traj_ids"]
            assert not set(first.flatten().tolist()) & set(second.flatten().tolist())
            buffer.extend(batch)
    finally:
        collector.shutdown()
    sample = buffer.sample()
    place, speed = sample["observation"][:, :2].T
    following = sample["next", "observation"][:, 0]
    rebuilt = ~following.isnan()
    assert rebuilt.float().mean() > 0.7
    euler = place + 0.02 * speed  # by CartPole's own step
    torch.testing.assert_close(following[rebuilt], euler[rebuilt])


@guards("touching-rows-are-done-in-the-sample")
def test_the_sampler_marks_ends_after_the_transform():
    """In slices of one trajectory, whose observations count its steps."""
    steps = torch.arange(40.0).unsqueeze(-1)
    ends = dict.fromkeys(["done", "terminated", "truncated"], torch.zeros(40, 1, dtype=torch.bool))
    rows = {"observation": steps, ("collector", "traj_ids"): torch.zeros(40, dtype=torch.int64)}
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(40),
        sampler=SliceSampler(slice_len=4, traj_key=("collector", "traj_ids")),
        transform=NextStateReconstructor(),
        batch_size=64,
    )
    buffer.extend(TensorDict({**rows, "next": ends}, [40]))
    sample = buffer.sample()
    after, now = sample["next", "observation"], sample["observation"]
    wrong = (after.isfinite() & (after != now + 1)).squeeze(-1)
    assert wrong.any()
    assert sample["next", "done"][wrong].all()
    assert not buffer[:]["next", "done"].any()  # what the transform saw


@guards("plain-scan-peaks-above-pad")
def test_peak_of_plain_scan():
    gru, lstm = (
        recorded("memory_recurrent", f"{cell}-scan-t32", "peak_memory")
        / recorded("memory_recurrent", f"{cell}-pad-t32", "peak_memory")
        for cell in ("gru", "lstm")
    )
    assert 1 < gru < 1.5
    assert lstm > 3
