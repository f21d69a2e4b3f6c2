"""Builds fixture projects with the extension ``records`` and reads what a reader would see."""

import html
import json
import os
import re
import subprocess
import sys
from io import StringIO
from xml.etree import ElementTree

import pytest
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

from benchmarks import record as records
from tests.support import ROOT

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
STAMPS = "Stamps\n======\n\n.. record-index::\n"


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
        "description": "Measures nothing.",
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


def test_site_without_index_says_where_stamps_belong(project):
    project.page("Takes :measured:`toy@cpu:small-b:bytes`.")
    (project.docs / "stamps.rst").write_text("Stamps\n======\n")
    warnings, _ = project.build()
    assert "no page shows the stamp of toy@cpu; put '.. record-index::' on one" in warnings


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
    assert project.text().count("13,200 B") == 2
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
    assert "B, small 13,200 B 30 (20–40) ms, noisy small-b" in stamps
    assert f"B, large {AGAIN} {AGAIN} large-b" in stamps
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
    assert project.text().count("13,200 B") == 2
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
        "|B, large|30 (20–40) ms, noisy|26,400 B|B, small|30 (20–40) ms, noisy|13,200 B|A, small|"
        in text
    )
    assert "A, large" not in text
    assert "Measured on Toy CPU, 2 cores, 1 thread; torch 2.15.0" in text
    assert 'href="_downloads/records/toy-cpu.json"' in project.html()
    published = project.folder / "html" / "_downloads" / "records" / "toy-cpu.json"
    assert published.read_bytes() == project.path.read_bytes()


DIRECTIVES = {
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


@pytest.mark.parametrize("directive", ["record-table", "record-plot"])
def test_directive_for_an_absent_record(project, directive):
    options = "   :x: size\n   :y: bytes\n" if directive == "record-plot" else ""
    project.page(f".. {directive}:: toy@cuda\n{options}")
    assert "[records.absent]" in project.build()[0]
    project.page(f".. {directive}:: toy@cuda\n{options}   :if-absent: Not on CUDA yet.\n")
    clean(project)
    assert "Not on CUDA yet." in project.text()


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
    label = "Bytes by size. A: 1: 1,000 B, 4: 4,000 B; B <&>: 1: 13,200 B, 4: 26,400 B."
    assert roots[0].get("aria-label").replace("\u00a0", " ") == label
    assert [root.get("role") for root in roots] == ["img", "img"]
    names = re.findall(r'\bid="([^"]+)"', project.html())
    assert len(names) == len(set(names))
    referred = re.findall(r'(?:href="#|url\(#)(plot[^")]+)', "".join(found))
    assert referred
    assert set(referred) <= set(names)
    assert "<em>two</em>" in project.html()


def test_plot_takes_the_color_of_the_text_and_styles_nothing_else(project):
    project.page(LINES)
    clean(project)
    (svg,) = plots(project)
    assert "currentColor" in svg
    assert "font-family: inherit" in svg
    for absent in ("<style", "DejaVu", "#000000", "#ffffff", "<metadata", "http://purl"):
        assert absent not in svg


def relative_luminance(color):
    channels = (int(color[index : index + 2], 16) / 255 for index in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("background", ["#ffffff", "#14181e"])  # the theme's, light and dark
def test_series_stand_out_from_the_background(background):
    from docs._ext.support import charts

    for color, _ in charts.STYLES:
        high, low = sorted(map(relative_luminance, (color, background)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 3, f"{color} on {background}"


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
        command = [sys.executable, "-m", "sphinx", "-E", "-W", "-q", "-j", jobs, *defines]
        subprocess.run(
            [*command, "-d", str(project.folder / f"trees{seed}"), str(project.docs), str(output)],
            env=os.environ
            | {
                "PYTHONHASHSEED": seed,
                "PYTHONPATH": str(ROOT),
                "SOURCE_DATE_EPOCH": "1700000000",
            },
            check=True,
        )
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
        "B, large|26,400 B|30 (20–40) ms, noisy|large-b",
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


def test_extension_imports_no_torch():
    code = (
        "import docs._ext.records, docs._ext.records.directives, sys; "
        "print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert run.stdout.split() == ["False", "False"]
