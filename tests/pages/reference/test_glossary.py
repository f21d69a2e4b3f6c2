"""What the glossary and the API notes say about torchrl and do not show in an example."""

import pickle
import re
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.data import (
    Composite,
    LazyMemmapStorage,
    LazyTensorStorage,
    MultiStep,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
)
from torchrl.data.utils import CloudpickleWrapper
from torchrl.envs import (
    Compose,
    EnvCreator,
    GymEnv,
    InitTracker,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    VecNorm,
)
from torchrl.envs.transforms import (
    BurnInTransform,
    NextObservationDelta,
    NextStateReconstructor,
    Transform,
)
from torchrl.envs.utils import ExplorationType, exploration_type
from torchrl.modules import (
    LSTMModule,
    OneHotCategorical,
    ProbabilisticActor,
    ValueOperator,
    recurrent_mode,
    set_recurrent_mode,
)
from torchrl.objectives import DQNLoss, LossModule
from torchrl.objectives.value import GAE, TD0Estimator, ValueEstimatorBase
from torchrl.weight_update import WeightSyncScheme

from docs._ext.site.claims import unmarked
from docs._ext.source.lookup import find
from tests.support import ROOT
from tests.support.claims import guards
from tests.support.upstream_sources import callers

PAGES = sorted((ROOT / "docs" / "reference" / "glossary").glob("*.rst"))
TEXT = "\n".join(unmarked(page.read_text(encoding="utf-8")) for page in PAGES)


def make_env(max_steps=3):
    return TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=max_steps))


def actor():
    """A policy that also writes the log-probability of its action."""
    net = TensorDictModule(torch.nn.Linear(4, 2), in_keys=["observation"], out_keys=["logits"])
    return ProbabilisticActor(
        net,
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
        default_interaction_type=ExplorationType.RANDOM,
    )


def make_collector(frames, env=None, policy=None, batches=1, **options):
    return Collector(
        env or make_env(),
        policy=policy,
        frames_per_batch=frames,
        total_frames=frames * batches,
        **{"auto_register_policy_transforms": False, **options},
    )


def collect(frames, batches=1, **options):
    collector = make_collector(frames, batches=batches, **options)
    collected = list(collector)
    collector.shutdown()
    return collected


def entries():
    """Each term of the glossary with the text of its entry."""
    found = {}
    for block in TEXT.split(".. glossary::")[1:]:
        terms = []
        for line in block.splitlines():
            if re.match(r"   \S", line):
                if terms and found[terms[-1]].strip():
                    terms = []
                terms.append(line.strip())
                found[line.strip()] = ""
            elif line.startswith("      ") or not line.strip():
                for term in terms:
                    found[term] += line[6:] + "\n"
            else:
                break
    return found


# -- The page ----------------------------------------------------------------

# The old name, and where the entry leads: a documented path, or a term.
OLD_NAMES = {
    "SyncDataCollector": "torchrl.collectors.Collector",
    "MultiSyncDataCollector": "torchrl.collectors.MultiSyncCollector",
    "MultiaSyncDataCollector": "torchrl.collectors.MultiAsyncCollector",
    "aSyncDataCollector": "torchrl.collectors.AsyncCollector",
    "DataCollectorBase": "torchrl.collectors.BaseCollector",
    "DistributedDataCollector": "torchrl.collectors.distributed.DistributedCollector",
    "DistributedSyncDataCollector": "torchrl.collectors.distributed.DistributedSyncCollector",
    "RPCDataCollector": "torchrl.collectors.distributed.RPCCollector",
    "shuttle": "torchrl.collectors.Collector._carrier",
    "_shuttle": "torchrl.collectors.Collector._carrier",
    "_shuttle_has_no_device": "torchrl.collectors.Collector._carrier_has_no_device",
    "CompressedStorage": "torchrl.data.CompressedListStorage",
    "trajectory_key": "torchrl.data.SliceSampler",
    "update_priorities": "torchrl.data.ReplayBuffer.update_priority",
    "WeightUpdaterBase": "torchrl.weight_update.WeightSyncScheme",
    "VanillaWeightUpdater": "torchrl.weight_update.WeightSyncScheme",
    "MultiProcessedWeightUpdater": "torchrl.weight_update.WeightSyncScheme",
    "RayWeightUpdater": "torchrl.weight_update.WeightSyncScheme",
    "RemoteModuleWeightUpdater": "torchrl.weight_update.WeightSyncScheme",
    "DistributedWeightUpdater": "torchrl.weight_update.WeightSyncScheme",
    "RPCWeightUpdater": "torchrl.weight_update.WeightSyncScheme",
}


