"""What a test module sets in the environment while it is imported ends with its import.

Suites set ``RL_WARNINGS`` before they import torchrl; a later test that starts a process would
hand it on, and the pages that show a warning of torchrl would find none.
"""

import os
from unittest import mock

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    with mock.patch.dict(os.environ):
        return (yield)
