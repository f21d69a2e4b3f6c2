"""The suite profiling, run small; what the page on profiling says of TorchRL and of the record."""

import inspect
import pickle
import re
import warnings
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch.profiler import ProfilerAction, ProfilerActivity
from torchrl import _utils, timeit
from torchrl.collectors import Collector, MultiCollector, ProfileConfig
from torchrl.collectors._base import _ProfilerHook
from torchrl.data.utils import CloudpickleWrapper
from torchrl.envs import GymEnv

from benchmarks.suites import bench_loss_traces as traces
from benchmarks.suites import bench_profiling as suite
from tests.support.claims import guards
from tests.support.evidence_module import load_evidence
from tests.support.suites import CPU
from tests.support.suites import noted as entry_of
from tests.support.suites import recorded as recorded_of

# -- The suite --------------------------------------------------------------------


@pytest.fixture(scope="module")
def small():
    """Everything measured once, with one armed process and one round.

    The process without the variable is this one again. Ways with stacks are left out: their traces
    take seconds to write.
    """
    left_out = [*suite.SLOW, "profiler-shapes"]
    ways = {way: said for way, said in suite.WAYS.items() if way not in left_out}
    child = suite.Child

    def start(device, armed):
        return child(device, armed) if armed else InProcess(device)

    class InProcess(suite.Bench):
        def close(self):
            self.training.close()

    sizes = {"ROUNDS": 1, "TRACES": 2, "RANGE_CALLS": 300, "RANGE_ROUNDS": 3}
    sizes |= {"WAYS": ways, "PROFILED": [way for way in suite.PROFILED if way in ways]}
    with mock.patch.multiple(suite, Child=start, **sizes):
        suite.measured.cache_clear()
        suite.measured(CPU)
        yield ways
        suite.measured.cache_clear()


def entry(bench, *arguments):
    """What *bench* notes, and the values of each metric."""
    found = entry_of(bench, CPU, *arguments)
    exact = {name: [value] for name, value in found["exact"].items()}
    return found, {found["timing"]: found["seconds"], **found["sampled"], **exact}


@pytest.mark.parametrize("view", suite.VIEWS)
def test_ranges_lie_in_what_is_drawn_around_them(small, view):
    around = []
    for index, (depth, name) in enumerate(suite.VIEWS[view]):
        noted, metrics = entry(suite.bench_ranges, view, index)
        assert noted["key"] == f"{view}-{index:02}"
        said = noted["parameters"]
        assert (said["lane"], said["depth"], said["name"]) == ("driver", depth, name)
        (start,), (duration,) = metrics["start"], metrics["duration"]
        del around[depth:]
        if around:
            first, last = around[-1]
            assert first <= start
            assert start + duration <= last + 1e-9
        around.append((start, start + duration))


def test_parts_fill_the_iteration(small):
    found = {part: entry(suite.bench_parts, part) for part in suite.PARTS}
    for number in range(2):
        shares = [metrics["share"][number] for _, metrics in found.values()]
        assert sum(shares) == pytest.approx(100)
        assert min(shares) > 0
    for noted, metrics in found.values():
        assert all(0 <= share <= 100 for share in metrics["python_share"]), noted["key"]
    calls = {part: metrics["calls"] for part, (_, metrics) in found.items()}
    assert calls["policy"] == calls["env"] == [suite.FRAMES]
    updates = suite.EPOCHS * suite.FRAMES // suite.MINIBATCH
    assert calls["loss"] == calls["backward"] == [updates]


def test_halves_leave_little_of_the_iteration(small):
    found = [entry(suite.bench_halves, half)[1] for half in suite.HALVES]
    for metric in ("share", "plain_share"):
        for shares in zip(*(metrics[metric] for metrics in found), strict=True):
            assert 50 < sum(shares) <= 100
    assert {len(metrics["plain_time"]) for metrics in found} == {2}


def test_every_way_has_its_metrics(small):
    for way in small:
        noted, metrics = entry(suite.bench_overhead, way)
        wanted = {"iteration_time", "time_vs_off"}
        if way in suite.PROFILED:
            wanted |= {"finish_time", "trace_bytes", "trace_vs_profiler", "events_per_frame"}
        assert set(metrics) == wanted
        assert {len(values) for values in metrics.values()} == {suite.ROUNDS}
        assert noted["parameters"]["variable_set"] == ("armed" in way)


