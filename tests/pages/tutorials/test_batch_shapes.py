"""The tutorial on batch shapes can fail."""

from unittest import mock

import pytest
import torch
import torchrl.collectors.utils as utils
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.objectives.value import ValueEstimatorBase

from tests.support import ROOT
from tests.support.tutorial_script import Changes

pytestmark = [pytest.mark.slow, pytest.mark.mutation]

PAGE = ROOT / "tutorials" / "collectors" / "batch_shapes.py"
CHANGES = Changes(PAGE)


@CHANGES.caught_by("assert batch.shape == PREDICTED[case], case")
def swapped():
    """The integers of cat_results exchange their meaning."""
    init = MultiSyncCollector.__init__

    def swapping(self, *args, cat_results=None, **kwargs):
        cat_results = {0: -1, -1: 0}.get(cat_results, cat_results)
        init(self, *args, cat_results=cat_results, **kwargs)

    return mock.patch.object(MultiSyncCollector, "__init__", swapping)


@CHANGES.caught_by("assert is_wrong.any() == (case in LEAKY), case")
def seams_marked():
    """Workers mark their last row, asked or not."""
    init = MultiSyncCollector.__init__

    def marking(self, *args, set_truncated=True, **kwargs):
        init(self, *args, set_truncated=True, **kwargs)

    return mock.patch.object(MultiSyncCollector, "__init__", marking)


@CHANGES.caught_by("assert torch.equal(is_wrong, by_hand), case")
def time_is_first():
    return mock.patch.object(ValueEstimatorBase, "_get_time_dim", return_value=0)


@CHANGES.caught_by("assert not wrong(transposed, advantage_of(transposed)).any()")
def name_is_ignored():
    def last(self, time_dim, data):
        return data.ndim - 1 if time_dim is None else time_dim

    return mock.patch.object(ValueEstimatorBase, "_get_time_dim", last)


@CHANGES.caught_by("assert batch.names == [None] * (batch.ndim - 1) + ['time'], case")
def unnamed():
    """The collector leaves the time dimension without a name."""
    rollout = Collector.rollout

    def nameless(self):
        data = rollout(self)
        data.names = None
        return data

    return mock.patch.object(Collector, "rollout", nameless)


@CHANGES.caught_by("assert marked['next', 'truncated'].squeeze(-1)[[seam - 1, -1]].all()")
def set_truncated_ignored():
    init = MultiSyncCollector.__init__

    def ignoring(self, *args, set_truncated=False, **kwargs):
        init(self, *args, **kwargs)

    return mock.patch.object(MultiSyncCollector, "__init__", ignoring)


@CHANGES.caught_by("assert lines[0][-1] > 0 == lines[1][-1]")
def padding_is_done():
    """split_trajectories closes each trajectory."""
    split = utils.split_trajectories

    def closing(data, **kwargs):
        out = split(data, **kwargs)
        mask = out["collector", "mask"]
        last = mask & ~torch.nn.functional.pad(mask, (0, 1))[:, 1:]
        out["next", "done"] |= last.unsqueeze(-1)
        return out

    return mock.patch.object(utils, "split_trajectories", closing)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_page_notices_a_changed_torchrl(caught, change):
    assert caught[change.name] == change.assertion