@pytest.mark.parametrize("term", list(entries()))
def test_an_entry_begins_with_one_sentence_that_stands_alone(term):
    definition = entries()[term].strip().split("\n\n")[0]
    assert definition.endswith(".")
    assert not definition.startswith((">>>", "It ", "This ", "See "))


@pytest.mark.parametrize("term", list(entries()))
def test_an_entry_leads_on(term):
    """To its source, to the API, to a neighbor or to the tutorial."""
    assert re.search(r":(source|class|term|doc):`", entries()[term])


@pytest.mark.parametrize("old", OLD_NAMES)
def test_an_old_name_leads_to_the_present_one(old):
    assert find(OLD_NAMES[old]) is not None
    assert re.search(rf"`~?{re.escape(OLD_NAMES[old])}`|<{OLD_NAMES[old]}>`", entries()[old])


@pytest.mark.parametrize("old", [name for name in OLD_NAMES if "Updater" in name])
def test_the_weight_updaters_are_still_there(old):
    distributed = old in ("DistributedWeightUpdater", "RPCWeightUpdater")
    package = "torchrl.collectors.distributed" if distributed else "torchrl.collectors"
    assert find(f"{package}.{old}") is not None


# -- Collecting --------------------------------------------------------------


@pytest.mark.usefixtures("forkserver")
@pytest.mark.slow
@guards("ids-from-one-pool", "cat-results-joins", "multi-update-by-scheme")
def test_two_workers():
    """One start for all that is said of workers; compact observations reach them too."""
    collector = MultiSyncCollector(
        [make_env] * 2,
        policy=actor(),
        frames_per_batch=8,
        total_frames=8,
        compact_obs=True,
        auto_register_policy_transforms=False,
    )
    try:
        batch = next(iter(collector))
        schemes = collector._weight_sync_schemes
    finally:
        collector.shutdown()
    assert batch.shape == (2, 4)
    first, second = (set(ids.tolist()) for ids in batch["collector", "traj_ids"])
    assert len(first) == len(second) == 2
    assert not first & second
    assert set(batch["next"].keys()) == {"done", "reward", "terminated", "truncated"}
    assert isinstance(schemes["policy"], WeightSyncScheme)


@guards("no-cuda-after-fork")
def test_a_process_forked_from_one_that_used_cuda_cannot(monkeypatch):
    monkeypatch.setattr("torch.cuda._is_in_bad_fork", lambda: True)
    with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"):
        torch.cuda._lazy_init()


@guards("lambdas-by-cloudpickle")
def test_what_goes_to_a_worker_goes_by_cloudpickle():
    env_function = pickle.loads(pickle.dumps(CloudpickleWrapper(lambda: make_env(5))))
    assert env_function().transform.max_steps == 5


@pytest.mark.parametrize("env_device", [None, "cpu"])
@pytest.mark.parametrize("policy_device", [None, "cpu"])
@pytest.mark.parametrize("storing_device", [None, "cpu"])
@guards("env-cast-flag")
def test_the_second_cast_flag(env_device, policy_device, storing_device):
    devices = {"policy_device": policy_device, "storing_device": storing_device}
    collector = make_collector(1, GymEnv("CartPole-v1", device=env_device), **devices)
    first, second = collector._cast_to_policy_device, collector._cast_to_env_device
    assert first == (collector.policy_device is not None)
    assert second == (first or collector.env.device != collector.storing_device)
    collector.shutdown()


