"""Builds fixture projects with the extension ``records`` and reads what a reader would see."""

import html
import json
import re
from io import StringIO
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

from benchmarks import record as records
from docs._ext.records import change_list, content, directives
from docs._ext.support.charts import COLORS
from tests.support import ROOT
from tests.support.programs import run_python

AGAIN = "to be measured again"
PINS = {"torch": "2.15.0", "torchrl": "0.14.1", "tensordict": "0.14.3"}
CONF = """
extensions = ["docs._ext.records"]
project = "fixture"
html_theme = "basic"
nitpicky = True
exclude_patterns = ["build"]
suppress_warnings = ["config.cache"]
"""
TOY = """
from benchmarks import shared

def bench_small():
    return shared.ROUNDS

def bench_large():
    return 2 * shared.ROUNDS  # rounds
"""
INDEX = "Home\n====\n\n.. toctree::\n\n   stamps\n\n"
SERIES = """
[axes]
size = { title = "Size of a thing" }

[kind]
"A" = { look = "blue circle" }
"B <&>" = { look = "orange square" }
"""
STAMPS = "Stamps\n======\n\n.. record-list::\n\n.. record-index::\n"


def entry(title, number, times, **parameters):
    return {
        "title": title,
        "parameters": parameters,
        "metrics": {
            "bytes": records.measurement([number]),
            "time": records.measurement(times, warmup_rounds=1),
        },
    }


def code_of(library, keys):
    """What a record says of the functions that gave *keys*."""
    found = {}
    for key in sorted(keys):
        name = "bench_small" if key.startswith("small") else "bench_large"
        entry = found.setdefault(name, {"hash": library.hashes("toy")[name], "keys": []})
        entry["keys"].append(key)
    return found


def toy_record(library):
    declared = {
        "bytes": {"title": "Bytes", "description": "All of them.", "unit": "B", "exact": True},
        "time": {"title": "Time", "description": "Wall time.", "unit": "s", "exact": False},
    }
    times = [0.01, 0.02, 0.03, 0.04, 0.05]
    return {
        "format": records.FORMAT,
        "suite": "toy",
        "device": "cpu",
        "title": "A toy",
        "description": "Measures nothing. The keys ``small-*`` are small.",
        "code": code_of(library, ["small-a", "large-a", "small-b", "large-b"]),
        "taken": {
            "date": "2026-01-02T03:04:05Z",
            "commit": "0123456789" * 4,
            "dirty": False,
            "command": "python -m benchmarks --device cpu --suite toy",
            "environment": {"OMP_NUM_THREADS": "1"},
            "threads": 1,
        },
        "machine": {
            "device_name": "Toy CPU",
            "cpu": "Toy CPU",
            "cores": 2,
            "memory": 8_000_000_000,
            "os": "Linux",
            "python": "3.11.7",
        },
        "versions": {**PINS, "triton": None},
        "metrics": declared,
        "benchmarks": {
            "small-a": entry("A, small", 1000, times, size=1, kind="A"),
            "large-a": entry("A, large", 4000, times, size=4, kind="A"),
            "small-b": entry("B, small", 13200, times, size=1, kind="B <&>"),
            "large-b": entry("B, large", 26400, times, size=4, kind="B <&>"),
        },
    }


class Project:
    """A Sphinx project with a suite called toy and a record of it."""

    def __init__(self, folder):
        self.folder = folder
        self.benchmarks = folder / "benchmarks"
        self.docs = folder / "docs"
        self.requirements = folder / "requirements.txt"
        self.benchmarks.mkdir()
        self.docs.mkdir()
        (self.benchmarks / "bench_toy.py").write_text(TOY)
        (self.benchmarks / "shared.py").write_text("ROUNDS = 5\n")
        self.pin()
        self.library = records.Library(self.benchmarks, self.requirements)
        self.path = self.library.path("toy", "cpu")
        records.save(toy_record(self.library), self.path)
        self.series = folder / "series.toml"
        self.series.write_text(SERIES)
        (self.docs / "conf.py").write_text(CONF)
        self.page("", name="index")
        (self.docs / "stamps.rst").write_text(STAMPS)

    def pin(self, **pins):
        lines = [f"{name}=={version}\n" for name, version in (PINS | pins).items()]
        self.requirements.write_text("".join(lines))

    def page(self, text, name="index"):
        (self.docs / f"{name}.rst").write_text(INDEX + text)

    def edit(self, **values):
        record = json.loads(self.path.read_text())
        record.update(values)
        self.save(record)

    def save(self, record):
        record["code"] = code_of(self.library, record["benchmarks"])
        records.save(record, self.path)

    @property
    def overrides(self):
        return {
            "records_folder": str(self.benchmarks),
            "records_requirements": str(self.requirements),
            "records_series": str(self.series),
        }

    def build(self, parallel=0):
        """Return warnings and the log."""
        warnings, log = StringIO(), StringIO()
        output = self.folder / "html"
        with docutils_namespace(), patch_docutils(self.docs):
            app = Sphinx(
                self.docs,
                self.docs,
                output,
                self.folder / "doctrees",
                "html",
                confoverrides=self.overrides,
                status=log,
                warning=warnings,
                parallel=parallel,
            )
            app.build()
        return re.sub(r"\x1b\[[\d;]*m", "", warnings.getvalue()), log.getvalue()

    def html(self, name="index"):
        return (self.folder / "html" / f"{name}.html").read_text("utf-8")

    def text(self, name="index"):
        text = re.sub(r"<[^>]*>", "", self.html(name).partition('<div class="body"')[2])
        return html.unescape(text).replace("\u00a0", " ")


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def clean(project):
    warnings, log = project.build()
    assert warnings == ""
    return log


