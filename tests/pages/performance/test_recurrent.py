"""The suite recurrent_primer, run small, and the sentences of the page recurrent."""

from functools import partial
from unittest import mock

import pytest
import torch
from torchrl.envs import GymEnv, InitTracker, SerialEnv, TransformedEnv
from torchrl.modules import LSTMModule, set_recurrent_mode

from benchmarks.record import load
from benchmarks.suites import bench_recurrent_primer as suite
from benchmarks.timing import Benchmark
from tests.benchmarks.test_bench_allocator import BOUND
from tests.support import ROOT
from tests.support.claims import guards
from tests.support.programs import run_python
from tests.support.suites import COMMITTED, CPU, benchmarks_of, noted, recorded

EAGER = ("pad", "scan", "scan-recompute")


@pytest.fixture
def small():
    sizes = {"STEPS": 12, "ENVIRONMENTS": 2, "HIDDEN": 5, "ROWS": 3, "LENGTH": 16, "SECONDS": 0}
    with mock.patch.multiple(suite, **sizes):
        suite.make_batches.cache_clear()
        yield
    suite.make_batches.cache_clear()


# -- The suite ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none", "init", "lstm-h32"])
def test_transforms_entry(small, name):
    entry = noted(suite.bench_transforms, CPU, name)
    assert entry["key"] == f"transforms-{name}"
    state = {"lstm-h32": 2 * 2 * 32 * 4}.get(name, 0)
    assert entry["exact"]["bytes_per_frame"] >= 66 + state


@pytest.mark.parametrize("place", suite.PLACES)
def test_batched_entry(small, place):
    assert noted(suite.bench_batched, CPU, place)["key"] == f"batch-{place}"


def test_another_batch_fails_the_suite(small):
    env = suite.make_env("init")
    with mock.patch.object(env.base_env, "_step", side_effect=lambda td: stopped(env, td)):
        ours = suite.make_collector(env)
        with pytest.raises(AssertionError):
            suite.compare_collection(Benchmark(), CPU, ours, suite.make_collector(suite.make_env()))


def stopped(env, tensordict):
    """A step that pays nothing."""
    found = GymEnv._step(env.base_env, tensordict)
    return found.set("reward", torch.zeros_like(found["reward"]))


@pytest.mark.parametrize("lengths", suite.LENGTHS)
@pytest.mark.parametrize("cell", suite.CELLS)
@guards("padded-same-results")
def test_layouts_agree(small, cell, lengths):
    module = suite.make_module(cell, 5)
    batches = suite.make_batches(cell, lengths, CPU)
    assert max(suite.errors(module, batches["padded"], batches["slices"])) < suite.TOLERANCE


@pytest.mark.parametrize("cell", suite.CELLS)
def test_a_reset_that_is_missed_is_found(small, cell):
    module = suite.make_module(cell, 5)
    batches = suite.make_batches(cell, "even", CPU)
    wrong = batches["slices"].clone()
    wrong["is_init"][:, 1:] = False
    assert max(suite.errors(module, wrong, batches["slices"])) > 10 * suite.TOLERANCE


def test_layout_entry(small):
    entry = noted(suite.bench_layout, CPU, "gru", "skewed", "padded")
    assert entry["key"] == "gru-padded-skewed"
    assert entry["exact"]["padding"] > 50
    assert entry["parameters"]["row_length"] == suite.LENGTH
    assert entry["parameters"]["frames"] == suite.ROWS * suite.LENGTH


# -- Sentences about the transforms -------------------------------------------------


@guards("inside-transforms-per-env")
def test_transforms_inside_run_once_per_environment(small):
    plain, calls = InitTracker._step, []

    def step(self, *args):
        calls.append(self)
        return plain(self, *args)

    for place, expected in {"inside": suite.ENVIRONMENTS, "outside": 1}.items():
        collector = suite.make_collector(suite.make_batch(place))
        calls.clear()
        with mock.patch.object(InitTracker, "_step", step):
            collector.rollout()
        collector.shutdown()
        assert len(calls) == expected * suite.STEPS, place


@guards("policy-argument-places-transforms")
def test_where_a_policy_puts_them():
    module = suite.make_module("lstm", 4)
    outside = SerialEnv(2, partial(GymEnv, "CartPole-v1"), policy=module)
    assert isinstance(outside, TransformedEnv)
    assert isinstance(outside.base_env, SerialEnv)
    inside = SerialEnv(2, partial(GymEnv, "CartPole-v1", policy=module))
    assert isinstance(inside, SerialEnv)
    assert "is_init" in inside.reset().keys()  # noqa: SIM118 - no dict
    inside.close()


@guards("transforms-belong-outside")
def test_outside_is_faster_in_the_record():
    outside, inside = (
        recorded("recurrent_primer", f"batch-{place}", "time_vs_none")
        for place in ("outside", "inside")
    )
    assert 1 < outside < inside


