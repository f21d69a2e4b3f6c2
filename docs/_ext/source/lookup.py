"""Find the lines that define a symbol of an installed package, without importing it.

Purpose
    ``role`` links to these lines, ``api_pages`` checks its lists against them and ``knobs`` reads
    defaults from them.
    Reading the files with :mod:`ast` costs milliseconds where ``import torchrl`` costs seconds,
    and works where :mod:`inspect` does not: torchrl rewrites ``__module__`` of everything in
    ``torchrl.data.replay_buffers``.

Use
    ::

        locate("torchrl.collectors.Collector.rollout").first   # a line number
        find("torchrl.collectors.SyncDataCollector")           # None
        locate("torchrl.collectors.SyncDataCollector")         # SymbolNotFound, with suggestions

How it works
    It walks the dotted name from the package: through modules, their imports (also ``import *``
    and other names), class bodies, base classes, and last ``self.name = ...`` in the methods.
    What a program does at run time (``setattr``, module ``__getattr__``, C code) it cannot see.
"""

from __future__ import annotations

import ast
import difflib
import functools
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version


class SymbolNotFound(LookupError):
    """The installed packages hold no such symbol; the message names the nearest ones."""


@dataclass(frozen=True)
class Location:
    """Where a symbol is defined; the lines include its decorators."""

    package: str
    symbol: str
    name: str  # without the module, as in ``Collector.rollout``
    definition: str  # the dotted path at its source, which need not be the documented one
    kind: str  # "module", "class", "function" or "value"
    summary: str  # first paragraph of the docstring
    file: Path
    changed: int  # when the file was last written
    path: str  # relative to site-packages, which is relative to the repository too
    first: int
    last: int

    @property
    def text(self) -> str:
        return "\n".join(_text(self.file).splitlines()[self.first - 1 : self.last])


# -- Reading one file --------------------------------------------------------


class Import(NamedTuple):
    """``name`` in this module is ``attribute`` of ``module``, or the module itself."""

    module: str
    attribute: str | None


class Scope(NamedTuple):
    names: dict[str, ast.AST | Import]
    stars: list[str]


@functools.cache
def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


@functools.cache
def _module_scope(module: str, file: Path) -> Scope:
    scope = Scope({}, [])
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    _collect(ast.parse(_text(file)).body, package, scope, override=True)
    return scope


@functools.cache
def _class_scope(node: ast.ClassDef) -> Scope:
    scope = Scope({}, [])
    _collect(node.body, "", scope, override=True)
    return scope


def _collect(body: list[ast.stmt], package: str, scope: Scope, override: bool) -> None:
    """Bind the names of ``body``: a later statement wins, an ``else`` or ``except`` does not."""
    for statement in body:
        for name, bound in _bindings(statement, package, scope):
            if override or name not in scope.names:
                scope.names[name] = bound
        if isinstance(statement, ast.If | ast.Try | ast.With):
            _collect(statement.body, package, scope, override)
            for branch in (
                getattr(statement, "orelse", []),
                *(handler.body for handler in getattr(statement, "handlers", [])),
                getattr(statement, "finalbody", []),
            ):
                _collect(branch, package, scope, override=False)


def _bindings(statement: ast.stmt, package: str, scope: Scope):
    match statement:
        case ast.ClassDef(name=name):
            yield name, statement
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            # x.setter and x.deleter reuse the name of the getter
            if not any(
                isinstance(decorator, ast.Attribute) and decorator.attr in ("setter", "deleter")
                for decorator in statement.decorator_list
            ):
                yield name, statement
        case ast.Assign(targets=targets):
            for target in targets:
                for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                    # ``Name = Name`` defines nothing (torchrl has one for MultiCollector)
                    if isinstance(part, ast.Name) and not (
                        isinstance(statement.value, ast.Name) and statement.value.id == part.id
                    ):
                        yield part.id, statement
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name, statement
        case ast.Import(names=aliases):
            for alias in aliases:
                name = alias.asname or alias.name.partition(".")[0]
                yield name, Import(alias.name if alias.asname else name, None)
        case ast.ImportFrom(module=source, names=aliases, level=level):
            if level:
                parent = package.split(".")[: len(package.split(".")) - level + 1]
                source = ".".join([*parent, source] if source else parent)
            for alias in aliases:
                if alias.name == "*":
                    scope.stars.append(source)
                else:
                    yield alias.asname or alias.name, Import(source, alias.name)


# -- From a dotted name to a node --------------------------------------------


class Found(NamedTuple):
    module: str
    file: Path
    node: ast.AST | None  # None: the module itself


