"""The layout of the repository: what is easy to break and hard to see."""

import ast
import importlib
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from sphinx_gallery.py_source_parser import split_code_and_text_blocks

from docs._ext.site.html_fixes import FIXES
from docs._ext.support import galleries
from tests.support import ROOT
from tests.support.programs import run_python

EXTENSIONS = sorted((ROOT / "docs" / "_ext").glob("*/*.py"))
PACKAGES = sorted((ROOT / "docs" / "_ext").glob("*/__init__.py"))
PATCHES = tomllib.loads(
    (ROOT / "docs" / "reference" / "api" / "docstring_patches.toml").read_text(encoding="utf-8")
)["patch"]
LOCK = ROOT / "requirements-docs.txt"  # what the site is built and tested with
BENCH_LOCK = ROOT / "requirements-bench.txt"  # that, and what the benchmarks compare with
LOCKS = {LOCK: {"stack", "docs", "bench", "test"}, BENCH_LOCK: {"peers", "stack", "docs", "bench"}}
# torchrl 0.14.1 installs its own benchmarks/ beside itself (not reported); nothing imports that.
SHADOWED = {"benchmarks": ["torchrl"]}
PYTHONS = ("3.11", "3.12", "3.13")
LONGEST_FUNCTION = 10  # lines of a function in conf.py
MANUAL_LINES = 5  # of an extension; a helper module of one has less to say


def tracked_files():
    """Text files under version control."""
    run = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in run.stdout.split("\0"):
        path = ROOT / name
        if path.is_file():
            data = path.read_bytes()
            if b"\0" not in data:
                yield path, data.decode("utf-8")


# -- conf.py -----------------------------------------------------------------


@pytest.fixture
def conf(monkeypatch):
    """The namespace of conf.py."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    return runpy.run_path(str(ROOT / "conf.py"))


def not_plain(value, place):
    """Places below a setting that hold anything but text, numbers and containers of them."""
    if isinstance(value, dict):
        return [hit for key in value for hit in not_plain(value[key], f"{place}[{key!r}]")]
    if isinstance(value, list | tuple):
        return [hit for i, each in enumerate(value) for hit in not_plain(each, f"{place}[{i}]")]
    return [] if value is None or isinstance(value, str | int | float | bool) else [place]


def test_gallery_settings_are_plain_data(conf):
    """A function in there makes Sphinx rewrite every page on every build."""
    assert not_plain(conf["sphinx_gallery_conf"], "sphinx_gallery_conf") == []


def test_the_gallery_can_be_switched_off(conf):
    """With a bool in conf.py, Sphinx warns about the text in ``-D plot_gallery=0``."""
    assert "plot_gallery" not in conf["sphinx_gallery_conf"]


def test_a_function_is_not_plain_data():
    assert not_plain({"key": [1, ("a", len)]}, "conf") == ["conf['key'][1][1]"]


def test_conf_is_thin():
    tree = ast.parse((ROOT / "conf.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        assert not isinstance(node, ast.ClassDef | ast.Lambda), f"conf.py:{node.lineno}"
        if isinstance(node, ast.FunctionDef):
            length = node.end_lineno - node.lineno
            assert length <= LONGEST_FUNCTION, f"conf.py:{node.lineno}: move {node.name} to _ext"


def test_every_extension_is_switched_on(conf):
    ours = [name for name in conf["extensions"] if name.startswith("docs._ext.")]
    packages = {path.parent.name for path in PACKAGES if "\ndef setup(app" in path.read_text()}
    assert ours == [f"docs._ext.{name}" for name in sorted(packages)]


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: path.parent.name)
def test_a_package_switches_on_each_of_its_extensions(path):
    package = importlib.import_module(f"docs._ext.{path.parent.name}")
    with_setup = {
        module.stem
        for module in path.parent.glob("*.py")
        if module != path and "\ndef setup(app" in module.read_text()
    }
    assert sorted(getattr(package, "MODULES", ())) == sorted(with_setup)


def importable_names():
    """What the folders that we put on the path make importable by its bare name."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for folder in settings["tool"]["pytest"]["ini_options"]["pythonpath"]:
        for path in sorted((ROOT / folder).iterdir()):
            has_code = path.suffix == ".py" or any(path.glob("*.py")) or any(path.glob("*/*.py"))
            if has_code and path.stem.isidentifier():
                yield path.stem


