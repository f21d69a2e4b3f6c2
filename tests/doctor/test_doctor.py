"""The doctor on healthy pipelines, on objects that misbehave, and on the command line."""

import ast
import contextlib
import gc
import json
import os
import random
import runpy
import signal
import sys
import threading
import time
import tomllib
import warnings
from pathlib import Path

import numpy
import pytest
import torch
import torchrl_doctor
from docutils import nodes
from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.data import (
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
    Unbounded,
)
from torchrl.data.tensor_specs import Composite
from torchrl.envs import (
    CatFrames,
    EnvBase,
    EnvCreator,
    ParallelEnv,
    RewardScaling,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    VecNormV2,
)
from torchrl.envs.transforms import NextStateReconstructor
from torchrl.modules import set_recurrent_mode
from torchrl.objectives import DQNLoss
from torchrl_doctor import (
    APPLIES,
    CHECKS,
    CLEAR,
    FAILED,
    UNDECIDED,
    applies,
    check,
    clear,
    diagnose,
)
from torchrl_doctor.cli import main
from torchrl_doctor.copies import FEWEST_STEPS

from docs._ext.gallery.children import children
from tests.support import ROOT
from tests.support.claims import guards
from tests.support.healthy_pipelines import ALSO_TRUE, PIPELINES, cartpole, collect_from, q_policy
from tests.support.object_state import fingerprint
from tests.support.programs import run_python
from tests.support.symptom_pages import new_shared_files, shared_files
from tools import rst_reader

DOCTOR = ROOT / "doctor"
SINGLE_FILE = runpy.run_path(str(DOCTOR / "single_file.py"))["single_file"]
PAGE = "docs/reference/doctor.rst"
SECONDS = 60  # so that a busy machine changes no verdict
QUIET = {"RL_LOGGING_LEVEL": "ERROR"}


def alarming(report):
    """What a healthy pipeline must not be told."""
    return [one[:4] for one in report if one.state in (APPLIES, FAILED)]


def random_states():
    state = numpy.random.get_state()
    return random.getstate(), state[1].tolist(), state[2:], torch.get_rng_state().tolist()


@contextlib.contextmanager
def unchanged(**objects):
    """What runs inside changes no object, draws nothing and leaves nothing behind."""

    def everything():
        return {
            "objects": fingerprint(**objects),
            "random states": random_states(),
            "processes": {child.pid for child in children()},
            "files": sorted(Path.cwd().rglob("*")),
            "modes": (torch.is_grad_enabled(), torch.get_num_threads()),
            "alarm": (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)),
        }

    threads, shared = threading.enumerate(), shared_files()
    before = everything()
    yield
    after = everything()
    assert new_shared_files(shared) == set()
    assert {name for name in shared if str(os.getpid()) in name} <= shared_files()
    assert [one for one in threading.enumerate() if one not in threads] == []
    places = before["objects"].keys() | after["objects"].keys()
    changed = [one for one in places if before["objects"].get(one) != after["objects"].get(one)]
    assert changed == []
    assert before == after


@pytest.fixture
def given_to_checks(no_checks):
    """What the core hands to a check that takes everything."""
    got = {}

    @check("takes_everything", "Takes everything")
    def _(
        collector=None,
        replay_buffer=None,
        env=None,
        policy=None,
        batch=None,
        sample=None,
        error=None,
    ):
        got.update({name: value for name, value in locals().items() if value is not None})
        got.pop("got")

    return got


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty current folder, which takes temporary files as well."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


# -- Healthy pipelines ---------------------------------------------------------


@guards("doctor-generators-restored", "doctor-leaves-nothing", "doctor-no-training")
@pytest.mark.parametrize("name", PIPELINES)
def test_a_healthy_pipeline_is_told_nothing_and_stays_as_it_is(name, folder):
    torch.manual_seed(0)
    given, train = PIPELINES[name]()
    options = {"seconds": SECONDS, "ignore": ALSO_TRUE.get(name, ())}
    with unchanged(**given):
        assert alarming(diagnose(**given, **options)) == []
    train()
    with unchanged(**given):
        assert alarming(diagnose(**given, **options)) == []
    if "collector" not in given:
        return
    batch = next(iter(given["collector"])).clone()
    with unchanged(batch=batch, **given):
        assert alarming(diagnose(**given, batch=batch, **options)) == []
    batches = [batch, next(iter(given["collector"])).clone()]
    if "value_estimator" in given and not name.startswith("recurrent"):
        with torch.no_grad():  # the last batch is as it was collected
            given["value_estimator"](batches[0])
    assert alarming(diagnose(**given, batch=batches, **options)) == []
    given["collector"].shutdown()


def test_a_check_that_names_a_healthy_pipeline_is_seen(no_checks):
    """The test above can fail: the first check alarms, the second has a bug."""

    @check("alarms", "Alarms")
    def _(batch):
        return applies(f"{len(batch)} frames")

    @check("has_a_bug", "Has a bug")
    def _(batch):
        return clear(bach)  # noqa: F821

    given, _ = PIPELINES["dqn"]()
    found = [(slug, state) for slug, _, state, _ in alarming(diagnose(**given))]
    assert found == [("alarms", APPLIES), ("has_a_bug", FAILED)]
    given["collector"].shutdown()


