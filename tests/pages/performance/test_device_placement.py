"""The suite device_placement, run small, and the sentences of its page: counts, never a time."""

import os
import traceback
from collections import Counter
from functools import partial
from unittest import mock

import pytest
import torch
from tensordict import TensorDict
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.envs import EnvBase, ParallelEnv

from benchmarks import measure, simulated_cuda
from benchmarks.suites import bench_device_placement as suite
from benchmarks.timing import Benchmark
from tests.support.claims import guards
from tests.support.suites import CPU, noted
from tests.support.suites import recorded as recorded_of

STEPS = 6


@pytest.fixture(scope="module", autouse=True)
def small():
    """Small sizes; what was counted with them holds for all tests."""
    with mock.patch.multiple(suite, STEPS=STEPS, ENVIRONMENTS=2, FEATURES=5, SECONDS=0):
        suite.counted.cache_clear()
        yield
    suite.counted.cache_clear()


def counted(name, no_cuda_sync=False):
    return suite.counted(CPU, name, no_cuda_sync)[0]


def counted_anew(name, **sizes):
    """What `suite.counted` gives, of nothing that was counted before."""
    with mock.patch.multiple(suite, **sizes):
        return suite.counted.__wrapped__(CPU, name, False)


recorded = partial(recorded_of, "device_placement")


# -- The simulated GPU ------------------------------------------------------------


def watched(function):
    """What *function*, called with the watch, returns; with no autograd, as in a rollout."""
    with torch.no_grad(), simulated_cuda.watch(CPU) as watch:
        return function(watch)


def test_a_simulated_tensor_has_its_device_and_its_values():
    def compute(watch):
        far = torch.arange(3.0).to("cuda:0")
        double = 2 * far
        assert far.is_cuda
        assert double.device == torch.device("cuda:0")
        return double.sum().item(), double.cpu()

    total, double = watched(compute)
    assert total == 6
    assert torch.equal(double, torch.tensor([0.0, 2.0, 4.0]))


def test_two_devices_in_one_operation_are_refused():
    def mix(watch):
        return torch.zeros(3, device="cuda:0") + torch.zeros(3)

    with pytest.raises(AssertionError, match="mixes devices"):
        watched(mix)


def test_copies_are_counted_in_both_directions():
    def copy(watch):
        far = torch.zeros(3).to("cuda:0", non_blocking=True)
        far.to("cpu")
        far.copy_(torch.zeros(3))
        far.to("cuda:0")  # there already
        return watch.counts

    counts = watched(copy)
    assert (counts["to_device"], counts["to_device_bytes"]) == (2, 24)
    assert (counts["to_host"], counts["to_host_bytes"]) == (1, 12)
    assert counts["blocking"] == 2


def test_a_value_that_python_reads_is_counted():
    def read(watch):
        far = torch.zeros(3, device="cuda:0")
        if far.any():
            pass
        far[far > 0]
        return watch.counts["reads"]

    assert watched(read) == 2


@pytest.mark.parametrize("wait", ["none", "synchronize", "event", "read", "copy"])
def test_a_host_copy_is_read_early_unless_something_waits(wait):
    def use(watch):
        far = torch.ones(3).to("cuda:0")
        near = far.to("cpu", non_blocking=True)
        if wait == "synchronize":
            torch.cuda.synchronize()
        elif wait == "event":
            TensorDict({"a": far}).to("cpu")
        elif wait == "read":
            far.sum().item()
        elif wait == "copy":
            far.to("cpu")
        near.view(3, 1)  # uses no value
        near.to("cuda:0", non_blocking=True)  # comes behind the copy
        assert watch.counts["early"] == 0
        near + 1
        return watch.counts["early"]

    assert watched(use) == (wait == "none")


def test_the_peak_is_of_what_the_device_holds():
    def hold(watch):
        before = watch.start_peak()
        kept = torch.zeros(10, device="cuda:0")
        for _ in range(3):
            kept[2:5].add(1)
        return watch.peak - before

    assert watched(hold) == 40 + 12


