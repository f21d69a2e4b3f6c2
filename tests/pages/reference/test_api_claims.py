"""What the lines of docs/reference/api/relations.toml say and no example shows."""

from unittest import mock

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict
from tensordict.nn import InteractionType, TensorDictModule, set_interaction_type
from torchrl.collectors import AsyncCollector, Collector, MultiAsyncCollector, RandomPolicy
from torchrl.data import (
    CompressedListStorage,
    LazyStackStorage,
    LazyTensorStorage,
    OneHot,
    PrioritizedSampler,
    ReplayBuffer,
    SliceSamplerWithoutReplacement,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from torchrl.envs import (
    ExplorationType,
    GymEnv,
    InitTracker,
    RewardSum,
    SerialEnv,
    TransformedEnv,
    set_exploration_type,
    terminated_or_truncated,
)
from torchrl.modules import (
    GRU,
    LSTM,
    EGreedyModule,
    GRUModule,
    LSTMModule,
    ProbabilisticActor,
    get_env_transforms_from_module,
    recurrent_mode,
    set_recurrent_mode,
)
from torchrl.modules.utils import utils as module_utils
from torchrl.objectives import BCLoss
from torchrl.objectives.value import TD0Estimator

from docs._ext.site.claims import unmarked
from docs._ext.source.api_pages import FOLDER, load_catalog
from tests.support import ROOT
from tests.support.claims import guards

CATALOG = load_catalog(ROOT / "docs" / FOLDER)


def make_collector(**options):
    options = {"policy": None, "frames_per_batch": 4, "total_frames": 4} | options
    return Collector(GymEnv("CartPole-v1"), **options)


@guards("interaction-type-same-context")
def test_the_exploration_type_is_the_interaction_type():
    assert set_exploration_type is set_interaction_type
    assert ExplorationType is InteractionType


@guards("random-policy-by-default")
def test_the_random_policy_is_the_one_when_none_is_given():
    collector = make_collector()
    assert isinstance(collector.policy, RandomPolicy)
    collector.shutdown()


@guards("epsilon-falls-in-step")
def test_epsilon_falls_in_step_alone():
    module = EGreedyModule(OneHot(2), annealing_num_steps=10)
    with set_exploration_type(ExplorationType.RANDOM):
        module(TensorDict(action=torch.tensor([1, 0])))
    assert module.eps.item() == 1.0
    module.step()
    assert module.eps.item() < 1.0


@guards("async-single-worker")
def test_an_async_collector_is_the_asynchronous_one_with_a_single_worker():
    assert issubclass(AsyncCollector, MultiAsyncCollector)
    with mock.patch.object(MultiAsyncCollector, "_run_processes"):
        assert AsyncCollector(lambda: GymEnv("CartPole-v1"), frames_per_batch=4).num_workers == 1


@guards("td0-within-the-row")
def test_td0_looks_one_step_ahead_within_the_row():
    data = TensorDict(
        {
            "state_value": torch.rand(6, 1),
            "next": {
                "state_value": torch.rand(6, 1),
                "reward": torch.rand(6, 1),
                "done": torch.zeros(6, 1, dtype=torch.bool),
                "terminated": torch.zeros(6, 1, dtype=torch.bool),
            },
        },
        [6],
    )
    order = torch.tensor([3, 1, 5, 0, 4, 2])
    td0 = TD0Estimator(gamma=0.9, value_network=None)
    shuffled = td0(data[order].clone())["advantage"]
    torch.testing.assert_close(shuffled, td0(data)["advantage"][order])


@guards("reward-sum-to-step")
def test_a_reward_sum_runs_up_to_its_step():
    rollout = TransformedEnv(GymEnv("CartPole-v1"), RewardSum()).rollout(4)
    assert rollout["next", "episode_reward"].flatten().tolist() == [1.0, 2.0, 3.0, 4.0]


@guards("prioritized-buffer-sampler")
def test_the_prioritized_buffer_has_the_prioritized_sampler():
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, storage=LazyTensorStorage(4), batch_size=2
    )
    assert isinstance(buffer.sampler, PrioritizedSampler)


def test_a_priority_stays_until_it_is_updated():
    assert "keeps its priority until" in next(
        relation["why"] for relation in CATALOG.relations if relation["title"] == "Priorities"
    )
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, eps=0.0, storage=LazyTensorStorage(4), batch_size=64
    )
    buffer.extend(TensorDict(x=torch.arange(4), batch_size=[4]))

    def drawn():
        return set(buffer.sample()["x"].tolist())

    torch.manual_seed(0)
    assert [drawn(), drawn()] == [{0, 1, 2, 3}] * 2
    buffer.update_priority(torch.tensor([0, 1, 2]), torch.full((3,), 1e-12))
    assert drawn() == {3}


@guards("lazy-storage-shapes-differ")
def test_rows_of_a_lazy_stack_storage_differ_in_shape():
    buffer = ReplayBuffer(storage=LazyStackStorage(4), batch_size=4)
    for size in (1, 2):
        buffer.add(TensorDict(x=torch.ones(size)))
    assert isinstance(buffer.sample(), LazyStackedTensorDict)
    assert {len(row["x"]) for row in buffer[:].unbind(0)} == {1, 2}


@guards("compressed-list-of-rows")
def test_a_compressed_storage_keeps_compressed_rows():
    storage = CompressedListStorage(4)
    buffer = ReplayBuffer(storage=storage, batch_size=4)
    buffer.extend(TensorDict(x=torch.zeros(4, 10_000), batch_size=[4]))
    assert len(storage._storage) == 4
    assert storage.bytes() < 4 * 10_000
    assert buffer.sample()["x"].shape == (4, 10_000)


