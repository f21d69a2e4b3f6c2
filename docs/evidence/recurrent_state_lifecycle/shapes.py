"""The shapes inside LSTMModule, for the page on its hidden state.

The module runs unchanged under a trace function, which notes every local variable of its methods
that a statement has bound to another shape. The list of statements is held against the order of
0.14.1, so a torchrl that reshapes elsewhere, or in another order, stops this script.
"""

import ast
import inspect
import json
import math
import sys
import textwrap

import torch
from tensordict import TensorDict, TensorDictBase
from torch.nn.utils.rnn import PackedSequence
from torchrl.modules import LSTMModule, set_recurrent_mode
from torchrl.modules.tensordict_module import rnn

# No two are equal, so that a number in a shape has one meaning.
SIZES = {"B": 2, "L": 3, "I": 4, "N": 5, "E": 6, "S": 7, "H": 8, "T": 9, "A": 10}
LETTERS = {number: letter for letter, number in SIZES.items()} | {1: "1"}
LETTERS |= {
    math.prod(SIZES[one] for one in several): "·".join(several)
    for several in ("AB", "BT", "LH", "ABT")
}
assert len(LETTERS) == len(SIZES) + 5
LENGTHS = [[2, 7], [1, 3, 5]]  # of the trajectories in the two rows: N of them, S the longest

FUNCTIONS = {
    "forward": LSTMModule.forward,
    "_lstm": LSTMModule._lstm,
    "_split_and_pad_for_reset": rnn._split_and_pad_for_reset,
    "_place_at_traj_end": rnn._place_at_traj_end,
    "_inv_pad_for_reset": rnn._inv_pad_for_reset,
    "_lstm_scan_with_resets": LSTMModule._lstm_scan_with_resets,
}


# -- Watching ----------------------------------------------------------------


class Statement:
    """An assignment, or a return, of a function: its text and what it calls."""

    def __init__(self, node):
        self.first, self.last = node.lineno, node.end_lineno
        self.text = ast.unparse(node)


def statements(function):
    """The simple statements of *function* by line, with line numbers of its file."""
    lines, start = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    ast.increment_lineno(tree, start - 1)
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.Return, ast.Expr)):
            statement = Statement(node)
            for line in range(statement.first, statement.last + 1):
                found.setdefault(line, statement)
    return found


def shape_of(value):
    """The shape of a tensor or TensorDict; of several, the last one, which is a state."""
    if isinstance(value, PackedSequence):
        value = value.data
    if isinstance(value, tuple):
        value = value[-1] if value else None
    if isinstance(value, (torch.Tensor, TensorDictBase)):
        return tuple(value.shape)
    return None


def changed(before, after):
    """What is new: the members of a sequence that was as long before, or the whole."""
    if type(before) is type(after) is tuple and len(before) == len(after):
        return [new for old, new in zip(before, after, strict=True) if old is not new]
    return [] if before is after else [after]


class Trace:
    """``(function, statement, variable, shape)`` for each shape that a statement has made."""

    def __init__(self):
        self.codes = {inspect.unwrap(f).__code__: name for name, f in FUNCTIONS.items()}
        assert len(self.codes) == len(FUNCTIONS)
        self.lines = {n: statements(inspect.unwrap(f)) for n, f in FUNCTIONS.items()}
        self.events = []

    def __call__(self, frame, event, value):
        name = self.codes.get(frame.f_code)
        if name is None:
            return None
        known, last = self.kept(frame), frame.f_lineno

        def local(frame, event, value):
            nonlocal known, last
            now = self.kept(frame)
            for variable, thing in now.items():
                for part in changed(known.get(variable), thing):
                    self.note(name, last, variable, part)
            known, last = now, frame.f_lineno
            if event == "return" and value is not None:
                self.note(name, last, "return", value)
            return local

        return local

    def note(self, name, line, variable, thing):
        statement = self.lines[name].get(line)
        shape = shape_of(thing)
        if statement is not None and shape is not None:
            self.events.append((name, variable, shape, statement.text))

    @staticmethod
    def kept(frame):
        """The locals, lists as they are now; they are held, so no two can share an id."""
        return {
            name: tuple(thing) if type(thing) is list else thing
            for name, thing in frame.f_locals.items()
        }


