"""What an evaluation costs the training beside it, in this process and in one of its own.

Training is DQN on CartPole: one batch of frames and the updates from it. An evaluation plays a
number of episodes that all end at the time limit, so that every one has as many steps. Ways are
timed in turn. Here an evaluation stops the training, and its processor time is what it costs; in a
process of its own it takes a core, and only a trigger, a result and a slower machine are left.
"""

import functools
import multiprocessing
import time

import pytest
import torch
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector, Evaluator
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import ExplorationType, GymEnv, StepCounter, Transform, TransformedEnv
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

from benchmarks import interleaved, measure, metrics

FRAMES = 200  # of a batch
UPDATES = 20  # from it
EPISODES = 5
LONG = 15  # episodes of an evaluation that outlasts an iteration
MAX_STEPS = 20  # the balancing policy below never falls earlier
PORTIONS = (MAX_STEPS, 1_000)  # the default of an evaluator that is told no limit
LIMIT = 120  # seconds for a result
ROUNDS, WARMUP_ROUNDS = 30, 3
NO_PRIMERS = {"auto_register_policy_transforms": False}

METRICS = metrics.declare(f"""
evaluation_time [s] Time of an evaluation: Wall time of {EPISODES} episodes of {MAX_STEPS} steps.
processor_time [s] Processor time: Processor time of this process for it.
vs_rollout [1] Processor time against rollouts: Processor time of the evaluation, divided by that of
    as many episodes with rollout and the same policy, in the same turn.
steps_taken [1, exact] Steps taken: Steps of the environment that one evaluation takes.
iteration_time [s] Time of an iteration: Wall time of a batch of {FRAMES} frames and {UPDATES}
    updates.
vs_alone [1] Time against training alone: Time of an iteration while the process evaluates,
    divided by that of one while it waits, in the same turn.
asking_time [s] Time of asking: Wall time of trigger_eval.
start_time [s] Start: Wall time from the constructor to the first result of a process that is
    started by "spawn".
""")


def make_env():
    torch.set_num_threads(measure.THREADS)
    env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=MAX_STEPS))
    env.set_seed(0)
    return env


class Counting(Transform):
    """Counts the steps of its environment."""

    taken = 0

    def _step(self, tensordict, next_tensordict):
        self.taken += 1
        return next_tensordict


def make_actor():
    torch.manual_seed(0)
    net = MLP(in_features=4, out_features=2, num_cells=[64])
    return QValueActor(net, in_keys=["observation"], spec=GymEnv("CartPole-v1").action_spec)


def make_policy(env=None):
    """A policy that balances: push to where the pole falls."""
    actor = make_actor()
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.zero_()
        first, _, last = actor.module[0].module
        first.weight[0] = torch.tensor([0.0, 1.0, 10.0, 10.0])
        last.weight[1, 0] = 1.0
        last.bias[0] = 1e-6
    return actor


class Training:
    """DQN on CartPole, an iteration at a time."""

    def __init__(self):
        torch.manual_seed(0)
        env = GymEnv("CartPole-v1")
        actor = make_actor()
        explore = EGreedyModule(env.action_spec, eps_init=0.5, eps_end=0.5)
        policy = TensorDictSequential(actor, explore)
        self.collector = Collector(
            env, policy, frames_per_batch=FRAMES, total_frames=-1, **NO_PRIMERS
        )
        self.buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(5_000), batch_size=64)
        self.loss = DQNLoss(actor, action_space=env.action_spec, delay_value=True)
        self.loss.make_value_estimator(gamma=0.99)
        self.target = SoftUpdate(self.loss, eps=0.9)
        self.optimizer = torch.optim.Adam(self.loss.parameters(), lr=3e-3)

    def iteration(self):
        self.buffer.extend(self.collector.next())
        for _ in range(UPDATES):
            self.optimizer.zero_grad()
            self.loss(self.buffer.sample())["loss"].backward()
            self.optimizer.step()
            self.target.step()


def options(portion, episodes=EPISODES):
    """Options of an evaluator that steps in portions."""
    return {
        "num_trajectories": episodes,
        "frames_per_batch": portion,
        "collector_kwargs": NO_PRIMERS | {"traj_format": "cat"},
    }


def parameters(portion, process, episodes=EPISODES):
    where = "a process of its own" if process else "this process"
    return {"portion": portion, "where": where, "episodes": episodes, "steps": MAX_STEPS}


def steps_of_one(portion):
    """How many steps of its environment one evaluation takes."""
    counting = Counting()
    env = make_env()
    env.append_transform(counting)
    evaluator = Evaluator(env, make_policy(), **options(portion))
    evaluator.evaluate(make_policy())
    counting.taken = 0
    evaluator.evaluate(make_policy())
    evaluator.shutdown()
    return counting.taken