def test_allocations_make_a_larger_trace(small):
    ways = ("profiler", "profiler-memory")
    plain, larger = (entry(suite.bench_overhead, way)[1]["trace_bytes"] for way in ways)
    assert max(plain) < min(larger)


def test_every_kind_of_range_costs_something(small):
    for kind in suite.RANGE_KINDS:
        noted, metrics = entry(suite.bench_range_cost, kind)
        assert noted["key"] == f"range-{kind}"
        assert len(metrics["range_time"]) == 3
        assert max(metrics["range_time"]) > 0


def test_a_way_that_changes_the_loss_is_found():
    bench = SimpleNamespace(loss=0.5)
    assert suite.alike([0.5], bench)
    assert not suite.alike([0.501], bench)
    assert not suite.alike([], bench)


def event(name, start, end, category="user_annotation"):
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": end - start}


TRACE = [
    event("Collector.policy", 2e6, 4e6),
    event("aten::addmm", 2.5e6, 3.5e6, "cpu_op"),
    event("aten::copy_", 2.6e6, 2.7e6, "cpu_op"),  # inside addmm, and counted with it
    event("iteration", 0, 10e6),
    event("collect", 1e6, 6e6),
    event("Collector.rollout", 1e6, 6e6),
    event("loss", 6e6, 9e6),
    event("elsewhere", 20e6, 30e6),
    {"ph": "i", "name": "no range", "ts": 1},
]


def test_a_trace_is_read_as_a_tree():
    root = suite.read_ranges(TRACE)
    assert [(depth, found.name) for depth, found in root.walk()] == [
        (0, "iteration"),
        (1, "collect"),
        (2, "Collector.rollout"),
        (3, "Collector.policy"),
        (1, "loss"),
    ]
    assert root.own == pytest.approx(2)
    (policy,) = root.find("Collector.policy")
    assert policy.operators == [1.0]
    seconds, operators, calls = suite.parts_of(root)
    assert {part: s for part, s in seconds.items() if s} == pytest.approx(
        {"policy": 2, "collector": 3, "loss": 3, "rest": 2}
    )
    assert operators["policy"] == pytest.approx(1)
    assert calls["policy"] == calls["loss"] == 1


def test_a_range_that_nobody_expects_stops_the_suite():
    trace = [*TRACE, event("new", 7e6, 8e6)]
    with pytest.raises(AssertionError, match="'new' belongs to no part"):
        suite.parts_of(suite.read_ranges(trace))


# -- What the page says of TorchRL ---------------------------------------------------


@guards("unarmed-decorator-nothing")
def test_without_the_variable_nothing_is_wrapped():
    assert not _utils._PROFILING_ALLOWED
    assert _utils._maybe_record_function_decorator("range")(suite.nothing) is suite.nothing


@guards("profiling-variable-read-once")
def test_the_variable_is_read_by_the_module_itself(monkeypatch):
    monkeypatch.setenv(suite.VARIABLE, "0" if _utils._PROFILING_ALLOWED else "1")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _utils.set_profiling_enabled(True)
    assert [str(one.message) for one in caught if "was not set before" in str(one.message)]
    assert _utils._maybe_record_function("name") is _utils._NULL_CONTEXT


def named_ranges():
    """The first part of the name of every range in the installed package, by its file."""
    package = Path(_utils.__file__).parent
    pattern = r'_maybe_record_function(?:_decorator)?\(\s*"([^"]+)"'
    found = {}
    for path in package.rglob("*.py"):
        for name in re.findall(pattern, path.read_text("utf-8")):
            found.setdefault(path.relative_to(package).parts[0], set()).add(
                re.split(r"[./]", name)[0]
            )
    return found


