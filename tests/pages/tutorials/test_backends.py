"""The lessons on recurrent backends and Triton kernels, and the run behind what they refuse."""

import ast
import os
from unittest import mock

import pytest

from tests.support.tutorial_script import run_driver

# Before torchrl is imported: its log lines carry a time stamp.
os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

from torchrl.modules import set_recurrent_matmul_precision
from torchrl.modules.tensordict_module import _rnn_precision

from tests.support import ROOT
from tests.support.claims import guards

PAGE = ROOT / "tutorials" / "recurrent" / "backends.py"
KERNELS = PAGE.with_name("triton_kernels.py")
RUN = ROOT / "docs" / "evidence" / "recurrent_refusals" / "errors.py"


# What both drivers begin with.
START = """
import io, json, os, sys
from unittest import mock

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["RL_LOGGING_LEVEL"] = "ERROR"
path = sys.argv[1]
source = open(path).read()

import matplotlib
matplotlib.use("agg")
import torch
from torchrl.modules import LSTMModule
from torchrl.modules.tensordict_module import _rnn_precision, _rnn_triton, rnn
from tests.support.tutorial_script import failing_assertion, failing_in
"""

# Only "another_tanh" starts the interpreter; the others run as if without Triton.
TUTORIAL = (
    START
    + '''
def scan_zeroes_at_resets():
    """Scan starts a piece from zero, not from the stored state."""
    scan = LSTMModule._lstm_scan_with_resets

    def zeroing(self, inputs, h, c, initial, is_init):
        keep = ~is_init[..., None, None]
        return scan(self, inputs, h * keep, c * keep, initial, is_init)

    return mock.patch.object(LSTMModule, "_lstm_scan_with_resets", zeroing)


def pad_fills_placeholders():
    """The state stands at every slot of a piece."""

    def everywhere(h, splits, steps):
        return h.unsqueeze(1).expand(-1, steps, *h.shape[1:]).clone()

    return mock.patch.object(rnn, "_place_at_traj_end", everywhere)


def auto_is_scan():
    return mock.patch.object(rnn, "is_compiling", lambda: True)


def recompute_is_none():
    """Scan with recompute keeps everything."""

    def call(function, *args, **options):
        return function(*args)

    return mock.patch.object(rnn._torch_checkpoint, "checkpoint", call)


def recompute_is_ignored():
    """Pad and auto accept the word."""
    init = LSTMModule.__init__

    def ignoring(self, *args, recurrent_backend="pad", recurrent_recompute="none", **options):
        if recurrent_backend != "scan":
            recurrent_recompute = "none"
        init(self, *args, recurrent_backend=recurrent_backend,
             recurrent_recompute=recurrent_recompute, **options)

    return mock.patch.object(LSTMModule, "__init__", ignoring)


def fast_is_everywhere():
    return mock.patch.object(_rnn_precision, "_resolve_gpu_preset", lambda preset: "tf32")


defaults = [torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32]
kernels = path.replace("backends.py", "triton_kernels.py")
source = open(kernels).read()
formula = "2 * tl.sigmoid(2 * x) - 1"
assert source.count(formula) == 1
other = source.replace(formula, "tl.sigmoid(x)")
results = {}
if MUTATE:
    results["another_tanh"] = failing_assertion(kernels, other)
with mock.patch.object(rnn, "_has_triton", False):
    if not MUTATE:
        results = {"defaults": defaults, "no_triton": []}
        for page in (path, kernels):
            printed = io.StringIO()
            said = failing_assertion(page, printed=printed)
            results["no_triton"].append([said, printed.getvalue()])
    for mutation in (scan_zeroes_at_resets, pad_fills_placeholders, auto_is_scan,
                     recompute_is_none, recompute_is_ignored) * MUTATE:
        with mutation():
            results[mutation.__name__] = failing_assertion(path)
    if MUTATE:
        with fast_is_everywhere():
            results["fast_is_everywhere"] = failing_assertion(kernels)
print(json.dumps(results))
'''
)

CAUGHT_BY = {
    "another_tanh": "assert value < tolerance, (kind, name, value)",
    "scan_zeroes_at_resets": "assert value < tolerance, (kind, name, value)",
    "pad_fills_placeholders": "assert value < tolerance, (kind, name, value)",
    "auto_is_scan": "assert all(map(torch.equal, auto[name], pad[name]))",
    "recompute_is_none": "assert len(calls) == 2 * STEPS",
    "recompute_is_ignored": (
        "assert \"only supported for recurrent_backend 'scan' and 'triton'\" in refusal"
    ),
    "fast_is_everywhere": "assert tuple(simulated) == outcome, mode",
}


@pytest.fixture(scope="module")
def unchanged():
    return run_driver(f"MUTATE = False\n{TUTORIAL}", PAGE)


@pytest.fixture(scope="module")
def caught():
    return run_driver(f"MUTATE = True\n{TUTORIAL}", PAGE)


@pytest.mark.slow
def test_pages_pass_without_triton(unchanged):
    (said, printed), (of_kernels, by_kernels) = unchanged["no_triton"]
    assert said == of_kernels == "the page passed"
    assert "pad, scan, auto: no effect" in printed  # the last line it prints
    assert "requires the triton package" in by_kernels
    assert "no Triton on this platform" in by_kernels
    assert "no CUDA device here" in by_kernels


