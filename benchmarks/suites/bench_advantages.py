"""Advantages: the loop against the vectorized form, and the options of an estimator.

The keys ``gae-*`` and ``tdlambda-*`` call the functional forms of GAE and TD(lambda) on random
values and rewards: the vectorized form and the loop in turn, on the same tensors. The keys
``estimator-*`` do the same with the module GAE and its option ``vectorized``, which calls a critic
as well. The keys ``knob-*`` compare one option, or another estimator, with GAE as it comes. Both
ways of a pair give the same values, but where an estimator or option computes something else.
"""

import functools
import os

os.environ.setdefault("RL_WARNINGS", "False")  # shifted=True logs that time is the last dimension

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import (
    GAE,
    MultiAgentGAE,
    TD0Estimator,
    TD1Estimator,
    TDLambdaEstimator,
    VTrace,
)
from torchrl.objectives.value.functional import (
    generalized_advantage_estimate,
    td_lambda_return_estimate,
    vec_generalized_advantage_estimate,
    vec_td_lambda_return_estimate,
)

from benchmarks import measure, metrics
from benchmarks.interleaved import (
    LEAST_ROUNDS,
    MOST_ROUNDS,
    WARMUP_ROUNDS,
    note,
    paired,
    report,
    rounds,
)

BATCH = 16
STEPS = (8, 32, 128, 512, 2048)
TENSOR_STEPS = (8, 32, 128, 512)  # memory grows with the square
BATCHES = (1, 64, 256)  # beside BATCH, at MIDDLE
MIDDLE = 128
DONES = (0, 2)  # percent of the steps
GAMMA, LMBDA = 0.99, 0.95
OBSERVATION = 4  # that of CartPole
HIDDEN = (64, 64)
AGENTS = 3
SEED = 0
SECONDS = 0.6  # for the rounds of one pair
TOLERANCE = 1e-3  # sums of up to 2048 terms in another order, terms below 1e-7 left out

METRICS = metrics.declare("""
time [s] Time of a call: Wall time of the call; keys estimator-*: with vectorized=True, keys knob-*:
    with the option.
time_vs_loop [1] Time against the loop: Time of the vectorized form, divided by that of the loop
    right before it.
time_vs_default [1] Time against the default: Time with the option, divided by that of the default
    right before it.
error [1, exact] Largest difference: Largest absolute difference of a result to that of the loop, or
    of the default.
peak_memory [B, exact] Peak memory: Most bytes that torch's allocator holds at once during the call,
    beyond its input.
peak_vs_loop [1, exact] Peak memory against the loop: Peak memory of the vectorized form, divided by
    that of the loop.
""")

VECTORIZED, LOOP = "vectorized", "loop"
FUNCTIONS = {
    "gae": ("GAE", generalized_advantage_estimate, vec_generalized_advantage_estimate),
    "tdlambda": ("TD(lambda)", td_lambda_return_estimate, vec_td_lambda_return_estimate),
}


def make_signals(batch, steps, dones, device):
    """Values, next values, rewards, ends; *dones* percent of the steps end a trajectory."""
    generator = torch.Generator().manual_seed(SEED)
    shape = (batch, steps, 1)
    values = [torch.randn(shape, generator=generator) for _ in range(3)]
    done = torch.rand(shape, generator=generator) < dones / 100
    return [tensor.to(device) for tensor in (*values, done)]


def difference(ours, theirs):
    return max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))


def against_loop(benchmark, device, ours, loop, seconds=SECONDS):
    """Compare the results, take the peaks, time both in turn."""
    error = difference(ours(), loop())
    assert error < TOLERANCE, error
    peak, base = (measure.peak_memory(device, function) for function in (ours, loop))
    ratios = paired(benchmark, device, ours, loop, seconds)
    exact = {"error": error, "peak_memory": peak, "peak_vs_loop": peak / base}
    return exact, {"time_vs_loop": ratios}


# -- Functional forms ------------------------------------------------------------


def function_calls(name, kind, batch, steps, dones, device):
    """The vectorized form and the loop on the same tensors; each returns a tuple of tensors."""
    _, loop, vectorized = FUNCTIONS[name]
    value, following, reward, done = make_signals(batch, steps, dones, device)
    gamma = GAMMA if kind == "scalar" else torch.full_like(reward, GAMMA)
    tensors = (value, following, reward) if name == "gae" else (following, reward)

    def call(function):
        result = function(gamma, LMBDA, *tensors, done, done)
        return result if isinstance(result, tuple) else (result,)

    return lambda: call(vectorized), lambda: call(loop)


def function_cases():
    for name in FUNCTIONS:
        for dones in DONES:
            for steps in STEPS:
                yield name, "scalar", BATCH, steps, dones
            for batch in BATCHES:
                yield name, "scalar", batch, MIDDLE, dones
            for steps in TENSOR_STEPS:
                yield name, "tensor", BATCH, steps, dones