@guards("empty-transform-half-price", "hidden-size-bytes-not-time")
def test_half_of_the_cost_is_wrapping():
    compose, *primed = (
        recorded("recurrent_primer", f"transforms-{name}", "time_vs_none") - 1
        for name in ("compose", "lstm-h32", "lstm-h128", "lstm-h512")
    )
    for cost in primed:
        assert 0.4 < compose / cost < 0.6
    assert max(primed) < 1.1 * min(primed)


# -- Sentences about padding ---------------------------------------------------------


def layout(cell, lengths, metric):
    return recorded("recurrent_primer", f"{cell}-padded-{lengths}", metric)


@guards("padded-lstm-fused", "equal-lengths-no-padding")
def test_padded_rows_have_no_resets():
    batches = suite.make_batches("lstm", "even", CPU)
    assert not batches["padded"]["is_init"][:, 1:].any()
    assert batches["slices"]["is_init"][:, 1:].any()
    for cell in suite.CELLS:
        assert layout(cell, "even", "padding") == 0
        assert layout(cell, "even", "time_vs_slices") < 1


@guards("mixed-lengths-padding")
def test_padding_of_mixed_lengths():
    quartiles = {
        cell: [
            recorded("recurrent_primer", f"{cell}-padded-mixed", "time_vs_slices", of)
            for of in ("q1", "q3")
        ]
        for cell in suite.CELLS
    }
    assert quartiles["lstm"][1] < 0.8
    assert quartiles["gru"][0] < 1 < quartiles["gru"][1]
    for cell in suite.CELLS:
        slices = recorded("recurrent_primer", f"{cell}-slices-mixed", "peak_memory")
        assert layout(cell, "mixed", "peak_memory") > 1.3 * slices


@guards("one-long-trajectory-loses", "padded-peak-by-steps")
def test_padding_loses_with_one_long_trajectory():
    for cell in suite.CELLS:
        assert layout(cell, "skewed", "padding") > 50
        assert layout(cell, "skewed", "time_vs_slices") > 1
        slices = recorded("recurrent_primer", f"{cell}-slices-skewed", "peak_memory")
        assert layout(cell, "skewed", "peak_memory") > 1.5 * slices


# -- Sentences about the older records ------------------------------------------------


def backend(cell, name, metric="step_time", batch=16, steps=128, resets=4):
    key = f"{cell}-{name}-b{batch}-t{steps}-h128-r{resets}"
    return recorded("recurrent_backends", key, metric)


@guards("compiled-scan-few-resets")
def test_compiled_scan_is_first_with_resets():
    for cell in ("lstm", "gru"):
        for resets in (0, 1, 4):
            others = [backend(cell, name, resets=resets) for name in EAGER]
            compiled = backend(cell, "scan-compiled", resets=resets)
            assert (compiled < min(others)) == (resets > 0), (cell, resets)


@guards("compiled-lstm-time-luck", "second-run-elsewhere")
def test_compiled_lstm_scan_does_not_repeat():
    again = load(COMMITTED.replicate("recurrent_backends", "cpu"))["benchmarks"]
    ratios = []
    for resets in (0, 1, 4, 16):
        key = f"lstm-scan-compiled-b16-t128-h128-r{resets}"
        times = [backend("lstm", "scan-compiled", resets=resets)]
        times.append(again[key]["metrics"]["step_time"]["median"])
        ratios.append(max(times) / min(times))
    assert max(ratios) > 1.25


LARGEST = """\
import json, sys
import torch
from torch.profiler import ProfilerActivity, profile
from benchmarks.suites import bench_recurrent_backends as suite

case, device = suite.Case("lstm", **suite.BASE), torch.device("cpu")
slices = suite.make_slices(case, device)
ours = suite.Contender(case, "scan-compiled", device)
ours.step(slices)
with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
    ours.step(slices)
profiler.export_chrome_trace(sys.argv[1])
events = json.load(open(sys.argv[1]))["traceEvents"]
print(max(event["args"]["Bytes"] for event in events if event["name"] == "[memory]"))
"""


@guards("compiled-lstm-large-allocations")
def test_compiled_lstm_scan_allocates_large_tensors(tmp_path):
    child = run_python("-c", LARGEST, tmp_path / "trace.json", cwd=ROOT)
    assert int(child.stdout.split()[-1]) >= BOUND


@guards("backend-reset-tradeoff")
def test_scan_does_not_care_about_resets():
    for cell in ("lstm", "gru"):
        times = [backend(cell, "scan", resets=resets) for resets in (0, 1, 4, 16)]
        assert max(times) < 1.1 * min(times), cell


