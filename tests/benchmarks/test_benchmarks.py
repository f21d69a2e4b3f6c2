"""The record format, the suites' own code, and what the committed records must say."""

import copy
import json
import re
import shutil
from collections import Counter
from statistics import median

import pytest

from benchmarks import __main__ as main
from benchmarks import comparison
from benchmarks import record as records
from benchmarks.checkpoint import Checkpoint
from benchmarks.kit import runner
from benchmarks.record import AbsentError, Library, RecordError, UnknownError
from tests.support import ROOT
from tests.support.claims import guards
from tests.support.programs import run_python
from tests.support.repository import git
from tests.support.suites import COMMITTED, benchmarks_of

FOOTPRINT = ROOT / "benchmarks" / "results" / "memory_footprint" / "cpu.json"


@pytest.fixture
def good():
    return json.loads(FOOTPRINT.read_text("utf-8"))


@pytest.fixture
def place(tmp_path):
    path = tmp_path / "benchmarks" / "results" / "memory_footprint" / "cpu.json"
    path.parent.mkdir(parents=True)
    return path


@pytest.fixture
def folder(tmp_path):
    """A copy of the benchmarks whose code a test may change."""
    shutil.copytree(
        ROOT / "benchmarks", tmp_path / "benchmarks", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(ROOT / "requirements-docs.txt", tmp_path)
    return Library(tmp_path / "benchmarks", tmp_path / "requirements-docs.txt")


def refusal(path, content):
    """The message with which *content* in *path* is refused."""
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    with pytest.raises(RecordError) as caught:
        records.load(path)
    message = str(caught.value)
    assert "benchmarks/results/memory_footprint/cpu.json" in message
    return message


# -- Format --------------------------------------------------------------------


def test_truncated_record_names_line_and_cure(good, place):
    message = refusal(place, json.dumps(good, indent=1)[:400])
    assert "cpu.json:" in message
    assert "expected JSON" in message
    assert "python -m benchmarks --device cpu --suite memory_footprint" in message


def test_future_version_asks_for_an_update(good, place):
    good["format"] = records.FORMAT + 1
    message = refusal(place, good)
    assert f"expected at most {records.FORMAT}, found {records.FORMAT + 1}" in message
    assert "Update the working copy" in message


def change(good, *keys, value):
    *way, last = keys
    for key in way:
        good = good[key]
    good[last] = value


VALUES = ("benchmarks", "compact-cartpole", "metrics", "bytes")
MISTYPED = {
    "old-format": (("format",), 0, "$.format: expected const 2, found 0"),
    "format-text": (("format",), "1", '$.format: expected const 2, found "1"'),
    "unit-number": (("metrics", "bytes", "unit"), 3, "$.metrics.bytes.unit: expected enum"),
    "unit-unknown": (
        ("metrics", "bytes", "unit"),
        "KiB",
        "expected enum B or s or % or 1, ",
    ),
    "median-text": (
        (*VALUES, "median"),
        "10000",
        "$.benchmarks['compact-cartpole'].metrics.bytes.median: expected type number",
    ),
    "rounds-zero": ((*VALUES, "rounds"), 0, "rounds: 0 is less than the minimum of 1"),
    "hash": (
        ("code", "bench_collect", "hash"),
        "abc",
        "$.code.bench_collect.hash: 'abc' does not match",
    ),
    "uncovered": (
        ("code", "bench_restore", "keys"),
        ["delta"],
        "expected the keys of the benchmarks, found a difference in ['delta']",
    ),
    "commit": (("taken", "commit"), "main", "$.taken.commit: 'main' does not match"),
    "extra": (("hostname",), "host", "'hostname' was unexpected"),
    "half-byte": ((*VALUES, "min"), 9999.5, "expected whole bytes"),
    "spread": ((*VALUES, "min"), 9999, "expected one exact value without spread"),
    "order": ((*VALUES, "min"), 10001, "expected min <= q1 <= median <= q3 <= max"),
    "other-suite": (("suite",), "other", "expected the record of memory_footprint@cpu"),
}


@pytest.mark.parametrize(("keys", "value", "expected"), MISTYPED.values(), ids=MISTYPED)
def test_mistyped_field_is_named(good, place, keys, value, expected):
    change(good, *keys, value=value)
    assert expected in refusal(place, good)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_numbers_are_finite(good, place, text):
    change(good, *VALUES, "median", value="@")
    message = refusal(place, json.dumps(good).replace('"@"', text))
    assert f"expected finite numbers, {text} is not a number" in message


def test_missing_field_is_named(good, place):
    del good["taken"]["commit"]
    assert "$.taken: 'commit' is a required property" in refusal(place, good)


def test_undeclared_metric_is_named(good, place):
    del good["metrics"]["bytes"]
    assert "metrics.bytes: expected one of the declared metrics" in refusal(place, good)


def test_negative_time_is_refused(good, place):
    times = good["benchmarks"]["compact-cartpole"]["metrics"]["collect_time"]
    times["min"] = -1.0
    assert "expected no negative amount, found -1.0" in refusal(place, good)


def test_record_that_is_no_object(place):
    assert "$: expected type object" in refusal(place, "[]")


# -- Writing -------------------------------------------------------------------


def test_saved_record_is_canonical(good, place):
    change(good, "benchmarks", "compact-cartpole", "metrics", "saving", value=sample(24.242424242))
    records.save(good, place)
    text = place.read_text("utf-8")
    assert records.load(place)["benchmarks"]["compact-cartpole"]["metrics"]["saving"] == sample(
        24.242
    )
    assert text.endswith("}\n")
    assert text == json.dumps(json.loads(text), indent=1, sort_keys=True) + "\n"
    records.save(records.load(place), place)
    assert place.read_text("utf-8") == text


def sample(value):
    return records.measurement([value])


def test_interrupted_write_leaves_the_old_record(good, place, monkeypatch):
    records.save(good, place)
    before = place.read_bytes()

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(records.os, "replace", stop)
    good["title"] = "another"
    with pytest.raises(KeyboardInterrupt):
        records.save(good, place)
    assert place.read_bytes() == before
    assert [path.name for path in place.parent.iterdir()] == ["cpu.json"]


def test_bad_record_is_not_written(good, place):
    good["device"] = "tpu"
    with pytest.raises(RecordError, match=r"\$\.device: expected enum cpu or cuda"):
        records.save(good, place)
    assert not place.exists()


def test_measurement_keeps_median_and_quartiles():
    found = records.measurement([4.0, 1.0, 3.0, 2.0, 5.0], warmup_rounds=2)
    assert found == {
        "min": 1.0,
        "q1": 2.0,
        "median": 3.0,
        "q3": 4.0,
        "max": 5.0,
        "iqr": 2.0,
        "rounds": 5,
        "warmup_rounds": 2,
    }
    assert records.measurement([3, 4])["median"] == 4


# -- The command ---------------------------------------------------------------


class Run:
    """Stands for pytest: writes the *lines* of a checkpoint, and returns *code*."""

    def __init__(self, *lines, code=0):
        self.lines, self.returncode = lines, code

    def __call__(self, command, **_):
        path = next(part.partition("=")[2] for part in command if "--checkpoint=" in part)
        for line in self.lines:
            Checkpoint(path).add(**line)
        return self


def suite():
    declared = {"title": "T", "description": "D", "exact": False}
    metrics = {"time": {**declared, "unit": "s"}, "peak": {**declared, "unit": "B"}}
    return {
        "suite": {
            "title": "A suite",
            "description": "Runs.",
            "metrics": metrics | {"size": {**declared, "unit": "B", "exact": True}},
            "machine": {
                **dict.fromkeys(("device_name", "cpu", "os", "python"), "text"),
                **dict.fromkeys(("cores", "memory"), 1),
            },
            "environment": {},
            "threads": 1,
        },
    }


def timed(key, name="bench_collect", times=(0.3, 0.1, 0.2), **noted):
    noted = {"timing": "time", "warmup_rounds": 3, "exact": {}, "sampled": {}} | noted
    extra = {"key": key, "title": key, "parameters": {"n": 1}, **noted}
    return {"passed": {"name": name, "extra_info": extra, "stats": {"data": list(times)}}}


@pytest.fixture
def command(folder, monkeypatch):
    monkeypatch.setattr(main, "LIBRARY", folder)
    monkeypatch.setattr(main, "ROOT", folder.folder.parent)
    return lambda run, **options: (
        monkeypatch.setattr(main.subprocess, "run", run),
        main.take("memory_footprint", "cpu", "0" * 40, False, **options),
    )[1]


def test_passed_suite_writes_its_record(folder, command):
    assert command(Run(suite(), timed("a", exact={"size": 8}, sampled={"peak": [3, 1, 2]})))
    record = folder.find("memory_footprint", "cpu")
    assert folder.outdated(record) == {}
    assert record["code"]["bench_collect"]["keys"] == ["a"]
    found = record["benchmarks"]["a"]["metrics"]
    assert (found["time"]["median"], found["time"]["rounds"]) == (0.2, 3)
    assert found["time"]["warmup_rounds"] == 3
    assert (found["size"]["median"], found["peak"]["median"]) == (8, 2)


def test_failed_suite_leaves_the_old_record(folder, command):
    path = folder.path("memory_footprint", "cpu")
    before = path.read_bytes()
    assert not command(Run(suite(), timed("a"), code=1))
    assert path.read_bytes() == before


def skip(name="bench_two[ray]", reason="could not import 'ray'"):
    return {"skipped": {"name": name, "reason": reason}}


def test_suite_that_cannot_run_leaves_the_old_record(folder, command, capsys):
    path = folder.path("memory_footprint", "cpu")
    before = path.read_bytes()
    assert command(Run(suite(), skip(), code=5))
    assert path.read_bytes() == before
    said = capsys.readouterr().out
    assert "memory_footprint@cpu: skipped bench_two[ray]: could not import 'ray'" in said
    assert "the old record is untouched" in said


def test_record_says_what_was_left_out(folder, command):
    assert command(Run(suite(), timed("a"), skip()))
    record = folder.find("memory_footprint", "cpu")
    assert record["skipped"] == [{"name": "bench_two[ray]", "reason": "could not import 'ray'"}]


def test_interrupted_run_goes_on_after_what_it_finished(folder, command, capsys):
    path = folder.path("memory_footprint", "cpu")
    before = path.read_bytes()
    with pytest.raises(SystemExit) as stopped:
        command(Run(suite(), timed("a"), code=2))
    assert stopped.value.code == 130
    assert path.read_bytes() == before
    assert "1 finished measurements are kept" in capsys.readouterr().out
    assert command(Run(suite(), timed("b", name="bench_sample")))
    assert "going on after 1 finished" in capsys.readouterr().out
    record = folder.find("memory_footprint", "cpu")
    assert sorted(record["benchmarks"]) == ["a", "b"]
    assert record["taken"]["sittings"] == 2


def test_two_processes_do_not_measure_one_suite(folder, command, capsys):
    class Second(Run):
        def __call__(self, call, **options):
            assert not main.take("memory_footprint", "cpu", "0" * 40, False)
            return super().__call__(call, **options)

    assert command(Second(suite(), timed("a")))
    assert "another process is measuring it" in capsys.readouterr().err
    assert list(folder.find("memory_footprint", "cpu")["benchmarks"]) == ["a"]


@pytest.mark.parametrize("change", ["code", "fresh"])
def test_kept_measurements_of_other_code_do_not_count(folder, command, change):
    assert not command(Run(suite(), timed("a"), code=1))
    if change == "code":
        with folder.module("memory_footprint").open("a") as file:
            file.write("torch.manual_seed(0)\n")
    assert command(Run(suite(), timed("b")), fresh=change == "fresh")
    record = folder.find("memory_footprint", "cpu")
    assert list(record["benchmarks"]) == ["b"]
    assert record["taken"]["sittings"] == 1


def test_noisy_machine_is_named(folder, command, capsys):
    quiet, loud = [1, 1.01, 1.02, 1.03], [1, 1.5, 2, 2.5]
    assert command(Run(suite(), timed("a", times=quiet), timed("b", "bench_sample", times=loud)))
    record = folder.find("memory_footprint", "cpu")
    assert record["noise"] == {"bound": records.NOISE_BOUND, "above": ["b:time"]}
    assert "1 of 2 values are noisy: b:time" in capsys.readouterr().out


def test_record_cannot_hide_its_noise(good, place):
    good["noise"] = {"bound": 0.0001, "above": []}
    assert "$.noise.above: expected ['" in refusal(place, good)


SUITE = '''"""A toy.

It measures nothing.
"""

import os

import pytest

from benchmarks import measure

METRICS = {"time": {"title": "T", "description": "D", "unit": "s", "exact": False}}


@pytest.mark.parametrize("key", ["a", "b", "c"])
def bench_one(benchmark, device, key):
    if key == "c":
        pytest.importorskip("no_such_package")
    with open("ran.txt", "a") as ran:
        ran.write(key)
    if key == "b" and os.environ.get("INTERRUPT"):
        raise KeyboardInterrupt
    measure.timed(benchmark, device, int)
    measure.note(benchmark, key, "time", title=key, parameters={"n": 1})
'''


def test_a_real_run_that_is_interrupted_loses_nothing(folder):
    """The plugin in conftest.py and the command together, in processes of their own."""
    root = folder.folder.parent
    folder.module("toy").write_text(SUITE)
    shutil.copy(ROOT / "pyproject.toml", root)
    command = ("-m", "benchmarks", "--suite", "toy", "--commit", "0" * 40)
    for interrupt, code in (("1", 130), ("", 0)):
        done = run_python(*command, cwd=root, status=code, INTERRUPT=interrupt)
        assert folder.path("toy", "cpu").is_file() == (code == 0)
    assert (root / "ran.txt").read_text() == "abb"
    assert "skipped bench_one[c]: could not import 'no_such_package'" in done.stdout
    record = folder.find("toy", "cpu")
    assert sorted(record["benchmarks"]) == ["a", "b"]
    assert record["taken"]["sittings"] == 2
    assert [one["name"] for one in record["skipped"]] == ["bench_one[c]"]
    assert not list((root / "build" / "benchmarks").glob("*.jsonl"))


# -- Comparison ----------------------------------------------------------------


def test_equal_records_compare(good):
    rows = comparison.compare(good, good)
    assert rows
    assert all(row.overlaps and row.factor in (1, None) for row in rows)


def test_a_difference_is_told_from_noise(good):
    slower = copy.deepcopy(good)
    key = "compact-cartpole"
    for point in ("min", "q1", "median", "q3", "max"):
        slower["benchmarks"][key]["metrics"]["collect_time"][point] *= 3
    differs = [row for row in comparison.compare(good, slower) if not row.overlaps]
    assert [(row.key, row.metric) for row in differs] == [(key, "collect_time")]
    assert "factor 3: differs" in str(differs[0])


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        (("suite",), "other", "suite memory_footprint against other"),
        (("code", "bench_sample", "hash"), "0" * 64, "code of bench_sample "),
        (("device",), "cuda", "device cpu against cuda"),
        (("taken", "threads"), 8, "threads 1 against 8"),
        (("versions", "torchrl"), "0.13.0", "torchrl 0.14.1 against 0.13.0"),
    ],
)
def test_other_work_does_not_compare(good, keys, value, said):
    other = copy.deepcopy(good)
    change(other, *keys, value=value)
    with pytest.raises(comparison.IncomparableError, match=f"do not compare: {said}"):
        comparison.compare(good, other)