@guards("slices-no-trajectory-twice")
def test_a_slice_sampler_without_replacement_takes_a_trajectory_once():
    sampler = SliceSamplerWithoutReplacement(slice_len=2, traj_key="episode")
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), sampler=sampler, batch_size=8)
    rows = TensorDict(
        {
            "episode": torch.arange(20) // 5,
            "next": {"done": torch.zeros(20, 1, dtype=torch.bool)},
        },
        [20],
    )
    buffer.extend(rows)
    assert sorted(buffer.sample()["episode"].view(4, 2)[:, 0].tolist()) == [0, 1, 2, 3]


@guards("end-flags-joined")
def test_the_end_flags_are_joined():
    flags = torch.tensor([[False], [True], [False]])
    data = TensorDict(
        {"done": flags | flags.flip(0), "terminated": flags, "truncated": flags.roll(1)}, [3]
    )
    assert terminated_or_truncated(data, key="_reset")
    assert data["_reset"].flatten().tolist() == [False, True, True]


@pytest.mark.parametrize("relation", CATALOG.relations, ids=lambda relation: relation["title"])
def test_a_relation_is_written_without_a_full_stop(relation):
    """The page puts one after each line."""
    for member, does in relation["members"].items():
        assert not unmarked(does).endswith("."), member


# -- Recurrent modules ---------------------------------------------------------

SIZES = {"input_size": 4, "hidden_size": 2, "in_key": "observation", "out_key": "embed"}


def resets():
    """Six rows, two trajectories."""
    is_init = torch.tensor([True, False, False, False, True, False]).unsqueeze(-1)
    return TensorDict(observation=torch.randn(6, 4), is_init=is_init, batch_size=[6])


@guards("gru-shares-corrections")
def test_what_holds_for_both_modules():
    module = GRUModule(**SIZES)
    with set_recurrent_mode(True):
        assert module(resets())["embed"].shape == (6, 2)
    with pytest.raises(RuntimeError, match="has been removed"):
        module.set_recurrent_mode(True)
    words = "``torch.float32`` -> TF32 on H100, default"
    assert words in GRUModule.__doc__
    assert words in LSTMModule.__doc__
    assert module.recurrent_matmul_precision == "auto"


@pytest.mark.parametrize("kind", [LSTM, GRU])
@guards("lstm-python-layer", "gru-python-layer")
def test_the_python_layers_work_under_vmap(kind):
    layer, rows = kind(4, 2), torch.randn(3, 2, 5, 4)
    out = torch.vmap(lambda x: layer(x)[0])(rows)
    torch.testing.assert_close(out[1], layer(rows[1])[0])


@guards("projection-fails-late", "packed-fails-late")
def test_what_the_python_layer_refuses_late():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        LSTM(4, 3, proj_size=2)(torch.randn(2, 3, 4))
    packed = torch.nn.utils.rnn.pack_sequence([torch.randn(3, 4), torch.randn(2, 4)])
    with pytest.raises(AttributeError, match="PackedSequence"):
        LSTM(4, 3)(packed)


@guards("decorator-makes-new-context")
def test_the_decorator_makes_a_new_context():
    @set_recurrent_mode(True)
    def descend(depth):
        return descend(depth - 1) if depth else recurrent_mode()

    assert descend(3) is True
    assert recurrent_mode() is None


@guards("partial-reset-marks-init")
def test_a_partial_reset_marks_those_that_were_reset():
    env = TransformedEnv(SerialEnv(2, lambda: GymEnv("CartPole-v1")), InitTracker())
    step = env.step(env.rand_action(env.reset()))["next"]
    step["_reset"] = torch.tensor([[True], [False]])
    assert env.reset(step)["is_init"].flatten().tolist() == [True, False]


@guards("collector-asks-for-primers")
def test_a_collector_asks_for_the_primers():
    policy = TensorDictModule(torch.nn.Linear(4, 2), in_keys=["observation"], out_keys=["action"])
    with mock.patch.object(module_utils, "get_primers_from_module") as asked:
        asked.return_value = None
        make_collector(policy=policy, auto_register_policy_transforms=True).shutdown()
    assert asked.called


@guards("module-makes-transforms")
def test_the_transforms_are_the_tracker_and_the_primers():
    kinds = [type(one).__name__ for one in get_env_transforms_from_module(LSTMModule(**SIZES))]
    assert kinds == ["InitTracker", "TensorDictPrimer"]


@guards("cloning-integers-wants-logits")
@pytest.mark.filterwarnings("ignore:The name target_actor_network_params:UserWarning")
def test_behavior_cloning_of_integers_refuses_an_actor_that_samples():
    data = TensorDict(observation=torch.zeros(3, 4), action=torch.tensor([0, 1, 1]), batch_size=[3])
    logits = TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["logits"])
    actor = ProbabilisticActor(
        logits, ["logits"], distribution_class=torch.distributions.Categorical
    )
    with pytest.raises(RuntimeError, match="Expected floating point type for target"):
        BCLoss(actor)(data)
    direct = TensorDictModule(logits.module, ["observation"], ["action"])
    expected = torch.nn.functional.cross_entropy(logits.module(data["observation"]), data["action"])
    torch.testing.assert_close(BCLoss(direct)(data)["loss_bc"], expected)
