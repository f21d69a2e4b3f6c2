"""The page on collectors: its suites run small, its sentences against the record, internals."""

import functools
import inspect
import re
import time
import warnings
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torchrl
from tensordict import TensorDict
from torchrl.collectors import (
    AsyncBatchedCollector,
    Collector,
    MultiAsyncCollector,
    MultiCollector,
    MultiSyncCollector,
)
from torchrl.collectors.distributed import RayCollector
from torchrl.envs import StepCounter, TransformedEnv

from benchmarks import interleaved
from benchmarks.counting_env import (
    EPISODE,
    Counting,
    StepCost,
    check_actions,
    check_frames,
    make_policy,
)
from benchmarks.suites import bench_collector_knobs as knobs
from benchmarks.suites import bench_collectors as suite
from tests.support import ROOT
from tests.support.claims import guards
from tests.support.evidence_module import load_evidence
from tests.support.suites import COMMITTED, CPU, noted
from tests.support.suites import recorded as recorded_of


@pytest.fixture(autouse=True)
def small():
    sizes = [
        (suite, {"FRAMES": 8, "ROUND_SECONDS": 0, "LEAST_ROUNDS": 2, "MOST_ROUNDS": 2}),
        (suite, {"TRAP_PAUSE": 0, "TRAP_ROUNDS": 1}),
        (knobs, {"SECONDS": 0}),
        (interleaved, {"LEAST_ROUNDS": 2, "WARMUP_ROUNDS": 1}),
    ]
    threads = torch.get_num_threads()
    patches = [mock.patch.object(where, name, v) for where, by in sizes for name, v in by.items()]
    for patch in patches:
        patch.start()
    yield
    for patch in patches:
        patch.stop()
    torch.set_num_threads(threads)


# -- The frames ------------------------------------------------------------------


@functools.cache
def two_batches():
    collector = Collector(
        Counting(0),
        make_policy(),
        frames_per_batch=EPISODE - 10,
        total_frames=-1,
        auto_register_policy_transforms=False,
    )
    batches = iter(collector)
    found = [next(batches), next(batches)]
    collector.shutdown()
    return found


def test_true_frames_pass():
    assert check_frames(two_batches()) == 2 * (EPISODE - 10)
    check_actions(two_batches()[1], make_policy())


def spoiled(number, key, row, value):
    batches = [batch.clone() for batch in two_batches()]
    batches[number][key][row] = value
    return batches


@pytest.mark.parametrize(
    "batches",
    [
        lambda: two_batches()[::-1],
        lambda: [two_batches()[0], two_batches()[0]],
        lambda: [two_batches()[0], two_batches()[1][1:]],
        lambda: [two_batches()[0][torch.arange(EPISODE - 10).roll(1)]],
        lambda: spoiled(0, ("next", "done"), 3, True),
        lambda: spoiled(1, ("next", "done"), 9, False),
        lambda: spoiled(0, ("next", "observation"), 3, 0.0),
    ],
)
def test_a_wrong_frame_is_found(batches):
    with pytest.raises(AssertionError):
        check_frames(batches())


def test_a_frame_that_comes_twice_is_found_where_gaps_are_allowed():
    first, second = two_batches()
    assert check_frames([first, second[5:]], contiguous=False)
    with pytest.raises(AssertionError):
        check_frames([second, first], contiguous=False)
    with pytest.raises(AssertionError):
        check_frames([first[torch.tensor([0, 2])]], contiguous=False)


def test_a_wrong_action_is_found():
    with pytest.raises(AssertionError):
        check_actions(spoiled(0, "action", 3, 7.0)[0], make_policy())


def test_no_frames_are_no_proof():
    with pytest.raises(AssertionError, match="no frames"):
        check_frames([])


def test_the_cost_of_a_step_reaches_another_copy(tmp_path):
    step_cost = StepCost(tmp_path / "cost")
    twin = step_cost.__reduce__()[0](*step_cost.__reduce__()[1])
    with mock.patch("time.sleep") as sleep:
        step_cost.set(2, "sleep")
        twin.spend(0.5)
        step_cost.set(0, "none")
        twin.spend()
    sleep.assert_called_once_with(0.001)
    with pytest.raises(AssertionError):
        step_cost.set(2, "none")


# -- The suites, small -----------------------------------------------------------


