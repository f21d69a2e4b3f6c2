"""The tutorial on batch shapes can fail."""

import ast

import pytest

from tests.support import ROOT
from tests.support.tutorial_script import run_driver

pytestmark = [pytest.mark.slow, pytest.mark.mutation]

PAGE = ROOT / "tutorials" / "collectors" / "batch_shapes.py"

# Runs in one process, which keeps one import of torchrl and one server for all mutations. It has no
# file that a worker could run again, like a notebook. Each mutation changes torchrl in the process
# that runs the page, and is undone. Writes {mutation: failing assertion of the page} as JSON.
DRIVER = '''
import json, sys
page = sys.argv[1]
import matplotlib
matplotlib.use("agg")
import torch
from unittest import mock
from tests.support.tutorial_script import failing_assertion
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.objectives.value import GAE, ValueEstimatorBase
import torchrl.collectors.utils as utils


def swapped():
    """The integers of cat_results exchange their meaning."""
    init = MultiSyncCollector.__init__

    def swapping(self, *args, cat_results=None, **kwargs):
        cat_results = {0: -1, -1: 0}.get(cat_results, cat_results)
        init(self, *args, cat_results=cat_results, **kwargs)

    return mock.patch.object(MultiSyncCollector, "__init__", swapping)


def seams_marked():
    """Workers mark their last row, asked or not."""
    init = MultiSyncCollector.__init__

    def marking(self, *args, set_truncated=True, **kwargs):
        init(self, *args, set_truncated=True, **kwargs)

    return mock.patch.object(MultiSyncCollector, "__init__", marking)


def time_is_first():
    return mock.patch.object(
        ValueEstimatorBase, "_get_time_dim", lambda self, time_dim, data: 0
    )


def name_is_ignored():
    def last(self, time_dim, data):
        return data.ndim - 1 if time_dim is None else time_dim

    return mock.patch.object(ValueEstimatorBase, "_get_time_dim", last)


def unnamed():
    """The collector leaves the time dimension without a name."""
    rollout = Collector.rollout

    def nameless(self):
        data = rollout(self)
        data.names = None
        return data

    return mock.patch.object(Collector, "rollout", nameless)


def set_truncated_ignored():
    init = MultiSyncCollector.__init__

    def ignoring(self, *args, set_truncated=False, **kwargs):
        init(self, *args, **kwargs)

    return mock.patch.object(MultiSyncCollector, "__init__", ignoring)


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


results = {"nothing": failing_assertion(page)}
for mutation in (swapped, seams_marked, time_is_first, name_is_ignored, unnamed,
                 set_truncated_ignored, padding_is_done):
    with mutation():
        results[mutation.__name__] = failing_assertion(page)
print(json.dumps(results))
'''

CAUGHT_BY = {
    "swapped": "assert batch.shape == PREDICTED[case], case",
    "seams_marked": "assert is_wrong.any() == (case in LEAKY), case",
    "time_is_first": "assert torch.equal(is_wrong, by_hand), case",
    "name_is_ignored": "assert not wrong(transposed, advantage_of(transposed)).any()",
    "unnamed": "assert batch.names == [None] * (batch.ndim - 1) + ['time'], case",
    "set_truncated_ignored": (
        "assert marked['next', 'truncated'].squeeze(-1)[[seam - 1, -1]].all()"
    ),
    "padding_is_done": "assert lines[0][-1] > 0 == lines[1][-1]",
}


@pytest.fixture(scope="module")
def caught():
    return run_driver(DRIVER, PAGE)


def test_page_passes_unchanged(caught):
    assert caught["nothing"] == "the page passed"


@pytest.mark.parametrize("mutation", CAUGHT_BY)
def test_page_notices_a_changed_torchrl(caught, mutation):
    expected = CAUGHT_BY[mutation]
    assert caught[mutation] == ast.unparse(ast.parse(expected))