# -- The suite ----------------------------------------------------------------------


@pytest.mark.parametrize("case", [("gym-policy", False), ("tensor-gpu-batch-host", True)])
def test_entry_has_declared_metrics(case):
    entry = noted(suite.bench_rollout, CPU, *case)
    assert entry["key"] == suite.key_of(*case)
    assert entry["metrics"] | {"copy_time"} == set(suite.METRICS)
    assert entry["parameters"]["no_cuda_sync"] == case[1]


def test_a_wrong_batch_fails_the_suite():
    wrong = counted_anew("gym-nothing", STEPS=STEPS)
    wrong[2]["action"][0] = 7
    right = suite.counted

    def give(device, name, no_cuda_sync):
        return wrong if name == "gym-nothing" else right(device, name, no_cuda_sync)

    with (
        mock.patch.object(suite, "counted", give),
        pytest.raises(AssertionError, match="action"),
    ):
        suite.bench_rollout(Benchmark(), CPU, "gym-policy", False)


def test_a_copy_on_a_gpu_is_of_the_same_values():
    with mock.patch.object(measure, "ROUNDS", 1), mock.patch.object(measure, "WARMUP_ROUNDS", 0):
        for how in suite.BLOCKING:
            benchmark = mock.Mock(extra_info={})
            benchmark.pedantic = lambda target, args, rounds, warmup_rounds: target(*args)
            suite.bench_copy(benchmark, CPU, "to-host", how)
            assert benchmark.extra_info["key"] == f"copy-to-host-{how}"


@pytest.mark.parametrize("name", suite.PLACEMENTS)
def test_the_record_has_the_counts_of_this_release(name):
    """Counts per step that do not depend on how many episodes end."""
    for no_cuda_sync in {False, suite.GPU in suite.PLACEMENTS[name]}:
        found = counted(name, no_cuda_sync)
        for metric in ("syncs", "early_reads"):
            key = suite.key_of(name, no_cuda_sync)
            assert recorded(key, metric) == found[metric], (key, metric)


# -- Sentences ----------------------------------------------------------------------


@guards("cast-moves-whole-carrier", "every-root-entry-crosses")
def test_the_cast_for_the_policy_takes_the_whole_carrier():
    collector = suite.make_collector("gym-policy", "cpu:0")
    plain, casts = TensorDict.to, []

    def to(self, device, **kwargs):
        casts.append((device, sorted(map(str, self.keys(True, True)))))
        return plain(self, device, **kwargs)

    with mock.patch.object(TensorDict, "to", to):
        collector.rollout()
    collector.shutdown()
    keys = {tuple(keys) for device, keys in casts if device == torch.device("cpu:0")}
    entries = "('collector', 'traj_ids')", "action", "done", "observation", "terminated"
    assert keys >= {(*entries, "truncated")}
    policy = [keys for device, keys in casts if device == torch.device("cpu:0")]
    assert len(policy) == STEPS


@guards("action-crosses-twice", "action-copied-again")
def test_the_action_crosses_twice():
    found = counted("gym-policy")
    action = 2 * torch.int64.itemsize
    assert (found["copies_to_host"], found["bytes_to_host"]) == (2, 2 * action)


@guards("unnamed-not-copied", "policy-alone-action-once", "policy-alone-fewer-waits")
def test_the_policy_alone_copies_less():
    alone, named = counted("gym-policy-alone"), counted("gym-policy")
    assert alone["copies_to_host"] == alone["blocking_copies"] == alone["waits"] == 1
    assert alone["early_reads"] == 0
    assert alone["bytes_crossed"] < named["bytes_crossed"]
    assert alone["waits"] < named["waits"]
    assert alone["batch_on_gpu"] == 2 * torch.int64.itemsize  # the action
    assert alone["batch_on_host"] > 0


