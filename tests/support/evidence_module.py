"""A script of ``docs/runs`` as a module, for tests that look behind a table."""

import importlib.util
import os
from unittest import mock

from tests.support import ROOT

RUNS = ROOT / "docs" / "runs"


def load_run(name):
    """Execute ``docs/runs/<name>.py`` without its main block, anew at each call.

    What it sets in the environment for itself and its children does not stay.
    """
    spec = importlib.util.spec_from_file_location(name, RUNS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(os.environ):
        spec.loader.exec_module(module)
    return module