# -- Role ----------------------------------------------------------------------


def test_role_shows_value_and_links_the_stamp(project):
    project.page("It takes :measured:`toy@cpu:small-b:bytes`, :measured:`toy@cpu:small-b:time`.")
    clean(project)
    assert "It takes 13,200 B, 30 ms." in project.text()
    links = re.findall(r'href="([^"]*)" title="([^"]*)"><span class="measured">', project.html())
    assert {target for target, _ in links} == {"stamps.html#record-toy-cpu"}
    where = "Toy CPU, 2 cores, 1 thread; torch 2.15.0, torchrl 0.14.1; 2026-01-02"
    assert links[0][1] == f"Bytes: exact. {where}"
    spread = "Time: median of 5 rounds, quartiles 20 ms and 40 ms, noisy. "
    assert links[1][1].replace("\u00a0", " ") == spread + where
    assert 'id="record-toy-cpu"' in project.html("stamps")


def test_a_single_measurement_is_one_run(project):
    project.page(
        ":measured:`toy@cpu:small-a:time`\n\n.. record-table:: toy@cpu\n   :rows: small-*\n"
        "\n.. record-table:: toy@cpu\n   :rows: *-a\n"
    )
    project.edit(
        benchmarks={
            "small-a": entry("A, small", 1000, [0.03], size=1, kind="A"),
            "small-b": entry("B, small", 1000, [0.02], size=1, kind="B <&>"),
            "large-a": entry("A, large", 4000, [0.01, 0.02, 0.03], size=4, kind="A"),
        }
    )
    clean(project)
    text = " ".join(project.text().split())
    assert "Benchmark Bytes Time, one run A, small 1,000 B 30 ms B, small 1,000 B 20 ms" in text
    both = "A, large 4,000 B 20 ms (15–25) A, small 1,000 B 30 ms, one run"
    assert f"Benchmark Bytes Time {both} Measured" in text
    assert " 30 ms in one run Benchmark" in text
    assert re.search('title="Time: one run. Toy CPU[^"]*"', project.html())


@pytest.mark.parametrize(
    ("unit", "runs", "text"),
    [
        ("1", [31.9, 33.7, 35.3], "33.7 (32.8–34.5)"),
        ("1", [30, 33.7, 37.3], "34 (32–36)"),
        ("1", [559, 892, 989], "890 (730–940)"),
        (
            "1",
            [-270.4, -250.1, -230.2],
            "\N{MINUS SIGN}250 (\N{MINUS SIGN}260\u00a0to\u00a0\N{MINUS SIGN}240)",
        ),
        ("1", [2.019, 2.031, 2.049], "2.03 (2.03–2.04)"),
        ("1", [0.998, 1.002, 1.01], "1.00 (1.00–1.01)"),
        ("1", [0.974, 0.9756, 0.976], "0.98 (0.97–0.98)"),
        ("1", [2e-7, 3e-7, 3.2e-7], "3e-7 (2.5e-7–3.1e-7)"),
        ("%", [92.3, 94.9, 96.5], "95\N{NO-BREAK SPACE}% (94–96)"),
        ("s", [0.0277, 0.0279, 0.0281], "27.9\N{NO-BREAK SPACE}ms (27.8–28.0)"),
        ("B", [66, 66, 66], "66\N{NO-BREAK SPACE}B"),
        ("s", [10.485], "10\N{NO-BREAK SPACE}s, one run"),
        ("1", [16_742], "17,000, one run"),
    ],
)
def test_digits_are_those_that_the_spread_allows(unit, runs, text):
    declared = {"title": "T", "description": "", "unit": unit, "exact": False}
    assert content.shown_with_spread(declared, records.measurement(runs)) == text


@pytest.mark.parametrize(
    ("unit", "description", "value", "text"),
    [
        ("B", "What the batch holds.", 225_888, "225,888\N{NO-BREAK SPACE}B"),
        ("1", "Frames of a batch.", 218_159, "218,159"),
        ("1", "Times that a step waits.", 13.16, "13.2"),
        ("%", "Frames that the buffer drops.", 18.84, "18.8\N{NO-BREAK SPACE}%"),
        ("%", "Frames that the buffer drops.", 100, "100\N{NO-BREAK SPACE}%"),
        ("1", "Time of the first, divided by what a frame saves.", 218_159, "220,000, one run"),
        ("s", "Wall time of the first call.", 1.017, "1.0\N{NO-BREAK SPACE}s, one run"),
        ("s", "The median time of a step.", 1.017, "1.02\N{NO-BREAK SPACE}s"),
    ],
)
def test_only_what_was_counted_is_exact(unit, description, value, text):
    declared = {"title": "T", "description": description, "unit": unit, "exact": True}
    assert content.shown_with_spread(declared, records.measurement([value])) == text


