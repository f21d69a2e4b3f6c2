"""A script of ``docs/evidence`` as a module, for tests that look behind a table."""

import importlib.util
import os
from unittest import mock

from tests.support import ROOT

SCRIPTS = ROOT / "docs" / "evidence"


def load_evidence(name):
    """Execute ``docs/evidence/<name>.py``, a page and a script, without its main block, anew.

    What it sets in the environment for itself and its children does not stay.
    """
    spec = importlib.util.spec_from_file_location(name.replace("/", "_"), SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(os.environ):
        spec.loader.exec_module(module)
    return module
