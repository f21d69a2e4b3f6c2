"""Recurrent backends: time and peak memory of one training step over slices with resets.

One step is a forward pass in recurrent mode over slices that restart in the middle, and the
backward pass of the sum of the features. Every backend computes the same features and gradients
as "pad"; the largest differences are recorded beside the time.
"""

import pytest
import torch
from tensordict import TensorDict
from torchrl.modules import GRUModule, LSTMModule, set_recurrent_mode

from benchmarks import measure, metrics

SLICES = 16
INPUTS = 4
HIDDEN = 128
RESETS = 4  # per slice, beside its start
SEED = 0
TOLERANCE = 1e-4

METRICS = metrics.declare("""
step_time [s] Time of one step: Wall time of one forward and backward pass.
peak_memory [B] Peak memory: Most bytes that torch's allocator holds at once during a step, beyond
    parameters and input: the activations that backward needs, gradients and scratch.
peak_vs_pad [%, exact] Peak memory against pad: Median peak memory as a share of that of pad on the
    same slices.
output_error [1, exact] Largest output difference: Largest absolute difference of a feature to that
    of pad.
gradient_error [1, exact] Largest gradient difference: Largest absolute difference of a parameter's
    gradient to that of pad, over the largest gradient of pad.
""")

# name: (title, arguments of the module)
BACKENDS = {
    "pad": ("pad", {"recurrent_backend": "pad"}),
    "scan": ("scan", {"recurrent_backend": "scan"}),
    "scan-recompute": (
        "scan, recompute full",
        {"recurrent_backend": "scan", "recurrent_recompute": "full"},
    ),
    "triton": ("triton", {"recurrent_backend": "triton"}),
}
CELLS = {"gru": (GRUModule, ("h",)), "lstm": (LSTMModule, ("h", "c"))}
STEPS = (32, 128)
CASES = [
    pytest.param(cell, backend, steps, marks=pytest.mark.cuda if backend == "triton" else ())
    for cell in CELLS
    for steps in STEPS
    for backend in BACKENDS
]


def make_module(cell, backend, device):
    torch.manual_seed(SEED)
    kind, states = CELLS[cell]
    return kind(
        INPUTS,
        HIDDEN,
        in_keys=["observation", *states],
        out_keys=["features", *(("next", state) for state in states)],
        device=device,
        **BACKENDS[backend][1],
    )


def make_slices(cell, steps, device):
    """Slices whose stored states are zero, with the same resets for every backend."""
    generator = torch.Generator().manual_seed(SEED)
    starts = torch.zeros(SLICES, steps, 1, dtype=torch.bool)
    starts[:, 0] = True
    for row in starts:
        row[1 + torch.randperm(steps - 1, generator=generator)[:RESETS]] = True
    states = {key: torch.zeros(SLICES, steps, 1, HIDDEN) for key in CELLS[cell][1]}
    observation = torch.randn(SLICES, steps, INPUTS, generator=generator)
    slices = TensorDict({"observation": observation, "is_init": starts, **states}, [SLICES, steps])
    return slices.to(device)


def train_step(module, slices):
    """Return the features; leave the gradients in *module*."""
    module.zero_grad()
    with set_recurrent_mode(True):
        features = module(slices.copy())["features"]
    features.sum().backward()
    return features.detach()


def difference(ours, theirs):
    return max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))


# Dynamo reads the gradient of every tensor that it traces in scan.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize(("cell", "backend", "steps"), CASES)
def bench_step(benchmark, device, cell, backend, steps):
    slices = make_slices(cell, steps, device)
    pad = make_module(cell, "pad", device)
    module = make_module(cell, backend, device)
    expected, features = train_step(pad, slices), train_step(module, slices)
    wanted = [parameter.grad for parameter in pad.parameters()]
    gradients = [parameter.grad for parameter in module.parameters()]
    largest = max(gradient.abs().max().item() for gradient in wanted)
    output_error = difference(features, expected)
    gradient_error = difference(gradients, wanted) / largest
    pad_peaks = measure.peaks(device, lambda: train_step(pad, slices))
    peaks = measure.peaks(device, lambda: train_step(module, slices))
    measure.timed(benchmark, device, lambda: train_step(module, slices))

    assert output_error < TOLERANCE
    assert gradient_error < TOLERANCE
    title, arguments = BACKENDS[backend]
    measure.note(
        benchmark,
        f"{cell}-{backend}-t{steps}",
        "step_time",
        title=f"{cell.upper()}, {steps} steps: {title}",
        parameters={
            "cell": cell.upper(),
            "backend": title,
            "steps": steps,
            "slices": SLICES,
            "hidden": HIDDEN,
            "resets": RESETS,
            **arguments,
        },
        exact={
            "output_error": output_error,
            "gradient_error": gradient_error,
            "peak_vs_pad": 100 * sorted(peaks)[1] / sorted(pad_peaks)[1],
        },
        sampled={"peak_memory": peaks},
    )