def test_throughput_of_one_process(tmp_path):
    kept = suite.Kept(StepCost(tmp_path / "cost"), CPU)
    for name, workers in (("rollout", 1), ("collector", 1), ("serial", 2)):
        said = noted(suite.bench_throughput, CPU, kept, name, workers, (0, "none"))
        assert said["key"] == f"throughput-n{workers}-{name}-none-0"
        assert said["parameters"]["workers"] == workers
        assert ("vs_collector" in said["sampled"]) is (name != "rollout")
        if name == "collector":
            assert median(said["sampled"]["vs_collector"]) == pytest.approx(1)
    kept.close()


@pytest.mark.usefixtures("forkserver")
def test_workers(tmp_path):
    """Both collectors with workers, and what they do to the threads of this process."""
    kept = suite.Kept(StepCost(tmp_path / "cost"), CPU)
    for name in ("multi-sync", "multi-async"):
        entry = noted(suite.bench_throughput, CPU, kept, name, 2, (0, "none"))
        assert entry["key"] == f"throughput-n2-{name}-none-0"
    trap = noted(suite.bench_trap, CPU, kept, 1)
    assert set(trap["sampled"]) == {"frames_per_second", "vs_steady"}
    kept.close()
    check_threads(tmp_path)


@guards("collector-threads-reduced")
def check_threads(tmp_path):
    with mock.patch.object(torchrl, "_THREAD_POOL_INIT", 8):
        torch.set_num_threads(5)
        collector = knobs.make_workers({}, StepCost(tmp_path / "threads"))
        assert torch.get_num_threads() == 5 - 2
        collector.shutdown()
        assert torch.get_num_threads() == 5
        torch.set_num_threads(1)
        collector = knobs.make_workers({}, StepCost(tmp_path / "threads"))
        assert torch.get_num_threads() == 1
        collector.shutdown()
        assert torch.get_num_threads() == 1 + 2, "more than before"


IN_ONE_PROCESS = ("no-traj-ids", "compact-image", "split-trajs", "max-frames", "random-frames")


@pytest.mark.filterwarnings("ignore:split_trajs=True produces a:UserWarning")
@pytest.mark.parametrize("key", IN_ONE_PROCESS)
def test_knob(key):
    with mock.patch.object(knobs, "IMAGE_BYTES", 4000):
        said = noted(knobs.measure_knob, CPU, key, knobs.KNOBS[key])
    turned, default = (said["exact"][f"bytes_per_frame{end}"] for end in ("", "_off"))
    small_step_count = 2 * torch.int64.itemsize
    wanted = {
        "no-traj-ids": turned == default - torch.int64.itemsize,
        "compact-image": turned < default - knobs.SMALL_BYTES,
        "split-trajs": turned > default,
        "max-frames": turned >= default + small_step_count,
        "random-frames": turned == default,
    }
    assert wanted[key], (turned, default)


@pytest.mark.parametrize("way", ["direct", "row by row"])
def test_buffer(way):
    assert noted(knobs.bench_buffer, CPU, way)["sampled"].keys() == {"time_vs_off"}


def test_a_wrong_action_fails_the_suite():
    side = knobs.Side(knobs.make_collector({}, hidden_units=8), knobs.FRAMES)
    side.collect()
    side.close()
    with pytest.raises(AssertionError):
        knobs.check(side)  # it takes the policy for one of HIDDEN_UNITS


def test_every_knob_of_the_suite_is_an_argument():
    arguments = inspect.signature(Collector.__init__).parameters
    for knob in knobs.KNOBS.values():
        assert set(knob.options) <= set(arguments)


# -- Internals -------------------------------------------------------------------


def source_of(module):
    return Path(module.__file__).read_text("utf-8")


@guards("busy-and-sleep-steps", "collector-suite-common-settings")
def test_what_a_step_costs(tmp_path, monkeypatch):
    monkeypatch.undo()
    step_cost = StepCost(tmp_path / "cost")
    step_cost.set(5, "busy")
    begin = time.thread_time()
    step_cost.spend()
    assert time.thread_time() - begin >= 0.005
    source = source_of(suite)
    assert "\nFRAMES = 64  #" in source
    assert source.count("check_frames(") == 3


@guards("auto-transport-requirements", "direct-fallback-logged")
def test_auto_falls_back():
    processes = {"env_backend": "multiprocessing", "transport": "auto", "frames_per_batch": 4}
    factory = {"policy_factory": make_policy}
    one = [functools.partial(Counting, 0)]
    for options, backend in (
        (processes | factory, "process"),
        (processes | {"policy": make_policy()}, "thread"),
        (processes | factory | {"env_backend": "threading"}, "thread"),
        (processes | factory | {"envs_per_worker": 2}, "thread"),
    ):
        assert AsyncBatchedCollector(one, **options).server_backend == backend


