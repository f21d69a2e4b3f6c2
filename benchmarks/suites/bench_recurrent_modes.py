"""Recurrent modes: one call over a sequence against one call per step, and what a state costs.

The keys ``*-sequential-*`` and ``*-recurrent-*`` run the same module with the same weights over the
same sequences: step by step as a collector does, carrying the state, or in one call as a loss does.
Both give the same features and gradients. The keys ``collect-*`` collect CartPole-v1 with a policy:
``ff`` has two hidden layers and about the parameters of the LSTM; ``ff-primed`` is the same policy
in an environment that carries the LSTM's states, which nothing reads; ``gru`` and ``lstm`` read and
write theirs. Each round comes right after a round of what it is compared with.
"""

import functools
import time

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import Compose, GymEnv, InitTracker, TransformedEnv
from torchrl.modules import MLP, GRUModule, LSTMModule, set_recurrent_mode

from benchmarks import measure, metrics

INPUTS = 4  # those of CartPole-v1
BATCH = 16
STEPS = (8, 32, 128, 512)
HIDDEN = 64
RESETS = (0, 1)  # per sequence, beside its start
FRAMES = 200
HIDDEN_SIZES = (32, 128, 512)
SEED = 0
TOLERANCE = 1e-4
MOST_ROUNDS, LEAST_ROUNDS = 15, 5
WARMUP_ROUNDS = 1
SECONDS = 1.0  # for the rounds of one configuration; the least number of rounds may take longer

METRICS = metrics.declare("""
forward_time [s] Time of a forward pass: Wall time of the forward pass over all sequences, under
    torch.no_grad.
step_time [s] Time of forward and backward: Wall time of one forward and backward pass over all
    sequences.
forward_vs_recurrent [1] Forward pass against recurrent mode: Time of the forward pass, divided by
    that in recurrent mode with pad right before it.
step_vs_recurrent [1] Forward and backward against recurrent mode: Time of forward and backward
    pass, divided by that in recurrent mode with pad right before it.
output_error [1, exact] Largest output difference: Largest absolute difference of a feature to that
    of recurrent mode with pad; keys collect-*: of a collected feature to that of a replay in
    recurrent mode.
gradient_error [1, exact] Largest gradient difference: Largest absolute difference of a parameter's
    gradient to that of recurrent mode with pad, over its largest gradient.
collect_time [s] Time of a batch: Wall time of collecting one batch.
time_vs_ff [1] Collection time against feed-forward: Time of a batch, divided by that of the
    feed-forward policy of about as many parameters right before it.
frames_per_second [1] Frames per second: Frames of one batch, divided by the wall time of collecting
    it.
bytes_per_frame [B, exact] Bytes per frame: Bytes in the batch divided by its frames.
state_bytes_per_frame [B, exact] Bytes of states per frame: Bytes under the keys of the hidden
    states, root and next, divided by the frames; a part of the bytes per frame.
policy_parameters [1, exact] Parameters of the policy: Numbers that the policy learns.
""")

CELLS = {"gru": (GRUModule, ("h",)), "lstm": (LSTMModule, ("h", "c"))}
SEQUENTIAL, RECURRENT = "sequential", "recurrent"
MODES = (RECURRENT, SEQUENTIAL)
POLICIES = ("ff", "ff-primed", "gru", "lstm")


def make_module(cell, hidden, device):
    kind, states = CELLS[cell]
    torch.manual_seed(SEED)
    return kind(
        INPUTS,
        hidden,
        in_keys=["observation", *states],
        out_keys=["features", *(("next", state) for state in states)],
        device=device,
    )


class Rounds:
    """Rounds of one function, each right after a round of its baseline."""

    def __init__(self, benchmark, device, ours, baseline):
        self.benchmark, self.device = benchmark, device
        self.functions = {"ours": ours, "baseline": baseline}
        self.spent = {"ours": [], "baseline": []}

    def call(self, which):
        begin = time.perf_counter()
        measure.settled(self.device, self.functions[which])
        self.spent[which].append(time.perf_counter() - begin)

    def run(self):
        """Return the seconds of each round, and each divided by that of the baseline."""
        self.call("baseline")
        self.call("ours")
        both = self.spent["baseline"].pop() + self.spent["ours"].pop()
        self.benchmark.pedantic(
            self.call,
            setup=lambda: self.call("baseline") or (("ours",), {}),
            rounds=max(LEAST_ROUNDS, min(MOST_ROUNDS, int(SECONDS / both))),
            warmup_rounds=WARMUP_ROUNDS,
        )
        ours, baseline = (seconds[WARMUP_ROUNDS:] for seconds in self.spent.values())
        return ours, [a / b for a, b in zip(ours, baseline, strict=True)]