def function_key(name, kind, batch, steps, dones):
    return f"{name}-{kind}-b{batch}-t{steps}-d{dones}"


@functools.lru_cache(maxsize=1)
def both_forms(case, device):
    """The results compared, the peaks, and the rounds of both forms in turn."""
    ours, loop = function_calls(*case, device)
    error = difference(ours(), loop())
    assert error < TOLERANCE, error
    forms = {VECTORIZED: ours, LOOP: loop}
    peaks = {form: measure.peak_memory(device, call) for form, call in forms.items()}
    once = sum(seconds[0] for seconds in rounds(device, forms, count=1, warmup=1).values())
    count = max(LEAST_ROUNDS, min(MOST_ROUNDS, int(SECONDS / once)))
    return error, peaks, rounds(device, forms, count, WARMUP_ROUNDS)


@pytest.mark.parametrize("form", [VECTORIZED, LOOP])
@pytest.mark.parametrize(
    "case", list(function_cases()), ids=[function_key(*case) for case in function_cases()]
)
def bench_function(benchmark, device, case, form):
    name, kind, batch, steps, dones = case
    error, peaks, spent = both_forms(case, device)
    exact, sampled = {"peak_memory": peaks[form]}, {}
    if form == VECTORIZED:
        exact |= {"error": error, "peak_vs_loop": peaks[form] / peaks[LOOP]}
        pairs = zip(spent[VECTORIZED], spent[LOOP], strict=True)
        sampled["time_vs_loop"] = [ours / loop for ours, loop in pairs]
    ends = f"{dones} percent" if dones else "none"
    report(
        benchmark,
        spent[form],
        WARMUP_ROUNDS,
        function_key(*case) + ("" if form == VECTORIZED else "-loop"),
        "time",
        title=f"{FUNCTIONS[name][0]}, {form}, {kind} gamma, {batch} x {steps}, ends: {ends}",
        parameters={
            "function": FUNCTIONS[name][0],
            "form": form,
            "gamma": kind,
            "batch": batch,
            "steps": steps,
            "ends": ends,
            "gamma_value": GAMMA,
            "lmbda": LMBDA,
        },
        exact=exact,
        sampled=sampled,
    )


# -- The module with its critic --------------------------------------------------


def make_critic(device):
    torch.manual_seed(SEED)
    network = MLP(OBSERVATION, 1, num_cells=HIDDEN, activation_class=torch.nn.Tanh, device=device)
    return ValueOperator(network, in_keys=["observation"])


