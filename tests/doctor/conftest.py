"""The doctor looks at a process in which nothing was compiled, whatever ran in it before."""

import collections
import sys

import pytest


@pytest.fixture(autouse=True)
def nothing_was_compiled(monkeypatch):
    if (compiler := sys.modules.get("torch._dynamo.utils")) is not None:
        monkeypatch.setitem(compiler.counters, "frames", collections.Counter())
