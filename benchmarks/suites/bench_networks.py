"""Networks: shared trunks, ProbabilisticActor, functional losses, target updates, bfloat16.

Each round comes right after a round of what it is compared with: two trunks (keys trunk-*), the
bare network (actor-*), the loss with functional=True (functional-*), torch._foreach_lerp_ or
torch._foreach_copy_ on the same tensors (target-*), the same pass in float32 (bf16-*). The keys
precision-* hold what bfloat16 changes in the numbers.
"""

import contextlib
import copy
import functools

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
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
    ActorValueOperator,
    ConvNet,
    OneHotCategorical,
    ProbabilisticActor,
    QValueActor,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss, DQNLoss, HardUpdate, SoftUpdate
from torchrl.objectives.value import GAE

from benchmarks import interleaved, measure, metrics

OBSERVATION, ACTIONS, HIDDEN = 8, 4, 64
SEED = 0
TOLERANCE = 1e-4
SECONDS = 0.4  # for the rounds of one benchmark
CALLS = 8  # of a short function within a round
TAU = 0.005

METRICS = metrics.declare("""
step_time [s] Time of forward and backward: Wall time of one loss with its backward pass.
time_vs_two_trunks [1] Against two trunks: Time of the step, divided by that with two trunks right
    before it.
trunk_calls [1, exact] Trunk passes: Forward passes of a trunk in one loss.
parameters [1, exact] Parameters: Numbers that are learned; of target-*: that are updated.
gradient_error [1, exact] Largest gradient difference: Largest absolute difference of a gradient to
    that of the loss it is compared with, over the largest gradient. Of shared trunks: to the sum
    over both trunks.
calls_time [s] Time of 8 calls: Wall time of 8 forward passes without gradients; of target-*: of 8
    updates.
time_vs_bare [1] Against the bare network: Time of the calls, divided by that of the bare network
    right before them.
time_vs_functional [1] Against functional=True: Time of the step, divided by that with
    functional=True right before it.
time_vs_foreach [1] Against torch._foreach: Time of the updates, divided by that of one
    torch._foreach_lerp_ (soft) or torch._foreach_copy_ (hard, skipped) a call on the same tensors
    right before them.
pass_time [s] Time of forward and backward: Wall time of one forward and backward pass of the
    network alone.
time_vs_float32 [1] Against float32: Time of the pass, divided by that in float32 right before it.
precision_time [s] Time of the comparison's pass: Wall time of one forward pass of policy and value
    network with distribution, log-probability and GAE.
parameter_error [1, exact] Error of the distribution's parameters: Largest absolute difference to
    float32, over the largest parameter.
value_error [1, exact] Error of the value: Largest absolute difference to float32, over the standard
    deviation of the values.
advantage_error [1, exact] Error of the advantage: Largest absolute difference of GAE's advantage to
    that of float32 values, over the standard deviation of the advantages.
log_prob_error [1, exact] Error of the log-probability: Largest absolute difference to float32, in
    nats.
ratio_error [1, exact] Error of the importance ratio: Largest distance from one of the ratio of the
    probabilities that float32 and the lowered policy give the same actions.
""")


def pairs(benchmark, device, ours, reference):
    return interleaved.paired(benchmark, device, ours, reference, SECONDS)


def repeated(function):
    """*function* as often as a round calls it."""

    def calls():
        for _ in range(CALLS):
            result = function()
        return result

    return calls


def difference(ours, theirs):
    return max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))


def categorical_actor(network, in_key="observation", **options):
    return ProbabilisticActor(
        TensorDictModule(network, in_keys=[in_key], out_keys=["logits"]),
        in_keys=["logits"],
        spec=Categorical(ACTIONS),
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
        **options,
    )


