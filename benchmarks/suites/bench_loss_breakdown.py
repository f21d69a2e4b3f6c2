"""Cost breakdown: the parts of one training iteration of PPO, A2C, SAC and IMPALA.

Each iteration runs whole: it collects, computes advantages or fills a buffer, takes minibatches,
goes forward and backward through the loss, steps the optimizer and moves the targets. Every part is
a range of ``torch.profiler.record_function``. Some iterations run under torch.profiler, whose trace
gives the time of the ranges; others run without it, timed by the clock. The parts of an iteration
add up to all of it but a stated share, in the trace and by the clock.
"""

import contextlib
import functools
import json
import os
import tempfile
import time
from collections import defaultdict
from pathlib import Path

os.environ.setdefault("RL_WARNINGS", "False")

import pytest
import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv
from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import A2CLoss, ClipPPOLoss, SACLoss, SoftUpdate
from torchrl.objectives.value import GAE, VTrace

from benchmarks import measure, metrics
from benchmarks.interleaved import report

HIDDEN = (64, 64)
SAC_HIDDEN = (256, 256)
GAMMA, LMBDA = 0.99, 0.95
SEED = 0
ROUNDS, WARMUP_ROUNDS = 15, 3
TRACED_ROUNDS = 4  # under the profiler, of which the first counts as warm-up
LEAST_SHARE = 95  # percent of an iteration that its parts have to add up to
RANGE = "part:"
WHOLE = "iteration"

METRICS = metrics.declare("""
part_time [s] Time of the part: Wall time that the part takes of one iteration, without a profiler.
share [%] Share of the iteration: Time of the part, divided by that of its iteration, without a
    profiler.
traced_share [%] Share in the trace: The same in the trace of torch.profiler, from the ranges of
    record_function. The profiler slows small operators down.
calls [1, exact] Times in an iteration: How often the part runs in one iteration.
operators [1] Operators: ATen operators in the trace within the part, of one iteration, those that
    another operator calls included.
""")


class Parts:
    """Times of the named parts of an iteration; the same names are ranges in a trace."""

    def __init__(self, device):
        self.device = device
        self.spent, self.calls = defaultdict(float), defaultdict(int)

    @contextlib.contextmanager
    def __call__(self, name):
        with record_function(RANGE + name):
            begin = time.perf_counter()
            yield
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            self.spent[name] += time.perf_counter() - begin
            self.calls[name] += 1


# -- The algorithms --------------------------------------------------------------


def network(inputs, outputs, device, hidden=HIDDEN, activation=nn.Tanh):
    return MLP(inputs, outputs, num_cells=hidden, activation_class=activation, device=device)


