"""What the guide to pixel replay says and does not run is so."""

import functools
import sys
import types

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.wrappers import AtariPreprocessing
from torch.utils._python_dispatch import TorchDispatchMode
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from torchrl.envs import CatFrames, MultiStepTransform, SerialEnv

from benchmarks.suites import bench_pixel_replay, bench_pixel_sampling
from tests.support import ROOT
from tests.support.claims import guards
from tests.support.guides import defined_by
from tests.support.suites import recorded

GUIDE = ROOT / "how-to" / "pixel_replay.py"
N_FRAMES, TRAJ_KEY = 300, ("collector", "traj_ids")


@pytest.fixture(scope="module")
def guide():
    """What the first listing of the guide defines."""
    with defined_by("pixel_replay", "\n\nlimits = {") as page:
        yield page


@pytest.fixture(scope="module")
def full(guide):
    collector = Collector(guide.make_env(), frames_per_batch=N_FRAMES, total_frames=N_FRAMES)
    try:
        return next(iter(collector)).clone()
    finally:
        collector.shutdown()


def make_buffer(guide, storage, rows, kind=TensorDictReplayBuffer, **options):
    buffer = kind(storage=storage, transform=guide.StackFrames(storage), **options)
    if rows is not None:
        buffer.extend(rows)
    return buffer


def assert_stacks_of(sample, full):
    assert len(sample)
    assert torch.equal(sample["stack"], full["stack"][sample["index"]])
    kept = sample[sample["complete"] & ~sample["next", "terminated"].squeeze(-1)]
    assert torch.equal(kept["next", "stack"], full["next", "stack"][kept["index"]])


def test_the_suite_measures_the_transform_of_the_guide(guide, full):
    storage = LazyTensorStorage(100)
    buffer = make_buffer(guide, storage, full)
    rows = storage.get(slice(None))
    measured = bench_pixel_replay.StackFrames(storage)
    keys = set(rows.keys(True))
    assert (measured(rows.clone()) == buffer[:]).all()
    assert set(storage.get(slice(None)).keys(True)) == keys, "reading changes the buffer"
    assert set(measured.inv(full.clone()).keys(True)) == set(rows.exclude("index").keys(True))


def test_rows_that_the_buffer_has_overwritten_are_in_no_stack(guide, full):
    """Whatever the capacity, each row of a buffer is right or incomplete."""
    for capacity in (50, 97, 250, N_FRAMES):
        storage = LazyTensorStorage(capacity)
        buffer = make_buffer(guide, storage, None, batch_size=8)
        for chunk in full.split(30):
            buffer.extend(chunk)
        rows = buffer[:]
        numbers = torch.arange(N_FRAMES)[-capacity:]
        source = full[numbers[(numbers % capacity).argsort()]]
        right = (rows["stack"] == source["stack"]).flatten(1).all(1)
        assert torch.equal(rows["pixels"], source["pixels"])
        assert right[rows["complete"]].all()
        unfinished = ~source["next", "done"].squeeze(-1)
        lost = unfinished & ~rows["complete"]
        assert lost.sum() <= 1 + 3, "the newest row and the three oldest ones"


@guards("stacked-rows-take-priorities")
def test_priorities_are_drawn_and_written_back(guide, full):
    options = {"alpha": 0.7, "beta": 0.5, "priority_key": "td_error", "batch_size": 64}
    storage = LazyTensorStorage(N_FRAMES)
    buffer = make_buffer(guide, storage, full, TensorDictPrioritizedReplayBuffer, **options)
    sample = buffer.sample()
    assert_stacks_of(sample, full)
    sample["td_error"] = (sample["index"] == sample["index"][0]).float() * 1e6
    buffer.update_tensordict_priority(sample)
    drawn = buffer.sample()["index"]
    assert (drawn == sample["index"][0]).float().mean() > 0.3


def collectors_of_several(guide):
    env = SerialEnv(2, guide.make_env)
    env.set_seed(0)
    options = {"policy": None, "frames_per_batch": 100, "total_frames": 200}
    yield Collector(env, **options)
    yield MultiSyncCollector([guide.make_env] * 2, **options)


