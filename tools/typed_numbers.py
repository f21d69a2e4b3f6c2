"""Find figures typed by hand: a number with a unit or a percent sign that no run produced.

    python tools/typed_numbers.py [--root FOLDER]

Read: RST under docs/ (prose, captions, titles, alternative texts, math, comments in Python
blocks, code in other languages), tutorials and guides (docstring, text cells, comments, and every
string in the code, so titles, labels and printed sentences too), README.md and CONTRIBUTING.md.

Not read: Python code and its doctest output, which ``make test`` runs and compares; the
``:measured:`` role, which a record renders; ``{...}`` in an f-string; strings in an
``assert`` statement, which fails when the figure is wrong.

What is a figure:

* digits and a unit of memory, time, frequency or rate: ``12 kB``, ``13,200 bytes``, ``0.5 s``,
  ``40 fps``, ``3 frames/s``, or a percentage: ``24.2 %``, ``24 percent``;
* a ratio: ``2x``, ``3.1×``, ``10 times faster``; but not a shape (``84 x 84 pixels``)
  nor a plain repetition (``called 3 times``);
* a count of frames, steps, transitions, rows, samples or episodes from 100 upward; below that,
  it is the structure of the text ("3 steps") rather than a result;
* a number word with a unit ("two seconds", "ten times faster"), or half, twice, double, triple,
  a third and a quarter where they compare speed, time or memory ("half the memory").

Cure: print the figure in a cell, assert it, or render it from a record with ``:measured:``.
A figure that is true by definition stands in tests/tools/typed_numbers_allowed.txt, sorted, one per
line as ``file | exact text | reason``. The exact text is the figure as reported. An entry
that matches nothing is an error, so the list only shrinks.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from dataclasses import dataclass
from pathlib import Path

from sphinx_gallery.py_source_parser import split_code_and_text_blocks

from docs._ext.support import galleries
from tools import rst_reader

ALLOWED = "tests/tools/typed_numbers_allowed.txt"
CURE = "print it in a run, assert it, or render it from a record with :measured:"

SPACE = r"[\s\u00a0\u2009\u202f\-~]"  # a hyphen or a no-break space may stand before the unit
DIGITS = r"(?<![\w.#/])\d(?:[\d,_\u00a0\u2009\u202f]*\d)?(?:\.\d+)?(?:[eE][+-]?\d+)?"
WORD = (
    r"\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty"
    r"|forty|fifty|sixty|seventy|eighty|ninety|a hundred|a thousand|a million)"
)
UNIT = (
    r"(?:[kKMGTP]i?B|B|[kKMGTP]i?bit|bytes?|(?:kilo|mega|giga|tera|kibi|mebi|gibi)bytes?"
    r"|ns|us|µs|μs|ms|s|secs?|seconds?|(?:milli|micro|nano)seconds?|mins?|minutes?|h|hours?"
    r"|days?|[kMG]?Hz|fps|FPS|[A-Za-z]+/(?:s|sec|second|min|h)"
    r"|(?:frames|steps|samples|transitions|iterations|updates) per (?:second|minute)"
    r"|percent|percentage points|per cent)(?![\w/])"
)
PERCENT = r"%"
COMPARED = (
    r"(?:faster|slower|less|fewer|more|smaller|larger|bigger|longer|shorter|higher|lower|cheaper"
    r"|speed-?ups?|as\s+(?:fast|slow|much|many|large|long))"
)
COUNTED = r"(?:frames|steps|transitions|rows|samples|episodes|trajectories|iterations)(?![\w/])"
QUANTITY = (
    r"(?:memory|bytes|size|time|speed|throughput|footprint|storage|space|cost|latency"
    r"|as\s+(?:fast|slow))\b"
)
FRACTION = r"(?:half|twice|double|triple|(?:a|one|two)[\s-](?:third|quarter)s?|three[\s-]quarters)"

FIGURES = [
    re.compile(rf"{DIGITS}{SPACE}*(?:{UNIT}|{PERCENT})"),
    re.compile(rf"{DIGITS}[x×](?![\w×])(?!\s*\d)"),
    re.compile(rf"{DIGITS}{SPACE}*(?:x|×|times){SPACE}+{COMPARED}"),
    re.compile(rf"{DIGITS}{SPACE}*times{SPACE}+(?:the|its|their)\b"),
    re.compile(rf"{DIGITS}{SPACE}+{COUNTED}"),
    re.compile(rf"{WORD}{SPACE}+(?:{UNIT}|times{SPACE}+{COMPARED})", re.IGNORECASE),
    re.compile(
        rf"\b{FRACTION}\s+(?:(?:of|the|its|their|that|as)\s+){{0,3}}(?:\w+\s+)?{QUANTITY}",
        re.IGNORECASE,
    ),
]
COUNT = FIGURES[4]
SMALL_COUNT = 100


@dataclass(frozen=True)
class Figure:
    """One finding. ``text`` is normalized: single blanks."""

    file: str
    line: int
    text: str

    def __str__(self):
        return f"{self.file}:{self.line}: figure {self.text!r} is typed by hand; {CURE}"


def plain_math(text):
    """LaTeX spacing and text commands undone, so that ``24.2\\,\\%`` reads ``24.2 %``."""
    text = re.sub(r"\\[,;:! ]|\{,\}", lambda m: "," if m[0] == "{,}" else " ", text)
    text = re.sub(r"\\(?:text|mathrm|mathsf|operatorname)\{([^{}]*)\}", r"\1", text)
    return text.replace(r"\%", "%").replace(r"\times", "×")


def figures_in(text):
    """Pairs (offset, figure) in a passage, longest match first, without overlap."""
    text = plain_math(text)
    found = []
    for pattern in FIGURES:
        for match in pattern.finditer(text):
            if pattern is COUNT and leading_number(match[0]) < SMALL_COUNT:
                continue
            found.append((match.start(), match.end()))
    found.sort(key=lambda span: (span[0], -span[1]))
    end = 0
    for start, stop in found:
        if start >= end:
            yield start, " ".join(text[start:stop].split())
            end = stop


def leading_number(text):
    """12000.0 for '12,000 steps'."""
    return float(re.sub(r"[,_\s]", "", re.match(r"[\d,_.\s]*[\d]", text)[0]))


def passages_of_rst(text, path):
    """Prose, and the comments of Python blocks."""
    for passage in rst_reader.prose(text, path):
        yield passage.line, passage.text
    for block in rst_reader.code_blocks(text, path):
        if rst_reader.is_python(block.language) and block.directive != ">>>":
            shift = block.last_line - len(block.code.splitlines())
            for line, comment in comments(block.code):
                yield shift + line, comment


def comments(code):
    """Pairs (line, comment); code that does not tokenize has been reported by its run."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, SyntaxError):
        return
    # Comments on successive lines are one passage: a figure may be split from its unit.
    run = []
    for token in [*tokens, None]:
        comment = token is not None and token.type == tokenize.COMMENT
        if comment and run and token.start[0] == run[-1].start[0] + 1:
            run.append(token)
        elif comment or (token is None and run):
            if run:
                yield run[0].start[0], "\n".join(t.string.lstrip("#") for t in run)
            run = [token] if comment else []


