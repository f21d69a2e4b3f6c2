"""Transforms of a recurrent policy, and padded trajectories against slices with resets.

The keys ``transforms-*`` collect CartPole-v1 with one feed-forward policy, so that nothing differs
but what InitTracker and TensorDictPrimer do at each step; ``batch-*`` do so with several
environments in one SerialEnv, where the transforms stand inside of it, once per environment, or
outside, once for all. The keys ``<cell>-<layout>-<lengths>`` train one layer on the same frames:
as rows of equal length with resets inside, or as one padded row per trajectory. Both give the
same features and gradients. Each round comes right after a round of what it is compared with.
"""

import functools
from functools import partial

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.collectors.utils import split_trajectories
from torchrl.envs import Compose, GymEnv, InitTracker, SerialEnv, TransformedEnv
from torchrl.modules import GRUModule, LSTMModule, set_recurrent_mode

from benchmarks import measure, metrics
from benchmarks.interleaved import note, paired

STEPS = 50
ENVIRONMENTS = 4  # of the keys batch-*
HIDDEN = 128
ROWS, LENGTH = 16, 64
INPUTS = 4  # those of CartPole-v1
SEED = 0
SECONDS = 0.4  # for the rounds of one configuration
TOLERANCE = 1e-4

METRICS = metrics.declare(f"""
rollout_time [s] Time of a rollout: Wall time of a rollout of {STEPS} steps.
time_vs_none [1] Time against no transform: Time of a rollout, divided by that of the same
    environments without transform right before it.
bytes_per_frame [B, exact] Bytes per frame: Bytes in the batch divided by its frames.
train_time [s] Time of forward and backward: Wall time of one forward and backward pass over all
    frames.
time_vs_slices [1] Time against slices: Time of forward and backward pass, divided by that of the
    same frames as slices with resets, backend pad, right before it.
peak_memory [B] Peak memory: Bytes that torch's allocator holds at most during forward and backward
    pass, beyond parameters and input.
padding [%, exact] Padding: Steps of the batch that are padding, of all its steps.
gradient_error [1, exact] Largest gradient difference: Largest absolute difference of a parameter's
    gradient to that of the slices, over its largest gradient.
""")

CELLS = {"gru": (GRUModule, ("h",)), "lstm": (LSTMModule, ("h", "c"))}


def make_module(cell, hidden, device="cpu"):
    kind, states = CELLS[cell]
    torch.manual_seed(SEED)
    return kind(
        INPUTS,
        hidden,
        in_keys=["observation", *states],
        out_keys=["features", *(("next", state) for state in states)],
        device=device,
    )


# -- Transforms --------------------------------------------------------------------

# key: (title, cell of the primer or None, hidden size)
TRANSFORMS = {
    "none": ("none", None, 0),
    "compose": ("an empty Compose", None, 0),
    "init": ("InitTracker", None, 0),
    "gru-h128": ("InitTracker, primer of a GRU", "gru", 128),
    "lstm-h32": ("InitTracker, primer of an LSTM", "lstm", 32),
    "lstm-h128": ("InitTracker, primer of an LSTM", "lstm", 128),
    "lstm-h512": ("InitTracker, primer of an LSTM", "lstm", 512),
}
PLACES = ("none", "outside", "inside")


def make_transforms(name):
    _, cell, hidden = TRANSFORMS[name]
    if name == "none":
        return None
    if name == "compose":
        return Compose()
    if cell is None:
        return Compose(InitTracker())
    return Compose(InitTracker(), make_module(cell, hidden).make_tensordict_primer())


def make_env(name="none"):
    env, transforms = GymEnv("CartPole-v1"), make_transforms(name)
    return env if transforms is None else TransformedEnv(env, transforms)


def make_batch(place):
    """Several environments with the transforms of an LSTM where *place* says."""
    inside = "lstm-h128" if place == "inside" else "none"
    env = SerialEnv(ENVIRONMENTS, partial(make_env, inside))
    return TransformedEnv(env, make_transforms("lstm-h128")) if place == "outside" else env


class Greedy(nn.Module):
    """The action of the larger of two products, one-hot."""

    def __init__(self):
        super().__init__()
        weight = torch.randn(INPUTS, 2, generator=torch.Generator().manual_seed(SEED))
        self.weight = nn.Parameter(weight)

    def forward(self, observation):
        return nn.functional.one_hot((observation @ self.weight).argmax(-1), 2)


def make_collector(env):
    env.set_seed(SEED)
    return Collector(
        env,
        TensorDictModule(Greedy(), ["observation"], ["action"]),
        frames_per_batch=STEPS * env.batch_size.numel(),
        total_frames=-1,
        auto_register_policy_transforms=False,
    )


def bytes_per_frame(batch):
    size = sum(leaf.numel() * leaf.element_size() for leaf in batch.values(True, True))
    assert size % batch.numel() == 0
    return size // batch.numel()


def compare_collection(benchmark, device, ours, baseline):
    """Time both collectors in turn; return the ratios and the exact metrics of *ours*."""
    batch, expected = ours.rollout().clone(), baseline.rollout().clone()
    for key in ("observation", "action", ("next", "reward"), ("next", "done")):
        assert torch.equal(batch[key], expected[key]), key
    if (starts := batch.get("is_init", None)) is not None:
        ends = expected["next", "done"].narrow(-2, 0, STEPS - 1)
        assert starts.select(-2, 0).all()
        assert torch.equal(starts.narrow(-2, 1, STEPS - 1), ends)
    states = [state for key in ("h", "c") if (state := batch.get(key, None)) is not None]
    assert not any(state.any() for state in states)
    ratios = paired(benchmark, device, ours.rollout, baseline.rollout, seconds=SECONDS)
    ours.shutdown()
    baseline.shutdown()
    return ratios, {"bytes_per_frame": bytes_per_frame(batch)}