@guards("recompute-saves-lstm-time", "recompute-lstm-faster")
def test_recompute_saves_an_lstm_time():
    keys = [*({"resets": n} for n in (0, 1, 4, 16)), {"batch": 4}, {"batch": 64}]
    for size in [*keys, {"steps": 32}, {"steps": 512}]:
        assert backend("lstm", "scan-recompute", **size) < backend("lstm", "scan", **size), size


@guards("respecting-resets-costs", "torch-lstm-same-work")
def test_torch_nn_against_pad():
    for cell in ("lstm", "gru"):
        without = backend(cell, "torch-nn", "time_vs_pad", resets=0)
        assert 0.7 < without < 1
        for resets in (1, 4, 16):
            assert backend(cell, "torch-nn", "time_vs_pad", resets=resets) < 0.8 * without


@guards(
    "one-call-forward-faster",
    "one-call-lead-shrinks",
    "one-call-beats-steps",
    "one-call-with-reset",
)
def test_one_call_is_faster():
    benchmarks = benchmarks_of("recurrent_modes")
    keys = [key for key in benchmarks if "-sequential-" in key]
    assert len(keys) == 16
    unclear = []
    for key in keys:
        assert recorded("recurrent_modes", key, "forward_vs_recurrent", "q1") > 1, key
        assert recorded("recurrent_modes", key, "step_vs_recurrent") > 1, key
        if recorded("recurrent_modes", key, "step_vs_recurrent", "q1") < 1:
            unclear.append(key)
    assert unclear == ["lstm-sequential-t512-r1"]
    for cell in ("lstm", "gru"):
        none, one = (
            [
                recorded("recurrent_modes", f"{cell}-sequential-t{steps}-r{r}", "step_vs_recurrent")
                for steps in (128, 512)
            ]
            for r in (0, 1)
        )
        assert one[0] < none[0], cell
        assert one[1] < 0.5 * none[1], cell
        assert one[1] - 1 < 0.5 * (one[0] - 1), cell


@guards(
    "recurrent-module-takes-time",
    "states-cost-below-half",
    "recurrent-collects-slower",
    "primed-pays-too",
)
def test_the_module_takes_most_of_the_time():
    for hidden in (32, 128, 512):
        primed, gru, lstm = (
            recorded("recurrent_modes", f"collect-{name}-h{hidden}", "time_vs_ff") - 1
            for name in ("ff-primed", "gru", "lstm")
        )
        assert 0 < primed < 0.5 * min(gru, lstm), hidden


# -- Sentences about the modules -------------------------------------------------------


def sequence(steps=6, batch=2):
    rows = suite.TensorDict({"observation": torch.randn(batch, steps, 4)}, [batch, steps])
    starts = torch.zeros(batch, steps, 1, dtype=torch.bool)
    starts[:, 0] = True
    return rows.set("is_init", starts)


@guards("recurrent-call-per-step")
@pytest.mark.parametrize("cell", suite.CELLS)
def test_a_trace_shows_one_call_per_step(cell):
    module, rows = suite.make_module(cell, 5), sequence()

    def calls(recurrent):
        with torch.profiler.profile() as profiler, set_recurrent_mode(recurrent):
            for row in [rows.copy()] if recurrent else rows.unbind(1):
                module(row)
        return sum(e.count for e in profiler.key_averages() if e.key == f"aten::{cell}")

    assert calls(recurrent=False) == rows.shape[1]
    assert calls(recurrent=True) == 1


@guards("backend-reset-tradeoff")
@pytest.mark.parametrize(("resets", "fused"), [([], 1), ([2], 0), ([3], 1)])
def test_pad_runs_the_fused_operator_over_pieces_of_one_length(resets, fused):
    module, rows = suite.make_module("lstm", 5), sequence(steps=6)
    rows["is_init"][:, resets] = True
    with torch.profiler.profile() as profiler, set_recurrent_mode(True):
        module(rows)
    found = [e.count for e in profiler.key_averages() if e.key == "aten::mkldnn_rnn_layer"]
    assert sum(found) == fused


@guards("triton-knobs-elsewhere")
@pytest.mark.parametrize(
    "knob",
    [{"recurrent_compute_dtype": torch.bfloat16}, {"recurrent_matmul_precision": "tf32"}],
    ids=["compute_dtype", "matmul_precision"],
)
def test_knobs_of_triton_do_nothing_elsewhere(knob):
    rows = sequence()

    def features(**options):
        torch.manual_seed(0)
        module = LSTMModule(4, 5, in_key="observation", out_key="features", **options)
        with set_recurrent_mode(True):
            return module(rows.copy())["features"]

    assert torch.equal(features(**knob), features())


@guards("missing-tracker-default")
@pytest.mark.parametrize("cell", suite.CELLS)
def test_a_module_without_is_init_raises(cell):
    module = suite.make_module(cell, 5)
    with pytest.raises(KeyError, match="is_init"):
        module(sequence()[:, 0].exclude("is_init"))
