"""Take records, or list those that are to be taken again: ``python -m benchmarks --help``."""

import argparse
import copy
import importlib.metadata
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks import comparison, record
from benchmarks.checkpoint import BusyError, Checkpoint
from benchmarks.kit import plan

ROOT = Path(__file__).parent.parent
LIBRARY = record.Library(ROOT / "benchmarks", ROOT / "requirements-docs.txt")
PACKAGES = ("gymnasium", "numpy", "tensordict", "torch", "torchrl", "triton")
NO_RECORDS = (":(exclude,top)benchmarks/results", ":(exclude,top)benchmarks/replicates")
# What TorchRL is measured beside; a record names those that its suite imports.
PEERS = {
    "ale_py": "ale-py",
    "jax": "jax",
    "mujoco": "mujoco",
    "ray": "ray",
    "sb3_contrib": "sb3-contrib",
    "sbx": "sbx-rl",
    "stable_baselines3": "stable-baselines3",
}


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--device", choices=record.DEVICES, default="cpu")
    parser.add_argument("--suite", action="append", choices=LIBRARY.suites(), help="default: all")
    parser.add_argument("--commit", help="for a copy of the tree without git: what it is a copy of")
    parser.add_argument("--replicate", action="store_true", help="a second record, to compare with")
    parser.add_argument("--fresh", action="store_true", help="forget what an interrupted run kept")
    parser.add_argument("--check", action="store_true", help="list outdated records, run nothing")
    parser.add_argument("--restamp", metavar="COMMIT", help="after a rename; see README.md")
    parser.add_argument("--renamed", nargs="+", metavar="OLD=NEW", default=[])
    parser.add_argument("--compare", nargs=2, metavar="RECORD", help="two files; run nothing")
    options = parser.parse_args()
    if options.check:
        return list_outdated()
    if options.compare:
        return compare(*options.compare)
    if options.restamp:
        return restamp(options.restamp, dict(pair.split("=") for pair in options.renamed))
    suites = options.suite or in_order(options.device)
    commit, dirty = state_of_tree(options.commit)
    failed = []
    for number, suite in enumerate(suites, start=1):
        path = (LIBRARY.replicate if options.replicate else LIBRARY.path)(suite, options.device)
        print(f"[{number}/{len(suites)}] {datetime.now():%H:%M:%S} ", end="")
        if not take(suite, options.device, commit, dirty, path=path, fresh=options.fresh):
            failed.append(suite)
    if failed:
        print(f"no record written for {', '.join(failed)}: see the failures above", file=sys.stderr)
    return 1 if failed else 0


def in_order(device):
    """All suites; on a GPU, whose time is rare, those of the plan, the most valuable first."""
    return LIBRARY.suites() if device == "cpu" else plan.load().suites()


def compare(before, after):
    """Print every ratio and time of two records; the exit status is 2 if they do not compare."""
    try:
        rows = comparison.compare(record.load(before), record.load(after))
    except (record.RecordError, comparison.IncomparableError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    for row in rows:
        print(row)
    return 0


def list_outdated():
    """One line per record; the exit status is 1 if one is to be taken again."""
    status = 0
    for path in LIBRARY.files():
        try:
            found = record.reasons(LIBRARY.outdated(record.load(path)))
        except (record.RecordError, OSError) as error:
            found = [str(error)]
        status |= bool(found)
        print(f"{record.name_of(path)}: {'; '.join(found) or 'valid'}")
    return status


def restamp(commit, renamed):
    """Give each record the hashes of the code at hand that is the code at *commit*, but *renamed*.

    The exit status is 1 if a record is left with another hash than that of the code at hand.
    """
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "-C", str(ROOT), "archive", commit, "benchmarks"],
            check=True,
            capture_output=True,
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tree:
            tree.extractall(folder, filter="data")
        then = record.Library(Path(folder, "benchmarks"), LIBRARY.requirements)
        for path in LIBRARY.files():
            found = record.load(path)
            before = copy.deepcopy(found["code"])
            left = record.restamp(found, then, LIBRARY, renamed)
            if found["code"] != before:
                record.save(found, path)
            status |= bool(left)
            print(f"{record.name_of(path)}: {'; '.join(left) or 'the code is the same'}")
    return status


def state_of_tree(commit):
    """The commit that is checked out, and whether files other than records differ from it."""
    if commit:
        return commit, False
    try:
        head = git("rev-parse", "HEAD").strip()
        changes = git("status", "--porcelain", "--", ":/", *NO_RECORDS)
    except (OSError, subprocess.CalledProcessError):
        sys.exit("a record names its commit, and git cannot tell it here: pass --commit SHA")
    return head, bool(changes.strip())