def make_actor(device):
    torch.manual_seed(SEED)
    network = MLP(OBSERVATION, 2, num_cells=HIDDEN, activation_class=torch.nn.Tanh, device=device)
    return ProbabilisticActor(
        TensorDictModule(network, ["observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )


def make_batch(steps, dones, device):
    """Trajectories as a collector stores them: next is the following row, but at an end."""
    _, _, reward, done = make_signals(BATCH, steps, dones, device)
    generator = torch.Generator().manual_seed(SEED + 1)
    seen = torch.randn(BATCH, steps + 1, OBSERVATION, generator=generator).to(device)
    following = {
        "observation": seen[:, 1:],
        "reward": reward,
        "done": done,
        "terminated": done.clone(),
    }
    return TensorDict({"observation": seen[:, :-1], "next": following}, [BATCH, steps]).to(device)


def estimate(estimator, batch):
    def call():
        result = estimator(batch.copy())
        return result["advantage"], result["value_target"]

    return call


def make_gae(device, critic=None, **options):
    critic = make_critic(device) if critic is None else critic
    return GAE(gamma=GAMMA, lmbda=LMBDA, value_network=critic, **options)


@pytest.mark.parametrize("dones", DONES)
@pytest.mark.parametrize("steps", STEPS)
def bench_estimator(benchmark, device, steps, dones):
    batch = make_batch(steps, dones, device)
    ours, loop, default = (
        estimate(make_gae(device, **options), batch)
        for options in ({"vectorized": True}, {"vectorized": False}, {})
    )
    for a, b in zip(default(), loop(), strict=True):
        assert torch.equal(a, b), "GAE as it comes runs the loop"
    exact, sampled = against_loop(benchmark, device, ours, loop)
    ends = f"{dones} percent" if dones else "none"
    note(
        benchmark,
        f"estimator-gae-t{steps}-d{dones}",
        "time",
        title=f"GAE(vectorized=True) with a critic, {BATCH} x {steps}, ends: {ends}",
        parameters={
            "function": "GAE with a critic",
            "batch": BATCH,
            "steps": steps,
            "ends": ends,
            "hidden": HIDDEN[0],
        },
        exact=exact,
        sampled=sampled,
    )


# -- Options ---------------------------------------------------------------------


class Knob:
    """What is compared with what: two calls that return tuples of tensors."""

    def __init__(self, title, make, same=True):
        self.title, self.make, self.same = title, make, same


def with_options(**options):
    def make(device):
        batch = make_batch(MIDDLE, 2, device)
        return [estimate(make_gae(device, **o), batch) for o in (options, {})]

    return make


def with_estimator(kind):
    def make(device):
        batch, critic = make_batch(MIDDLE, 2, device), make_critic(device)
        arguments = {"gamma": GAMMA, "value_network": critic}
        if kind is TDLambdaEstimator:
            arguments["lmbda"] = LMBDA
        if kind is VTrace:
            with torch.no_grad():
                arguments["actor_network"] = make_actor(device)
                batch = arguments["actor_network"](batch)
        return estimate(kind(**arguments), batch), estimate(make_gae(device), batch)

    return make


def without_critic(device):
    """The values stand in the batch already: as many critic calls less as there are."""
    batch = make_batch(MIDDLE, 2, device)
    ready = make_gae(device)(batch.copy())
    ready = ready.exclude("advantage", "value_target")
    nothing = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=None)
    return estimate(nothing, ready), estimate(make_gae(device), batch)


def multi_agent(device):
    """Three agents that share reward and ends, against the same written out for each agent."""
    team = make_batch(MIDDLE, 2, device)
    for part in (team, team["next"]):
        seen = part["observation"].unsqueeze(-2)
        part["observation"] = torch.cat([seen + agent for agent in range(AGENTS)], -2)
    each = team.clone()
    for key in ("reward", "done", "terminated"):
        shared = each["next", key].unsqueeze(-2)
        each["next", key] = shared.expand(BATCH, MIDDLE, AGENTS, 1).contiguous()
    critic = make_critic(device)
    options = {"gamma": GAMMA, "lmbda": LMBDA, "value_network": critic}
    return estimate(MultiAgentGAE(**options), team), estimate(GAE(**options, time_dim=1), each)


def ppo_step(**options):
    """Forward and backward of a loss over a batch with advantages; the parts and the gradients."""

    def make(device):
        return [loss_call(ClipPPOLoss, device, o) for o in (options, {})]

    return make


def loss_call(kind, device, options):
    actor, critic = make_actor(device), make_critic(device)
    with torch.no_grad():
        batch = make_gae(device, critic)(actor(make_batch(MIDDLE, 2, device)))
    loss = kind(actor, critic, **options).to(device)
    parameters = [p for p in loss.parameters() if p.requires_grad]
    flat = batch.reshape(-1)

    def call():
        found = loss(flat.copy())
        keys = [key for key in found.keys() if key.startswith("loss_")]  # noqa: SIM118 - no dict
        total = sum(found[key].mean() for key in keys)
        return total.detach()[None], *torch.autograd.grad(total, parameters)

    return call


KNOBS = {
    "shifted": Knob("shifted=True", with_options(shifted=True)),
    "deactivate-vmap": Knob("deactivate_vmap=True", with_options(deactivate_vmap=True)),
    "differentiable": Knob("differentiable=True", with_options(differentiable=True)),
    "average-gae": Knob("average_gae=True", with_options(average_gae=True), same=False),
    "values-in-batch": Knob("values in the batch, no critic", without_critic),
    "td0": Knob("TD0Estimator", with_estimator(TD0Estimator), same=False),
    "td1": Knob("TD1Estimator", with_estimator(TD1Estimator), same=False),
    "tdlambda": Knob("TDLambdaEstimator", with_estimator(TDLambdaEstimator)),
    "vtrace": Knob("VTrace, with its actor", with_estimator(VTrace), same=False),
    "multi-agent": Knob("MultiAgentGAE against signals written out per agent", multi_agent),
    "separate-losses": Knob("ClipPPOLoss(separate_losses=True)", ppo_step(separate_losses=True)),
    "reduction-none": Knob('ClipPPOLoss(reduction="none")', ppo_step(reduction="none")),
}


@pytest.mark.parametrize("name", KNOBS)
def bench_knob(benchmark, device, name):
    knob = KNOBS[name]
    ours, default = knob.make(device)
    error = difference(ours(), default())
    assert (error < TOLERANCE) == knob.same, (name, error)
    ratios = paired(benchmark, device, ours, default, SECONDS)
    note(
        benchmark,
        f"knob-{name}",
        "time",
        title=knob.title,
        parameters={
            "option": knob.title,
            "batch": BATCH,
            "steps": MIDDLE,
            "ends": "2 percent",
            "hidden": HIDDEN[0],
        },
        exact={"error": error},
        sampled={"time_vs_default": ratios},
    )
