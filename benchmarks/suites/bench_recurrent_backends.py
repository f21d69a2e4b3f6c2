"""Recurrent backends by size: time and peak memory over batch, length, hidden size and resets.

One step is a forward pass in recurrent mode over slices and the backward pass of the sum of the
features. One size varies at a time around a base case. Each round of a configuration comes right
after a round of "pad" on the same slices, so that a change of the machine's speed reaches both;
the ratio of the two is recorded beside the time. Features and gradients of every configuration are
compared with those of "pad" in double precision. "torch.nn" is the LSTM or GRU of PyTorch on the
same weights and observations: it knows no resets and writes no states.
"""

import functools
import os
import time
from typing import NamedTuple

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.modules import GRUModule, LSTMModule, set_recurrent_mode

from benchmarks import measure, metrics

INPUTS = 4
SEED = 0
MOST_ROUNDS, LEAST_ROUNDS = 11, 5
WARMUP_ROUNDS = 1  # beyond the calls that check the results and take the peak
SECONDS = 0.7  # for the rounds of one configuration; the least number of rounds may take longer

METRICS = metrics.declare("""
step_time [s] Time of one step: Wall time of one forward and backward pass.
time_vs_pad [1] Time against pad: Time of one step, divided by that of the step of pad right before
    it. That of pad itself shows the noise of the machine.
peak_memory [B] Peak memory: Most bytes that torch's allocator holds at once during a step, beyond
    parameters and input: the activations that backward needs, gradients and scratch.
peak_vs_pad [1, exact] Peak memory against pad: Peak memory, divided by that of pad on the same
    slices.
output_error [1, exact] Largest output error: Largest absolute difference of a feature to that of
    pad in double precision; for torch.nn to its own in double precision.
gradient_error [1, exact] Largest gradient error: Largest absolute difference of a parameter's
    gradient to that in double precision, over the largest gradient.
""")


class Case(NamedTuple):
    cell: str
    batch: int
    steps: int
    hidden: int
    resets: int  # per slice, beside its start


class Configuration(NamedTuple):
    title: str
    arguments: dict | None  # of the module; None is torch.nn
    tolerance: float = 1e-4
    compiled: bool = False


TRITON = {"recurrent_backend": "triton", "recurrent_matmul_precision": "ieee"}
CONFIGURATIONS = {
    "pad": Configuration("pad", {"recurrent_backend": "pad"}),
    "scan": Configuration("scan", {"recurrent_backend": "scan"}),
    "scan-compiled": Configuration("scan, compiled", {"recurrent_backend": "scan"}, compiled=True),
    "scan-recompute": Configuration(
        "scan, recompute", {"recurrent_backend": "scan", "recurrent_recompute": "full"}
    ),
    "triton": Configuration("triton", TRITON),
    "triton-recompute": Configuration(
        "triton, recompute", TRITON | {"recurrent_recompute": "full"}
    ),
    "triton-high-prec": Configuration(
        "triton, high-prec", TRITON | {"recurrent_matmul_precision": "high-prec"}, 1e-2
    ),
    "triton-fast": Configuration(
        "triton, fast", TRITON | {"recurrent_matmul_precision": "fast"}, 1e-1
    ),
    "torch-nn": Configuration("torch.nn, no resets", None),
}
CELLS = {"gru": (GRUModule, nn.GRU, ("h",)), "lstm": (LSTMModule, nn.LSTM, ("h", "c"))}

BASE = {"batch": 16, "steps": 128, "hidden": 128, "resets": 4}
# Cases of one shape stand in a row, the base first: they share what is compiled for the shape.
AXES = (
    ("resets", (4, 0, 1, 16)),
    ("steps", (32, 512)),
    ("hidden", (32, 64, 512)),
    ("batch", (4, 64, 256)),
)
CUDA_ONLY = (("hidden", 512), ("batch", 256))


def key_of(case, name):
    return f"{case.cell}-{name}-b{case.batch}-t{case.steps}-h{case.hidden}-r{case.resets}"


def title_of(case, name):
    return (
        f"{case.cell.upper()} {CONFIGURATIONS[name].title}: batch {case.batch}, "
        f"{case.steps} steps, hidden {case.hidden}, resets {case.resets}"
    )