@guards("ranges-beside-collectors", "no-ranges-elsewhere")
def test_which_classes_have_ranges():
    found = named_ranges()
    assert set(found) == {"collectors", "envs", "objectives"}
    assert found["envs"] == {"EnvBase", "SerialEnv", "ParallelEnv", "TransformedEnv"}
    assert "AsyncBatchedCollector" in found["collectors"]
    package = Path(_utils.__file__).parent / "objectives"
    with_ranges = {
        path.stem
        for path in package.rglob("*.py")
        if "@_maybe_record_function_decorator" in path.read_text("utf-8")
    }
    assert with_ranges == {"dreamer", "dreamer_v3", "world_model_loss"}


@guards("optimizer-writes-ranges", "optimizer-ranges-always")
def test_optimizers_name_themselves():
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = torch.optim.SGD([weight])
    with torch.profiler.profile() as profiler:
        optimizer.step()
        optimizer.zero_grad()
    names = {found.key for found in profiler.key_averages()}
    assert {"Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"} <= names


@guards("enable-profile-keywords", "profile-shapes-stacks-default", "knob-enable-profile-default")
def test_fields_are_keywords():
    parameters = inspect.signature(Collector.enable_profile).parameters
    assert set(parameters) - {"self"} == set(vars(ProfileConfig()))
    assert all(p.kind is p.KEYWORD_ONLY for name, p in parameters.items() if name != "self")
    assert parameters["with_stack"].default is parameters["record_shapes"].default is True


@guards("flops-of-products", "trace-ready-replaces-writer")
def test_a_handler_of_the_trace_replaces_the_writer(tmp_path):
    config = ProfileConfig(
        activities=["cpu"],
        with_flops=True,
        on_trace_ready=id,
        save_path=tmp_path / "folder" / "trace.json",
    )
    with pytest.warns(UserWarning, match="Profiler won't be using warmup"):
        profiler = _ProfilerHook(config)._build_profiler()
    assert profiler.on_trace_ready is id
    assert profiler.with_flops
    assert not (tmp_path / "folder").exists()
    image, line = torch.ones(1, 1, 4, 4), torch.ones(1, 1, 4)
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], with_flops=True) as profiler:
        torch.mm(image[0, 0], image[0, 0])
        torch.nn.functional.conv2d(image, image)
        torch.nn.functional.conv1d(line, line)
    counted = {event.key for event in profiler.key_averages() if event.flops}
    assert counted == {"aten::mm", "aten::conv2d"}


@guards("unknown-activity-silent")
def test_activities_that_are_left_out():
    with mock.patch("torch.cuda.is_available", return_value=False):
        assert ProfileConfig(activities=["gpu", "cuda"]).get_activities() == []
        assert len(ProfileConfig(activities=["CPU"]).get_activities()) == 1


@guards("missing-worker-silent")
def test_workers_that_do_not_exist():
    sent = []
    stub = SimpleNamespace(
        pipes=[SimpleNamespace(send=sent.append)],
        procs=[],
        num_workers=1,
        closed=False,
        _recv_and_check=lambda pipe, worker_idx: (None, "setattr"),
    )
    MultiCollector._install_profile_hooks(stub, ProfileConfig(workers=[0, 7]))
    assert len(sent) == 1


@guards("worker-stop-not-found")
def test_the_wrapper_of_the_hook_has_no_stop():
    hook = _ProfilerHook(ProfileConfig())
    there = pickle.loads(pickle.dumps(CloudpickleWrapper(hook)))
    assert callable(hook.stop)
    assert not hasattr(there, "stop")
    assert callable(there.fn.stop)


@guards("warmup-rollouts-unrecorded", "warmup-no-profiler")
def test_the_first_rollouts_are_skipped_and_not_warmed_up():
    hook = _ProfilerHook(ProfileConfig(warmup_rollouts=2, num_rollouts=4, activities=["cpu"]))
    with pytest.warns(UserWarning, match="Profiler won't be using warmup"):
        schedule = hook._build_profiler().schedule
    none, record, save = ProfilerAction.NONE, ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE
    assert [schedule(step) for step in range(5)] == [none, none, record, save, none]


