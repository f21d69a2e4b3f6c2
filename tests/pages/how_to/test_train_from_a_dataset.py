"""What the guide to training from a dataset says and does not run is so."""

import inspect
from unittest import mock

import pytest
from torchrl.data import ReplayBuffer, datasets

from tests.support.claims import guards


@guards("dataset-classes-are-buffers")
def test_the_classes_of_datasets_are_replay_buffers():
    classes = [one for one in vars(datasets).values() if inspect.isclass(one)]
    assert {datasets.D4RLExperienceReplay, datasets.MinariExperienceReplay} <= set(classes)
    for one in classes:
        assert issubclass(one, ReplayBuffer)
    for one in (datasets.D4RLExperienceReplay, datasets.MinariExperienceReplay):
        given = inspect.signature(one.__init__).parameters
        assert given["download"].default is True
        assert given["root"].default is None
    given = inspect.signature(datasets.MinariExperienceReplay.__init__).parameters
    assert given["load_from_local_minari"].default is False
    streaming = "torchrl.data.datasets.openx._StreamingStorage"
    with (
        mock.patch(streaming, side_effect=AssertionError("streamed")),
        pytest.raises(AssertionError, match="streamed"),
    ):
        datasets.OpenXExperienceReplay("any", batch_size=2)