def git(*arguments):
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def take(suite, device, commit, dirty, *, path=None, fresh=False):
    """Run *suite* in a fresh process; write its record only if everything in it passed.

    Return False after a failure. A suite that can measure nothing here is no failure: the reasons
    are printed and the old record stays.
    """
    path = path or LIBRARY.path(suite, device)
    folder = ROOT / "build" / "benchmarks"
    checkpoint = Checkpoint(folder / f"{path.parts[-3]}.{suite}-{device}.jsonl")
    code = LIBRARY.hashes(suite)  # of the code as it is run, not as it is edited meanwhile
    state = {"code": code, "commit": commit, "dirty": dirty, "versions": versions(suite)}
    try:
        with checkpoint.locked():
            if fresh or checkpoint.state != state:
                checkpoint.start(state)
            return measure(suite, device, checkpoint) and finish(suite, device, checkpoint, path)
    except BusyError as error:
        print(error, file=sys.stderr)
        return False


def measure(suite, device, checkpoint):
    """Add what is missing to *checkpoint*; return whether everything passed or was skipped."""
    name, kept = f"{suite}@{device}", len(checkpoint.finished)
    print(f"{name}: going on after {kept} finished" if kept else f"{name}: running", flush=True)
    command = [sys.executable, "-m", "pytest", LIBRARY.module(suite).as_posix()]
    command += ["-o", "python_files=bench_*.py", "-o", "python_functions=bench_*"]
    # pytest-benchmark, where an environment has it, claims the name of the fixture
    command += [
        "-p",
        "no:benchmark",
        "-p",
        "no:cacheprovider",
        "--device",
        device,
        f"--checkpoint={checkpoint.path}",
    ]
    try:
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
    except KeyboardInterrupt:
        code = pytest.ExitCode.INTERRUPTED
    if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return True
    kept = len(checkpoint.finished)
    print(f"{name}: {kept} finished measurements are kept; the same command goes on after them")
    if code == pytest.ExitCode.INTERRUPTED:
        sys.exit(130)
    return False


def finish(suite, device, checkpoint, path):
    """Turn *checkpoint* into the record in *path*; say what a reader of the record should know."""
    name = f"{suite}@{device}"
    for left_out, reason in checkpoint.skipped.items():
        print(f"{name}: skipped {left_out}: {reason}")
    if checkpoint.finished:
        found = assemble(suite, device, checkpoint)
        record.save(found, path)
        print(f"{name}: wrote {path.relative_to(ROOT)}")
        if above := record.noisy(found):
            share = f"{len(above)} of {record.spread(found)}"
            print(f"{name}: {share} values are noisy: {', '.join(above)}")
    else:
        print(f"{name}: skipped, nothing in it can run here; the old record is untouched")
    checkpoint.remove()
    return True


def assemble(suite, device, checkpoint):
    """Turn the checkpoint of a complete run into a record."""
    said, state = checkpoint.sittings[-1], checkpoint.state
    left_out = [{"name": name, "reason": reason} for name, reason in checkpoint.skipped.items()]
    return {
        "format": record.FORMAT,
        "suite": suite,
        "device": device,
        "title": said["title"],
        "description": said["description"],
        "code": measured_by(checkpoint.finished, state["code"]),
        "taken": {
            "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "commit": state["commit"],
            "dirty": state["dirty"],
            "command": record.RETAKE.format(device=device, suite=suite),
            "environment": said["environment"],
            "threads": said["threads"],
            "sittings": len(checkpoint.sittings),
        },
        "machine": said["machine"],
        "versions": state["versions"],
        "metrics": said["metrics"],
        "benchmarks": merge(checkpoint.finished, said["metrics"]),
        **({"skipped": left_out} if left_out else {}),
    }


def measured_by(entries, hashes):
    """The function behind each of *entries* -> its hash, and the keys that it gave."""
    keys = {}
    for entry in entries:
        keys.setdefault(entry["name"].partition("[")[0], set()).add(entry["extra_info"]["key"])
    return {name: {"hash": hashes[name], "keys": sorted(found)} for name, found in keys.items()}


def merge(entries, declared):
    """One entry per key out of the timed functions that share it.

    A round without a value, None, is left out. Bytes that are whole may come as floats.
    """
    merged = {}
    for entry in entries:
        noted, stats = entry["extra_info"], entry["stats"]
        benchmark = merged.setdefault(
            noted["key"],
            {"title": noted["title"], "parameters": noted["parameters"], "metrics": {}},
        )
        found = {metric: record.measurement([value]) for metric, value in noted["exact"].items()}
        for metric, values in noted["sampled"].items():
            known = [value for value in values if value is not None]
            if declared[metric]["unit"] == "B" and all(value % 1 == 0 for value in known):
                known = [int(value) for value in known]
            found[metric] = record.measurement(known)
        timing = record.measurement(stats["data"], warmup_rounds=noted["warmup_rounds"])
        found[noted["timing"]] = timing
        for metric, values in found.items():
            if metric in benchmark["metrics"]:
                raise SystemExit(f"{entry['name']}: {noted['key']} has {metric} already")
            benchmark["metrics"][metric] = values
    return merged


def versions(suite):
    """The version of each package that decides what *suite* measures; None where it is absent."""
    code = "".join(path.read_text("utf-8") for path in LIBRARY.code(suite))
    peers = {package for module, package in PEERS.items() if re.search(rf"\b{module}\b", code)}
    return {name: version(name) for name in sorted({*PACKAGES, *peers})}


def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