def make_batch(shape, batch, device):
    """A batch of transitions with advantages and log-probabilities drawn at random."""
    generator = torch.Generator().manual_seed(SEED)
    draw = functools.partial(torch.randn, generator=generator)
    entries = {
        "observation": draw(batch, *shape),
        "action": torch.arange(batch) % ACTIONS,
        "action_log_prob": -draw(batch).abs(),
        "advantage": draw(batch, 1),
        "value_target": draw(batch, 1),
    }
    return TensorDict(entries, [batch]).to(device)


def backward(loss, data):
    """One forward and one backward pass; the gradients stay in *loss*."""
    loss.zero_grad()
    losses = loss(data.copy())
    total = sum(value for key, value in losses.items() if key.startswith("loss_"))
    total.backward()
    return total.detach()


# -- Shared trunks ----------------------------------------------------------------

TRUNKS = {"mlp": ((OBSERVATION,), 256), "conv": ((4, 84, 84), 32)}  # observation, batch
TWO, OPERATOR, HEAD = "two", "operator", "head"
WIRINGS = {
    TWO: "two trunks",
    OPERATOR: "shared, critic is get_value_operator()",
    HEAD: "shared, critic is get_value_head()",
}


def make_trunk(kind):
    torch.manual_seed(SEED)
    if kind == "mlp":
        return MLP(
            in_features=OBSERVATION,
            out_features=HIDDEN,
            num_cells=[256, 256],
            activate_last_layer=True,
        )
    convolutions = ConvNet(
        in_features=4, num_cells=[32, 64, 64], kernel_sizes=[8, 4, 3], strides=[4, 2, 1]
    )
    return nn.Sequential(convolutions, nn.Linear(64 * 7 * 7, HIDDEN), nn.ReLU())


class Trunks:
    """A PPO loss whose actor and critic share a trunk, or have one each."""

    def __init__(self, kind, wiring, device):
        first = make_trunk(kind)
        torch.manual_seed(SEED + 1)
        actor = categorical_actor(nn.Linear(HIDDEN, ACTIONS), "hidden")
        value = ValueOperator(nn.Linear(HIDDEN, 1), in_keys=["hidden"])

        def features(trunk):
            return TensorDictModule(trunk, in_keys=["observation"], out_keys=["hidden"])

        shared = ActorValueOperator(features(first), actor, value).to(device)
        self.trunks = [first]
        critic = shared.get_value_operator()
        if wiring == HEAD:
            critic = shared.get_value_head()
        elif wiring == TWO:
            second = make_trunk(kind).to(device)
            critic = TensorDictSequential(features(second), value)
            self.trunks.append(second)
        # Without functional=True the modules keep their parameters, so their gradients are found.
        self.loss = ClipPPOLoss(shared.get_policy_operator(), critic, functional=False)
        self.heads = [*actor.parameters(), *value.parameters()]

    def count(self, data):
        """Forward passes of trunks in one loss."""
        calls = []
        hooks = [t.register_forward_hook(lambda *_: calls.append(1)) for t in self.trunks]
        self.loss(data.copy())
        for hook in hooks:
            hook.remove()
        return len(calls)

    def gradients(self, data):
        """Gradients of the trunk, summed over the trunks there are, and of the heads."""
        backward(self.loss, data)
        of_trunks = zip(*(trunk.parameters() for trunk in self.trunks), strict=True)
        summed = [sum(parameter.grad for parameter in same) for same in of_trunks]
        return summed + [parameter.grad.clone() for parameter in self.heads]


