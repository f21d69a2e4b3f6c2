"""What the guide from one process to Ray says and does not run is so; of Ray by the record."""

import inspect
import multiprocessing
import signal
import threading
import warnings
from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torchrl._utils import _check_for_faulty_process
from torchrl.collectors import Collector
from torchrl.collectors.distributed import RayCollector
from torchrl.collectors.distributed import ray as ray_module

from benchmarks.suites import bench_scaling_ray as suite
from tests.support import ROOT
from tests.support.claims import guards
from tests.support.guides import assert_an_update_waits_for_the_dead, defined_by
from tests.support.suites import benchmarks_of, noted, recorded

GUIDE = ROOT / "how-to" / "from_one_process_to_ray.py"
SOURCE = GUIDE.read_text("utf-8")


@pytest.fixture
def guide():
    """What the guide defines; workers start by "fork" as there."""
    with defined_by("from_one_process_to_ray", "# What is equal") as page:
        yield page


def body_of(name):
    """The call of ``Collector`` in the function *name* of the guide."""
    start = SOURCE.index("    return Collector(", SOURCE.index(f"def {name}("))
    return SOURCE[start : SOURCE.index("\n    )\n", start) + len("\n    )\n")]


def test_the_diffs_lead_from_one_version_to_the_next():
    blocks = SOURCE.partition('"""\n\n')[0].split(".. code-block:: diff")[1:]
    steps = [("one_process", "workers"), ("workers", "on_ray")]
    for block, (before, after) in zip(blocks, steps, strict=True):
        lines = [line[3:] for line in block.splitlines() if line.startswith("   ")]
        for name, other in ((before, "+"), (after, "-")):
            expected = "\n".join(line[1:] for line in lines if line[0] != other)
            assert expected in body_of(name), f"{name} is not what the diff shows"
        assert {line[0] for line in lines} == set(" +-")


@pytest.fixture
def on_ray():
    """Builds collectors on Ray as far as their signatures go; what they were given."""
    signature = inspect.signature(RayCollector.__init__)
    given = []

    def bind(self, *arguments, **options):
        bound = signature.bind(self, *arguments, **options).arguments
        known = inspect.signature(Collector.__init__).parameters
        if unknown := bound["collector_kwargs"].keys() - known.keys():
            raise TypeError(f"Collector has no argument {unknown}")
        given.append(bound)

    bind.__signature__ = signature
    with (
        mock.patch.object(RayCollector, "__init__", bind),
        mock.patch.object(RayCollector, "__del__", return_value=None),
    ):
        yield given


def test_the_version_for_ray_fits_the_installed_signatures(guide, on_ray):
    assert isinstance(guide.on_ray("policy"), RayCollector)
    assert isinstance(suite.make_collector("ray-2", "policy"), RayCollector)
    for given in on_ray:
        assert (given["num_collectors"], given["sync"]) == (2, True)
        assert given["total_frames"] > 0
        assert given["collector_kwargs"] is not guide.QUIET, "RayCollector writes into it"
    ours, measured = on_ray
    assert ours.keys() == measured.keys(), "the suite ran another call than the guide shows"
    assert ours["collector_kwargs"] == measured["collector_kwargs"]
    assert ours["remote_configs"].keys() <= measured["remote_configs"].keys()
    wrong = mock.patch.dict(guide.FRAMES, guide.QUIET)  # why the diff moves it
    with wrong, pytest.raises(TypeError, match="unexpected keyword argument 'auto_register"):
        guide.on_ray("policy")
    wrong = mock.patch.dict(guide.QUIET, misspelled=1)
    with wrong, pytest.raises(TypeError, match="Collector has no argument"):
        guide.on_ray("policy")


@guards("scaling-ray-writes-into-options")
def test_ray_writes_into_the_options_of_the_remote_collectors():
    class Remote(Collector):
        """Ray's methods are added to this one."""

    options = {}
    with (
        mock.patch.multiple(ray_module, _has_ray=True, ray=mock.MagicMock(), create=True),
        mock.patch.object(ray_module, "_RayRuntimeLease"),
        mock.patch.object(RayCollector, "add_collectors"),
    ):
        RayCollector(
            [int],
            torch.nn.Identity(),
            collector_class=Remote,
            collector_kwargs=options,
            num_collectors=1,
            frames_per_batch=5,
            weight_sync_schemes={},
        )
    assert options["frames_per_batch"] == 5


@guards("scaling-shuffling-in-one-process")
def test_shuffling_changes_the_actions_of_one_process_alone(guide):
    expected = guide.train(guide.one_process).weights
    zero_grad = torch.optim.Adam.zero_grad

    def shuffle(self):
        torch.randperm(4)
        zero_grad(self)

    with mock.patch.object(torch.optim.Adam, "zero_grad", shuffle):
        assert not torch.equal(guide.train(guide.one_process).weights, expected)
        assert torch.equal(guide.train(partial(guide.workers, number=1)).weights, expected)


def observed_first(collector):
    batch = collector.next()
    collector.shutdown()
    return batch["observation"].reshape(-1, 4)[0], batch["action"].flatten()