@guards("env-device-adds-wait", "missing-wait-is-no-gain")
def test_naming_the_environment_adds_a_wait():
    named, unnamed = counted("gym-policy"), counted("gym-policy-env-unnamed")
    assert named["syncs"] == unnamed["syncs"] + 1
    assert named["casts"] == unnamed["casts"]
    assert (named["early_reads"], unnamed["early_reads"]) == (0, 1)


@guards("host-only-names-nothing")
def test_naming_the_cpu_takes_time_in_the_record():
    unnamed, named = (
        recorded_of("collector_rollout", f"flow-{names}", "step_time")
        for names in ("defaults", "cpu-devices")
    )
    assert unnamed < named


@guards("storing-gpu-step-copies")
def test_a_batch_on_the_gpu_takes_the_most_copies():
    def copies(name):
        return recorded(name, "copies_to_gpu") + recorded(name, "copies_to_host")

    others = [
        name
        for name, (_, policy, env, _) in suite.PLACEMENTS.items()
        if name.startswith("gym") and policy == suite.GPU and env != suite.GPU
    ]
    assert max(others, key=copies) == "gym-policy-batch"
    assert len(others) > 2


@guards("gym-device-moves-each-step")
def test_gym_on_the_gpu_moves_each_step():
    found = counted("gym-gpu")
    assert found["copies_to_host"] == 1  # the action
    assert found["copies_to_gpu"] >= 5  # observation, reward, terminated, truncated, done


@guards("gpu-env-ids-on-host")
def test_ids_stay_on_the_host():
    found = counted("tensor-gpu-unnamed")
    assert found["copies_to_gpu"] == 1
    assert found["bytes_to_gpu"] == found["batch_on_host"] == 2 * torch.int64.itemsize


@guards("host-waits-when-named", "named-cpu-synchronizes", "no-device-no-wait")
def test_a_collector_on_the_host_waits():
    named, unnamed = counted("gym-host"), counted("gym-nothing")
    assert named["syncs"] == 1
    assert named["stream_waits"] >= 1
    assert named["bytes_crossed"] == unnamed["bytes_crossed"] == unnamed["waits"] == 0


def read_sites(**options):
    """The functions of torchrl that read from the GPU at every step, all on the GPU."""
    sites = Counter()

    class Counts(Counter):
        def __setitem__(self, key, value):
            if key == "reads":
                frames = [f for f in traceback.extract_stack() if "/torchrl/" in f.filename]
                sites[frames[-1].name] += 1
            super().__setitem__(key, value)

    def collect(watch):
        collector = suite.make_collector("tensor-gpu", "cuda:0")
        collector.track_traj_ids = options.get("track_traj_ids", True)
        watch.reset()
        watch.counts = Counts()
        collector.rollout()
        watch.reset()
        collector.shutdown()

    watched(collect)
    return {name for name, count in sites.items() if count == STEPS}


@guards("gpu-env-three-reads", "flags-still-read")
def test_an_environment_on_the_gpu_is_read_three_times():
    loop = {"any_done", "maybe_reset"}
    assert read_sites() == {*loop, "_update_traj_ids"}
    assert read_sites(track_traj_ids=False) == loop


@guards("flags-still-read")
def test_the_reads_stay():
    for name, no_cuda_sync in suite.CASES:
        if name.startswith("tensor-") and suite.PLACEMENTS[name][0] == suite.GPU:
            assert counted(name, no_cuda_sync)["reads"] == 3, name


SAME = ("gym-gpu", "tensor-gpu", "tensor-gpu-unnamed")


@guards("all-gpu-flag-idle", "all-gpu-same-counts")
@pytest.mark.parametrize("name", SAME)
def test_the_flag_does_nothing_on_the_gpu(name):
    assert counted(name) == counted(name, True)


