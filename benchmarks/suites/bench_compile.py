"""torch.compile on losses, policies and value functions: what a step gains, what compiling costs.

A loss takes a forward and a backward pass, a policy and a value network a forward pass without
gradients. Each case runs in a process of its own with an empty cache of TorchInductor: the calls
until nothing compiles any more are timed, then eager and compiled steps in turn. Outputs and
gradients of both are compared first, with the same random numbers
(torch._inductor.config.fallback_random). No optimizer takes part.
"""

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    CudaGraphModule,
    InteractionType,
    NormalParamExtractor,
    TensorDictModule,
    TensorDictSequential,
    set_interaction_type,
)
from torch import nn
from torchrl.data import Bounded, Categorical, OneHot
from torchrl.modules import (
    MLP,
    OneHotCategorical,
    ProbabilisticActor,
    QValueActor,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss, DQNLoss, SACLoss, SoftUpdate
from torchrl.objectives.value import GAE

from benchmarks import measure, metrics

ROOT = Path(__file__).parents[2]
LIMIT_S = 550
OBSERVATION, ACTIONS, LAYERS = 8, 4, [64, 64]
SEED = 0
TOLERANCE = 1e-4
SETTLING_CALLS = 4
SECONDS = 1.5  # for the rounds of one case
ROUND_S = 0.02  # at least, for one way: short steps are repeated within a round
MOST_ROUNDS, LEAST_ROUNDS = 40, 11

METRICS = metrics.declare("""
process_time [s] Process: Wall time of the whole process: imports, compilation, comparison, rounds.
eager_time [s] Eager step: Wall time of one step without torch.compile.
compiled_time [s] Compiled step: Wall time of one compiled step, after the first calls.
time_vs_eager [1] Compiled against eager: Time of a compiled step, divided by that of the eager step
    right before it. Below one the compiled step is faster.
compile_time [s] Compilation: Wall time of the first calls, until nothing compiles any more, minus
    that of as many compiled steps.
warm_compile_time [s] Compilation in a later process: The same in a second process that finds
    TorchInductor's cache filled.
break_even_steps [1] Steps to break even: Time of the compilation, divided by what a compiled step
    saves. Absent where a compiled step saves nothing.
warm_break_even_steps [1] Steps to break even in a later process: The same with the time of the
    second process.
graphs [1, exact] Graphs: Graphs that Dynamo compiled in the first calls.
graph_breaks [1, exact] Graph breaks: Places at which Dynamo gave up a graph in the first calls.
output_error [1, exact] Largest output difference: Largest absolute difference between an output of
    the compiled and of the eager step.
gradient_error [1, exact] Largest gradient difference: Largest absolute difference between gradients
    of the compiled and of the eager step, divided by the largest gradient.
""")


# -- What is compiled -------------------------------------------------------------


class StateActionValue(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = MLP(in_features=OBSERVATION + 2, out_features=1, num_cells=LAYERS)

    def forward(self, observation, action):
        return self.network(torch.cat([observation, action], -1))


def make_batch(batch, **entries):
    nothing = torch.zeros(batch, 1, dtype=torch.bool)
    following = {
        "observation": torch.randn(batch, OBSERVATION),
        "reward": torch.randn(batch, 1),
        "done": nothing,
        "terminated": nothing.clone(),
    }
    observation = torch.randn(batch, OBSERVATION)
    return TensorDict({"observation": observation, "next": following, **entries}, [batch])


def make_value():
    return ValueOperator(
        MLP(in_features=OBSERVATION, out_features=1, num_cells=LAYERS), in_keys=["observation"]
    )


def make_actor(one_hot=False):
    network = MLP(in_features=OBSERVATION, out_features=ACTIONS, num_cells=LAYERS)
    return ProbabilisticActor(
        TensorDictModule(network, in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        spec=OneHot(ACTIONS) if one_hot else Categorical(ACTIONS),
        distribution_class=OneHotCategorical if one_hot else torch.distributions.Categorical,
        return_log_prob=True,
    )


def value(batch):
    return make_value(), make_batch(batch).select("observation")


def actor(batch):
    return make_actor(), make_batch(batch).select("observation")


def clip_ppo(batch, one_hot=False):
    policy, critic, data = make_actor(one_hot), make_value(), make_batch(batch)
    with torch.no_grad():
        policy(data)
        GAE(gamma=0.99, lmbda=0.95, value_network=critic)(data)
    return ClipPPOLoss(policy, critic), data


def clip_ppo_one_hot(batch):
    return clip_ppo(batch, one_hot=True)


def dqn(batch):
    network = QValueActor(
        MLP(in_features=OBSERVATION, out_features=ACTIONS, num_cells=LAYERS),
        in_keys=["observation"],
        spec=OneHot(ACTIONS),
    )
    loss = DQNLoss(network, action_space="one-hot", delay_value=True)
    loss.make_value_estimator()
    SoftUpdate(loss, eps=0.99)
    action = nn.functional.one_hot(torch.arange(batch) % ACTIONS, ACTIONS)
    return loss, make_batch(batch, action=action)


def sac(batch):
    network = nn.Sequential(
        MLP(in_features=OBSERVATION, out_features=4, num_cells=LAYERS), NormalParamExtractor()
    )
    policy = ProbabilisticActor(
        TensorDictSequential(
            TensorDictModule(network, in_keys=["observation"], out_keys=["loc", "scale"])
        ),
        in_keys=["loc", "scale"],
        spec=Bounded(-1, 1, (2,)),
        distribution_class=TanhNormal,
    )
    critic = ValueOperator(StateActionValue(), in_keys=["observation", "action"])
    loss = SACLoss(policy, critic)
    loss.make_value_estimator()
    SoftUpdate(loss, eps=0.99)
    return loss, make_batch(batch, action=2 * torch.rand(batch, 2) - 1)


SUBJECTS = {
    "value": (value, "value network"),
    "actor": (actor, "ProbabilisticActor, Categorical"),
    "clip-ppo": (clip_ppo, "ClipPPOLoss, Categorical"),
    "clip-ppo-one-hot": (clip_ppo_one_hot, "ClipPPOLoss, OneHotCategorical"),
    "dqn": (dqn, "DQNLoss"),
    "sac": (sac, "SACLoss"),
}
CUDA_GRAPH = "CudaGraphModule"


@dataclasses.dataclass(frozen=True)
class Case:
    """One process: what is compiled, for which batch, and how."""

    subject: str
    batch: int
    mode: str = "default"  # of torch.compile, or CudaGraphModule
    warm: bool = False  # start a second process that finds the caches filled
    backend: str = "inductor"

    @property
    def key(self):
        ending = {"default": "", CUDA_GRAPH: "-cudagraph"}.get(self.mode, f"-{self.mode}")
        return f"{self.subject}-b{self.batch}{ending}"

    @property
    def title(self):
        how = [] if self.mode == "default" else [self.mode]
        return ", ".join([SUBJECTS[self.subject][1], f"batch {self.batch}", *how])

    @property
    def parameters(self):
        return {
            "subject": SUBJECTS[self.subject][1],
            "batch": self.batch,
            "mode": self.mode,
            "backend": self.backend,
            "pass": "forward and backward" if self.is_loss else "forward, no gradients",
            "layers": "x".join(map(str, LAYERS)),
            "observation": OBSERVATION,
        }

    @property
    def is_loss(self):
        return self.subject not in ("value", "actor")

    def compile(self, module):
        if self.mode == CUDA_GRAPH:
            return CudaGraphModule(module)
        mode = None if self.mode == "default" else self.mode
        return torch.compile(module, mode=mode, backend=self.backend)


CASES = [
    Case("value", 256),
    Case("actor", 1),
    Case("dqn", 256, warm=True),
    Case("dqn", 4096),
    Case("clip-ppo", 256),
    Case("clip-ppo-one-hot", 256),
    Case("sac", 256),
    # Both capture CUDA graphs; on the CPU there are none.
    pytest.param(Case("dqn", 256, mode="reduce-overhead"), marks=pytest.mark.cuda),
    pytest.param(Case("value", 256, mode=CUDA_GRAPH), marks=pytest.mark.cuda),
]


# -- In the process of a case -----------------------------------------------------


class Step:
    """One step of a case, eager or compiled."""

    def __init__(self, case, module, call, data):
        self.case, self.module, self.call, self.data = case, module, call, data

    def __call__(self):
        torch.compiler.cudagraph_mark_step_begin()
        if not self.case.is_loss:
            with torch.no_grad(), set_interaction_type(InteractionType.RANDOM):
                return self.call(self.data.copy())
        self.module.zero_grad()
        losses = self.call(self.data.copy())
        sum(value for key, value in losses.items() if key.startswith("loss")).backward()
        return losses.detach()

    def results(self):
        """Outputs and gradients, as copies: a CUDA graph writes into the same memory again."""
        torch.manual_seed(SEED)
        outputs = {key: tensor.to(torch.float64) for key, tensor in self().items()}
        parameters = self.module.named_parameters()
        gradients = {name: p.grad.clone() for name, p in parameters if p.grad is not None}
        assert bool(gradients) == self.case.is_loss
        return outputs, gradients


def difference(ours, theirs):
    assert ours.keys() == theirs.keys()
    return max(((ours[key] - theirs[key]).abs().max().item() for key in theirs), default=0.0)


def errors(compiled, eager):
    (outputs, gradients), (expected, wanted) = compiled.results(), eager.results()
    largest = max((gradient.abs().max().item() for gradient in wanted.values()), default=1.0)
    found = {
        "output_error": difference(outputs, expected),
        "gradient_error": difference(gradients, wanted) / largest,
    }
    assert max(found.values()) < TOLERANCE, found
    return found


def settle(case, step, device):
    """Seconds of the first calls, and the graphs and graph breaks that they made."""
    counters = torch._dynamo.utils.counters
    counters.clear()
    seconds = []
    for _ in range(SETTLING_CALLS):
        before = counters["stats"]["unique_graphs"]
        begin = time.perf_counter()
        measure.settled(device, step)
        seconds.append(time.perf_counter() - begin)
    graphs = counters["stats"]["unique_graphs"]
    assert before == graphs, f"the last of {SETTLING_CALLS} calls compiled as well"
    assert graphs > 0 or case.mode == CUDA_GRAPH, "nothing was compiled"
    return sum(seconds), {"graphs": graphs, "graph_breaks": sum(counters["graph_break"].values())}


def alternate(device, compiled, eager):
    """Seconds of a step in rounds that take turns: of compiled and of eager steps."""

    def seconds(step, calls):
        begin = time.perf_counter()
        for _ in range(calls):
            measure.settled(device, step)
        return (time.perf_counter() - begin) / calls

    steps = (eager, compiled)
    slowest = max(min(seconds(step, 3) for _ in range(3)) for step in steps)
    calls = max(1, round(ROUND_S / slowest))
    rounds = int(SECONDS / (2 * calls * slowest))
    rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, rounds))
    times = [[seconds(step, calls) for step in steps] for _ in range(rounds)]
    return [ours for _, ours in times], [theirs for theirs, _ in times]


def measure_case(case, device, first_calls_alone=False):
    """What the process of a case reports."""
    torch._inductor.config.fallback_random = True  # so that both draw the same numbers
    torch.manual_seed(SEED)
    module, data = SUBJECTS[case.subject][0](case.batch)
    module, data = module.to(device), data.to(device)
    eager = Step(case, module, module, data)
    measure.settled(device, eager)  # loading what eager execution needs is no compilation
    compiled = Step(case, module, case.compile(module), data)
    first, exact = settle(case, compiled, device)
    if first_calls_alone:
        return {"first": first}
    exact |= errors(compiled, eager)
    ours, theirs = alternate(device, compiled, eager)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs == exact["graphs"], "a later step compiled as well"
    return {"first": first, "exact": exact, "compiled": ours, "eager": theirs}


CHILD = """\
import json, sys
import torch
from benchmarks import measure
from benchmarks.suites import bench_compile as suite

torch.set_num_threads(measure.THREADS)
case, device, first_calls_alone = json.loads(sys.argv[1])
found = suite.measure_case(suite.Case(**case), torch.device(device), first_calls_alone)
print(json.dumps(found))
"""


def run_child(case, device, folder, first_calls_alone=False):
    asked = [dataclasses.asdict(case), device.type, first_calls_alone]
    child = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(asked)],
        cwd=ROOT,
        env=os.environ
        | {
            "TRITON_CACHE_DIR": str(folder / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        },
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])


