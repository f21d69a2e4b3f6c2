"""What a how-to guide defines, for tests that go on from there."""

import contextlib
import multiprocessing
import types
import warnings
from unittest import mock

import pytest
import torch
import torchrl

from tests.support import ROOT


@contextlib.contextmanager
def defined_by(name, until):
    """The names that the guide *name* has before the text *until*; its settings end with it."""
    level, threads = torchrl.logger.level, torch.get_num_threads()
    method = multiprocessing.get_start_method()
    source = (ROOT / "how-to" / f"{name}.py").read_text(encoding="utf-8")
    page = types.ModuleType("page")
    with warnings.catch_warnings():
        exec(source[: source.index(until)], vars(page))
        yield page
    multiprocessing.set_start_method(method, force=True)
    torchrl.logger.setLevel(level)
    torch.set_num_threads(threads)


class StillWaiting(BaseException):
    """No ``Exception``: the call logs those and returns."""


def assert_an_update_waits_for_the_dead(collector, number):
    """Kill a worker of *collector*, by its *number*; an update then waits for it without limit."""
    collector.update_policy_weights_()
    collector.procs[number].kill()
    collector.procs[number].join()
    queue = collector._weight_sync_schemes["policy"]._ack_queues[number]
    patched = mock.patch.object(queue, "get", side_effect=StillWaiting)
    with patched as get, pytest.raises(StillWaiting):
        collector.update_policy_weights_()
    get.assert_called_once_with(timeout=None)
