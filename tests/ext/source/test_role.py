"""The ``:source:`` role: every symbol of the site resolves, and a vanished one stops the build."""

import ast
import importlib
import inspect
import re
import textwrap
from pathlib import Path

import pytest
from docutils import nodes

from docs._ext.source import lookup as source_lookup
from docs._ext.source.api_pages import load_catalog
from docs._ext.source.lookup import SymbolNotFound, locate
from docs._ext.source.role import source_link
from docs._ext.support import galleries
from tests.support import ROOT
from tests.support.small_site import SmallSite

CATALOG = load_catalog(ROOT / "docs" / "reference" / "api")


def listed_symbols():
    return [
        name
        for symbol, members in CATALOG.symbols.items()
        for name in [symbol, *(f"{symbol}.{member}" for member in members)]
    ]


def symbols_in_pages():
    """Targets of the role in pages and tutorials."""
    role = re.compile(r":source:`(?:[^`<]*<)?([\w.]+)>?`")
    files = [*ROOT.glob("docs/reference/**/*.rst"), *galleries.scripts(ROOT)]
    return [symbol for file in files for symbol in role.findall(file.read_text(encoding="utf-8"))]


SYMBOLS = sorted({*listed_symbols(), *symbols_in_pages()})


# -- The installed packages --------------------------------------------------


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_the_lines_hold_the_definition(symbol):
    location = locate(symbol)
    if location.kind == "module":
        assert location.first == 1
        return
    name = location.definition.rpartition(".")[2]
    pattern = {
        "class": rf"^\s*class {name}\b",
        "function": rf"^\s*(async )?def {name}\b",
        "value": rf"^\s*(self\.)?{name}\s*[:=]",
    }[location.kind]
    assert re.search(pattern, location.text, re.MULTILINE), location
    # nothing of what follows the definition: it is one statement
    indented = location.text.startswith(" ")
    tree = ast.parse(f"if True:\n{location.text}" if indented else location.text)
    assert [len(tree.body), len(tree.body[0].body) if indented else 1] == [1, 1]


def runtime_object(symbol):
    module, _, names = symbol, "", []
    while True:
        try:
            found = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, name = module.rpartition(".")
            names.insert(0, name)
    for name in names:
        found = inspect.getattr_static(found, name)
        found = getattr(found, "__func__", getattr(found, "fget", found))
    return inspect.unwrap(found)


def _count(location):
    return location.last - location.first + 1


def test_the_lines_agree_with_inspect_where_inspect_works():
    agreeing, unknown_to_inspect = [], []
    for symbol in listed_symbols():
        try:
            runtime = runtime_object(symbol)
            lines, first = inspect.getsourcelines(runtime)
            file = Path(inspect.getsourcefile(runtime))
        except (OSError, AttributeError):  # a rewritten __module__, an inherited member
            unknown_to_inspect.append(symbol)
            continue
        location = locate(symbol)
        assert (location.file, location.first) == (file, first), symbol
        # inspect counts the comments below a definition, too
        assert location.text.splitlines() == "".join(lines).splitlines()[: _count(location)], symbol
        agreeing.append(symbol)
    assert len(agreeing) > len(unknown_to_inspect)
    # the reason for not using inspect
    assert "torchrl.data.ReplayBuffer" in unknown_to_inspect


def test_a_former_name_is_gone_and_the_present_one_suggested():
    with pytest.raises(SymbolNotFound, match=r"torchrl\.collectors\.MultiSyncCollector"):
        locate("torchrl.collectors.MultiSyncDataCollector")


# -- A package made for the test ---------------------------------------------