MULTI_PROCESS = """
import json, sys
import torch.multiprocessing

if __name__ == "__main__":
    torch.multiprocessing.set_start_method("forkserver", force=True)
    torch.multiprocessing.set_forkserver_preload(["torchrl.collectors", "torchrl.envs"])
    from tests.support import healthy_pipelines
    from torchrl_doctor import diagnose

    given, train = healthy_pipelines.multi_process_ppo()
    reports = [diagnose(**given, seconds=60)]
    batch = train().clone()
    reports += [diagnose(**given, seconds=60)]
    reports += [diagnose(**given, batch=batch, seconds=60)]
    given["collector"].shutdown()
    print(json.dumps([json.loads(report.to_json()) for report in reports]))
"""


@guards("doctor-cannot-copy")
@pytest.mark.slow
def test_a_healthy_multi_process_pipeline_is_told_nothing(tmp_path):
    Path(tmp_path, "pipeline.py").write_text(MULTI_PROCESS, encoding="utf-8")
    done = run_python("pipeline.py", cwd=tmp_path, path=[DOCTOR / "src", ROOT], **QUIET)
    reports = json.loads(done.stdout.splitlines()[-1])
    verdicts = [one for report in reports for one in report["findings"]]
    assert [one for one in verdicts if one["verdict"] in (APPLIES, FAILED)] == []
    # No copy of such a collector can be made, and the report says so.
    said = "a MultiSyncCollector collects in other processes or threads"
    assert [said in " ".join(report["notes"]) for report in reports] == [True, True, False]


# -- Data ----------------------------------------------------------------------


@guards("doctor-frames-bounded")
def test_a_batch_comes_from_a_copy_of_the_collector(given_to_checks, folder):
    collector = collect_from(cartpole(), q_policy(cartpole()), frames_per_batch=65536)
    with unchanged(collector=collector):
        diagnose(collector=collector, frames=100, seconds=SECONDS)
    assert given_to_checks["batch"].shape == (100,)
    assert given_to_checks["env"] is collector.env
    collector.shutdown()


@guards("doctor-frames-bounded")
def test_a_batch_of_a_small_collector_is_as_small(given_to_checks):
    collector = collect_from(cartpole(), q_policy(cartpole()), frames_per_batch=3)
    diagnose(collector=collector, seconds=SECONDS)
    assert given_to_checks["batch"].shape == (3,)
    collector.shutdown()


def test_a_batch_of_whole_trajectories_ends_where_one_ends(given_to_checks):
    options = {"trajs_per_batch": 2, "traj_format": "cat"}
    collector = collect_from(cartpole(), q_policy(cartpole()), **options)
    diagnose(collector=collector, seconds=SECONDS)
    assert given_to_checks["batch"]["next", "done"].sum() == 2
    collector.shutdown()


@guards("doctor-copy-stripped")
def test_random_frames_do_not_stand_in_for_those_of_the_policy(given_to_checks):
    collector = collect_from(cartpole(), q_policy(cartpole()), init_random_frames=1000)
    diagnose(collector=collector, seconds=SECONDS)
    assert "chosen_action_value" in given_to_checks["batch"]
    collector.shutdown()


@guards("doctor-copy-stripped", "doctor-parts-from-collector")
def test_the_copy_neither_writes_to_the_buffer_nor_calls_hooks(given_to_checks):
    buffer = ReplayBuffer(storage=LazyTensorStorage(100))
    called = []
    options = {"replay_buffer": buffer, "post_collect_hook": called.append}
    collector = collect_from(cartpole(), q_policy(cartpole()), **options)
    diagnose(collector=collector, seconds=SECONDS)
    assert len(buffer) == 0
    assert called == []
    assert given_to_checks["replay_buffer"] is buffer
    assert given_to_checks["batch"].shape == (40,)
    collector.shutdown()


@guards("doctor-collects-from-copy")
def test_a_batch_comes_from_copies_of_environment_and_policy(given_to_checks, folder):
    env = TransformedEnv(cartpole(), StepCounter())
    policy = q_policy(env)
    with unchanged(env=env, policy=policy):
        diagnose(env=env, policy=policy, frames=50, seconds=SECONDS)
    assert given_to_checks["batch"].shape == (50,)


def test_a_batch_comes_from_environments_that_were_never_started(given_to_checks):
    report = diagnose(env=SerialEnv(2, cartpole), policy=q_policy(cartpole()), seconds=SECONDS)
    assert report.notes == []
    assert given_to_checks["batch"].shape == (2, 128)


@guards("doctor-parallel-in-process")
def test_environments_in_other_processes_are_stepped_in_this_one(given_to_checks, folder):
    env = TransformedEnv(ParallelEnv(2, cartpole), StepCounter())
    policy = q_policy(cartpole())
    with unchanged(env=env, policy=policy):
        diagnose(env=env, policy=policy, seconds=SECONDS)
    assert given_to_checks["batch"].shape == (2, 128)
    assert "step_count" in given_to_checks["batch"]


