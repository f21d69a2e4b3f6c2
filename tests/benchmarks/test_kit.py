"""The kit that takes records on a machine with a time limit a command, with suites that fail."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import types
import zipfile
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as main
from benchmarks import record as records
from benchmarks.kit import __main__ as command
from benchmarks.kit import pack, plan, plugin, runner, state
from tests.support import ROOT

COMMIT = "0" * 40
TORCH = torch.__version__
SUITE = '''"""A toy.

It measures nothing.
"""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from benchmarks import measure

METRICS = {"time": {"title": "T", "description": "D", "unit": "s", "exact": False}}
LARGE = os.environ.get("LARGE", "")


def hang():
    Path("child.txt").write_text(str(subprocess.Popen(["sleep", "600"]).pid))
    time.sleep(600)


def unloaded():
    raise RuntimeError("SumSegmentTreeFp32 is not available. See warning above.")


def wait():
    while not Path("go.txt").exists():
        time.sleep(0.05)


WAYS = {
    "good": int,
    "hangs": hang,
    "wrong": lambda: pytest.fail("1 is not 2 in /tmp/a/b"),
    "absent": lambda: pytest.importorskip("no_such_package"),
    "unloaded": unloaded,
    "dies": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "last": wait,
}


@pytest.mark.parametrize("way", WAYS)
def bench_one(benchmark, device, way):
    with open("ran.txt", "a") as ran:
        ran.write(way + " ")
    WAYS[way]()
    measure.timed(benchmark, device, int)
    measure.note(benchmark, way, "time", title=way, parameters={"large": LARGE})


@pytest.mark.cuda
def bench_gpu(benchmark):
    raise AssertionError("there is no GPU")
'''
PLAN = """
longest = {longest}
first = 1
start = 1
end = 1
kernels = ["toy"]
warm = {warm}
warm_seconds = 60
late = []
[[piece]]
title = "The end first"
seconds = 100
benchmarks = {first}
[[piece]]
title = "The rest"
seconds = 100
benchmarks = {rest}
"""


# What the harness asks of torch on the CPU: each process of a command would import all of it.
STUB = f"""\
from types import SimpleNamespace

__version__ = {TORCH!r}
backends = SimpleNamespace(cudnn=SimpleNamespace())


def device(name):
    return SimpleNamespace(type=name)


def set_num_threads(number):
    assert number == 1


def get_num_threads():
    return 1
"""


class Place:
    """A project with one suite and a plan, in which the kit runs as a process.

    With a stub in the place of torch, unless *real*.
    """

    def __init__(self, root, real=False):
        self.root = root
        if not real:
            (root / "torch").mkdir(parents=True)
            (root / "torch" / "__init__.py").write_text(STUB)
            (root / "torch" / "profiler.py").write_text("ProfilerActivity = profile = None\n")
        ignored = shutil.ignore_patterns("__pycache__", "bench_*.py", "results", "replicates")
        shutil.copytree(ROOT / "benchmarks", root / "benchmarks", ignore=ignored)
        for name in ("pyproject.toml", "requirements-docs.txt"):
            shutil.copy(ROOT / name, root)
        self.go = root / "go.txt"
        self.go.touch()
        self.library = records.Library(root / "benchmarks", root / "requirements-docs.txt")
        self.library.module("toy").write_text(SUITE)
        self.plan()

    def plan(self, *first, longest=60, rest="toy:bench_gpu", warm=()):
        """Only the benchmarks *first*: bench_gpu has nothing to do on the CPU."""
        first = [f"toy:bench_one[{way}]" for way in first]
        texts = {"first": json.dumps(first), "rest": json.dumps([rest]), "warm": json.dumps(warm)}
        text = PLAN.format(longest=longest, **texts)
        (self.root / "plan.toml").write_text(text)

    def command(self, verb, *arguments):
        words = [sys.executable, "-m", "benchmarks.kit", "--plan", "plan.toml", verb]
        return [*words, *map(str, arguments)]

    def common(self, out):
        return ["--device", "cpu", "--commit", COMMIT, "--limit", 240, "--out", out]

    def __call__(self, verb, *arguments, code=0, **options):
        done = subprocess.run(
            self.command(verb, *arguments),
            cwd=self.root,
            capture_output=True,
            text=True,
            check=False,
            **options,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def run(self, out, *arguments, **options):
        return self("run", *self.common(out), *arguments, **options)

    def part(self, folder):
        return state.State(self.root / folder).part("toy")

    def lines(self, folder):
        return (self.root / folder / state.NAME).read_text().splitlines(keepends=True)

    def write(self, folder, lines):
        (self.root / folder).mkdir()
        (self.root / folder / state.NAME).write_text("".join(lines))

    def ran(self):
        path = self.root / "ran.txt"
        return path.read_text().split() if path.exists() else []


PLANNED = plan.Plan(60, 1, 1, 1, [], [], 0, [], (), {})


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A place in which "good" has been measured, into the folder "first"."""
    place = Place(tmp_path_factory.mktemp("begun"))
    place.plan("good")
    place.run("first")
    return place


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