@functools.cache
def _root(package: str) -> Path | None:
    """The folder of a top-level package; find_spec does not import it."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


@functools.cache
def _module_file(module: str) -> Path | None:
    top, *rest = module.split(".")
    root = _root(top)
    if root is None:
        return None
    base = root.joinpath(*rest)
    candidates = [base / "__init__.py", *([base.with_suffix(".py")] if rest else [])]
    return next((file for file in candidates if file.is_file()), None)


def _in_module(module: str, name: str, seen: frozenset = frozenset()) -> Found | None:
    file = _module_file(module)
    if file is None or (module, name) in seen:
        return None
    seen |= {(module, name)}
    scope = _module_scope(module, file)
    match scope.names.get(name):
        case Import(source, None):
            return _module(source)
        case Import(source, attribute):
            return _in_module(source, attribute, seen) or _module(f"{source}.{attribute}")
        case ast.Assign(value=ast.Name(id=other)) as alias:
            return _in_module(module, other, seen) or Found(module, file, alias)
        case ast.AST() as node:
            return Found(module, file, node)
    for source in scope.stars:
        if found := _in_module(source, name, seen):
            return found
    return _module(f"{module}.{name}")


def _module(module: str) -> Found | None:
    file = _module_file(module)
    return file and Found(module, file, None)


def _in_class(owner: Found, name: str, seen: frozenset = frozenset()) -> Found | None:
    """Look in the class body, then in its bases, then for ``self.name = ...`` in its methods."""
    if not isinstance(owner.node, ast.ClassDef) or owner in seen:
        return None
    node = _class_scope(owner.node).names.get(name)
    if isinstance(node, ast.AST):
        return owner._replace(node=node)
    for base in owner.node.bases:
        parent = _expression(owner.module, base)
        if parent and (found := _in_class(parent, name, seen | {owner})):
            return found
    for statement in ast.walk(owner.node):
        match statement:
            case ast.Assign(targets=targets):
                pass
            case ast.AnnAssign(target=target):
                targets = [target]
            case _:
                continue
        for target in targets:
            match target:
                case ast.Attribute(value=ast.Name(id="self"), attr=attribute) if attribute == name:
                    return owner._replace(node=statement)
    return None


def _expression(module: str, node: ast.expr) -> Found | None:
    """The definition that a base class expression such as ``nn.Module`` refers to."""
    match node:
        case ast.Name(id=name):
            return _in_module(module, name)
        case ast.Attribute(value=value, attr=name):
            owner = _expression(module, value)
            return owner and _member(owner, name)
        case ast.Subscript(value=value):
            return _expression(module, value)
    return None


def _member(owner: Found, name: str) -> Found | None:
    return _in_module(owner.module, name) if owner.node is None else _in_class(owner, name)


@functools.cache
def _search(symbol: str) -> tuple[Found, int] | None:
    """The definition, and how many parts of the name are modules."""
    package, *rest = symbol.split(".")
    found = _module(package) if is_installed(package) else None
    depth = 1
    for name in rest:
        found = found and _member(found, name)
        depth += found is not None and found.node is None
    return found and (found, depth)


# Symbol to location. An extension may put a dict here that survives the process.
known: dict[str, Location | None] = {}


def find(symbol: str) -> Location | None:
    """The lines that define ``symbol``, or None."""
    location = known.get(symbol)
    if symbol not in known or (location and location.file.stat().st_mtime_ns != location.changed):
        location = known[symbol] = _find(symbol)
    return location


def _find(symbol: str) -> Location | None:
    if (result := _search(symbol)) is None:
        return None
    found, depth = result
    node = found.node or ast.parse(_text(found.file))
    match node:
        case ast.Module():
            kind, first, last = "module", 1, len(_text(found.file).splitlines())
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            last = node.end_lineno
        case _:
            kind, first, last = "value", node.lineno, node.end_lineno
    docstring = "" if kind == "value" else ast.get_docstring(node) or ""
    owner = found.module.partition(".")[0]
    name = ".".join(symbol.split(".")[depth:]) or symbol
    own_name = getattr(node, "name", name.rpartition(".")[2])
    return Location(
        package=owner,
        symbol=symbol,
        name=name,
        definition=".".join([found.module, *name.split(".")[:-1], own_name])
        if kind != "module"
        else found.module,
        kind=kind,
        summary=" ".join(docstring.split("\n\n")[0].split()),
        file=found.file,
        changed=found.file.stat().st_mtime_ns,
        path=found.file.relative_to(_root(owner).parent).as_posix(),
        first=first,
        last=last,
    )


def locate(symbol: str) -> Location:
    """Like :func:`find`, but raise :class:`SymbolNotFound` with the nearest names."""
    location = find(symbol)
    if location is None:
        raise SymbolNotFound(_explain(symbol))
    return location


# -- What to say when it is gone ---------------------------------------------


def _explain(symbol: str) -> str:
    package, *rest = symbol.split(".")
    if find(package) is None:
        return f"{symbol}: no package {package!r} is installed"
    known, missing = package, rest[0]
    while find(f"{known}.{missing}"):
        known = f"{known}.{missing}"
        missing = symbol[len(known) + 1 :].partition(".")[0]
    near = difflib.get_close_matches(missing, sorted(_names(known)), n=2, cutoff=0.6)
    hints = [f"{known}.{name}" for name in near]
    hints += [place for place in _definitions(package, missing) if place not in hints][:2]
    hint = f"; did you mean {' or '.join(hints)}?" if hints else ""
    return f"{known} has no {missing!r} in {package} {version(package)}{hint}"


def _names(symbol: str) -> set[str]:
    """The names that a module or class defines or imports."""
    result = _search(symbol)
    if result is None:
        return set()
    found, _ = result
    if found.node is None:
        scope = _module_scope(found.module, found.file)
        return set(scope.names).union(*map(_names, scope.stars))
    if not isinstance(found.node, ast.ClassDef):
        return set()
    bases = [ast.unparse(base) for base in found.node.bases]
    parents = (_names(f"{found.module}.{base}") for base in bases)
    return set(_class_scope(found.node).names).union(*parents)


def _definitions(package: str, name: str) -> list[str]:
    """Where else the package defines a class or function of that name: it may have moved."""
    pattern = re.compile(rf"^(?:class|def|async def) {re.escape(name)}\b", re.MULTILINE)
    root = _root(package)
    return [
        ".".join([package, *file.relative_to(root).with_suffix("").parts, name])
        for file in sorted(root.rglob("*.py"))
        if pattern.search(file.read_text(encoding="utf-8", errors="replace"))
    ]


# -- Versions -----------------------------------------------------------------


def is_installed(package: str) -> bool:
    try:
        installed_version(package)
    except PackageNotFoundError:
        return False
    return True


@functools.cache
def version(package: str) -> str:
    """The installed version without a local suffix such as ``+cpu``."""
    return Version(installed_version(package)).public