def test_environments_that_were_never_started_are_copied():
    env = SerialEnv(2, cartpole)
    assert list(diagnose(env=env, seconds=SECONDS, only=["actions_have_no_effect"])) == []


def test_statistics_that_workers_share_stay_as_they_are(given_to_checks):
    def normalized():
        return TransformedEnv(cartpole(), VecNormV2(["observation"]))

    def count():
        return creator.state_dict()["_extra_state"]["count.-|-.observation"].clone()

    creator = EnvCreator(normalized)
    env, before = ParallelEnv(2, creator), count()
    diagnose(env=env, policy=q_policy(cartpole()), seconds=SECONDS)
    assert "batch" in given_to_checks
    assert torch.equal(count(), before)


def test_the_copies_of_several_environments_start_anew_as_these_would(given_to_checks):
    """A deep copy of a started SerialEnv returns its first observations from every reset."""
    env = TransformedEnv(SerialEnv(2, cartpole), StepCounter())
    collector = collect_from(env, None, frames_per_batch=200)
    diagnose(collector=collector, seconds=SECONDS)
    batch = given_to_checks["batch"]
    ends = batch["next", "done"].squeeze(-1)[:, :-1]
    starts = torch.cat([one[1:][end] for one, end in zip(batch["observation"], ends, strict=True)])
    assert len(starts.unique(dim=0)) == len(starts) > 3
    collector.shutdown()


@pytest.mark.filterwarnings("ignore:split_trajs=True produces:UserWarning")
def test_padding_holds_nothing_of_the_policy_and_that_is_no_finding():
    given, _ = PIPELINES["batched_ppo"]()
    given["collector"].shutdown()
    env = SerialEnv(2, cartpole)
    collector = collect_from(env, given["policy"], frames_per_batch=100, split_trajs=True)
    batch = next(iter(collector)).clone()
    assert not batch["collector", "mask"].all()
    assert alarming(diagnose(collector=collector, batch=batch, seconds=SECONDS)) == []
    collector.shutdown()


def test_the_mode_of_the_caller_is_not_that_of_the_copy(given_to_checks):
    given, _ = PIPELINES["recurrent_ppo"]()
    with set_recurrent_mode(True):
        diagnose(collector=given["collector"], seconds=SECONDS)
    batch = given_to_checks["batch"]
    inner = ~batch["is_init"].squeeze(-1)[:, 1:]
    assert (batch["recurrent_state_h"].flatten(2)[:, 1:][inner] != 0).any(-1).all()
    given["collector"].shutdown()


PLAIN = {
    "tensor": lambda: (LazyTensorStorage(30), torch.zeros(20, 3)),
    "numbers in a dictionary": lambda: (LazyTensorStorage(30), {"a": torch.zeros(20, 3)}),
    "words": lambda: (ListStorage(30), ["a", "b", "c"] * 4),
}


@pytest.mark.parametrize("kind", PLAIN)
def test_a_buffer_of_other_things_than_tensordicts_is_told_nothing(kind):
    storage, data = PLAIN[kind]()
    buffer = ReplayBuffer(storage=storage, batch_size=4, collate_fn=lambda rows: rows)
    buffer.extend(data)
    assert alarming(diagnose(replay_buffer=buffer)) == []


SAMPLERS = {
    "random": lambda: RandomSampler(),
    "without replacement": lambda: SamplerWithoutReplacement(),
    "prioritized": lambda: PrioritizedSampler(200, alpha=0.7, beta=0.5),
    "slices": lambda: SliceSampler(num_slices=3),
    "slices by length": lambda: SliceSampler(slice_len=3),
    "slices without replacement": lambda: SliceSamplerWithoutReplacement(num_slices=3),
}


@pytest.fixture(scope="module")
def frames():
    torch.manual_seed(0)
    env = cartpole()
    env.set_seed(0)
    collector = collect_from(env, q_policy(env), frames_per_batch=120)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    return batch


# A slice sampler needs a storage with keys.
BUFFERS = [
    (sampler, storage)
    for sampler in SAMPLERS
    for storage in (LazyTensorStorage, LazyMemmapStorage, ListStorage)
    if not (storage is ListStorage and "slices" in sampler)
]


@guards("doctor-storage-untouched")
@pytest.mark.parametrize(("sampler", "storage"), BUFFERS)
def test_a_sample_comes_from_a_twin_of_the_buffer(
    given_to_checks, folder, frames, sampler, storage
):
    generator = torch.Generator().manual_seed(0)
    sized = {"batch_size": 12, "prefetch": 2}
    for options in (sized, {"generator": generator}):
        scaling = RewardScaling(0.0, 2.0, in_keys=[("next", "reward")])
        parts = {"storage": storage(200), "sampler": SAMPLERS[sampler](), "transform": scaling}
        buffer = TensorDictReplayBuffer(**parts, **options)
        buffer.extend(frames)
        if options is sized:
            buffer.sample()  # fills the queue
            for future in buffer._prefetch_queue:
                future.result()
        with unchanged(buffer=buffer):
            report = diagnose(replay_buffer=buffer, seconds=SECONDS)
        assert report.notes == []
        assert len(given_to_checks.pop("sample"))
        if options is sized:
            buffer._prefetch_executor.shutdown()