@guards("no-exploration-outside")
def test_no_exploration_type_is_set_outside_a_collector():
    assert exploration_type() is None
    seen = []

    def act(observation):
        seen.append(exploration_type())
        return torch.tensor([1, 0])

    GymEnv("CartPole-v1").rollout(2, act)
    assert set(seen) == {None}


@guards("random-frames-zeros")
def test_random_frames_hold_zeros_for_what_the_policy_writes():
    options = {"batches": 2, "policy": actor(), "init_random_frames": 4}
    first, second = collect(4, **options)
    assert not first["action_log_prob"].any()
    assert second["action_log_prob"].all()
    assert collect(4, **options, use_buffers=False)[0].get("action_log_prob", None) is None
    buffer = ReplayBuffer(storage=LazyTensorStorage(8))
    with pytest.raises(KeyError, match="action_log_prob"):
        collect(4, **options, replay_buffer=buffer)
    assert "action_log_prob" not in buffer[:4]


@guards("direct-write-random-count")
def test_a_direct_write_stops_being_random_in_the_middle():
    calls = []

    def left(observation):
        calls.append(True)
        return torch.tensor([1, 0])

    for extend, expected in ((True, 0), (False, 5)):
        buffer = ReplayBuffer(storage=LazyTensorStorage(8))
        policy = TensorDictModule(left, in_keys=["observation"], out_keys=["action"])
        with pytest.warns(UserWarning, match="more init_random_frames than requested"):
            collector = make_collector(
                8, policy=policy, init_random_frames=3, replay_buffer=buffer, extend_buffer=extend
            )
        calls.clear()
        list(collector)
        collector.shutdown()
        assert (len(buffer), len(calls)) == (8, expected)


@guards("weights-copied-by-device")
def test_a_policy_is_copied_to_another_device():
    policy, collector = actor(), make_collector(1)
    for device, copied in (("cpu", False), ("meta", True)):
        found, _ = collector._get_policy_and_device(policy, policy_device=torch.device(device))
        assert (found is not policy) == copied
        assert {parameter.device.type for parameter in found.parameters()} == {device}
    collector.shutdown()


@guards("running-trajectory-waits")
def test_a_running_trajectory_waits():
    batches = collect(4, batches=3, trajs_per_batch=1, traj_format="cat")
    assert [set(batch["collector", "traj_ids"].tolist()) for batch in batches] == [
        {0},
        {1},
        {2},
        {3},
    ]
    assert all(batch["next", "done"][-1] for batch in batches)
    options = {"traj_format": "cat", "reset_at_each_iter": True}
    batches = collect(4, batches=3, trajs_per_batch=1, **options)
    assert [set(batch["collector", "traj_ids"].tolist()) for batch in batches] == [{1}, {3}, {5}]


@guards("trajectories-written-in-order")
def test_whole_trajectories_reach_the_buffer_in_order():
    buffer = ReplayBuffer(storage=LazyTensorStorage(100))
    collect(8, batches=2, trajs_per_batch=1, replay_buffer=buffer)
    assert buffer[:]["collector", "traj_ids"].tolist() == sorted([0, 1, 2, 3, 4] * 3)


# -- Batches and trajectories ------------------------------------------------


@guards("entries-move-to-root")
def test_all_but_the_reward_moves_to_the_root():
    env = make_env()
    step, following = env.step_and_maybe_reset(env.rand_action(env.reset()))
    left = set(step["next"].keys()) - set(following.keys())
    assert left == {"reward"}
    assert torch.equal(step["next", "observation"], following["observation"])


@guards("sanitizer-in-gae")
def test_value_estimate_is_sanitized_in_gae_alone():
    assert callers("_sanitize_next_obs_nan") == {
        ("advantages.py", "ValueEstimatorBase._call_value_nets")
    }
    estimate = {name for _, name in callers("_call_value_nets") if name.endswith("value_estimate")}
    assert estimate == {"GAE.value_estimate"}


