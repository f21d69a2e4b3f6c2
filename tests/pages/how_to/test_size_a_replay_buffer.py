"""What the guide to sizing a replay buffer says and does not run is so."""

import shutil
from collections import namedtuple
from unittest import mock

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    TensorDictReplayBuffer,
)
from torchrl.envs import ExcludeTransform, MultiStepTransform

from tests.support.claims import guards
from tests.support.guides import defined_by
from tests.support.suites import recorded

Usage = namedtuple("Usage", "total used free")


@pytest.fixture(scope="module")
def guide():
    """What the guide defines before it compares the plan with the memory."""
    with defined_by("size_a_replay_buffer", "\n\non_disk = ") as page:
        yield page
        page.scratch.cleanup()


def test_the_plan_chooses_memory_then_the_disk_then_raises(guide):
    planned = guide.ROWS * guide.bytes_of_a_row(guide.batch)
    for memory, kind in ((planned, LazyTensorStorage), (planned - 1, LazyMemmapStorage)):
        assert type(guide.make_buffer(guide.batch, memory).storage) is kind
    for free, raises in ((planned, False), (planned - 1, True)):
        with mock.patch.object(shutil, "disk_usage", return_value=Usage(0, 0, free)):
            if raises:
                with pytest.raises(ValueError, match="neither into memory nor on the disk"):
                    guide.make_buffer(guide.batch, 0)
            else:
                guide.make_buffer(guide.batch, 0)


@guards("first-row-gives-shapes-and-types", "tensor-storage-reserves")
@pytest.mark.parametrize("kind", [LazyTensorStorage, LazyMemmapStorage])
def test_the_first_row_gives_the_shapes_and_types_of_all(kind, tmp_path):
    options = {"scratch_dir": tmp_path} if kind is LazyMemmapStorage else {}
    buffer = ReplayBuffer(storage=kind(50, **options))
    buffer.extend(TensorDict({"x": torch.zeros(2, 3)}, [2]))
    held = buffer.storage[:]["x"].untyped_storage()
    assert held.nbytes() == 50 * 3 * torch.float32.itemsize
    for other in (torch.zeros(2, 4), torch.zeros(2, 3, dtype=torch.float64)):
        with pytest.raises(RuntimeError):
            buffer.extend(TensorDict({"x": other}, [2]))


@guards("observations-are-stored-twice")
def test_an_observation_is_also_the_next_one_of_the_row_before(guide):
    batch = guide.batch
    assert batch["observation"].shape == batch["next", "observation"].shape
    same = (batch["observation"][1:] == batch["next", "observation"][:-1]).all(-1)
    assert torch.equal(same, ~batch["next", "done"][:-1].squeeze(-1))
    assert same.any()


@guards("plan-without-buffer-transforms")
def test_a_transform_of_the_buffer_changes_the_bytes_of_a_row(guide):
    def bytes_of_a_stored_row(transform):
        found = set()
        for rows in (50, 1_000):
            storage = LazyTensorStorage(rows)
            buffer = TensorDictReplayBuffer(storage=storage, transform=transform())
            buffer.extend(guide.batch[:40])
            found.add(guide.held_bytes(storage[:]) / rows)
        (bytes_of_a_row,) = found
        return bytes_of_a_row

    def drop_the_reward():
        return ExcludeTransform(("next", "reward"), inverse=True)

    planned = guide.bytes_of_a_row(guide.batch)
    assert bytes_of_a_stored_row(lambda: None) == planned
    assert bytes_of_a_stored_row(lambda: MultiStepTransform(n_steps=3, gamma=0.9)) > planned
    assert bytes_of_a_stored_row(drop_the_reward) < planned


@guards("files-take-room-when-written")
def test_files_take_room_on_the_disk_as_rows_are_written(guide, tmp_path):
    def room_taken():
        return sum(file.stat().st_blocks * 512 for file in tmp_path.rglob("*.memmap"))

    rows = 100_000
    storage = LazyMemmapStorage(rows, scratch_dir=tmp_path)
    buffer = TensorDictReplayBuffer(storage=storage)
    buffer.extend(guide.batch)
    reserved = guide.bytes_in_files(tmp_path)
    assert reserved == rows * guide.bytes_of_a_row(guide.batch)
    if room_taken() == reserved:
        pytest.skip("this file system reserves whole files")
    assert room_taken() < reserved / 10
    for _ in range(rows // len(guide.batch)):
        buffer.extend(guide.batch)
    assert room_taken() >= reserved


@guards("list-takes-other-shapes")
def test_a_list_takes_rows_of_different_shapes():
    buffer = ReplayBuffer(storage=ListStorage(4))
    for length in (3, 4):
        buffer.extend([TensorDict({"x": torch.zeros(length)})])
    assert [len(row["x"]) for row in buffer.storage[:]] == [3, 4]


# The contents of a row, in the two parts of the record.
CONTENTS = {"state": "state", "pixels": "blocks"}


def grown(content, storage, kind="anonymous"):
    return recorded("replay_buffers", f"memory-{content}-{storage}", f"{kind}_per_row")


def planned(content):
    return recorded("replay_buffers", f"bytes-{CONTENTS[content]}-tensor", "bytes_per_row")


@guards("memory-of-a-full-buffer")
@pytest.mark.parametrize("content", CONTENTS)
def test_a_process_grows_by_the_plan_or_hardly_at_all(content):
    assert grown(content, "tensor") == pytest.approx(planned(content), rel=0.05)
    kept = grown(content, "memmap") + grown(content, "memmap", "shared")
    assert kept < 0.1 * planned(content)
    assert grown(content, "memmap", "disk") == pytest.approx(planned(content), rel=0.05)


@guards("list-objects-outweigh-small-rows")
def test_the_objects_of_a_list_need_more_than_small_tensors():
    assert grown("state", "list") > 10 * planned("state")
    assert planned("pixels") < grown("pixels", "list") < 1.5 * planned("pixels")