@pytest.mark.parametrize("name", [*importable_names()])
def test_no_module_of_ours_shadows_another(name):
    """A module with the name of a published package hides it, or is hidden by it."""
    assert name not in sys.stdlib_module_names
    owners = packages_distributions().get(name)
    assert owners == SHADOWED.get(name), f"{name} is also a package of {owners}"


# -- extensions --------------------------------------------------------------


@pytest.mark.parametrize("path", EXTENSIONS, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_extension_has_its_manual_on_top(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    manual = ast.get_docstring(tree) or ""
    setup = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "setup"]
    assert manual.strip(". ") not in {"", "To be written"}, "say what it is for"
    if setup and path.name != "__init__.py":  # the modules of a package say more
        assert len(manual.splitlines()) >= MANUAL_LINES, "say how to use it and what it writes"
        assert re.search("switch(ed)? (it )?on", manual, re.IGNORECASE), "say how to switch it on"
        assert "parallel_read_safe" in ast.unparse(setup[0])
        assert "parallel_write_safe" in ast.unparse(setup[0])


@pytest.mark.parametrize("path", EXTENSIONS, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_event_handlers_are_named_functions_that_say_their_event(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "app.connect":
            event, handler = call.args[0].value, call.args[1]
            if not isinstance(handler, ast.Name):
                assert isinstance(handler, ast.Attribute), f"{path.name}:{call.lineno}: name it"
            elif handler.id in functions:
                said = ast.get_docstring(functions[handler.id]) or ""
                assert event in said, f"{path.name}: {handler.id} does not say it handles {event}"


# -- what waits for upstream -------------------------------------------------

PUBLIC = ("_exit", "_replace")  # of os, and of named tuples
UPSTREAM = re.compile(r"[\w.-]+/[\w.-]+#\d+|not reported")


def private_names(tree):
    """Statements of a module that use a private name of another one, with that name."""
    for statement in tree.body:
        for node in ast.walk(statement):
            match node:
                case ast.Attribute(value=ast.Name(id="self" | "cls")):
                    continue
                case ast.Attribute(attr=name):
                    pass
                case ast.Call(args=[_, ast.Constant(value=str(name)), *_]):
                    pass
                case _:
                    continue
            if re.fullmatch(r"_[a-z]\w*", name) and name not in PUBLIC:
                yield statement, name


def test_extensions_import_no_stack(conf):
    """A build after the edit of a page has no use for it."""
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in EXTENSIONS]
    names += (name for name in conf["extensions"] if name not in names)
    code = (
        f"import sys, {', '.join(names)}; docs._ext.site.page_stamp.installed_versions()\n"
        "print({'matplotlib', 'torch', 'torchrl'} & set(sys.modules))"
    )
    assert run_python("-c", code, cwd=ROOT).stdout == "set()\n"


@pytest.mark.parametrize("path", EXTENSIONS, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_a_private_hook_names_the_issue_that_it_waits_for(path):
    source = path.read_text(encoding="utf-8")
    for statement, name in private_names(ast.parse(source)):
        place = f"{path.relative_to(ROOT)}:{statement.lineno}"
        said = ast.get_source_segment(source, statement)
        assert UPSTREAM.search(said), (
            f"{place}: say in the docstring or a comment which issue (owner/repository#number) "
            f"asks for something public instead of {name}, or 'not reported'"
        )


def test_private_hooks_are_seen():
    hooks = [*private_names(ast.parse("def f():\n    a.b._c()\n    getattr(a, '_d')\n    self._e"))]
    assert [name for _, name in hooks] == ["_d", "_c"]


@pytest.mark.parametrize("name", FIXES)
def test_a_fix_names_the_issue_that_it_waits_for(name):
    assert UPSTREAM.fullmatch(FIXES[name].upstream)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: f"{patch['symbol']}-{patch['find']}")
def test_a_patch_names_the_issue_that_it_waits_for(patch):
    assert UPSTREAM.fullmatch(patch["upstream"])


# -- dependencies ------------------------------------------------------------


def locked(lock):
    """Requirements of a lock file."""
    for line in lock.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            yield Requirement(line)


def wanted(names):
    """Requirements of the groups with these names."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "dependency-groups"
    ]
    assert set(groups) == set.union(*LOCKS.values())
    for name in sorted(names):
        for entry in groups[name]:
            if isinstance(entry, str):
                yield Requirement(entry)
            else:
                assert entry["include-group"] in names


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_lock_holds_pins_and_nothing_of_this_machine(lock):
    for requirement in locked(lock):
        assert requirement.url is None, requirement
        (pin,) = requirement.specifier
        assert pin.operator == "==", requirement
        assert Version(pin.version).local is None, f"{requirement}: drop the local version"
    assert "://" not in lock.read_text(encoding="utf-8")
    assert not re.search(r"^\s*-", lock.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_benchmarks_use_the_stack_of_the_site():
    ours, theirs = ({str(one) for one in locked(lock)} for lock in LOCKS)
    assert ours <= theirs


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_lock_covers_every_group(lock, python):
    environment = {"python_version": python, "python_full_version": f"{python}.5"}
    pins = {}
    for requirement in locked(lock):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            name = canonicalize_name(requirement.name)
            assert name not in pins, f"two pins of {name} on Python {python}"
            pins[name] = next(iter(requirement.specifier)).version
    for requirement in wanted(LOCKS[lock]):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            version = pins.get(canonicalize_name(requirement.name))
            assert version, f"{requirement.name} is not locked for Python {python}: run make lock"
            assert requirement.specifier.contains(version), f"{requirement} against {version}"


# -- everything --------------------------------------------------------------

# In pieces, so that this file does not find itself.
FOREIGN = [
    (r"(?<![\w/.])/" + r"((root|Users|work)/\w|home/(?!me/)\w)", "a path of one machine"),
    (r"\.\./" + "shared", "a folder outside the repository"),
    (r"/tmp" + r"/(wt|bash_jobs)", "a path of one machine"),
    (r"[\w.-]+" + r"\.internal\b|localhost:\d+/(simple|pypi)", "a private package index"),
]


def test_no_file_names_a_place_outside_the_repository():
    found = []
    for path, text in tracked_files():
        for number, line in enumerate(text.splitlines(), 1):
            for pattern, what in FOREIGN:
                if re.search(pattern, line):
                    found.append(f"{path.relative_to(ROOT)}:{number}: {what}: {line.strip()[:80]}")
    assert not found, "\n" + "\n".join(found)


def test_generated_files_are_not_tracked():
    others = re.compile(r"build/|docs/sg_execution_times\.rst|\.venv")
    names = [path.relative_to(ROOT).as_posix() for path, _ in tracked_files()]
    assert not [name for name in names if others.match(name) or galleries.GENERATED.match(name)]


@pytest.mark.parametrize("script", galleries.scripts(ROOT), ids=lambda path: path.stem)
def test_no_section_of_a_tutorial_hides_in_a_code_cell(script):
    """Without its ``# %%`` line a text cell is a comment of the code above it."""
    for block in split_code_and_text_blocks(str(script))[1]:
        if block.type == "code":
            lost = re.search(r"^# (.+)\n# ([-=~^])\2{3,}$", block.content, re.MULTILINE)
            assert not lost, f"{script.name}: put '# %%' before the section {lost[1]!r}"


def test_every_make_target_has_a_help_line():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE)) - {"venv"}
    assert targets >= {
        "bench",
        "clean",
        "help",
        "html",
        "html-pattern",
        "linkcheck",
        "lock",
        "notebook-test",
        "serve",
        "test",
    }
    shown = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = set(re.findall(r"make ([\w-]+)", shown.stdout))
    assert targets <= listed, f"without a help line: {sorted(targets - listed)}"


