"""The table of code that was read: ``tests/pages/upstream_sources.toml``."""

import ast
import hashlib
import tomllib

from docs._ext.source.lookup import locate
from tests.support import ROOT

FILE = ROOT / "tests" / "pages" / "upstream_sources.toml"
HEX_DIGITS = 12
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def sources():
    """What was concluded, by claim or page, of each symbol, with the ``digest`` of its code."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def conclusions(entry):
    """``{claim or page: conclusion}`` of a symbol."""
    return {place: said for place, said in entry.items() if place != "digest"}


def read_claims():
    """The claims that rest on the table."""
    places = {place for entry in sources().values() for place in conclusions(entry)}
    return {place for place in places if not place.endswith(".rst")}


def digest(symbol):
    """Of the code of an installed symbol; comments, docstrings and layout do not count."""
    code = locate(symbol).text
    # Not dedented: a comment or a string may begin further to the left than the code.
    tree = ast.parse(f"if True:\n{code}" if code.startswith(" ") else code)
    text = repr(_shape(tree))
    return hashlib.sha256(text.encode()).hexdigest()[:HEX_DIGITS]


def _shape(node):
    """A syntax tree as nested tuples that are the same in every Python."""
    if isinstance(node, list):
        return tuple(_shape(item) for item in node)
    if not isinstance(node, ast.AST):
        return node
    if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
        node.body.pop(0)
    fields = ((name, _shape(value)) for name, value in ast.iter_fields(node) if name != "kind")
    return type(node).__name__, *(
        (name, value) for name, value in fields if value not in (None, ())
    )


def callers(method):
    """``(file, class.function)`` of each function of torchrl that calls a *method* of that name."""
    package = locate("torchrl").file.parent
    files = {file: file.read_text(encoding="utf-8") for file in package.rglob("*.py")}
    return {
        (file.name, function)
        for file, text in files.items()
        if f".{method}(" in text
        for function, node in _functions(ast.parse(text))
        if any(
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == method
            for call in ast.walk(node)
        )
    }


def _functions(node, inside=""):
    """The functions of modules and classes, with the names of the classes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{inside}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{inside}{child.name}", child
        else:
            yield from _functions(child, inside)
