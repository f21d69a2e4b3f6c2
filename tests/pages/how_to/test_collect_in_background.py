"""What the guide to collecting in the background says and does not run is so."""

import contextlib
import multiprocessing
import shutil
import signal
import threading
from unittest import mock

import pytest
import torch
from tensordict import TensorDict
from torchrl.collectors import MultiAsyncCollector
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    PrioritizedSampler,
    SliceSampler,
    TensorDictReplayBuffer,
)

from tests.support import ROOT
from tests.support.claims import guards
from tests.support.guides import assert_an_update_waits_for_the_dead, defined_by
from tests.support.suites import recorded

GUIDE = ROOT / "how-to" / "collect_in_background.py"
FOREVER_S = 60  # a bound for a hang, not an expectation
LOCKED_S = 5  # for what the other writer cannot reach


@pytest.fixture
def guide():
    """What the guide defines before its first buffer; workers start by "fork" as there."""
    with defined_by("collect_in_background", "buffer, ahead = ") as page:
        yield page


@pytest.fixture
def start_method():
    before = multiprocessing.get_start_method()
    yield lambda method: multiprocessing.set_start_method(method, force=True)
    multiprocessing.set_start_method(before, force=True)


def make_rows(steps):
    steps = torch.tensor(steps)
    ids = TensorDict({"traj_ids": torch.zeros_like(steps)}, steps.shape)
    return TensorDict({"collector": ids, "step_count": steps}, steps.shape)


@guards("background-sample-takes-lock")
def test_a_sample_waits_for_writers():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=2, shared=True)
    buffer.extend(make_rows([0, 1]))
    free = {}

    def watched(name):
        function = getattr(buffer.storage, name)

        def call(*arguments, **options):
            if got := buffer._write_lock.acquire(block=False):
                buffer._write_lock.release()
            free[name] = got
            return function(*arguments, **options)

        return mock.patch.object(buffer.storage, name, call)

    with watched("set"), watched("get"):
        buffer.extend(make_rows([2, 3]))
        buffer.sample()
        assert free == {"set": False, "get": False}
        buffer[:]
        assert free == {"set": False, "get": True}


@guards("background-weights-arrive", "background-total-frames-ignored")
def test_weights_and_epsilon_arrive_and_total_frames_does_not_count(guide):
    buffer, permits = guide.make_buffer(), guide.Permits(1)
    frames = guide.BATCH_FRAMES
    collector = MultiAsyncCollector(
        [guide.make_env],
        guide.policy,
        frames_per_batch=frames,
        total_frames=frames,
        replay_buffer=buffer,
        pre_collect_hook=permits,
        auto_register_policy_transforms=False,
    )
    try:
        collector.set_seed(0)
        collector.start()
        guide.wait_for_frames(frames, buffer, collector)
        with torch.no_grad():
            guide.net[-1].weight.zero_()
            guide.net[-1].bias.copy_(torch.tensor([0.0, 1.0]))
        guide.explore.eps.fill_(0.0)
        permits.add(1)
        guide.wait_for_frames(2 * frames, buffer, collector)
    finally:
        permits.add(1)
        collector.shutdown()
    first, second = buffer[: 2 * frames]["action"].argmax(-1).chunk(2)
    assert set(first.tolist()) == {0, 1}
    assert set(second.tolist()) == {1}


@guards("background-waiting-worker-terminated")
@pytest.mark.parametrize(
    ("number", "limit_s", "expected"), [(0, 1, -signal.SIGTERM), (1, FOREVER_S, 0)]
)
def test_a_worker_that_waits_for_a_permit_does_not_stop(guide, number, limit_s, expected):
    waits, permits = multiprocessing.Event(), guide.Permits(0)

    def hook():
        waits.set()
        permits()

    hook.add = permits.add
    with guide.collecting([guide.make_env], guide.make_buffer(), hook) as collector:
        (worker,) = collector.procs
        assert waits.wait(FOREVER_S)
        permits.add(number)
        collector.shutdown(timeout=limit_s)
    worker.join(FOREVER_S)  # it was told to end
    assert worker.exitcode == expected


