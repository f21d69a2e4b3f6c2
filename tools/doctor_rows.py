"""What the doctor says of each symptom, taken from the pages: ``python tools/doctor_rows.py``.

It writes ``doctor/src/torchrl_doctor/rows.py``: by the name of the page its effect, cause and fix,
as plain text with code in backticks. The fields stand in ``tutorials/debugging/<name>.py``
(``docs/_ext/symptoms/store.py``) and nowhere else; ``tests/tools/test_doctor_rows.py`` fails when
the module is not what the pages say.
"""

import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from docs._ext.symptoms.store import TOPIC, read  # noqa: E402

PAGES = ROOT / "tutorials" / TOPIC
TARGET = ROOT / "doctor" / "src" / "torchrl_doctor" / "rows.py"
CURE = "python tools/doctor_rows.py"
INDENT = " " * 8
LENGTH = 100  # of a line, ruff's
HEAD = f'''"""Effect, cause and fix of each symptom. Made of the pages: ``{CURE}``."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """What the page of a symptom says: `effect` is "silent" or "loud"."""

    effect: str
    cause: str
    fix: str


ROWS = {{
'''
ROLE = re.compile(r":(?P<role>[a-z]+):`(?P<text>[^`]+)`")


def named(role):
    """The name that a reference shows, as code: that of a method with its class."""
    text = role["text"]
    if explicit := re.fullmatch(r"(.+?)\s*<.+>", text):
        return explicit[1]
    name = text.removeprefix("~")
    if text.startswith("~"):
        name = ".".join(name.split(".")[-2 if role["role"] == "meth" else -1 :])
    return f"`{name}()`" if role["role"] == "meth" else f"`{name}`"


def plain(markup):
    """The text of a field as a terminal shows it; ValueError where markup is left."""
    text = ROLE.sub(named, markup).replace("``", "`")
    text = re.sub(r"(?<![\w*`])\*(\w[^*`]*)\*(?![\w*])", r"\1", text)
    if re.search(r":\w+:`|`__?(?!\w)", text):
        raise ValueError(f"write it without this markup: {text}")
    return text


def literal(text):
    """Lines of Python that are the string *text*, as ruff leaves them."""
    most = LENGTH - len(f"{INDENT},")
    if len(quoted(text)) <= most:
        return [quoted(text)]
    lines = textwrap.wrap(text, most - 3, break_long_words=False, break_on_hyphens=False)
    lines = [f"{line} " for line in lines[:-1]] + lines[-1:]
    return [quoted(line) for line in lines]


def quoted(line):
    """A string in the quotes that ruff prefers."""
    line = line.replace("\\", "\\\\")
    if '"' in line and "'" not in line:
        return f"'{line}'"
    return '"' + line.replace('"', '\\"') + '"'


def module():
    """The text of the module; a `SymptomError` where a page has not the form of a symptom."""
    parts = [HEAD]
    for page in sorted(PAGES.glob("*.py")):
        fields = read(page).fields
        parts.append(f'    "{page.stem}": Row(\n{INDENT}"{fields["Effect"]}",\n')
        for name in ("Cause", "Fix"):
            parts.append("\n".join(INDENT + line for line in literal(plain(fields[name]))))
            parts.append(",\n")
        parts.append("    ),\n")
    return "".join([*parts, "}\n"])


if __name__ == "__main__":
    TARGET.write_text(module(), encoding="utf-8")