@guards("doctor-storage-untouched")
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_what_is_written_to_a_sample_does_not_reach_rows_that_a_storage_hands_out(
    given_to_checks, folder, frames, sampler
):
    scaling = RewardScaling(0.0, 2.0, in_keys=[("next", "reward")])
    parts = {"storage": LazyStackStorage(200), "sampler": SAMPLERS[sampler]()}
    for options in ({}, {"transform": scaling}):
        buffer = TensorDictReplayBuffer(**parts, **options, batch_size=12)
        buffer.extend(frames.clone())
        with unchanged(buffer=buffer):
            report = diagnose(replay_buffer=buffer, seconds=SECONDS)
        assert report.notes == []
        assert len(given_to_checks.pop("sample"))


ROWS = {
    "tensor": lambda: torch.zeros(8, 3),
    "tuple": lambda: (torch.zeros(8, 3), torch.zeros(8)),
    "dictionary": lambda: {"observation": torch.zeros(8, 3), "reward": torch.zeros(8)},
}


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
@pytest.mark.parametrize("rows", ROWS)
def test_a_buffer_of_rows_without_keys_fails_no_check(folder, rows, storage):
    buffer = ReplayBuffer(storage=storage(20), batch_size=4)
    buffer.extend(ROWS[rows]())
    report = diagnose(replay_buffer=buffer)
    assert report.notes == ["replay_buffer holds no tensordicts; its samples are not looked at."]
    assert alarming(report) == []


def buffer_of(*batches, storage=LazyTensorStorage, size=1000, **options):
    buffer = TensorDictReplayBuffer(storage=storage(size), batch_size=8, **options)
    for batch in batches:
        buffer.extend(batch)
    return buffer


def rows_of_a_view(frames, folder):
    buffer = buffer_of(frames)
    return {"replay_buffer": buffer, "batch": [buffer[:40], buffer[40:80]]}


def a_key_that_is_not_stored(frames, folder):
    later = frames.clone().set("observation", frames["observation"] + 1)
    later["next", "observation"] = frames["next", "observation"] + 1
    batches = [frames, later.clone().set("seen", torch.ones(len(frames)))]
    return {"replay_buffer": buffer_of(frames, later), "batch": batches}


def a_buffer_on_disk_beyond_memory(frames, folder):
    storage = LazyMemmapStorage(10**12, scratch_dir=folder / "rows")
    return {"replay_buffer": ReplayBuffer(storage=storage), "batch": frames}


def a_buffer_that_rebuilds_and_is_empty(frames, folder):
    return {"replay_buffer": buffer_of(transform=NextStateReconstructor())}


def episodes_of_one_step(frames, folder):
    rows = frames.exclude(("next", "observation"))
    for key in ("done", "terminated"):
        rows["next", key] = torch.ones(len(rows), 1, dtype=torch.bool)
    return {"replay_buffer": buffer_of(rows, transform=NextStateReconstructor())}


UNUSUAL = [
    rows_of_a_view,
    a_key_that_is_not_stored,
    a_buffer_on_disk_beyond_memory,
    a_buffer_that_rebuilds_and_is_empty,
    episodes_of_one_step,
]


@pytest.mark.parametrize("make", UNUSUAL)
def test_a_buffer_that_is_used_in_an_unusual_way_is_told_nothing(folder, frames, make):
    assert alarming(diagnose(**make(frames, folder))) == []


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="the system does not say")
def test_a_nameless_file_outside_of_shared_memory_fills_no_memory(monkeypatch):
    found = {}
    handler = sys.modules["tensordict.memmap"]._FileHandler
    for folders in (handler._dir_candidates, []):
        monkeypatch.setattr(handler, "_dir_candidates", folders)
        buffer = ReplayBuffer(storage=LazyMemmapStorage(32), batch_size=2)
        buffer.extend(torch.zeros(4, 1 << 18))
        for one in diagnose(replay_buffer=buffer):
            if one.slug == "memmap_buffer_fills_memory":
                found[len(folders)] = one.state
    assert found == {1: APPLIES, 0: CLEAR}


def test_the_twin_does_not_remove_the_files_of_the_buffer(given_to_checks, folder, frames):
    storage = LazyMemmapStorage(200, scratch_dir=folder / "rows", auto_cleanup=True)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=8)
    buffer.extend(frames)
    with unchanged(buffer=buffer):
        diagnose(replay_buffer=buffer)
        given_to_checks.clear()
        gc.collect()
    assert list(Path(folder, "rows").rglob("*.memmap"))