def test_the_command_says_why_it_does_not_compare(capsys):
    paths = [COMMITTED.path(name, "cpu") for name in ("memory_footprint", "collector_sync")]
    assert main.compare(*paths) == 2
    assert "suite memory_footprint against collector_sync" in capsys.readouterr().err
    assert main.compare(FOOTPRINT, FOOTPRINT) == 0
    assert "compact-cartpole:collect_time" in capsys.readouterr().out


def test_repetition_names_the_value_that_moved_most(good):
    other = copy.deepcopy(good)
    for point in ("min", "q1", "median", "q3", "max"):
        other["benchmarks"]["compact-cartpole"]["metrics"]["collect_time"][point] *= 2
    found = comparison.repeat(good, other, ["collect_time"])
    assert found.where == "compact-cartpole:collect_time"
    assert found.largest == 1
    assert found.typical == 0
    assert found.within == found.values - 1
    with pytest.raises(UnknownError, match="did you mean 'collect_time'"):
        comparison.repeat(good, other, ["collet_time"])


def test_two_values_of_one_metric_are_refused(command):
    with pytest.raises(SystemExit, match="bench_sample: a has time already"):
        command(Run(suite(), timed("a"), timed("a", name="bench_sample")))


def test_code_edited_during_the_run_outdates_the_record(folder, command):
    class Edit(Run):
        def __call__(self, command, **options):
            path = folder.folder / "measure.py"
            path.write_text(path.read_text("utf-8") + "torch.manual_seed(0)\n", "utf-8")
            return super().__call__(command, **options)

    assert command(Edit(suite(), timed("a")))
    record = folder.find("memory_footprint", "cpu")
    assert folder.outdated(record) == {"a": ["the code of bench_collect has changed"]}