@guards("scaling-set-seed-differs")
def test_what_set_seed_does_in_each_version(guide):
    actor = guide.make_actor()
    env = guide.make_env(7)
    fresh, own = env.reset()["observation"], guide.make_env(0).reset()["observation"]
    assert not torch.equal(fresh, own)

    workers = [guide.workers(actor, number=1) for _ in range(2)]
    for collector in workers:
        collector.set_seed(7)
    (first, actions), (_, again) = map(observed_first, workers)
    assert torch.equal(first, fresh)
    torch.manual_seed(7)
    assert torch.equal(actions, again)

    collector = guide.one_process(actor)
    before = torch.get_rng_state()
    collector.set_seed(7)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(observed_first(collector)[0], own)

    assert inspect.signature(RayCollector).parameters["collector_class"].default is Collector
    calls = []
    remote = partial(Collector.set_seed, SimpleNamespace(env=env))
    handle = SimpleNamespace(
        set_seed=SimpleNamespace(remote=lambda *a: calls.append(a) or remote(*a))
    )
    ray = SimpleNamespace(get=lambda object_refs: object_refs)
    with mock.patch.object(ray_module, "ray", ray, create=True):
        RayCollector.set_seed(SimpleNamespace(remote_collectors=[handle] * 2), 7)
    assert len(calls) == 2


@guards("scaling-ray-endless-is-empty")
def test_endless_on_ray_has_no_batch():
    assert inspect.signature(RayCollector).parameters["total_frames"].default == -1
    endless = SimpleNamespace(
        collected_frames=0,
        total_frames=-1,
        _stop_event=threading.Event(),
        _collection_thread=None,
        shutdown=mock.Mock(),
    )
    assert list(RayCollector._sync_iterator(endless)) == []
    endless.shutdown.assert_called_once()
    assert recorded("scaling_ray", "endless", "batches") == 0


@guards("scaling-update-waits-for-the-dead")
def test_an_update_of_the_weights_waits_for_a_dead_worker(guide):
    collector = guide.workers(guide.make_actor())
    try:
        collector.next()
        assert_an_update_waits_for_the_dead(collector, 1)
    finally:
        collector.shutdown()


def ignore_the_end(ready):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.set()
    signal.pause()


@guards("scaling-death-is-hidden")
def test_a_worker_that_takes_its_time_hides_the_death_of_another():
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork.*may lead to deadlocks")
        slow = context.Process(target=ignore_the_end, args=[ready])
        dead = context.Process(target=int)
        slow.start()
        dead.start()
    dead.join()
    try:
        assert ready.wait(60)
        with pytest.raises(ValueError, match="Cannot close a process while it is still running"):
            _check_for_faulty_process([slow, dead])
    finally:
        slow.kill()
        slow.join()


# -- The record ----------------------------------------------------------------------


def seen(key, metric):
    return recorded("scaling_ray", key, metric)


def test_remote_collectors_give_the_same_frames():
    for key in ("ray-1", "ray-2"):
        assert seen(f"start-{key}", "same_frames") == 1


@guards("scaling-ray-same-results")
def test_the_versions_gave_the_same_results_on_ray():
    """The record is of the code that the guide shows now."""
    taken = benchmarks_of("scaling_ray")["guide"]
    assert taken["parameters"]["versions"] == suite.versions_of_the_guide(), (
        "the versions of the guide have changed since they ran on Ray: make bench SUITE=scaling_ray"
    )
    assert seen("guide", "same_results") == 1


@pytest.mark.parametrize("way", suite.WAYS)
def test_the_parts_of_a_start_are_all_of_it(way):
    metrics = benchmarks_of("scaling_ray")[f"start-{way}"]["metrics"]
    smallest, largest = (sum(metrics[part][end] for part in suite.PARTS) for end in ("min", "max"))
    assert smallest <= metrics["start_time"]["min"] * 1.001
    assert largest >= metrics["start_time"]["max"] * 0.999


def test_a_start_has_parts(guide):
    started = suite.Running("one")
    started.collector.shutdown()
    spent = started.spent
    assert sum(spent[part] for part in suite.PARTS) == pytest.approx(spent["start_time"])


@guards("scaling-restart-is-stale")
def test_an_actor_that_restarts_has_old_weights():
    key = "killed-actor-restarts"
    assert (seen(key, "raises"), seen(key, "batches_after")) == (0, 1)
    assert 0 < seen(key, "stale_share") < 1
    assert seen(key, "update_raises") == 1


@guards("scaling-constructor-waits")
def test_a_constructor_without_processors_waits():
    assert seen("removed-node", "returns") == 0
    for key in ("killed-worker", "killed-actor", "removed-node"):
        assert (seen(key, "raises"), seen(key, "batches_after")) == (1, 0)


@pytest.mark.filterwarnings("ignore:.*fork.*may lead to deadlocks")
def test_entry_of_a_killed_worker(guide):
    found = noted(suite.bench_killed_worker, None)
    assert found["key"] == "killed-worker"
    assert found["exact"] == {"raises": 1, "batches_after": 0}


@guards("scaling-two-processes-use-two-cores")
def test_two_processes_collect_more_and_one_remote_collector_little_more():
    gains = {
        way: recorded("scaling_ray", f"throughput-{way}", "vs_one")
        for way in ("workers-2", "ray-1", "ray-2")
    }
    assert min(gains["workers-2"], gains["ray-2"]) > 1.5
    assert gains["ray-2"] < 1.1 * gains["workers-2"], "on one machine, Ray would pay"
    assert seen("start-ray-2", "start_time") > seen("start-workers-2", "start_time")
    assert 0.9 < gains["ray-1"] < 1.2
