"""What breaks when the pins move: loosen them, and report a test run on the newest stack.

    python tools/drift.py unpin
    python tools/drift.py report --pinned OLD --newest NEW --log LOG --outcome success

``unpin`` rewrites the ``stack`` group of pyproject.toml without versions and prints the options
with which ``make lock ARGS=...`` upgrades these packages alone. ``report`` prints Markdown: the
verdict, what moved between two lock files, and the lines of the log that name a failure. Both
run on a bare Python, before anything is installed.
"""

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GROUP = re.compile(r"^stack = \[\n(?P<body>.*?)^\]", re.MULTILINE | re.DOTALL)
REQUIREMENT = re.compile(r'^(?P<before>\s*")(?P<name>[\w.-]+)(?P<version>[^";]*)', re.MULTILINE)
PIN = re.compile(r"^([\w.-]+)==(\S+)(?:\s*;\s*(.*))?$", re.MULTILINE)
FAILURE = re.compile(r"^(FAILED|ERROR) |WARNING: |^make: \*\*\*|^E   ")
SHOWN_FAILURES = 60


def unpin(pyproject):
    """Drop the versions of the stack; return the names of its packages."""
    text = pyproject.read_text(encoding="utf-8")
    group = GROUP.search(text)
    if group is None:
        sys.exit(f"{pyproject.name} has no dependency group 'stack = [': drift has nothing to move")
    body = group["body"]
    names = [match["name"] for match in REQUIREMENT.finditer(body)]
    loose = REQUIREMENT.sub(r"\g<before>\g<name>", body)
    start, end = group.span("body")
    pyproject.write_text(text[:start] + loose + text[end:], encoding="utf-8")
    return names


def pins(text):
    """{name: 'version' or 'version (marker), ...'} of a lock file."""
    found = {}
    for name, version, marker in PIN.findall(text):
        entry = f"{version} ({marker})" if marker else version
        found[name] = f"{found[name]}, {entry}" if name in found else entry
    if not found:
        sys.exit("A lock file without 'name==version' lines: was it compiled by make lock?")
    return found


def moved(pinned, newest):
    """Rows (name, old, new) of what differs, sorted."""
    names = sorted(set(pinned) | set(newest))
    rows = [(name, pinned.get(name, "none"), newest.get(name, "none")) for name in names]
    return [row for row in rows if row[1] != row[2]]


def verdict(outcome, rows):
    """One sentence a reader can act on."""
    if outcome == "success":
        if rows:
            return "No drift: every test passes on the newest stack. The pins can move."
        return "No drift: the pins are the newest releases, and every test passes."
    if outcome == "failure":
        if rows:
            return "**Drift**: the tests fail on the newest stack."
        return "The tests fail on the pinned stack: this is no drift, main itself is broken."
    return f"No verdict: the test run was {outcome}."


def failures(log):
    """Lines that name what failed, without repetition, in order."""
    return list(dict.fromkeys(line for line in log.splitlines() if FAILURE.search(line)))


def report(outcome, pinned, newest, log):
    """The whole report, as Markdown."""
    rows = moved(pins(pinned), pins(newest))
    lines = [verdict(outcome, rows), ""]
    if rows:
        lines += ["| Package | Pinned | Newest |", "|---|---|---|"]
        lines += [f"| {name} | {old} | {new} |" for name, old, new in rows]
        lines.append("")
    failed = failures(log) if outcome != "success" else []
    if failed:
        lines += ["```text", *failed[:SHOWN_FAILURES]]
        if len(failed) > SHOWN_FAILURES:
            lines.append(f"... and {len(failed) - SHOWN_FAILURES} more lines in the log")
        lines.append("```")
    elif outcome == "failure":
        lines += ["Last lines of the log:", "", "```text", *log.splitlines()[-20:], "```"]
    return "\n".join(lines)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    loosen = commands.add_parser("unpin")
    loosen.add_argument("--pyproject", type=Path, default=ROOT / "pyproject.toml")
    tell = commands.add_parser("report")
    for name in ("pinned", "newest", "log"):
        tell.add_argument(f"--{name}", type=Path, required=True)
    tell.add_argument("--outcome", required=True)
    arguments = parser.parse_args(argv)
    if arguments.command == "unpin":
        names = unpin(arguments.pyproject)
        print(" ".join(f"--upgrade-package {name}" for name in names))
    else:
        files = (arguments.pinned, arguments.newest, arguments.log)
        print(report(arguments.outcome, *(f.read_text(encoding="utf-8") for f in files)))


if __name__ == "__main__":
    main()