TINY = {
    "__init__.py": """
        from .core import *
        from .core import Engine as Motor
        from . import core as heart
        Alias = Motor
        """,
    "core.py": """
        from typing import overload
        from .base import Base

        LIMIT = 3

        class Engine(Base):
            \"\"\"Turns. Fast.\"\"\"

            class Inner:
                field: int = 0

            @overload
            def run(self, x: int): ...
            @overload
            def run(self, x: str): ...
            def run(self, x):
                self.state = x

            @property
            def speed(self):
                return 1

            @speed.setter
            def speed(self, value):
                pass

        try:
            import nothing_of_that_name
        except ImportError:
            def fallback():
                return 0

        if True:
            def branch():
                return "first"
        else:
            def branch():
                return "second"
        """,
    "base.py": """
        class Base:
            def start(self):
                self._ready = True
        raise RuntimeError("the package was imported")
        """,
}


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A package that fails when it is imported, with the metadata of version 1.2.0."""
    site = tmp_path / "site"
    for name, text in TINY.items():
        write(site / "tiny" / name, text)
    write_version(site, "1.2.0")
    monkeypatch.syspath_prepend(site)
    forget()
    yield site
    forget()


def forget():
    source_lookup.known.clear()
    for cached in vars(source_lookup).values():
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")


def write_version(site, version):
    write(site / "tiny-0.dist-info" / "METADATA", f"Name: tiny\nVersion: {version}\n")


@pytest.mark.parametrize(
    ("symbol", "file", "first_line"),
    [
        ("tiny.Engine", "core.py", "class Engine(Base):"),
        ("tiny.Motor", "core.py", "class Engine(Base):"),
        ("tiny.Alias", "core.py", "class Engine(Base):"),
        ("tiny.heart.Engine", "core.py", "class Engine(Base):"),
        ("tiny.core.LIMIT", "core.py", "LIMIT = 3"),
        ("tiny.Engine.Inner", "core.py", "class Inner:"),
        ("tiny.Engine.Inner.field", "core.py", "field: int = 0"),
        ("tiny.Engine.run", "core.py", "def run(self, x):"),
        ("tiny.Engine.state", "core.py", "self.state = x"),
        ("tiny.Engine.start", "base.py", "def start(self):"),
        ("tiny.Engine._ready", "base.py", "self._ready = True"),
        ("tiny.Engine.speed", "core.py", "@property"),
        ("tiny.fallback", "core.py", "def fallback():"),
        ("tiny.branch", "core.py", "def branch():"),
    ],
)
def test_find_each_kind_of_symbol(tiny, symbol, file, first_line):
    location = locate(symbol)
    assert location.path == f"tiny/{file}"
    assert location.text.splitlines()[0].strip() == first_line


def test_the_first_branch_counts(tiny):
    assert "first" in locate("tiny.branch").text


@pytest.mark.parametrize(
    ("symbol", "message"),
    [
        ("tiny.Engin", r"did you mean tiny\.Engine\b"),
        ("tiny.Engine.stert", r"did you mean tiny\.Engine\.start\b"),
        ("tiny.Base2", "tiny has no 'Base2' in tiny 1.2.0"),
        ("tiny.heart.branches", r"did you mean tiny\.heart\.branch\b"),
        ("absent.Engine", "no package 'absent' is installed"),
        ("tiny.LIMIT.inner", "tiny.LIMIT has no 'inner'"),
    ],
)
def test_say_what_is_near(tiny, symbol, message):
    with pytest.raises(SymbolNotFound, match=message):
        locate(symbol)


def test_a_file_that_changed_is_read_again(tiny):
    before = locate("tiny.core.LIMIT")
    kept = dict(source_lookup.known)
    forget()  # a new process, which keeps what the last one knew
    write(tiny / "tiny" / "core.py", "# moved down\nLIMIT = 3\n")
    source_lookup.known.update(kept)
    assert locate("tiny.core.LIMIT").first == 2 != before.first


# -- A site made for the test ------------------------------------------------


CONF = """
extensions = ["docs._ext.source.role"]
source_repositories = {"tiny": ("me/tiny", "release-{version}")}
"""
PAGE = """\
Page
====

See :source:`tiny.Engine.run` and :source:`the class <tiny.Engine>`.
"""


@pytest.fixture
def site(tmp_path):
    """A site whose only page uses the role."""
    return SmallSite(tmp_path, {"conf.py": CONF, "index.rst": PAGE})


@pytest.mark.parametrize(
    ("text", "code"), [("", True), ("run", True), ("Engine.run()", True), ("the call", False)]
)
def test_a_text_that_is_the_end_of_the_symbol_is_code(tiny, text, code):
    label = source_link("tiny.Engine.run", {"tiny": ("me/tiny", "{version}")}, text)[0]
    assert isinstance(label, nodes.literal) is code
    assert label.astext() == (text or "Engine.run")


@pytest.fixture
def with_tiny(tiny):
    """The environment in which Sphinx finds the package."""
    return {"PYTHONPATH": f"{tiny}:{ROOT}"}


@pytest.mark.slow
def test_links_in_html_and_text(site, with_tiny):
    html = site.built(**with_tiny).page("index")
    lines = locate("tiny.Engine.run")
    assert (
        f'href="https://github.com/me/tiny/blob/release-1.2.0/tiny/core.py#L{lines.first}-' in html
    )
    assert "tiny 1.2.0, tiny.Engine.run: tiny/core.py, lines" in html
    assert ">Engine.run</span>" in html
    assert ">the class</span>" in html
    site.built("-btext", **with_tiny)
    text = " ".join((site.html / "index.txt").read_text(encoding="utf-8").split())
    assert '"Engine.run" (tiny 1.2.0, tiny.Engine.run: tiny/core.py, lines' in text


@pytest.mark.slow
def test_a_vanished_symbol_stops_the_build(site, with_tiny):
    site.edit("index.rst", "tiny.Engine.run", "tiny.Engine.rum")
    said = site.fails(**with_tiny)
    assert re.search(r"index\.rst:4: WARNING: .*did you mean tiny\.Engine\.run\?", said)
    assert "[source.missing]" in said


@pytest.mark.slow
def test_a_moved_symbol_names_its_new_place(site, with_tiny, tiny):
    write(tiny / "tiny" / "depot.py", "class Wagon:\n    pass\n")
    site.edit("index.rst", "tiny.Engine.run", "tiny.core.Wagon")
    assert "did you mean tiny.depot.Wagon?" in site.fails(**with_tiny)


@pytest.mark.slow
def test_another_version_rewrites_the_links(site, with_tiny, tiny):
    site.built(**with_tiny)
    write_version(tiny, "1.3.0")
    html = site.built(**with_tiny).page("index")
    assert "release-1.3.0" in html
    assert "1.2.0" not in html
    write_version(tiny, "1.4.0.dev7")
    assert "/blob/main/tiny/core.py" in site.built(**with_tiny).page("index")