# -- A command -------------------------------------------------------------------


def test_what_fails_hangs_or_dies_does_not_take_the_rest_along(place):
    place.plan("last", longest=6, rest="toy")
    said = place.run("out")
    assert place.ran() == ["last", "good", "hangs", "wrong", "absent", "unloaded", "dies"]
    part = place.part("out")
    assert [one["name"] for one in part.finished] == ["bench_one[last]", "bench_one[good]"]
    absent = "could not import 'no_such_package': No module named 'no_such_package'"
    reasons = {
        "bench_one[absent]": absent,
        "bench_one[dies]": "died: the process ended with -9",
        "bench_one[hangs]": "hung: took longer than 6 s and was ended",
        "bench_one[unloaded]": f"torchrl's C++ extension does not load beside torch {TORCH}",
        "bench_one[wrong]": "failed: Failed: 1 is not 2 in .../b",
    }
    assert part.skipped == reasons
    assert "toy: 2 of 7" in said
    assert not alive(int((place.root / "child.txt").read_text()))

    place("records", "--state", "out")
    path = place.library.path("toy", "cpu")
    record = records.load(path)
    assert sorted(record["benchmarks"]) == ["good", "last"]
    assert {one["name"]: one["reason"] for one in record["skipped"]} == reasons
    assert "unmeasured" not in record
    assert place.library.outdated(record) == {}
    assert record["taken"]["commit"] == COMMIT

    before = path.read_bytes()
    result = '"passed": {"name": "bench_one[last]"'
    place.write("part", [line for line in place.lines("out") if result not in line])
    assert "is whole and stands" in place("records", "--state", "part")
    assert path.read_bytes() == before


def test_a_killed_command_loses_nothing(tmp_path):
    """The next one goes on, even after a line that was cut off while it was written.

    What the killed one has left behind ends what it had begun, and begins nothing else.
    """
    place = Place(tmp_path, real=True)
    place.plan("good", "last", "wrong")
    place.go.unlink()
    words = place.command("run", *place.common("first"))
    with subprocess.Popen(words, cwd=place.root, stdout=subprocess.DEVNULL) as kit:
        patience = time.monotonic() + 120
        while "last" not in place.ran():
            assert time.monotonic() < patience
            time.sleep(0.1)
        kit.kill()
    orphan = place.lines("first")
    place.go.touch()
    place.write("killed", [*orphan, orphan[-1][:20]])
    place.run("second", "--state", "killed")
    assert place.ran() == ["good", "last", "last", "wrong"]
    found = [one["name"] for one in place.part("second").finished]
    assert found == ["bench_one[good]", "bench_one[last]"]