@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize("kind", TRUNKS)
def bench_trunks(benchmark, device, kind, wiring):
    shape, batch = TRUNKS[kind]
    data = make_batch(shape, batch, device)
    ours, two = Trunks(kind, wiring, device), Trunks(kind, TWO, device)
    found, expected = ours.gradients(data), two.gradients(data)
    error = difference(found, expected) / max(g.abs().max().item() for g in expected)
    assert error < TOLERANCE, error
    calls = ours.count(data)
    ratios = pairs(
        benchmark, device, lambda: backward(ours.loss, data), lambda: backward(two.loss, data)
    )
    interleaved.note(
        benchmark,
        f"trunk-{kind}-{wiring}",
        "step_time",
        title=f"{kind}: {WIRINGS[wiring]}",
        parameters={
            "trunk": kind,
            "wiring": WIRINGS[wiring],
            "batch": batch,
            "observation": "x".join(map(str, shape)),
            "loss": "ClipPPOLoss",
        },
        exact={
            "gradient_error": error,
            "trunk_calls": calls,
            "parameters": sum(parameter.numel() for parameter in ours.loss.parameters()),
        },
        sampled={"time_vs_two_trunks": ratios},
    )


# -- What a ProbabilisticActor adds -------------------------------------------------

BATCHES = (1, 64, 1024)
PARTS = {
    "bare": "bare network",
    "plain": "bare network, distribution of torch, sample",
    "module": "TensorDictModule",
    "deterministic": "ProbabilisticActor, DETERMINISTIC",
    "random": "ProbabilisticActor, RANDOM",
    "log-prob": "ProbabilisticActor, RANDOM, return_log_prob",
    "validated": "ProbabilisticActor, RANDOM, return_log_prob, validate_args",
}


class Plain:
    """What the actor does, with torch alone: parameters, distribution, action."""

    def __init__(self, kind, network):
        self.kind, self.network = kind, network

    def __call__(self, observation):
        if self.kind == "one-hot":
            logits = self.network(observation)
            return torch.distributions.OneHotCategorical(
                logits=logits, validate_args=False
            ).sample()
        loc, scale = self.network(observation)
        normal = torch.distributions.Normal(loc, scale, validate_args=False)
        return torch.tanh(normal.sample())


def make_actor(kind, part, device):
    """What is called, on an observation or on a tensordict, and the network in it."""
    torch.manual_seed(SEED)
    outputs = {"one-hot": ACTIONS, "tanh": 2 * ACTIONS}[kind]
    network = MLP(in_features=OBSERVATION, out_features=outputs, num_cells=[HIDDEN, HIDDEN])
    keys = ["logits"]
    if kind == "tanh":
        network, keys = nn.Sequential(network, NormalParamExtractor()), ["loc", "scale"]
    network = network.to(device)
    if part in ("bare", "plain"):
        return network if part == "bare" else Plain(kind, network), network
    module = TensorDictModule(network, in_keys=["observation"], out_keys=keys)
    if part == "module":
        return module, network
    specs = {"one-hot": OneHot(ACTIONS), "tanh": Bounded(-1, 1, (ACTIONS,))}
    actor = ProbabilisticActor(
        module,
        in_keys=keys,
        spec=specs[kind].to(device),
        distribution_class={"one-hot": OneHotCategorical, "tanh": TanhNormal}[kind],
        distribution_kwargs={"validate_args": True} if part == "validated" else {},
        return_log_prob=part in ("log-prob", "validated"),
    )
    return actor, network


def check_actor(kind, part, result, network, observation):
    """The parameters are those of the network, and the action follows from them."""
    parameters = network(observation)
    first = parameters if kind == "one-hot" else parameters[0]
    if part == "bare":
        return
    if part == "plain":
        assert result.shape == first.shape
        return
    torch.testing.assert_close(result["logits" if kind == "one-hot" else "loc"], first)
    if part == "module":
        return
    action = result["action"]
    best = {
        "one-hot": lambda: nn.functional.one_hot(first.argmax(-1), ACTIONS).to(action.dtype),
        "tanh": lambda: torch.tanh(first),
    }[kind]()
    if part == "deterministic":
        torch.testing.assert_close(action, best)
    else:
        assert action.shape == best.shape
        assert (action != best).any() or action.shape[0] == 1
    if part in ("log-prob", "validated") and kind == "one-hot":
        expected = (first.log_softmax(-1) * action).sum(-1)
        torch.testing.assert_close(result["action_log_prob"], expected)