def test_check_lists_outdated_records(folder, monkeypatch, capsys):
    monkeypatch.setattr(main, "LIBRARY", folder)
    folder.module("memory_recurrent").write_text("")
    folder.path("memory_footprint", "cpu").write_text("{")
    assert main.list_outdated() == 1
    lines = capsys.readouterr().out.splitlines()
    assert any("memory_footprint/cpu.json:1:2: expected JSON" in line for line in lines)
    assert "memory_recurrent@cpu: the code of bench_step has changed" in lines
    assert "networks@cpu replicate: valid" in lines


def test_tree_without_git_asks_for_the_commit(monkeypatch, tmp_path):
    monkeypatch.setattr(main, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(SystemExit, match="pass --commit SHA"):
        main.state_of_tree(None)
    assert main.state_of_tree("0" * 40) == ("0" * 40, False)


@pytest.mark.parametrize(
    ("changed", "dirty"),
    [("results/a/cpu.json", False), ("replicates/a/cpu.json", False), ("suites/bench_a.py", True)],
)
def test_records_make_no_tree_dirty(monkeypatch, tmp_path, changed, dirty):
    monkeypatch.setattr(main, "ROOT", tmp_path)
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "--message", "a")
    path = tmp_path / "benchmarks" / changed
    path.parent.mkdir(parents=True)
    path.write_text("")
    assert main.state_of_tree(None)[1] == dirty


