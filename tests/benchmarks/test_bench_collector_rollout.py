"""The suite collector_rollout, run small: bytes, calls and structure, never a time."""

from unittest import mock

import pytest
import torch

from benchmarks import measure
from benchmarks.record import has_gaps
from benchmarks.suites import bench_collector_rollout as bench
from tests.support.claims import guards
from tests.support.suites import COMMITTED

SUITE = "collector_rollout"
TAKEN = {device for suite, device in COMMITTED.taken() if suite == SUITE}

FRAMES = 60  # more than COMPARED_FRAMES, few enough for a test
ROUNDS = 2
PARTS = ("policy_time", "env_step_time", "carrier_time")
SEEN = ("_wrapped_policy", "_sync_policy", "_sync_env", "_sync_storage", "_update_traj_ids")
INSIDE = ("cast_time", "sync_time", "ids_time")


@pytest.fixture(scope="module", autouse=True)
def small():
    with (
        mock.patch.object(bench, "FRAMES", FRAMES),
        mock.patch.object(measure, "ROUNDS", ROUNDS),
        mock.patch.object(measure, "WARMUP_ROUNDS", 1),
    ):
        yield


@pytest.fixture(scope="module")
def sampled():
    return bench.sample(torch.device("cpu"))


def watched(key, **changed):
    """A watch after one rollout, its batch, and the collector's arguments changed."""
    title, arguments = bench.CONFIGURATIONS[key]
    with mock.patch.dict(bench.CONFIGURATIONS, {key: (title, arguments | changed)}):
        watch = bench.Watch(bench.make_collector(key))
    batch = watch.rollout()
    watch.collector.shutdown()
    return watch, batch


@guards("ids-can-be-left-out")
def test_ids_cost_eight_bytes_a_frame(sampled):
    _, exact, batches = sampled
    on, off = (exact[key]["bytes_per_frame"] for key in ("ids-on", "ids-off"))
    assert on > off
    assert on - off == torch.int64.itemsize
    assert "collector" in batches["ids-on"]
    assert "collector" not in batches["ids-off"]


def test_every_cpu_configuration_takes_part(sampled):
    samples, exact, batches = sampled
    keys = {*bench.FLOWS, *bench.IDS}
    assert set(samples) == set(exact) == set(batches) == keys
    declared = set(bench.METRICS)
    for key in keys:
        assert set(samples[key]) | set(exact[key]) <= declared
        assert all(len(values) == ROUNDS for values in samples[key].values())


def test_parts_add_up_to_the_step(sampled):
    samples, _, _ = sampled
    for key in bench.FLOWS:
        found = samples[key]
        for turn, step in enumerate(found["step_time"]):
            parts = [found[part][turn] for part in PARTS]
            assert min(parts) > 0
            assert sum(parts) == pytest.approx(step)
            assert sum(found[part][turn] for part in INSIDE) < found["carrier_time"][turn]


def test_more_devices_more_casts(sampled):
    _, exact, _ = sampled
    casts = [exact[key]["casts_per_step"] for key in bench.FLOWS]
    assert casts == sorted(set(casts)) == [0, 1, 3]
    assert [exact[key]["syncs_per_step"] for key in bench.FLOWS] == casts


@pytest.mark.parametrize("key", [*bench.FLOWS, *bench.CUDA_FLOWS])
def test_calls_follow_from_the_arguments(key):
    """Those of a CUDA key with the CPU's other name in place of CUDA."""
    arguments = bench.CONFIGURATIONS[key][1]
    named = {name: "cpu:0" for name, value in arguments.items() if value == "cuda"}
    watch, _ = watched(key, **named)
    assert watch.calls_per_step() == bench.expected_calls(key)


def test_every_configuration_sees_the_same_frames(sampled):
    _, _, batches = sampled
    default = batches["flow-defaults"]["observation"]
    for batch in batches.values():
        assert torch.equal(batch["observation"], default)


def test_simulated_cast_copies():
    """Without a copy in it, the simulation would not stand for two devices."""
    tensor = torch.zeros(1)
    assert torch.device("cpu:0") != torch.device("cpu")
    assert tensor.to("cpu:0").data_ptr() != tensor.data_ptr()


@pytest.mark.parametrize("name", SEEN)
def test_renamed_member_stops_the_watch(name):
    """A part that is not found is an error, not a time of zero."""
    collector = bench.make_collector("flow-defaults")
    found = {key: getattr(collector, key) for key in ("env", *SEEN) if key != name}
    collector.shutdown()
    with pytest.raises(AttributeError, match=name):
        bench.Watch(type("Collector", (), found)())


def test_calls_that_vary_between_steps_are_refused():
    watch, _ = watched("flow-defaults")
    watch.calls[2]["cast"] += 1
    with pytest.raises(AssertionError):
        watch.calls_per_step()


# -- Committed records ---------------------------------------------------------


@pytest.mark.parametrize("device", sorted(TAKEN | {"cpu"}))
def test_record_says_what_the_arguments_say(device):
    record = COMMITTED.find(SUITE, device)
    benchmarks = record["benchmarks"]
    flows = bench.FLOWS | (bench.CUDA_FLOWS if device == "cuda" else {})
    if device == "cuda" and has_gaps(record):
        return
    for key in flows:
        found = benchmarks[key]["metrics"]
        assert {name: found[name]["median"] for name in bench.expected_calls(key)} == (
            bench.expected_calls(key)
        )
    on, off = (benchmarks[key]["metrics"]["bytes_per_frame"]["median"] for key in bench.IDS)
    assert on - off == torch.int64.itemsize