@guards("isaac-flag-blocking-copies")
def test_the_flag_blocks_each_copy():
    found, flagged = (counted("tensor-gpu-batch-host-alone", flag) for flag in (False, True))
    assert (found["syncs"], flagged["syncs"]) == (1, 0)
    assert found["blocking_copies"] == 0
    assert flagged["blocking_copies"] == found["copies_to_host"] > 1
    assert flagged["waits"] > found["waits"]


@guards("gpu-policy-flag-same-waits", "no-cuda-sync-exchange")
def test_the_flag_exchanges_waits():
    found, flagged = (counted("gym-policy", flag) for flag in (False, True))
    assert found["waits"] == flagged["waits"]
    assert (found["syncs"], flagged["blocking_copies"]) == (2, 2)
    assert found["blocking_copies"] == flagged["syncs"] == 0


@guards("unnamed-env-early-action", "flag-reads-nothing-early", "flag-safe-where-measured")
def test_early_reads():
    assert counted("gym-policy-env-unnamed")["early_reads"] == 1
    assert counted("gym-policy")["early_reads"] == 0
    for name, no_cuda_sync in suite.CASES:
        if no_cuda_sync:
            assert counted(name, True)["early_reads"] == 0, name


@guards("flag-trades-waits")
def test_the_flag_never_lowers_the_number_of_waits():
    for name, no_cuda_sync in suite.CASES:
        if no_cuda_sync:
            flagged = recorded(suite.key_of(name, True), "waits")
            assert flagged >= recorded(name, "waits"), name


def peak(name, steps):
    """The peak of a rollout in which no episode ends."""
    return max(counted_anew(name, STEPS=steps, EPISODE=1000)[1])


@guards("gpu-rows-peak-grows")
def test_rows_come_on_top_of_the_batch():
    assert peak("tensor-gpu", 12) > 1.5 * peak("tensor-gpu", 6) > 0


@guards("storing-cpu-peak-flat")
def test_rows_leave_the_gpu():
    assert peak("tensor-gpu-batch-host", 12) == peak("tensor-gpu-batch-host", 6) > 0


@guards("synchronize-waits-all-streams")
def test_synchronize_waits_for_all_streams():
    assert "all streams" in torch.cuda.synchronize.__doc__


@guards("cast-dear-on-cartpole")
def test_casting_takes_time_in_the_record():
    assert recorded("gym-policy", "time_vs_host") > 1.5


@guards("casts-shared-per-step")
def test_casts_are_of_a_step():
    few = counted("tensor-gpu-batch-host")["casts"]
    assert counted_anew("tensor-gpu-batch-host", ENVIRONMENTS=4)[0]["casts"] == few > 1


@guards("storing-cpu-step-waits")
def test_each_row_is_waited_for():
    found, kept = counted("tensor-gpu-batch-host"), counted("tensor-gpu")
    assert found["syncs"] == kept["syncs"] + 1 == 1
    assert found["copies_to_host"] > kept["copies_to_host"] + 5


# -- On a GPU -----------------------------------------------------------------------

on_gpu = partial(recorded_of, "device_placement", device="cuda")
SMALL_PLACEMENTS = [name for name, places in suite.PLACEMENTS.items() if suite.GPU in places]


@guards("simulated-counts-hold")
def test_the_simulation_counts_what_a_gpu_counts():
    """Each exact value of each placement, but for the peak, which an allocator rounds up."""
    exact = [metric for metric, one in suite.METRICS.items() if one["exact"]]
    assert len(exact) > 10
    for name, no_cuda_sync in suite.CASES:
        key = suite.key_of(name, no_cuda_sync)
        for metric in exact:
            assert on_gpu(key, metric) == recorded(key, metric), (key, metric)


@guards("gpu-loses-when-tiny")
def test_no_placement_on_the_gpu_pays_for_tiny_networks():
    slower = {name: on_gpu(name, "time_vs_host", "q1") for name in SMALL_PLACEMENTS}
    assert min(slower.values()) > 1.3