@guards("stacked-rows-of-batched-environments")
def test_rows_of_several_environments_are_right_or_incomplete(guide, forked):
    for collector in collectors_of_several(guide):
        storage = LazyTensorStorage(200)
        buffer, seen = make_buffer(guide, storage, None), []
        for batch in collector:
            buffer.extend(batch.reshape(-1))
            seen.append(batch.reshape(-1).clone())
        collector.shutdown()
        assert batch.shape == (2, 50)
        rows, full = buffer[:], torch.cat(seen)
        right = (rows["stack"] == full["stack"]).flatten(1).all(1)
        assert right[rows["complete"]].all()
        at = torch.arange(200) % 50  # place in the batch of its environment
        lost = ~rows["complete"] & ~full["next", "done"].squeeze(-1)
        assert lost.any()
        assert not lost[(at > 2) & (at < 49)].any()


def test_n_step_stacks_of_several_environments_end_where_the_return_does(guide):
    source = GUIDE.read_text(encoding="utf-8")
    exec(source[source.index("class NStepFrames") : source.index("\n\nn_step =")], vars(guide))
    n_step = MultiStepTransform(n_steps=3, gamma=0.99, done_keys=["done", "truncated"])
    collector = next(collectors_of_several(guide))
    storage = LazyTensorStorage(200)
    buffer, seen = TensorDictReplayBuffer(storage=storage, transform=guide.NStepFrames(storage)), []
    for batch in collector:
        rows = n_step.inv(batch).reshape(-1)
        buffer.extend(rows)
        seen.append(rows.clone())  # its next stack is of the last step
    collector.shutdown()
    rows, full = buffer[:], torch.cat(seen)
    assert (rows["stack"] == full["stack"]).flatten(1).all(1)[rows["complete"]].all()
    kept = rows["complete"] & ~rows["next", "terminated"].squeeze(-1)
    right = (rows["next", "stack"] == full["next", "stack"]).flatten(1).all(1)
    assert kept.sum() > 100
    assert right[kept].all()