def note(benchmark, *arguments, **keywords):
    measure.note(benchmark, *arguments, **keywords)
    benchmark.extra_info["warmup_rounds"] = WARMUP_ROUNDS


def difference(ours, theirs):
    return max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))


# -- Sequential against recurrent ------------------------------------------------


def make_sequences(cell, steps, resets, device):
    """Sequences whose stored states are zero."""
    generator = torch.Generator().manual_seed(SEED)
    starts = torch.zeros(BATCH, steps, 1, dtype=torch.bool)
    starts[:, 0] = True
    for row in starts:
        row[1 + torch.randperm(steps - 1, generator=generator)[:resets]] = True
    states = {key: torch.zeros(BATCH, steps, 1, HIDDEN) for key in CELLS[cell][1]}
    observation = torch.randn(BATCH, steps, INPUTS, generator=generator)
    sequences = TensorDict(
        {"observation": observation, "is_init": starts, **states}, [BATCH, steps]
    )
    return sequences.to(device)


def in_one_call(module, sequences):
    with set_recurrent_mode(True):
        return module(sequences.copy())["features"]


def step_by_step(module, sequences):
    """The features of one call per step, each with the state that the step before returned."""
    states = [key for key in module.in_keys if key not in ("observation", "is_init")]
    carried = {key: sequences[key][:, 0] for key in states}
    features = []
    with set_recurrent_mode(False):
        for step in sequences.select("observation", "is_init").unbind(1):
            step = module(step.update(carried))
            carried = {key: step["next", key] for key in states}
            features.append(step["features"])
    return torch.stack(features, 1)


FORWARD = {RECURRENT: in_one_call, SEQUENTIAL: step_by_step}


def backward(mode, module, sequences):
    """Return the features; leave the gradients in *module*."""
    module.zero_grad()
    features = FORWARD[mode](module, sequences)
    features.sum().backward()
    return features.detach()


def results(mode, module, sequences):
    features = backward(mode, module, sequences)
    return features, [parameter.grad.clone() for parameter in module.parameters()]


def mode_errors(mode, module, sequences):
    """How far features and gradients of *mode* are from those of recurrent mode."""
    features, gradients = results(mode, module, sequences)
    expected, wanted = results(RECURRENT, module, sequences)
    largest = max(gradient.abs().max().item() for gradient in wanted)
    return {
        "output_error": difference([features], [expected]),
        "gradient_error": difference(gradients, wanted) / largest,
    }


