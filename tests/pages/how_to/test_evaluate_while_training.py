"""What the guide to evaluating while training says and does not run is so."""

import threading

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector, Evaluator
from torchrl.envs import (
    Compose,
    ExplorationType,
    GymEnv,
    SerialEnv,
    StepCounter,
    Transform,
    TransformedEnv,
    VecNormV2,
    exploration_type,
    set_exploration_type,
)
from torchrl.modules import (
    MLP,
    EGreedyModule,
    NormalParamExtractor,
    ProbabilisticActor,
    QValueActor,
    TanhDelta,
    TanhNormal,
)

from tests.support.claims import guards

MAX_STEPS = 20
NO_PRIMERS = {"auto_register_policy_transforms": False}
OPTIONS = {
    "num_trajectories": 3,
    "frames_per_batch": MAX_STEPS,
    "collector_kwargs": NO_PRIMERS | {"traj_format": "cat"},
}


def make_actor():
    net = MLP(in_features=4, out_features=2, num_cells=[8])
    return QValueActor(net, in_keys=["observation"], spec=GymEnv("CartPole-v1").action_spec)


def make_env(*transforms, max_steps=MAX_STEPS):
    limit = StepCounter(max_steps=max_steps)
    env = TransformedEnv(GymEnv("CartPole-v1"), Compose(*transforms, limit))
    env.set_seed(7)
    return env