def parameters_of_runs():
    for cell in CELLS:
        for axis, sizes in AXES:
            for size in sizes:
                case = Case(cell, **BASE | {axis: size})
                for name in CONFIGURATIONS:
                    if takes_part(case, name, axis):
                        cuda = (axis, size) in CUDA_ONLY or only_on_cuda(case, name)
                        marks = pytest.mark.cuda if cuda else ()
                        yield pytest.param(case, name, marks=marks, id=key_of(case, name))


def takes_part(case, name, axis):
    """What is left out costs minutes of compilation and shows little that is new."""
    if name in ("triton-high-prec", "triton-fast"):
        return case.cell == "lstm" and case.resets == BASE["resets"] and axis in ("resets", "steps")
    if name == "triton-recompute":
        return axis in ("resets", "steps")
    if name == "scan-compiled":
        return axis in ("resets", "steps") or (axis == "batch" and case.cell == "gru")
    return True


def only_on_cuda(case, name):
    """LSTM's scan takes long to compile: on the CPU for one shape."""
    slow = case.cell == "lstm" and case.steps != BASE["steps"]
    return (slow and name == "scan-compiled") or name.startswith("triton")


# -- What is measured ------------------------------------------------------------


class Contender:
    """One configuration of one case: its step and its parameters."""

    def __init__(self, case, name, device, dtype=torch.float32):
        configuration = CONFIGURATIONS[name]
        module, plain, states = CELLS[case.cell]
        torch.manual_seed(SEED)
        weights = plain(INPUTS, case.hidden).state_dict()
        self.plain = configuration.arguments is None
        if self.plain:
            self.module = core = plain(
                INPUTS, case.hidden, batch_first=True, device=device, dtype=dtype
            )
        else:
            self.module = module(
                INPUTS,
                case.hidden,
                in_keys=["observation", *states],
                out_keys=["features", *(("next", state) for state in states)],
                device=device,
                **configuration.arguments,
            ).to(dtype)
            core = getattr(self.module, case.cell)
        core.load_state_dict(weights)
        self.parameters = list(core.parameters())
        self.call = torch.compile(self.module) if configuration.compiled else self.module

    def step(self, slices):
        """Return the features; leave the gradients in the parameters."""
        self.module.zero_grad()
        if self.plain:
            features, _ = self.call(slices["observation"])
        else:
            with set_recurrent_mode(True):
                features = self.call(slices.copy())["features"]
        features.sum().backward()
        return features.detach()

    def results(self, slices):
        features = self.step(slices)
        return features, [parameter.grad.clone() for parameter in self.parameters]


def make_slices(case, device, dtype=torch.float32):
    """Slices whose stored states are zero, with the same resets for every configuration."""
    generator = torch.Generator().manual_seed(SEED)
    starts = torch.zeros(case.batch, case.steps, 1, dtype=torch.bool)
    starts[:, 0] = True
    for row in starts:
        row[1 + torch.randperm(case.steps - 1, generator=generator)[: case.resets]] = True
    shape = (case.batch, case.steps)
    states = {key: torch.zeros(*shape, 1, case.hidden, dtype=dtype) for key in CELLS[case.cell][2]}
    observation = torch.randn(*shape, INPUTS, generator=generator).to(dtype)
    slices = TensorDict({"observation": observation, "is_init": starts, **states}, shape)
    return slices.to(device)


class Prepared:
    """What the configurations of one case share."""

    def __init__(self, case, device):
        start_over(case._replace(resets=0))
        self.slices = make_slices(case, device)
        self.pad = Contender(case, "pad", device)
        self.pad.step(self.slices)
        self.pad_peak = peak(self.pad, device, self.slices)
        self.expected = {
            name: Contender(case, name, device, torch.float64).results(
                make_slices(case, device, torch.float64)
            )
            for name in ("pad", "torch-nn")
        }

    def errors(self, name, features, gradients):
        """The largest error of a feature, and of a gradient over the largest gradient."""
        wanted, wanted_gradients = self.expected["torch-nn" if name == "torch-nn" else "pad"]
        largest = max(gradient.abs().max().item() for gradient in wanted_gradients)
        return {
            "output_error": difference([features], [wanted]),
            "gradient_error": difference(gradients, wanted_gradients) / largest,
        }