@guards("time-named-unless-split")
def test_a_collector_names_the_time_dimension_unless_it_splits():
    (batch,) = collect(8)
    assert batch.names == ["time"]
    for layout, names in {"cat": ["time"], "padded": [None, "time"]}.items():
        (batch,) = collect(8, trajs_per_batch=2, traj_format=layout)
        assert batch.names == names
    with pytest.warns(UserWarning, match="contiguous-trajectory layout"):
        (batch,) = collect(8, split_trajs=True)
    assert batch.names == [None, None]


@guards("splitting-needs-ids")
def test_splitting_needs_the_ids():
    with pytest.raises(ValueError, match="requires track_traj_ids=True"):
        make_collector(8, split_trajs=True, track_traj_ids=False)


@guards("dead-rows-hold-rewards")
def test_dead_time_steps_hold_rewards():
    env = SerialEnv(2, [partial(make_env, 2), partial(make_env, 4)])
    rollout = env.rollout(6, break_when_all_done=True, break_when_any_done=False)
    assert rollout["next", "reward"].all()


# -- Episode data ------------------------------------------------------------


def network():
    torch.manual_seed(0)
    return ValueOperator(torch.nn.Linear(1, 1), in_keys=["observation"])


def rollout(last=3.0, **ends):
    """Three rows; ``last`` is the last next observation."""
    end = torch.tensor([[False], [False], [True]])
    return TensorDict(
        {
            "observation": torch.tensor([[0.0], [1.0], [2.0]]),
            "next": {
                "observation": torch.tensor([[1.0], [2.0], [last]]),
                "reward": torch.ones(3, 1),
                "done": end,
                **ends,
            },
        },
        [3],
    )


def lstm():
    return LSTMModule(input_size=4, hidden_size=2, in_key="observation", out_key="embed")


# -- Storing and sampling ----------------------------------------------------


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/maps")
@pytest.mark.parametrize("options", [{"scratch_dir": ...}, {"shared_init": True}, {}])
def test_without_scratch_dir_the_mapping_is_in_shared_memory(tmp_path, monkeypatch, options):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    options = {name: tmp_path if value is ... else value for name, value in options.items()}
    buffer = ReplayBuffer(storage=LazyMemmapStorage(100_000, **options))
    buffer.extend(collect(8)[0])
    address = buffer.storage._storage["observation"].data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(part, 16) for part in line.split()[0].split("-"))
        if first <= address < last:
            break
    assert ("/dev/shm" in line) == (not options)
    assert (str(tmp_path) in line) == bool(options)


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_sampled_rows_are_copies_and_slices_of_the_buffer_are_views(storage, tmp_path):
    options = {"scratch_dir": tmp_path} if storage is LazyMemmapStorage else {}
    buffer = ReplayBuffer(storage=storage(8, **options), batch_size=8)
    buffer.extend(TensorDict(x=torch.ones(8), batch_size=[8]))
    buffer.sample()["x"].fill_(2.0)
    assert buffer[:]["x"].tolist() == [1.0] * 8
    buffer[:]["x"].fill_(3.0)
    assert buffer.sample()["x"].tolist() == [3.0] * 8


@guards("lazy-storage-first-layout")
@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_the_first_data_fixes_shapes_and_dtypes_and_not_keys(storage):
    buffer = ReplayBuffer(storage=storage(2), batch_size=2)
    buffer.extend(TensorDict(x=torch.ones(2), y=torch.ones(2), batch_size=[2]))
    for wrong in (torch.ones(2, 3), torch.ones(2, dtype=torch.float64)):
        with pytest.raises(RuntimeError):
            buffer.extend(TensorDict(x=wrong, y=torch.ones(2), batch_size=[2]))
    buffer.extend(TensorDict(x=torch.full((2,), 2.0), z=torch.ones(2), batch_size=[2]))
    # two new rows, with the "y" of the rows they replace
    assert buffer[:]["x"].tolist() == [2.0, 2.0]
    assert buffer[:]["y"].tolist() == [1.0, 1.0]
    assert (buffer[:].get("z", None) is not None) == (storage is LazyTensorStorage)