def traced(module, data, mode):
    trace, before = Trace(), sys.gettrace()
    with torch.no_grad(), set_recurrent_mode(mode):
        sys.settrace(trace)
        try:
            module(data)
        finally:
            sys.settrace(before)
    return trace.events


# -- Four calls --------------------------------------------------------------


def make_module(backend="pad"):
    return LSTMModule(
        input_size=SIZES["I"],
        hidden_size=SIZES["H"],
        num_layers=SIZES["L"],
        in_keys=["observation", "h", "c"],
        out_keys=["features", ("next", "h"), ("next", "c")],
        recurrent_backend=backend,
    )


def make_data(*letters, resets=False):
    shape = [SIZES[letter] for letter in letters]
    state = torch.zeros(*shape, SIZES["L"], SIZES["H"])
    data = {"observation": torch.randn(*shape, SIZES["I"]), "h": state, "c": state.clone()}
    data["is_init"] = torch.zeros(*shape, 1, dtype=torch.bool)
    if resets:
        for row, lengths in zip(data["is_init"], LENGTHS, strict=True):
            row[[0, *torch.tensor(lengths).cumsum(0)[:-1].tolist()]] = True
    return TensorDict(data, shape)


assert sum(map(len, LENGTHS)) == SIZES["N"]
assert max(map(max, LENGTHS)) == SIZES["S"]
assert [sum(lengths) for lengths in LENGTHS] == [SIZES["T"]] * SIZES["B"]
CALLS = {  # by title: recurrent mode, backend, batch size, whether rows have resets inside
    "sequential": (False, "pad", "E", False),
    "recurrent": (True, "pad", "BT", False),
    "with resets": (True, "pad", "BT", True),
    "scan": (True, "scan", "BT", True),
}

