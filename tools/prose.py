"""Find habits of prose that make a reader stop, in the sources of the pages.

    python tools/prose.py [--root FOLDER] [--prune]

Read: RST under docs/ (generated pages left out), the text cells of scripts. Not read: code,
options of directives but captions and alternative texts, comments, titles without a full stop.

``PATTERNS`` has what is found, and the cure of each. The patterns see words, not the meaning: most
habits are left to a reader, but what is found is nearly always one. The line of a finding is that
where its paragraph begins.

A sentence that is not mended yet is in tests/tools/prose_exceptions.txt, sorted, one per line as
``file | pattern | excerpt``, the excerpt as reported. An entry that matches nothing is an error, so
the list only shrinks: ``--prune`` takes such entries out. No option adds one.

Only the standard library is used: the check is part of ``make lint``, and parsing with docutils
would take most of its time.
"""

import argparse
import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a script finds its own folder
from docs._ext.support import galleries

EXCEPTIONS = "tests/tools/prose_exceptions.txt"
WORDS = 6  # of an excerpt, at least

# Roles whose text the build computes: the reader sees a figure.
FIGURE = "\u2460"
# Literals, math and links are not the page's words: one letter each, which no pattern matches.
NO_PROSE = "\u24cd"


@dataclass(frozen=True)
class Pattern:
    """``regex`` is searched in each sentence: one line, markup undone."""

    name: str
    regex: re.Pattern
    cure: str


NUMBER = rf"(?:{FIGURE}|[\d.,]*\d)"
PATTERNS = [
    Pattern(
        "clause as subject",
        re.compile(
            r"^(?:Who|What|Which|Whether|Whoever|Whatever)\b[^?]*[.:]$"
            r"|^(?:Right|Wrong|Safe|Missing|Different|Worse|Better|Best) (?:is|are|was|were)\b"
        ),
        "begin with the noun or with 'you'; a question ends in a question mark",
    ),
    Pattern(
        "figure alone",
        re.compile(rf":\s+(?:{NUMBER}(?:, (?!and)| and |, and | to ))*{NUMBER}[.;]?$"),
        "say what the figure counts, with its unit or 'x' and what it is compared with",
    ),
    Pattern(
        "digits",
        # A decimal fraction, or thousands of a measured unit; no version, no bytes: 1,024 B.
        re.compile(
            r"(?<![\w.,])(?:\d*[1-9]\d\d[.]\d+|[1-9]\d[.]\d\d+|[1-9][.]\d{3,}|0[.]0*[1-9]\d{3,}"
            r"|\d{1,3}(?:,\d{3})*,\d\d[1-9](?=\s*(?:%|[mµn]?s\b|times|x\b)))(?![\w.]*\d)"
        ),
        "round to two or three significant digits",
    ),
    Pattern(
        "builder's talk",
        re.compile(
            r"(?i)\b(?:stops?|fails?|breaks?) the (?:build|page)\b"
            r"|\bthe (?:build|page|tests?) (?:stops?|fails?|breaks?)\b"
            r"|\ba tests? (?:that )?(?:stops?|fails?|breaks?|guards?|checks?|holds?|asserts?)\b"
            r"|\b(?:is|are) a test against\b|\b(?:page|run|cell) asserts\b"
            r"|\bthe runs? behind (?:this|the)\b"
        ),
        "leave out how the page is checked; what maintainers need is in CONTRIBUTING.md",
    ),
    Pattern(
        "home-made term",
        re.compile(
            r"(?i)\bthe runs? (?:that|which) (?:show|print)s?\b"
            r"|\b(?:each|every) with (?:its|the) runs?\b"
            r"|\bdoors?\b|(?<!ground )\bthe truth\b|\b(?:right|wrong) rows?\b"
        ),
        "evidence script, entry point, ground truth, correct or incorrect row",
    ),
    Pattern(
        "stands",
        re.compile(
            r"(?i)\b(?:stands?|stood) (?:high|here|there|below|above|beside|under|after|before"
            r"|around|twice|once|nowhere|only|at|on|in(?! for)|with|behind|between|clear)\b"
        ),
        "is, has, comes after",
    ),
    Pattern(
        "speaking object",
        re.compile(r"(?i)\bsays? of (?:it|them)sel(?:f|ves)\b|\btells? the truth\b"),
        "say who claims it: the docstring, the page, the message",
    ),
]


@dataclass(frozen=True)
class Finding:
    """A sentence that a pattern matches. ``excerpt`` begins where the match does."""

    file: str
    line: int
    pattern: Pattern
    excerpt: str

    @property
    def key(self):
        return self.file, self.pattern.name, self.excerpt

    def __str__(self):
        where = f"{self.file}:{self.line}: {self.pattern.name}"
        return f"{where}: {self.excerpt!r}; {self.pattern.cure}"


# Directives whose content is no prose.
CODE = re.compile(
    r"code|code-block|sourcecode|literalinclude|testcode|testoutput|testsetup|doctest|math|raw"
    r"|toctree|contents|only|meta|parsed-literal|highlight|redirect-from|include"
)
DIRECTIVE = re.compile(r"\s*\.\. ([\w:-]+)::\s*(.*)")
COMMENT = re.compile(r"\s*\.\.(?:\s(?!\[)|$)")
OPTION = re.compile(r"\s*:([\w -]+):(?:\s+(.*)|$)")
PROSE_OPTIONS = ("alt", "caption", "flip")
ITEM = re.compile(r"(?:\* - |[*-] |\#\. |\d+\. )+")
UNDERLINE = re.compile(r"\s*([=\-~^\"'`*+#:.])\1{2,}\s*$|\s*[=\s-]+$")
SENTENCE_END = re.compile(r"(?<=[.!?])[*\"')\]]*\s+(?=[^a-z\s])")