class Spy(Transform):
    """Keep the end flags that a transform of the buffer sees."""

    def forward(self, tensordict):
        self.seen = tensordict["next", "truncated"].clone()
        return tensordict


@guards("slice-mark-after-transforms")
@pytest.mark.parametrize("kind", [TensorDictReplayBuffer, ReplayBuffer])
def test_the_slice_mark_comes_after_the_transforms(kind):
    spy = Spy()
    buffer = kind(
        storage=LazyTensorStorage(100),
        sampler=SliceSampler(slice_len=2, traj_key=("collector", "traj_ids")),
        transform=spy,
        batch_size=60,
    )
    buffer.extend(collect(6)[0])
    sample = buffer.sample()
    at_end = sample["next", "step_count"].view(30, 2)[:, 1] == 3
    # the transform sees the ends of trajectories alone
    assert torch.equal(spy.seen.view(30, 2)[:, 1], at_end)
    assert not at_end.all()
    for flag in ("truncated", "done"):
        marked = sample["next", flag].view(30, 2)[:, 1].all().item()
        assert marked == (kind is TensorDictReplayBuffer)
    # a slice end is a boundary that the batch itself did not mark
    assert not buffer[:]["next", "done"].all()


@guards("n-step-needs-next-observations")
@pytest.mark.parametrize("options", [{"compact_obs": True}, {"delta": True}])
def test_multi_step_on_incomplete_data_is_wrong_and_raises_nothing(options):
    """``torchrl.data.MultiStep``; the tutorial runs the transform of the same purpose."""

    def steps(delta=False, **options):
        env = make_env()
        env.set_seed(0)
        env = env.append_transform(NextObservationDelta()) if delta else env
        torch.manual_seed(0)
        collector = Collector(env, policy=None, frames_per_batch=6, total_frames=6, **options)
        data = MultiStep(gamma=0.9, n_steps=2)(next(iter(collector)))
        collector.shutdown()
        return data

    right, wrong = steps(), steps(**options)
    assert torch.equal(right["observation"], wrong["observation"])
    assert torch.equal(right["next", "reward"], wrong["next", "reward"])
    if "delta" in options:
        wrong = NextObservationDelta(in_keys=["observation"])(wrong)
    else:
        wrong = NextStateReconstructor(step_count_key="step_count")(wrong)
    first = [data["next", "observation"][0] for data in (right, wrong)]
    assert not torch.allclose(*first, atol=1e-2)


@guards("delta-restores-in-keys", "buffer-delta-names-entries")
def test_a_buffer_restores_the_delta_of_its_in_keys():
    env = TransformedEnv(GymEnv("CartPole-v1"), NextObservationDelta())
    stored = env.rollout(3)
    unnamed = NextObservationDelta()(stored.clone())
    assert ("next", "observation") not in unnamed.keys(include_nested=True)
    restored = NextObservationDelta(in_keys=["observation"])(stored.clone())
    assert restored["next", "observation"].isfinite().all()


@guards("prefetched-predates-extend", "prefetch-threads-no-mode")
def test_a_prefetched_sample_is_older_than_the_data():
    modes = []

    class Note(Transform):
        def forward(self, tensordict):
            modes.append(recurrent_mode())
            return tensordict

    buffer = ReplayBuffer(storage=LazyTensorStorage(8), transform=Note(), batch_size=4, prefetch=2)
    buffer.extend(TensorDict(x=torch.zeros(8), batch_size=[8]))
    with set_recurrent_mode(True):
        buffer.sample()
        ahead = list(buffer._prefetch_queue)
        assert ahead
        for sample in ahead:
            sample.result()
        buffer.extend(TensorDict(x=torch.ones(8), batch_size=[8]))
        for _ in ahead:
            assert buffer.sample()["x"].tolist() == [0.0] * 4
        assert buffer.sample()["x"].tolist() == [1.0] * 4
    assert None in modes


# -- Environments and specs --------------------------------------------------