# -- The benchmark ----------------------------------------------------------------


@pytest.fixture(scope="module")
def compiler(device):
    """TorchInductor needs a C++ compiler on the CPU."""
    if device.type == "cpu":
        from torch._inductor import cpp_builder, exc

        try:
            cpp_builder.get_cpp_compiler()
        except exc.InvalidCxxCompiler:
            pytest.skip("no C++ compiler: TorchInductor cannot compile for the CPU")


def break_even(found, first):
    """Compilation in seconds, and after how many steps it has paid; none where it never does."""
    ours, theirs = median(found["compiled"]), median(found["eager"])
    seconds = first - SETTLING_CALLS * ours
    return seconds, [seconds / (theirs - ours)] if ours < theirs else []


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key)
def bench_compiled_step(benchmark, device, tmp_path, case):
    found = benchmark.pedantic(run_child, args=(case, device, tmp_path), rounds=1)
    compile_time, steps = break_even(found, found["first"])
    sampled = {
        "eager_time": found["eager"],
        "compiled_time": found["compiled"],
        "time_vs_eager": [a / b for a, b in zip(found["compiled"], found["eager"], strict=True)],
        "compile_time": [compile_time],
        "break_even_steps": steps,
    }
    if case.warm:
        later = run_child(case, device, tmp_path, first_calls_alone=True)
        compile_time, steps = break_even(found, later["first"])
        sampled |= {"warm_compile_time": [compile_time], "warm_break_even_steps": steps}
    measure.note(
        benchmark,
        case.key,
        "process_time",
        title=case.title,
        parameters=case.parameters,
        exact=found["exact"],
        sampled={metric: values for metric, values in sampled.items() if values},
    )
    benchmark.extra_info["warmup_rounds"] = 0
