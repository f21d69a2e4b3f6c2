"""A script of ``docs/runs`` as a module, for tests that look behind a table."""

import importlib.util
from pathlib import Path

RUNS = Path(__file__).parents[1] / "docs" / "runs"


def load_run(name):
    """Execute ``docs/runs/<name>.py`` without its main block, anew at each call."""
    spec = importlib.util.spec_from_file_location(name, RUNS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
