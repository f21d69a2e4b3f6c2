"""Which edits of a suite void which of its benchmarks."""

import json

import pytest

from benchmarks import __main__ as main
from benchmarks import record as records
from benchmarks.code_hash import Suite
from tests.support.repository import git

SUITE = '''"""A toy. What it measures."""

import functools
import os

import ale_py
import pytest
from torch import nn, ones

from benchmarks import measure, metrics
from benchmarks.extra import Shared, passed_on, twice as doubled
from benchmarks.record import HARNESS

os.environ["SETTING"] = "1"

METRICS = metrics.declare("""
time [s] Time: Of it,
    and more.
size [B, exact] Size: Of all.
""")
SIZE = 4  # bytes
WAYS = {"plain": 1}
NAMES = sorted(WAYS)
BY_NAME = ["reached_by_name"]
CHILD = """
from benchmarks import child
child.work()
"""
REGISTRY = []


def registered(function):
    REGISTRY.append(function)
    return function


@registered
def in_the_registry():
    return 1


def reached_by_name():
    return 1


def helper():
    """Help."""
    return SIZE


@functools.cache
def cached():
    return nn.Linear(1, 1)


@pytest.fixture
def prepared():
    return 1


@pytest.fixture(autouse=True)
def always():
    return 1


@pytest.mark.parametrize("way", WAYS)
def bench_helper(benchmark, device, way):
    measure.timed(benchmark, device, helper)


@pytest.mark.parametrize("size", [1, 2])
def bench_fixture(benchmark, device, prepared, size):
    passed_on(doubled(cached()))


@pytest.mark.usefixtures("prepared")
def bench_words(benchmark):
    globals()[BY_NAME[0]]
    METRICS["time"]["unit"], HARNESS


def bench_child(benchmark):
    Shared(CHILD, ones(1))
'''
MEASURE = """def timed(benchmark, device, function):
    return benchmark(function)


def untouched():
    return 1
"""
EXTRA = """from benchmarks.other import work as passed_on


class Shared:
    def __init__(self, *given):
        self.given = given


def twice(value):
    return 2 * value
"""
HELPER, FIXTURE, WORDS, CHILD = (
    f"bench_{name}" for name in ("helper", "fixture", "words", "child")
)
ALL = {HELPER, FIXTURE, WORDS, CHILD}
EDITS = {
    "comment": ("SIZE = 4  # bytes", "SIZE = 4  # of them", set()),
    "layout": ("[1, 2]", "[\n    1,\n    2,\n]", set()),
    "docstring": ('"""Help."""', '"""Aid."""', set()),
    "docstring-gone": ('    """Help."""\n', "", set()),
    "module-docstring": ("A toy. What", "Another toy. What", set()),
    "description": ("and more.", "and less.", set()),
    "title": ("Time: Of", "Seconds: Of", set()),
    "unit": ("[s]", "[B]", {WORDS}),
    "exactness": ("[B, exact]", "[B]", {WORDS}),
    "helper": ("return SIZE", "return 1 + SIZE", {HELPER}),
    "constant": ("SIZE = 4", "SIZE = 5", {HELPER}),
    "fixture": ("def prepared():\n    return 1", "def prepared():\n    return 2", {FIXTURE, WORDS}),
    "automatic-fixture": ("def always():\n    return 1", "def always():\n    return 2", ALL),
    "parameters": ("[1, 2]", "[1, 3]", {FIXTURE}),
    "table-of-parameters": ('"plain": 1', '"plain": 2', {HELPER}),
    "decorator": ("functools.cache", "functools.lru_cache", {FIXTURE}),
    "name-in-a-string": (
        "def reached_by_name():\n    return 1",
        "def reached_by_name():\n    return 2",
        {WORDS},
    ),
    "registered": (
        "def in_the_registry():\n    return 1",
        "def in_the_registry():\n    return 2",
        ALL,
    ),
    "effect-of-import": ('"SETTING"] = "1"', '"SETTING"] = "2"', ALL),
    "package": ("import ale_py\n", "", ALL),
    "origin": ("from torch import nn, ones", "from torch import nn, zeros as ones", {CHILD}),
    "origin-of-ours": (
        "passed_on, twice as doubled",
        "passed_on, Shared as doubled",
        {FIXTURE},
    ),
    "own-body": ("globals()[BY_NAME[0]]", "globals()[BY_NAME[-1]]", {WORDS}),
    "code-of-a-child": ("child.work()", "child.play()", {CHILD}),
    "other-module": ("return benchmark(function)", "return benchmark(function, 1)", {HELPER}),
    "other-module-unused": ("def untouched():\n    return 1", "def untouched():\n    pass", set()),
    "class-elsewhere": ("self.given = given", "self.given = list(given)", {CHILD}),
    "renamed-import": ("return 2 * value", "return value * 2", {FIXTURE}),
    "module-of-a-child": ("def work():\n    pass", "def work():\n    return 1", {CHILD}),
    "passed-on": ("def work(value):\n    pass", "def work(value):\n    return value", {FIXTURE}),
    "harness": ("HARNESS = 1", "HARNESS = 2", set()),
    "new-benchmark": ("def bench_child", "def bench_new():\n    pass\n\n\ndef bench_child", set()),
    "change-in-an-assignment": ("NAMES = sorted(WAYS)", "NAMES = WAYS.pop('plain')", {HELPER}),
}
FILES = {
    "suites/bench_toy.py": SUITE,
    "measure.py": MEASURE,
    "extra.py": EXTRA,
    "child.py": "def work():\n    pass\n",
    "other.py": "def work(value):\n    pass\n",
    "record.py": "HARNESS = 1\n",
}