@guards("policy-alone-fastest-on-gpu")
def test_the_policy_alone_is_the_fastest_on_the_gpu():
    times = {
        name: on_gpu(name, "time_vs_host") for name in SMALL_PLACEMENTS if name.startswith("gym")
    }
    assert min(times, key=times.get) == "gym-policy-alone"


@guards("more-waits-less-time")
def test_more_waits_may_be_less_time():
    alike, named = "gym-gpu", "gym-policy"
    assert on_gpu(alike, "waits") > on_gpu(named, "waits")
    assert on_gpu(alike, "time_vs_host", "q3") < on_gpu(named, "time_vs_host", "q1")


@guards("flag-no-gain-in-time")
def test_the_flag_changes_the_time_little():
    def quartiles(name):
        return [on_gpu(name, "time_vs_host", of) for of in ("q1", "q3")]

    overlap, slower, faster = 0, 0, []
    for name in SMALL_PLACEMENTS:
        (low, high), (low_with, high_with) = quartiles(name), quartiles(f"{name}-no-sync")
        overlap += low_with <= high and low <= high_with
        slower += low_with > high
        faster += [name] if high_with < low else []
    assert overlap > len(SMALL_PLACEMENTS) / 2
    assert (slower, len(faster)) == (1, 4)
    assert sum(counted(name) == counted(name, True) for name in faster) == 2


@guards("blocking-copies-slowest", "async-copies-gain-little")
def test_waiting_for_each_entry_is_the_slowest_copy():
    for direction in ("to-gpu", "to-host"):
        default, blocking, free = (
            on_gpu(f"copy-{direction}-{how}", "copy_time") for how in suite.BLOCKING
        )
        assert blocking > 1.3 * max(default, free)
        assert free > (0.97 if direction == "to-gpu" else 0.85) * default


# -- Processes --------------------------------------------------------------------


class Where(EnvBase):
    """Observes the process that steps it, and whether a variable hides the GPU from it."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(process=Unbounded((1,)), hidden=Unbounded((1,)))
        self.action_spec = Bounded(-1, 1, (1,))
        self.reward_spec = Unbounded((1,))

    def _reset(self, tensordict):
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
        return TensorDict(
            process=torch.tensor([float(os.getpid())]), hidden=torch.tensor([hidden * 1.0])
        )

    def _step(self, tensordict):
        never = torch.zeros(1, dtype=torch.bool)
        return self._reset(tensordict).update({"reward": torch.ones(1), "terminated": never})

    def _set_seed(self, seed):
        """Nothing is random."""


def acting(tensordict):
    """A policy that says in which process it acts."""
    actor = torch.full(tensordict["process"].shape, float(os.getpid()))
    return tensordict.set("action", torch.zeros_like(actor)).set("actor", actor)


def one_batch(kind, env, policy=acting):
    collector = kind(env, policy, frames_per_batch=4, total_frames=4)
    try:
        return collector.next()
    finally:
        collector.shutdown()


@guards("workers-run-the-policy")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_each_worker_of_a_collector_runs_the_policy(forked):
    batch = one_batch(MultiSyncCollector, [Where, Where])
    assert torch.equal(batch["actor"], batch["process"])
    assert len(batch["actor"].unique()) == 2
    assert os.getpid() not in batch["actor"].unique().tolist()


@guards("parallel-env-workers-run-no-policy")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_workers_of_a_parallel_env_run_no_policy(forked):
    batch = one_batch(Collector, ParallelEnv(2, Where))
    assert batch["actor"].unique().tolist() == [os.getpid()]
    assert len(batch["process"].unique()) == 2
    assert os.getpid() not in batch["process"].unique().tolist()


@pytest.mark.parametrize("method", ["fork", "spawn"])
@guards("workers-inherit-variables")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_worker_has_the_variables_of_when_it_started(method, monkeypatch):
    env = ParallelEnv(1, Where, mp_start_method=method)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    try:
        env.reset()
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        assert env.reset()["hidden"].all()
    finally:
        env.close()