def test_a_transform_that_has_seen_nothing_yet_is_copied(given_to_checks, frames):
    stack = CatFrames(2, dim=-1, in_keys=["observation"], out_keys=["stack"])
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(200),
        sampler=SliceSampler(slice_len=3),
        transform=stack,
        batch_size=6,
    )
    buffer.extend(frames)
    (note,) = diagnose(replay_buffer=buffer).notes
    assert note.startswith("a copy warns: UserWarning: The last dimension")
    assert given_to_checks["sample"]["stack"].shape == (6, 8)


def test_a_sample_comes_from_a_twin_of_an_ensemble(given_to_checks, folder, frames):
    parts = [TensorDictReplayBuffer(storage=LazyTensorStorage(200)) for _ in range(2)]
    for part in parts:
        part.extend(frames.exclude("collector"))
    generator = torch.Generator().manual_seed(0)
    buffer = ReplayBufferEnsemble(
        *parts, p=[0.5, 0.5], sample_from_all=False, batch_size=8, generator=generator
    )
    with unchanged(buffer=buffer):
        report = diagnose(replay_buffer=buffer, seconds=SECONDS)
    assert report.notes == []
    assert given_to_checks["sample"].numel() == 8


def test_what_follows_in_the_buffer_is_what_would_have_followed(frames):
    def drawn(examined):
        torch.manual_seed(0)
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(200),
            sampler=SamplerWithoutReplacement(),
            batch_size=50,
            generator=torch.Generator().manual_seed(0),
        )
        buffer.extend(frames)
        first = buffer.sample()["index"].tolist()
        if examined:
            diagnose(replay_buffer=buffer)
        return first, buffer.sample()["index"].tolist()

    assert drawn(examined=True) == drawn(examined=False)


@guards("doctor-batch-argument")
def test_a_list_of_batches_serves_a_check_that_is_made_for_one(no_checks):
    @check("one", "One")
    def _(batch):
        return clear(str(batch["number"].item()))

    @check("all", "All")
    def _(batch):
        return clear(str(len(batch))) if isinstance(batch, list) else None

    batches = [TensorDict(number=torch.tensor(n)) for n in (3, 4)]
    assert [one.evidence for one in diagnose(batch=batches)] == ["4", "2"]


# -- Objects that misbehave ----------------------------------------------------


class Crowd(EnvBase):
    """As many environments in one as asked for."""

    def __init__(self, number):
        super().__init__(batch_size=[number])
        shape = (number, 1)
        self.observation_spec = Composite(observation=Unbounded(shape), shape=(number,))
        self.action_spec = Unbounded(shape)
        self.reward_spec = Unbounded(shape)

    def _reset(self, tensordict=None):
        return self.full_observation_spec.zero()

    def _step(self, tensordict):
        out = self.full_observation_spec.zero()
        return out.update(self.full_reward_spec.zero()).update(self.full_done_spec.zero())

    def _set_seed(self, seed):
        pass


def act(tensordict):
    return tensordict.set("action", torch.zeros(*tensordict.batch_size, 1))


def raise_an_error(tensordict):
    raise RuntimeError("no\nsuch   policy")


def leave(tensordict):
    sys.exit("no such policy")


def never_return(tensordict):
    while True:
        with contextlib.suppress(Exception):  # the time limit has to get past this
            time.sleep(60)


@guards("doctor-policy-exception")
def test_a_policy_that_raises_is_a_sentence_and_its_error_is_looked_at(given_to_checks):
    report = diagnose(env=cartpole(), policy=raise_an_error)
    assert report.notes == ["no batch could be collected: RuntimeError: no such policy"]
    assert str(given_to_checks["error"]) == "no\nsuch   policy"


def test_the_error_of_the_reader_goes_before_that_of_a_copy(given_to_checks):
    error = KeyError("mine")
    diagnose(env=cartpole(), policy=raise_an_error, error=error)
    assert given_to_checks["error"] is error


@pytest.fixture
def alarm():
    """The reader's own alarm, which rings later."""
    handler = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 1000)
    yield signal.getsignal(signal.SIGALRM)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler)


@guards("doctor-interrupts-hangs")
def test_what_hangs_is_interrupted_and_the_reader_keeps_the_alarm(given_to_checks, alarm):
    report = diagnose(env=cartpole(), policy=never_return, seconds=0.6)
    cure = "Give it more seconds=, or a batch=."
    assert report.notes == [f"no batch could be collected: it took too long. {cure}"]
    assert "error" not in given_to_checks
    assert signal.getsignal(signal.SIGALRM) is alarm
    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] < 1000


@guards("doctor-time-bounded")
def test_checks_that_hang_take_no_more_than_the_time_there_is(no_checks):
    for number in range(5):
        check(f"hangs_{number}", "Hangs")(lambda policy: never_return(policy))
    report = diagnose(policy=act, seconds=0.9)
    assert [one.state for one in report] == [UNDECIDED] * 5
    said = [one.evidence for one in report]
    assert said[0] == "it took too long"
    assert said[-1] == "no time was left"


