"""What the page on recurrent backends says of operators and of the records."""

import re
from unittest import mock

import pytest
import torch
from torchrl.modules.tensordict_module import rnn

from benchmarks.suites import bench_recurrent_backends as backends
from benchmarks.suites import bench_recurrent_modes as modes
from tests.benchmarks.test_bench_recurrent import CASES, runs
from tests.support.claims import guards
from tests.support.programs import run_python
from tests.support.suites import COMMITTED, CPU, recorded

# Dynamo reads the gradient of every tensor that it traces in scan.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)


# -- The operators ---------------------------------------------------------------


@guards("scan-retraces-backward", "no-grad-no-retrace", "gru-own-backward", "recompute-lstm-faster")
@guards("eager-lstm-scan-traced-each-call")
def test_each_eager_lstm_scan_traces_its_backward_pass():
    from torch._higher_order_ops import partitioner

    def traced(cell, *, grad, name="scan"):
        ours = backends.Contender(CASES[cell], name, CPU)
        slices = backends.make_slices(CASES[cell], CPU)
        ours.step(slices)
        function = partitioner.create_hop_joint_graph
        with mock.patch.object(partitioner, "create_hop_joint_graph", wraps=function) as tracing:
            for _ in range(2):
                with torch.set_grad_enabled(grad), modes.set_recurrent_mode(True):
                    ours.call(slices.copy())
        return tracing.call_count

    assert traced("lstm", grad=True) == 2
    assert traced("lstm", grad=False) == 0
    assert traced("gru", grad=True) == 0
    assert traced("lstm", grad=True, name="scan-recompute") == 0


@guards("one-reset-enough", "pad-packs-pieces", "packed-backward-quadratic")
def test_pad_with_a_reset_runs_step_by_step():
    steps = 24

    def operators(resets):
        case = CASES["lstm"]._replace(steps=steps, resets=0)
        slices = backends.make_slices(case, CPU)
        slices["is_init"][0, resets] = True
        ours = backends.Contender(case, "pad", CPU)
        with torch.profiler.profile(record_shapes=True) as profiler:
            ours.step(slices)
        return profiler.key_averages(group_by_input_shape=True)

    def count(events, name):
        return sum(event.count for event in events if event.key == name)

    whole, cut = operators([]), operators([5])
    assert count(whole, "aten::mkldnn_rnn_layer") == 1
    assert count(cut, "aten::mkldnn_rnn_layer") == 0
    assert count(cut, "aten::_pack_padded_sequence") == 1
    assert count(cut, "aten::addmm") + count(cut, "aten::linear") > steps
    # Packed rows with the four gates of each: the gradient of what a step reads of them.
    rows = CASES["lstm"].batch * steps
    gates = 4 * CASES["lstm"].hidden
    filled = [event for event in cut if event.key == "aten::fill_" or event.key == "aten::zero_"]
    assert sum(e.count for e in filled if e.input_shapes[0] == [rows, gates]) >= steps - 1


@guards("pad-memory-longest-piece")
@pytest.mark.parametrize("cell", backends.CELLS)
def test_pad_gives_the_layer_pieces_of_the_longest(cell):
    slices = backends.make_slices(CASES[cell]._replace(resets=0), CPU)
    slices["is_init"][0, [1, 4]] = True  # pieces of 1, 3 and 3 steps beside two of 7
    ours, pack = backends.Contender(CASES[cell], "pad", CPU), rnn.nn.utils.rnn.pack_padded_sequence
    with mock.patch.object(rnn.nn.utils.rnn, "pack_padded_sequence", wraps=pack) as packing:
        ours.step(slices)
    padded, lengths = packing.call_args.args
    assert padded.shape[:2] == (5, 7)
    assert lengths.tolist() == [1, 3, 3, 7, 7]


@guards("primer-shape")
@pytest.mark.parametrize("cell", backends.CELLS)
def test_primer_has_the_shape_of_a_stored_state(cell):
    module = {"lstm": rnn.LSTMModule, "gru": rnn.GRUModule}[cell](
        4, 5, num_layers=2, in_key="observation", out_key="features"
    )
    primers = list(module.make_tensordict_primer().primers.values(True, True))
    assert [tuple(spec.shape) for spec in primers] == [(2, 5)] * len(module.in_keys[1:-1])


@guards("scan-constructor-checks")
@pytest.mark.parametrize("backend", ["pad", "auto", "scan"])
def test_constructor_of_scan_alone_makes_the_check(backend):
    with mock.patch.object(rnn, "_get_hoptorch_scan", wraps=rnn._get_hoptorch_scan) as getting:
        rnn.LSTMModule(4, 5, in_key="observation", out_key="features", recurrent_backend=backend)
    assert getting.called == (backend == "scan")