@guards("background-update-waits-for-the-dead")
def test_an_update_of_the_weights_waits_for_a_dead_worker(guide):
    buffer, permits = guide.make_buffer(), guide.Permits(1)
    with guide.collecting([guide.make_env], buffer, permits) as collector:
        guide.wait_for_frames(1, buffer, collector)
        assert_an_update_waits_for_the_dead(collector, 0)


@guards("background-gap-in-slice")
def test_a_slice_runs_across_a_gap():
    sampler = SliceSampler(slice_len=4, traj_key=("collector", "traj_ids"))
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), sampler=sampler, batch_size=400)
    buffer.extend(make_rows([0, 1, 2, 3, 8, 9, 10, 11]))
    slices = buffer.sample()["step_count"].reshape(-1, 4).tolist()
    assert [2, 3, 8, 9] in slices


@guards("background-priorities-elsewhere")
def test_priorities_of_rows_that_workers_write(guide):
    def make_buffer():
        sampler = PrioritizedSampler(guide.CAPACITY, alpha=0.7, beta=0.5)
        return guide.make_buffer(sampler=sampler)

    buffer, permits = make_buffer(), guide.Permits(1)
    with guide.collecting([guide.make_env], buffer, permits) as collector:
        guide.wait_for_frames(guide.BATCH_FRAMES, buffer, collector)
        with pytest.raises(RuntimeError, match="non-positive p_sum"):
            buffer.sample()
    multiprocessing.set_start_method("spawn", force=True)  # before a buffer, which holds locks
    buffer = make_buffer()
    buffer.extend(make_rows([0, 1]))
    worker = multiprocessing.Process(target=print, args=[buffer])
    with pytest.raises(RuntimeError, match="cannot be shared between processes"):
        worker.start()


@guards("background-start-by-method")
def test_workers_that_import_everything_again_start_later():
    spawn, fork = (f"start-{method}" for method in ("spawn", "fork"))
    latest = recorded("collectors", fork, "start_time", "q3")
    assert recorded("collectors", spawn, "start_time", "q1") > 10 * latest


def write_ones(buffer, barrier=None):
    """Extend the buffer; with a *barrier*, both writers read the cursor before one moves it."""
    if barrier is None:
        buffer.extend(make_rows([1, 1]))
        return
    cursor = type(buffer._writer)._cursor

    def read(writer):
        found = cursor.fget(writer)
        with contextlib.suppress(threading.BrokenBarrierError):  # the other waits for the lock
            barrier.wait(LOCKED_S)
        return found

    with mock.patch.object(type(buffer._writer), "_cursor", property(read, cursor.fset)):
        buffer.extend(make_rows([1, 1]))


@guards("own-processes-need-shared-init")
@pytest.mark.parametrize("kind", [LazyTensorStorage, LazyMemmapStorage])
def test_storage_of_own_processes_has_to_be_made_by_the_first_writer(start_method, kind):
    start_method("fork")
    for shared_init in (False, True):
        storage = kind(10, shared_init=shared_init)
        buffer = TensorDictReplayBuffer(storage=storage, batch_size=2, shared=True)
        writer = multiprocessing.Process(target=write_ones, args=(buffer,))
        writer.start()
        writer.join()
        assert len(buffer) == 2
        if shared_init:
            assert (buffer[:]["step_count"] == 1).all()
            shutil.rmtree(storage.scratch_dir)  # torchrl leaves it
        else:
            with pytest.raises(RuntimeError, match="non-initialized storage"):
                buffer[:]
    start_method("spawn")
    buffer = TensorDictReplayBuffer(storage=kind(10), batch_size=2, shared=True)
    with pytest.raises(RuntimeError, match="Cowardly refusing to share a storage"):
        multiprocessing.Process(target=write_ones, args=(buffer,)).start()


@guards("unshared-writers-lose-rows")
@pytest.mark.parametrize(("shared", "n_rows"), [(True, 4), (False, 2)])
def test_writers_without_a_lock_use_the_same_place(start_method, tmp_path, shared, n_rows):
    start_method("fork")
    storage = LazyMemmapStorage(10, scratch_dir=tmp_path, shared_init=True)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=2, shared=shared)
    barrier = multiprocessing.Barrier(2)
    writers = [multiprocessing.Process(target=write_ones, args=(buffer, barrier)) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert buffer[:]["step_count"].count_nonzero() == n_rows  # the files begin as zeros