# The order of 0.14.1: function, variable, a part of the statement that binds it, and the shape
# in the first three calls. Of the two states of an LSTM, h stands for both.
ORDER = [
    ("forward", "tensordict_shaped", "tensordict.reshape(-1).unsqueeze(-1)", "E1", "", ""),
    ("forward", "tensordict_shaped", "tensordict_shaped = tensordict", "", "BT", "BT"),
    ("forward", "is_init", "tensordict_shaped['is_init'].squeeze(-1)", "E1", "BT", "BT"),
    ("_split_and_pad_for_reset", "splits", "_get_num_per_traj_init(is_init)", "", "", "N"),
    ("_split_and_pad_for_reset", "padded", "_split_and_pad_sequence", "", "", "NS"),
    ("forward", "tensordict_shaped", "tensordict_shaped = padded", "", "", "NS"),
    ("forward", "is_init", "tensordict_shaped['is_init'].squeeze(-1)", "", "", "NS"),
    ("forward", "value", "tensordict_shaped.get(key, default)", "E1I", "BTI", "NSI"),
    ("forward", "hidden0", "tensordict_shaped.get(key, default)", "E1LH", "BTLH", "NSLH"),
    ("forward", "is_init_expand", "expand_as_right(is_init, hidden0)", "E1LH", "", ""),
    ("forward", "hidden0", "torch.where(is_init_expand, zeros, hidden0)", "E1LH", "", ""),
    ("_lstm", "_hidden0_in", "hidden0_in[..., 0, :, :]", "ELH", "BLH", "NLH"),
    ("_lstm", "hidden", "_hidden0_in.transpose(-3, -2)", "LEH", "LBH", "LNH"),
    ("_lstm", "packed", "pack_padded_sequence", "", "", ("BT", "I")),
    ("_lstm", "hidden", "self.lstm(", "LEH", "LBH", "LNH"),
    ("_lstm", "y", "self.lstm(input, hidden)", "E1H", "BTH", ""),
    ("_lstm", "y", "pad_packed_sequence", "", "", "NSH"),
    ("_lstm", "hidden", "_h.transpose(0, 1)", "ELH", "BLH", "NLH"),
    ("_place_at_traj_end", "return", "h_padded.scatter(1, idx, h.unsqueeze(1))", "", "", "NSLH"),
    ("_lstm", "out", "torch.stack", "E1LH", "BTLH", ""),
    ("_lstm", "out", "_place_at_traj_end(out[i], splits, steps)", "", "", "NSLH"),
    ("forward", "hidden0", "self._lstm(", "E1LH", "BTLH", "NSLH"),
    ("forward", "val", "self._lstm(", "E1H", "BTH", "NSH"),
    ("forward", "tensordict_shaped", "_inv_pad_for_reset(", "", "", "BT"),
    ("forward", "return", "tensordict", "E", "BT", "BT"),
]
SCAN = [
    ("_lstm_scan_with_resets", "input", "input.transpose(0, 1)", "TBI"),
    ("_lstm_scan_with_resets", "is_init", "is_init.transpose(0, 1)", "TB"),
    (
        "_lstm_scan_with_resets",
        "reset_hidden0",
        "hidden0_in.transpose(0, 1).transpose(-3, -2)",
        "TLBH",
    ),
    ("_lstm_scan_with_resets", "outputs", "_scan(", "TBH"),
    ("_lstm_scan_with_resets", "hidden0_steps", "_scan(", ("T", "B", "LH")),
    ("_lstm_scan_with_resets", "outputs", "outputs.transpose(0, 1)", "BTH"),
    ("_lstm_scan_with_resets", "hidden0_steps", "hidden0_steps.unflatten", "BTLH"),
    ("_lstm_scan_with_resets", "end_mask", "torch.empty_like(is_init.transpose(0, 1))", "BT"),
    ("_lstm_scan_with_resets", "hidden0_steps", "torch.where(", "BTLH"),
]
# Not a step of their own: weights, the second state, and what only passes a value on.
IGNORED = {
    "forward": "zeros hidden1 padded splits splits_maybe",
    "_split_and_pad_for_reset": "is_init return",
    "_lstm": "_hidden1_in lengths packed_y _ return",
    "_place_at_traj_end": "h_padded idx",
    "_inv_pad_for_reset": "return",
    "_lstm_scan_with_resets": "w_ih w_hh b_ih b_hh weight_ihs weight_hhs bias_ihs bias_hhs"
    " reset_hidden1 hidden1_steps _ return",
}
OWNER = {
    "forward": "torchrl.modules.LSTMModule",
    "_lstm": "torchrl.modules.LSTMModule",
    "_lstm_scan_with_resets": "torchrl.modules.LSTMModule",
}


def spelled(shape):
    """``(B, T)`` for the numbers of a shape."""
    return f"({', '.join(LETTERS[number] for number in shape)}{',' * (len(shape) == 1)})"


def expected(letters):
    parts = ["·".join(part) for part in letters]
    return f"({', '.join(parts)}{',' * (len(parts) == 1)})"


