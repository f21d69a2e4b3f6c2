"""The lessons on recurrent backends and Triton kernels, and the run behind what they refuse."""

import ast
import io
from unittest import mock

import pytest
from torchrl.modules import LSTMModule, set_recurrent_matmul_precision
from torchrl.modules.tensordict_module import _rnn_precision, rnn

from tests.support import ROOT
from tests.support.claims import guards
from tests.support.evidence_module import load_evidence
from tests.support.tutorial_script import (
    Changes,
    all_of,
    failing_assertion,
    failing_in,
    in_a_process,
    run_driver,
)

PAGE = ROOT / "tutorials" / "recurrent" / "backends.py"
KERNELS = PAGE.with_name("triton_kernels.py")
CHANGES = Changes(PAGE)


def no_triton():
    return mock.patch.object(rnn, "_has_triton", False)


@CHANGES.caught_by("assert value < tolerance, (kind, name, value)")
def scan_zeroes_at_resets():
    """Scan starts a piece from zero, not from the stored state."""
    scan = LSTMModule._lstm_scan_with_resets

    def zeroing(self, inputs, h, c, initial, is_init):
        keep = ~is_init[..., None, None]
        return scan(self, inputs, h * keep, c * keep, initial, is_init)

    return all_of(no_triton(), mock.patch.object(LSTMModule, "_lstm_scan_with_resets", zeroing))


@CHANGES.caught_by("assert value < tolerance, (kind, name, value)")
def pad_fills_placeholders():
    """The state stands at every slot of a piece."""

    def everywhere(h, splits, steps):
        return h.unsqueeze(1).expand(-1, steps, *h.shape[1:]).clone()

    return all_of(no_triton(), mock.patch.object(rnn, "_place_at_traj_end", everywhere))


@CHANGES.caught_by("assert all(map(torch.equal, auto[name], pad[name]))")
def auto_is_scan():
    return all_of(no_triton(), mock.patch.object(rnn, "is_compiling", return_value=True))


@CHANGES.caught_by("assert len(calls) == 2 * STEPS")
def recompute_is_none():
    """Scan with recompute keeps everything."""

    def call(function, *args, **options):
        return function(*args)

    return all_of(no_triton(), mock.patch.object(rnn._torch_checkpoint, "checkpoint", call))


@CHANGES.caught_by("assert \"only supported for recurrent_backend 'scan' and 'triton'\" in refusal")
def recompute_is_ignored():
    """Pad and auto accept the word."""
    init = LSTMModule.__init__

    def ignoring(self, *args, recurrent_backend="pad", recurrent_recompute="none", **options):
        if recurrent_backend != "scan":
            recurrent_recompute = "none"
        options |= {"recurrent_backend": recurrent_backend}
        init(self, *args, recurrent_recompute=recurrent_recompute, **options)

    return all_of(no_triton(), mock.patch.object(LSTMModule, "__init__", ignoring))


@CHANGES.caught_by("assert tuple(simulated) == outcome, mode", KERNELS)
def fast_is_everywhere():
    preset = mock.patch.object(_rnn_precision, "_resolve_gpu_preset", return_value="tf32")
    return all_of(no_triton(), preset)


@pytest.mark.mutation
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_page_notices_a_changed_torchrl(caught, change):
    assert caught[change.name] == change.assertion


def another_tanh():
    """What it stops in Triton's interpreter, which the kernels start."""
    formula, other = "2 * tl.sigmoid(2 * x) - 1", "tl.sigmoid(x)"
    source = KERNELS.read_text("utf-8")
    assert source.count(formula) == 1
    return failing_assertion(KERNELS, source.replace(formula, other))


@pytest.mark.mutation
def test_page_notices_another_tanh():
    said = in_a_process(__file__, "another_tanh()")
    assert said == "assert value < tolerance, (kind, name, value)"


