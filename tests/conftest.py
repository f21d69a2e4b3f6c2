"""Modules of tests and the environment; which files begin; tests of the built site.

What a test module sets in the environment while it is imported ends with its import: suites set
``RL_WARNINGS`` before they import torchrl; a later test that starts a process would hand it on, and
the pages that show a warning of torchrl would find none.

Files with slow tests begin, after the pages, so that workers do not wait at the end for one.

What the imports left in memory is no garbage: the collector of Python need not walk through it each
time that a test or a suite calls ``gc.collect()``.
"""

import contextlib
import gc
import multiprocessing
import os
from unittest import mock

import pytest

from tests.support import SITE


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    with mock.patch.dict(os.environ):
        return (yield)


def pytest_collection_modifyitems(items):
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path.suffix == ".py" and 1 + (item.path not in slow))


def pytest_runtest_setup(item):
    if item.get_closest_marker("site") and not (SITE / "index.html").is_file():
        pytest.fail(f"{SITE} holds no site; run `make html` first", pytrace=False)


def pytest_collection_finish():
    gc.collect()
    gc.freeze()


@pytest.fixture
def forkserver():
    """Workers are forks of a process that has imported torchrl, once for all tests of this one.

    Not for a test that reads what they print, or sets what they read in the environment.
    """
    multiprocessing.set_forkserver_preload(["torchrl.collectors", "torchrl.envs"])
    with start_method("forkserver"):
        yield


@pytest.fixture
def forked():
    """Workers are forks of this process."""
    with start_method("fork"):
        yield


@contextlib.contextmanager
def start_method(name):
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(name, force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(before, force=True)