ACTORS = [("one-hot", batch, part) for batch in BATCHES for part in PARTS]
ACTORS += [("tanh", BATCHES[1], part) for part in PARTS if part != "validated"]  # takes no such


@pytest.mark.parametrize(("kind", "batch", "part"), ACTORS)
def bench_actor(benchmark, device, kind, batch, part):
    called, network = make_actor(kind, part, device)
    observation = make_batch((OBSERVATION,), batch, device)["observation"]
    data = TensorDict({"observation": observation}, [batch], device=device)
    mode = InteractionType.DETERMINISTIC if part == "deterministic" else InteractionType.RANDOM

    def call():
        return called(observation if part in ("bare", "plain") else data.copy())

    torch.manual_seed(SEED)
    with torch.no_grad(), set_interaction_type(mode):
        check_actor(kind, part, call(), network, observation)
        ratios = pairs(benchmark, device, repeated(call), repeated(lambda: network(observation)))
    interleaved.note(
        benchmark,
        f"actor-{kind}-{part}-b{batch}",
        "calls_time",
        title=f"{PARTS[part]}, {kind}, batch {batch}",
        parameters={
            "part": PARTS[part],
            "distribution": kind,
            "batch": batch,
            "layers": f"{HIDDEN}x{HIDDEN}",
            "observation": OBSERVATION,
            "calls": CALLS,
        },
        sampled={"time_vs_bare": ratios},
    )


# -- Functional losses --------------------------------------------------------------

FUNCTIONAL_BATCHES = (64, 1024)


def make_ppo(functional, device):
    torch.manual_seed(SEED)
    cells = {"in_features": OBSERVATION, "num_cells": [HIDDEN, HIDDEN]}
    actor = categorical_actor(MLP(out_features=ACTIONS, **cells))
    critic = ValueOperator(MLP(out_features=1, **cells), in_keys=["observation"])
    return ClipPPOLoss(actor, critic, functional=functional).to(device)


@pytest.mark.parametrize("functional", [True, False])
@pytest.mark.parametrize("batch", FUNCTIONAL_BATCHES)
def bench_functional(benchmark, device, batch, functional):
    data = make_batch((OBSERVATION,), batch, device)
    ours, reference = make_ppo(functional, device), make_ppo(True, device)
    gradients = []
    for loss in (ours, reference):
        backward(loss, data)
        gradients.append([parameter.grad.clone() for parameter in loss.parameters()])
    error = difference(*gradients) / max(g.abs().max().item() for g in gradients[1])
    assert error < TOLERANCE, error
    ratios = pairs(
        benchmark, device, lambda: backward(ours, data), lambda: backward(reference, data)
    )
    interleaved.note(
        benchmark,
        f"functional-{str(functional).lower()}-b{batch}",
        "step_time",
        title=f"functional={functional}, batch {batch}",
        parameters={"functional": functional, "batch": batch, "loss": "ClipPPOLoss"},
        exact={"gradient_error": error},
        sampled={"time_vs_functional": ratios},
    )


# -- Target updates -----------------------------------------------------------------

SIZES = ((2, 64), (2, 512), (2, 2048), (32, 64))  # hidden layers, their width
SOFT, HARD, SKIPPED = "soft", "hard", "skipped"
UPDATES = {SOFT: "SoftUpdate", HARD: "HardUpdate, copies", SKIPPED: "HardUpdate, does not copy"}


def make_update(kind, layers, width, device):
    """A loss with target parameters and its updater."""
    torch.manual_seed(SEED)
    network = QValueActor(
        MLP(in_features=OBSERVATION, out_features=ACTIONS, num_cells=[width] * layers),
        in_keys=["observation"],
        spec=OneHot(ACTIONS),
    ).to(device)
    loss = DQNLoss(network, action_space="one-hot", delay_value=True)
    if kind == SOFT:
        return loss, SoftUpdate(loss, tau=TAU)
    # It copies in the call after so many that did not.
    return loss, HardUpdate(loss, value_network_update_interval=0 if kind == HARD else 10**9)