# -- Hash and validity ---------------------------------------------------------


@pytest.mark.parametrize("name", records.MEASURED)
def test_another_version_outdates(folder, good, name):
    good["versions"].update(folder.pins())
    assert folder.outdated(good) == {}
    good["versions"]["torch"] += "+cpu"
    assert folder.outdated(good) == {}
    good["versions"][name] = "0.0.1"
    reason = f"taken with {name} 0.0.1, this site uses {folder.pins()[name]}"
    assert folder.outdated(good) == {key: [reason] for key in good["benchmarks"]}


def test_another_torch_is_remarked_and_does_not_outdate(folder, good):
    good["versions"].update(folder.pins(), torch=f"{folder.pins()['torch']}+cu130")
    assert folder.remark(good) == ""
    good["versions"]["torch"] = "0.0.1"
    assert folder.outdated(good) == {}
    assert folder.remark(good) == f"this site uses torch {folder.pins()['torch']}"


def test_missing_pin_is_named(folder):
    folder.requirements.write_text("torch==2.15.0\ntensordict==0.14.3\n")
    with pytest.raises(RecordError, match="expected a line torchrl==<version>"):
        folder.pins()


def test_unknown_names_suggest_the_nearest(good):
    with pytest.raises(UnknownError, match="no suite 'memory_footprnt'; did you mean 'memory_foot"):
        COMMITTED.find("memory_footprnt", "cpu")
    with pytest.raises(UnknownError, match="no device 'gpu'"):
        COMMITTED.find("memory_footprint", "gpu")
    with pytest.raises(UnknownError, match="no key 'compact-cartpol'; did you mean 'compact-cartp"):
        records.value(good, "compact-cartpol", "bytes")
    with pytest.raises(UnknownError, match="no metric 'byte'; did you mean 'bytes'"):
        records.value(good, "compact-cartpole", "byte")


