"""The stack that tutorials run on, and the stamp that names it."""

import sys
import types

import pytest
from sphinx.errors import ExtensionError

from docs._ext.gallery import stack


def test_stack_of_this_environment_loads():
    """The build of torch fits torchrl's extension."""
    stack.check_stack("torchrl._torchrl")


def test_stack_that_crashes_on_import(monkeypatch, tmp_path):
    """An extension for another torch may end the interpreter instead of raising."""
    (tmp_path / "crashing.py").write_text("import os\nos.abort()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ExtensionError, match=r"exit status -6.*uv pip install --reinstall"):
        stack.check_stack("crashing")


@pytest.mark.parametrize(("available", "device"), [(False, "cpu"), (True, "NVIDIA H200")])
def test_device_of_a_stamp(monkeypatch, available, device):
    torch = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(
        is_available=lambda: available, get_device_name=lambda: "NVIDIA H200"
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert stack.device_in_use() == device


def test_closure_names_what_the_stack_requires():
    closure = stack.installed_closure(["torchrl", "matplotlib", "not-installed"])
    assert {"torchrl", "torch", "tensordict", "numpy", "matplotlib", "pillow"} <= set(closure)
    assert "pytest" not in closure
