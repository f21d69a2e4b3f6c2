"""The suites recurrent_backends and recurrent_modes, run small: results and bytes, never a time."""

from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from benchmarks import measure
from benchmarks.suites import bench_recurrent_backends as backends
from benchmarks.suites import bench_recurrent_modes as modes
from benchmarks.timing import Benchmark
from tests.support.claims import guards
from tests.support.suites import CPU, KEY, noted

# Dynamo reads the gradient of every tensor that it traces in scan.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)

CASES = {cell: backends.Case(cell, batch=3, steps=7, hidden=5, resets=2) for cell in backends.CELLS}
EAGER = ("pad", "scan", "scan-recompute", "torch-nn")  # compilation takes too long for a test


@pytest.fixture
def small():
    with (
        mock.patch.multiple(backends, SECONDS=0, LEAST_ROUNDS=2),
        mock.patch.multiple(modes, SECONDS=0, LEAST_ROUNDS=2, BATCH=3, HIDDEN=5, FRAMES=30),
        mock.patch.object(measure, "MEMORY_ROUNDS", 3),
    ):
        yield
    modes.feed_forward.cache_clear()


def compared(case, name, change=lambda slices: slices):
    """The errors of one configuration on slices that *change* may have spoiled."""
    shared = backends.Prepared(case, CPU)
    contender = backends.Contender(case, name, CPU)
    return shared.errors(name, *contender.results(change(shared.slices)))


# -- recurrent_backends ----------------------------------------------------------


@pytest.mark.parametrize("name", EAGER)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_configurations_agree(case, name):
    found = compared(case, name)
    assert max(found.values()) < backends.CONFIGURATIONS[name].tolerance