def test_a_summary_of_several_runs_is_no_single_run(project):
    project.page(":measured:`toy@cpu:a:time`\n\n.. record-table:: toy@cpu\n   :rows: a\n")
    metrics = json.loads(project.path.read_text())["metrics"]
    metrics["time"] |= {"title": "Mean", "description": "Over the seeds.", "summary": True}
    benchmarks = {"a": entry("A", 1000, [0.03], size=1, kind="A")}
    project.edit(benchmarks=benchmarks, metrics=metrics)
    clean(project)
    assert "Benchmark Bytes Mean A 1,000 B 30.0 ms Measured" in " ".join(project.text().split())
    assert 'title="Mean: Over the seeds. Toy CPU' in project.html()


def test_a_summary_has_its_interval_in_one_cell(project):
    project.page(":measured:`toy@cpu:a:time`\n\n.. record-table:: toy@cpu\n   :rows: a\n")
    metrics = json.loads(project.path.read_text())["metrics"]
    metrics["time"] |= {"title": "Mean", "description": "Over the seeds.", "summary": True}
    benchmark = entry("A", 1000, [15.7], size=1, kind="A")
    for end, value in (("low", 12.1), ("high", 24.8)):
        metrics[f"time_{end}"] = metrics["time"] | {"title": end}
        benchmark["metrics"][f"time_{end}"] = records.measurement([value])
    project.edit(benchmarks={"a": benchmark}, metrics=metrics)
    clean(project)
    text = " ".join(project.text().split())
    assert " 16 s Benchmark Bytes Mean A 1,000 B 16 s (12–25) Measured" in text
    assert "Mean A a 1,000 B 16 s (12–25)" in " ".join(project.text("stamps").split())


UNKNOWN = {
    "toys@cpu:small-b:bytes": "benchmarks has no suite 'toys'; did you mean 'toy'?",
    "toy@cpuu:small-b:bytes": "toy@cpuu has no device 'cpuu'; did you mean 'cpu'?",
    "toy@cpu:smal-b:bytes": "toy@cpu has no key 'smal-b'; did you mean 'small-b'?",
    "toy@cpu:small-b:byte": "toy@cpu:small-b has no metric 'byte'; did you mean 'bytes'?",
    "toy@cpu:small-b:byte|no": "toy@cpu:small-b has no metric 'byte'; did you mean 'bytes'?",
    "toys@cuda:small-b:bytes|no": "benchmarks has no suite 'toys'; did you mean 'toy'?",
    "toy@cpu": "expected suite@device:key:metric, found 'toy@cpu'",
}


@pytest.mark.parametrize("address", UNKNOWN)
def test_unknown_name_is_a_warning_with_line_and_suggestion(project, address):
    project.page(f"First.\n\nThen :measured:`{address}`.")
    warnings, _ = project.build()
    line = INDEX.count("\n") + 3
    assert warnings.splitlines() == [
        f"{project.docs / 'index.rst'}:{line}: WARNING: {UNKNOWN[address]} [records.unknown]"
    ]
    assert project.build()[0] == warnings, "a repeated build is not green"


def test_absent_record_needs_the_text_that_replaces_it(project):
    project.page("Takes :measured:`toy@cuda:small-b:time`.")
    warnings, _ = project.build()
    assert "index.rst:8: WARNING: toy@cuda is not measured yet. Take it: python -m " in warnings
    assert "[records.absent]" in warnings
    project.page("Takes :measured:`toy@cuda:small-b:time|an unmeasured time`.")
    clean(project)
    assert "Takes an unmeasured time." in project.text()


def test_record_taken_later_replaces_the_text(project):
    project.page("Takes :measured:`toy@cuda:small-b:bytes|nothing yet`.")
    clean(project)
    assert "No record has been taken yet of toy@cuda." in project.text("stamps")
    record = toy_record(project.library) | {"device": "cuda"}
    records.save(record, project.library.path("toy", "cuda"))
    clean(project)
    assert "Takes 13,200 B." in project.text()
    assert "A toy (CUDA)" in project.text("stamps")
    assert "No record has been taken yet" not in project.text("stamps")


def test_a_description_has_code_and_emphasis():
    found = content.with_literals("Keys ``a-*`` and b-*, c-*; *time against it* is the ratio.")
    assert "".join(node.astext() for node in found).startswith("Keys a-* and b-*, c-*; time")
    assert [node.astext() for node in found if node.tagname == "literal"] == ["a-*"]
    assert [node.astext() for node in found if node.tagname == "emphasis"] == ["time against it"]


def test_a_device_without_any_record_is_named_alone():
    every = [f"{suite}@{device}" for suite in ("a", "b") for device in ("cpu", "cuda")]
    said = directives.not_taken(["a@cuda", "b@cuda"], every).astext()
    assert said == "No record has been taken yet on cuda."
    said = directives.not_taken(["a@cuda", "b@cpu", "b@cuda"], every).astext()
    assert said == "No record has been taken yet on cuda, of b@cpu."
    assert (
        directives.not_taken(["b@cpu"], every).astext() == "No record has been taken yet of b@cpu."
    )


GAPS = [
    {"unmeasured": ["bench_one[later]"]},
    {"skipped": [{"name": "bench_one[later]", "reason": "there is none"}]},
]


