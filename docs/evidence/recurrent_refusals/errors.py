"""What each recurrent backend refuses and ignores, for docs/reference/recurrent_refusals.rst.

Every combination is built and called. CUDA is hidden, so that the refusals of ``"triton"`` on the
CPU come out on every machine. Three things are simulated, and nothing else: a package that is not
installed, the value of an environment variable at import, and, where it has to be seen what reaches
the Triton kernels, the kernels themselves.
"""

import contextlib
import importlib.util
import json
import logging
import os
import re
import sys
import warnings
from dataclasses import dataclass
from unittest import mock

# Before torch is imported.
os.environ.update(CUDA_VISIBLE_DEVICES="", RL_LOGGING_LEVEL="ERROR")
os.environ.pop("TORCHRL_RNN_PRECISION", None)

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.modules import (
    GRU,
    LSTM,
    GRUModule,
    LSTMModule,
    set_recurrent_matmul_precision,
    set_recurrent_mode,
)
from torchrl.modules.tensordict_module import _rnn_precision, _rnn_triton, rnn

torch.set_num_threads(1)
# PyTorch logs one of the errors below before it raises it.
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)

ROWS, STEPS, INPUTS, HIDDEN = 3, 6, 3, 16
BACKENDS = ("pad", "scan", "triton", "auto")
MODULES = {"LSTM": LSTMModule, "GRU": GRUModule}
STATES = {"LSTM": ["h", "c"], "GRU": ["h"]}
# What may be warned about: PyTorch on dropout that does nothing, Dynamo on what it cannot trace.
EXPECTED_WARNINGS = (
    "dropout option adds dropout after all but last recurrent layer",
    "Dynamo does not know how to trace the builtin `posix.putenv.`",
)


def code(text):
    return f"``{text}``"


def plain(text):
    """Text as it stands; unlike a literal it may be wrapped in the cell of a table."""
    return re.sub(r"([\\`*_|<>])", r"\\\1", text)


def slices(layers=1, size=HIDDEN, h_size=None):
    """Rows with a reset in the middle, and stored states that are not zero."""
    generator = torch.Generator().manual_seed(0)
    is_init = torch.zeros(ROWS, STEPS, 1, dtype=torch.bool)
    is_init[0, 3] = True
    draw = {"observation": (INPUTS,), "h": (layers, h_size or size), "c": (layers, size)}
    leaves = {
        key: torch.randn(ROWS, STEPS, *shape, generator=generator) for key, shape in draw.items()
    }
    return TensorDict({"is_init": is_init, **leaves}, [ROWS, STEPS])


def make(kind, **options):
    """A module with the same weights in every call."""
    torch.manual_seed(0)
    states = STATES[kind]
    sizes = {} if kind.lower() in options else {"input_size": INPUTS, "hidden_size": HIDDEN}
    keys = {
        "in_keys": ["observation", *states],
        "out_keys": ["features", *[("next", key) for key in states]],
    }
    return MODULES[kind](**{**sizes, **keys, **options})


def forward(module, batch, recurrent=True, gradients=False):
    """The batch as the module leaves it; scans are traced anew at each call with gradients."""
    with set_recurrent_mode(recurrent), torch.set_grad_enabled(gradients):
        return module(batch)


def features(kind, batch=None, recurrent=True, **options):
    batch = slices() if batch is None else batch.clone()
    return forward(make(kind, **options), batch, recurrent)["features"]