@guards("doctor-interrupts-hangs")
def test_outside_the_main_thread_the_report_says_that_nothing_is_interrupted():
    reports = []
    thread = threading.Thread(target=lambda: reports.append(diagnose(policy=act)))
    thread.start()
    thread.join()
    assert "nothing that hangs is stopped" in reports[0].notes[0]


def test_an_environment_that_cannot_be_copied_asks_for_a_batch(given_to_checks):
    env = cartpole()
    with Path(os.devnull).open() as env.log:
        report = diagnose(env=env, policy=act)
    assert report.notes == [
        "no batch could be collected: copying it raises TypeError: cannot pickle "
        "'_io.TextIOWrapper' object. Pass a batch of your own as batch=."
    ]
    assert "error" not in given_to_checks


def test_a_tuple_of_batches_is_a_list_of_them(given_to_checks, frames):
    diagnose(batch=(frames, frames))
    assert given_to_checks["batch"] == [frames, frames]


def test_a_batch_without_keys_raises_nothing():
    empty = TensorDict(batch_size=[4])
    given, _ = PIPELINES["recurrent_ppo"]()
    report = diagnose(**given, batch=empty)
    assert [one for one in report if one.state == FAILED] == []
    given["collector"].shutdown()


@guards("doctor-wrong-objects")
def test_what_is_not_what_it_should_be_is_left_out(given_to_checks):
    wrong = dict.fromkeys(torchrl_doctor.ARGUMENTS, "a word")
    report = diagnose(**wrong)
    assert report.refused == list(torchrl_doctor.ARGUMENTS)
    assert report.notes[0] == "collector is of type str, not a collector; it is left out."
    assert given_to_checks == {}
    assert diagnose(collector=Collector, env=cartpole, batch=[]).refused == [
        "collector",
        "env",
        "batch",
    ]


def test_what_would_end_the_program_is_a_sentence(no_checks):
    @check("leaves", "Leaves")
    def _(policy):
        policy("again")

    report = diagnose(env=cartpole(), policy=leave)
    assert report.notes == ["no batch could be collected: SystemExit: no such policy"]
    assert [one.evidence[:24] for one in report] == ["SystemExit: no such poli"]


def test_a_batch_without_rows_is_left_out(given_to_checks, frames):
    report = diagnose(batch=frames[:0])
    assert report.notes == ["batch has no rows; it is left out."]
    assert "batch" not in given_to_checks


def test_an_object_that_raises_on_every_attribute_is_a_sentence():
    class Hostile:
        def __getattr__(self, name):
            raise RuntimeError("no entry")

    report = diagnose(collector=Hostile(), env=Hostile())
    assert report.notes == [
        "collector cannot be looked at: RuntimeError: no entry",
        "env cannot be looked at: RuntimeError: no entry",
    ]


def test_an_empty_buffer_is_a_sentence(given_to_checks):
    report = diagnose(replay_buffer=ReplayBuffer(storage=LazyTensorStorage(10)))
    assert report.notes == ["replay_buffer is empty, so nothing is drawn from it."]
    assert "replay_buffer" in given_to_checks


def test_a_buffer_that_waits_for_its_first_use_is_not_initialized(given_to_checks):
    buffer = ReplayBuffer(storage=lambda: LazyTensorStorage(10), delayed_init=True)
    report = diagnose(replay_buffer=buffer)
    assert report.notes == ["replay_buffer is not initialized yet; it is left out."]
    assert not buffer.initialized
    assert given_to_checks == {}


def test_what_is_on_the_meta_device_is_left_out(frames):
    policy = q_policy(cartpole()).to("meta")
    given = {"loss_module": DQNLoss(policy), "policy": policy, "batch": frames.to("meta")}
    report = diagnose(**given)
    left_out = "is on the meta device, which holds no numbers; it is left out."
    assert report.notes == [f"{name} {left_out}" for name in given]
    assert list(report) == []


def test_a_buffer_that_cannot_be_sampled_is_a_sentence(frames):
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(200), sampler=SliceSampler(num_slices=3), batch_size=10
    )
    buffer.extend(frames)
    report = diagnose(replay_buffer=buffer)
    assert "nothing could be drawn from replay_buffer: " in report.notes[0]


@guards("doctor-many-instances")
def test_a_thousand_environments_take_few_steps(given_to_checks):
    diagnose(env=Crowd(1000), policy=act)
    assert given_to_checks["batch"].shape == (1000, FEWEST_STEPS)


@guards("doctor-many-instances")
def test_more_environments_than_can_be_copied_are_a_sentence():
    report = diagnose(env=Crowd(5000), policy=act)
    assert "it steps 5000 environments at once. Pass a batch of your own" in report.notes[0]


def test_a_collector_that_is_shut_down_is_a_sentence():
    collector = collect_from(cartpole(), q_policy(cartpole()))
    collector.shutdown()
    report = diagnose(collector=collector, seconds=SECONDS)
    assert "it has been shut down. Pass a batch" in report.notes[0]


def test_a_warning_while_collecting_is_told_and_does_not_escape():
    def warn(tensordict):
        warnings.warn("look out", FutureWarning, stacklevel=2)
        return act(tensordict)

    report = diagnose(env=Crowd(2), policy=warn)
    assert report.notes == ["a copy warns: FutureWarning: look out"]


