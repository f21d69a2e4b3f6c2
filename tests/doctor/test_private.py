"""What the doctor uses of TorchRL's private attributes stands in one table, and exists."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest
import torchrl_doctor
from torchrl_doctor.private import PRIVATE, private

PACKAGE = Path(torchrl_doctor.__file__).parent
OF_TORCH = {
    "_buffers",
    "_compiled_call_impl",
    "_dynamo",
    "_modules",
    "_parameters",
    "_pytree",
    "_version",
}
OF_TORCH |= {"_BatchNorm", "_DropoutNd", "_replace", "_compiled_call_impl"}
KEYS = {"_reset"}  # that TorchRL documents, of tensordicts
# Ends of names: the attributes of e-greedy modules, and of the parameters of a loss.
ENDS = {"_end", "_init", "_params"}


def private_names(path):
    """The names with one underscore in front that a module writes, with their lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        name = getattr(node, "attr", None) or getattr(node, "value", None)
        if isinstance(name, str) and name.isidentifier() and name[0] == "_" != name[1:2]:
            yield name, node.lineno


def test_each_private_attribute_says_what_it_is_for():
    unlisted = [
        f"{path.relative_to(PACKAGE)}:{line}: {name} is not in private.py"
        for path in sorted(PACKAGE.rglob("*.py"))
        for name, line in private_names(path)
        if name not in PRIVATE.keys() | OF_TORCH | KEYS | ENDS and len(name) > 1
    ]
    assert unlisted == []


def test_checks_read_them_by_that_table():
    """Copies set them."""
    read = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: write private(..., {node.attr!r})"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE and path.name != "copies.py"
    ]
    assert read == []


def named_in(kind):
    """The names of a class and its bases, and those that their methods use."""
    for base in inspect.getmro(kind):
        for name, value in vars(base).items():
            yield name
            function = inspect.unwrap(getattr(value, "fget", None) or value)
            if code := getattr(function, "__code__", None):
                yield from (*code.co_names, *code.co_consts)


@pytest.mark.parametrize("name", PRIVATE)
def test_the_installed_release_has_it(name):
    module, _, kind = PRIVATE[name][0].rpartition(".")
    kind = getattr(importlib.import_module(module), kind)
    assert name in set(named_in(kind)), f"{kind} has no {name} any more"


def test_a_name_outside_the_table_is_refused():
    with pytest.raises(LookupError, match=r"'_unknown' is not in torchrl_doctor/private\.py"):
        private(object(), "_unknown", None)
