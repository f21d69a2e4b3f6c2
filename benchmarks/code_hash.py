"""One hash for each benchmark of a suite: of its function and of all code that it can reach.

The unit is a statement at the top level of a module of this folder. A benchmark reaches the
statements that bind what its function mentions, those that bind what these mention, and so on over
all modules. Mentioned is a name, an argument (pytest may hand it a fixture), a word of a string
(``getattr``, ``usefixtures``, the code of a child process) and an attribute of a module of this
folder. When in doubt more is reached:

* What may act when a module is imported or run by pytest belongs to every benchmark: all that is no
  definition, import or assignment to names; definitions that a decorator may register; fixtures
  that no argument need ask for; the names of the packages that are imported.
* An assignment that calls something belongs to every variable that the call mentions.
* A module that is used other than by its attributes is reached whole.

Comments, docstrings and layout do not count. ``METRICS`` counts where it is used, and then without
its titles and descriptions. ``HARNESS`` does not count: a change there that alters what is measured
takes a new ``FORMAT`` of the records.
"""

import ast
import copy
import hashlib
import re
from functools import lru_cache
from typing import NamedTuple

HARNESS = {"__init__", "__main__", "checkpoint", "code_hash", "comparison", "conftest", "record"}
HARNESS |= {"metrics", "timing"}
PREFIX = "bench_"
UNITS = ("B", "s", "%", "1")
# Packages whose decorators tell nobody of what they decorate.
QUIET = {"contextlib", "dataclasses", "functools", "pytest"}
SPECIAL = re.compile(r"pytest|setup_|teardown_|_$")  # what pytest looks for, or nobody
EFFECTS, WHOLE = "(effects)", "(whole)"  # in place of a name
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)
ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)


class Statement(NamedTuple):
    """What it says, and the ``(module, name)`` that it mentions."""

    text: str
    mentions: frozenset


class Suite:
    """The module *name* and all that it imports of *paths*, the modules of the folder.

    *renamed* maps names of the code to others, under which it is judged.
    """

    def __init__(self, name, paths, renamed=()):
        renamed = tuple(sorted(dict(renamed).items()))
        stems = ((dict(renamed).get(path.stem, path.stem), path) for path in paths)
        known = {stem: path for stem, path in stems if path.stem not in HARNESS}
        self.name, self.modules, queue = name, {}, {name} & known.keys()
        while queue:
            stem = queue.pop()
            self.modules[stem] = _module(stem, known[stem].read_text("utf-8"), renamed)
            queue |= (self.modules[stem].siblings & known.keys()) - self.modules.keys()
        self.paths = sorted(known[stem] for stem in self.modules)

    def hashes(self):
        """The name of each benchmark function -> its hash."""
        statements = self._statements()
        names = self.modules[self.name].definitions if self.modules else ()
        return {name: self._hash(statements, name) for name in names if name.startswith(PREFIX)}

    def _hash(self, statements, function):
        reached, queue = set(), {(self.name, function), *((one, EFFECTS) for one in self.modules)}
        texts = set()
        while queue:
            place = queue.pop()
            reached.add(place)
            for statement in statements.get(place, ()):
                texts.add(f"{place[0]}: {statement.text}")
                queue |= statement.mentions - reached
        return hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()

    def _statements(self):
        """``(module, name)`` -> what is said of it."""
        found = {}
        for stem, module in self.modules.items():
            others = {one for name in module.imports for one in self._origins(module, name)}
            said = Statement(f"imports {sorted(others)}", frozenset(others))
            found.setdefault((stem, WHOLE), set()).add(said)
            if module.packages:
                said = Statement(f"packages {sorted(module.packages)}", frozenset())
                found.setdefault((stem, EFFECTS), set()).add(said)
            for node in map(without_texts, module.nodes):
                said, mentions = canonical(node), self._mentions(module, node)
                imported = sorted(
                    f"{name} = {sorted(self._origins(module, name) or module.imports[name])}"
                    for owner, name in mentions
                    if owner == stem and name in module.imports
                )
                statement = Statement(f"{said} {imported}", frozenset(mentions))
                places = {(stem, WHOLE), *((stem, name) for name in bound(node))}
                places |= {(stem, EFFECTS)} if module.acts(node) else set()
                if isinstance(node, ASSIGNMENTS) and "METRICS" not in bound(node):
                    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
                    places |= {
                        (owner, name)
                        for call in calls
                        for owner, name in self._mentions(module, call)
                        if name not in self.modules[owner].definitions
                    }
                for place in places:
                    found.setdefault(place, set()).add(statement)
        return found

    def _mentions(self, module, tree):
        found, bases = set(), set()
        for node in ast.walk(tree):  # which comes to an attribute before its base
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                for origin in module.imports.get(node.value.id, ()):
                    if targets := self._targets(f"{origin}.{node.attr}"):
                        found |= {*targets, (module.name, node.value.id)}
                        bases.add(node.value)
            elif isinstance(node, (ast.Name, ast.arg)):
                name = node.id if isinstance(node, ast.Name) else node.arg
                found.add((module.name, name))
                found |= set() if node in bases else self._origins(module, name)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                words = set(re.findall(r"\w+", node.value))
                found |= {(module.name, name) for name in words & module.names}
                if "benchmarks" in words:
                    named = words & self.modules.keys() or {module.name}
                    found |= {(name, WHOLE) for name in named}
        return found

    def _origins(self, module, name):
        """What of ours the imported *name* of *module* stands for, as ``(module, name)``."""
        return {one for origin in module.imports.get(name, ()) for one in self._targets(origin)}

    def _targets(self, origin):
        """The same for the dotted *origin* of a name."""
        package, *parts = origin.split(".")
        if package != "benchmarks":
            return set()
        if parts[-2:-1] and parts[-2] in self.modules:
            owner, name = self.modules[parts[-2]], parts[-1]
            if name in owner.imports:
                return self._origins(owner, name)
            return {(owner.name, name if name in owner.names else WHOLE)}
        return {(parts[-1], WHOLE)} if parts[-1:] and parts[-1] in self.modules else set()


