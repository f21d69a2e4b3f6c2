"""What the guide to saving and resuming says and does not run is so."""

import multiprocessing
import os
import signal
from unittest import mock

import pytest
import torch
from tensordict import TensorDict
from torchrl.checkpoint import Checkpoint, CheckpointError, CheckpointRotation
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    TensorDictReplayBuffer,
)
from torchrl.envs import GymEnv, ParallelEnv
from torchrl.modules import MLP, QValueActor
from torchrl.objectives import DQNLoss

from tests.support import ROOT
from tests.support.claims import guards
from tests.support.suites import recorded
from tests.support.tutorial_script import run_driver

GUIDE = ROOT / "how-to" / "save_and_resume.py"

# The functions of the guide, without what it shows: a child that is killed wherever it is, another
# that resumes, and one without new episodes.
KILLED = """
import json, multiprocessing, shutil, sys, tempfile, time, types
from pathlib import Path

source = Path(sys.argv[1]).read_text(encoding="utf-8")
page = types.ModuleType("page")
exec(source[: source.index("# A run that is killed")], vars(page))
exec(source[source.index("def state(run):") : source.index('print("killed after"')], vars(page))


def equal(found, expected):
    try:
        page.torch.testing.assert_close(found, expected, rtol=0, atol=0)
    except AssertionError:
        return False
    return True


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    killed = folder / "killed"
    saves = page.CheckpointRotation(killed, keep_last=2)
    child = multiprocessing.get_context("fork").Process(target=page.main, args=[killed, 10**9])
    child.start()
    while len(saves.checkpoints()) < 2:
        time.sleep(0.01)
    child.kill()
    child.join()
    end = int(saves.latest().name.rpartition("-")[2]) + 400
    shutil.copytree(killed, folder / "copy")
    run = page.main(killed, end)
    found, pool = page.state(run), run.collector.state_dict()["traj_pool"]
    run = page.main(folder / "whole", end)
    expected, own_pool = page.state(run), run.collector.state_dict()["traj_pool"]
    page.start_episode = lambda run: None
    without = page.state(page.main(folder / "copy", end))

print(json.dumps({
    "died": child.exitcode,
    "expected": list(expected),
    "equal": [name for name in expected if equal(found[name], expected[name])],
    "without": [name for name in expected if equal(without[name], expected[name])],
    "numbers": [str(pool), str(own_pool)],
}))
"""


@pytest.mark.slow
@guards("resume-without-start-episode-differs", "loading-draws-a-trajectory-number")
def test_a_run_killed_anywhere_goes_on_as_if_nothing_had_been():
    seen = run_driver(KILLED, GUIDE)
    assert seen["died"] == -signal.SIGKILL
    assert seen["equal"] == seen["expected"]
    assert {"rows", "networks"}.isdisjoint(seen["without"])
    after_loading, own = seen["numbers"]
    assert after_loading != own


class Both:
    """A component with two ways to be saved; `die` ends the process in mid-save."""

    def __init__(self, die=False):
        self.die = die

    def dump(self, path):
        (path / "part").write_text("half")
        if self.die:
            os.kill(os.getpid(), signal.SIGKILL)

    def load(self, path):
        assert (path / "part").read_text() == "half"

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        raise AssertionError("not asked for")


@guards("checkpoint-chooses-dump-first")
def test_how_a_component_is_saved(tmp_path):
    net = torch.nn.Linear(1, 1)
    path = Checkpoint(both=Both(), net=net, number=1).save(tmp_path / "save")
    records = Checkpoint.manifest(path)["components"]
    assert {name: record["adapter"] for name, record in records.items()} == {
        "both": "torchrl.dump_load",
        "net": "torchrl.state_dict",
        "number": "torchrl.json",
    }
    assert Checkpoint(both=Both()).load(path).loaded == {"both"}


@guards("checkpoint-killed-in-save", "checkpoint-stage-stays")
def test_a_kill_during_a_save_leaves_the_one_before(tmp_path):
    saves = CheckpointRotation(tmp_path, keep_last=1)
    first = saves.save(Checkpoint(both=Both()), step=1)
    dying = Checkpoint(both=Both(die=True))
    for save in (lambda: saves.save(dying, step=2), lambda: dying.save(first)):
        child = multiprocessing.get_context("fork").Process(target=save)
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
    assert saves.latest() == first
    assert saves.load_latest(Checkpoint(both=Both())).loaded == {"both"}
    saves.save(Checkpoint(both=Both()), step=3)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [name.partition("stage-")[0] for name in names] == [
        ".checkpoint-000000000001.",
        ".checkpoint-000000000002.",
        "checkpoint-000000000003",
    ]


def make_env():
    return GymEnv("CartPole-v1")


@guards("checkpoint-kills-parallel-env")
def test_a_parallel_env_is_asked_for_dump(tmp_path, capfd):
    env = ParallelEnv(1, make_env, mp_start_method="fork")
    env.reset()
    (worker,) = env._workers
    try:
        with pytest.raises(EOFError):
            Checkpoint(env=env).save(tmp_path / "save")
        worker.join(timeout=60)
        assert not worker.is_alive()
    finally:
        with mock.patch.object(env, "_shutdown_workers"):
            env.close(raise_if_closed=False)
    assert "querying dump from env" in capfd.readouterr().err


def rows(number):
    return TensorDict({"reward": torch.arange(number)}, [number])


def buffer(storage):
    return TensorDictReplayBuffer(storage=storage, batch_size=2)


