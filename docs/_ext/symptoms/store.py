"""The symptoms of the debugging map, each read from the tutorial that shows it.

A symptom is ``tutorials/debugging/<slug>.py``; nothing else holds anything of its row. Its text
starts with the symptom as title, in the words of somebody who does not know the cause, one
paragraph with what is seen, and these fields, each one line of markup or more::

    :Subsystem: one of SUBSYSTEMS
    :Effect: silent or loud
    :Cause: one sentence
    :Fix: the smallest one
    :Source: :source:`torchrl....`, what decides it in the installed package
    :Behind it: :doc: or :ref:, the page that explains it
    :Threads: :thread:`1406`, public issues of pytorch/rl; or "none found"
    :Also called: words that a reader may search for

Its code defines ``check``, at most three statements that a reader can paste: they use arguments,
builtins and what the page imports. It prints
``unhealthy = check(...)`` and ``healthy = check(...)``, each in a cell of its own. The dictionaries
``broken`` and ``fixed`` hold arguments of ``torchrl_doctor.diagnose``. The assertion of the broken
side says "no longer reproduces". Where an exception or a warning is the symptom, or part of it, the
page prints it as ``<type>: <message>``, which makes it an entry of the error index.

The order of ``tutorials/debugging/order.txt`` is the ranking: silent symptoms first.
"""

import ast
import builtins
import re
from dataclasses import dataclass
from itertools import pairwise
from textwrap import dedent

from docs._ext.site.claims import unmarked

TOPIC = "debugging"
SUBSYSTEMS = (
    "collectors",
    "devices",
    "trajectories and slices",
    "replay buffers",
    "recurrent state",
    "value estimation and losses",
    "exploration",
    "multi-process and weight sync",
    "memory and storage",
    "environments",
    "evaluation",
)
EFFECTS = ("silent", "loud")
FIELDS = (
    "Subsystem",
    "Effect",
    "Cause",
    "Fix",
    "Source",
    "Behind it",
    "Threads",
    "Also called",
)
GONE = "no longer reproduces"
CHECK_STATEMENTS = 3

FIELD = re.compile(r"^:(?P<name>[A-Z][\w ]*): +(?P<text>\S[^\n]*(?:\n[ ]+\S[^\n]*)*)", re.M)
MESSAGE = re.compile(r"^(?P<type>(?:\w+\.)*\w*(?:Error|Warning|Exception|Interrupt|Exit)): ?", re.M)
PRINTED = re.compile(rf"{MESSAGE.pattern}|^\{{", re.M)  # a message, or what check returned
# What sphinx-gallery writes: before each cell, its code, and what it printed.
CELL = re.compile(r"^\.\. GENERATED FROM PYTHON SOURCE LINES", re.M)
BLOCK = r"\.\. code-block:: {}\n\n(?P<text>(?:[ ]{{4}}[^\n]*\n|\n)+)"
CODE = re.compile("^" + BLOCK.format("Python"), re.M)
OUTPUT = re.compile(r"script-out\n\n[ ]" + BLOCK.format("none"))


class SymptomError(Exception):
    """A page that does not have the form of a symptom; the message names file, line and cure."""

    def __init__(self, script, line, problem):
        super().__init__(f"tutorials/{TOPIC}/{script.name}:{line}: {problem}")
        self.line = line


@dataclass(frozen=True)
class Symptom:
    """One row of the map."""

    slug: str
    title: str
    seen: str  # one paragraph: what the reader notices
    fields: dict
    check: str  # source of the function, below the imports that it needs
    docname: str

    @property
    def silent(self):
        return self.fields["Effect"] == "silent"


@dataclass(frozen=True)
class Outputs:
    """What the page printed when the gallery ran it."""

    unhealthy: str
    healthy: str
    messages: tuple  # of exceptions and warnings, "type: text"