def paragraphs(lines):
    """Pairs (line number, text) of the prose of RST; an item, a cell or an option begins one."""
    block, first, indent_of_block = [], 0, 0
    code, doctest = None, False  # deeper lines than ``code`` are no prose
    for number, line in enumerate([*lines, ""], 1):
        text, indent = line.strip(), len(line) - len(line.lstrip())
        if not text:
            doctest = False
        elif doctest or (code is not None and indent > code):
            continue
        else:
            code = None
        item, directive, option = ITEM.match(text), DIRECTIVE.match(line), OPTION.match(line)
        comment, rule = COMMENT.match(line), UNDERLINE.fullmatch(line)
        if block and (not text or item or directive or option or comment or rule):
            if not rule:  # else it was a title
                yield first, " ".join(block)
            if block[-1].endswith("::"):
                code = indent_of_block
            block = []
        doctest = text.startswith(">>> ")
        if CODE.fullmatch(directive[1]) if directive else comment:
            code = indent
        if not text or rule or doctest or code == indent:
            continue
        if directive:
            text = directive[2]
        elif option:
            text = option[2] if option[1] in PROSE_OPTIONS else ""
        elif item:
            text = text[item.end() :]
        if text:
            if not block:
                first, indent_of_block = number, indent
            block.append(text)


def plain(text):
    """Markup undone: roles become their title, literals and figures a letter."""
    text = re.sub(r"\s*:claim:`[^`]*`", "", text)
    text = re.sub(r":(?:measured|modeled):`[^`]*`", FIGURE, text)
    text = re.sub(r"``.+?``|:math:`[^`]*`", NO_PROSE, text)
    text = re.sub(r":[\w:.-]+:`[~!]?([^`<]*?)(?:\s*<[^`]*>)?`", r"\1", text)
    text = re.sub(r"`([^`<]*?)(?:\s*<[^`]*>)?`__?", r"\1", text)
    return re.sub(r"\*+|\\", "", text).strip()


def text_cells(source):
    """Pairs (first line, lines) of the docstring and of the comments below each ``# %%``."""
    docstring = ast.parse(source).body[0]
    lines = source.splitlines()
    yield 1, "\n".join(lines[: docstring.end_lineno]).strip("r\"'").splitlines()
    cell, first = None, 0
    for number, line in enumerate([*lines, ""], 1):
        if re.match(r"# ?%%", line):
            cell, first = [], number + 1
        elif cell is not None and line.startswith("#"):
            cell.append(line[2:])
        elif cell is not None:
            yield first, cell
            cell = None


def sources(root):
    """Triples (name of the file, first line, lines of RST), files in order."""
    paths = [*(root / "docs").rglob("*.rst"), *galleries.headers(root), *galleries.scripts(root)]
    for path in sorted(paths):
        name = path.relative_to(root).as_posix()
        if galleries.GENERATED.match(name):
            continue
        source = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            for first, lines in text_cells(source):
                yield name, first, lines
        else:
            yield name, 1, source.splitlines()


def around(sentence, match):
    """The match with the words before it, or after it if it begins the sentence, for the list."""
    before = sentence[: match.start()].split()[-WORDS:]
    after = sentence[match.start() :].split()[: max(2, WORDS - len(before))]
    return " ".join([*before, *after]).replace("|", "/")


def findings(root):
    """Every finding below the root of the repository, in the order of the files."""
    for name, first, lines in sources(root):
        for line, paragraph in paragraphs(lines):
            for sentence in SENTENCE_END.split(plain(paragraph)):
                for pattern in PATTERNS:
                    for match in pattern.regex.finditer(sentence):
                        excerpt = around(sentence, match)
                        yield Finding(name, first + line - 1, pattern, excerpt)


def read_exceptions(path):
    """Keys of the list, in its order, and what is wrong with the list itself."""
    keys, complaints = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("#"):
            continue
        key = tuple(part.strip() for part in line.split("|"))
        if len(key) != 3 or not all(key):
            complaints.append(f"{EXCEPTIONS}:{number}: write 'file | pattern | excerpt'")
        elif keys and key <= keys[-1]:
            complaints.append(f"{EXCEPTIONS}:{number}: not sorted, or twice")
        keys.append(key)
    return keys, complaints


def check(root):
    """Complaints about sentences and about the list of exceptions."""
    keys, complaints = read_exceptions(root / EXCEPTIONS)
    found = list(findings(root))
    listed, used = set(keys), {finding.key for finding in found}
    complaints = [str(finding) for finding in found if finding.key not in listed] + complaints
    for key in keys:
        if key not in used:
            gone = f"{' | '.join(key)} is mended; take the line out (--prune)"
            complaints.append(f"{EXCEPTIONS}: {gone}")
    return complaints


def prune(root):
    """Take the exceptions out that match nothing; sort the others, each once, after a merge."""
    path = root / EXCEPTIONS
    used = {" | ".join(finding.key) for finding in findings(root)}
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    head = [line for line in lines if line.startswith("#")]
    kept = sorted(
        {line for line in lines if line.strip() in used}, key=lambda line: line.split(" | ")
    )
    path.write_text("".join([*head, *kept]), encoding="utf-8")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--prune", action="store_true", help="take out exceptions that are mended")
    arguments = parser.parse_args(argv)
    if arguments.prune:
        prune(arguments.root)
    complaints = check(arguments.root)
    print("\n".join(complaints) or "No habit of prose is found but the listed ones.")
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