def make_discrete(device):
    """Actor and critic for CartPole."""
    torch.manual_seed(SEED)
    actor = ProbabilisticActor(
        TensorDictModule(network(4, 2, device), ["observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    return actor, ValueOperator(network(4, 1, device), in_keys=["observation"])


def make_collector(name, policy, frames, device, **options):
    env = GymEnv(name, device=None)
    env.set_seed(SEED)
    devices = {}
    if device.type != "cpu":
        devices = {"policy_device": device, "env_device": "cpu", "storing_device": device}
    return Collector(
        env,
        policy,
        frames_per_batch=frames,
        total_frames=-1,
        auto_register_policy_transforms=False,
        **devices,
        **options,
    )


class Algorithm:
    """One iteration, divided into parts."""

    environment = "CartPole-v1"

    def close(self):
        self.collector.shutdown()

    def learn(self, parts, batch):
        """One gradient step on *batch*."""
        with parts("forward"):
            found = self.loss(batch)
            keys = [key for key in found.keys() if key.startswith("loss_")]  # noqa: SIM118 - no dict
            total = sum(found[key] for key in keys)
        with parts("backward"):
            total.backward()
        with parts("optimizer"):
            nn.utils.clip_grad_norm_(self.parameters, 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return total.detach()

    def optimize(self, loss, rate=3e-4):
        self.loss = loss
        self.parameters = [p for p in loss.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(self.parameters, rate)


class PPO(Algorithm):
    frames, epochs, minibatch = 512, 4, 64

    def __init__(self, device):
        actor, critic = make_discrete(device)
        self.collector = make_collector(self.environment, actor, self.frames, device)
        self.advantage = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=critic)
        self.optimize(ClipPPOLoss(actor, critic))

    def iterate(self, parts):
        with parts("collect"):
            batch = self.collector.rollout()
        with parts("advantage"), torch.no_grad():
            self.advantage(batch)
        for _ in range(self.epochs):
            with parts("sample"):
                order = torch.randperm(self.frames, device=batch["action"].device)
                minibatches = [batch[index] for index in order.split(self.minibatch)]
            for minibatch in minibatches:
                total = self.learn(parts, minibatch)
        return total


class A2C(Algorithm):
    frames, epochs, minibatch = 128, 1, 128

    def __init__(self, device):
        actor, critic = make_discrete(device)
        self.collector = make_collector(self.environment, actor, self.frames, device)
        self.advantage = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=critic)
        self.optimize(A2CLoss(actor, critic))

    def iterate(self, parts):
        with parts("collect"):
            batch = self.collector.rollout()
        with parts("advantage"), torch.no_grad():
            self.advantage(batch)
        return self.learn(parts, batch)


class IMPALA(A2C):
    """Its learner: V-trace, one step per batch. Actors in other processes change no part of it."""

    frames, minibatch = 256, 256

    def __init__(self, device):
        actor, critic = make_discrete(device)
        self.collector = make_collector(self.environment, actor, self.frames, device)
        self.advantage = VTrace(gamma=GAMMA, actor_network=actor, value_network=critic)
        self.optimize(A2CLoss(actor, critic))


class SAC(Algorithm):
    environment = "Pendulum-v1"
    frames, epochs, minibatch = 64, 64, 256  # one update a frame

    def __init__(self, device):
        torch.manual_seed(SEED)
        body = nn.Sequential(
            network(3, 2, device, SAC_HIDDEN, nn.ReLU), NormalParamExtractor().to(device)
        )
        actor = ProbabilisticActor(
            TensorDictModule(body, ["observation"], ["loc", "scale"]),
            in_keys=["loc", "scale"],
            distribution_class=TanhNormal,
            distribution_kwargs={"low": -2.0, "high": 2.0},
        )
        value = ValueOperator(
            network(4, 1, device, SAC_HIDDEN, nn.ReLU), in_keys=["observation", "action"]
        )
        self.collector = make_collector(
            self.environment, actor, self.frames, device, init_random_frames=2 * self.minibatch
        )
        storage = LazyTensorStorage(10_000, device=device)
        self.buffer = TensorDictReplayBuffer(storage=storage, batch_size=self.minibatch)
        loss = SACLoss(actor, value, action_spec=self.collector.env.action_spec)
        loss.make_value_estimator(gamma=GAMMA)
        self.target = SoftUpdate(loss, tau=0.005)
        self.optimize(loss)
        for _ in range(2 * self.minibatch // self.frames):
            self.buffer.extend(self.collector.rollout())

    def iterate(self, parts):
        with parts("collect"):
            batch = self.collector.rollout()
        with parts("extend"):
            self.buffer.extend(batch)
        for _ in range(self.epochs):
            with parts("sample"):
                minibatch = self.buffer.sample()
            total = self.learn(parts, minibatch)
            with parts("target"):
                self.target.step()
        return total


ALGORITHMS = {"ppo": PPO, "a2c": A2C, "sac": SAC, "impala": IMPALA}
STEP = ("forward", "backward", "optimizer")
PARTS = {
    "ppo": ("collect", "advantage", "sample", *STEP),
    "a2c": ("collect", "advantage", *STEP),
    "impala": ("collect", "advantage", *STEP),
    "sac": ("collect", "extend", "sample", *STEP, "target"),
}
REST = "rest"  # the iteration less its parts


# -- Timing ----------------------------------------------------------------------


def timed_iteration(algorithm, device):
    """Seconds of the parts and of the whole, how often each part ran, the last loss."""
    parts = Parts(device)
    begin = time.perf_counter()
    with record_function(RANGE + WHOLE):
        total = measure.settled(device, lambda: algorithm.iterate(parts))
    parts.spent[WHOLE] = time.perf_counter() - begin
    parts.calls[WHOLE] = 1
    return parts, total


def traced_iteration(algorithm, device):
    """The same from the trace: microseconds of the ranges and the operators within them."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        timed_iteration(algorithm, device)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    return read_trace(events)


def read_trace(events):
    ranges = [
        (event["ts"], event["ts"] + event["dur"], event["name"].removeprefix(RANGE))
        for event in events
        if event.get("cat") == "user_annotation" and event["name"].startswith(RANGE)
    ]
    spent, operators = defaultdict(float), defaultdict(int)
    for begin, end, name in ranges:
        spent[name] += end - begin
    inside = sorted(found for found in ranges if found[2] != WHOLE)
    starts = sorted(event["ts"] for event in events if event.get("cat") == "cpu_op")
    # Backward operators run in another thread, at the time of the range that waits for them.
    position = 0
    for start in starts:
        while position < len(inside) and inside[position][1] < start:
            position += 1
        if position < len(inside) and inside[position][0] <= start:
            operators[inside[position][2]] += 1
            operators[WHOLE] += 1
        else:
            operators[REST] += 1
            operators[WHOLE] += 1
    return spent, operators


def complete(spent, name):
    """Add the rest; the parts have to cover the iteration, and cannot exceed it."""
    covered = sum(spent[part] for part in PARTS[name])
    share = 100 * covered / spent[WHOLE]
    assert LEAST_SHARE <= share <= 100, f"{name}: the parts are {share:.1f} % of the iteration"
    spent[REST] = spent[WHOLE] - covered


class Measured:
    """All rounds of one algorithm."""

    def __init__(self, name, device):
        algorithm = ALGORITHMS[name](device)
        self.rounds, self.traces, losses = [], [], []
        for turn in range(WARMUP_ROUNDS + ROUNDS):
            parts, total = timed_iteration(algorithm, device)
            losses.append(total.item())
            if turn >= WARMUP_ROUNDS:
                complete(parts.spent, name)
                self.rounds.append(parts.spent)
        assert set(parts.calls) == {*PARTS[name], WHOLE}
        assert all(torch.isfinite(torch.tensor(losses))), losses
        self.calls = parts.calls
        for turn in range(TRACED_ROUNDS):
            spent, operators = traced_iteration(algorithm, device)
            if turn:
                complete(spent, name)
                self.traces.append((spent, operators))
        algorithm.close()


measured = functools.lru_cache(maxsize=None)(Measured)


def cases():
    for name, parts in PARTS.items():
        for part in (WHOLE, *parts, REST):
            yield name, part


@pytest.mark.parametrize(("name", "part"), list(cases()))
def bench_part(benchmark, device, name, part):
    found, kind = measured(name, device), ALGORITHMS[name]
    sampled = {
        "share": [100 * spent[part] / spent[WHOLE] for spent in found.rounds],
        "traced_share": [100 * spent[part] / spent[WHOLE] for spent, _ in found.traces],
        "operators": [operators[part] for _, operators in found.traces],
    }
    report(
        benchmark,
        [spent[part] for spent in found.rounds],
        WARMUP_ROUNDS,
        f"{name}-{part}",
        "part_time",
        title=f"{name.upper()}: {part}",
        parameters={
            "algorithm": name.upper(),
            "part": part,
            "environment": kind.environment,
            "frames": kind.frames,
            "epochs": kind.epochs,
            "minibatch": kind.minibatch,
        },
        exact={"calls": found.calls[part] or 1},
        sampled=sampled,
    )