@guards("sync-default-asynchronous")
def test_without_sync():
    with mock.patch.object(MultiAsyncCollector, "__init__", return_value=None) as made:
        collector = Collector(list, num_collectors=2, frames_per_batch=4)
    assert type(collector) is MultiAsyncCollector
    made.assert_called_once()


@pytest.mark.parametrize(
    ("sync", "kind"), [(True, MultiSyncCollector), (False, MultiAsyncCollector)]
)
@guards("multi-collector-dispatches")
def test_multi_collector_gives_the_same_classes(sync, kind):
    with mock.patch.object(kind, "__init__", return_value=None):
        assert type(MultiCollector([list], frames_per_batch=4, sync=sync)) is kind


@guards("ray-default-class-takes-one-worker")
def test_an_actor_of_ray_gives_its_collector_a_list():
    made = mock.Mock()
    actor = SimpleNamespace(
        collector_class=mock.Mock(), _make_collector=made, _remote_collectors=[]
    )
    RayCollector.add_collectors(actor, [list], 2, None, [{}], [None])
    makers = made.call_args.kwargs["env_maker"]
    assert makers == [list, list]
    assert inspect.signature(RayCollector).parameters["collector_class"].default is Collector
    inside = Collector.__new__(Collector)  # as in an actor, which calls no metaclass
    with pytest.raises(TypeError, match="'list' object is not callable"):
        Collector.__init__(inside, makers, frames_per_batch=4)


@guards("workers-do-not-warn")
def test_workers_do_not_warn(recwarn):
    warnings.simplefilter("always")
    torchrl._utils._ProcessNoWarn(target=warnings.warn, args=["old"]).run()  # in this process
    assert not recwarn


@guards("second-counter-refused")
def test_no_second_counter():
    counted = TransformedEnv(Counting(0), StepCounter())
    with pytest.raises(ValueError, match="'step_count' key is already present"):
        Collector(counted, None, frames_per_batch=4, max_frames_per_traj=2)


@guards("async-queue-one-batch")
def test_the_queue_holds_one_batch():
    assert MultiAsyncCollector._queue_len.fget(None) == 1


@guards("env-backend-default-changes")
def test_the_default_of_env_backend_changes():
    with pytest.warns(FutureWarning, match="env_backend='multiprocessing'"):
        AsyncBatchedCollector([Counting], policy=make_policy(), frames_per_batch=4)


@guards("trusted-policy-not-wrapped")
def test_a_policy_that_reads_a_tensordict_is_not_wrapped_anyway():
    policy = make_policy()
    for trusted in (False, True):
        collector = Collector(
            Counting(0),
            policy,
            frames_per_batch=4,
            trust_policy=trusted,
            auto_register_policy_transforms=False,
        )
        assert collector._wrapped_policy is policy
        collector.shutdown()


@guards("plain-rollout-keeps-nothing")
def test_a_rollout_begins_anew():
    env = Counting(0)
    starts = [env.rollout(3)["observation"][0, 1:].tolist() for _ in range(2)]
    assert starts == [[0, 0], [1, 0]]


@guards("collector-script-prints-rates", "collector-cast-same-actions")
def test_the_run_computes_what_the_page_shows(capsys):
    run = load_evidence("collectors/choice")
    verdict = run.advise(run.Steps, frames=4, cores=1)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 5
    assert printed[-1] == verdict
    assert verdict.startswith(("Collector", "MultiSyncCollector"))
    gap = TensorDict({"observation": torch.tensor([[0, 1], [0, 3], [1, 5], [1, 6]])}, [4])
    assert run.gaps([gap]) == 1
    assert run.gaps([gap[2:]]) == 0


# -- The record ------------------------------------------------------------------


def recorded(key, metric, of="collectors"):
    return recorded_of(of, key, metric)


def rate(name, workers, wait, step_ms):
    key = suite.key_of(name, workers, (step_ms, wait))
    return recorded(key, "frames_per_second")


def gain(name, workers, wait, step_ms):
    return recorded(suite.key_of(name, workers, (step_ms, wait)), "vs_collector")


def knob(key, metric="time_vs_off"):
    return recorded(key, metric, "collector_knobs")


def quartile(key, which, metric="time_vs_off", of="collector_knobs"):
    return recorded_of(of, key, metric, which)


def situations(workers):
    return [(wait, step_ms) for step_ms, wait in suite.WORKERS[workers]]


def beats(key, other, metric="frames_per_second", of="collectors"):
    """Whether the quartiles lie apart."""
    return quartile(key, "q1", metric, of) > quartile(other, "q3", metric, of)


