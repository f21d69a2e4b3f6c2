"""Measure what each command costs and write the table in CONTRIBUTING.md: ``make costs``.

    python tools/costs.py [--keep FOLDER]

Takes the last commit into a fresh clone, lets it share ``.venv`` and the node tools of this one,
runs each command once, one after another, and replaces the table between the markers in
CONTRIBUTING.md, with commit, date and machine. A command that fails ends it, and nothing is
written. Run it on a machine that does nothing else, from a clean working tree.
"""

import argparse
import datetime
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = re.compile(r"(?<=<!-- costs: make costs -->\n).*?(?=<!-- costs: end -->)", re.DOTALL)
PAGE = "docs/reference/data_layout.rst"
SHARED = [".venv", "tests/browser/node_modules"]
OWN = {"OMP_NUM_THREADS", "ARGS", "MAKEFLAGS"}  # of the `make` that calls this
# (what it says in the table, the command, the page that is edited before)
STEPS = [
    ("`make lint`", ["make", "lint"], None),
    ("`make unit`", ["make", "unit"], None),
    ("`make html` in a fresh clone", ["make", "html"], None),
    ("`make site-tests`", ["make", "site-tests"], None),
    ("`make html` with nothing changed", ["make", "html"], None),
    ("`make html` with one page edited", ["make", "html"], PAGE),
    ("`make test-changed` with one page edited", ["make", "test-changed", "BASE=HEAD"], None),
    ("`make mutation-test`", ["make", "mutation-test"], None),
]
WHOLE = ("`make test` in a fresh clone", range(4))  # lint, unit, html, site-tests


def clone(folder):
    """A fresh clone of the last commit."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    for name in SHARED:
        if (ROOT / name).exists():
            (folder / name).symlink_to((ROOT / name).resolve())
    # .gitignore has a folder of that name in mind; a stamp would call the clone modified
    (folder / ".git" / "info" / "exclude").write_text("\n".join(SHARED), encoding="utf-8")


def measure(folder):
    """Seconds of each step, in order."""
    taken = []
    environment = {key: value for key, value in os.environ.items() if key not in OWN}
    for said, command, page in STEPS:
        if page:
            with (folder / page).open("a", encoding="utf-8") as file:
                file.write("\nOne more sentence.\n")
        print(f"== {said}", flush=True)
        start = time.monotonic()
        done = subprocess.run(command, cwd=folder, env=environment, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed in {folder}: nothing is written")
        taken.append(time.monotonic() - start)
    return taken


def clock(seconds):
    """Minutes and seconds, as ``4:07``."""
    return f"{round(seconds) // 60}:{round(seconds) % 60:02d}"


def machine():
    """Processor and cores of this machine."""
    try:
        names = re.findall(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text("utf-8"))
    except OSError:
        names = []
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def table(taken, commit, date, where):
    """The table as Markdown."""
    said, parts = WHOLE
    rows = [(name, clock(seconds)) for (name, *_), seconds in zip(STEPS, taken, strict=True)]
    rows.append((said, clock(sum(taken[part] for part in parts))))
    lines = ["| Command | Minutes:seconds |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows)]
    return "\n".join(
        ["", *lines, "", f"Taken at {commit} on {date}, {where}; `.venv` is there.", ""]
    )


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, help="clone to this folder, and leave it")
    keep = parser.parse_args(argv).keep
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary, "clone")
        clone(folder)
        git = ["git", "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(git, cwd=folder, capture_output=True, text=True, check=True)
        taken = measure(folder)
    date = datetime.datetime.now(datetime.UTC).date()
    text = table(taken, commit.stdout.strip(), date, machine())
    path = ROOT / "CONTRIBUTING.md"
    after, places = TABLE.subn(lambda _: text, path.read_text(encoding="utf-8"))
    if places != 1:
        sys.exit(f"{path} has no place for the table, between '<!-- costs'. It is\n{text}")
    path.write_text(after, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