def check(title, events, order):
    """The events of one call are those of *order*, in this order and with these shapes."""
    pairs = [("hidden0", "hidden1"), ("_hidden0_in", "_hidden1_in")]
    for first, second in (*pairs, ("hidden0_steps", "hidden1_steps")):
        shapes = [[e[2] for e in events if e[1] == name] for name in (first, second)]
        assert shapes[0] == shapes[1], f"{title}: {first} and {second} differ"
    seen = [event for event in events if event[1] not in IGNORED[event[0]].split()]
    # Two tensors go through these: the state h, then the state c.
    twice = {"_place_at_traj_end", "out", "hidden"}
    seen = [e for n, e in enumerate(seen) if not {e[0], e[1]} & twice or e not in seen[:n]]
    # What the list holds before its states are placed in time.
    seen = [e for e in seen if e[3] != "out = [y, *hidden]"]
    for event, (function, variable, part, shape) in zip(seen, order, strict=False):
        found = f"{event[0]}: {event[1]} = {spelled(event[2])} by {event[3]}"
        assert event[:2] == (function, variable), f"{title}: {found}, expected {variable}"
        assert part in event[3], f"{title}: {found}, expected {part}"
        assert spelled(event[2]) == expected(shape), f"{title}: {found}, expected {shape}"
    assert len(seen) == len(order), f"{title}: {len(seen)} statements, expected {len(order)}"


def called(title):
    recurrent, backend, letters, resets = CALLS[title]
    return traced(make_module(backend), make_data(*letters, resets=resets), recurrent)


def link(function):
    # Short names for a narrow column.
    brief = {"_split_and_pad_for_reset": "split", "_place_at_traj_end": "place"}
    text = brief.get(function, function)
    return f":source:`{text} <{OWNER.get(function, rnn.__name__)}.{function}>`"


def pad_table():
    titles, rows = list(CALLS)[:3], []
    for n, title in enumerate(titles):
        order = [(*row[:3], row[3 + n]) for row in ORDER if row[3 + n]]
        check(title, called(title), order)
    for function, variable, part, *shapes in ORDER:
        cells = [f"``{expected(shape)}``" if shape else "–" for shape in shapes]
        rows.append([link(function), bound(variable, part), *cells])
    return {"columns": ["In", "Variable, and what makes it", *titles], "rows": rows}


def bound(variable, part):
    if part.startswith(f"{variable} = "):
        return f"``{part}``"
    verb = "returns" if variable == "return" else f"``{variable}`` by"
    return f"{verb} ``{part.rstrip('(')}``"


def scan_table():
    # Around the scan the statements are those of a call without a reset, as far as it goes.
    before = [(*row[:3], row[4]) for row in ORDER[:13] if row[4]]
    after = [(*row[:3], row[4]) for row in ORDER[-4:] if row[4]]
    check("scan", called("scan"), before + SCAN + after)
    rows = [[bound(name, part), f"``{expected(shape)}``"] for _, name, part, shape in SCAN]
    return {"columns": ["Variable, and what makes it", "Shape"], "rows": rows}


# -- What becomes of the batch size ------------------------------------------

BATCHES = {  # by batch size: what it becomes in sequential and in recurrent mode
    "": ("11", None),
    "T": ("T1", "1T"),
    "BT": (("BT", "1"), "BT"),
    "ABT": (("ABT", "1"), ("AB", "T")),
}


def batch_table():
    rows = []
    for letters, answers in BATCHES.items():
        cells = []
        for mode, answer in zip((False, True), answers, strict=True):
            if answer is None:
                cells.append(f"``{refused(letters, mode)}``")
                continue
            events = traced(make_module(), make_data(*letters), mode)
            shape = next(e[2] for e in events if e[1] == "tensordict_shaped")
            assert spelled(shape) == expected(answer), f"{letters}: {spelled(shape)}"
            cells.append(f"``{expected(answer)}``")
        rows.append([f"``{expected(letters)}``" if letters else "``()``", *cells])
    return {"columns": ["Batch size", "sequential", "recurrent"], "rows": rows}


def refused(letters, mode):
    """The name of the error, which has to say what is missing."""
    try:
        traced(make_module(), make_data(*letters), mode)
    except ValueError as error:
        if "at least one batch dim" in str(error):
            return type(error).__name__
        raise
    raise AssertionError("a TensorDict without a time dimension is accepted")


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(
        json.dumps(
            {
                "batches": batch_table(),
                "pad": pad_table(),
                "scan": scan_table(),
            }
        )
    )