@pytest.mark.parametrize("gaps", GAPS, ids=lambda gaps: next(iter(gaps)))
def test_a_gap_of_a_record_shows_the_text_that_replaces_it(project, gaps):
    project.page(
        "Later :measured:`toy@cpu:later:time|not measured yet`, now "
        ":measured:`toy@cpu:small-a:bytes`.\n\n"
        ".. record-table:: toy@cpu\n   :metrics: bytes\n   :rows: later-* small-a\n"
        "\n.. record-table:: toy@cpu\n   :rows: later-*\n   :if-absent: no table yet\n"
    )
    assert "has no key 'later'" in project.build()[0]
    project.edit(**gaps)
    clean(project)
    text = " ".join(project.text().split())
    assert "Later not measured yet, now 1,000 B." in text
    assert "A, small" in text
    assert "no table yet" in text


def test_a_partial_record_says_so(project):
    project.page(".. record-table:: toy@cpu\n")
    project.edit(unmeasured=["bench_one[later]", "bench_one[last]"])
    clean(project)
    assert "2 more benchmarks of this suite are not measured yet." in project.text()
    stamp = " ".join(project.text("stamps").split())
    assert "Not measured yet bench_one[later], bench_one[last]" in stamp


def test_malformed_record_is_a_warning_with_its_place(project):
    project.page("Takes :measured:`toy@cpu:small-b:bytes|unmeasured`.")
    text = project.path.read_text()
    project.path.write_text(text[: len(text) // 2])
    warnings, _ = project.build()
    pages = re.findall(r"(\w+)\.rst:\d+: WARNING: (\S+): expected JSON", warnings)
    assert [page for page, _ in pages] == ["index", "stamps"]
    assert re.fullmatch(r"benchmarks/results/toy/cpu\.json:\d+:\d+", pages[0][1])
    assert warnings.count("[records.malformed]") == 2
    assert "13,200" not in project.text()


def test_the_index_lists_the_records_and_closes_their_tables(project):
    project.build()
    html = project.html("stamps")
    listed, entry = html.split('id="record-toy-cpu"')
    assert re.search(r'(?s)>toy<.*A toy.*href="#record-toy-cpu">.*2026-\d\d-\d\d.*–', listed)
    outside = re.sub(r"(?s)<details.*?</details>", "", entry)
    assert "Toy CPU, 2 cores" in outside
    assert "<table" not in outside
    assert entry.count("<details") == 3, "stamp, metrics and values"


def test_site_without_index_says_where_stamps_belong(project):
    project.page("Takes :measured:`toy@cpu:small-b:bytes`.")
    (project.docs / "stamps.rst").write_text("Stamps\n======\n")
    warnings, _ = project.build()
    assert "no page shows the stamp of toy@cpu; put '.. record-index::' on one" in warnings


CHANGES = """# comment
2026-05-06 deep/page
2026-05-06 reference/api/a
2026-05-06 stamps
2026-03-05 reference/old gone
2026-03-05 tutorials/debugging/a
2026-03-04 tutorials/debugging/not_built
"""


def test_a_list_of_changes_has_pages_and_records_by_day(project):
    symptom = project.docs / "tutorials" / "debugging" / "a.rst"
    symptom.parent.mkdir(parents=True)
    symptom.write_text(":orphan:\n\nThe loss is NaN\n===============\n")
    api = project.docs / "reference" / "api" / "a.rst"
    api.parent.mkdir(parents=True)
    api.write_text(":orphan:\n\nA class\n=======\n")
    (project.docs / "changes.txt").write_text(CHANGES)
    project.page(".. change-list::")
    warnings, _ = project.build()
    assert not warnings
    days = re.findall(r"(?s)<dt>(.*?)</dt><dd>(.*?)</dd>", project.html("index"))
    said = {re.sub("<.*?>", "", day): re.sub("<.*?>", " ", what).split() for day, what in days}
    assert list(said) == ["2026-05-06", "2026-03-05", "2026-01-02"]
    assert " ".join(said["2026-05-06"]) == "API : 1 page Reference : Stamps"
    assert " ".join(said["2026-03-05"]) == ("Symptoms : The loss is NaN Moved : reference/old.html")
    assert said["2026-01-02"] == ["Measured", ":", "A", "toy"]
    symptom.unlink()
    project.build()
    assert "The loss is NaN" not in project.text()


def test_the_last_changes_change_with_a_record(project):
    (project.docs / "changes.txt").write_text("")
    project.page(".. change-list:: 1")
    project.build()
    assert "Measured: A toy" in project.text()
    taken = json.loads(project.path.read_text())["taken"]
    project.edit(taken=taken | {"date": "2026-05-06T00:00:00Z"})
    project.build()
    assert "2026-05-06" in project.text()


def test_of_the_last_changes_a_few_stand_for_many(project, monkeypatch):
    names = [f"page{number}" for number in range(5)]
    for name in names:
        (project.docs / f"{name}.rst").write_text(f":orphan:\n\n{name.title()}\n=====\n")
    (project.docs / "changes.txt").write_text("".join(f"2026-05-06 {name}\n" for name in names))
    project.page(".. change-list:: 1")
    project.build()
    assert "Reference: Page0; Page1; and 3 more" in project.text()
    monkeypatch.setattr(change_list, "MANY", 4)
    project.page(".. change-list::")
    project.build()
    assert "Reference: 5 pages" in project.text()


# -- Validity ------------------------------------------------------------------

EVERYWHERE = """
Takes :measured:`toy@cpu:small-b:bytes`.

.. record-table:: toy@cpu

.. record-plot:: toy@cpu
   :x: size
   :y: bytes
   :series: kind
"""


def change_suite(project, old="return", new="return 1 +"):
    (project.benchmarks / "bench_toy.py").write_text(TOY.replace(old, new))
    return "the code of bench_small has changed"


def change_shared_code(project):
    (project.benchmarks / "shared.py").write_text("ROUNDS = 6\n")
    return "the code of bench_small has changed"


def change_stack(project):
    project.pin(torchrl="0.15.0")
    return "taken with torchrl 0.14.1, this site uses 0.15.0"


@pytest.mark.parametrize("change", [change_suite, change_shared_code, change_stack])
def test_outdated_record_shows_no_value(project, change):
    project.page(EVERYWHERE)
    clean(project)
    assert project.text().count("13,200 B") == 3  # in the text and two tables
    assert "<svg" in project.html()
    reason = change(project)
    log = clean(project)  # an incremental build: the page depends on what changed
    for page in ("index", "stamps"):
        assert not re.search(r"\d (B|ms)\b", project.text(page))
        assert AGAIN in project.text(page)
        assert reason in project.text(page)
    assert "13,200" not in project.html() + project.html("stamps")
    assert "<svg" not in project.html()
    assert f"toy@cpu is {AGAIN}: {reason}" in log


PARTS = """
Takes :measured:`toy@cpu:small-b:bytes` and :measured:`toy@cpu:large-b:bytes`.

.. record-plot:: toy@cpu
   :x: kind
   :y: bytes
   :rows: {}
"""


def test_values_of_unchanged_benchmarks_stand(project):
    project.page(PARTS.format("small-*"))
    change_suite(project, "2 *", "3 *")
    log = clean(project)
    assert f"Takes 13,200 B and {AGAIN}." in project.text()
    assert "<svg" in project.html()
    stamps = " ".join(project.text("stamps").split())
    assert f"Validity {AGAIN}: the code of bench_large has changed Date" in stamps
    assert "B, small small-b 13,200 B 30 ms (20–40) noisy" in stamps
    assert f"B, large large-b {AGAIN} {AGAIN}" in stamps
    assert f"toy@cpu is {AGAIN}: the code of bench_large has changed" in log
    project.page(PARTS.format("*"))
    clean(project)
    assert "<svg" not in project.html()
    assert f"{AGAIN.capitalize()}: the code of bench_large has changed." in project.text()


def test_an_edited_comment_leaves_every_value(project):
    project.page(EVERYWHERE)
    clean(project)
    before = project.html()
    change_suite(project, "# rounds", "# of them")
    clean(project)
    assert project.html() == before


def test_a_hash_that_was_typed_is_no_hash_of_the_code(project):
    project.page("Takes :measured:`toy@cpu:small-b:bytes`.")
    record = json.loads(project.path.read_text())
    record["code"]["bench_small"]["hash"] = "0" * 64
    records.save(record, project.path)
    clean(project)
    assert f"Takes {AGAIN}." in project.text()


def test_another_torch_is_named_beside_the_values(project):
    project.page(EVERYWHERE)
    clean(project)
    assert "this site uses torch" not in project.text()
    project.pin(torch="2.16.0")
    clean(project)
    assert project.text().count("13,200 B") == 3  # in the text and two tables
    assert (
        "torch 2.15.0, torchrl 0.14.1; 2026-01-02 (this site uses torch 2.16.0)" in project.text()
    )


def test_edited_record_rebuilds_the_page(project):
    project.page(EVERYWHERE)
    clean(project)
    record = json.loads(project.path.read_text())
    record["benchmarks"]["small-b"]["metrics"]["bytes"] = records.measurement([77])
    records.save(record, project.path)
    clean(project)
    assert "Takes 77 B." in project.text()
    assert "13,200" not in project.html() + project.html("stamps")


def test_unchanged_project_rebuilds_nothing(project):
    project.page(EVERYWHERE + "\n:measured:`toy@cuda:small-b:bytes|nothing yet`\n")
    clean(project)
    assert "0 added, 0 changed, 0 removed" in clean(project)


# -- Table ---------------------------------------------------------------------


def test_table_has_the_chosen_rows_and_columns_with_spread(project):
    options = "   :metrics: time bytes\n   :rows: *-b small-a\n   :caption: Two ``kinds``\n"
    project.page(f".. record-table:: toy@cpu\n{options}")
    clean(project)
    text = re.sub(r"\s*\n\s*", "|", project.text())
    assert "Two kinds" in text  # markup of the page, not backticks
    assert "|Benchmark|Time|Bytes|" in text
    assert (
        "|B, large|30 ms (20–40) noisy|26,400 B|B, small|30 ms (20–40) noisy|13,200 B|A, small|"
        in text
    )
    assert "A, large" not in text
    assert "Measured on Toy CPU, 2 cores, 1 thread; torch 2.15.0" in text
    assert 'href="_downloads/records/toy-cpu.json"' in project.html()
    published = project.folder / "html" / "_downloads" / "records"
    assert (published / "toy-cpu.json").read_bytes() == project.path.read_bytes()
    assert 'href="_downloads/records/toy-cpu.csv"' in project.html()
    lines = (published / "toy-cpu.csv").read_text("utf-8").splitlines()
    assert lines[0] == "key,title,kind,size,metric,unit,median,q1,q3,min,max,rounds"
    assert lines[1:3] == [
        'large-a,"A, large",A,4,bytes,B,4000,4000,4000,4000,4000,1',
        'large-a,"A, large",A,4,time,s,0.03,0.02,0.04,0.01,0.05,5',
    ]
    assert len(lines) == 9


def test_a_row_is_called_as_the_page_says(project):
    options = "   :rows: small-a large-*\n   :names:\n      large-a: As it is\n"
    project.page(f".. record-table:: toy@cpu\n{options}")
    clean(project)
    text = re.sub(r"\s*\n\s*", "|", project.text())
    names = [text.index(f"|{name}|") for name in ("A, small", "As it is", "B, large")]
    assert names == sorted(names)
    assert "A, large" not in text


DIRECTIVES = {
    "record-table:: toy@cpu\n   :rows: small-*\n   :names:\n      large-a: A": "no row 'large-a'",
    "record-table:: toy@cpu\n   :metrics: byte": "no metric 'byte'; did you mean 'bytes'",
    "record-table:: toy@cpu\n   :rows: tall-*": "no key 'tall-*'; did you mean 'small-",
    "record-table:: toy": "expected suite@device, found 'toy'",
    "record-plot:: toy@cpu\n   :x: sizes\n   :y: bytes": "no parameter 'sizes'; did you mean",
    "record-plot:: toy@cpu\n   :x: size\n   :y: byte": "no metric 'byte'; did you mean 'bytes'",
    "record-plot:: toy@cpu\n   :x: size": "record-plot needs the option :y:",
}


@pytest.mark.parametrize("directive", DIRECTIVES)
def test_unknown_name_in_a_directive(project, directive):
    project.page(f".. {directive}\n")
    warnings, _ = project.build()
    line = INDEX.count("\n") + 1
    assert warnings.count("WARNING") == 1
    assert f"index.rst:{line}: WARNING: " in warnings
    assert DIRECTIVES[directive] in warnings
    assert "[records.unknown]" in warnings


def test_names_without_words(project):
    project.page(".. record-table:: toy@cpu\n   :names: small-a\n")
    assert "needs lines of the form 'key: words'" in project.build()[0]


@pytest.mark.parametrize("directive", ["record-table", "record-plot"])
def test_directive_for_an_absent_record(project, directive):
    options = "   :x: size\n   :y: bytes\n" if directive == "record-plot" else ""
    project.page(f".. {directive}:: toy@cuda\n{options}")
    assert "[records.absent]" in project.build()[0]
    project.page(f".. {directive}:: toy@cuda\n{options}   :if-absent: Not on CUDA yet.\n")
    clean(project)
    assert "Not on CUDA yet." in project.text()


def test_a_curve_of_one_point_is_not_drawn(project):
    one = LINES + "   :rows: small-*\n"
    project.page(f"{one}   :if-absent: No curve yet.\n\n{LINES}   :if-absent: No lines yet.\n")
    clean(project)
    assert "No curve yet." in project.text()
    assert len(plots(project)) == 1


# -- Plot ----------------------------------------------------------------------

LINES = ".. record-plot:: toy@cpu\n   :x: size\n   :y: bytes\n   :series: kind\n   :log: xy\n"
BARS = ".. record-plot:: toy@cpu\n   :x: kind\n   :y: time\n   :rows: small-*\n"


def plots(project):
    return re.findall(r"<svg.*?</svg>", project.html(), re.DOTALL)


def test_plots_share_a_page(project):
    project.page(f"{LINES}   :caption: Bytes of *two* kinds\n\n{BARS}\n")
    clean(project)
    found = plots(project)
    assert len(found) == 2
    roots = [ElementTree.fromstring(svg) for svg in found]  # well-formed, names escaped
    label = roots[0].get("aria-label").replace("\u00a0", " ")
    assert label == (
        "Bytes by size of a thing. At 1, the lowest is A (1.00 kB) and the highest is B <&> "
        "(13.2 kB), 13 times as much. At 4, the lowest is A (4.00 kB) and the highest is B <&> "
        "(26.4 kB), 6.6 times as much."
    )
    bars = roots[1].get("aria-label").replace("\u00a0", " ")
    assert bars == "Time by kind. Lowest: 30.0 ms at A; highest: 30.0 ms at A."
    assert [root.get("role") for root in roots] == ["img", "img"]
    names = re.findall(r'\bid="([^"]+)"', project.html())
    assert len(names) == len(set(names))
    referred = re.findall(r'(?:href="#|url\(#)(plot[^")]+)', "".join(found))
    assert referred
    assert set(referred) <= set(names)
    assert "<em>two</em>" in project.html()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((-66.0, 732.0), "At 4, the lowest is B (-66.0) and the highest is A (732.0)."),
        ((-300.0, -200.0), "At 4, the lowest is B (-300.0) and the highest is A (-200.0)."),
        ((0.0, 5.0), "At 4, the lowest is B (0.0) and the highest is A (5.0)."),
        ((-100.0, -98.0), "At 4, all are about -98.0."),
        ((0.0, 0.0), "At 4, all are about 0.0."),
        ((100.0, 104.0), "At 4, all are about 104.0."),
    ],
)
def test_an_alternative_text_says_no_ratio_of_values_below_zero(values, said):
    series = [
        SimpleNamespace(name=name, points=[(4, {"median": value})])
        for name, value in zip("BA", values, strict=True)
    ]
    assert content.described(series, SimpleNamespace(title="Return", text=str), "Size", "1") == (
        f"Return by size. {said}"
    )