@functools.cache
def timed_here():
    """Wall and processor seconds of evaluations by the size of their portions, and of rollouts."""
    policy, env = make_policy(), make_env()
    evaluators = {n: Evaluator(make_env(), make_policy(), **options(n)) for n in PORTIONS}

    def rollouts():
        for _ in range(EPISODES):
            assert len(env.rollout(MAX_STEPS, policy)) == MAX_STEPS

    def evaluate(evaluator):
        assert evaluator.evaluate(policy)["eval/reward"] == MAX_STEPS

    ways = {n: functools.partial(evaluate, evaluators[n]) for n in PORTIONS}
    ways["rollouts"] = rollouts
    spent = {name: [] for name in ways}
    for turn in range(WARMUP_ROUNDS + ROUNDS):
        for name, work in ways.items():
            begin = time.perf_counter(), time.process_time()
            work()
            if turn >= WARMUP_ROUNDS:
                wall, processor = time.perf_counter() - begin[0], time.process_time() - begin[1]
                spent[name].append((wall, processor))
    for evaluator in evaluators.values():
        evaluator.shutdown()
    return spent


@pytest.mark.parametrize("portion", PORTIONS)
def bench_here(benchmark, device, portion):
    if device.type == "cuda":
        pytest.skip("processes and an environment on the CPU are measured")
    spent = timed_here()
    wall, processor = zip(*spent[portion], strict=True)
    base = [seconds for _, seconds in spent["rollouts"]]
    interleaved.report(
        benchmark,
        list(wall),
        WARMUP_ROUNDS,
        f"here-{portion}",
        "evaluation_time",
        title=f"In this process, portions of {portion} steps",
        parameters=parameters(portion, process=False),
        exact={"steps_taken": steps_of_one(portion)},
        sampled={
            "processor_time": list(processor),
            "vs_rollout": [a / b for a, b in zip(processor, base, strict=True)],
        },
    )


class Background:
    """An evaluator in a process of its own, started by "spawn"."""

    def __init__(self, portion, episodes=EPISODES):
        self.before = multiprocessing.get_start_method()
        multiprocessing.set_start_method("spawn", force=True)
        self.evaluator = Evaluator(
            make_env,
            policy_factory=make_policy,
            backend="process",
            exploration_type=ExplorationType.RANDOM,
            **options(portion, episodes),
        )
        self.policy = make_policy()

    def trigger(self):
        assert self.evaluator.trigger_eval(self.policy)

    def result(self):
        found = self.evaluator.wait(timeout=LIMIT)
        assert found["eval/reward"] == MAX_STEPS

    def evaluate(self):
        self.trigger()
        self.result()

    def __enter__(self):
        self.evaluate()  # it starts the process
        return self

    def __exit__(self, *error):
        self.evaluator.shutdown()
        multiprocessing.set_start_method(self.before, force=True)


@pytest.mark.parametrize("portion", [1, MAX_STEPS])
def bench_process(benchmark, device, portion):
    if device.type == "cuda":
        pytest.skip("processes and an environment on the CPU are measured")
    asking = []
    with Background(portion) as background:
        for _ in range(WARMUP_ROUNDS + ROUNDS):
            begin = time.perf_counter()
            background.trigger()
            asking.append(time.perf_counter() - begin)
            background.result()
        benchmark.pedantic(background.evaluate, rounds=ROUNDS, warmup_rounds=WARMUP_ROUNDS)
    interleaved.note(
        benchmark,
        f"process-{portion}",
        "evaluation_time",
        title=f"In a process of its own, portions of {portion}",
        parameters=parameters(portion, process=True),
        sampled={"asking_time": asking[WARMUP_ROUNDS:]},
    )


def bench_beside(benchmark, device):
    if device.type == "cuda":
        pytest.skip("processes and an environment on the CPU are measured")
    training, alone = Training(), []

    def iteration_alone():
        begin = time.perf_counter()
        training.iteration()
        alone.append(time.perf_counter() - begin)

    with Background(1, LONG) as background:
        beside = []
        for _ in range(WARMUP_ROUNDS + ROUNDS):
            iteration_alone()
            background.trigger()
            begin = time.perf_counter()
            training.iteration()
            beside.append(time.perf_counter() - begin)
            assert background.evaluator.poll() is None, "the evaluation ended before"
            background.result()
    training.collector.shutdown()
    ratios = [ours / base for ours, base in zip(beside, alone, strict=True)]
    interleaved.report(
        benchmark,
        beside[WARMUP_ROUNDS:],
        WARMUP_ROUNDS,
        "beside",
        "iteration_time",
        title="Training while a process evaluates",
        parameters=parameters(1, process=True, episodes=LONG),
        sampled={"vs_alone": ratios[WARMUP_ROUNDS:]},
    )


def bench_start(benchmark, device):
    if device.type == "cuda":
        pytest.skip("processes and an environment on the CPU are measured")
    begin = time.perf_counter()
    with Background(1):
        benchmark.state([time.perf_counter() - begin])
    measure.note(
        benchmark,
        "start",
        "start_time",
        title="Start of a process that evaluates",
        parameters=parameters(1, process=True),
    )
    benchmark.extra_info["warmup_rounds"] = 0