def test_absent_record_is_told_apart(folder):
    folder.path("memory_footprint", "cpu").unlink()
    with pytest.raises(AbsentError, match="Take it: python -m benchmarks --device cpu"):
        folder.find("memory_footprint", "cpu")


def test_plain_text_of_the_role(folder, good):
    good["versions"].update(folder.pins())
    records.save(good, folder.path("memory_footprint", "cpu"))
    address = "memory_footprint@cpu:compact-cartpole:bytes"
    assert folder.plain(address) == "10,000\u00a0B"
    assert folder.plain("memory_footprint@cuda:any:bytes|not yet") == "not yet"
    with pytest.raises(AbsentError):
        folder.plain("memory_footprint@cuda:any:bytes")
    (folder.folder / "measure.py").write_text("")
    assert folder.plain(address) == records.AGAIN


# -- Text ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("B", 13200, "13,200 B"),
        ("B", 66, "66 B"),
        ("B", 50_600_000, "50.6 MB"),
        ("B", 25_000_000_000, "25 GB"),
        ("%", 24.242, "24.24 %"),
        ("%", 0.0, "0 %"),
        ("%", -24.242, "\N{MINUS SIGN}24.24 %"),
        ("s", 0.042345, "42.3 ms"),
        ("s", 2.0, "2 s"),
        ("s", 0.9997, "1,000 ms"),
        ("s", 7.1e-5, "71 µs"),
        ("s", 5e-10, "0.5 ns"),
        ("1", 1.19e-7, "1.2e-7"),
        ("1", 0.0, "0"),
        ("1", 0.957, "0.96"),
        ("1", 1.057, "1.06"),
        ("1", 999.7, "1,000"),
        ("1", 4025.4975, "4,025"),
    ],
)
def test_text_has_the_unit(unit, value, text):
    assert records.text(unit, value) == text.replace(" ", "\u00a0")