# -- Checks --------------------------------------------------------------------


@guards("doctor-check-failed", "doctor-report-it")
def test_an_error_in_a_check_is_shown_as_one(no_checks):
    @check("own", "Its own")
    def _(batch):
        return clear(bach)  # noqa: F821

    @check("below", "Of what it calls")
    def _(batch):
        return clear(batch["absent"])

    report = diagnose(batch=TensorDict(batch_size=[2]))
    assert [(one.slug, one.state) for one in report] == [("own", FAILED), ("below", UNDECIDED)]
    assert "name 'bach' is not defined (test_doctor.py:" in report.of(FAILED)[0].evidence
    assert "absent" in report.of(UNDECIDED)[0].evidence


def test_what_a_check_sets_in_a_module_is_undone(no_checks, folder):
    @check("reads", "Reads what is made when it is read")
    def _(loss_module, value_estimator):
        loss_module.eval()
        return clear(f"{loss_module.value_estimator} {value_estimator.tensor_keys}")

    given, _ = PIPELINES["ppo"]()
    loss, estimator = given["loss_module"], given["value_estimator"]
    assert estimator._tensor_keys is None
    with unchanged(loss=loss, estimator=estimator):
        assert diagnose(loss_module=loss, value_estimator=estimator).of(CLEAR)
    given["collector"].shutdown()


def test_a_plain_function_as_policy_is_no_error_of_a_check(no_checks):
    @check("modules", "Modules")
    def _(policy):
        return clear(len(policy.modules()))

    (found,) = diagnose(policy=act)
    assert found[2:4] == (UNDECIDED, "policy is of type function, without 'modules'")


def test_two_checks_of_one_name_are_refused(no_checks):
    check("twice", "Twice")(lambda batch: None)
    with pytest.raises(ValueError, match="two checks for 'twice'"):
        check("twice", "Twice")(lambda batch: None)


# -- The page ------------------------------------------------------------------


def test_the_page_names_each_argument_and_each_verdict():
    page = rst_reader.parse((ROOT / PAGE).read_text("utf-8"))
    lists = [
        [
            name.astext()
            for term in found.findall(nodes.term)
            for name in term.findall(nodes.literal)
        ]
        for found in page.findall(nodes.definition_list)
    ]
    for names in (torchrl_doctor.ARGUMENTS, torchrl_doctor.STATES):
        assert sorted(names) in map(sorted, lists)


# -- The file and the command line ---------------------------------------------


def imported_packages(source):
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names


@guards("doctor-one-file")
def test_the_file_needs_torchrl_alone():
    """And what torchrl itself requires."""
    packages = imported_packages(SINGLE_FILE())
    assert packages <= {"torchrl", "torch", "tensordict", "numpy"}


PIPELINE = """
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.envs import Compose, GymEnv, InitTracker, TransformedEnv
from torchrl.modules import LSTMModule, QValueModule


def build(*primer):
    print("building")
    lstm = LSTMModule(4, 8, in_key="observation", out_key="features")
    transforms = [lstm.make_tensordict_primer() for _ in primer]
    env = TransformedEnv(GymEnv("CartPole-v1"), Compose(InitTracker(), *transforms))
    head = TensorDictModule(torch.nn.Linear(8, 2), ["features"], ["action_value"])
    policy = TensorDictSequential(lstm, head, QValueModule(spec=env.action_spec))
    options = {"total_frames": -1, "auto_register_policy_transforms": False}
    return Collector(env, policy, frames_per_batch=40, **options)


def forgets():
    return {"collector": build()}


def remembers():
    return build("primer")


def raises():
    raise RuntimeError("not today")


def returns_nothing():
    return None


def returns_a_word():
    return {"collector": "a word"}


def adds_a_word():
    return {"recorder": build()}


def wants(size):
    return {"collector": build()}
"""
BROKEN_FILES = {
    "no_syntax.py": "def (",
    "trains.py": "\nraise RuntimeError('trained')\n",
    "leaves.py": "\nimport sys\nsys.exit(3)\n",
}


@pytest.fixture
def pipeline(folder):
    """A folder with the file alone, and pipelines beside it."""
    Path(folder, "torchrl_doctor.py").write_text(SINGLE_FILE(), encoding="utf-8")
    for name, text in {"pipeline.py": PIPELINE, **BROKEN_FILES}.items():
        Path(folder, name).write_text(text, encoding="utf-8")
    return folder


@guards("doctor-beside-scripts", "doctor-output-to-stderr")
def test_the_file_works_alone_in_an_empty_folder(pipeline):
    command = ("-m", "torchrl_doctor", "pipeline.py:forgets")
    done = run_python(*command, cwd=pipeline, status=1, **QUIET)
    assert "applies: The LSTM forgets everything between steps (silent)\n" in done.stdout
    assert "building" not in done.stdout
    assert "building" in done.stderr


