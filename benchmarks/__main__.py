"""Take records, or list those that are to be taken again: ``python -m benchmarks --help``."""

import argparse
import importlib.metadata
import json
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import record

ROOT = Path(__file__).parent.parent
LIBRARY = record.Library(ROOT / "benchmarks", ROOT / "requirements-docs.txt")
PACKAGES = ("gymnasium", "numpy", "tensordict", "torch", "torchrl", "triton")


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--device", choices=record.DEVICES, default="cpu")
    parser.add_argument("--suite", action="append", choices=LIBRARY.suites(), help="default: all")
    parser.add_argument("--commit", help="for a copy of the tree without git: what it is a copy of")
    parser.add_argument("--check", action="store_true", help="list outdated records, run nothing")
    options = parser.parse_args()
    if options.check:
        return list_outdated()
    suites = options.suite or LIBRARY.suites()
    commit, dirty = state_of_tree(options.commit)
    failed = [suite for suite in suites if not take(suite, options.device, commit, dirty)]
    if failed:
        print(f"no record written for {', '.join(failed)}: see the failures above", file=sys.stderr)
    return 1 if failed else 0


def list_outdated():
    """One line per record; the exit status is 1 if one is to be taken again."""
    status = 0
    for suite, device in LIBRARY.taken():
        try:
            found = LIBRARY.outdated(record.load(LIBRARY.path(suite, device)))
        except (record.RecordError, OSError) as error:
            found = [str(error)]
        status |= bool(found)
        print(f"{suite}@{device}: {'; '.join(found) or 'valid'}")
    return status


def state_of_tree(commit):
    """The commit that is checked out, and whether files outside ``results`` differ from it."""
    if commit:
        return commit, False
    try:
        head = git("rev-parse", "HEAD").strip()
        changes = git("status", "--porcelain", "--", ":/", ":(exclude,top)benchmarks/results")
    except (OSError, subprocess.CalledProcessError):
        sys.exit("a record names its commit, and git cannot tell it here: pass --commit SHA")
    return head, bool(changes.strip())


def git(*arguments):
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def take(suite, device, commit, dirty):
    """Run *suite* in a fresh process; write its record only if everything in it passed."""
    print(f"{suite}@{device}: running", flush=True)
    suite_hash = LIBRARY.hash(suite)  # of the code as it is run, not as it is edited meanwhile
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output.json")
        command = [sys.executable, "-m", "pytest", f"benchmarks/bench_{suite}.py"]
        command += ["-o", "python_files=bench_*.py", "-o", "python_functions=bench_*"]
        command += ["-p", "no:cacheprovider", "--device", device, f"--benchmark-json={output}"]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            return False
        run = json.loads(output.read_text("utf-8"))
    path = LIBRARY.path(suite, device)
    record.save(assemble(suite, device, suite_hash, commit, dirty, run), path)
    print(f"{suite}@{device}: wrote {path.relative_to(ROOT)}")
    return True


def assemble(suite, device, suite_hash, commit, dirty, run):
    """Turn the output of pytest-benchmark into a record."""
    noted = run["record"]
    return {
        "format": record.FORMAT,
        "suite": suite,
        "device": device,
        "title": noted["title"],
        "description": noted["description"],
        "suite_hash": suite_hash,
        "taken": {
            "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "commit": commit,
            "dirty": dirty,
            "command": record.RETAKE.format(device=device, suite=suite),
            "environment": noted["environment"],
            "threads": noted["threads"],
        },
        "machine": noted["machine"],
        "versions": {name: version(name) for name in PACKAGES},
        "metrics": noted["metrics"],
        "benchmarks": merge(run["benchmarks"]),
    }


def merge(entries):
    """One entry per key out of the timed functions that share it."""
    merged = {}
    for entry in entries:
        noted, stats = entry["extra_info"], entry["stats"]
        benchmark = merged.setdefault(
            noted["key"],
            {"title": noted["title"], "parameters": noted["parameters"], "metrics": {}},
        )
        found = {metric: record.measurement([value]) for metric, value in noted["exact"].items()}
        for metric, values in noted["sampled"].items():
            found[metric] = record.measurement(values)
        timing = record.measurement(stats["data"], warmup_rounds=noted["warmup_rounds"])
        found[noted["timing"]] = timing
        for metric, values in found.items():
            if metric in benchmark["metrics"]:
                raise SystemExit(f"{entry['name']}: {noted['key']} has {metric} already")
            benchmark["metrics"][metric] = values
    return merged


def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