@guards("composite-described")
def test_the_specs_of_an_environment_are_dictionaries():
    env = GymEnv("CartPole-v1")
    for name in ("observation", "action", "reward", "done"):
        assert isinstance(getattr(env, f"full_{name}_spec"), Composite)
    assert isinstance(env.observation_spec, Composite)


@pytest.mark.filterwarnings("ignore:.*VecNorm")  # deprecated, and the one that shares
@guards("env-creator-vecnorm", "env-creator-knows-specs")
def test_an_env_creator_shares_state():
    built = []

    def make():
        built.append(True)
        return TransformedEnv(GymEnv("CartPole-v1"), VecNorm(new_api=False))

    creator = EnvCreator(make)
    assert len(built) == 1
    for factory, shared in ((creator, True), (make, False)):
        one, two = factory(), factory()
        one.rollout(3)
        assert (two.transform._td is not None) == shared
    count = "observation_count"
    one, two = creator(), creator()
    before = two.transform._td[count].item()
    one.rollout(3)
    assert two.transform._td[count].item() != before


# -- Values ------------------------------------------------------------------


@guards("sanitizer-takes-the-row")
def test_the_stand_in_is_the_observation_of_the_row():
    data = rollout(last=torch.nan)
    clean = GAE._sanitize_next_obs_nan(data, ["observation"])
    assert clean["next", "observation"].flatten().tolist() == [1.0, 2.0, 2.0]
    assert data["next", "observation"].isnan().any()


@guards("nan-reaches-earlier-trajectories")
def test_one_nan_spreads_to_earlier_trajectories_without_the_sanitizer(monkeypatch):
    end = torch.tensor([[True], [False], [False]])
    data = rollout(done=end, terminated=end)
    data["next", "observation"][1] = torch.nan
    gae = GAE(gamma=0.9, lmbda=0.5, value_network=network())
    assert gae(data.clone())["advantage"].isfinite().all()
    monkeypatch.setattr(GAE, "_sanitize_next_obs_nan", staticmethod(lambda data, in_keys: data))
    assert gae(data)["advantage"].isnan().flatten().tolist() == [True, True, False]


# -- Recurrent policies ------------------------------------------------------


@guards("collector-adds-tracker")
def test_a_collector_adds_what_a_recurrent_policy_needs():
    head = TensorDictModule(torch.nn.Linear(2, 2), in_keys=["embed"], out_keys=["action"])
    policy = TensorDictSequential(lstm(), head)
    (batch,) = collect(4, policy=policy, auto_register_policy_transforms=True)
    assert batch["is_init"].flatten().tolist() == [True, False, False, True]
    assert batch["recurrent_state_h"][1].any()


def recurrent_rows(steps=6):
    """CartPole pushed to the left: one trajectory with the states that the module left in it."""
    torch.manual_seed(0)
    module = lstm()
    head = TensorDictModule(
        lambda embed: torch.tensor([1, 0]).expand(*embed.shape[:-1], 2), ["embed"], ["action"]
    )
    transforms = Compose(InitTracker(), module.make_tensordict_primer())
    env = TransformedEnv(GymEnv("CartPole-v1"), transforms)
    return module, env.rollout(steps, TensorDictSequential(module, head)).detach()


@guards("slice-marks-init", "sampler-adds-init")
@pytest.mark.parametrize("kind", [TensorDictReplayBuffer, ReplayBuffer])
def test_a_slice_sampler_sets_is_init(kind):
    def sampled(env):
        buffer = kind(
            storage=LazyTensorStorage(6),
            sampler=SliceSampler(slice_len=2, traj_key=("collector", "traj_ids")),
            batch_size=40,
        )
        buffer.extend(collect(6, env=env)[0])
        return buffer.sample().view(20, 2)

    sample = sampled(make_env(6).append_transform(InitTracker()))
    starts = sample["step_count"] == 0
    if kind is TensorDictReplayBuffer:
        starts[:, 0] = True
    assert torch.equal(sample["is_init"], starts)
    assert (sample["step_count"][:, 0] > 0).any()
    assert sampled(make_env(6)).get("is_init", None) is None


