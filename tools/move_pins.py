"""What breaks when the pins move: move them, and report a test run on that stack.

    python tools/move_pins.py unpin
    python tools/move_pins.py pin torch==2.14.1 triton
    python tools/move_pins.py report --pinned OLD --newest NEW --log LOG --outcome success

``unpin`` rewrites the ``stack`` group of pyproject.toml without versions, ``pin`` gives the named
packages another version, or none. Both print the options with which ``make lock ARGS=...`` moves
these packages alone. ``report`` prints Markdown: the verdict, what moved between two lock files,
and the lines of the log that name a failure. All run on a bare Python, before anything is
installed.
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


def move(pyproject, versions=None):
    """Give packages of the stack these versions, {name: "==1.2" or ""}; return their names.

    Without *versions* every package loses its own.
    """
    text = pyproject.read_text(encoding="utf-8")
    group = GROUP.search(text)
    if group is None:
        sys.exit(f"{pyproject.name} has no dependency group 'stack = [': drift has nothing to move")
    body = group["body"]
    names = [match["name"] for match in REQUIREMENT.finditer(body)]
    versions = dict.fromkeys(names, "") if versions is None else versions
    if strangers := sorted(set(versions) - set(names)):
        sys.exit(f"{', '.join(strangers)}: not in the stack, which is {', '.join(names)}")

    def moved(match):
        return match["before"] + match["name"] + versions.get(match["name"], match["version"])

    start, end = group.span("body")
    body = REQUIREMENT.sub(moved, body)
    pyproject.write_text(text[:start] + body + text[end:], encoding="utf-8")
    return list(versions)


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


def verdict(outcome, rows, stack):
    """One sentence a reader can act on."""
    if outcome == "success":
        if rows:
            return f"No drift: every test passes on {stack}."
        return f"No drift: the pins are {stack}, and every test passes."
    if outcome == "failure":
        if rows:
            return f"**Drift**: the tests fail on {stack}."
        return "The tests fail on the pinned stack: this is no drift, main itself is broken."
    return f"No verdict: the test run was {outcome}."


def failures(log):
    """Lines that name what failed, without repetition, in order."""
    return list(dict.fromkeys(line for line in log.splitlines() if FAILURE.search(line)))


def report(outcome, pinned, newest, log, stack="the newest releases"):
    """The whole report, as Markdown."""
    rows = moved(pins(pinned), pins(newest))
    lines = [verdict(outcome, rows, stack), ""]
    if rows:
        lines += ["| Package | Pinned | Tried |", "|---|---|---|"]
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
    fix = commands.add_parser("pin")
    fix.add_argument("packages", nargs="+", help="torch==2.14.1, or torch for any version")
    for command in (loosen, fix):
        command.add_argument("--pyproject", type=Path, default=ROOT / "pyproject.toml")
    tell = commands.add_parser("report")
    for name in ("pinned", "newest", "log"):
        tell.add_argument(f"--{name}", type=Path, required=True)
    tell.add_argument("--outcome", required=True)
    tell.add_argument("--stack", default="the newest releases")
    arguments = parser.parse_args(argv)
    if arguments.command == "report":
        files = (arguments.pinned, arguments.newest, arguments.log)
        texts = [file.read_text(encoding="utf-8") for file in files]
        print(report(arguments.outcome, *texts, stack=arguments.stack))
        return
    versions = None
    if arguments.command == "pin":
        parts = (package.partition("==") for package in arguments.packages)
        versions = {name: sign + version for name, sign, version in parts}
    names = move(arguments.pyproject, versions)
    print(" ".join(f"--upgrade-package {name}" for name in names))


if __name__ == "__main__":
    main()
