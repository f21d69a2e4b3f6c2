"""The doctor looks at a process in which nothing was compiled, whatever ran in it before."""

import collections
import sys
from unittest import mock

import pytest
from torchrl_doctor import CHECKS


@pytest.fixture(autouse=True)
def nothing_was_compiled(monkeypatch):
    if (compiler := sys.modules.get("torch._dynamo.utils")) is not None:
        monkeypatch.setitem(compiler.counters, "frames", collections.Counter())


@pytest.fixture
def no_checks():
    """Let a test register its own."""
    with mock.patch.dict(CHECKS, clear=True):
        yield
