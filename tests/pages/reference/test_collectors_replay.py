"""What the page on replay says and neither an example nor a run on it shows."""

import multiprocessing
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torchrl._utils
from tensordict import TensorDict
from torchrl.collectors import Collector, MultiCollector, MultiSyncCollector
from torchrl.data import (
    LazyTensorStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
)
from torchrl.envs import GymEnv, SerialEnv

from tests.support.claims import guards


def make_env():
    return GymEnv("CartPole-v1")


def rows(**keys):
    """Two episodes of three rows."""
    done = torch.tensor([0, 0, 1, 0, 0, 1], dtype=torch.bool)[:, None]
    return TensorDict({"number": torch.arange(6), "next": {"done": done}, **keys}, [6])


def filled(sampler, **keys):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(6), sampler=sampler)
    buffer.extend(rows(**keys))
    return buffer


@guards("buffer-transform-at-sampling")
@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
def test_a_transform_acts_when_sampling(kind):
    transform = mock.Mock(side_effect=lambda data: data)
    buffer = kind(storage=LazyTensorStorage(6), transform=transform)
    buffer.extend(rows())
    assert transform.call_count == 0
    buffer.sample(2)
    assert transform.call_count == 1


@guards("sampler-looks-for-key")
def test_where_a_sampler_looks_for_trajectories():
    episode = torch.tensor([0, 0, 1, 1, 1, 1])
    ids = {"collector": {"traj_ids": torch.tensor([0, 0, 0, 0, 1, 1])}}
    for keys, found, middle in (
        ({"episode": episode, **ids}, ("collector", "traj_ids"), (3, 4)),
        ({"episode": episode}, "episode", (1, 2)),
        ({}, None, (2, 3)),
    ):
        sampler = SliceSampler(slice_len=2)
        assert sampler.traj_key is None
        pairs = filled(sampler, **keys).sample(400)["number"].reshape(-1, 2).unique(dim=0)
        assert sampler.traj_key == found
        allowed = {(a, a + 1) for a in range(5)} - {middle}
        assert {tuple(pair) for pair in pairs.tolist()} == allowed


@guards("truncated-slice-ends", "truncation-by-slice")
def test_truncated_marks_the_ends_of_slices():
    sampler = SliceSampler(slice_len=4, strict_length=False, end_key=("next", "done"))
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(6), sampler=sampler)
    data = rows()
    data["next", "truncated"] = torch.ones(6, 1, dtype=torch.bool)
    buffer.extend(data)
    sample = buffer.sample(8)
    assert {tuple(part) for part in sample["number"].reshape(2, 3).tolist()} <= {
        (0, 1, 2),
        (3, 4, 5),
    }
    assert sample["next", "truncated"].flatten().tolist() == [False, False, True] * 2


@guards("slice-warning-with-key")
def test_the_warning_does_not_look_at_the_keys():
    stub = SimpleNamespace(
        replay_buffer=filled(SliceSampler(slice_len=2, traj_key="episode"), episode=torch.zeros(6)),
        set_truncated=False,
        _validate_policy_version_replay_schema=lambda: None,
    )
    with pytest.warns(UserWarning, match="A SliceSampler is used with a multi-process collector"):
        MultiCollector._check_replay_buffer_init(stub)


@guards("lazy-storage-first-layout", "layout-one-step-item")
@pytest.mark.parametrize(
    ("env", "shape"), [(make_env, (100,)), (lambda: SerialEnv(2, make_env), (100, 1))]
)
def test_the_layout_is_guessed(env, shape):
    buffer = ReplayBuffer(storage=LazyTensorStorage(100))
    stub = SimpleNamespace(
        replay_buffer=buffer,
        create_env_fn=[env],
        create_env_kwargs=[{}],
        local_init_rb=True,
        _should_init_replay_buffer_from_worker=lambda storage: False,
        _add_collector_outputs_to_fake_td=lambda data: data,
    )
    with mock.patch.object(ReplayBuffer, "share"):
        MultiCollector._check_replay_buffer_init(stub)
    assert buffer._storage._storage.shape == shape
    assert len(buffer) == 0


@guards("first-worker-lays-out")
def test_the_first_worker_may_give_the_layout():
    storage = LazyTensorStorage(100)
    for factory, waits in ((make_env, True), (None, False)):
        stub = SimpleNamespace(local_init_rb=True, policy=None, policy_factory=[factory])
        assert MultiCollector._should_init_replay_buffer_from_worker(stub, storage) is waits


@guards("single-step-pieces")
def test_single_steps_are_written():
    writes = {}
    for extend in (True, False):
        buffer = ReplayBuffer(storage=LazyTensorStorage(100))
        counted = mock.patch.object(buffer._writer, "extend", wraps=buffer._writer.extend)
        added = mock.patch.object(buffer._writer, "add", wraps=buffer._writer.add)
        collector = Collector(
            make_env(),
            None,
            frames_per_batch=6,
            total_frames=6,
            replay_buffer=buffer,
            extend_buffer=extend,
        )
        with counted as extends, added as adds:
            list(collector)
        writes[extend] = extends.call_count, adds.call_count
    assert writes == {True: (1, 0), False: (0, 6)}


@guards("import-sets-spawn", "default-start-method", "earlier-start-method-kept")
@pytest.mark.parametrize(("chosen", "method"), [(None, "spawn"), ("fork", "fork")])
def test_the_start_method(chosen, method):
    with mock.patch.object(torchrl._utils.mp, "get_start_method", return_value=chosen):
        assert torchrl._utils._get_default_mp_start_method() == method


@guards("buffer-locks-start-method")
def test_a_buffer_belongs_to_a_start_method():
    before = multiprocessing.get_start_method()
    try:
        multiprocessing.set_start_method("fork", force=True)
        buffer = ReplayBuffer(storage=LazyTensorStorage(10))
        multiprocessing.set_start_method("spawn", force=True)
        with pytest.raises(RuntimeError, match="created in a fork context"):
            MultiSyncCollector(
                [make_env], None, frames_per_batch=5, total_frames=5, replay_buffer=buffer
            )
    finally:
        multiprocessing.set_start_method(before, force=True)
    assert not multiprocessing.active_children()


@pytest.mark.slow
@guards("spawn-workers-differ")
def test_spawn_has_neither_trap():
    assert multiprocessing.get_start_method() == "spawn"
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(200))
    collector = MultiSyncCollector(
        [make_env] * 2, None, frames_per_batch=200, total_frames=200, replay_buffer=buffer
    )
    try:
        assert list(collector) == [None]
    finally:
        collector.shutdown()
    written = buffer[:]
    assert (written["next", "reward"] == 1).all()
    first, second = written["action"].chunk(2)
    assert not torch.equal(first, second)


@guards("add-stores-one-row")
def test_add_takes_a_batch_for_one_row():
    buffer = ReplayBuffer(storage=LazyTensorStorage(10))
    with pytest.warns(UserWarning, match=r"Using `add\(\)` with a TensorDict that has batch_size"):
        buffer.add(TensorDict(x=torch.zeros(3, 2), batch_size=[3]))
    assert (len(buffer), buffer.sample(2).shape) == (1, (2, 3))
    buffer = ReplayBuffer(storage=LazyTensorStorage(10))
    buffer.extend(TensorDict(x=torch.zeros(3, 2), batch_size=[3]))
    assert (len(buffer), buffer.sample(2).shape) == (3, (2,))