@pytest.mark.parametrize("name", TRANSFORMS)
def bench_transforms(benchmark, device, name):
    ours, baseline = make_collector(make_env(name)), make_collector(make_env())
    ratios, exact = compare_collection(benchmark, device, ours, baseline)
    title, cell, hidden = TRANSFORMS[name]
    note(
        benchmark,
        f"transforms-{name}",
        "rollout_time",
        title=f"{title}, hidden {hidden}" if cell else title,
        parameters={
            "transforms": title,
            "hidden": hidden,
            "environment": "CartPole-v1",
            "environments": 1,
            "steps": STEPS,
        },
        exact=exact,
        sampled={"time_vs_none": ratios},
    )


@pytest.mark.parametrize("place", PLACES)
def bench_batched(benchmark, device, place):
    ours, baseline = make_collector(make_batch(place)), make_collector(make_batch("none"))
    ratios, exact = compare_collection(benchmark, device, ours, baseline)
    note(
        benchmark,
        f"batch-{place}",
        "rollout_time",
        title=f"{ENVIRONMENTS} environments, transforms {place}",
        parameters={
            "place": place,
            "transforms": TRANSFORMS["lstm-h128" if place != "none" else "none"][0],
            "hidden": HIDDEN,
            "environment": "CartPole-v1",
            "environments": ENVIRONMENTS,
            "steps": STEPS,
        },
        exact=exact,
        sampled={"time_vs_none": ratios},
    )


# -- Padded trajectories against slices ----------------------------------------------

LENGTHS = {
    "even": "all episodes a quarter of a row",
    "mixed": "four episodes of random length in a row",
    "skewed": "one row without an end, short episodes in the others",
}
LAYOUTS = ("slices", "padded")


def starts_of(lengths):
    """Where episodes start, [rows, steps]."""
    generator = torch.Generator().manual_seed(SEED)
    starts = torch.zeros(ROWS, LENGTH, dtype=torch.bool)
    starts[:, 0] = True
    quarter = LENGTH // 4
    if lengths == "even":
        starts[:, ::quarter] = True
    elif lengths == "mixed":
        for row in starts:
            row[1 + torch.randperm(LENGTH - 1, generator=generator)[:3]] = True
    else:
        starts[1:, :: quarter // 2] = True
    return starts


@functools.cache
def make_batches(cell, lengths, device):
    """The frames as slices with resets, and as one padded row per trajectory."""
    generator = torch.Generator().manual_seed(SEED)
    starts = starts_of(lengths)
    ends = torch.cat([starts[:, 1:], torch.ones(ROWS, 1, dtype=torch.bool)], 1)
    states = {key: torch.zeros(ROWS, LENGTH, 1, HIDDEN) for key in CELLS[cell][1]}
    slices = TensorDict(
        {
            "observation": torch.randn(ROWS, LENGTH, INPUTS, generator=generator),
            "is_init": starts[..., None],
            **states,
            "next": {"done": ends[..., None]},
            "collector": {"traj_ids": starts.flatten().cumsum(0).reshape(ROWS, LENGTH)},
        },
        [ROWS, LENGTH],
    ).to(device)
    padded = split_trajectories(slices, trajectory_key=("collector", "traj_ids"))
    return {"slices": slices, "padded": padded}


def train(module, batch):
    """Forward and backward pass; return the features of the frames, in the order of the batch."""
    module.zero_grad()
    with set_recurrent_mode(True):
        features = module(batch.copy())["features"]
    mask = batch.get(("collector", "mask"), None)
    features = features.flatten(0, 1) if mask is None else features[mask]
    features.square().sum().backward()
    return features.detach()


def results(module, batch):
    features = train(module, batch)
    return features, [parameter.grad.clone() for parameter in module.parameters()]


def errors(module, batch, slices):
    """The largest differences of features and gradients to those of *slices*."""
    features, gradients = results(module, batch)
    expected, wanted = results(module, slices)
    largest = max(gradient.abs().max().item() for gradient in wanted)
    distances = [(a - b).abs().max().item() for a, b in zip(gradients, wanted, strict=True)]
    return (features - expected).abs().max().item(), max(distances) / largest


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("cell", CELLS)
def bench_layout(benchmark, device, cell, lengths, layout):
    module = make_module(cell, HIDDEN, device)
    batches = make_batches(cell, lengths, device)
    batch, slices = batches[layout], batches["slices"]
    output_error, gradient_error = errors(module, batch, slices)
    assert max(output_error, gradient_error) < TOLERANCE
    ratios = paired(
        benchmark,
        device,
        lambda: train(module, batch),
        lambda: train(module, slices),
        seconds=SECONDS,
    )
    frames = ROWS * LENGTH
    note(
        benchmark,
        f"{cell}-{layout}-{lengths}",
        "train_time",
        title=f"{cell.upper()}, {layout}, {lengths}",
        parameters={
            "cell": cell.upper(),
            "layout": layout,
            "lengths": LENGTHS[lengths],
            "rows": batch.shape[0],
            "row_length": batch.shape[1],
            "frames": frames,
            "trajectories": int(slices["is_init"].sum()),
            "hidden": HIDDEN,
        },
        exact={
            "padding": 100 * (1 - frames / batch.numel()),
            "gradient_error": gradient_error,
        },
        sampled={
            "time_vs_slices": ratios,
            "peak_memory": [measure.peak_memory(device, lambda: train(module, batch))],
        },
    )