@pytest.mark.parametrize("name", ["pad", "scan", "scan-recompute"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_reset_that_is_missed_is_found(case, name):
    def without_resets(slices):
        slices = slices.clone()
        slices["is_init"][:, 1:] = False
        return slices

    found = compared(case, name, without_resets)
    assert min(found.values()) > 10 * backends.CONFIGURATIONS[name].tolerance


def test_wrong_result_fails_the_suite(small):
    case = CASES["gru"]
    backends.prepare.cache_clear()
    shared = backends.prepare(case, CPU)
    shared.expected["pad"][0][0, 0, 0] += 1
    with pytest.raises(AssertionError, match="output_error"):
        backends.bench_step(Benchmark(), CPU, case, "pad")
    backends.prepare.cache_clear()


@pytest.mark.parametrize("name", ["pad", "scan", "torch-nn"])
def test_entry_has_declared_metrics(small, name):
    case = CASES["gru"]
    backends.prepare.cache_clear()
    entry = noted(backends.bench_step, CPU, case, name)
    backends.prepare.cache_clear()
    assert entry["key"] == f"gru-{name}-b3-t7-h5-r2"
    assert len(entry["seconds"]) == len(entry["sampled"]["time_vs_pad"]) == backends.LEAST_ROUNDS
    assert entry["metrics"] == set(backends.METRICS)
    axes = ("batch", "steps", "hidden", "resets")
    assert [entry["parameters"][axis] for axis in axes] == list(case[1:])
    if name == "pad":
        assert entry["exact"]["peak_vs_pad"] == 1


@pytest.mark.parametrize("resets", [0, 2])
@pytest.mark.parametrize("cell", CASES)
def test_torch_nn_is_the_same_network(cell, resets):
    """Without resets it computes what pad computes; with resets it cannot."""
    shared = backends.Prepared(CASES[cell]._replace(resets=resets), CPU)
    distance = backends.difference(*([shared.expected[name][0]] for name in ("pad", "torch-nn")))
    assert distance < 1e-12 if resets == 0 else distance > 1e-2


@pytest.mark.parametrize("resets", [0, 1, 4])
def test_slices_have_the_resets_they_claim(resets):
    slices = backends.make_slices(CASES["lstm"]._replace(resets=resets), CPU)
    assert slices["is_init"][:, 0].all()
    assert slices["is_init"].sum(1).eq(1 + resets).all()
    assert not slices["h"].any()
    assert not slices["c"].any()


def runs():
    for parameters in backends.parameters_of_runs():
        yield *parameters.values, bool(parameters.marks)


def test_one_size_varies_at_a_time():
    varied = {axis: set() for axis, _ in backends.AXES}
    for case, _, _ in runs():
        different = [a for a in varied if getattr(case, a) != backends.BASE[a]]
        assert len(different) <= 1
        for axis in different or varied:
            varied[axis].add(getattr(case, axis))
    assert {axis: sorted(sizes) for axis, sizes in varied.items()} == {
        "resets": [0, 1, 4, 16],
        "steps": [32, 128, 512],
        "hidden": [32, 64, 128, 512],
        "batch": [4, 16, 64, 256],
    }


def test_keys_are_unique_and_can_be_cited():
    keys = [backends.key_of(case, name) for case, name, _ in runs()]
    assert len(keys) == len(set(keys))
    assert all(KEY.match(key) for key in keys)


def test_triton_is_measured_on_cuda_alone_and_in_ieee_unless_named():
    assert all(cuda for _, name, cuda in runs() if name.startswith("triton"))
    for name in ("triton", "triton-recompute"):
        arguments = backends.CONFIGURATIONS[name].arguments
        assert arguments["recurrent_matmul_precision"] == "ieee"


def test_cases_of_a_shape_stand_in_a_row():
    """What is compiled for a shape is shared, and compiled once."""
    shapes = [case._replace(resets=0) for case, _, _ in runs()]
    changes = [b for a, b in zip([None, *shapes], shapes, strict=False) if a != b]
    assert len(changes) == len(set(changes))


def test_compiled_module_is_shared_by_the_resets_of_a_shape():
    case = CASES["gru"]
    backends.start_over(case._replace(resets=0))
    ours = backends.contender(case, "scan-compiled", CPU)
    assert backends.contender(case._replace(resets=1), "scan-compiled", CPU) is ours
    backends.start_over(case._replace(resets=0, steps=9))
    assert backends.contender(case, "scan-compiled", CPU) is not ours
    backends.start_over.cache_clear()


def test_on_the_cpu_a_refusal_is_a_failure():
    refusal = mock.patch.object(backends, "called", side_effect=RuntimeError("refused"))
    with refusal, pytest.raises(RuntimeError, match="refused"):
        backends.call_or_skip(CASES["gru"], "scan", CPU, None)


def test_on_cuda_a_refusal_is_left_out_but_for_the_baseline():
    cuda = torch.device("cuda")
    triton = {"triton": mock.MagicMock(), "triton.errors": SimpleNamespace(TritonError=ValueError)}
    refusal = mock.patch.object(backends, "called", side_effect=RuntimeError("refused"))
    with refusal, mock.patch.dict("sys.modules", triton):
        with pytest.raises(pytest.skip.Exception, match="refused"):
            backends.call_or_skip(CASES["gru"], "scan-compiled", cuda, None)
        with pytest.raises(RuntimeError, match="refused"):
            backends.call_or_skip(CASES["gru"], "pad", cuda, None)


# -- recurrent_modes -------------------------------------------------------------


@pytest.mark.parametrize("cell", modes.CELLS)
def test_modes_agree(small, cell):
    module, sequences = modes.make_module(cell, 5, CPU), modes.make_sequences(cell, 7, 2, CPU)
    assert max(modes.mode_errors("sequential", module, sequences).values()) < modes.TOLERANCE


@pytest.mark.parametrize("cell", modes.CELLS)
def test_a_state_that_is_not_carried_is_found(small, cell):
    def forgetful(module, sequences):
        with modes.set_recurrent_mode(False):
            steps = [module(step.copy())["features"] for step in sequences.unbind(1)]
        return torch.stack(steps, 1)

    module, sequences = modes.make_module(cell, 5, CPU), modes.make_sequences(cell, 7, 2, CPU)
    with mock.patch.dict(modes.FORWARD, sequential=forgetful):
        found = modes.mode_errors("sequential", module, sequences)
    assert min(found.values()) > 10 * modes.TOLERANCE


@pytest.mark.parametrize("mode", modes.MODES)
def test_mode_entries_merge(small, mode):
    forward, both = (
        noted(bench, CPU, "lstm", 7, 1, mode)
        for bench in (modes.bench_forward, modes.bench_forward_and_backward)
    )
    assert forward["key"] == both["key"] == f"lstm-{mode}-t7-r1"
    assert not forward["metrics"] & both["metrics"]


@pytest.mark.parametrize("name", modes.POLICIES)
def test_collection_entry(small, name):
    entry = noted(modes.bench_collection, CPU, 5, name)
    exact = entry["exact"]
    assert exact["state_bytes_per_frame"] == modes.expected_state_bytes(name, 5)
    assert exact["bytes_per_frame"] > exact["state_bytes_per_frame"]
    assert ("output_error" in exact) == (name in modes.CELLS)
    assert len(entry["sampled"]["time_vs_ff"]) == modes.LEAST_ROUNDS


@pytest.mark.parametrize("cell", modes.CELLS)
def test_collected_features_that_no_replay_gives_are_found(small, cell):
    collector = modes.make_collector(cell, 5, CPU)
    batch = collector.rollout().clone()
    collector.shutdown()
    _, module = modes.make_policy(cell, 5, CPU)
    assert batch["is_init"].sum() > 1
    assert modes.replay_error(batch, module, CPU) < modes.TOLERANCE
    leaky = batch.clone()
    leaky["is_init"][1:] = False
    assert modes.replay_error(leaky, module, CPU) > 10 * modes.TOLERANCE


@guards("primed-states-unread")
def test_environment_of_the_primed_policy_carries_states_that_nothing_reads(small):
    ff, primed = (modes.make_policy(name, 5, CPU)[0] for name in ("ff", "ff-primed"))
    assert ff.in_keys == primed.in_keys == ["observation"]
    assert modes.expected_state_bytes("ff-primed", 5) == modes.expected_state_bytes("lstm", 5)


@guards("feed-forward-same-size")
@pytest.mark.parametrize("hidden", modes.HIDDEN_SIZES)
def test_feed_forward_policy_is_about_the_size_of_the_lstm(hidden):
    counts = [
        sum(parameter.numel() for parameter in modes.make_policy(name, hidden, CPU)[0].parameters())
        for name in ("ff", "lstm")
    ]
    assert 0.7 < counts[0] / counts[1] < 1


def test_rounds_are_paired():
    calls, benchmark = [], Benchmark()
    ours, ratios = modes.Rounds(
        benchmark, CPU, lambda: calls.append("ours"), lambda: calls.append("baseline")
    ).run()
    assert calls == ["baseline", "ours"] * (len(calls) // 2)
    assert len(ours) == len(ratios) == len(benchmark.seconds)
    assert len(calls) == 2 * (1 + modes.WARMUP_ROUNDS + len(benchmark.seconds))