def tensors(parameters):
    return [tensor.data for tensor in parameters.values(True, True)]


def shift(loss):
    """Move the sources away from the targets."""
    for tensor in tensors(loss.value_network_params):
        tensor.add_(1.0)


@pytest.mark.parametrize("kind", UPDATES)
@pytest.mark.parametrize(("layers", "width"), SIZES)
def bench_target_update(benchmark, device, layers, width, kind):
    loss, updater = make_update(kind, layers, width, device)
    shift(loss)
    sources, targets = tensors(loss.value_network_params), tensors(loss.target_value_network_params)
    assert all(s.data_ptr() != t.data_ptr() for s, t in zip(sources, targets, strict=True))
    copies = [target.clone() for target in targets]

    def foreach():
        if kind == SOFT:
            torch._foreach_lerp_(copies, sources, TAU)
        else:
            torch._foreach_copy_(copies, sources)

    untouched = [target.clone() for target in targets]
    updater.step()
    foreach()
    expected = untouched if kind == SKIPPED else copies
    assert difference(targets, expected) == 0
    assert kind == SKIPPED or difference(targets, untouched) > 0
    ratios = pairs(benchmark, device, repeated(updater.step), repeated(foreach))
    interleaved.note(
        benchmark,
        f"target-{kind}-l{layers}-w{width}",
        "calls_time",
        title=f"{UPDATES[kind]}, {layers} layers of {width}",
        parameters={
            "update": UPDATES[kind],
            "layers": layers,
            "width": width,
            "tensors": len(sources),
            "loss": "DQNLoss",
            "calls": CALLS,
        },
        exact={"parameters": sum(source.numel() for source in sources)},
        sampled={"time_vs_foreach": ratios},
    )


# -- bfloat16 -------------------------------------------------------------------------

WIDTHS = ((64, 256), (512, 256), (2048, 256))  # width of two hidden layers, batch


@pytest.mark.parametrize("lowered", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("width", "batch"), WIDTHS)
def bench_autocast(benchmark, device, width, batch, lowered):
    torch.manual_seed(SEED)
    network = MLP(in_features=OBSERVATION, out_features=ACTIONS, num_cells=[width] * 2).to(device)
    observation = make_batch((OBSERVATION,), batch, device)["observation"]

    def step(lowered):
        network.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=lowered):
            output = network(observation)
        assert output.dtype is (torch.bfloat16 if lowered else torch.float32)
        output.float().pow(2).mean().backward()
        return [parameter.grad.clone() for parameter in network.parameters()]

    expected = step(False)
    largest = max(gradient.abs().max().item() for gradient in expected)
    error = difference(step(lowered), expected) / largest
    assert error < (0.1 if lowered else TOLERANCE), error
    ratios = pairs(benchmark, device, lambda: step(lowered), lambda: step(False))
    name = "bfloat16" if lowered else "float32"
    interleaved.note(
        benchmark,
        f"bf16-{name}-w{width}",
        "pass_time",
        title=f"{name}, two layers of {width}",
        parameters={"precision": name, "width": width, "batch": batch, "layers": 2},
        exact={"gradient_error": error},
        sampled={"time_vs_float32": ratios},
    )


LOWERINGS = {
    "network": "autocast around the networks, outputs to float32",
    "all": "autocast around networks, distribution and log-probability",
    "module": "parameters and observations in bfloat16",
}
STEPS = 64


