"""What the guide to changing settings says and does not run is so."""

import contextlib
import queue
import time
from functools import partial

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch._dynamo.testing import CompileCounter
from torchrl.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from torchrl.data import Bounded, Composite, LazyMemmapStorage, TensorDictReplayBuffer, Unbounded
from torchrl.envs import EnvBase, GymEnv, ParallelEnv, SerialEnv
from torchrl.modules import (
    MLP,
    EGreedyModule,
    OneHotCategorical,
    ProbabilisticActor,
    QValueActor,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss

from tests.support.claims import guards

FOREVER_S = 60  # a bound for a hang, not an expectation
QUIET = {"auto_register_policy_transforms": False}


class Levels(EnvBase):
    """The reward of a step is the level: its own, or one that processes share."""

    def __init__(self, shared=None, level=0.0, step_s=0.0):
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((1,)))
        self.action_spec = Bounded(-1, 1, (1,))
        self.reward_spec = Unbounded((1,))
        self.level, self.shared, self.step_s = level, shared, step_s

    def set_level(self, level):
        self.level = level

    def _reset(self, tensordict):
        return TensorDict(observation=torch.zeros(1))

    def _step(self, tensordict):
        time.sleep(self.step_s)
        level = self.level if self.shared is None else self.shared.item()
        never = torch.zeros(1, dtype=torch.bool)
        return TensorDict(
            observation=torch.zeros(1), reward=torch.tensor([float(level)]), terminated=never
        )

    def _set_seed(self, seed):
        """Nothing is random."""


@contextlib.contextmanager
def collecting(kind, env, **options):
    collector = kind(env, None, **{"total_frames": -1} | QUIET | options)
    try:
        yield collector
    finally:
        collector.shutdown()


def levels(batch):
    return batch["next", "reward"].unique().tolist()


def until(reached):
    deadline = time.monotonic() + FOREVER_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


fork_warns = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.mark.parametrize("batched", [SerialEnv, ParallelEnv])
@guards("setting-all-environments-at-once")
@fork_warns
def test_a_batched_environment_calls_a_method_of_each(batched, forked):
    with collecting(Collector, batched(2, Levels), frames_per_batch=4) as collector:
        collector.env.set_level(0.25)  # before the first batch
        assert levels(collector.next()) == [0.25]
        collector.env.set_level(0.5)
        assert levels(collector.next()) == [0.5]


@guards("setting-while-paused")
@fork_warns
def test_workers_in_the_background_take_a_setting_while_they_pause(forked):
    buffer = TensorDictReplayBuffer(storage=LazyMemmapStorage(100_000), batch_size=4)
    slow, options = partial(Levels, step_s=0.001), {"frames_per_batch": 10}
    with collecting(MultiAsyncCollector, [slow] * 2, replay_buffer=buffer, **options) as collector:
        collector.start()
        until(lambda: buffer.write_count >= 40)
        with collector.pause():
            before = buffer.write_count
            collector.map_fn("env.set_level", [(0.5,)] * 2)
        until(lambda: buffer.write_count >= before + 40)
        with collector.pause():
            assert levels(buffer[:before]) == [0]
            assert levels(buffer[before:]) == [0.5]


@guards("map-fn-stops-async-workers")
@fork_warns
def test_a_worker_that_collects_meanwhile_sends_no_other_batch(forked):
    """Its batch takes a second, and is not there after several."""
    slow = partial(Levels, step_s=0.2)
    with collecting(MultiAsyncCollector, [slow], frames_per_batch=5) as collector:
        collector.next()  # the worker goes on
        collector.map_fn("env.set_level", [(0.5,)])
        with pytest.raises(queue.Empty):
            collector.queue_out.get(timeout=3)
        assert collector.procs[0].is_alive()


