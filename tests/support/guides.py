"""What a how-to guide defines, for tests that go on from there."""

import contextlib
import multiprocessing
import types
import warnings

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