# -- Committed records ---------------------------------------------------------


@pytest.mark.parametrize(("suite", "device"), COMMITTED.taken())
def test_committed_record_is_well_formed_and_clean(suite, device):
    record = COMMITTED.find(suite, device)
    text = COMMITTED.path(suite, device).read_text("utf-8")
    assert not record["taken"]["dirty"], "take it again from a committed tree"
    assert not re.search(r"/(root|home|tmp)/", text), "a record names no place on its machine"


def test_every_suite_has_a_cpu_record():
    assert {(suite, "cpu") for suite in COMMITTED.suites()} <= set(COMMITTED.taken())


@pytest.mark.parametrize("device", sorted({device for _, device in COMMITTED.taken()}))
def test_a_record_has_an_entry_for_each_run_of_a_benchmark(device):
    """Or says why not. Two runs that note the same key would leave an entry too few."""
    runs, _ = runner.survey(COMMITTED.suites(), "cpu", every=device == "cuda")
    for suite in (suite for suite, other in COMMITTED.taken() if other == device):
        record = COMMITTED.find(suite, device)
        left_out = [one["name"] for one in record.get("skipped", ())]
        left_out += record.get("unmeasured", ())
        found = Counter(run.partition("[")[0] for run in left_out)
        found.update({name: len(function["keys"]) for name, function in record["code"].items()})
        own = (run.removeprefix(f"{suite}:") for run in runs if run.startswith(f"{suite}:"))
        assert found == Counter(run.partition("[")[0] for run in own), f"take {suite} again"


CARTPOLE_BYTES = {
    "default": 13_200,
    "compact": 10_000,
    "delta": 11_600,
    "compact-delta": 11_600,
    "no-traj-ids": 11_600,
    "step-counter": 16_400,
    "compact-step-counter": 11_600,
}


@pytest.mark.parametrize("configuration", CARTPOLE_BYTES)
def test_cartpole_bytes(good, configuration):
    expected = CARTPOLE_BYTES[configuration]
    metrics = good["benchmarks"][f"{configuration}-cartpole"]["metrics"]
    assert metrics["bytes"]["median"] == expected
    assert metrics["bytes_per_frame"]["median"] == expected // 200
    saving = 100 * (13_200 - expected) / 13_200
    assert metrics["saving"]["median"] == pytest.approx(saving, rel=1e-4)