@guards("primer-default-nonzero")
def test_a_primer_with_another_default_divides_the_modes():
    module, rows = recurrent_rows()
    outputs = {}
    for default in (0.0, 1.0):
        rows["recurrent_state_h"][0] = default
        for mode in (False, True):
            with set_recurrent_mode(mode):
                outputs[default, mode] = module(rows[:1].clone())["embed"]
    torch.testing.assert_close(outputs[0.0, False], outputs[0.0, True])
    torch.testing.assert_close(outputs[1.0, False], outputs[0.0, False])
    assert not torch.allclose(outputs[1.0, True], outputs[0.0, True])


@guards("sequential-training-mistake")
def test_sequential_mode_has_the_outputs_of_recurrent_mode():
    module, rows = recurrent_rows()
    for mode in (False, True):
        with set_recurrent_mode(mode):
            torch.testing.assert_close(module(rows.clone())["embed"], rows["embed"])


@guards("loss-sets-mode", "estimator-mode-yourself")
def test_who_sets_the_recurrent_mode():
    class Loss(LossModule):
        def forward(self, tensordict):
            return recurrent_mode()

    seen = []
    network = TensorDictModule(
        lambda observation: seen.append(recurrent_mode()) or observation,
        in_keys=["observation"],
        out_keys=["state_value"],
    )
    estimator = TD0Estimator(gamma=0.9, value_network=network)
    for mode in (None, False):
        with set_recurrent_mode(mode):
            assert Loss()(None) is True
            estimator(rollout(terminated=rollout()["next", "done"]))
    assert set(seen) == {None, False}


@guards("backends-defined", "backend-refused-early")
def test_auto():
    options = {"input_size": 4, "hidden_size": 2, "in_key": "observation", "out_key": "embed"}
    for backend in ("pad", "auto"):
        with pytest.raises(ValueError, match="only supported for recurrent_backend"):
            LSTMModule(**options, recurrent_backend=backend, recurrent_recompute="full")
    LSTMModule(**options, recurrent_backend="scan", recurrent_recompute="full")


@guards("module-writes-zeros")
def test_recurrent_mode_overwrites_the_states_of_the_rows():
    module, rows = recurrent_rows()
    rows["is_init"][3] = True
    assert rows["next", "recurrent_state_h"].flatten(1).any(1).all()
    with set_recurrent_mode(True):
        module(rows)
    written = rows["next", "recurrent_state_h"].flatten(1).any(1).tolist()
    assert written == [False, False, True, False, False, True]


@guards("burn-in-needs-mode")
def test_burn_in_in_sequential_mode_looks_at_one_step():
    _, rows = recurrent_rows()
    other = lstm()
    states = {}
    for mode in (False, True):
        with set_recurrent_mode(mode):
            sample = BurnInTransform([other], burn_in=2)(rows.clone()[None])
        states[mode] = sample["recurrent_state_h"][0, 0]
        one_step = other(rows[1].clone())["next", "recurrent_state_h"]
        assert torch.allclose(states[mode], one_step) == (not mode)


@guards("accepted-keys-inherited")
def test_a_class_has_accepted_keys_of_its_own_or_of_its_base():
    assert "_AcceptedKeys" in vars(DQNLoss)
    assert "_AcceptedKeys" not in vars(GAE)
    assert GAE._AcceptedKeys is ValueEstimatorBase._AcceptedKeys


@guards("out-keys-for-all-outputs")
def test_each_output_of_a_module_has_a_name_or_an_underscore():
    def twice(x):
        return x, 2 * x

    data = TensorDict(x=torch.ones(3))
    with pytest.raises(RuntimeError, match=r"There are more tensors .* than out_keys"):
        TensorDictModule(twice, ["x"], ["y"])(data.clone())
    assert set(TensorDictModule(twice, ["x"], ["y", "_"])(data.clone()).keys()) == {"x", "y"}