def test_a_benchmark_that_does_not_fit_is_not_begun(begun):
    place = begun
    cut = {"name": "bench_one[last]", "seconds": 500}
    place.write("cut", [*place.lines("first"), json.dumps({"of": "toy", "cut": cut}) + "\n"])
    place.plan("good", "last")
    place.run("second", "--state", "cut")
    assert place.ran() == ["good"]
    assert "5 not measured yet" in place("records", "--state", "second")
    record = place.library.find("toy", "cpu")
    reason = "had run for 500 s when the time was over"
    assert record["skipped"] == [{"name": "bench_one[last]", "reason": reason}]
    assert "bench_one[last]" not in record["unmeasured"]
    with pytest.raises(records.AbsentError, match="is not measured yet"):
        records.value(record, "last", "time")


def test_a_benchmark_is_ended_with_the_time(tmp_path, header):
    """It is no failure of the benchmark, which begins anew where there is more time."""
    kept = state.State(tmp_path)
    kept.begin(header, [])
    part = kept.part("toy")
    found = runner.Runner(PLANNED, kept, "cpu", limit=0, commit=COMMIT, dirty=False)
    found.child = subprocess.Popen(["sleep", "600"], process_group=0)
    part.add(started={"name": "slow", "at": time.time() + 1})
    with kept.path.open("a") as file:
        file.write('{"of": "toy", "pas')  # the child is killed while it writes
    assert not found.watch(part, ["slow"])
    assert found.child.returncode == -signal.SIGKILL
    assert list(part.seconds()) == ["slow"]
    assert part.ended() == set()
    assert part.skipped == {}


def test_a_suite_that_does_not_start_is_given_up(tmp_path, header, monkeypatch):
    """None of its benchmarks has begun: none of them is to blame."""
    kept = state.State(tmp_path)
    kept.begin(header, [])
    monkeypatch.setattr(runner, "START_S", 0)
    found = runner.Runner(PLANNED, kept, "cpu", limit=600, commit=COMMIT, dirty=False)
    found.child = subprocess.Popen(["sleep", "600"], process_group=0)
    assert not found.watch(kept.part("toy"), ["first"])
    assert found.child.returncode == -signal.SIGKILL
    assert kept.part("toy").skipped == {}


# -- States ------------------------------------------------------------------------


@pytest.fixture
def header():
    return {
        "device": "cuda",
        "machine": {"device_name": "A", "device_memory": 8},
        "versions": {"torch": "2.11.0", "torchrl": "0.14.1"},
        "code": {"toy": "0", "other": "1"},
        "rehearsal": False,
    }


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("machine", {"device_name": "B", "device_memory": 8}, "device_name A against B"),
        ("versions", {"torch": "2.15.0", "torchrl": "0.14.1"}, "torch 2.11.0 against 2.15.0"),
        ("versions", {"torch": "2.11.0"}, "torchrl 0.14.1 against None"),
        ("code", {"toy": "2", "other": "1"}, "the code of toy has changed"),
        ("device", "cpu", "device cuda against cpu"),
        ("rehearsal", True, "a rehearsal measures nothing"),
    ],
)
def test_a_state_of_another_machine_or_code_is_refused(tmp_path, header, field, value, said):
    one = state.State(tmp_path / "one")
    one.begin(header, [])
    state.State(tmp_path / "two").begin(header, [one])
    with pytest.raises(state.StateError, match=said):
        state.State(tmp_path / "two").begin(header | {field: value}, [one])


def test_what_failed_is_measured_once_more_on_request(tmp_path, header):
    one = state.State(tmp_path / "one")
    one.begin(header, [])
    for name, how in (("a", "failed"), ("b", "hung"), ("c", "died"), ("d", "skipped")):
        one.part("toy").add(**{how: {"name": name, "reason": "it did"}})
    for retry, ended in ((False, {"a", "b", "c", "d"}), (True, {"d"})):
        again = state.State(tmp_path / f"{retry}")
        again.begin(header, [one], retry)
        assert again.part("toy").ended() == ended


def test_the_command_names_what_differs(begun):
    suite = begun.library.module("toy")
    text = suite.read_text()
    suite.write_text(text.replace('"good": int', '"good": float'))
    said = begun.run("third", "--state", "first", code=2)
    suite.write_text(text)
    assert "does not go on here: the code of toy:bench_gpu, toy:bench_one has changed" in said
    said = begun.run("fourth", "--state", "nowhere", code=2)
    assert "is missing or is no state of this kit" in said


