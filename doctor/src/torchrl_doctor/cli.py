"""The command line."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path, PurePath

from torchrl_doctor import checks  # registers them  # noqa: F401
from torchrl_doctor.about import SITE, __version__
from torchrl_doctor.choice import checks_of_others, chosen_checks, unknown_name
from torchrl_doctor.diagnosis import diagnose
from torchrl_doctor.examination import ARGUMENTS
from torchrl_doctor.machine import print_environment
from torchrl_doctor.objects import in_words
from torchrl_doctor.own_plan import plan
from torchrl_doctor.progress import shown_progress
from torchrl_doctor.verdicts import CHECKS, FAILED


class UsageError(Exception):
    """The command cannot be run as it was given; the message names the cure."""


def line_in(path, error):
    """The line of the file *path* that an exception comes from, the innermost one."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [one.lineno for one in frames if one.filename == str(path)]
    return lines[-1] if lines else getattr(error, "lineno", None) or 1


def load(target):
    """The function that *target* names, ``file.py:function`` or ``package.module:function``."""
    place, colon, name = target.rpartition(":")
    if not colon or not name.isidentifier():
        raise UsageError(f"{target!r}: write it as pipeline.py:make or package.module:make")
    is_file = place.endswith(".py")
    if is_file:
        path = Path(place).resolve()
        if not path.is_file():
            raise UsageError(f"{path}: no such file")
    else:
        # `python -m` finds what is in the current folder, and a script that is installed does not.
        sys.path.insert(0, str(Path.cwd()))
        path = file_of_module(place)
    try:
        module = import_file(path) if is_file else importlib.import_module(place)
    except (Exception, SystemExit) as error:
        where = f"{path}:{line_in(path, error)}" if path else place
        cure = "the file has to be importable; what trains belongs below its main guard"
        raise UsageError(f"{where}: importing it raises {in_words(error)}; {cure}") from error
    make = getattr(module, name, None)
    if not callable(make):
        functions = [one for one in vars(module).values() if inspect.isfunction(one)]
        known = [one.__name__ for one in functions if one.__module__ == module.__name__]
        said = f"{path or place}:1: {unknown_name(name, known, 'function')}"
        raise UsageError(f"{said}; it defines {', '.join(known) or 'none'}")
    return make