class Lowered:
    """What a policy and a value network give, some of it computed in bfloat16."""

    def __init__(self, kind, device):
        torch.manual_seed(SEED)
        self.kind, self.device = kind, device
        outputs = ACTIONS if kind == "one-hot" else 2 * ACTIONS
        cells = {"in_features": OBSERVATION, "num_cells": [HIDDEN, HIDDEN]}
        self.policy = MLP(out_features=outputs, **cells).to(device)
        self.critic = MLP(out_features=1, **cells).to(device)
        with torch.no_grad():  # as decided as a trained policy, and values of some size
            self.policy[-1].weight.mul_(5)
            self.critic[-1].weight.mul_(20)
        self.batch = make_batch((2 * STEPS, OBSERVATION), 16, device)
        self.action = None

    def distribution(self, outputs):
        if self.kind == "one-hot":
            return [outputs], OneHotCategorical(logits=outputs)
        loc, scale = NormalParamExtractor()(outputs)
        return [loc, scale], TanhNormal(loc, scale)

    def compute(self, lowering):
        """Parameters, log-probability of the same actions, values, advantages."""
        observation = self.batch["observation"]
        autocast = torch.autocast(
            self.device.type, torch.bfloat16, enabled=lowering in ("network", "all")
        )
        as_stored = torch.bfloat16 if lowering == "module" else torch.float32
        networks = copy.deepcopy([self.policy, self.critic])
        with torch.no_grad():
            with autocast:
                outputs, values = (
                    network.to(as_stored)(observation.to(as_stored)) for network in networks
                )
            values = values.float()
            if lowering == "network":
                outputs = outputs.float()
            with autocast if lowering == "all" else contextlib.nullcontext():
                parameters, distribution = self.distribution(outputs)
                if self.action is None:  # of float32, which comes first
                    torch.manual_seed(SEED)
                    self.action = distribution.sample()
                log_prob = distribution.log_prob(self.action)
        return parameters, log_prob.float(), values, self.advantage(values)

    def advantage(self, values):
        """GAE over the first half of the steps; the next value is that of the step after."""
        value, following = values[:, :STEPS], values[:, 1 : STEPS + 1]
        nothing = torch.zeros_like(value, dtype=torch.bool)
        reward = self.batch["observation"][:, :STEPS, :1]
        data = TensorDict(
            {
                "state_value": value,
                "next": {
                    "state_value": following,
                    "reward": reward,
                    "done": nothing,
                    "terminated": nothing,
                },
            },
            value.shape[:2],
        )
        return GAE(gamma=0.99, lmbda=0.95, value_network=None)(data)["advantage"]


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("kind", ["one-hot", "tanh"])
def bench_precision(benchmark, device, kind, lowering):
    subject = Lowered(kind, device)
    expected, exact_log_prob, exact_values, exact_advantage = subject.compute("float32")
    again = subject.compute("float32")
    assert difference(again[0], expected) == 0
    parameters, log_prob, values, advantage = benchmark.pedantic(
        measure.settled,
        args=(device, lambda: subject.compute(lowering)),
        rounds=measure.ROUNDS,
        warmup_rounds=interleaved.WARMUP_ROUNDS,
    )
    largest = max(parameter.abs().max().item() for parameter in expected)
    errors = {
        "parameter_error": difference((p.float() for p in parameters), expected) / largest,
        "value_error": difference([values], [exact_values]) / exact_values.std().item(),
        "advantage_error": difference([advantage], [exact_advantage])
        / exact_advantage.std().item(),
        "log_prob_error": difference([log_prob], [exact_log_prob]),
        "ratio_error": ((exact_log_prob - log_prob).exp() - 1).abs().max().item(),
    }
    assert all(0 < error < float("inf") for error in errors.values()), errors
    interleaved.note(
        benchmark,
        f"precision-{kind}-{lowering}",
        "precision_time",
        title=f"{kind}: {LOWERINGS[lowering]}",
        parameters={
            "distribution": kind,
            "lowered": LOWERINGS[lowering],
            "layers": f"{HIDDEN}x{HIDDEN}",
            "steps": 2 * STEPS,
        },
        exact=errors,
    )