def command(capsys, *arguments):
    """Exit code, output and errors of the command line, in this process."""
    try:
        limit = ["--seconds", str(SECONDS)] if arguments else []
        code = main([*map(str, arguments), *limit])
    except SystemExit as stop:  # of argparse
        code = stop.code
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture
def clean_imports(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})


@guards("doctor-bad-input", "doctor-message-place")
@pytest.mark.parametrize(
    ("target", "said"),
    [
        (
            "pipeline.py:absent",
            "no function 'absent'; it defines build, forgets,",
        ),
        ("pipeline.py:adds_a_word", "no argument of diagnose 'recorder'"),
        ("pipeline.py:returns_nothing", "returns nothing; return a dictionary or a collector"),
        ("pipeline.py", "write it as pipeline.py:make"),
        ("absent.py:make", "absent.py: no such file"),
        ("no_syntax.py:make", "no_syntax.py:1: importing it raises SyntaxError"),
        ("trains.py:make", "trains.py:2: importing it raises RuntimeError: trained; the file has"),
        ("leaves.py:make", "leaves.py:3: importing it raises SystemExit: 3"),
        ("pipeline.py:wants", "missing a required argument: 'size'; the doctor calls it without"),
    ],
)
def test_bad_input_ends_with_2_and_names_the_cure(pipeline, clean_imports, capsys, target, said):
    code, out, err = command(capsys, target)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_an_argument_that_is_not_what_it_should_be_ends_with_2(pipeline, clean_imports, capsys):
    code, out, _ = command(capsys, "pipeline.py:returns_a_word")
    assert code == 2
    assert out.startswith("- collector is of type str, not a collector; it is left out.\n")


def test_where_nothing_applies_the_command_ends_with_0(pipeline, clean_imports, capsys):
    code, out, _ = command(capsys, "pipeline.py:remembers", "--all")
    assert code == 0
    assert "clear: The LSTM forgets everything between steps" in out


def test_the_command_prints_a_document(pipeline, clean_imports, capsys):
    code, out, _ = command(capsys, "pipeline.py:forgets", "--json", "--site", "https://manual")
    assert code == 1
    pages = [one["page"] for one in json.loads(out)["findings"] if one["verdict"] == APPLIES]
    assert "https://manual/tutorials/debugging/lstm_forgets_every_step.html" in pages


@guards("doctor-make-raises")
def test_what_make_raises_is_given_to_the_checks(pipeline, clean_imports, capsys, no_checks):
    @check("today", "Not today")
    def _(error):
        return applies(str(error))

    code, out, err = command(capsys, "pipeline.py:raises")
    assert code == 1
    assert "not today" in out
    line = PIPELINE[: PIPELINE.index('    raise RuntimeError("not')].count("\n") + 1
    assert f"pipeline.py:{line}: it raises RuntimeError: not today" in err


def test_what_make_raises_and_nothing_explains_ends_with_3(pipeline, clean_imports, capsys):
    code, out, _ = command(capsys, "pipeline.py:raises", "--json")
    document = json.loads(out)
    assert code == document["status"] == 3
    assert document["error"] == {"type": "RuntimeError", "message": "not today"}
    assert document["versions"]["torch"] == torch.__version__.partition("+")[0]


def test_a_check_that_fails_ends_with_4(pipeline, clean_imports, capsys, no_checks):
    check("fails", "Fails")(lambda collector: 1 / 0)
    code, out, _ = command(capsys, "pipeline.py:remembers")
    assert code == 4
    assert "ZeroDivisionError" in out


@guards("doctor-shuts-down")
def test_the_command_ends_what_make_started(pipeline, clean_imports, capsys, no_checks):
    seen = []
    check("sees", "Sees")(lambda collector: seen.append(collector))
    command(capsys, "pipeline.py:remembers")
    assert seen[0].closed


def test_the_single_file_has_the_checks_and_the_version_of_the_package(folder):
    Path(folder, "torchrl_doctor.py").write_text(SINGLE_FILE(), encoding="utf-8")
    said = "import torchrl_doctor as d; print(d.__file__, d.__version__, *d.CHECKS)"
    done = run_python("-c", said, cwd=folder, **QUIET)
    file, version, *slugs = done.stdout.split()
    assert Path(file) == Path(folder, "torchrl_doctor.py").resolve()
    assert version == torchrl_doctor.__version__
    assert slugs == list(CHECKS)


def test_two_modules_that_define_one_name_make_no_single_file(monkeypatch):
    module = sys.modules["torchrl_doctor.checks.collectors"]
    text = Path(module.__file__).read_text(encoding="utf-8") + "\n\ndef draw():\n    pass\n"
    read = Path.read_text
    changed = lambda path, **how: text if path.name == "collectors.py" else read(path, **how)  # noqa: E731
    monkeypatch.setattr(Path, "read_text", changed)
    with pytest.raises(ValueError, match=r"collectors.py and .*copies.py both define 'draw'"):
        SINGLE_FILE()


def test_the_wheel_has_the_version_of_the_package():
    project = tomllib.loads((DOCTOR / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == torchrl_doctor.__version__