def file_of_module(name):
    """The file of a module; None if it has none. A UsageError where there is no such module."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        place = f"{name}: no such module, seen from {Path.cwd()}"
        raise UsageError(f"{place}; for a file write {name.replace('.', '/')}.py")
    return Path(spec.origin) if spec.origin else None


def import_file(path):
    """The module that a file is; in a package it has the name of one, and imports relatively."""
    folder, names = path.parent, [path.stem]
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    # Its workers import it by name, and it imports its neighbors.
    sys.path.insert(0, str(folder))
    if len(names) > 1:
        return importlib.import_module(".".join(names[: -1 if path.stem == "__init__" else None]))
    name = path.stem if path.stem not in sys.modules else f"{path.stem}__examined"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def made_by(make):
    """The arguments of `diagnose` that *make* returns; the exception where it raises."""
    code = inspect.unwrap(make).__code__ if inspect.isfunction(inspect.unwrap(make)) else None
    path, line = (code.co_filename, code.co_firstlineno) if code else (make, 1)
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        cure = "the doctor calls it without arguments; give them defaults"
        raise UsageError(f"{path}:{line}: {error}; {cure}") from error
    try:
        made = make()
    except (Exception, SystemExit) as error:
        place = f"{PurePath(str(path)).name}:{line_in(path, error)}"
        print(f"torchrl-doctor: {place}: it raises {in_words(error)}", file=sys.stderr)
        return {"error": error}
    if not isinstance(made, dict):
        made = {"collector": made}
    for name in made:
        if name not in ARGUMENTS:
            said = unknown_name(name, ARGUMENTS, "argument of diagnose")
            raise UsageError(f"{path}:{line}: {said}; use {', '.join(ARGUMENTS)}")
    if all(value is None for value in made.values()):
        raise UsageError(f"{path}:{line}: it returns nothing; return a dictionary or a collector")
    return made


def put_away(made):
    """End what *make* has started: it was made for this examination alone."""
    for name, method in {"collector": "shutdown", "env": "close", "eval_env": "close"}.items():
        value = made.get(name)
        if getattr(value, "closed", False) or getattr(value, "is_closed", False):
            continue
        if hasattr(value, method):
            try:
                getattr(value, method)()
            except Exception as error:
                print(f"torchrl-doctor: {name}.{method}(): {in_words(error)}", file=sys.stderr)


PROMISE = "Which known symptoms does a TorchRL pipeline show?"
LIMITS = ("frames", "seconds", "site", "only", "ignore")


OTHER = """\
torchrl-doctor env [--json | --markdown] prints versions, limits and GPUs, for an issue.
torchrl-doctor plan pipeline.py:make prints how much memory the collector and the buffer need."""


STATUSES = {
    0: "nothing applies",
    1: "a symptom applies",
    2: "the command, or an argument that make returned, is not what it should be",
    3: "make raised, left or returned an error, and no symptom explains it",
    4: "a check failed, which is a fault of the doctor",
}


def parser():
    """The parser of the command line."""
    statuses = "\n".join(f"  {n}  {text}" for n, text in STATUSES.items())
    made = argparse.ArgumentParser(
        prog="torchrl-doctor",
        description=PROMISE,
        epilog=f"{OTHER}\n\nexit status:\n{statuses}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    target = "a function in a file, or package.module:make; it returns arguments of diagnose"
    made.add_argument("target", nargs="?", metavar="pipeline.py:make", help=target)
    form = made.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print a JSON document")
    form.add_argument("--markdown", action="store_true", help="print Markdown, for an issue")
    made.add_argument("--all", action="store_true", help="list also what is clear")
    named = {"action": "append", "default": [], "metavar": "CHECK"}
    made.add_argument("--only", help="run this check and no other; may be repeated", **named)
    made.add_argument("--ignore", help="leave this check out; may be repeated", **named)
    made.add_argument("--list", action="store_true", help="list the checks by name, and end")
    made.add_argument("--site", default=SITE, help="address of the manual, put before each page")
    made.add_argument("--seconds", type=float, default=10.0, help="bound of the examination")
    made.add_argument("--frames", type=int, default=256, help="about how many to collect")
    made.add_argument("--version", action="version", version=f"torchrl-doctor {__version__}")
    return made


def print_checks():
    """A line for each check: its name, whether its symptom is silent, its title."""
    width = max(map(len, CHECKS))
    for one in CHECKS.values():
        print(f"{one.slug:{width}}  {one.row.effect if one.row else '':6}  {one.title}")


def print_plan(target):
    """The plan of what *target* names makes; the status of the command."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            made = made_by(load(target))
        error = made.get("error")
        if error is not None:
            return 3
        planned_for = {key: made.get(key) for key in ("collector", "replay_buffer", "batch")}
        try:
            print(plan(**planned_for))
        except ValueError as error:
            raise UsageError(str(error)) from error
        finally:
            put_away(made)
    except UsageError as error:
        print(f"torchrl-doctor: {error}", file=sys.stderr)
        return 2
    return 0


def main(arguments=None):
    """The command line; its status is one of STATUSES."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] == ["env"]:
        return print_environment(arguments[1:])
    if arguments[:1] == ["plan"] and len(arguments) == 2:
        return print_plan(arguments[1])
    options = parser().parse_args(arguments)
    for note in checks_of_others() if options.list else ():
        print(f"torchrl-doctor: {note}", file=sys.stderr)
    if options.list:
        print_checks()
        return 0
    try:
        if options.target is None:
            raise UsageError("which pipeline? Write torchrl-doctor pipeline.py:make")
        checks_of_others()
        try:
            chosen_checks(options.only, options.ignore)
        except ValueError as error:
            raise UsageError(f"{error}; torchrl-doctor --list has all") from error
        with contextlib.redirect_stdout(sys.stderr):  # what the pipeline prints
            made = made_by(load(options.target))
    except UsageError as error:
        print(f"torchrl-doctor: {error}", file=sys.stderr)
        return 2
    limits = {name: getattr(options, name) for name in LIMITS}
    with contextlib.redirect_stdout(sys.stderr):
        with shown_progress(sys.stderr):
            report = diagnose(**made, **limits)
        put_away(made)
    status = status_of(report, made)
    if options.json:
        error = made.get("error")
        said = None if error is None else {"type": type(error).__name__, "message": str(error)}
        print(report.to_json(error=said, status=status, meaning=STATUSES[status]))
    elif options.markdown:
        print(report.to_markdown(), end="")
    else:
        report.show(options.all)
    return status


def status_of(report, made):
    """The first of STATUSES that is true, the symptoms before all."""
    if report.applies:
        return 1
    if report.refused:
        return 2
    if made.get("error") is not None:
        return 3
    return 4 if report.of(FAILED) else 0