class Module:
    """One file: its statements, and where the names come from that it imports."""

    def __init__(self, name, text, renamed):
        self.name = name
        tree = rename(without_docstrings(ast.parse(text)), renamed)
        self.nodes = [node for node in tree.body if not isinstance(node, IMPORTS)]
        self.names = {name for node in self.nodes for name in bound(node)}
        self.definitions = {node.name for node in self.nodes if isinstance(node, DEFINITIONS)}
        self.imports, self.packages, self.siblings = {}, set(), set()
        for node in ast.walk(tree):
            if isinstance(node, IMPORTS):
                self._note(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                words = set(re.findall(r"\w+", node.value))
                self.siblings |= words if "benchmarks" in words else set()

    def _note(self, node):
        for alias in node.names:
            origin, local = alias.name, alias.asname or alias.name.partition(".")[0]
            if isinstance(node, ast.ImportFrom):
                package = "benchmarks." * bool(node.level) + (node.module or "")
                origin, local = f"{package.rstrip('.')}.{origin}", alias.asname or alias.name
            self.imports.setdefault(local, set()).add(origin)
            parts = origin.split(".")
            if parts[0] == "benchmarks":
                self.siblings |= set(parts[-2:])
            else:
                self.packages.add(origin.rpartition(".")[0] or origin)

    def acts(self, node):
        """Whether *node* may act on others when the module is imported or run by pytest."""
        if isinstance(node, ASSIGNMENTS):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            parts = [part for target in targets for part in ast.walk(target)]
            plain = all(isinstance(part, (ast.Name, ast.Tuple, ast.Store)) for part in parts)
            return not plain or any(map(SPECIAL.match, bound(node)))
        if isinstance(node, DEFINITIONS):
            if node.name.startswith(PREFIX):
                return False
            return bool(SPECIAL.match(node.name)) or any(map(self._registers, node.decorator_list))
        return True

    def _registers(self, decorator):
        written = ast.unparse(decorator)
        origins = self.imports.get(re.match(r"\w*", written)[0], {""})
        if not QUIET.issuperset(origin.partition(".")[0] for origin in origins):
            return True
        return bool(re.match(r"(pytest\.)?fixture\((?!scope='\w+'\)$)", written))


@lru_cache
def _module(name, text, renamed):
    return Module(name, text, dict(renamed))


def bound(node):
    """The names that a statement at the top level binds."""
    if isinstance(node, DEFINITIONS):
        return {node.name}
    stored = (one for one in ast.walk(node) if isinstance(one, ast.Name))
    return {one.id for one in stored if isinstance(one.ctx, ast.Store)}


def without_docstrings(tree):
    """*tree*, where no statement is a mere string."""
    for node in ast.walk(tree):
        if isinstance(getattr(node, "body", None), list):
            node.body = [
                one
                for one in node.body
                if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
            ]
    return tree


def rename(tree, names):
    """*tree* with other names, also in a string that is code which imports from here."""
    for node in ast.walk(tree) if names else ():
        for field, value in ast.iter_fields(node):
            words = set(re.findall(r"\w+", value)) if isinstance(value, str) else ()
            if isinstance(node, ast.Constant) and "benchmarks" not in words:
                continue
            if taken := set(words) & set(names.values()):
                raise ValueError(f"{taken.pop()} is a name in the code already")
            if words:
                renamed = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), value)
                setattr(node, field, renamed)
    return tree


def without_texts(node):
    """``METRICS`` with names, units and exactness alone; any other statement as it is."""
    if isinstance(node, DEFINITIONS) or "METRICS" not in bound(node):
        return node
    node = copy.deepcopy(node)
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and "\n" in one.value:
            one.value = " ".join(re.findall(r"^\S+ \[[^]]*\]", one.value, re.MULTILINE))
    return node


def canonical(node):
    """*node* as text, the same for every version of Python."""
    if isinstance(node, list):
        return f"[{', '.join(map(canonical, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [
        f"{name}={canonical(value)}"
        for name, value in ast.iter_fields(node)
        if value is not None and value != [] and name not in ("ctx", "kind", "type_comment")
    ]
    return f"{type(node).__name__}({', '.join(fields)})"