@guards("second-size-recompiles")
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin:UserWarning")
@pytest.mark.parametrize("size", ["batch", "steps"])
@pytest.mark.parametrize("cell", backends.CELLS)
def test_second_size_is_compiled_again_and_no_later_one(cell, size):
    compiled = []

    def noting(graph, inputs):
        compiled[-1] += 1
        return graph

    torch.compiler.reset()
    ours = backends.Contender(CASES[cell], "scan", CPU)
    module = torch.compile(ours.module, backend=noting)
    try:
        for number in (3, 3, 5, 7, 9):
            compiled.append(0)
            slices = backends.make_slices(CASES[cell]._replace(**{size: number}), CPU)
            with torch.no_grad(), rnn.set_recurrent_mode(True):
                module(slices)
    finally:
        torch.compiler.reset()
    assert [count > 0 for count in compiled] == [True, False, True, False, False]


@guards("triton-means-ieee", "cudnn-tf32-default")
def test_tf32_is_off_in_the_suites_and_on_by_default():
    assert not torch.backends.cudnn.allow_tf32  # benchmarks.measure has switched it off
    default = "import torch; print(torch.backends.cudnn.allow_tf32)"
    assert run_python("-c", default).stdout == "True\n"


# -- The records -----------------------------------------------------------------


def of(name, metric, cell="lstm", **sizes):
    case = backends.Case(cell, **backends.BASE | sizes)
    return recorded("recurrent_backends", backends.key_of(case, name), metric)


def everywhere(metric, *names, cell=None):
    """The *metric* of configurations *names* in all cases of the CPU record."""
    found = [
        recorded("recurrent_backends", backends.key_of(case, name), metric)
        for case, name, cuda in runs()
        if not cuda and name in names and cell in (None, case.cell)
    ]
    assert found
    return found


@guards("eager-lstm-scan-loses", "eager-lstm-scan-tens", "symptom-scan-training-slow")
def test_eager_lstm_scan_loses():
    assert min(everywhere("time_vs_pad", "scan", cell="lstm")) > 1
    assert of("scan", "time_vs_pad", resets=0) > 20
    small, large = (of("scan", "step_time", batch=batch) for batch in (4, 64))
    assert small > 0.5 * large


@guards("pad-jumps-first-reset", "gru-jumps-less", "later-resets-matter-less")
def test_pad_jumps_at_the_first_reset():
    for cell in backends.CELLS:
        none, *some = (of("pad", "step_time", cell, resets=resets) for resets in (0, 1, 4, 16))
        assert some[0] > 1.5 * none
        assert max(some) / min(some) < some[0] / none
    lstm, gru = (
        of("pad", "step_time", cell, resets=1) / of("pad", "step_time", cell, resets=0)
        for cell in ("lstm", "gru")
    )
    assert lstm > 2 * gru


@guards("scan-ignores-resets", "scan-crosses-pad", "crossing-scans")
def test_scan_does_not_care_about_resets():
    for cell, name in (("gru", "scan"), ("lstm", "scan"), ("lstm", "scan-compiled")):
        none, many = (of(name, "step_time", cell, resets=resets) for resets in (0, 16))
        assert max(none, many) < 1.5 * min(none, many)
    for cell, name in (("gru", "scan"), ("lstm", "scan-compiled")):
        none, *some = (of(name, "time_vs_pad", cell, resets=resets) for resets in (0, 1, 4, 16))
        assert none > 1
        assert min(some) < 1
    for name in ("scan", "scan-recompute"):
        assert min(of(name, "time_vs_pad", resets=resets) for resets in (0, 1, 4, 16)) > 1


@guards("pad-superlinear-length", "lstm-pad-four-times")
def test_pad_grows_faster_than_the_length():
    times = {steps: of("pad", "step_time", steps=steps) for steps in (128, 512)}
    assert times[512] > 4.4 * times[128]
    gru = {steps: of("pad", "step_time", "gru", steps=steps) for steps in (128, 512)}
    assert gru[512] > 4.4 * gru[128]


@guards("scan-gains-by-batch", "gru-gains-by-hidden")
def test_scan_gains_from_a_larger_batch():
    for cell in backends.CELLS:
        small, large = (of("scan", "time_vs_pad", cell, batch=batch) for batch in (4, 64))
        assert large < small
    small, large = (of("scan", "time_vs_pad", "gru", hidden=hidden) for hidden in (32, 128))
    assert large < small


@guards("lstm-scan-more-memory", "pad-memory-longest-piece", "gru-scan-memory")
def test_lstm_scan_needs_more_memory():
    assert min(everywhere("peak_vs_pad", "scan", "scan-compiled", cell="lstm")) > 1
    for cell in backends.CELLS:
        one, many = (of("pad", "peak_memory", cell, resets=resets) for resets in (1, 16))
        assert many > one
    assert of("scan", "peak_vs_pad", "gru", resets=0) > 1
    assert of("scan", "peak_vs_pad", "gru", resets=16) < 1


@guards("recompute-less-memory", "recompute-gru-time")
def test_recompute_needs_less_memory():
    assert max(everywhere("peak_vs_pad", "scan-recompute")) < 1
    for resets in (0, 1, 4, 16):
        gru = {n: of(n, "step_time", "gru", resets=resets) for n in ("scan", "scan-recompute")}
        assert gru["scan-recompute"] > gru["scan"]