def peak(contender, device, slices):
    """Bytes of one step, once: the traces of long slices take longer than everything else."""
    return measure.peak_memory(device, lambda: contender.step(slices))


def difference(ours, theirs):
    return max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))


@functools.lru_cache(maxsize=1)
def start_over(shape):
    """Forget what Dynamo and TorchInductor hold of another shape, as a new process would."""
    compiled.cache_clear()
    torch.compiler.reset()


@functools.lru_cache(maxsize=1)
def compiled(shape, name, device):
    return Contender(shape, name, device)


prepare = functools.lru_cache(maxsize=1)(Prepared)


def contender(case, name, device):
    if CONFIGURATIONS[name].compiled:  # once for all cases of the shape: resets are data
        return compiled(case._replace(resets=0), name, device)
    return Contender(case, name, device)


def called(case, name, device, slices):
    """The contender and the results of its first step, which compiles and tunes."""
    ours = contender(case, name, device)
    features, gradients = measure.settled(device, lambda: ours.results(slices))
    return ours, features, gradients


def call_or_skip(case, name, device, slices):
    """Leave out what a GPU machine cannot run; the report of the run says why.

    On the CPU every refusal is a failure, and so is a wrong result everywhere.
    """
    if device.type == "cpu" or name in ("pad", "torch-nn"):
        return called(case, name, device, slices)
    from triton.errors import TritonError

    try:
        return called(case, name, device, slices)
    except (RuntimeError, TritonError, Warning) as error:
        pytest.skip(f"{type(error).__name__}: {str(error)[:400]}")


# -- The suite -------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def settings(tmp_path_factory):
    """Empty caches on disk, and float32 that is float32."""
    torch.set_float32_matmul_precision("highest")
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("caches")
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
        if "TRITON_CACHE_DIR" not in os.environ:
            patch.setenv("TRITON_CACHE_DIR", str(folder / "triton"))
        yield


# Dynamo reads the gradient of every tensor that it traces in scan, and breaks the graph where
# tensordict sets an environment variable. TorchInductor asks for TF32 on a GPU that has it.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin:UserWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores for float32:UserWarning")
@pytest.mark.parametrize(("case", "name"), list(parameters_of_runs()))
def bench_step(benchmark, device, case, name):
    shared = prepare(case, device)
    slices, pad = shared.slices, shared.pad
    ours, features, gradients = call_or_skip(case, name, device, slices)
    errors = shared.errors(name, features, gradients)
    memory = shared.pad_peak if name == "pad" else peak(ours, device, slices)

    spent = {"ours": [], "pad": []}

    def step(of, key):
        begin = time.perf_counter()
        measure.settled(device, lambda: of.step(slices))
        spent[key].append(time.perf_counter() - begin)

    step(pad, "pad")
    step(ours, "ours")
    both = spent["pad"].pop() + spent["ours"].pop()
    rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, int(SECONDS / both)))
    benchmark.pedantic(
        step,
        setup=lambda: step(pad, "pad") or ((ours, "ours"), {}),
        rounds=rounds,
        warmup_rounds=WARMUP_ROUNDS,
    )
    ratios = [a / b for a, b in zip(spent["ours"], spent["pad"], strict=True)]

    configuration = CONFIGURATIONS[name]
    assert max(errors.values()) < configuration.tolerance, errors
    measure.note(
        benchmark,
        key_of(case, name),
        "step_time",
        title=title_of(case, name),
        parameters={
            **case._asdict(),
            "cell": case.cell.upper(),
            "backend": configuration.title,
            "compiled": configuration.compiled,
            **(configuration.arguments or {}),
        },
        exact=errors | {"peak_vs_pad": memory / shared.pad_peak},
        sampled={
            "peak_memory": [memory],
            "time_vs_pad": ratios[WARMUP_ROUNDS:],
        },
    )
    benchmark.extra_info["warmup_rounds"] = WARMUP_ROUNDS
