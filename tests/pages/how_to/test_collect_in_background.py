"""What the guide to collecting in the background says and does not run is so."""

import multiprocessing
import signal
from unittest import mock

import pytest
import torch
from tensordict import TensorDict
from torchrl.collectors import MultiAsyncCollector
from torchrl.data import (
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


@pytest.fixture
def guide():
    """What the guide defines before its first buffer; workers start by "fork" as there."""
    with defined_by("collect_in_background", "buffer, ahead = ") as page:
        yield page


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