class Call(Transform):
    """Call *function* at each step."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def _step(self, tensordict, next_tensordict):
        self.function()
        return next_tensordict


@pytest.fixture
def evaluator_of():
    made = []

    def make(env, policy, **options):
        made.append(Evaluator(env, policy, **OPTIONS | options))
        return made[-1]

    yield make
    for each in made:
        each.shutdown()


def add_one(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1)


@guards("evaluator-copies-weights")
def test_an_evaluation_has_the_weights_of_the_call(evaluator_of):
    trained, own, hold = make_actor(), make_actor(), threading.Event()
    used = []

    def look(trajectories):
        used.append(next(own.parameters()).detach().clone())
        assert hold.wait(60)
        return {}

    evaluator = evaluator_of(make_env(), own, metrics_fn=look, busy_policy="queue")
    sent = []
    for step in range(2):
        sent.append(next(trained.parameters()).detach().clone())
        evaluator.trigger_eval(trained, step=step)
        add_one(trained)
    hold.set()
    assert [evaluator.wait(timeout=60)["eval/step"] for _ in sent] == [0, 1]
    for found, expected in zip(used, sent, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@guards("evaluate-restores-exploration-type")
def test_evaluate_sets_the_type_and_restores_it(evaluator_of):
    seen = set()
    env = make_env(Call(lambda: seen.add(exploration_type())))
    evaluator = evaluator_of(env, make_actor())
    for around in (None, ExplorationType.RANDOM):
        with set_exploration_type(around):
            evaluator.evaluate()
            assert exploration_type() is around
    assert seen == {ExplorationType.DETERMINISTIC}


class WithoutProcess:
    """In place of the collector with a process: what is set here while a batch is awaited."""

    def __init__(self):
        self.seen = []

    def __iter__(self):
        self.seen.append(exploration_type())
        yield make_env().rollout(2)

    def shutdown(self):
        pass


@guards("evaluator-process-sets-the-type-here")
def test_an_evaluator_with_a_process_sets_the_type_in_this_one(evaluator_of):
    own = {"policy_factory": lambda env: make_actor(), "backend": "process", "dump_video": False}
    evaluator = evaluator_of(make_env, None, **own)
    evaluator._backend._collector = collector = WithoutProcess()
    evaluator.trigger_eval()
    assert evaluator.wait(timeout=60)["eval/episode_length"] == 2
    assert collector.seen == [ExplorationType.DETERMINISTIC]


@guards("evaluate-leaves-training-alone")
def test_training_computes_the_same_with_evaluations(evaluator_of):
    found, starts = {}, []

    def look(trajectories):
        ids = trajectories["collector", "traj_ids"]
        starts.extend(trajectories["observation"][ids == i][0] for i in ids.unique())
        return {}

    for evaluates in (False, True):
        torch.manual_seed(0)
        actor, own = make_actor(), make_actor()
        env = make_env(VecNormV2(in_keys=["observation"]), max_steps=500)
        explore = EGreedyModule(env.action_spec, eps_init=0.5, eps_end=0.5)
        policy = TensorDictSequential(actor, explore)
        collector = Collector(env, policy, frames_per_batch=50, total_frames=-1, **NO_PRIMERS)
        evaluator = evaluator_of(make_env(), own, metrics_fn=look)
        batches = []
        for _ in range(3):
            batches.append(collector.next().clone())
            if evaluates:
                evaluator.evaluate(actor)
            add_one(actor)
        collector.shutdown()
        found[evaluates] = torch.cat(batches).exclude("collector")
    assert (found[False] == found[True]).all()
    assert len(torch.stack(starts).unique(dim=0)) == 3 * OPTIONS["num_trajectories"]


def balance(observation):
    right = observation @ torch.tensor([0.0, 1.0, 10.0, 10.0]) > 0
    return torch.nn.functional.one_hot(right.long(), 2)


BALANCE = TensorDictModule(balance, ["observation"], ["action"])


@guards("evaluator-max-steps-ignored")
def test_max_steps_beside_a_step_counter(evaluator_of):
    bare = evaluator_of(GymEnv("CartPole-v1"), BALANCE, max_steps=5)
    assert bare.evaluate()["eval/episode_length"] == 5
    counted = evaluator_of(make_env(), BALANCE, max_steps=5)
    assert counted.evaluate()["eval/episode_length"] == MAX_STEPS


@guards("evaluator-favors-short-episodes")
def test_of_a_batched_environment_the_short_episodes_come_first(evaluator_of):
    short, long = 1, 9

    def worker(limit):
        return lambda: TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=limit))

    env = SerialEnv(2, [worker(short), worker(long)])
    result = evaluator_of(env, BALANCE, num_trajectories=9, frames_per_batch=2).evaluate()
    assert result["eval/num_episodes"] == 9
    assert result["eval/episode_length"] == (8 * short + long) / 9


@guards("vecnorm-statistics-are-no-buffers", "evaluator-sends-no-statistics")
def test_the_statistics_of_vecnorm_are_not_sent(evaluator_of):
    vecnorm = VecNormV2(in_keys=["observation"])
    make_env(vecnorm).rollout(MAX_STEPS)
    assert set(TensorDict.from_module(vecnorm).keys()) == {"initialized"}
    assert "loc" in TensorDict.from_module(vecnorm.to_observation_norm())
    nan = []

    def look(trajectories):
        nan.append(trajectories["observation"].isnan().any().item())
        return {}

    own = VecNormV2(in_keys=["observation"])
    evaluator = evaluator_of(make_env(own), make_actor(), metrics_fn=look)
    evaluator.evaluate(weights_dict={"env.transform[0]": vecnorm})
    assert own.initialized
    assert nan == [True]
    policy = TensorDictSequential(vecnorm.to_observation_norm(), make_actor())
    normalized = []

    def keep(trajectories):
        normalized.append(trajectories)
        return {}

    evaluator_of(make_env(), policy, metrics_fn=keep).evaluate()
    frozen = make_env(vecnorm.frozen_copy())
    evaluator_of(frozen, policy[1], metrics_fn=keep).evaluate()
    torch.testing.assert_close(*(each["observation"] for each in normalized))


@guards("evaluator-dies-silently")
def test_an_evaluation_that_raises_is_the_last(evaluator_of, monkeypatch):
    raised, ended = [], threading.Event()

    def hook(args):
        raised.append(str(args.exc_value))
        ended.set()

    monkeypatch.setattr(threading, "excepthook", hook)

    def fail(trajectories):
        raise ValueError("a bad metric")

    evaluator = evaluator_of(make_env(), make_actor(), metrics_fn=fail)
    assert evaluator.trigger_eval()
    assert ended.wait(60)
    assert raised == ["a bad metric"]
    assert evaluator.pending
    assert not evaluator.trigger_eval()
    assert evaluator.wait(timeout=0.5) is None


@guards("evaluator-loses-results")
def test_a_result_that_is_not_fetched_is_overwritten(evaluator_of):
    quick = {"num_trajectories": 1, "frames_per_batch": 1}
    evaluator = evaluator_of(make_env(max_steps=1), make_actor(), busy_policy="queue", **quick)
    accepted = sum(evaluator.trigger_eval() for _ in range(20))
    results = 0
    while evaluator.wait(timeout=1) is not None:
        results += 1
    assert accepted == 20
    assert 0 < results < accepted


@guards("delta-head-takes-the-weights")
def test_a_head_without_noise_has_the_same_weights():
    def make_policy(**head):
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), NormalParamExtractor())
        module = TensorDictModule(net, ["observation"], ["loc", "scale"])
        return ProbabilisticActor(module, **head)

    trained = make_policy(in_keys=["loc", "scale"], distribution_class=TanhNormal)
    own = make_policy(in_keys={"param": "loc"}, distribution_class=TanhDelta)
    own.load_state_dict(trained.state_dict())
    data = TensorDict({"observation": torch.randn(5, 4)}, [5])
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        expected = trained(data.clone())["action"]
    with set_exploration_type(ExplorationType.RANDOM):
        found, drawn = (policy(data.clone())["action"] for policy in (own, trained))
    torch.testing.assert_close(found, expected)
    assert not torch.isclose(drawn, expected).any()


class Marked(torch.nn.Module):
    """A policy that writes its weight beside the action."""

    def __init__(self):
        super().__init__()
        self.mark = torch.nn.Parameter(torch.zeros(1))

    def forward(self, observation):
        return balance(observation), self.mark.expand(*observation.shape[:-1], 1).clone()


@guards("evaluate-throws-the-rest-away", "evaluator-steps-in-portions")
def test_steps_come_in_portions_and_none_is_kept(evaluator_of):
    steps, marks = [], []

    def look(trajectories):
        marks.append(trajectories["mark"].unique().tolist())
        return {}

    net = Marked()
    policy = TensorDictModule(net, ["observation"], ["action", "mark"])
    env = make_env(Call(lambda: steps.append(1)), max_steps=2)
    evaluator = evaluator_of(env, policy, metrics_fn=look, frames_per_batch=None)
    for number in range(3):
        torch.nn.init.constant_(net.mark, number)
        evaluator.evaluate()
    assert marks == [[0.0], [1.0], [2.0]]
    assert len(steps) == 3 * 1_000
