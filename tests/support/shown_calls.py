"""Calls in Python that a page shows and does not run, against the installed signatures."""

import ast
import importlib
import inspect
import textwrap

from tests.support import ROOT
from tools.rst_blocks import python_blocks


def bound_calls(page, library="torchrl"):
    """Names of the calls of *page*, ``Class`` or ``Class.method``, each bound to its signature.

    Looked at are classes that a ``not-executed`` block imports from *library*, and methods of the
    variables that it makes with them. A keyword has to be a parameter of that class or of one that
    it inherits from, since ``**kwargs`` alone takes any. TypeError: an argument does not fit.
    """
    found = []
    for block in python_blocks(ROOT / page):
        if block.directive != "not-executed":
            continue
        known, made = {}, {}
        for node in ast.walk(ast.parse(textwrap.dedent(block.code))):
            if isinstance(node, ast.ImportFrom) and node.module.startswith(library):
                module = importlib.import_module(node.module)
                known |= {alias.name: getattr(module, alias.name) for alias in node.names}
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                made[node.targets[0].id] = ast.unparse(node.value.func)
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                owner, _, method = name.rpartition(".")
                if name in known:
                    found.append(name)
                    _bind(node, known[name].__init__, name, inspect.getmro(known[name]))
                elif made.get(owner) in known:
                    found.append(f"{made[owner]}.{method}")
                    _bind(node, getattr(known[made[owner]], method), found[-1])
    return found


def _bind(call, function, name, classes=()):
    keywords = {keyword.arg: None for keyword in call.keywords}
    signature = inspect.signature(function)
    signature.bind(None, *call.args, **keywords)
    places = [signature, *(inspect.signature(one.__init__) for one in classes)]
    parameters = set().union(*(place.parameters for place in places))
    if strangers := keywords.keys() - parameters:
        raise TypeError(f"{name} has no argument {', '.join(sorted(strangers))}")