def mode_entry(cell, mode, steps, resets):
    return {
        "title": f"{cell.upper()} {mode}, {steps} steps, resets {resets}",
        "parameters": {
            "cell": cell.upper(),
            "mode": mode,
            "steps": steps,
            "batch": BATCH,
            "hidden": HIDDEN,
            "resets": resets,
        },
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("resets", RESETS)
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("cell", CELLS)
def bench_forward(benchmark, device, cell, steps, resets, mode):
    module = make_module(cell, HIDDEN, device)
    sequences = make_sequences(cell, steps, resets, device)
    errors = mode_errors(mode, module, sequences)
    with torch.no_grad():
        _, ratios = Rounds(
            benchmark,
            device,
            lambda: FORWARD[mode](module, sequences),
            lambda: in_one_call(module, sequences),
        ).run()

    assert max(errors.values()) < TOLERANCE, errors
    note(
        benchmark,
        f"{cell}-{mode}-t{steps}-r{resets}",
        "forward_time",
        **mode_entry(cell, mode, steps, resets),
        exact=errors,
        sampled={"forward_vs_recurrent": ratios},
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("resets", RESETS)
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("cell", CELLS)
def bench_forward_and_backward(benchmark, device, cell, steps, resets, mode):
    module = make_module(cell, HIDDEN, device)
    sequences = make_sequences(cell, steps, resets, device)
    errors = mode_errors(mode, module, sequences)
    _, ratios = Rounds(
        benchmark,
        device,
        lambda: backward(mode, module, sequences),
        lambda: backward(RECURRENT, module, sequences),
    ).run()

    assert max(errors.values()) < TOLERANCE, errors
    note(
        benchmark,
        f"{cell}-{mode}-t{steps}-r{resets}",
        "step_time",
        **mode_entry(cell, mode, steps, resets),
        sampled={"step_vs_recurrent": ratios},
    )


# -- Collection ------------------------------------------------------------------


class Greedy(nn.Module):
    """The larger of two outputs as a one-hot action."""

    def forward(self, logits):
        return nn.functional.one_hot(logits.argmax(-1), 2)


def make_policy(name, hidden, device):
    """A policy and the recurrent module whose states its environment carries, or None."""
    torch.manual_seed(SEED)
    act = TensorDictModule(Greedy(), ["logits"], ["action"])
    if name in CELLS:
        module = make_module(name, hidden, device)
        head = TensorDictModule(nn.Linear(hidden, 2, device=device), ["features"], ["logits"])
        return TensorDictSequential(module, head, act), module
    network = MLP(INPUTS, 2, num_cells=[2 * hidden, 2 * hidden], device=device)
    policy = TensorDictSequential(TensorDictModule(network, ["observation"], ["logits"]), act)
    return policy, make_module("lstm", hidden, device) if name == "ff-primed" else None


def make_collector(name, hidden, device):
    policy, module = make_policy(name, hidden, device)
    env = GymEnv("CartPole-v1")
    env.set_seed(SEED)
    if module is not None:
        env = TransformedEnv(env, Compose(InitTracker(), module.make_tensordict_primer()))
    devices = {}
    if device.type != "cpu":
        place = next(policy.parameters()).device  # with its index, else the policy is copied
        devices = {"policy_device": place, "env_device": "cpu", "storing_device": "cpu"}
    return Collector(
        env,
        policy,
        frames_per_batch=FRAMES,
        total_frames=-1,
        auto_register_policy_transforms=False,
        **devices,
    )


def replay_error(batch, module, device):
    """The largest difference of a collected feature to that of recurrent mode on the batch."""
    batch = batch.to(device).reshape(1, -1)
    inputs = batch.select(*module.in_keys, "is_init")
    with torch.no_grad(), set_recurrent_mode(True):
        return difference([module(inputs)["features"]], [batch["features"]])


def bytes_per_frame(batch, *keys):
    """Bytes of *batch*, or of those of its entries whose last key is in *keys*."""
    size = 0
    for path, leaf in batch.items(include_nested=True, leaves_only=True):
        if not keys or (path if isinstance(path, str) else path[-1]) in keys:
            size += leaf.numel() * leaf.element_size()
    assert size % FRAMES == 0
    return size // FRAMES


@functools.lru_cache(maxsize=1)
def feed_forward(hidden, device):
    """The baseline that the policies of one hidden size share; it stays open."""
    return make_collector("ff", hidden, device)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("hidden", HIDDEN_SIZES)
def bench_collection(benchmark, device, hidden, name):
    collector, baseline = make_collector(name, hidden, device), feed_forward(hidden, device)
    baseline.rollout()
    batch = collector.rollout().clone()  # a buffer that the next rollout writes into
    seconds, ratios = Rounds(benchmark, device, collector.rollout, baseline.rollout).run()
    later = collector.rollout().clone()  # it begins within an episode
    collector.shutdown()

    exact = {"bytes_per_frame": bytes_per_frame(batch)}
    states = CELLS[name if name in CELLS else "lstm"][1]
    exact["state_bytes_per_frame"] = bytes_per_frame(batch, *states)
    policy, module = make_policy(name, hidden, device)
    exact["policy_parameters"] = sum(parameter.numel() for parameter in policy.parameters())
    assert batch.numel() == FRAMES
    assert exact["state_bytes_per_frame"] == expected_state_bytes(name, hidden)
    if name in CELLS:
        errors = [replay_error(part, module, device) for part in (batch, later)]
        exact["output_error"] = max(errors)
        assert max(errors) < TOLERANCE, errors
    note(
        benchmark,
        f"collect-{name}-h{hidden}",
        "collect_time",
        title=f"Collection with {name}, hidden {hidden}",
        parameters={
            "policy": name,
            "hidden": hidden,
            "frames": FRAMES,
            "environment": "CartPole-v1",
        },
        exact=exact,
        sampled={"frames_per_second": [FRAMES / s for s in seconds], "time_vs_ff": ratios},
    )


def expected_state_bytes(name, hidden):
    """Each state stands twice in a frame, at the root and under next."""
    count = {"ff": 0, "ff-primed": 2, "gru": 1, "lstm": 2}[name]
    return 2 * count * hidden * torch.float32.itemsize