def without_triton():
    """What stops the lessons where torchrl finds no Triton, and what they print."""
    found = []
    with no_triton():
        for page in (PAGE, KERNELS):
            printed = io.StringIO()
            found.append([failing_assertion(page, printed=printed), printed.getvalue()])
    return found


@pytest.mark.mutation
def test_pages_pass_without_triton():
    found = in_a_process(__file__, "without_triton()")
    (said, printed), (of_kernels, by_kernels) = found
    assert said == of_kernels == "the page passed"
    assert "pad, scan, auto: no effect" in printed  # the last line it prints
    assert "requires the triton package" in by_kernels
    assert "no Triton on this platform" in by_kernels
    assert "no CUDA device here" in by_kernels


PRECISION = """
import json, torch
print(json.dumps([torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32]))
"""


@guards("pytorch-starts-highest", "kernels-precise-unless-asked")
def test_precision_that_pytorch_starts_with():
    assert run_driver(PRECISION, PAGE) == ["highest", True]


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

REFUSALS = Changes()  # by the function of the run that fails


@REFUSALS.caught_by("assert outcome('GRU'", "support")
def scan_takes_dropout():
    scan = LSTMModule._lstm_scan_with_resets

    def taking(self, *args):
        with mock.patch.object(self.lstm, "dropout", 0):
            return scan(self, *args)

    return mock.patch.object(LSTMModule, "_lstm_scan_with_resets", taking)


@REFUSALS.caught_by("assert table['``bidirectional``'][2]", "support")
def triton_refuses_projections():
    pad = LSTMModule._lstm_pad_with_resets

    def refusing(self, *args):
        if self.lstm.proj_size:
            raise ValueError("no proj_size")
        return pad(self, *args)

    return mock.patch.object(LSTMModule, "_lstm_pad_with_resets", refusing)


@REFUSALS.caught_by("ValueError: no such thing", "support")
def pad_has_a_bug():
    bug = ValueError("no such thing")
    return mock.patch.object(LSTMModule, "_lstm_pad_with_resets", side_effect=bug)


@REFUSALS.caught_by("assert type(raised).__name__ == self.error", "refused_options")
def any_precision():
    return mock.patch.object(rnn, "_validate_user_precision")


@REFUSALS.caught_by("assert type(raised).__name__ == self.error", "refused_options")
def triton_looks_for_cuda_early():
    init = LSTMModule.__init__

    def looking(self, *args, recurrent_backend="pad", **options):
        if recurrent_backend == "triton":
            raise ValueError("Expected a cuda device, but got: cpu")
        init(self, *args, recurrent_backend=recurrent_backend, **options)

    return mock.patch.object(LSTMModule, "__init__", looking)


@REFUSALS.caught_by("assert type(raised).__name__ == self.error", "refused_options")
def sequential_mode_takes_scan():
    step = LSTMModule._lstm

    def scanning(self, *args, is_init=None, backend="pad", **options):
        if not self.recurrent_mode and self.recurrent_backend == "scan":
            raise NotImplementedError("one step")
        return step(self, *args, is_init=is_init, backend=backend, **options)

    return mock.patch.object(LSTMModule, "_lstm", scanning)


@REFUSALS.caught_by("assert dropped(training=True)", "silent")
def dropout_is_left_out():
    return mock.patch.object(rnn.F, "dropout", lambda x, **options: x)


def failing_parts():
    run = load_evidence("recurrent_refusals/errors")
    run.make("LSTM", recurrent_backend="scan")
    return REFUSALS.outcomes(lambda change: failing_in(run.__file__, getattr(run, change.page)))


@pytest.fixture(scope="module")
def run_caught():
    return in_a_process(__file__, "failing_parts()")


@pytest.mark.mutation
@pytest.mark.parametrize("change", REFUSALS, ids=lambda change: change.name)
def test_run_notices_a_changed_torchrl(run_caught, change):
    assert run_caught[change.name].startswith(change.assertion)