def test_a_plot_links_its_own_values(project):
    project.page(f"{LINES}\n{BARS}\n")
    clean(project)
    links = re.findall(r'href="_downloads/records/([^"]*csv)"', project.html())
    assert links == ["index-plot0.csv", "index-plot1.csv"]
    published = project.folder / "html" / "_downloads" / "records"
    head, *lines, last = (published / links[1]).read_text("utf-8").split("\n")
    assert head == "key,title,kind,size,metric,unit,median,q1,q3,min,max,rounds"
    assert [line.split(",")[0] for line in lines] == ["small-a", "small-b"]
    assert {line.split(",time,")[1] for line in lines} == {"s,0.03,0.02,0.04,0.01,0.05,5"}
    assert last == ""


def test_plot_takes_the_color_of_the_text_and_styles_nothing_else(project):
    project.page(LINES)
    clean(project)
    (svg,) = plots(project)
    assert "currentColor" in svg
    assert "font-family: inherit" in svg
    for absent in ("<style", "DejaVu", "#000000", "#ffffff", "<metadata", "http://purl"):
        assert absent not in svg


def drawn(project):
    """The texts of the one drawing, and what its points say to a pointer."""
    (svg,) = plots(project)
    root = ElementTree.fromstring(svg)
    found = {"text": [], "title": []}
    for element in root.iter():
        name = element.tag.rpartition("}")[2]
        if name in found:
            found[name].append("".join(element.itertext()).strip().replace("\u00a0", " "))
    return found["text"], found["title"]