@guards(
    "profile-replaces-hook",
    "worker-hook-lost",
    "profiler-takes-post-hook",
    "disable-profile-restores",
    "knob-enable-profile-default",
)
def test_the_hook_of_a_single_process_comes_back(tmp_path):
    called = []
    collector = Collector(
        GymEnv("CartPole-v1"),
        None,
        frames_per_batch=4,
        total_frames=-1,
        post_collect_hook=called.append,
    )
    assert collector.profile_config is None
    collector.enable_profile(
        activities=["cpu"], save_path=tmp_path / "trace.json", with_stack=False
    )
    batches = iter(collector)
    with pytest.warns(UserWarning, match="Profiler won't be using warmup"):
        next(batches)
    while not (tmp_path / "trace.json").exists():
        next(batches)
    next(batches)
    assert called == []
    collector.disable_profile()
    next(batches)
    assert len(called) == 1
    collector.shutdown()


@guards("first-iterations-not-counted")
@pytest.mark.parametrize(
    ("collecting", "updating", "half"), [(3, 1, "collection"), (1, 3, "update"), (1, 1, "both")]
)
def test_verdicts_of_the_check(collecting, updating, half):
    check, now = load_evidence("profiling/check"), [0.0]

    def spend(seconds):
        now[0] += seconds

    def batches():
        for number in range(7):
            spend(collecting if number > 1 else 1000)  # the first two warm up
            yield number

    with mock.patch.object(_utils.time, "time", side_effect=lambda: now[0]):
        said, share = check.which_half(batches(), lambda _: spend(updating))
    assert said.partition(":")[0] == half
    assert share == pytest.approx(collecting / (collecting + updating))


def told_times(*times):
    return mock.patch.object(_utils.time, "time", side_effect=times)


@guards("timeit-one-start", "timeit-recursion-wrong")
def test_one_timer_keeps_one_start():
    timeit.erase()
    timer = timeit("test/recursive")
    with told_times(0, 5, 6, 10), timer, timer:  # it should be 10, and 1 of the inner one
        pass
    assert timeit.todict(percall=False)["test/recursive"] == (6 - 5) + (10 - 5)
    timeit.erase()


@guards("timeit-table-per-process")
def test_timers_stay_in_the_process():
    assert type(timeit._REG) is dict


@guards("timeit-print-logs")
def test_print_goes_to_the_logger():
    with timeit("test/print"):
        pass
    with mock.patch.object(_utils.logger, "info") as logged:
        text = timeit.print()
    assert "test/print took" in text
    assert text.splitlines() == [call.args[0] for call in logged.call_args_list]


@guards("timeit-sync-waits", "timeit-sync-without-cuda")
@pytest.mark.parametrize("available", [True, False])
def test_sync_waits_before_each_time(available):
    with (
        mock.patch("torch.cuda.is_available", return_value=available),
        mock.patch("torch.cuda.synchronize") as synchronize,
        timeit("test/sync", sync=True) as timer,
    ):
        assert synchronize.call_count == (1 if available else 0)
        timer.elapsed()
        assert synchronize.call_count == (2 if available else 0)


@guards("nvtx-needs-gpu")
def test_nvtx_needs_a_gpu():
    if torch.cuda.is_available():
        with torch.autograd.profiler.emit_nvtx():
            torch.ones(2) + 1
        return
    with pytest.raises((RuntimeError, AssertionError)), torch.autograd.profiler.emit_nvtx():
        pass


# -- What the page says of the record ---------------------------------------------------


recorded = partial(recorded_of, "profiling")


@guards("collect-half-of-iteration")
def test_collection_is_the_longest_half():
    shares = {half: recorded(f"half-{half}", "share") for half in suite.HALVES}
    assert max(shares, key=shares.get) == "collect"
    assert shares["collect"] > 50


@guards("loop-itself-short")
def test_the_loop_itself_is_short():
    assert recorded("part-rest", "share") < 3


@guards("rollout-fills-collect")
def test_the_rollout_fills_the_collection():
    assert recorded("iteration-02", "duration") > 0.95 * recorded("iteration-01", "duration")


@guards("advantage-range-short")
def test_the_advantage_is_short():
    assert recorded("half-advantage", "share") < 10


