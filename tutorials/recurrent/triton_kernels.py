"""
Triton kernels without a GPU
============================

``recurrent_backend="triton"`` runs an LSTM or a GRU in kernels for CUDA. You can still check them
on a machine without a GPU: Triton's interpreter runs them line by line in Python. That is slow, but
it checks the results, gradients included.

You should know :doc:`/tutorials/recurrent/backends`. For what the kernels cost, see
:doc:`/reference/recurrent_backends`.
"""

# %%
# .. fold:: Imports, sizes, slices, and how to run and compare them

import inspect
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import torch
from tensordict import TensorDict
from torchrl.modules import (
    GRUModule,
    LSTMModule,
    get_recurrent_matmul_precision,
    set_recurrent_matmul_precision,
    set_recurrent_mode,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SEED = 3
ROWS, STEPS = 4, 12
INPUTS, HIDDEN, LAYERS = 3, 20, 2
KINDS = ("LSTM", "GRU")
STATES = {"LSTM": ["h", "c"], "GRU": ["h"]}
RESETS = [(0, 3), (0, 8), (1, 5), (1, 6), (3, 11)]  # row, step

# Largest difference allowed, relative to the largest value of the tensor.
TOLERANCE = 1e-5
TOLERANCE_TF32 = 1e-2

torch.set_num_threads(1)
torch.manual_seed(SEED)
is_init = torch.zeros(ROWS, STEPS, 1, dtype=torch.bool)
for row, step in RESETS:
    is_init[row, step] = True
slices = TensorDict(
    {
        "observation": torch.randn(ROWS, STEPS, INPUTS),
        "is_init": is_init,
        "h": torch.randn(ROWS, STEPS, LAYERS, HIDDEN),
        "c": torch.randn(ROWS, STEPS, LAYERS, HIDDEN),
    },
    batch_size=[ROWS, STEPS],
)


def make_module(kind, backend, **options):
    """An LSTMModule or a GRUModule; its weights are the same in every call."""
    torch.manual_seed(SEED)
    states = STATES[kind]
    return {"LSTM": LSTMModule, "GRU": GRUModule}[kind](
        INPUTS,
        HIDDEN,
        **{"num_layers": LAYERS, **options},
        recurrent_backend=backend,
        in_keys=["observation", *states],
        out_keys=["features", *[("next", key) for key in states]],
    )


def features_of(module, batch):
    """Features and next states of a batch, without gradients."""
    with torch.no_grad(), set_recurrent_mode(True):
        out = module(batch.to(DEVICE))
    return out["features"], out.select(("next", "h"), ("next", "c"))["next"]


def gradients(features, states, parameters, leaves):
    """What is compared: results, and gradients of a loss that depends on all of them."""
    scale = torch.linspace(-1, 1, features.numel()).view_as(features).to(features)
    loss = (features * scale).sum() + sum(state.square().sum() for state in states)
    found = torch.autograd.grad(loss, [*parameters, *leaves])
    return {
        "outputs": [features.detach()],
        "next states": [state.detach() for state in states],
        "parameters": list(found[: len(parameters)]),
        "inputs": list(found[len(parameters) :][:1]),
        "stored states": list(found[len(parameters) :][1:]),
    }


def run_slices(module, slices, device):
    """Results and gradients of one module on the slices."""
    module = module.to(device)
    dtype = next(module.parameters()).dtype
    leaves = {
        key: slices[key].to(device, dtype).clone().requires_grad_()
        for key in module.in_keys
        if key != "is_init"
    }
    batch = slices.select("is_init").to(device).update(leaves)
    with set_recurrent_mode(True):
        module(batch)
    features, *states = [batch[key] for key in module.out_keys]
    return gradients(features, states, list(module.parameters()), list(leaves.values()))


def difference(found, expected):
    """The largest difference of each quantity, relative to its largest value."""
    return {
        name: max(
            float((one.cpu().double() - other).abs().max() / other.abs().max())
            for one, other in zip(found[name], expected[name], strict=True)
        )
        for name in expected
    }


def compare(found, kind, tolerance=TOLERANCE):
    """The cells of one line: what stays below the tolerance."""
    differences = difference(found, expected[kind])
    for name, value in differences.items():
        assert value < tolerance, (kind, name, value)
    return [f"< {tolerance:g}"] * len(differences)


def print_table(header, rows):
    table = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = zip(row, widths, strict=True)
        print("  ".join(f"{text:{width}}" for text, width in cells).rstrip())


# %%
# Without the package, or on the CPU
# ----------------------------------
#
# .. redirect-from:: tutorials/recurrent/triton_kernels.html#choose-triton
#
# The effect of ``"triton"`` depends on the package, the device and the layer:
#
# * if the package ``triton`` is not installed, as on macOS, the constructor raises;
# * if the data is on the CPU, the forward pass raises in recurrent mode, so a loss raises.
#   Collection, one step at a time, works;
# * if the data is on CUDA, the kernels run;
# * bidirectional layers and projections use no kernel: ``"pad"`` computes them, on the CPU too
#   (:doc:`/reference/recurrent_refusals`).

try:
    make_module("LSTM", "triton")
    has_triton = True
except RuntimeError as error:
    assert "requires the triton package" in str(error)
    has_triton = False
    print(f"{type(error).__name__}: {error}")

if has_triton:
    one_step = slices[:, 0].clone()
    make_module("LSTM", "triton")(one_step)
    assert one_step["next", "h"].all()

    refusal = ""
    try:
        with set_recurrent_mode(True):
            make_module("LSTM", "triton")(slices.clone())
    except ValueError as error:
        refusal = str(error)
    assert refusal == "Expected a cuda device, but got: cpu"
    print(f"ValueError: {refusal}")

# %%
# In the interpreter
# ------------------
#
# The interpreter has to be on before Triton is imported. So start a second process with
# ``TRITON_INTERPRET=1``. These kernels need three changes to run there:
#
# * the launch of a kernel enters the CUDA device of its tensors. Replace this by a context that
#   does nothing;
# * each kernel has several configurations, and finding the fastest needs a GPU. Keep one of them;
# * the kernels take ``tanh`` from a library for GPUs. Replace it by a formula.

IN_THE_INTERPRETER = """
import contextlib
import sys

import torch
import triton.language as tl
from torchrl.modules import set_recurrent_mode
from torchrl.modules.tensordict_module import _rnn_triton

torch.set_num_threads(1)
torch.cuda.device = lambda device: contextlib.nullcontext()
for cell in ("gru", "lstm"):
    for direction in ("fwd", "bwd"):
        kernel = getattr(_rnn_triton, f"_{cell}_{direction}_kernel")
        one = {"BLOCK_B": 16, "BLOCK_K": 16}
        kernel.configs = [c for c in kernel.configs if c.kwargs == one][:1]
tl.extra.cuda.libdevice.tanh = lambda x: 2 * tl.sigmoid(2 * x) - 1

modules, slices = torch.load(sys.argv[1], weights_only=False)
found = {name: run_slices(module, slices, "cpu") for name, module in modules.items()}
torch.save(found, sys.argv[2])
"""


def interpret(modules):
    """Results of the modules, whose Triton kernels run in the interpreter."""
    functions = [inspect.getsource(function) for function in (gradients, run_slices)]
    source = IN_THE_INTERPRETER.replace(
        "\nmodules,", "\n".join(["", *functions, "modules,"])
    )
    with tempfile.TemporaryDirectory() as folder:
        given, returned = Path(folder) / "given.pt", Path(folder) / "returned.pt"
        torch.save((modules, slices), given)
        child = subprocess.run(
            [sys.executable, "-c", source, str(given), str(returned)],
            env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if child.returncode:
            raise RuntimeError(child.stderr)
        return torch.load(returned)


expected = {
    kind: run_slices(make_module(kind, "scan").double(), slices, "cpu")
    for kind in KINDS
}
TRITON = {"triton": {}, "triton, recompute": {"recurrent_recompute": "full"}}
cases = [(kind, name) for kind in KINDS for name in TRITON]

if has_triton:
    modules = {
        case: make_module(case[0], "triton", **TRITON[case[1]]) for case in cases
    }
    modules["tf32"] = make_module("GRU", "triton", recurrent_matmul_precision="tf32")
    interpreted = interpret(modules)
    exact, rounded = interpreted["GRU", "triton"], interpreted["tf32"]
    assert torch.equal(exact["outputs"][0], rounded["outputs"][0])
    lines = [[*case, *compare(interpreted[case], case[0])] for case in cases]
    print("relative difference to scan in float64; gradients of the last three")
    print_table(["layer", "backend", *expected["LSTM"]], lines)
else:
    print("no Triton on this platform: nothing to interpret")

# %%
# The kernels agree with ``"scan"`` in float64 up to the rounding of float32, resets and gradients
# included. They need a hidden size that is a power of two; the wrapper pads other sizes.
# :claim:`triton-hidden-size-padded`
#
# The interpreter does not simulate ``"tf32"``: it multiplies in float32, so ``"tf32"`` changes no
# bit here.
#
# The compiled kernels, on a GPU
# ------------------------------
#
# .. redirect-from:: tutorials/recurrent/triton_kernels.html#on-cuda
#
# On a machine with CUDA, the next cell compares the compiled kernels in the same way. With
# ``"ieee"`` products, they have to stay within the same tolerance. With ``"tf32"``, they may be
# further off, and on a GPU with TF32, ``"tf32x3"`` has to be closer than ``"tf32"``.
#
# .. fold:: The same comparison on CUDA

if has_triton and DEVICE == "cuda":
    lines = []
    for kind, name in cases:
        module = make_module(
            kind, "triton", recurrent_matmul_precision="ieee", **TRITON[name]
        )
        found = run_slices(module, slices, DEVICE)
        lines.append([kind, name, "ieee", *compare(found, kind)])
    offs = {}
    for precision in ("ieee", "tf32x3", "tf32"):
        module = make_module("LSTM", "triton", recurrent_matmul_precision=precision)
        features, _ = features_of(module.to(DEVICE), slices.clone())
        compare_to = expected["LSTM"]["outputs"][0]
        offs[precision] = float((features.cpu() - compare_to).abs().max())
    print_table(["layer", "backend", "precision", *expected["LSTM"]], lines)
    print({precision: f"{off:.0e}" for precision, off in offs.items()})
    assert offs["ieee"] < TOLERANCE
    assert offs["tf32"] < TOLERANCE_TF32
    if torch.cuda.get_device_capability() >= (8, 0):
        assert offs["tf32x3"] < offs["tf32"]

    module = make_module("LSTM", "triton", recurrent_compute_dtype=torch.bfloat16)
    features, _ = features_of(module.to(DEVICE), slices.clone())
    off = float((features.cpu() - expected["LSTM"]["outputs"][0]).abs().max())
    assert offs["ieee"] < off < 10 * TOLERANCE_TF32
    print(f"bfloat16: off by {off:.0e}")
else:
    print("no CUDA device here: the compiled kernels did not run")

# %%
# Precision
# ---------
#
# ``recurrent_matmul_precision``
#   How the Triton kernels multiply:
#
#   * ``"ieee"``: plain float32;
#   * ``"tf32"``: operands rounded to TF32, which keeps ten bits of the mantissa;
#   * ``"tf32x3"``: three such products, to lose less precision.
#
#   Three more values are resolved to one of these at each call. On NVIDIA GPUs since Ampere,
#   ``"fast"`` means ``"tf32"`` and ``"high-prec"`` means ``"tf32x3"``. Elsewhere, both mean
#   ``"ieee"``. ``"auto"``, the default, follows ``torch.get_float32_matmul_precision``, unless
#   :func:`~torchrl.modules.set_recurrent_matmul_precision` or the variable
#   ``TORCHRL_RNN_PRECISION`` says otherwise. :claim:`auto-precision-default`
#
# .. fold:: Resolve each word, with and without TF32

predicted = {  # without TF32, with TF32
    "ieee": ("ieee", "ieee"),
    "tf32": ("tf32", "tf32"),
    "tf32x3": ("tf32x3", "tf32x3"),
    "fast": ("ieee", "tf32"),
    "high-prec": ("ieee", "tf32x3"),
    "auto, torch at highest": ("ieee", "ieee"),
    "auto, torch at high": ("ieee", "tf32x3"),
    "auto, torch at medium": ("ieee", "tf32"),
}


def resolved(mode):
    """What the kernels would run with, for a word or for a setting of PyTorch."""
    before = torch.get_float32_matmul_precision()
    mode, _, setting = mode.partition(", torch at ")
    try:
        torch.set_float32_matmul_precision(setting or before)
        set_recurrent_matmul_precision(mode)
        return get_recurrent_matmul_precision()
    finally:
        set_recurrent_matmul_precision("auto")
        torch.set_float32_matmul_precision(before)


CAPABLE = "torchrl.modules.tensordict_module._rnn_precision._is_tensor_core_capable"
lines = []
for mode, outcome in predicted.items():
    simulated = []
    for capable in (False, True):
        with mock.patch(CAPABLE, return_value=capable):
            simulated.append(resolved(mode))
    assert tuple(simulated) == outcome, mode
    assert resolved(mode) in outcome
    lines.append([mode, resolved(mode), *simulated])
print_table(["mode", "this device", "GPU without TF32", "GPU with TF32"], lines)

# %%
# PyTorch starts at ``"highest"``. :claim:`pytorch-starts-highest` So the kernels multiply in plain
# float32 unless you ask for less, also on a GPU with TF32. cuDNN, and with it ``"pad"``, starts
# with TF32 allowed. :claim:`kernels-precise-unless-asked`
#
# ``recurrent_compute_dtype``
#   The type of the operands of the recurrent product, inside the Triton kernels. With
#   ``torch.bfloat16``, these operands need half as much fast memory on a GPU. The CUDA cell above
#   uses it.
#
# Where this stops being true
# ---------------------------
#
# * The interpreter says nothing about speed.
# * Dropout draws different random numbers with ``"triton"`` than with ``"pad"``.
#
# Further reading
# ---------------
#
# * :doc:`/reference/recurrent_refusals`, what each backend refuses and ignores
# * `Debugging with the interpreter, in the Triton documentation
#   <https://triton-lang.org/main/programming-guide/chapter-3/debugging.html>`__