def test_a_plot_of_numbers_is_written_as_people_write(project):
    project.page(LINES)
    clean(project)
    texts, titles = drawn(project)
    assert texts == [
        *("1", "4"),  # along x
        *("1 kB", "3 kB", "10 kB", "30 kB"),
        "Bytes (log scale)",
        *("A 4.00 kB", "B <&> 26.4 kB"),  # beside the lines: there is no legend
        "Size of a thing",
    ]
    assert titles == ["A, 1: 1.00 kB", "A, 4: 4.00 kB", "B <&>, 1: 13.2 kB", "B <&>, 4: 26.4 kB"]


def test_a_plot_of_names_has_a_row_with_the_value_for_each(project):
    project.page(BARS)
    clean(project)
    texts, titles = drawn(project)
    assert texts == ["A", "B <&>", "Time", "30.0 ms", "30.0 ms"]
    assert titles[0] == "A: 30.0 ms (quartiles 20.0 ms and 40.0 ms)"


def test_values_of_a_plot_stand_in_a_table_that_opens(project):
    project.page(LINES.replace("bytes", "time"))
    clean(project)
    text = re.sub(r"\s*\n\s*", "|", project.text())
    assert "<details" in project.html()
    value = "30 ms (20–40) noisy"
    assert (
        "Values as a table; bars show the quartiles|Time|1|4|"
        f"A|{value}|{value}|B <&>|{value}|{value}|" in text
    )