@guards("dumps-in-place-writes-no-rows")
def test_a_memory_mapped_buffer_is_not_copied_onto_itself(tmp_path):
    mapped = buffer(LazyMemmapStorage(10, scratch_dir=tmp_path / "storage"))
    mapped.extend(rows(5))
    with mock.patch.object(TensorDict, "memmap", side_effect=AssertionError("written")):
        mapped.dumps(tmp_path)
        (tmp_path / "other").mkdir()
        with pytest.raises(AssertionError, match="written"):
            mapped.dumps(tmp_path / "other")
    again = buffer(LazyMemmapStorage(10, scratch_dir=tmp_path / "storage"))
    again.loads(tmp_path)
    again.extend(rows(5))
    file = tmp_path / "storage" / "reward.memmap"
    assert torch.from_file(str(file), size=10, dtype=torch.int64).tolist() == [*range(5)] * 2


@guards("save-holds-the-capacity")
def test_the_size_of_a_save_is_that_of_the_capacity(tmp_path):
    sizes = []
    for capacity in (1_000, 10_000):
        full = buffer(LazyTensorStorage(capacity))
        full.extend(rows(5))
        path = Checkpoint(buffer=full).save(tmp_path / str(capacity))
        sizes.append(sum(file.stat().st_size for file in path.rglob("reward.memmap")))
    assert sizes == [1_000 * 8, 10_000 * 8]


@guards("loss-state-needs-estimator")
def test_a_loss_saves_its_value_estimator_or_none(tmp_path):
    env = make_env()

    def make_loss():
        net = MLP(in_features=4, out_features=2, num_cells=[4])
        actor = QValueActor(net, in_keys=["observation"], spec=env.action_spec)
        return DQNLoss(actor, action_space=env.action_spec)

    with_one, without = make_loss(), make_loss()
    with_one.make_value_estimator(gamma=0.5)
    path = Checkpoint(loss=with_one).save(tmp_path / "save")
    with pytest.raises(CheckpointError, match=r"Unexpected key.*_value_estimator\.gamma"):
        Checkpoint(loss=without).load(path)
    without.make_value_estimator(gamma=0.9)
    Checkpoint(loss=without).load(path)
    assert without.value_estimator.gamma == 0.5


@guards("checkpoint-refuses-empty-and-list")
def test_buffers_that_are_not_saved(tmp_path):
    with pytest.raises(RuntimeError, match="Cannot save a non-initialized storage"):
        Checkpoint(buffer=buffer(LazyTensorStorage(10))).save(tmp_path / "empty")
    listed = buffer(ListStorage(10))
    listed.extend(rows(5))
    with pytest.raises(NotImplementedError, match="ListStorage doesn't support"):
        Checkpoint(buffer=listed).save(tmp_path / "listed")
    torch.save(listed.state_dict(), tmp_path / "listed.pt")
    loaded = buffer(ListStorage(10))
    loaded.load_state_dict(torch.load(tmp_path / "listed.pt"))
    assert (loaded[:] == listed[:]).all()


@guards("checkpoint-strict-ignore")
def test_a_component_that_the_save_does_not_have(tmp_path):
    path = Checkpoint(old={"a": 1}).save(tmp_path / "save")
    old, new = {}, {"b": 2}
    both = Checkpoint(old=old, new=new)
    with pytest.raises(CheckpointError, match=r"missing=\['new'\]"):
        both.load(path)
    assert both.load(path, strict="ignore").loaded == {"old"}
    assert (old, new) == ({"a": 1}, {"b": 2})


@guards("checkpoint-keeps-the-first-number")
def test_a_bare_number_is_saved_as_it_was_registered(tmp_path):
    frames, progress = 0, {"frames": 0}
    checkpoint = Checkpoint(frames=frames, progress=progress)
    frames = progress["frames"] = 5_000
    checkpoint.save(tmp_path / "numbers")
    progress["frames"] = 0
    loaded = checkpoint.load(tmp_path / "numbers")
    assert loaded.values["frames"] == 0
    assert progress["frames"] == frames == 5_000


@guards("new-buffer-on-an-old-storage")
def test_a_new_buffer_on_an_old_storage_writes_over_its_rows_and_counts_more(tmp_path):
    def make(storage, **options):
        return TensorDictReplayBuffer(storage=storage, batch_size=4, **options)

    def prioritized(storage):
        return make(storage, sampler=PrioritizedSampler(40, alpha=0.7, beta=0.5))

    def rows(first, number):
        return TensorDict(x=torch.arange(first, first + number), batch_size=[number])

    old = make(LazyTensorStorage(40))
    old.extend(rows(1, 10))
    old.dumps(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"sampler_metadata\.json"):
        prioritized(LazyTensorStorage(40)).loads(tmp_path)
    loaded = make(LazyTensorStorage(40))
    loaded.loads(tmp_path)
    right = prioritized(LazyTensorStorage(40))
    right.extend(loaded[:].exclude("index"))
    right.extend(rows(101, 5))
    assert right[:]["x"].tolist() == [*range(1, 11), *range(101, 106)]
    wrong = prioritized(loaded.storage)
    wrong.extend(rows(101, 5))
    assert wrong[:10]["x"].tolist() == [*range(101, 106), *range(6, 11)]
    assert len(wrong) == 15  # though nothing wrote the last five


@guards("a-mapped-buffer-is-saved-faster")
def test_a_save_takes_longest_where_it_copies_the_frames():
    def save_time(key, of):
        return recorded("saving", key, "save_time", of)

    assert save_time("none", "q3") < save_time("mapped-pixels", "q1")
    assert save_time("mapped-pixels", "q3") < save_time("copied-pixels", "q1")