class Game(gymnasium.Env):
    """What AtariPreprocessing asks of a game before it plays."""

    observation_space = gymnasium.spaces.Box(0, 255, (210, 160, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(6)

    def __init__(self, repeats):
        self._frameskip = repeats

    def get_action_meanings(self):
        return ["NOOP"]


@guards("atari-preprocessing-frames")
def test_preprocessing_of_atari_needs_a_game_that_does_not_repeat_actions(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", types.ModuleType("cv2"))
    make = functools.partial(AtariPreprocessing, Game(1))
    assert make().frame_skip == 4
    assert make().observation_space.shape == (84, 84)
    assert make(grayscale_obs=False).observation_space.shape == (84, 84, 3)
    with pytest.raises(ValueError, match="Disable frame-skipping in the original env"):
        AtariPreprocessing(Game(4))


@guards("stacked-rows-from-other-storages")
def test_a_memory_mapped_storage_gives_the_same_stacks(guide, full, tmp_path):
    storage = LazyMemmapStorage(N_FRAMES, scratch_dir=tmp_path)
    assert_stacks_of(make_buffer(guide, storage, full, batch_size=64).sample(), full)


@guards("stacked-rows-from-compressed-pixels")
def test_compressed_pixels_give_the_same_stacks(guide, full):
    storage = bench_pixel_replay.CompressedPixels(N_FRAMES)
    buffer = make_buffer(guide, storage, full, batch_size=64)
    assert_stacks_of(buffer.sample(), full)
    assert "pixels" not in LazyTensorStorage.get(storage, 0)
    frame = full["pixels"][0].nbytes
    assert 0 < max(map(len, storage.frames)) < frame


@guards("compressed-pixels-are-not-dumped")
def test_a_checkpoint_has_no_compressed_pixels(guide, full, tmp_path):
    buffer = make_buffer(guide, bench_pixel_replay.CompressedPixels(N_FRAMES), full, batch_size=8)
    buffer.dumps(tmp_path / "saved")
    loaded = bench_pixel_replay.CompressedPixels(N_FRAMES)
    other = make_buffer(guide, loaded, None, batch_size=8)
    other.loads(tmp_path / "saved")
    assert len(other) == N_FRAMES
    assert not any(loaded.frames)


@guards("catframes-method-demands")
def test_what_the_method_of_catframes_demands(full):
    keys = {"in_keys": ["pixels"], "out_keys": ["stack"]}
    cat = CatFrames(N=4, dim=-3, reset_key="_reset", **keys)

    def sample(rows, kind=ReplayBuffer):
        transform, sampler = cat.make_rb_transform_and_sampler(batch_size=3)
        storage = LazyTensorStorage(N_FRAMES)
        buffer = kind(storage=storage, sampler=sampler, transform=transform, batch_size=32)
        buffer.extend(rows)
        return buffer.sample()

    ignored = pytest.warns(UserWarning, match="The last dimension of the tensordict")
    with ignored:
        found = sample(full)
    assert len(found) == 32, "batch_size=3 was to be used"
    assert found.get("index", None) is None
    with ignored, pytest.raises(AttributeError, match="'NoneType' object"):
        sample(full.exclude(("next", "pixels"), ("next", "stack")))
    with ignored, pytest.raises(RuntimeError, match="Failed to set the metadata"):
        sample(full, TensorDictReplayBuffer)


class Written(TorchDispatchMode):
    """Bytes of what operators return."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        if isinstance(result, torch.Tensor) and not function.is_view:
            self.bytes += result.nbytes
        return result


@guards("catframes-sample-writes-more")
def test_a_sample_of_the_method_of_catframes_writes_many_times_as_much(guide, full):
    cat = CatFrames(4, -3, in_keys=["pixels"], out_keys=["stack"], reset_key="_reset")
    transform, sampler = cat.make_rb_transform_and_sampler(batch_size=32)
    storage = LazyTensorStorage(N_FRAMES)
    method = ReplayBuffer(storage=storage, sampler=sampler, transform=transform)
    method.extend(full)
    ours = make_buffer(guide, LazyTensorStorage(N_FRAMES), full)
    with Written() as by_us:
        ours.sample(32)
    with Written() as by_method, pytest.warns(UserWarning, match="should be marked as 'time'"):
        method.sample(32)
    assert by_method.bytes > 20 * by_us.bytes


@guards("compressed-list-larger-than-frames")
def test_a_compressed_list_needs_more_memory_than_the_frames():
    memory = {
        way: recorded("pixel_replay", f"memory-5k-{way}", "anonymous_per_row")
        for way in ("frame", "frame-list", "frame-compressed")
    }
    assert memory["frame-compressed"] < memory["frame"] < memory["frame-list"]


def sample_time(way, quantile="median"):
    return recorded("pixel_sampling", f"sample-{way}", "sample_time", quantile)


@guards("catframes-samples-far-slower")
def test_the_method_of_catframes_takes_ten_times_as_long_as_any_other():
    others = bench_pixel_sampling.WAYS.keys() - {"frames"}
    assert sample_time("frames", "q1") > 10 * max(sample_time(way, "q3") for way in others)


@guards("sb3-samples-stacks-faster")
def test_stable_baselines_samples_faster():
    ours = [way for way in bench_pixel_sampling.WAYS if not way.startswith("sb3")]
    slowest = max(sample_time(way, "q3") for way in ("sb3", "sb3-optimized"))
    assert slowest < min(sample_time(way, "q1") for way in ours)


def test_the_method_of_catframes_draws_an_episode_and_then_a_slice(full):
    """One long episode and one of four rows: half of the samples are of the short one."""
    rows = full[:104].clone()
    rows[TRAJ_KEY][:] = torch.arange(104) // 100
    sampler = SliceSampler(slice_len=4, traj_key=TRAJ_KEY)
    buffer = ReplayBuffer(storage=LazyTensorStorage(104), sampler=sampler, batch_size=4_000)
    buffer.extend(rows)
    short = buffer.sample()[TRAJ_KEY].float().mean().item()
    assert short == pytest.approx(0.5, abs=0.1)