def strings(code):
    """Pairs (line, text) of the strings in Python code, but for those of assertions."""
    skipped = set()
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            skipped.update(map(id, ast.walk(node)))
        elif isinstance(node, ast.JoinedStr) and id(node) not in skipped:
            skipped.update(map(id, ast.walk(node)))
            parts = [v.value if isinstance(v, ast.Constant) else "{}" for v in node.values]
            yield node.lineno, "".join(parts)
        elif isinstance(getattr(node, "value", None), str) and id(node) not in skipped:
            yield node.lineno, node.value


def passages_of_tutorial(text, path):
    """Text cells as RST; comments and strings of the code cells."""
    _, blocks = split_code_and_text_blocks(str(path))
    for block in blocks:
        if block.type == "text":
            for line, passage in passages_of_rst(block.content, path):
                yield block.lineno + line - 1, passage
        else:
            for line, passage in [*comments(block.content), *strings(block.content)]:
                yield block.lineno + line - 1, passage


def passages_of_markdown(text, path):
    """Paragraphs: blocks between empty lines."""
    line = 1
    for paragraph in re.split(r"(\n\s*\n)", text):
        if paragraph.strip():
            yield line, paragraph
        line += paragraph.count("\n")


def sources(root):
    """Pairs (path, reader of its passages)."""
    for path in sorted((root / "docs").rglob("*.rst")):
        if not galleries.is_generated(path, root / "docs"):
            yield path, passages_of_rst
    for path in galleries.headers(root):
        yield path, passages_of_rst
    for path in galleries.scripts(root):
        yield path, passages_of_tutorial
    for name in ("CONTRIBUTING.md", "README.md"):
        if (root / name).exists():
            yield root / name, passages_of_markdown


def exact_line(lines, start, text):
    """The line nearest to ``start`` that shows the figure's number; ``start`` if none does.

    docutils counts a title from its underline, and a table cell from its first line.
    """
    number = text.split()[0]
    for line in sorted(range(start - 2, start + 40), key=lambda line: abs(line - start)):
        if 0 < line <= len(lines) and number in lines[line - 1]:
            return line
    return start


def figures(root):
    """Every typed figure below the root of the repository."""
    for path, passages in sources(root):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for start, passage in passages(text, path):
            for offset, figure in figures_in(passage):
                line = exact_line(lines, start + passage.count("\n", 0, offset), figure)
                yield Figure(path.relative_to(root).as_posix(), line, figure)


def read_allowed(path):
    """Entries {(file, text): line} and the complaints about the list itself."""
    entries, complaints, keys = {}, [], []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        place = f"{ALLOWED}:{number}"
        parts = [part.strip() for part in line.split("|", 2)]
        if len(parts) != 3 or not all(parts):
            complaints.append(f"{place}: write 'file | exact text | reason', with a reason")
            continue
        key = (parts[0], parts[1])
        if key in entries:
            complaints.append(f"{place}: {parts[1]!r} is listed twice for {parts[0]}")
        elif keys and key < keys[-1]:
            complaints.append(f"{place}: not sorted; it belongs above {keys[-1]!r}")
        entries[key] = number
        keys.append(key)
    return entries, complaints


def check(root):
    """Complaints about typed figures and about the list of exceptions."""
    entries, complaints = read_allowed(root / ALLOWED)
    used = set()
    for figure in figures(root):
        if (figure.file, figure.text) in entries:
            used.add((figure.file, figure.text))
        else:
            complaints.append(str(figure))
    for key, number in entries.items():
        if key not in used:
            complaints.append(
                f"{ALLOWED}:{number}: {key[1]!r} is no longer in {key[0]}; delete the line"
            )
    return complaints


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    complaints = check(parser.parse_args(argv).root)
    print("\n".join(complaints) or "No figure is typed by hand.")
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