def read(script):
    """The symptom that *script* shows; a `SymptomError` where its form is not that of one."""
    if not script.is_file():
        raise SymptomError(script, 1, "no such file; take its name from order.txt")
    source = script.read_text(encoding="utf-8")
    try:
        tree = ast.parse(source, script.name)
    except SyntaxError as error:
        raise SymptomError(script, error.lineno, f"not Python: {error.msg}") from None
    text = unmarked(ast.get_docstring(tree) or "")
    title, _, rest = text.partition("\n")
    seen = rest.partition("\n")[2].strip().partition("\n\n")[0].replace("\n", " ")
    fields = {m["name"]: re.sub(r"\n +", " ", m["text"]) for m in FIELD.finditer(text)}

    def line_of(words):
        return source[: max(source.find(words), 0)].count("\n") + 1

    for name in fields.keys() - set(FIELDS):
        raise SymptomError(script, line_of(f":{name}:"), f"no field {name!r}; use {list(FIELDS)}")
    for name in FIELDS:
        if name not in fields:
            raise SymptomError(script, 1, f"the field {name!r} is missing; add it to the docstring")
    for name, allowed in {"Subsystem": SUBSYSTEMS, "Effect": EFFECTS}.items():
        if fields[name] not in allowed:
            problem = f"{fields[name]!r} is no {name.lower()}; use one of {', '.join(allowed)}"
            raise SymptomError(script, line_of(f":{name}:"), problem)
    if not seen or seen.startswith(":"):
        raise SymptomError(script, 2, "say below the title what a reader sees, in one paragraph")
    check = _check_function(script, tree)
    _must_assign(script, tree)
    if GONE not in source:
        raise SymptomError(script, 1, f"the assertion of the broken side has to say {GONE!r}")
    return Symptom(
        slug=script.stem,
        title=title,
        seen=seen,
        fields=fields,
        check="\n".join([*_imports(script, tree, check), ast.get_source_segment(source, check)]),
        docname=f"tutorials/{TOPIC}/{script.stem}",
    )


def effect_of(script):
    """Its effect alone, which costs no parse; None where `read` would complain."""
    fields = {m["name"]: m["text"] for m in FIELD.finditer(script.read_text(encoding="utf-8"))}
    effect = fields.get("Effect")
    return effect if effect in EFFECTS else None


def _check_function(script, tree):
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "check":
            if len(node.body) > CHECK_STATEMENTS:
                problem = f"check has {len(node.body)} statements; make it {CHECK_STATEMENTS}"
                raise SymptomError(script, node.lineno, problem)
            return node
    raise SymptomError(script, 1, "no function check; readers paste it")


def _imports(script, tree, check):
    """The import statements that the function needs; it may use nothing else of its page."""
    names = [node for node in ast.walk(check) if isinstance(node, ast.Name)]
    own = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in ast.walk(check) if isinstance(node, ast.arg)}
    wanted = {node.id for node in names} - own - set(dir(builtins))
    lines = []
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound = {a.asname or a.name.partition(".")[0]: a for a in node.names}
            if used := sorted(wanted & bound.keys()):
                node.names = [bound[name] for name in used]
                lines.append(ast.unparse(node))
                wanted -= bound.keys()
    if wanted:
        problem = f"check uses {', '.join(sorted(wanted))} of its page; who pastes it has none"
        raise SymptomError(script, check.lineno, problem)
    return lines


def _must_assign(script, tree):
    names = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for name in ("broken", "fixed", "unhealthy", "healthy"):
        if name not in names:
            raise SymptomError(script, 1, f"nothing is assigned to {name!r}")


def read_outputs(page, script):
    """What the generated *page* of *script* shows of its run."""
    printed = {"unhealthy": "", "healthy": ""}
    messages = []
    for cell in CELL.split(page.read_text(encoding="utf-8")):
        code, printed_block = CODE.search(cell), OUTPUT.search(cell)
        if not (code and printed_block):
            continue
        output = dedent(printed_block["text"]).strip("\n")
        starts = [m.start() for m in PRINTED.finditer(output)]
        texts = [output[a:b].strip() for a, b in pairwise([*starts, len(output)])]
        for text in texts:
            if MESSAGE.match(text):
                messages += [text] if text not in messages else []
            for name in printed:
                if text[0] == "{" and re.search(rf"^ +{name} = check\(", code["text"], re.M):
                    printed[name] = text
    for name, text in printed.items():
        if not text:
            raise SymptomError(script, 1, f"no cell prints the dictionary of {name} = check(...)")
    return Outputs(**printed, messages=tuple(messages))