def ratio_record(project):
    record = toy_record(project.library)
    meaning = {"title": "Time against pad", "description": "Time of it.", "unit": "1"}
    record["metrics"]["ratio"] = meaning | {"exact": False}
    for entry, times in zip(record["benchmarks"].values(), (1, 5, 9, 700), strict=True):
        entry["metrics"]["ratio"] = records.measurement([0.1 * times] * 5)
    project.save(record)
    return LINES.replace("bytes", "ratio")


def test_a_ratio_has_the_line_of_one_with_its_name(project):
    project.page(ratio_record(project))
    clean(project)
    texts, titles = drawn(project)
    assert texts[2:10] == [
        *("0.1×", "0.3×", "1×", "3×", "10×", "30×"),
        "Time against pad (log scale)",
        "Line at 1×: pad; lower is faster",
    ]
    assert titles == ["A, 1: 0.10×", "A, 4: 0.50×", "B <&>, 1: 0.90×", "B <&>, 4: 70×"]
    assert plots(project)[0].count("stroke-dasharray") == 1
    project.page(f"{ratio_record(project)}   :baseline: a packed one\n")
    clean(project)
    assert "Line at 1×: a packed one; lower is faster" in drawn(project)[0]


def test_a_series_without_a_look_is_a_warning_that_says_what_to_add(project):
    project.page(LINES)
    clean(project)
    project.series.write_text(SERIES.replace('"A"', '"C"'))
    warnings, _ = project.build()  # the page depends on the table
    assert warnings.splitlines() == [
        f"{project.docs / 'index.rst'}:8: WARNING: toy@cpu: {project.series} does not say how 'A' "
        'looks; add "A" = { look = "<color> <mark>" } to [kind] [records.unknown]'
    ]
    project.series.write_text(SERIES.replace("size", "sizes"))
    assert 'add "size" = { title = "…" } to [axes]' in project.build()[0]