def first_call(name, metric):
    return recorded("recurrent_first_call", f"lstm-{name}", metric)


@guards("first-compiled-step", "symptom-first-update-long", "eager-scan-first-time")
def test_compilation_costs_many_steps():
    first = first_call("scan-compiled", "first_step_time")
    assert first > 100 * of("pad", "step_time")
    assert first > 200 * of("scan-compiled", "step_time")
    assert first_call("scan", "first_step_time") > 1.5 * first_call("scan", "second_step_time")


@guards(
    "backend-to-try-first",
    "backend-row-tested",
    "rule-no-resets",
    "rule-lstm-small",
    "rule-lstm-large",
    "rule-many-updates",
    "rule-gru-large",
    "rule-gru-small",
    "rule-memory-short",
    "long-slices-scan-wins",
    "base-case-sizes",
    "with-resets-means-four",
    "compiled-lstm-base-only",
)
def test_rules_of_the_table():
    def against_pad(name, cell, **sizes):
        return of(name, "time_vs_pad", cell, **sizes)

    for cell in backends.CELLS:
        scans = ("scan", "scan-compiled", "scan-recompute")
        # A tenth is noise.
        assert min(against_pad(name, cell, resets=0) for name in scans) > 0.9
        peaks = {name: of(name, "peak_vs_pad", cell) for name in ("pad", *scans)}
        assert min(peaks, key=peaks.get) == "scan-recompute"
    for sizes in ({}, {"batch": 4}, {"steps": 32}, {"hidden": 32}):
        assert against_pad("scan", "lstm", **sizes) > 1
        assert against_pad("scan-recompute", "lstm", **sizes) > 1
    for cell in backends.CELLS:
        assert against_pad("scan-compiled", cell) < 1
    assert against_pad("scan-compiled", "gru", steps=32) > 0.9  # no gain, but for noise
    for sizes in ({"batch": 64}, {"steps": 512}):
        assert against_pad("scan-recompute", "lstm", **sizes) < 1
        assert against_pad("scan-recompute", "lstm", **sizes) < against_pad("scan", "lstm", **sizes)
        assert against_pad("scan", "gru", **sizes) < 1
    pad, recompute = (
        COMMITTED.find("recurrent_backends", "cpu")["benchmarks"][f"lstm-{name}-b16-t512-h128-r4"]
        for name in ("pad", "scan-recompute")
    )
    pad, recompute = (entry["metrics"]["step_time"] for entry in (pad, recompute))
    assert recompute["median"] < pad["median"]
    assert recompute["q3"] > pad["q1"]
    for sizes in ({"batch": 4}, {"steps": 32}):
        assert against_pad("scan", "gru", **sizes) > 1
    assert backends.BASE == {"batch": 16, "steps": 128, "hidden": 128, "resets": 4}
    compiled = {
        (case.batch, case.steps, case.hidden)
        for case, name, cuda in runs()
        if not cuda and case.cell == "lstm" and name == "scan-compiled"
    }
    assert compiled == {(16, 128, 128)}


def mode(key, metric):
    return recorded("recurrent_modes", key, metric)


@guards(
    "lstm-state-bytes",
    "features-stored-too",
    "states-outweigh-observation",
    "symptom-frame-kilobytes",
    "frame-mostly-state",
)
def test_bytes_of_states():
    plain = mode("collect-ff-h32", "bytes_per_frame")
    for hidden in modes.HIDDEN_SIZES:
        for name in modes.CELLS:
            size = mode(f"collect-{name}-h{hidden}", "bytes_per_frame")
            states = mode(f"collect-{name}-h{hidden}", "state_bytes_per_frame")
            assert states == modes.expected_state_bytes(name, hidden) > plain
            assert states > size / 2
            is_init = 2 * torch.bool.itemsize  # root and next
            assert size == plain + states + hidden * torch.float32.itemsize + is_init
    assert mode("collect-lstm-h128", "bytes_per_frame") > 2000


@guards("scan-far-slower-on-gpu", "recompute-halves-on-gpu")
def test_scan_is_far_slower_on_a_gpu():
    def on_gpu(name, metric):
        key = f"lstm-{name}-b16-t128-h128-r4"
        return recorded("recurrent_backends", key, metric, device="cuda")

    times = {name: on_gpu(name, "time_vs_pad") for name in ("scan", "scan-recompute")}
    assert times["scan-recompute"] > 10
    assert 0.4 < times["scan-recompute"] / times["scan"] < 0.6
    assert on_gpu("scan-recompute", "peak_vs_pad") < 0.5


@guards("triton-first-step-minutes")
def test_triton_was_still_compiling():
    """The record has no result of it, and says why."""
    found = COMMITTED.find("recurrent_backends", "cuda")
    (why,) = (
        one["reason"] for one in found["skipped"] if "lstm-triton-b16-t128-h128-r4" in one["name"]
    )
    seconds = int(re.fullmatch(r"had run for (\d+) s when the time was over", why)[1])
    assert seconds > 100