@guards(
    "collector-records-two-cores",
    "multi-sync-short-answer",
    "workers-gain-everywhere",
    "async-never-clearly-slower",
)
def test_workers_gain():
    assert COMMITTED.find("collectors", "cpu")["machine"]["cores"] == 2
    for workers in (2, 4):
        for wait, step_ms in situations(workers):
            assert gain("multi-sync", workers, wait, step_ms) > 1.2, (wait, step_ms)
            names = ("multi-sync", "multi-async")
            keys = [suite.key_of(name, workers, (step_ms, wait)) for name in names]
            assert not beats(*keys), keys


@guards("serial-batching-no-gain", "free-steps-batching-gains")
def test_serial():
    for workers in (2, 4):
        for wait, step_ms in situations(workers):
            if step_ms:
                assert gain("serial", workers, wait, step_ms) < 1.15, (wait, step_ms)
    assert 1 < gain("serial", 2, "none", 0) < gain("serial", 4, "none", 0)
    serial, workers = (suite.key_of(name, 4, (0, "none")) for name in ("serial", "multi-sync"))
    assert beats(serial, workers, "vs_collector")


@guards("threads-help-waiting-steps", "threads-not-computing-steps", "threads-lose-free-steps")
def test_parallel():
    for step_ms in (1, 10):
        assert gain("parallel", 2, "sleep", step_ms) > 0.8 * gain("multi-sync", 2, "sleep", step_ms)
    for step_ms in (1, 10):
        assert gain("parallel", 2, "busy", step_ms) < 1.05
    assert gain("parallel", 2, "none", 0) < 0.95


@guards("one-worker-nothing-shared", "plain-rollout-faster-free")
def test_one_environment():
    for name in ("multi-sync", "multi-async"):
        assert 0.85 < gain(name, 1, "none", 0) < 1.2
    assert rate("rollout", 1, "none", 0) > 1.05 * rate("collector", 1, "none", 0)


@guards(
    "waiting-steps-more-workers", "waiting-four-workers-faster", "computing-four-workers-slower"
)
def test_number_of_workers():
    for name in ("multi-sync", "multi-async"):
        assert 1.7 < rate(name, 4, "sleep", 1) / rate(name, 2, "sleep", 1) < 2.1
    for situation in (("busy", 1), ("none", 0)):
        assert rate("multi-sync", 4, *situation) < rate("multi-sync", 2, *situation)


@guards("async-batched-slower-here", "backend-by-step-cost")
def test_async_batched():
    for workers in (2, 4):
        for wait, step_ms in situations(workers):
            multi = rate("multi-sync", workers, wait, step_ms)
            for name in ("batched-threads", "batched-processes", "batched-slots"):
                assert rate(name, workers, wait, step_ms) < multi, (name, workers, wait, step_ms)
    assert rate("batched-threads", 2, "busy", 10) < rate("batched-processes", 2, "busy", 10)
    for step_ms in (1, 10):
        threads, processes = (
            rate(f"batched-{name}", 2, "sleep", step_ms) for name in ("threads", "processes")
        )
        assert threads > processes


@guards("auto-transport-fastest", "min-batch-size-waits")
def test_messages_of_async_batched():
    assert quartile("batched-slots", "q3") < 0.9
    assert quartile("batched-slots-chunk", "q1") > 2
    assert quartile("batched-processes-queue", "q1") > 4
    assert knob("batched-threads-min-batch") < 1


@guards("no-discard-rate-high", "discard-leaves-scatter", "async-first-timing-misleads")
def test_trap():
    def ratio(discarded):
        return recorded(f"trap-{discarded}", "vs_steady")

    assert (suite.TRAP_TIMED, suite.TRAP_WORKERS) == (4, 2)
    later = [ratio(discarded) for discarded in suite.TRAP_DISCARDED[1:]]
    assert ratio(0) > max(1.2, 1.2 * max(later))
    assert max(later) < 1.15


@guards("discard-and-whole-rounds", "suites-discard-batches")
def test_the_suite_times_whole_rounds():
    running = suite.Running.__new__(suite.Running)
    running.name, running.workers = "multi-async", 3
    assert (running.ready, running.cycle) == (5, 3)


@guards("spawned-workers-import-anew", "fork-server-imports-once")
def test_start():
    def start(method):
        return recorded(f"start-{method}", "start_time")

    assert start("spawn") > 5 * start("forkserver")
    assert start("forkserver-first") > 5 * start("forkserver")
    assert 'mp.set_start_method("spawn")' in source_of(torchrl)