@pytest.mark.parametrize(
    ("path", "status"), [("tests/browser/node_modules/x.js", 0), ("tests/browser/x.js", 65)]
)
def test_spelling_is_checked_in_our_files_alone(tmp_path, path, status):
    """The browser tests leave node's packages behind; the next `make test` must not read them."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text("// t" + "eh\n")
    codespell = [Path(sys.executable).with_name("codespell")]
    assert subprocess.run(codespell, cwd=tmp_path, capture_output=True).returncode == status


def test_texts_name_targets_that_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        commands = re.findall(r"(?:^\$ |`)make ((?:[A-Z_]+=\w+ )?[a-z][\w-]*)", text, re.MULTILINE)
        assert commands
        for command in commands:
            target = command.split()[-1]
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{name}: make {target}"


def test_texts_name_files_that_exist():
    for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        folders = r"docs|doctor|tests|tools|tutorials|how-to|benchmarks|\.\.|\.github|\.ci"
        paths = re.findall(rf"`((?:{folders})/[\w./-]*)`", text)
        written = {*(f"docs/{name}/" for name in galleries.NAMES), "docs/sg_execution_times.rst"}
        for path in set(paths) - written:
            folder = (ROOT / name).parent if path.startswith("..") else ROOT
            assert (folder / path).exists(), f"{name}: {path}"
