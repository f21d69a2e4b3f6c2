"""The package as one file, to copy beside one's scripts: ``python doctor/single_file.py TARGET``.

The modules follow one another in the order in which they import each other. Their names are those
of one module then, so no two modules may define the same one.
"""

import ast
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent / "src" / "torchrl_doctor"
NAME = PACKAGE.name
FUTURE = "from __future__ import annotations"
# What needs the standard library alone is first: it works where torch does not load.
FIRST = "machine.py"
START_FIRST = """
if __name__ == "__main__" and sys.argv[1:2] == ["env"]:
    sys.exit(print_environment(sys.argv[2:]))
"""
START = """

if __name__ == "__main__":
    # The checks and the one that a pipeline imports have to be the same module.
    sys.modules["torchrl_doctor"] = sys.modules["__main__"]
    sys.exit(main())
"""


def is_own(node):
    """Whether a statement imports from the package."""
    return isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == NAME


def imported_by(path):
    """The files of the package that the module *path* imports, in its order.

    Of `HOMES` as well, by which the package imports a module when somebody asks for its names.
    """
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "HOMES":
            yield from (PACKAGE / f"{name}.py" for name in ast.literal_eval(node.value))
    for node in filter(is_own, body):
        folder = PACKAGE.joinpath(*node.module.split(".")[1:])
        if folder.is_dir():
            yield from (folder / f"{one.name}.py" for one in node.names)
        else:
            yield folder.with_suffix(".py")


def in_order(path, done):
    """Add to the list *done* what *path* imports of the package, and then *path*."""
    for one in imported_by(path):
        one = one if one.is_file() else one.with_suffix("") / "__init__.py"
        if one not in done:
            in_order(one, done)
    if path not in done:
        done.append(path)


def parts_of(path):
    """The imports of a module from elsewhere, a line for each, and the text of what it defines."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    imports, rest = [], 0
    for node in ast.parse(text).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            if not is_own(node):
                start = f"from {node.module} " if isinstance(node, ast.ImportFrom) else ""
                imports += [f"{start}import {ast.unparse(one)}" for one in node.names]
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            break
        rest = node.end_lineno
    return imports, "\n".join(lines[rest:]).strip("\n")


def names_of(text):
    """What a text defines at its top."""
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Assign):
            targets = [one for target in node.targets for one in ast.walk(target)]
            yield from (one.id for one in targets if isinstance(one, ast.Name))


def single_file():
    """The text of the file; ValueError where two modules define one name."""
    modules, first = [], []
    in_order(PACKAGE / FIRST, first)
    for last in (FIRST, "__init__.py", "cli.py"):
        in_order(PACKAGE / last, modules)
    imports, texts, defined = set(), [], {}
    for path in modules:
        if path.name == "__init__.py":
            continue
        own_imports, text = parts_of(path)
        imports.update(own_imports)
        for name in names_of(text):
            if name in defined:
                raise ValueError(f"{path} and {defined[name]} both define {name!r}: rename one")
            defined[name] = path
        concern = path.relative_to(PACKAGE).with_suffix("").as_posix()
        texts.append(f"# -- {concern} {'-' * (74 - len(concern))}\n\n{text}")
    package = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
    imports.discard(FUTURE)
    of_python = {one for one in imports if one.split()[1].split(".")[0] in sys.stdlib_module_names}
    head = [f'"""{ast.get_docstring(ast.parse(package))}\n"""', FUTURE, in_lines(of_python)]
    early, late = texts[: len(first)], texts[len(first) :]
    parts = [*early, START_FIRST.strip(), in_lines(imports - of_python), *late]
    return "\n\n".join(head) + "\n\n\n" + "\n\n\n".join(parts) + "\n" + START


def in_lines(imports):
    """Import statements, those of whole modules first."""
    return "\n".join(sorted(imports, key=lambda one: (one.startswith("from"), one)))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(single_file(), encoding="utf-8")