@guards("setting-by-shared-tensor")
@fork_warns
def test_a_shared_tensor_applies_within_a_batch(forked):
    shared = torch.zeros(()).share_memory_()
    slow = {"create_env_kwargs": [{"shared": shared, "step_s": 0.05}]}
    with collecting(MultiAsyncCollector, [Levels], frames_per_batch=10, **slow) as collector:
        assert levels(collector.next()) == [0]

        def both():
            """Within one of the next batches the level changes."""
            time.sleep(0.2)
            shared.fill_(0.5 - shared.item())
            return levels(collector.next()) == [0, 0.5]

        until(both)


@guards("update-kwargs-before-the-start")
@fork_warns
def test_arguments_of_a_constructor_do_not_reach_a_running_worker(forked):
    env = ParallelEnv(2, Levels, create_env_kwargs=[{"level": 0.25}, {"level": 0.25}])
    with collecting(Collector, env, frames_per_batch=4) as collector:
        assert levels(collector.next()) == [0.25]
        env.update_kwargs({"level": 0.5})
        assert levels(collector.next()) == [0.25]


def ppo_and_rows():
    """A loss, and five rows to call it with."""
    net = TensorDictModule(MLP(4, 2, num_cells=[8]), ["observation"], ["logits"])
    actor = ProbabilisticActor(
        net, ["logits"], distribution_class=OneHotCategorical, return_log_prob=True
    )
    loss = ClipPPOLoss(actor, ValueOperator(MLP(4, 1, num_cells=[8]), ["observation"]))
    with torch.no_grad():
        data = actor(TensorDict(observation=torch.randn(5, 4), batch_size=[5]))
    data["advantage"], data["value_target"] = torch.randn(5, 1), torch.zeros(5, 1)
    return loss, data


@guards("ppo-terms-share-a-graph")
def test_a_second_backward_raises():
    loss, data = ppo_and_rows()
    values = loss(data)
    values["loss_objective"].backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        values["loss_entropy"].backward()


@guards("compiled-loss-follows-coefficients")
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor:UserWarning",
    "ignore:torch._dynamo.config:FutureWarning",
)
def test_a_compiled_loss_follows_its_coefficients():
    torch.manual_seed(0)
    loss, data = ppo_and_rows()
    data["action_log_prob"] += torch.randn(5)  # ratios that are clipped
    counter = CompileCounter()
    compiled = torch.compile(loss, backend=counter)
    counts, distances, objectives = [], [], set()
    for coefficient in (0.5, 0.25, 0.125):
        loss.entropy_coeff = loss.critic_coeff = loss.clip_epsilon = coefficient
        values = compiled(data)
        bonus = -values["loss_entropy"].detach() / values["entropy"]
        assert bonus.item() == pytest.approx(coefficient)
        distances.append(values["loss_critic"].item() / coefficient)
        objectives.add(values["loss_objective"].item())
        counts.append(counter.frame_count)
    assert counts[0] == counts[-1]
    assert distances == pytest.approx([distances[0]] * len(counts))
    assert len(objectives) == len(counts)
    assert {"entropy_coeff", "critic_coeff", "clip_epsilon"} <= loss.state_dict().keys()


@guards("workers-share-epsilon")
@pytest.mark.parametrize("kind", [MultiSyncCollector, MultiAsyncCollector])
def test_workers_act_with_an_epsilon_that_they_were_not_sent(kind, forked):
    spec = GymEnv("CartPole-v1").action_spec
    actor = QValueActor(MLP(4, 2, num_cells=[8]), in_keys=["observation"], spec=spec)
    explore = EGreedyModule(spec, eps_init=1.0, eps_end=0.0, annealing_num_steps=1)
    collector = kind(
        [partial(GymEnv, "CartPole-v1")] * 2,
        TensorDictSequential(actor, explore),
        frames_per_batch=200,
        total_frames=-1,
        **QUIET,
    )

    def explored():
        batch = collector.next()
        greedy = actor(batch.select("observation"))["action"]
        return (greedy != batch["action"]).any(-1).any().item()

    try:
        assert explored()
        explore.step(2)
        # The first batches of an asynchronous worker may be from before.
        assert not all(explored() for _ in range(20))
    finally:
        collector.shutdown()