def test_saving_grows_with_the_observation_and_stays_below_half(good):
    names = ("float32-4", "float32-64", "float32-256", "float32-1024", "uint8-4x84x84")
    savings = [
        good["benchmarks"][f"compact-{name}"]["metrics"]["saving"]["median"] for name in names
    ]
    assert savings == sorted(savings)
    assert savings[-1] == pytest.approx(49.97, abs=0.005)
    assert all(saving < 50 for saving in savings)


def test_a_process_saves_less_than_its_batch(good):
    metrics = good["benchmarks"]["compact-uint8-4x84x84"]["metrics"]
    assert 0 < metrics["resident_saving"]["max"] < metrics["saving"]["median"]


@pytest.mark.parametrize("shape", ["84x84", "4x84x84"])
def test_delta_saves_nothing_on_integers(good, shape):
    assert good["benchmarks"][f"delta-uint8-{shape}"]["metrics"]["saving"]["median"] == 0


def test_backends_agree_and_recompute_needs_least_memory():
    benchmarks = benchmarks_of("memory_recurrent")
    for cell in ("gru", "lstm"):
        for steps in (32, 128):
            metrics = {
                backend: benchmarks[f"{cell}-{backend}-t{steps}"]["metrics"]
                for backend in ("pad", "scan", "scan-recompute")
            }
            peak = {name: values["peak_memory"]["median"] for name, values in metrics.items()}
            assert peak["scan-recompute"] < peak["pad"] < peak["scan"]
            for values in metrics.values():
                assert values["output_error"]["max"] < 1e-6
                assert values["gradient_error"]["max"] < 1e-5


REPEATED = dict(
    re.findall(r"^ +(\w+)@cpu: (.+)$", (ROOT / "docs/reference/records.rst").read_text(), re.M)
)


def repeated(suite):
    first, second = COMMITTED.find(suite, "cpu"), records.load(COMMITTED.replicate(suite, "cpu"))
    return first, second, comparison.repeat(first, second, REPEATED[suite].split())


@pytest.mark.parametrize("suite", REPEATED)
def test_ratios_repeat_on_the_same_machine(suite):
    first, second, found = repeated(suite)
    assert first["machine"] == second["machine"]
    assert first["taken"]["date"] != second["taken"]["date"]
    assert not second["taken"]["dirty"]
    assert found.typical < records.NOISE_BOUND / 2


@guards("ratios-moved-little", "least-certain-suites")
def test_all_but_a_few_ratios_repeat():
    found = [repeated(suite)[2] for suite in REPEATED]
    by_certainty = sorted(REPEATED, key=lambda suite: repeated(suite)[2].typical)
    assert {*by_certainty[-4:]} == {
        "collectors",
        "weight_sync",
        "weight_sync_ray",
        "weight_sync_server",
    }
    values = sum(one.values for one in found)
    assert median(one.typical for one in found) < records.NOISE_BOUND / 8
    assert 0.95 * values < sum(one.within for one in found) < values


def test_a_round_without_a_value_is_left_out():
    noted = {"key": "sb3", "title": "SB3", "parameters": {}, "exact": {}}
    noted |= {"sampled": {"score": [2.5, None, 1.5], "row": [8.0], "half": [8.5]}}
    entry = {"name": "bench_it", "extra_info": noted | {"timing": "time", "warmup_rounds": 0}}
    declared = {"score": {"unit": "1"}, "row": {"unit": "B"}, "half": {"unit": "B"}}
    found = main.merge([entry | {"stats": {"data": [1.0]}}], declared)["sb3"]["metrics"]
    assert (found["score"]["rounds"], found["score"]["median"]) == (2, 2.0)
    assert type(found["row"]["median"]) is int
    assert found["half"]["median"] == 8.5  # which the check of the record refuses


@guards("second-records-taken")
def test_every_second_record_is_shown():
    assert COMMITTED.replicates() == [(suite, "cpu") for suite in sorted(REPEATED)]
    once = set()
    for suite in COMMITTED.suites():
        found = benchmarks_of(suite).values()
        ratios = {name for one in found for name in one["metrics"] if name.startswith("time_vs_")}
        if not ratios <= set(REPEATED.get(suite, "").split()):
            once.add(suite)
    assert once == {"recipe_ppo_cartpole", "recipe_ppo_resident", "recipe_sac_halfcheetah"}