def test_two_states_make_one_record(tmp_path, header):
    """What both hold counts once; a reason goes where the other state has a result."""
    kept = [state.State(tmp_path / name) for name in ("one", "two")]
    for number, one in enumerate(kept):
        one.begin(header, [])
        part = one.part("toy")
        part.add(state={"commit": COMMIT})
        part.add(every=["a", "b", "c", "d"])
        part.add(passed={"name": "a", "from": number})
    kept[0].part("toy").add(failed={"name": "b", "reason": "early"})
    kept[1].part("toy").add(passed={"name": "b"})
    kept[1].part("toy").add(hung={"name": "c", "reason": "late"})
    checkpoint = command.Merged(command.parts_of(kept)["toy"])
    assert [one["name"] for one in checkpoint.finished] == ["a", "b"]
    assert checkpoint.skipped == {"c": "hung: late"}
    assert checkpoint.unmeasured == ["d"]


def test_a_suite_that_the_first_state_lacks_is_of_the_second(tmp_path, header):
    kept = [state.State(tmp_path / name) for name in ("one", "two")]
    for one in kept:
        one.begin(header, [])
    kept[1].part("toy").add(state={"commit": COMMIT})
    kept[1].part("toy").add(every=["a"])
    assert command.Merged(command.parts_of(kept)["toy"]).state == {"commit": COMMIT}


def test_a_folder_with_results_is_not_begun_anew(begun):
    before = begun.lines("first")
    said = begun.run("first", code=2)
    assert "first holds results: go on after them with --state" in said
    assert begun.lines("first") == before


def test_a_rehearsal_takes_few_rounds():
    suite = types.SimpleNamespace(ROUNDS=15, MOST_ROUNDS=60, SECONDS=0.5, STEPS=50)
    plugin.shorten([suite, types])
    assert (suite.ROUNDS, suite.MOST_ROUNDS, suite.SECONDS, suite.STEPS) == (2, 2, 0.01, 50)


def test_a_rehearsal_makes_no_record(tmp_path, header):
    state.State(tmp_path).begin(header | {"rehearsal": True}, [])
    with pytest.raises(state.StateError, match="a rehearsal measures nothing"):
        command.write_records(types.SimpleNamespace(state=[tmp_path]))


# -- Folders that cannot be written -------------------------------------------------


def test_a_folder_that_cannot_be_written_is_named_at_once(place):
    place.plan("good")
    (place.root / "file").touch()
    said = place.run("file/out", code=2)
    assert "cannot keep results in file/out: " in said
    assert place.ran() == []


def test_a_full_disk_ends_the_command(place):
    """Writing fails while it measures: what was written stays, and the reason is said."""

    def full():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    place.plan("last")
    env = os.environ | {"LARGE": "x" * 30_000, "PYTHONDONTWRITEBYTECODE": "1"}
    said = place.run("out", code=2, preexec_fn=full, env=env)
    assert "cannot keep results: [Errno 27] File too large" in said
    assert "cannot keep results in out" in said
    assert place.ran() == ["last"]
    assert place.part("out").finished == []


# -- The plan ------------------------------------------------------------------------


def test_every_benchmark_is_in_one_piece():
    found = plan.load()
    suites = records.Library(ROOT / "benchmarks", "").suites()
    assert sorted([*found.suites(), *found.left_out]) == suites
    names, _ = runner.survey(found.suites(), "cpu", every=True)
    assert len(names) > 1000
    shares = found.share_out(names)
    assert shares[0] == [], "no piece holds them"
    assert sorted(name for share in shares.values() for name in share) == sorted(names)
    for piece in found.pieces:
        assert piece.seconds < 540, piece.title
        for pattern in piece.patterns:
            assert any(plan.matches(name, pattern) for name in shares[piece.number]), pattern


