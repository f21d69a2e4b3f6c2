"""What certainly costs time or memory: found where it is, and nowhere else."""

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import (
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
)
from torchrl.envs import MultiStepTransform
from torchrl.objectives.value import GAE
from torchrl_doctor import diagnose
from torchrl_doctor.savings import LONG_ROW, MANY_ROWS, SAVINGS

from tests.support import ROOT
from tests.support.claims import guards


def rows(*shape, ends=0, **entries):
    """Steps whose next entries are those of the following step, with *ends* at the last ones."""
    shape = shape or (32,)
    done = torch.zeros(*shape, 1, dtype=torch.bool)
    done[..., -1 - ends : -1, :] = True
    later = {"done": done, "terminated": done, "reward": torch.zeros(*shape, 1)}
    later |= {key: value.roll(-1, len(shape) - 1) for key, value in entries.items()}
    return TensorDict({**entries, "next": later}, batch_size=shape)


def found(**given):
    return [one.slug for one in diagnose(**given, seconds=60).savings]


def gae(**options):
    return GAE(gamma=0.99, lmbda=0.95, value_network=None, **options)


def test_a_loop_over_long_rows():
    long = rows(2, LONG_ROW, observation=torch.randn(2, LONG_ROW, 4))
    slug = "gae_loops_over_long_rows"
    assert slug in found(value_estimator=gae(vectorized=False), batch=long)
    assert slug not in found(value_estimator=gae(vectorized=True), batch=long)
    short = long[:, : LONG_ROW - 1]
    assert slug not in found(value_estimator=gae(vectorized=False), batch=short)
    ended = rows(2, LONG_ROW, ends=9, observation=torch.randn(2, LONG_ROW, 4))
    assert slug not in found(value_estimator=gae(vectorized=False), batch=ended)


def listed(data, kind=ListStorage):
    buffer = ReplayBuffer(storage=kind(100), batch_size=4)
    buffer.extend(data)
    return buffer


def test_rows_of_a_list():
    slug = "rows_are_stacked_one_by_one"
    vectors = rows(observation=torch.randn(32, 4))
    assert slug in found(replay_buffer=listed(vectors))
    assert slug not in found(replay_buffer=listed(vectors, LazyTensorStorage))
    pixels = rows(pixels=torch.zeros(32, 3, 20, 20, dtype=torch.uint8))
    assert slug not in found(replay_buffer=listed(pixels))
    uneven = [rows(observation=torch.randn(32, width))[0] for width in (4, 5)]
    assert slug not in found(replay_buffer=listed(uneven))


def test_pixels_as_floats():
    slug = "pixels_are_stored_as_floats"
    pixels = torch.randint(256, (32, 3, 20, 20))
    assert slug in found(batch=rows(pixels=pixels / 255))
    assert slug not in found(batch=rows(pixels=pixels.to(torch.uint8)))
    assert slug not in found(batch=rows(pixels=torch.rand(32, 3, 20, 20)))


def test_observations_twice():
    slug = "observations_are_stored_twice"

    def given(width, *transforms, **changed):
        data = rows(observation=torch.randn(32, width))
        data["next"].update(changed)
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=4)
        buffer.extend(data)
        for one in transforms:
            buffer.append_transform(one)
        return {"batch": data, "replay_buffer": buffer}

    assert slug in found(**given(300))
    assert slug not in found(**given(4))
    assert slug not in found(**given(300, MultiStepTransform(n_steps=3, gamma=0.99)))
    assert slug not in found(**given(300, observation=torch.randn(32, 300)))


@pytest.mark.parametrize(
    ("size", "cached", "there"),
    [(MANY_ROWS, False, True), (MANY_ROWS, True, False), (99, False, False)],
)
def test_slices_are_searched(size, cached, there):
    sampler = SliceSampler(slice_len=4, end_key=("next", "done"), cache_values=cached)
    storage = LazyTensorStorage(size)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=8)
    buffer.extend(rows(size, observation=torch.zeros(size, 1)))
    assert ("slices_are_searched_each_time" in found(replay_buffer=buffer)) == there


def test_each_names_a_section_that_is_there():
    known = set((ROOT / "docs" / "addresses.txt").read_text(encoding="utf-8").splitlines())
    assert {page for _, _, page in SAVINGS.values()} - known == set()


@guards("doctor-savings")
def test_a_saving_is_no_alarm():
    report = diagnose(batch=rows(pixels=torch.ones(32, 3, 20, 20)), seconds=60)
    assert [one.slug for one in report.savings] == ["pixels_are_stored_as_floats"]
    assert "pixels_are_stored_as_floats" not in [one.slug for one in report]
    assert "Time and memory" in str(report)