@pytest.mark.mutation
@pytest.mark.parametrize("mutation", CAUGHT_BY)
def test_page_notices_a_changed_torchrl(caught, mutation):
    assert caught[mutation] == ast.unparse(ast.parse(CAUGHT_BY[mutation]))


@pytest.mark.slow
@guards("pytorch-starts-highest", "kernels-precise-unless-asked")
def test_precision_that_pytorch_starts_with(unchanged):
    assert unchanged["defaults"] == ["highest", True]


@guards("auto-precision-default")
def test_order_of_the_precisions(monkeypatch):
    resolve = _rnn_precision._resolve_precision
    with mock.patch.object(_rnn_precision, "_is_tensor_core_capable", return_value=True):
        assert resolve("auto") == "ieee"
        try:
            set_recurrent_matmul_precision("fast")
            assert resolve("auto") == "tf32"
            assert resolve("high-prec") == "tf32x3"
            monkeypatch.setenv("TORCHRL_RNN_PRECISION", "tf32x3")
            assert resolve("auto") == "tf32"
            set_recurrent_matmul_precision("auto")
            assert resolve("auto") == "tf32x3"
        finally:
            monkeypatch.delenv("TORCHRL_RNN_PRECISION")
            set_recurrent_matmul_precision("auto")
    assert resolve("auto") == "ieee"


@guards("triton-hidden-size-padded")
def test_hidden_size_is_padded():
    triton = pytest.importorskip("triton")
    assert triton
    from torchrl.modules.tensordict_module import _rnn_triton

    hidden = {
        target.id: value.value
        for node in ast.parse(KERNELS.read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)
        for target, value in zip(
            node.targets[0].elts, getattr(node.value, "elts", []), strict=False
        )
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant)
    }["HIDDEN"]
    assert _rnn_triton._padded_hidden_size(hidden) == 32 > hidden


# -- The run -------------------------------------------------------------------

REFUSALS = (
    START
    + """
import importlib.util
spec = importlib.util.spec_from_file_location("recurrent_refusals", path)
run = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = run
spec.loader.exec_module(run)


def scan_takes_dropout():
    scan = LSTMModule._lstm_scan_with_resets

    def taking(self, *args):
        with mock.patch.object(self.lstm, "dropout", 0):
            return scan(self, *args)

    return mock.patch.object(LSTMModule, "_lstm_scan_with_resets", taking)


def triton_refuses_projections():
    pad = LSTMModule._lstm_pad_with_resets

    def refusing(self, *args):
        if self.lstm.proj_size:
            raise ValueError("no proj_size")
        return pad(self, *args)

    return mock.patch.object(LSTMModule, "_lstm_pad_with_resets", refusing)


def pad_has_a_bug():
    def failing(self, *args):
        raise ValueError("no such thing")

    return mock.patch.object(LSTMModule, "_lstm_pad_with_resets", failing)


def any_precision():
    return mock.patch.object(rnn, "_validate_user_precision", lambda value: None)


def triton_looks_for_cuda_early():
    init = LSTMModule.__init__

    def looking(self, *args, recurrent_backend="pad", **options):
        if recurrent_backend == "triton":
            raise ValueError("Expected a cuda device, but got: cpu")
        init(self, *args, recurrent_backend=recurrent_backend, **options)

    return mock.patch.object(LSTMModule, "__init__", looking)


def sequential_mode_takes_scan():
    step = LSTMModule._lstm

    def scanning(self, *args, is_init=None, backend="pad", **options):
        if not self.recurrent_mode and self.recurrent_backend == "scan":
            raise NotImplementedError("one step")
        return step(self, *args, is_init=is_init, backend=backend, **options)

    return mock.patch.object(LSTMModule, "_lstm", scanning)


def dropout_is_left_out():
    return mock.patch.object(rnn.F, "dropout", lambda x, **options: x)


parts = {
    "scan_takes_dropout": (scan_takes_dropout, run.support),
    "triton_refuses_projections": (triton_refuses_projections, run.support),
    "pad_has_a_bug": (pad_has_a_bug, run.support),
    "any_precision": (any_precision, run.refused_options),
    "triton_looks_for_cuda_early": (triton_looks_for_cuda_early, run.refused_options),
    "sequential_mode_takes_scan": (sequential_mode_takes_scan, run.refused_options),
    "dropout_is_left_out": (dropout_is_left_out, run.silent),
}
run.make("LSTM", recurrent_backend="scan")
results = {}
for name, (mutation, part) in parts.items():
    with mutation():
        results[name] = failing_in(path, part)
print(json.dumps(results))
"""
)

RUN_CAUGHT_BY = {
    "scan_takes_dropout": "assert outcome('GRU'",
    "triton_refuses_projections": "assert table['``bidirectional``'][2]",
    "pad_has_a_bug": "ValueError: no such thing",
    "any_precision": "assert type(raised).__name__ == self.error",
    "triton_looks_for_cuda_early": "assert type(raised).__name__ == self.error",
    "sequential_mode_takes_scan": "assert type(raised).__name__ == self.error",
    "dropout_is_left_out": "assert dropped(training=True)",
}


@pytest.fixture(scope="module")
def run_caught():
    return run_driver(REFUSALS, RUN)


@pytest.mark.mutation
@pytest.mark.parametrize("mutation", RUN_CAUGHT_BY)
def test_run_notices_a_changed_torchrl(run_caught, mutation):
    assert run_caught[mutation].startswith(RUN_CAUGHT_BY[mutation])