def write(folder, files=FILES):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return records.Library(folder, folder.parent / "requirements.txt")


@pytest.mark.parametrize(("old", "new", "voided"), EDITS.values(), ids=EDITS)
def test_an_edit_voids_what_reaches_it(tmp_path, old, new, voided):
    library = write(tmp_path / "benchmarks")
    before = library.hashes("toy")
    assert before.keys() == ALL
    assert sum(text.count(old) > 0 for text in FILES.values()) == 1, "the edit has one place"
    write(library.folder, {name: text.replace(old, new) for name, text in FILES.items()})
    after = library.hashes("toy")
    assert {name for name in ALL if after[name] != before[name]} == voided


def test_a_module_may_move_within_the_folder(tmp_path):
    before = write(tmp_path / "one").hashes("toy")
    moved = {name.removeprefix("suites/"): text for name, text in FILES.items()}
    assert write(tmp_path / "two", moved).hashes("toy") == before


@pytest.mark.parametrize("used", ["vars(measure)['timed']", "measure.__dict__['timed']"])
def test_a_module_that_is_used_as_an_object_is_reached_whole(tmp_path, used):
    given = {"suites/bench_toy.py": SUITE.replace("measure.timed", used)}
    given["measure.py"] = f"from benchmarks.more import MORE\n\n{MEASURE}"
    library = write(tmp_path, FILES | given | {"more.py": "MORE = 1\n"})
    before = library.hashes("toy")
    edited = given["measure.py"].replace("return 1", "return 2")
    for name, text in {"measure.py": edited, "more.py": "MORE = 2\n"}.items():
        write(tmp_path, FILES | given | {"more.py": "MORE = 1\n"} | {name: text})
        after = library.hashes("toy")
        assert {name for name in ALL if after[name] != before[name]} == {HELPER}


def test_a_suite_that_imports_more_has_more_files(tmp_path):
    library = write(tmp_path)
    names = [path.name for path in library.code("toy")]
    assert names == ["child.py", "extra.py", "measure.py", "other.py", "bench_toy.py"]
    assert Suite("bench_gone", list(tmp_path.glob("*.py"))).hashes() == {}


# -- After a rename --------------------------------------------------------------


@pytest.fixture
def renamed(tmp_path, monkeypatch, toy_record):
    """A repository whose one record is of its first commit; the code may change after that."""
    library = write(tmp_path / "benchmarks")
    (tmp_path / "requirements.txt").write_text("torch==1\ntorchrl==1\ntensordict==1\n")
    record = toy_record(library)
    records.save(record, library.path("toy", "cpu"))
    for arguments in (["init"], ["add", "."], ["commit", "-m", "a"]):
        git(tmp_path, *arguments)
    monkeypatch.setattr(main, "ROOT", tmp_path)
    monkeypatch.setattr(main, "LIBRARY", library)
    return library


@pytest.fixture
def toy_record():
    def make(library):
        path = main.LIBRARY.path("collector_sync", "cpu")
        record = json.loads(path.read_text("utf-8")) | {"suite": "toy"}
        first, *_ = keys = sorted(record["benchmarks"])
        hashes = library.hashes("toy")
        record["code"] = {
            HELPER: {"hash": hashes[HELPER], "keys": keys},
            FIXTURE: {"hash": hashes[FIXTURE], "keys": [first]},
        }
        record["versions"].update(torch="1", torchrl="1", tensordict="1")
        return record

    return make


def changed(library, *replacements):
    for name, text in FILES.items():
        for old, new in replacements:
            text = text.replace(old, new)
        write(library.folder, {name: text})
    return library.outdated(library.find("toy", "cpu"))


def test_a_renamed_function_keeps_its_record(renamed, capsys):
    assert len(changed(renamed, ("def helper", "def aid"), (" helper)", " aid)"))) == 3
    assert main.restamp("HEAD", {"helper": "aid"}) == 0
    assert renamed.outdated(renamed.find("toy", "cpu")) == {}
    assert capsys.readouterr().out == "toy@cpu: the code is the same\n"


def test_a_renamed_benchmark_keeps_its_record(renamed):
    assert changed(renamed, ("def bench_helper", "def bench_aid"))
    assert main.restamp("HEAD", {"bench_helper": "bench_aid"}) == 0
    record = renamed.find("toy", "cpu")
    assert renamed.outdated(record) == {}
    assert any(name.endswith("bench_aid") for name in record["code"])


def test_a_rename_that_changes_more_does_not(renamed, capsys):
    before = renamed.path("toy", "cpu").read_bytes()
    assert changed(
        renamed, ("def helper", "def aid"), (" helper)", " aid)"), ("SIZE = 4", "SIZE = 5")
    )
    assert main.restamp("HEAD", {"helper": "aid"}) == 1
    assert renamed.path("toy", "cpu").read_bytes() == before
    assert "the code of bench_helper differs in more than names" in capsys.readouterr().out


def test_a_record_of_other_code_is_not_stamped_anew(renamed, capsys):
    record = renamed.find("toy", "cpu")
    record["code"][FIXTURE]["hash"] = "0" * 64
    records.save(record, renamed.path("toy", "cpu"))
    assert set(renamed.outdated(record)) == set(record["code"][FIXTURE]["keys"])
    assert main.restamp("HEAD", {}) == 1
    assert "bench_fixture was taken with code that is in neither" in capsys.readouterr().out
    assert renamed.find("toy", "cpu")["code"][FIXTURE]["hash"] == "0" * 64


def test_two_names_do_not_become_one(renamed):
    with pytest.raises(ValueError, match="cached is a name in the code already"):
        main.restamp("HEAD", {"helper": "cached"})