@contextlib.contextmanager
def expected_warnings():
    """Catch the warnings that are known, and no others."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        assert str(warning.message).startswith(EXPECTED_WARNINGS), str(warning.message)


@contextlib.contextmanager
def replaced_kernels():
    """Replace the Triton kernels by functions that record their calls and return ones."""
    calls = []

    def record(states):
        def kernel(layer_input, *args, **options):
            calls.append({"layer_input": layer_input.detach(), **options})
            ones = torch.ones(*layer_input.shape[:2], HIDDEN, requires_grad=True)
            return (ones,) * (2 * states)

        return kernel

    with (
        mock.patch.object(_rnn_triton, "lstm_triton", record(2)),
        mock.patch.object(_rnn_triton, "gru_triton", record(1)),
    ):
        yield calls


# -- Which option works with which backend ------------------------------------

CONSTRUCTION, FORWARD = "no, at construction", "no, at forward"
OPTIONS = {  # what the table calls it, arguments, batch
    "plain": ({}, {}),
    "two layers": ({"num_layers": 2}, {"layers": 2}),
    "``dropout``": ({"num_layers": 2, "dropout": 0.5}, {"layers": 2}),
    "``dropout``, in ``eval()``": ({"num_layers": 2, "dropout": 0.5}, {"layers": 2}),
    "``dropout``, one layer": ({"dropout": 0.5}, {}),
    "``proj_size``": ({"proj_size": 8}, {"h_size": 8}),
    "``bidirectional``": ({"bidirectional": True}, {"layers": 2}),
    '``recurrent_recompute``, ``"full"``': ({"recurrent_recompute": "full"}, {}),
    "``recurrent_matmul_precision``": ({"recurrent_matmul_precision": "tf32"}, {}),
    "``recurrent_compute_dtype``": ({"recurrent_compute_dtype": torch.bfloat16}, {}),
}
FOR_KERNELS = ("recurrent_matmul_precision", "recurrent_compute_dtype")


def refuses(error, arguments):
    """Whether *error* is about the option; any other is a fault, which is to be seen."""
    return any(option in str(error) for option in arguments)


def outcome(kind, backend, name, compiling=False):
    """What happens to one option, as the cell of the table."""
    arguments, batch = OPTIONS[name]
    batch = slices(**batch)
    with expected_warnings(), replaced_kernels() as calls:
        try:
            module = make(kind, recurrent_backend=backend, **arguments)
        except (ValueError, TypeError) as error:
            if not refuses(error, arguments):
                raise
            return CONSTRUCTION
        module.train("eval()" not in name)
        with mock.patch.object(rnn, "is_compiling", return_value=compiling):
            try:
                found = forward(module, batch)["features"]
            except (NotImplementedError, ValueError) as error:  # any other is raised again
                if not refuses(error, arguments):
                    raise
                return FORWARD
        if backend == "triton" and not calls:
            same = features(kind, slices(**OPTIONS[name][1]), recurrent_backend="pad", **arguments)
            assert torch.equal(found, same), "what Triton leaves to pad is not what pad computes"
            return "yes, as ``pad``"
    if any(option in arguments for option in FOR_KERNELS):
        if backend == "triton":
            passed = calls[0]["input_precision"], calls[0]["compute_dtype"]
            default = "auto", torch.float32
            assert sum(map(lambda a, b: a != b, passed, default)) == 1
            return "yes"
        with mock.patch.object(rnn, "is_compiling", return_value=compiling):
            assert torch.equal(found, features(kind, recurrent_backend=backend)), (
                f"{backend} does not ignore {name}"
            )
        return "ignored"
    return "yes"


def support():
    """Option by backend; the GRU differs from the LSTM only in that it has no projection."""
    rows = []
    columns = [(backend, False) for backend in BACKENDS] + [("auto", True)]
    for name in OPTIONS:
        cells = [outcome("LSTM", *column[:1], name, column[1]) for column in columns]
        for (backend, compiling), cell in zip(columns, cells, strict=True):
            expected = CONSTRUCTION if name == "``proj_size``" else cell
            assert outcome("GRU", backend, name, compiling) == expected, (backend, name)
        assert cells[3] == cells[0], "auto in eager mode is not pad"
        if "recompute" not in name:
            assert cells[4] == cells[1], "auto, compiling, is not scan"
        rows.append([name, *cells])
    table = {row[0]: row[1:] for row in rows}
    assert [row[1] for row in rows].count(FORWARD) == 0, "pad refuses something at forward"
    for name in ("in ``eval()``", "one layer"):
        refused = table[f"``dropout``, {name}"][1] == FORWARD
        assert refused, f"scan accepts dropout that does nothing: {name}"
    assert table["``bidirectional``"][2] == table["``proj_size``"][2] == "yes, as ``pad``"
    assert table['``recurrent_recompute``, ``"full"``'] == [
        CONSTRUCTION,
        "yes",
        "yes",
        CONSTRUCTION,
        CONSTRUCTION,
    ]
    heads = [*map(code, BACKENDS), "``auto``, compiling"]
    return {"columns": ["Option", *heads], "rows": rows}


# -- Errors -------------------------------------------------------------------


@dataclass
class Refusal:
    """Something that raises, and how the table shows it."""

    what: str
    attempt: object
    raised: str
    error: str
    head: str
    instead: str = ""

    def shown(self):
        """Type and text of the error, which have to be the expected ones."""
        raised = None
        with expected_warnings():
            try:
                self.attempt(self)
            except Exception as error:
                raised = error
        assert type(raised).__name__ == self.error, f"{self.what}: {raised!r}"
        text = " ".join(str(raised).split())
        assert text.startswith(self.head), f"{self.what}: {text}"
        if not self.head:
            assert text == "", text
            return f"{code(self.error)}, without a text"
        more = " ..." if text != self.head else ""
        return f"{code(self.error)}: {plain(self.head + more)}"

    # At which moment it raises is part of what is checked.

    def built(self, kind="LSTM", **options):
        assert self.raised == "construction"
        make(kind, **options)

    def called(self, kind="LSTM", batch=None, recurrent=True, **options):
        batch = slices() if batch is None else batch
        try:
            module = make(kind, **options)
            if self.raised == "forward, recurrent mode":
                forward(module, batch.clone(), recurrent=False)
        except Exception as error:
            raise AssertionError(f"{self.what} is refused earlier than {self.raised}") from error
        forward(module, batch, recurrent)


def building(kind="LSTM", **options):
    return lambda refusal: refusal.built(kind, **options)


def calling(kind="LSTM", **options):
    return lambda refusal: refusal.called(kind, **options)


def without(package):
    """Build the module that needs *package*, as if that were not installed."""

    def attempt(refusal):
        if package == "triton":
            with mock.patch.object(rnn, "_has_triton", False):
                refusal.built(recurrent_backend="triton")
        with (
            mock.patch.object(rnn, "_has_hoptorch", False),
            mock.patch.object(rnn, "_hoptorch_scan", None),
        ):
            refusal.built(recurrent_backend="scan")

    return attempt


def import_with_variable(refusal):
    """Import the module that reads the variable once more, under another name."""
    path = _rnn_precision.__file__
    with mock.patch.dict(os.environ, TORCHRL_RNN_PRECISION="highest"):
        spec = importlib.util.spec_from_file_location("another", path)
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def twice(kind):
    """Differentiate a gradient."""

    def attempt(refusal):
        batch = slices()
        leaf = batch["observation"].requires_grad_()
        batch["observation"] = leaf
        module = make(kind, recurrent_backend="scan")
        found = forward(module, batch, gradients=True)["features"]
        (gradient,) = torch.autograd.grad(found.square().sum(), leaf, create_graph=True)
        gradient.square().sum().backward()

    return attempt


def table(refusals, columns):
    rows = []
    for refusal in refusals:
        error = refusal.shown()
        cells = {
            "Combination": refusal.what,
            "When, and the error": f"{refusal.raised}: {error}",
            "Error": error,
            "Do instead": refusal.instead,
        }
        rows.append([cells[column] for column in columns])
    return {"columns": list(columns), "rows": rows}


def refused_options():
    """Errors of the arguments."""
    modes = "Expected one of ['auto', 'fast', 'high-prec', 'ieee', 'tf32', 'tf32x3']."
    scan = {"recurrent_backend": "scan"}
    spell = "one of the six words"
    refusals = [
        Refusal(
            '``recurrent_backend="cudnn"``',
            building(recurrent_backend="cudnn"),
            "construction",
            "ValueError",
            "recurrent_backend must be one of 'auto', 'pad', 'scan' or 'triton'. Got cudnn.",
            "``pad``: it runs cuDNN's layer on CUDA",
        ),
        Refusal(
            "``triton``, package not installed",
            without("triton"),
            "construction",
            "RuntimeError",
            "recurrent_backend='triton' requires the triton package.",
            "install it; where there is no such package, ``pad`` or ``scan``",
        ),
        Refusal(
            "``triton``, data on the CPU; not for layers that go to ``pad``",
            calling(recurrent_backend="triton"),
            "forward, recurrent mode",
            "ValueError",
            "Expected a cuda device, but got: cpu",
            "move module and data to CUDA, or ``pad`` or ``scan``",
        ),
        Refusal(
            "``scan``, hoptorch not installed",
            without("hoptorch"),
            "construction",
            "NotImplementedError",
            "recurrent_backend='scan' requires hoptorch.",
            "install it, or ``pad``",
        ),
        Refusal(
            "``scan``, ``dropout``",
            calling(batch=slices(2), num_layers=2, dropout=0.1, **scan),
            "forward, recurrent mode",
            "NotImplementedError",
            "LSTMModule(recurrent_backend='scan') does not support dropout yet.",
            "``pad``; or modules of one layer, with dropout between them",
        ),
        Refusal(
            "``scan``, ``proj_size``",
            calling(batch=slices(h_size=8), proj_size=8, **scan),
            "forward",
            "NotImplementedError",
            "LSTMModule(recurrent_backend='scan') does not support proj_size yet.",
            "``pad``; or a linear layer after the module",
        ),
        Refusal(
            "``proj_size`` in sequential mode, with stored states",
            calling(batch=slices(h_size=8), recurrent=False, proj_size=8),
            "forward",
            "RuntimeError",
            "The size of tensor a (8) must match the size of tensor b (16)",
            "a linear layer after the module: no backend can collect with projections",
        ),
        Refusal(
            "``GRUModule``, ``proj_size``",
            building("GRU", proj_size=8),
            "construction",
            "TypeError",
            "GRUModule.__init__() got an unexpected keyword argument 'proj_size'",
            "a linear layer after the module",
        ),
        Refusal(
            "``scan``, ``bidirectional``",
            calling(batch=slices(2), bidirectional=True, **scan),
            "forward, recurrent mode",
            "ValueError",
            "LSTMModule(recurrent_backend='scan') does not support bidirectional LSTMs yet.",
            "``pad``, and not in a policy: see below",
        ),
        Refusal(
            "``python_based``, ``bidirectional``",
            building(python_based=True, bidirectional=True),
            "construction",
            "ValueError",
            "python_based=True does not support bidirectional LSTMs.",
            "PyTorch's layer",
        ),
        Refusal(
            "``python_based``, ``proj_size``",
            calling(batch=slices(h_size=8), python_based=True, proj_size=8),
            "forward",
            "RuntimeError",
            "The size of tensor a (16) must match the size of tensor b (8)",
            "PyTorch's layer",
        ),
        Refusal(
            '``pad``, ``recurrent_recompute``, ``"full"``',
            building(recurrent_backend="pad", recurrent_recompute="full"),
            "construction",
            "ValueError",
            "recurrent_recompute is only supported for recurrent_backend 'scan' and 'triton'.",
            "``scan`` or ``triton``",
        ),
        Refusal(
            '``auto``, ``recurrent_recompute``, ``"full"``',
            building(recurrent_backend="auto", recurrent_recompute="full"),
            "construction",
            "ValueError",
            "recurrent_recompute is only supported for recurrent_backend 'scan' and 'triton'.",
            "``scan`` or ``triton``, by name",
        ),
        Refusal(
            "``recurrent_recompute=True``",
            building(recurrent_recompute=True, **scan),
            "construction",
            "ValueError",
            "recurrent_recompute must be one of 'none' or 'full'. Got True.",
            '``"full"``',
        ),
        Refusal(
            '``recurrent_matmul_precision``, ``"highest"``',
            building(recurrent_matmul_precision="highest"),
            "construction",
            "ValueError",
            f"Invalid recurrent_matmul_precision='highest'. {modes}",
            f'{spell}; PyTorch\'s ``"highest"`` is ``"ieee"`` here',
        ),
        Refusal(
            "``recurrent_matmul_precision``, ``None``",
            building(recurrent_matmul_precision=None),
            "construction",
            "ValueError",
            f"Invalid recurrent_matmul_precision=None. {modes}",
            '``"auto"``',
        ),
        Refusal(
            '``set_recurrent_matmul_precision``, ``"highest"``',
            lambda refusal: set_recurrent_matmul_precision("highest"),
            "call",
            "ValueError",
            f"Invalid recurrent matmul precision 'highest'. {modes}",
            f"{spell}, or ``None``",
        ),
        Refusal(
            "``TORCHRL_RNN_PRECISION=highest``",
            import_with_variable,
            "import of ``torchrl.modules``",
            "ValueError",
            "TORCHRL_RNN_PRECISION='highest' is not a valid recurrent matmul precision.",
            spell,
        ),
        Refusal(
            '``triton``, ``recurrent_compute_dtype``, ``"bfloat16"``',
            calling(recurrent_backend="triton", recurrent_compute_dtype="bfloat16"),
            "forward, recurrent mode",
            "RuntimeError",
            "Invalid device string: 'bfloat16'",
            "``torch.bfloat16``: the text was taken for a device",
        ),
        Refusal(
            "``LSTMModule``, ``scan``, gradient of a gradient",
            twice("LSTM"),
            "second backward pass",
            "AssertionError",
            "outs_to_grad length (9) != tangents length (10)",
            '``recurrent_recompute="full"``, or ``pad`` on the CPU',
        ),
        Refusal(
            "``GRUModule``, ``scan``, gradient of a gradient",
            twice("GRU"),
            "second backward pass",
            "RuntimeError",
            "trying to differentiate twice a function that was marked with @once_differentiable",
            '``recurrent_recompute="full"``, or ``pad`` on the CPU',
        ),
    ]
    set_recurrent_matmul_precision(None)
    for kind in MODULES:
        for options in ({"recurrent_backend": "pad"}, {**scan, "recurrent_recompute": "full"}):
            batch = slices()
            leaf = batch["observation"].requires_grad_()
            batch["observation"] = leaf
            found = forward(make(kind, **options), batch, gradients=True)["features"]
            (gradient,) = torch.autograd.grad(found.square().sum(), leaf, create_graph=True)
            gradient.square().sum().backward()
    for backend in BACKENDS:
        asked = {"proj_size": 8, "recurrent_backend": backend, "recurrent": False}
        Refusal(
            "", calling(batch=slices(h_size=8), **asked), "", "RuntimeError", "The size"
        ).shown()
    between = TensorDictModule(torch.nn.Dropout(0.5), ["features"], ["observation"])
    first, second = (make("GRU", input_size=size, **scan) for size in (INPUTS, HIDDEN))
    forward(TensorDictSequential(first, between, second), slices())
    return table(refusals, ("Combination", "When, and the error", "Do instead"))


def refused_states():
    """Errors of the stored states; a reader meets them in a loss, far from their cause."""
    flat = slices()
    flat["h"], flat["c"] = flat["h"][:, :, 0], flat["c"][:, :, 0]
    double = slices()
    double["h"] = double["h"].double()
    no_layers = "Dimension out of range (expected to be in range of [-2, 1], but got -3)"
    cases = [  # what, batch, options, {(kind, backend): (error, head)}
        (
            "no dimension for the layers: ``[..., hidden]``",
            flat,
            {},
            {
                (kind, backend): ("IndexError", no_layers)
                for kind in MODULES
                for backend in ("pad", "scan", "triton")
            },
        ),
        (
            "another hidden size",
            slices(size=8),
            {},
            {
                ("LSTM", "pad"): (
                    "RuntimeError",
                    "addmm: mat1 and mat2 shapes cannot be multiplied (4x8 and 16x64)",
                ),
                ("GRU", "pad"): ("RuntimeError", "Expected hidden size (1, 4, 16), got [1, 4, 8]"),
                ("LSTM", "scan"): (
                    "TorchRuntimeError",
                    "RuntimeError when making fake tensor call",
                ),
                ("GRU", "scan"): (
                    "RuntimeError",
                    "shape '[6, 3, 24]' is invalid for input of size 864",
                ),
                ("LSTM", "triton"): ("AssertionError", ""),
                ("GRU", "triton"): ("AssertionError", ""),
            },
        ),
        (
            "states of one layer for a module of two",
            slices(),
            {"num_layers": 2},
            {
                ("LSTM", "pad"): ("RuntimeError", "Expected more hidden states in stacked_rnn"),
                ("GRU", "pad"): ("RuntimeError", "Expected hidden size (2, 4, 16), got [1, 4, 16]"),
                ("LSTM", "scan"): (
                    "UncapturedHigherOrderOpError",
                    "This higher order operator doesn't work unless it is captured completely",
                ),
                ("GRU", "scan"): (
                    "IndexError",
                    "index 1 is out of bounds for dimension 0 with size 1",
                ),
            },
        ),
        (
            "states in float64, module in float32",
            double,
            {},
            {
                ("LSTM", "pad"): (
                    "RuntimeError",
                    "mat1 and mat2 must have the same dtype, but got Double and Float",
                ),
                ("LSTM", "scan"): (
                    "UncapturedHigherOrderOpError",
                    "Expected init and carry to have same metadata",
                ),
            },
        ),
        (
            "``h`` without ``c``",
            slices().exclude("c"),
            {},
            {
                ("LSTM", backend): (
                    "RuntimeError",
                    "got type(hidden0)=<class 'torch.Tensor'> and type(hidden1)=<class 'NoneType'>",
                )
                for backend in ("pad", "scan", "triton")
            },
        ),
        (
            "a batch without any dimension",
            slices()[0, 0],
            {},
            {
                ("LSTM", "pad"): (
                    "ValueError",
                    "LSTMModule(recurrent_mode=True) requires the input tensordict to have",
                )
            },
        ),
    ]
    rows = []
    for what, batch, options, errors in cases:
        shown = {}
        for (kind, backend), (error, head) in errors.items():
            attempt = calling(kind, batch=batch.clone(), recurrent_backend=backend, **options)
            text = Refusal(f"{what}, {kind}, {backend}", attempt, "forward", error, head).shown()
            shown.setdefault(text, []).append((kind, backend))
        for text, where in shown.items():
            kinds = " and ".join(dict.fromkeys(kind for kind, _ in where))
            backends = ", ".join(dict.fromkeys(code(backend) for _, backend in where))
            rows.append([what, kinds, backends, text])
    launch = ("forward", "ValueError", "Expected a cuda device, but got: cpu")
    for batch, options in ((slices(), {"num_layers": 2}), (slices(2), {}), (double, {})):
        for kind in MODULES:
            attempt = calling(kind, batch=batch.clone(), recurrent_backend="triton", **options)
            Refusal("another mistake with Triton", attempt, *launch).shown()
    return {"columns": ["Stored states", "Module", "Backend", "Error"], "rows": rows}


def compile_and_call(kind, batch=None, allow_rnn=False, fullgraph=False, **options):
    """Call a compiled module; which of its graphs hold a scan."""
    with_scan = []

    def noting(graph, inputs):
        with_scan.append(any("scan" in str(node.target) for node in graph.graph.nodes))
        return graph

    torch.compiler.reset()
    module = make(kind, **options)
    compiled = torch.compile(module, backend=noting, fullgraph=fullgraph)
    with torch._dynamo.config.patch(allow_rnn=allow_rnn), expected_warnings():
        forward(compiled, slices() if batch is None else batch)
    torch.compiler.reset()
    return with_scan


def refused_compiled():
    """Errors of compiled modules. The first needs a process in which no scan was made."""
    dropout = {"recurrent_backend": "auto", "num_layers": 2, "dropout": 0.5}

    def compiling(*args, **options):
        return lambda refusal: compile_and_call(*args, **options)

    first = Refusal(
        "``auto``, compiled before a module with ``scan`` was made",
        compiling("LSTM", recurrent_backend="auto"),
        "forward",
        "RuntimeError",
        "torch._higher_order_ops.scan backward support is required, but "
        "torch._higher_order_ops.scan backward has not been checked before torch.compile.",
        "write ``scan``: its constructor makes the check",
    )
    rows = table([first], ("Combination", "Error", "Do instead"))["rows"]
    make("LSTM", recurrent_backend="scan")
    assert compile_and_call("LSTM", recurrent_backend="auto")[-1], "auto, compiled, is no scan"
    rest = [
        Refusal(
            "``auto``, ``dropout``, compiled",
            compiling("LSTM", batch=slices(2), **dropout),
            "forward",
            "NotImplementedError",
            "LSTMModule(recurrent_backend='scan') does not support dropout yet.",
            "``pad``",
        ),
        Refusal(
            "``LSTMModule``, ``scan``, ``fullgraph=True``",
            compiling("LSTM", recurrent_backend="scan", fullgraph=True),
            "forward",
            "Unsupported",
            "Unsupported python_type() call",
            "``torch._dynamo.config.allow_rnn = True``, or ``python_based=True``",
        ),
        Refusal(
            "``GRUModule``, ``fullgraph=True``",
            compiling("GRU", recurrent_backend="scan", fullgraph=True),
            "forward",
            "Unsupported",
            "Attempted to call function marked as skipped",
            "compile without ``fullgraph``; Dynamo warns and breaks the graph",
        ),
    ]
    rows += table(rest, ("Combination", "Error", "Do instead"))["rows"]
    for options in ({"allow_rnn": True}, {"python_based": True}):
        graphs = compile_and_call("LSTM", recurrent_backend="scan", fullgraph=True, **options)
        assert graphs == [True], f"{options} does not give one graph"
    return {"columns": ["Combination", "Error", "Do instead"], "rows": rows}


# -- Accepted, and without effect ---------------------------------------------


def changed(kind, **attributes):
    module = make(kind)
    vars(module).update(attributes)
    return forward(module, slices())["features"]


def layer_is_called(cls, kind, recurrent, **options):
    """Whether the layer inside the module runs."""
    with mock.patch.object(cls, "forward", side_effect=InterruptedError), replaced_kernels():
        try:
            features(kind, recurrent=recurrent, python_based=True, **options)
        except InterruptedError:
            return True
    return False


def dropped(training):
    """Whether the second layer of a Triton module is given zeros for ones."""
    with replaced_kernels() as calls:
        module = make("LSTM", recurrent_backend="triton", num_layers=2, dropout=0.5)
        forward(module.train(training), slices(2))
    return bool((calls[1]["layer_input"] == 0).any())


def silent():
    """What raises nothing and does not do what was asked."""
    rows = []
    assert dropped(training=True)
    assert not dropped(training=False)

    for kind in MODULES:
        nonsense = {"recurrent_matmul_precision": "tf32", "recurrent_compute_dtype": "nonsense"}
        for backend in ("pad", "scan", "auto"):
            found = features(kind, recurrent_backend=backend, **nonsense)
            assert torch.equal(found, features(kind, recurrent_backend=backend))
    options = " and ".join(map(code, FOR_KERNELS))
    rows.append(
        [
            f"{options} with ``pad``, ``scan``, ``auto``",
            "Nothing: same result, bitwise. The type is not looked at.",
        ]
    )

    for kind in MODULES:
        plain = features(kind, recurrent=False)
        for backend in BACKENDS:
            full = {"recurrent_recompute": "full"} if backend in ("scan", "triton") else {}
            found = features(kind, recurrent=False, recurrent_backend=backend, **full)
            assert torch.equal(found, plain), f"{backend} differs in sequential mode"
    rows.append(
        [
            "any ``recurrent_backend`` in sequential mode, one step at a time",
            "Not read: the module runs its layer, PyTorch's by default. Same result, bitwise.",
        ]
    )

    for options, batch in (
        ({"bidirectional": True}, {"layers": 2}),
        ({"proj_size": 8}, {"h_size": 8}),
    ):
        with replaced_kernels() as calls:
            found = features(
                "LSTM",
                slices(**batch),
                recurrent_backend="triton",
                recurrent_recompute="full",
                **options,
            )
        assert not calls
        assert torch.equal(found, features("LSTM", slices(**batch), **options))
    rows.append(
        [
            "``triton`` with ``bidirectional`` or ``proj_size``",
            "Runs ``pad``, on the CPU too. ``recurrent_recompute`` is dropped with the kernels.",
        ]
    )

    for cls, kind in ((LSTM, "LSTM"), (GRU, "GRU")):
        assert layer_is_called(cls, kind, recurrent=True, recurrent_backend="pad")
        assert layer_is_called(cls, kind, recurrent=False, recurrent_backend="scan")
        for backend in ("scan", "triton"):
            assert not layer_is_called(cls, kind, recurrent=True, recurrent_backend=backend)
    rows.append(
        [
            "``python_based=True`` with ``scan`` or ``triton``",
            "The Python layer runs in sequential mode only; these two read its weights.",
        ]
    )

    for kind, layer in (("LSTM", torch.nn.LSTM), ("GRU", torch.nn.GRU)):
        given = layer(INPUTS, HIDDEN, batch_first=True)
        asked = {"num_layers": 3, "dropout": 0.5, "bidirectional": True, "python_based": True}
        module = make(kind, **{kind.lower(): given}, **asked)
        assert getattr(module, kind.lower()) is given
    rows.append(
        [
            "``lstm=`` or ``gru=`` with ``num_layers``, ``dropout``, ``bidirectional``, "
            "``python_based``",
            "The layer is used as it is. Only the two sizes are refused beside it.",
        ]
    )

    for kind in MODULES:
        set_later = {
            "recurrent_backend": "cudnn",
            "recurrent_recompute": "full",
            "recurrent_matmul_precision": "highest",
        }
        assert torch.equal(changed(kind, **set_later), features(kind))
    rows.append(
        [
            "attributes set after the construction",
            "No check: an unknown backend runs as ``pad``, recompute with ``pad`` does nothing.",
        ]
    )

    more = slices(2)
    first = more.clone()
    first["h"], first["c"] = more["h"][:, :, :1], more["c"][:, :, :1]
    found = features("GRU", more, recurrent_backend="scan")
    assert torch.equal(found, features("GRU", first, recurrent_backend="scan"))
    for kind in MODULES:
        with replaced_kernels() as calls:
            features(kind, more, recurrent_backend="triton")
        assert len(calls) == 1
    rows.append(
        [
            "states of more layers than the module has, with ``triton``, or ``GRUModule`` and "
            "``scan``",
            "The first layers are taken. The others raise an error.",
        ]
    )

    for kind in MODULES:
        zero = slices()
        zero["h"].zero_()
        zero["c"].zero_()
        for backend in ("pad", "scan"):
            absent = features(kind, slices().exclude("h", "c"), recurrent_backend=backend)
            assert torch.equal(absent, features(kind, zero, recurrent_backend=backend))
            assert not torch.equal(absent, features(kind, recurrent_backend=backend))
    rows.append(
        [
            "stored states absent altogether",
            "Every piece starts from zero, the first of a row too.",
        ]
    )

    batch = slices(2)
    batch["h"].zero_()
    batch["c"].zero_()
    module, state, steps = make("LSTM", bidirectional=True), None, []
    for step in range(STEPS):
        one = batch[1, step].clone()
        if state is not None:
            one.update(state)
        one = forward(module, one, recurrent=False)
        steps.append(one["features"])
        state = one["next"].select("h", "c")
    trained, collected = forward(module, batch)["features"][1], torch.stack(steps)
    torch.testing.assert_close(trained[:, :HIDDEN], collected[:, :HIDDEN])
    assert (trained[:, HIDDEN:] - collected[:, HIDDEN:]).abs().max() > 1e-2
    rows.append(
        [
            "``bidirectional`` in a policy",
            "Collection has no future: the backward half differs from what training computes.",
        ]
    )

    asked = {"recurrent_backend": "auto", "num_layers": 2, "dropout": 0.5}
    graphs = compile_and_call("LSTM", batch=slices(2), allow_rnn=True, **asked)
    assert not any(graphs)
    rows.append(
        [
            "``auto`` with ``dropout``, compiled, ``allow_rnn`` set",
            "The refusal of ``scan`` breaks the graph; the call runs eagerly, as ``pad``.",
        ]
    )
    return {"columns": ["Accepted", "What it does"], "rows": rows}


def main():
    assert not torch.cuda.is_available(), "CUDA is not hidden"
    result = {
        "compiled": refused_compiled(),  # first: see there
        "support": support(),
        "options": refused_options(),
        "states": refused_states(),
        "silent": silent(),
    }
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
