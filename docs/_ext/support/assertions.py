"""Say what a failed assertion saw, without a change to the script that holds it.

Use::

    try:
        exec(code, names)
    except AssertionError as error:
        explain(error)
        raise

or ``install()`` in a process that runs a script.

``explain`` adds a note to the error: the assertion as it is written, the value of each operand, and
the text that the script has beside it, which is the passage in front of a tutorial's cell and the
docstring of an enclosing function. It looks at the frame that failed, after the failure, and
evaluates the operands there again. What is executed is the script as readers get it: compiled
code, memory and traced functions stay the same, which assertions that are rewritten would change.
"""

import ast
import re
import sys
import types
from pathlib import Path

SHOWN_CHARACTERS = 300
SENTENCES = 2


def explain(error):
    """Add a note to the `AssertionError` *error*: what its assertion saw."""
    trace = error.__traceback__
    while trace.tb_next:
        trace = trace.tb_next
    file = Path(trace.tb_frame.f_code.co_filename)
    try:
        source = file.read_text(encoding="utf-8")
        assertion = assertion_at(ast.parse(source), trace.tb_lineno)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return
    if assertion is None:
        return
    # One namespace: a comprehension that is evaluated alone sees no locals.
    names = {**trace.tb_frame.f_globals, **trace.tb_frame.f_locals}
    seen = [(text, _shown(node, names)) for text, node in operands(assertion.test)]
    lines = [f"{text} = {value}" for text, value in seen if value is not None]
    if lines:
        lines.insert(0, f"assert {ast.unparse(assertion.test)}; evaluated again:")
    if said := passage(source, assertion.lineno):
        lines.append(f"{file.name} says there: {said}")
    error.add_note("\n".join(f"    {line}" for line in lines))


def install():
    """Explain the error that ends this process, and those of its forks."""
    before = sys.excepthook

    def hook(kind, error, trace):
        if isinstance(error, AssertionError):
            explain(error)
        before(kind, error, trace)

    sys.excepthook = hook


def assertion_at(tree, line):
    """The `assert` statement that holds *line*, or None."""
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert) and node.lineno <= line <= node.end_lineno
    ]
    return found[0] if found else None


# -- What to show --------------------------------------------------------------


def operands(test):
    """``(text, expression)`` of what decides *test*, in the order of the text, each once."""
    found = {ast.unparse(node): node for node in _operands(test)}
    return list(found.items())


def _operands(node):
    match node:
        case ast.Compare(left=left, comparators=others):
            for operand in (left, *others):
                yield from _operand(operand)
        case ast.BoolOp(values=parts):
            for part in parts:
                yield from _operands(part)
        case ast.UnaryOp(operand=operand):
            yield from _operands(operand)
        case ast.Call(func=ast.Name(id="all" | "any" as name), args=[comprehension]) if isinstance(
            comprehension, ast.GeneratorExp | ast.ListComp | ast.SetComp
        ):
            yield _deciding_item(comprehension, found=name == "any")
        case ast.Call(func=ast.Name(id="all" | "any"), args=[ast.Call() as items]):
            yield ast.Call(ast.Name("list", ast.Load()), [items], [])  # an iterator shows none
            yield from _operands(items)
        case ast.Call(func=function, args=arguments, keywords=keywords):
            yield node
            yield from _places(function, arguments)
            if isinstance(function, ast.Attribute):
                yield from _operand(function.value)
            for argument in (*arguments, *(keyword.value for keyword in keywords)):
                yield from _operand(argument)
        case _:
            yield from _operand(node)


def _operand(node):
    """An expression whose value says something, and what it is taken from."""
    match node:
        case ast.Constant() | ast.Lambda() | ast.GeneratorExp():
            return
        case ast.Starred(value=value):
            yield from _operand(value)
        case ast.Attribute(value=value) | ast.Subscript(value=value):
            yield node
            yield from _operand(value)
        case _:
            yield node


def _places(function, arguments):
    """Where two tensors differ, or what makes ``all`` and ``any`` of one what they are."""
    match function, arguments:
        case ast.Attribute(attr="equal", value=ast.Name(id="torch")), [left, right]:
            chosen = ast.Compare(left, [ast.NotEq()], [right])
        case ast.Attribute(attr="equal", value=left), [right]:
            chosen = ast.Compare(left, [ast.NotEq()], [right])
        case ast.Attribute(attr="all", value=tensor), _:
            chosen = ast.Compare(tensor, [ast.Eq()], [ast.Constant(0)])
        case ast.Attribute(attr="any", value=tensor), _:
            chosen = tensor
        case _:
            return
    yield ast.Call(ast.Attribute(chosen, "nonzero", ast.Load()), [], [])


def _deciding_item(comprehension, found):
    """An expression for the items for which the body of ``all`` is false, or of ``any`` true."""
    *others, last = comprehension.generators
    names = [
        ast.Name(node.id, ast.Load())
        for generator in comprehension.generators
        for node in ast.walk(generator.target)
        if isinstance(node, ast.Name)
    ]
    body = comprehension.elt if found else ast.UnaryOp(ast.Not(), comprehension.elt)
    last = ast.comprehension(last.target, last.iter, [*last.ifs, body], last.is_async)
    item = names[0] if len(names) == 1 else ast.Tuple(names, ast.Load())
    return ast.ListComp(item, [*others, last])


def _shown(node, names):
    """The value of an expression in one line of text; None for a module, which is no operand."""
    code = compile(ast.fix_missing_locations(ast.Expression(node)), "<assertion>", "eval")
    try:
        value = eval(code, names)
        if isinstance(value, types.ModuleType):
            return None
        text = " ".join(repr(value).split())
    except Exception as problem:
        text = f"<{type(problem).__name__}: {problem}>"
    if len(text) > SHOWN_CHARACTERS:
        half = SHOWN_CHARACTERS // 2
        text = f"{text[:half]} ... {text[-half:]}"
    return text


# -- What the script says ------------------------------------------------------


def passage(source, line):
    """The end of the text cell in front of *line*, and what an enclosing function says it does."""
    tree = ast.parse(source)
    inside = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and node.lineno <= line <= node.end_lineno
    ]
    said = [one for node in inside[-1:] for one in _paragraphs(ast.get_docstring(node))[:1]]
    lines = source.splitlines()[: line - 1]
    starts = [at for at, text in enumerate(lines) if text.startswith("# %%")]
    if starts:
        text = []
        for comment in lines[starts[-1] + 1 :]:
            if not comment.startswith("#"):
                break
            text.append(comment.removeprefix("#").removeprefix(" "))
        said += _paragraphs("\n".join(text))[-1:]
    elif not said:
        said = _paragraphs(ast.get_docstring(tree))[:1]
    sentences = re.split(r"(?<=[.:!?]) (?=\W*[A-Z])", " ".join(said))
    return " ".join(sentences[-SENTENCES:])


def _paragraphs(text):
    """The paragraphs of a text or None, each in one line; a line of dashes is none."""
    found = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text or "")]
    return [part for part in found if re.search(r"\w", part)]