@guards(
    "small-batches-lose",
    "batch-size-levels-off",
    "no-buffers-new-tensors",
    "cat-results-no-difference",
)
def test_batches():
    assert quartile("frames-8", "q1") > 1.05
    assert knob("frames-32") < knob("workers-frames-32")
    for frames in (32, 512):  # the second size of the chart, and the last
        assert 0.95 < knob(f"frames-{frames}") < 1.05
    assert quartile("workers-frames-512", "q3") < 0.95
    assert quartile("workers-no-buffers", "q1") > 1.2 > quartile("no-buffers", "q3")
    for key in ("cat-0", "cat-last"):
        assert quartile(key, "q1") < 1 < quartile(key, "q3"), key
    assert quartile("split-trajs", "q3") < 1.05
    assert knob("split-trajs", "bytes_per_frame") > knob("split-trajs", "bytes_per_frame_off")


def test_the_chart_of_batch_sizes_names_the_size_that_it_compares_with():
    record = COMMITTED.find("collector_knobs", "cpu")
    frames = record["benchmarks"]["no-buffers"]["parameters"]["frames_per_batch"]
    page = (ROOT / "docs" / "performance" / "collectors.rst").read_text("utf-8")
    assert re.search(rf":baseline: .*\b{frames} frames", page)


@guards("ids-option-one-process")
def test_collectors_with_workers_always_number_trajectories():
    for kind in (MultiSyncCollector, MultiAsyncCollector):
        with pytest.raises(TypeError, match="track_traj_ids"):
            kind([Counting], frames_per_batch=4, track_traj_ids=False)


@guards("preemption-uneven-workers", "preemption-even-workers")
def test_preemption():
    assert 0.5 < knob("preempt-uneven", "time_per_kept_frame") < 0.65
    assert 0.95 < knob("preempt-even", "time_per_kept_frame") < 1.05
    assert knobs.WORKER_KNOBS["preempt-uneven"][2] == (1.0, 0.25)


@guards(
    "slow-step-dwarfs-knobs",
    "knobs-that-save-time",
    "knobs-that-cost-most",
    "compact-obs-halves-bytes",
    "trust-policy-no-gain",
)
def test_steps():
    compiled = [f"compile-h{units}" for units in knobs.COMPILED_UNITS]
    keys = [
        "no-traj-ids",
        "compact-small",
        "compact-image",
        "trust-policy",
        "random-frames",
        "max-frames",
        "cudagraph",
        *compiled,
    ]
    found = {key: knob(key) for key in keys}
    a_frame = 1 / rate("collector", 1, "none", 0)
    for key in set(keys) - {"compile-h1024", "compact-image"}:
        assert abs(found[key] - 1) * a_frame < 0.1e-3, key
    assert max(found[key] for key in ("no-traj-ids", *compiled)) < 0.9
    assert set(sorted(found, key=found.get)[-2:]) == {"max-frames", "cudagraph"}
    assert 1 < found["compact-image"] < 1.1
    assert quartile("trust-policy", "q1") < 1 < quartile("trust-policy", "q3")
    halved = knob("compact-image", "bytes_per_frame") / knob("compact-image", "bytes_per_frame_off")
    assert halved == pytest.approx(0.5, rel=0.01)


@guards("first-policy-compiled-first", "compiler-already-loaded", "compiled-policies-save-time")
def test_compilation():
    assert knobs.COMPILED_UNITS == (64, 1024)
    first, second = (knob(f"compile-h{units}", "first_batch_time") for units in (64, 1024))
    assert first > 5 * second
    for units in knobs.COMPILED_UNITS:
        assert knob(f"compile-h{units}") == pytest.approx(0.75, abs=0.05)
        assert knob(f"compile-h{units}", "break_even_frames") > 1000


@guards("direct-write-loses-time", "stacked-batch-cheaper", "extend-step-by-step")
def test_direct_write():
    assert quartile("buffer-direct", "q1") > 1.1
    assert quartile("buffer-row-by-row", "q1") > quartile("buffer-direct", "q3")


@guards("collector-takes-threads-away", "threads-at-import-kept", "idle-cores-during-update")
def test_recorded_threads():
    record = COMMITTED.find("collector_knobs", "cpu")
    assert knob("threads-given", "threads_during") == knobs.THREADS_BEFORE == 2
    assert knob("threads-default", "threads_during") == 1
    assert knob("threads-default", "threads_after") == record["taken"]["threads"] == 1
    assert knob("threads-default") > 1.5
    assert 0.9 < knob("threads-given") < 1.1


@guards("random-frame-time", "trust-policy-no-speed-knob")
def test_small_ones():
    assert knob("random-frames") < 1
    assert 0.9 < knob("trust-policy") < 1.1
    assert knob("update-each-batch") > 1