@guards("policy-longest-part")
def test_the_policy_is_the_longest_part_of_a_step():
    assert recorded("step-01", "duration") > recorded("step-02", "duration")
    step, inner = recorded("step-00", "duration"), ("step-01", "step-02")
    assert recorded("step-01", "duration") > step - sum(recorded(k, "duration") for k in inner)


@guards("collection-dominates-in-python", "half-outside-operators")
def test_policy_and_environment_dominate():
    assert recorded("part-policy", "share") + recorded("part-env", "share") > 50
    for part in ("part-policy", "part-env"):
        assert recorded(part, "python_share", "q1") > 50


@guards("backward-in-operators")
def test_backward_lies_in_operators():
    assert recorded("part-backward", "python_share") < 50


@guards("step-larger-part")
def test_the_step_is_most_of_the_environment():
    assert recorded("step-03", "duration") > recorded("step-02", "duration") / 2


@guards("stacks-record-every-call")
def test_stacks_are_events_of_python():
    with_stack = recorded("overhead-profiler-stack", "events_per_frame")
    assert with_stack > 2 * recorded("overhead-profiler", "events_per_frame")


@guards("profiler-lengthens")
def test_the_profiler_lengthens_both_halves():
    for half in ("collect", "update"):
        assert recorded(f"half-{half}", "part_time") > 1.05 * recorded(f"half-{half}", "plain_time")


@guards("stacks-line-per-operator", "stacks-multiply-file")
def test_stacks_are_what_costs():
    key = "overhead-profiler-stack"
    assert recorded(key, "trace_vs_profiler") > 5
    assert recorded(key, "finish_time", "q1") > recorded(key, "iteration_time", "q3")


@guards("overlapping-quartiles-noise")
@pytest.mark.parametrize("way", ["timeit", "armed-disabled"])
def test_ways_that_do_not_show(way):
    off, ours = (
        [recorded(f"overhead-{name}", "iteration_time", point) for point in ("q1", "q3")]
        for name in ("off", way)
    )
    assert ours[0] <= off[1]
    assert off[0] <= ours[1]


@guards("variable-lengthens-short-iteration")
def test_the_variable_alone_costs_time():
    armed = recorded("overhead-armed", "time_vs_off")
    for way in ("off", "off-again"):
        assert armed > recorded(f"overhead-{way}", "time_vs_off")


@guards("armed-range-far-dearer", "armed-range-time", "armed-costs-always")
def test_what_a_range_costs():
    armed = recorded("range-armed", "range_time")
    assert armed > 10 * recorded("range-disabled", "range_time")
    assert armed > recorded("range-timeit", "range_time")
    assert recorded("range-record-function", "range_time") > recorded("range-timeit", "range_time")
    assert 0.5 < recorded("range-profiled", "range_time") / armed < 2


# -- Traces of the other algorithms ------------------------------------------------


def traced_share(view, *indices):
    """The share of the first range of *view* that some of those inside it take."""
    found = [
        recorded_of("loss_traces", f"{view}-{index:02}", "duration") for index in (0, *indices)
    ]
    return sum(found[1:]) / found[0]


@guards("a2c-impala-traces-are-collection")
@pytest.mark.parametrize("view", ["a2c", "impala"])
def test_collection_fills_the_traces_of_a2c_and_impala(view):
    assert 0.8 < traced_share(view, 1) < 1


@guards("sac-trace-is-updates")
def test_updates_fill_the_trace_of_sac():
    assert 0.9 < traced_share("sac", 3) < 1


@guards("sac-update-is-forward-and-backward")
def test_forward_and_backward_fill_an_update_of_sac():
    assert 0.7 < traced_share("sac-update", 2, 3) < 1


@pytest.mark.parametrize("view", traces.VIEWS)
def test_a_trace_has_its_ranges_inside_the_first(view):
    with mock.patch.multiple(traces, TRACES=1, WARMUP_ROUNDS=0):
        window = traces.traced(view.partition("-")[0], CPU)[view]
    assert [name for name, _, _ in window] == [name for _, name in traces.VIEWS[view]]
    (_, begin, end), *inside = window
    for (_, start, stop), (_, following, _) in pairwise(inside):
        assert begin <= start < stop <= following < end
    assert inside[-1][2] <= end