SEVEN = "abcdefg"


def seven_series(project, panels, colors=tuple(COLORS)[:7]):
    """A record with as many series as no panel can name, of which each has one of the *panels*."""
    record = toy_record(project.library)
    times = [0.01, 0.02, 0.03, 0.04, 0.05]
    record["benchmarks"] = {
        f"small-{kind}{size}": entry(kind, 1000 + number, times, size=size, kind=kind)
        for number, kind in enumerate(SEVEN)
        for size in (1, 4)
    }
    project.save(record)
    marks = ("circle", "square", "triangle", "diamond", "wedge", "plus", "cross")
    looks = (
        f'{kind} = {{ look = "{color} {mark}", panel = "{panel}", short = "{kind}!" }}\n'
        for kind, color, mark, panel in zip(SEVEN, colors, marks, panels, strict=True)
    )
    project.series.write_text(SERIES[: SERIES.index('"A"')] + "".join(looks))
    project.page(LINES)


def test_more_series_than_one_panel_names_stand_in_panels(project):
    seven_series(project, ["One"] * 3 + ["Other"] * 4)
    clean(project)
    texts, _ = drawn(project)
    assert [text for text in texts if text in ("One", "Other")] == ["One", "Other"]
    assert sum("!" in text for text in texts) == 7
    assert texts.count("Size of a thing") == 1
    assert texts.count("4") == 1, "the panels share what stands along x"


def test_a_panel_with_too_many_series_is_a_warning(project):
    seven_series(project, ["One"] * 6 + ["Other"])
    warnings, _ = project.build()
    assert "index.rst:8: WARNING: toy@cpu: 6 series of 'kind' in one panel are too many" in warnings


def test_two_series_of_one_color_need_two_lines(project):
    project.page(LINES)
    project.series.write_text(SERIES.replace("orange square", "blue square"))
    warnings, _ = project.build()
    assert (
        "'A' and 'B <&>' have the same color and line in one panel; name another line" in warnings
    )
    project.series.write_text(SERIES.replace("orange square", "blue square dashed"))
    clean(project)
    assert plots(project)[0].count("stroke-dasharray") == 1
    project.page(BARS.replace(":y:", ":series: kind\n   :y:"))  # a panel for each
    project.series.write_text(SERIES.replace("orange square", "blue square"))
    clean(project)


@pytest.mark.slow
def test_builds_are_identical_in_other_processes_and_in_parallel(project):
    project.page(f"{EVERYWHERE}\n{LINES}\n{BARS}\n")
    for number in range(4):  # more pages than one process reads
        text = f":orphan:\n\nPage\n====\n{EVERYWHERE}\n"
        (project.docs / f"page{number}.rst").write_text(text)
    defines = [f"-D{name}={value}" for name, value in project.overrides.items()]
    found = []
    for seed, jobs in (("1", "1"), ("2", "2")):
        output = project.folder / f"html{seed}"
        options = ["-E", "-W", "-q", "-j", jobs, *defines, "-d", project.folder / f"trees{seed}"]
        variables = {"PYTHONHASHSEED": seed, "SOURCE_DATE_EPOCH": "1700000000"}
        run_python("-m", "sphinx", *options, project.docs, output, path=[ROOT], **variables)
        pages = sorted(output.rglob("*.html")) + sorted(output.rglob("*.json"))
        found.append({path.relative_to(output): path.read_bytes() for path in pages})
    assert len(found[0]) > 6
    assert found[0] == found[1]


# -- Index ---------------------------------------------------------------------


def test_index_shows_the_whole_stamp(project):
    clean(project)
    text = re.sub(r"\s*\n\s*", "|", project.text("stamps"))
    for expected in (
        "A toy (CPU)",
        "Measures nothing.",
        "Validity|code and stack unchanged",
        "Date|2026-01-02T03:04:05Z",
        f"Commit|{'0123456789' * 4}|",
        "Command|python -m benchmarks --device cpu --suite toy",
        f"Code|bench_large {project.library.hashes('toy')['bench_large'][:16]}…, bench_small ",
        "Processor|Toy CPU, 2 cores",
        "Memory|8 GB",
        "System|Linux, Python 3.11.7",
        "Environment variables|OMP_NUM_THREADS=1",
        "torch 2.15.0, torchrl 0.14.1, triton absent",
        "bytes|B, exact|All of them.",
        "time|s, median (quartiles) of 5 rounds after 1 unmeasured|Wall time.",
        "The keys small-* are small.",
        "B, large large-b|26,400 B|30 ms (20–40) noisy",
        "No record has been taken yet of toy@cuda.",
    ):
        assert expected in text, expected


def test_a_metric_that_this_device_has_not_is_said(project):
    record = json.loads(project.path.read_text())
    meaning = {"title": "Kernels", "description": "On a GPU.", "unit": "1", "exact": False}
    project.edit(metrics=record["metrics"] | {"kernels": meaning})
    clean(project)
    text = re.sub(r"\s*\n\s*", "|", project.text("stamps"))
    assert "kernels|no unit, not measured on this device|On a GPU." in text