def test_the_first_piece_that_names_a_benchmark_holds_it():
    pieces = (
        plan.Piece(1, "", 1, ("a:x[2]", "a:x*")),
        plan.Piece(2, "", 1, ("a", "b")),
    )
    names = ["b:y", "a:x[1]", "a:x[2]", "a:z", "c:w"]
    shares = plan.Plan(1, 1, 1, 1, [], [], 0, [], pieces, {}).share_out(names)
    assert shares == {0: ["c:w"], 1: ["a:x[2]", "a:x[1]"], 2: ["a:z", "b:y"]}
    shares = plan.Plan(1, 1, 1, 1, [], [], 0, ["a:x[1]", "c:w"], pieces, {}).share_out(names)
    assert shares == {0: ["c:w"], 1: ["a:x[2]"], 2: ["a:x[1]", "a:z", "b:y"]}


def test_kernels_are_compiled_before_anything_is_timed(place):
    place.plan("good", warm=["toy:bench_one[good]"])
    said = place.run("out")
    assert said.index("warming: ") < said.index("[1] toy")
    assert place.ran().count("good") == 2
    assert [one["name"] for one in place.part("out").finished] == ["bench_one[good]"]
    said = place.run("again", "--state", "out", "--held")
    assert "warming" not in said, "what is measured needs no kernels"


def test_a_gpu_without_a_limit_takes_the_same_order():
    assert main.in_order("cuda") == plan.load().suites()
    assert main.in_order("cpu") == sorted(main.in_order("cpu"))


def test_a_plan_without_a_budget_is_refused(tmp_path):
    path = tmp_path / "plan.toml"
    text = PLAN.format(longest=1, first="[]", rest="[]", warm="[]")
    path.write_text(text.replace("seconds = 100\n", ""))
    with pytest.raises(plan.PlanError, match="'seconds' is missing"):
        plan.load(path)


# -- Before the machine --------------------------------------------------------------


def make_wheel(folder, name, *required):
    metadata = f"Name: {name}\n" + "".join(f"Requires-Dist: {one}\n" for one in required)
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}-1.0.dist-info/METADATA", metadata)


def test_wheels_are_what_the_machine_lacks(tmp_path, monkeypatch):
    """Needs of needs travel; what the machine has, extras and wheels of another day do not."""
    required = {
        "torchrl": ["torch", "hoptorch>=0.1", 'moviepy; extra == "rendering"'],
        "hoptorch": ["numpy", 'orjson; python_version < "3.13"', 'colorama; os_name == "nt"'],
    }
    asked = []

    def download(folder, pinned, python):
        for one in pinned:
            asked.append(one)
            name = one.partition("==")[0]
            make_wheel(folder, name, *required.get(name, ()))

    monkeypatch.setattr(pack, "pip_download", download)
    monkeypatch.setattr(pack, "ROOTS", ["torchrl", "psutil"])
    make_wheel(tmp_path, "old")
    found = pack.wheels(tmp_path, {"torch", "numpy", "psutil"}, "3.12")
    assert sorted(path.name.split("-")[0] for path in found) == ["hoptorch", "orjson", "torchrl"]
    assert sorted(tmp_path.iterdir()) == sorted(found)
    assert all("==" in one for one in asked)


def test_the_command_fits_a_shell_line():
    assert len(pack.command(COMMIT, 500)) < pack.COMMAND
    assert set(pack.ROOTS) <= pack.pins(pack.machine_environment("3.12")).keys()


def test_kernels_come_back_from_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr(state, "FILE_BYTES", 1000)
    cache = tmp_path / "cache"
    (cache / "key").mkdir(parents=True)
    (cache / "key" / "kernel.cubin").write_bytes(os.urandom(2500))
    size = state.save_kernels(cache, tmp_path)
    parts = sorted(tmp_path.glob("triton.tar.xz.*"))
    assert len(parts) == 3
    assert sum(part.stat().st_size for part in parts) == size
    state.load_kernels(tmp_path, tmp_path / "again")
    again = tmp_path / "again" / "key" / "kernel.cubin"
    assert again.read_bytes() == (cache / "key" / "kernel.cubin").read_bytes()
    (cache / "more").write_bytes(os.urandom(9000))
    assert state.save_kernels(cache, tmp_path) is None
