"""
Recurrent backends
==================

Start with ``recurrent_backend="pad"``. The argument chooses the code that runs an LSTM or a GRU
over sequences. Without dropout, its four values give the same outputs, next states and gradients,
up to rounding. So choose by speed, by memory, and by what each backend supports.

.. list-table::
   :header-rows: 1
   :widths: 16 52 32

   * - Backend
     - What it runs
     - Use it
   * - ``"pad"``
     - PyTorch's layer (cuDNN's on CUDA), once, on trajectories padded to one length
     - as a first choice; with dropout
   * - ``"scan"``
     - the rows as they are, step by step
     - with recompute if memory is short, or if you measure that it is faster at your sizes
   * - ``"triton"``
     - the rows as they are, in kernels for CUDA
     - on CUDA, for the same reasons as ``"scan"``
   * - ``"auto"``
     - ``"pad"`` in eager mode, ``"scan"`` when compiled
     - in eager mode; name a backend if you compile

:doc:`/reference/recurrent_backends` has the measured times and peaks of memory. This lesson shows
which stored states a backend reads and where it writes the next ones, which backend ``"auto"``
runs, and what the options change.
"""

# %%
# .. fold:: Imports, sizes and slices

import os
from unittest import mock

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import matplotlib.pyplot as plt
import torch
from tensordict import TensorDict
from torchrl.modules import (
    LSTM,
    GRUModule,
    LSTMModule,
    set_recurrent_mode,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SEED = 3
ROWS, STEPS = 4, 12
INPUTS, HIDDEN, LAYERS = 3, 20, 2
KINDS = ("LSTM", "GRU")
STATES = {"LSTM": ["h", "c"], "GRU": ["h"]}
RESETS = [(0, 3), (0, 8), (1, 5), (1, 6), (3, 11)]  # row, step; row 2 has none

# Largest difference allowed, relative to the largest value of the tensor.
TOLERANCE = 1e-5

torch.set_num_threads(1)

# cuDNN may round the operands of float32 products to TF32, which keeps ten bits of a mantissa, and
# does so by default on the GPUs that can. Then "pad" would differ for a reason that has nothing to
# do with its algorithm. Both switches are off here, and put back at the end.
tf32 = torch.backends.cudnn, torch.backends.cuda.matmul
switches_before = [switch.allow_tf32 for switch in tf32]
for switch in tf32:
    switch.allow_tf32 = False

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

# %%
# Where the backend matters
# -------------------------
#
# .. redirect-from:: tutorials/recurrent/backends.html#setup
#    tutorials/recurrent/backends.html#choose-a-backend
#
# Pass the backend when you make the module. It matters in :term:`recurrent mode`, where a loss runs
# the module over whole :term:`slices <slice>`. A single step, as in collection, is the same with
# each backend: it runs PyTorch's layer, unless you pass ``python_based=True``.


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


lstm = make_module("LSTM", "pad").to(DEVICE)
whole, after_whole = features_of(lstm, slices.clone())
print("features", tuple(whole.shape), "next h", tuple(after_whole["h"].shape))

# %%
# What a backend has to compute
# -----------------------------
#
# .. redirect-from:: tutorials/recurrent/backends.html#by-hand
#
# The batch has one slice per row. ``is_init`` marks the *resets*, the steps where another
# trajectory starts. They cut the row into *pieces*. On each piece, a backend has to do what
# PyTorch's layer would do on that piece alone:
#
# * the :term:`stored state` of the first step of a piece goes in;
# * one output for each step comes out;
# * one next state comes out, at the last step of the piece. At other steps, ``("next", "h")`` is
#   zero.
#
# .. fold:: Ground truth: one piece at a time, in float64


def pieces(row):
    """First and last step of each trajectory in a row, whose first slot starts one."""
    starts = [0, *[step for step in range(1, STEPS) if is_init[row, step]]]
    ends = [start - 1 for start in starts[1:]] + [STEPS - 1]
    return list(zip(starts, ends, strict=True))


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


def by_hand(kind):
    """One piece at a time, in float64, on the CPU, with PyTorch's own layer."""
    module = make_module(kind, "pad").double()
    layer = module.lstm if kind == "LSTM" else module.gru
    leaves = [
        slices[key].double().requires_grad_() for key in ("observation", *STATES[kind])
    ]
    features = torch.zeros(ROWS, STEPS, HIDDEN, dtype=torch.float64)
    states = [torch.zeros_like(leaf) for leaf in leaves[1:]]
    for row in range(ROWS):
        for start, end in pieces(row):
            stored = [leaf[row, start, :, None] for leaf in leaves[1:]]
            piece, after = layer(
                leaves[0][row, None, start : end + 1],
                tuple(stored) if kind == "LSTM" else stored[0],
            )
            features[row, start : end + 1] = piece[0]
            after = after if kind == "LSTM" else [after]
            for state, last in zip(states, after, strict=True):
                state[row, end] = last[:, 0]
    return gradients(features, states, list(layer.parameters()), leaves)


def touched(tensors):
    """The slots where some tensor is not zero, as a table of rows and steps."""
    return sum(tensor.cpu().abs().sum((-1, -2)) for tensor in tensors) > 0


expected = {kind: by_hand(kind) for kind in KINDS}
begins, finishes = torch.zeros(2, ROWS, STEPS, dtype=torch.bool)
for row in range(ROWS):
    for start, end in pieces(row):
        begins[row, start] = finishes[row, end] = True
print(f"{ROWS} rows, {len(RESETS)} resets, {int(begins.sum())} pieces")

# %%
# .. fold:: Draw the pieces

figure, axes = plt.subplots(figsize=(5.4, 3.4), layout="constrained")
for row in range(ROWS):
    for start, end in pieces(row):
        axes.plot([start, end], [row, row], color="C0", lw=2)
for slots, marker, label in (
    (begins, ">", "stored state is read"),
    (finishes, "s", "next state is written"),
):
    found_rows, found_steps = slots.nonzero().T.tolist()
    offset = -0.12 if marker == ">" else 0.12
    axes.plot(
        found_steps,
        [row + offset for row in found_rows],
        marker,
        color="C1" if marker == ">" else "C2",
        ms=8,
    )
    at = found_steps[0] + 0.3, -0.35 if marker == ">" else 0.35
    axes.text(*at, label, color="C1" if marker == ">" else "C2", va="center")
axes.set_title("Pieces of four slices, and their states")
axes.set_xlabel("step of the slice")
axes.set_ylabel("row of the batch")
axes.set_yticks(range(ROWS))
axes.set_ylim(-0.6, ROWS - 0.5)
axes.invert_yaxis()
figure.set_label(
    f"{ROWS} slices as rows of {STEPS} steps, which {len(RESETS)} resets cut into "
    f"{int(begins.sum())} pieces. The stored state is read at the first step of each piece, the "
    "next state is written at its last one."
)
plt.show()

# %%
# How each backend goes through a row
# -----------------------------------
#
# .. redirect-from:: tutorials/recurrent/backends.html#pad-scan-and-auto
#    tutorials/recurrent/backends.html#triton
#
# ``"pad"`` cuts the rows into pieces, pads these with zeros to one length, and calls PyTorch's
# layer once. ``"scan"`` goes through the rows step by step, and replaces the carried state by the
# stored one where ``is_init`` is set. With ``recurrent_recompute="full"``, it keeps only what
# enters a step, and computes the step again in the backward pass. ``"triton"`` goes through the
# rows like ``"scan"``, but in CUDA kernels. :doc:`/tutorials/recurrent/triton_kernels` checks these
# without a GPU.
#
# Run ``"pad"``, ``"scan"`` and ``"auto"`` under :class:`~torchrl.modules.set_recurrent_mode`, as a
# loss does, and compare outputs, next states and gradients with the ground truth.
#
# .. fold:: Run and compare


def run_slices(module, slices, device):
    """Results and gradients of one module on the slices."""
    module = module.to(device)
    leaves = {
        key: slices[key].to(device).clone().requires_grad_()
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
    """Outputs, next states and gradients, and the slots where states are read and written."""
    for name, value in difference(found, expected[kind]).items():
        assert value < tolerance, (kind, name, value)
    assert torch.equal(touched(found["next states"]), finishes)
    assert torch.equal(touched(found["stored states"]), begins)


BACKENDS = {
    "pad": ("pad", {}),
    "scan": ("scan", {}),
    "scan, recompute": ("scan", {"recurrent_recompute": "full"}),
    "auto": ("auto", {}),
}

results = {}
for kind in KINDS:
    for name, (backend, options) in BACKENDS.items():
        module = make_module(kind, backend, **options)
        results[kind, name] = run_slices(module, slices, DEVICE)
        compare(results[kind, name], kind)
print(f"within {TOLERANCE:g} of the ground truth, relative to the largest value:")
for kind in KINDS:
    print(f"{kind}:", "; ".join(BACKENDS))

# %%
# Outputs, next states, and the gradients of parameters, inputs and stored states agree up to the
# rounding of float32. The three backends read and write states at the same steps.
#
# At a reset, a backend does *not* zero the state. It reads the stored state. In collected data this
# state is zero at the start of an episode, because the primer put zeros there.
#
# In eager mode, ``"auto"`` equals ``"pad"`` to the last bit:

for kind in KINDS:
    auto, pad = results[kind, "auto"], results[kind, "pad"]
    for name in ("outputs", "next states"):
        assert all(map(torch.equal, auto[name], pad[name]))
print("auto equals pad, bitwise")

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    Continuing from ``("next", "h")`` in the middle of a piece. The key has a value at every step,
#    but most of these values are zeros that only fill the tensor. So you start from zero, and no
#    error says so.
#
# Row 2 has no reset. Cut it in the middle, and run the second half from ``("next", "h")`` at the
# cut. If the whole row ran before, that state is zero. If only the first half ran, it is the state
# of its last step, and the second half continues correctly:

CUT = STEPS // 2
whole, after_whole = features_of(lstm, slices[2:3].clone())
_, after_half = features_of(lstm, slices[2:3, :CUT].clone())

shifts = {}
for name, after in (("whole row", after_whole), ("first half", after_half)):
    second_half = slices[2:3, CUT:].clone()
    for key in ("h", "c"):
        second_half[key][:, 0] = after[key][:, CUT - 1].cpu()
    found, _ = features_of(lstm, second_half)
    shifts[name] = float((found - whole[:, CUT:]).abs().max())

assert shifts["whole row"] > 1e-2
assert shifts["first half"] < TOLERANCE
print(f"from the next state that the whole row left: off by {shifts['whole row']:.1f}")
print(f"from the next state that the first half left: off by less than {TOLERANCE:g}")

# %%
# What auto runs when it is compiled
# ----------------------------------
#
# ``"auto"`` takes ``"scan"`` if the call is being compiled, and ``"pad"`` if not, and does not
# report which. It does not look at the device, at the sizes or at the resets, and it never takes
# ``"triton"``. :claim:`auto-asks-compile-only` The compiler gets the same graphs from ``"auto"`` as
# from ``"scan"``:
#
# .. fold:: Note the graphs, and run them unchanged

# There are several: the compiler does not look into PyTorch's recurrent layers unless
# torch._dynamo.config.allow_rnn is set. One of them holds the scan.
graphs = {"auto": [], "scan": []}
for backend, noted in graphs.items():

    def noting(graph, inputs, noted=noted):
        """A backend for torch.compile that keeps the names of the operations."""
        noted.append([str(node.target) for node in graph.graph.nodes])
        return graph

    torch.compiler.reset()
    module = make_module("LSTM", backend).to(DEVICE)
    features, _ = features_of(torch.compile(module, backend=noting), slices.clone())
    by_piece = expected["LSTM"]["outputs"][0]
    assert (features.cpu() - by_piece).abs().max() < TOLERANCE * by_piece.abs().max()

assert graphs["auto"] == graphs["scan"]
assert any("scan" in name for graph in graphs["auto"] for name in graph)
print("auto, compiled: the same graphs as scan")

# %%
# So an ``"auto"`` module with dropout works until you compile it, because ``"scan"`` refuses
# dropout:

module = make_module("LSTM", "auto", dropout=0.1).to(DEVICE)
features_of(module, slices.clone())

torch.compiler.reset()
refusal = ""
try:
    features_of(torch.compile(module, backend="eager"), slices.clone())
except NotImplementedError as error:
    refusal = str(error)
assert refusal.startswith(
    "LSTMModule(recurrent_backend='scan') does not support dropout"
)
torch.compiler.reset()
print(f"NotImplementedError: {refusal}")

# %%
# Only ``"scan"`` prepares the backward pass of the scan in its constructor; ``"auto"`` does not. If
# you compile an ``"auto"`` module before the process has made a ``"scan"`` module, the call fails
# with an error that :doc:`/reference/recurrent_refusals` explains.
#
# Options for memory and precision
# --------------------------------
#
# .. redirect-from:: tutorials/recurrent/backends.html#the-three-options
#
# ``recurrent_recompute``
#   ``"full"`` saves memory: ``"scan"`` then computes each step again in the backward pass.
#   ``"pad"`` and ``"auto"`` raise in the constructor.
#
# .. fold:: Count the cells of scan, and ask pad and auto

calls = []
cell = LSTM._lstm_cell


def counting(*args):
    """The cell of the LSTM, counted."""
    calls.append(args)
    return cell(*args)


module = make_module("LSTM", "scan", recurrent_recompute="full", num_layers=1)
one_layer = slices.clone()
one_layer["h"], one_layer["c"] = slices["h"][:, :, :1], slices["c"][:, :, :1]
with mock.patch.object(LSTM, "_lstm_cell", staticmethod(counting)):
    run_slices(module, one_layer, DEVICE)
assert len(calls) == 2 * STEPS
print(f"{STEPS} steps, {len(calls)} cells")

for backend in ("pad", "auto"):
    refusal = ""
    try:
        make_module("LSTM", backend, recurrent_recompute="full")
    except ValueError as error:
        refusal = str(error)
    assert "only supported for recurrent_backend 'scan' and 'triton'" in refusal
    print(f"{backend}: ValueError: {refusal[:60]} ...")

# %%
# ``recurrent_matmul_precision`` and ``recurrent_compute_dtype``
#   How the Triton kernels multiply, and the data type of their operands. See
#   :doc:`/tutorials/recurrent/triton_kernels`.
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    Passing these options to a backend other than ``"triton"``. The backend ignores them, even a
#    type that does not exist: the outputs are the same to the last bit.

ignored = {
    "recurrent_matmul_precision": "tf32",
    "recurrent_compute_dtype": "no type at all",
}
for backend in ("pad", "scan", "auto"):
    plain, _ = features_of(make_module("LSTM", backend).to(DEVICE), slices.clone())
    module = make_module("LSTM", backend, **ignored).to(DEVICE)
    assert torch.equal(features_of(module, slices.clone())[0], plain)
print("pad, scan, auto: no effect")

# %%
# .. fold:: Clean up: the switches of TF32 are what they were

for switch, before in zip(tf32, switches_before, strict=True):
    switch.allow_tf32 = before

# %%
# Where this stops being true
# ---------------------------
#
# .. redirect-from:: tutorials/recurrent/backends.html#conclusion
#
# * With dropout, ``"pad"`` and ``"triton"`` draw different random numbers, so their outputs differ.
#   ``"scan"`` refuses dropout, projections and bidirectional layers. ``"triton"`` runs projections
#   and bidirectional layers through ``"pad"``.
# * The tolerance is for float32. TF32 is off in this lesson, but on by default in cuDNN.
# * Equal results do not mean equal cost, and no backend is the fastest at every size:
#   :doc:`/reference/recurrent_backends`.
#
# Further reading
# ---------------
#
# * :doc:`/reference/recurrent_refusals`, what each backend refuses and ignores
# * :doc:`/reference/recurrent_state_lifecycle`, who writes the stored states
# * :doc:`/tutorials/recurrent/sequence_training`, an agent that needs them
