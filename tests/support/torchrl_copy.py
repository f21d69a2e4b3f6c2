"""A copy of the installed torchrl, for tests that change it."""

import importlib.util
import shutil
from pathlib import Path


def copy_of_torchrl(folder):
    """The copy, in *folder*, which goes into PYTHONPATH.

    Its compiled files come along: an edited source is compiled anew, the others need not be.
    """
    installed = Path(importlib.util.find_spec("torchrl").origin).parent
    return Path(shutil.copytree(installed, folder / "torchrl"))


def edit(copy, file, before, after, what=""):
    """Replace text in one file of the copy; *what* the change is goes into the message."""
    source = (copy / file).read_text(encoding="utf-8")
    assert before in source, f"{what or file}: torchrl has other words"
    (copy / file).write_text(source.replace(before, after), encoding="utf-8")
