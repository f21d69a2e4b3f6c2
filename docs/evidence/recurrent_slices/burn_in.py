"""Stale states and burn-in, for docs/reference/recurrent_slices.rst.

An LSTM collects whole episodes of Pendulum and is then trained, so that the states that it stored
are no longer the ones it would compute. The true state of a row comes from a ``torch.nn.LSTM`` that
runs with the new weights from the first row of the episode.
"""

import json
import os
from itertools import pairwise

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import Compose, GymEnv, InitTracker, TransformedEnv
from torchrl.envs.transforms import BurnInTransform
from torchrl.modules import LSTMModule, set_recurrent_mode

HIDDEN = 16
EPISODES, STEPS = 6, 200  # an episode of Pendulum always has this length
UPDATES = (0, 1, 10, 100)
BURN_IN = (0, 1, 2, 4, 8, 16, 32)
SLICE_LEN = 64
STARTS = range(40, 190, 10)  # rows at which the part to train on begins
STATES = ("h", "c")
GAMMA = 0.9


def make_core(**options):
    torch.manual_seed(0)
    return LSTMModule(
        3,
        HIDDEN,
        in_keys=["observation", *STATES],
        out_keys=["feature", ("next", "h"), ("next", "c")],
        **options,
    )


def collect(core):
    act = TensorDictModule(lambda logit: 2 * torch.tanh(3 * logit), ["logit"], ["action"])
    head = TensorDictModule(torch.nn.Linear(HIDDEN, 1), ["feature"], ["logit"])
    transforms = Compose(InitTracker(), core.make_tensordict_primer())
    env = TransformedEnv(GymEnv("Pendulum-v1"), transforms)
    env.set_seed(0)
    frames = EPISODES * STEPS
    collector = Collector(
        env,
        TensorDictSequential(core, head, act),
        frames_per_batch=frames,
        total_frames=frames,
        auto_register_policy_transforms=False,
    )
    (batch,) = collector
    collector.shutdown()
    return batch


@torch.no_grad()
def true_states(core, batch):
    """The state before each step under the present weights, each episode from zero."""
    plain = torch.nn.LSTM(3, HIDDEN, batch_first=True)
    plain.load_state_dict(core.lstm.state_dict())
    hidden = torch.zeros(1, EPISODES, HIDDEN), torch.zeros(1, EPISODES, HIDDEN)
    states = []
    for step in range(STEPS):
        states.append(hidden[0][0])
        _, hidden = plain(batch["observation"][:, step : step + 1], hidden)
    return torch.stack(states, 1)


def burnt_in(core, batch, start, length, stored):
    """The state at row *start* after *length* rows of burn-in, as a loss would find it."""
    part = batch[:, start - length : start + 1].clone()
    if not stored:
        for key in STATES:
            part[key].zero_()
    with set_recurrent_mode(True):
        return BurnInTransform([core], burn_in=length)(part)["h"][:, 0, 0]


def relative_error(core, batch, truth, length, stored):
    """Root mean square error of the state over that of the state itself."""
    wrong = [burnt_in(core, batch, start, length, stored) - truth[:, start] for start in STARTS]
    size = truth[:, list(STARTS)].square().mean().sqrt()
    return (torch.stack(wrong).square().mean().sqrt() / size).item()


def errors_by_updates(core, batch):
    """``{(updates, stored): [error for each length of burn-in]}`` while a value is learned."""
    reward = batch["next", "reward"].squeeze(-1) / 10
    target, following = torch.zeros_like(reward), torch.zeros(EPISODES)
    for step in reversed(range(STEPS)):
        following = target[:, step] = reward[:, step] + GAMMA * following
    value = torch.nn.Linear(HIDDEN, 1)
    adam = torch.optim.Adam([*core.parameters(), *value.parameters()], lr=1e-2)
    errors = {}
    for update in range(max(UPDATES) + 1):
        if update in UPDATES:
            truth = true_states(core, batch)
            for stored in (True, False):
                errors[update, stored] = [
                    relative_error(core, batch, truth, length, stored) for length in BURN_IN
                ]
        with set_recurrent_mode(True):
            guess = value(core(batch.clone())["feature"]).squeeze(-1)
        adam.zero_grad()
        (guess - target).square().mean().backward()
        adam.step()
    return errors


def percent(share):
    """Whole percents, and below one the first digit that counts."""
    if share < 1e-5:
        return "< 0.001 %"
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.1g} %"


def check(errors):
    """What the page reads out of the numbers."""
    assert max(errors[0, True]) < 1e-5, "the stored state is wrong before any update"
    assert errors[0, False][0] > 0.9, "a state of zeros is right"
    for key, line in errors.items():
        if key != (0, True):
            assert all(a > b for a, b in pairwise(line)), "burn-in does not help"
    first = [errors[update, True][0] for update in UPDATES]
    assert first == sorted(first), "the stored state does not age"
    assert errors[1, True][0] < 0.3 * errors[1, False][0], "one update makes it useless"
    assert errors[100, True][0] > 0.8, "after many updates it is still good"
    stale, zeros = (errors[100, stored][BURN_IN.index(16)] for stored in (True, False))
    assert stale < 0.02, "burn-in does not cure a stale state"
    assert zeros < 1.5 * stale, "burn-in helps zeros less"


def staleness_table(errors):
    rows = []
    for index, length in enumerate(BURN_IN):
        cells = [percent(errors[update, True][index]) for update in UPDATES]
        fresh = percent(errors[0, False][index])
        rows.append([str(length), f"{SLICE_LEN - length} of {SLICE_LEN}", *cells, fresh])
    columns = [
        "Rows of burn-in",
        "Rows left of a slice",
        *(f"Stored, {update} update{'s' * (update != 1)}" for update in UPDATES),
        "Zeros, 0 updates",
    ]
    return {"columns": columns, "rows": rows}


def chart(errors):
    named = {
        "stored, 1 update": (1, True),
        "stored, 10 updates": (10, True),
        "stored, 100 updates": (100, True),
        "zeros, no update": (0, False),
    }
    rows = [
        [name, str(length), f"{100 * error:.2g}"]
        for name, key in named.items()
        for length, error in zip(BURN_IN, errors[key], strict=True)
    ]
    columns = ["state", "rows of burn-in", "error of the state [%]"]
    return {"columns": columns, "rows": rows, "log": "y"}


# -- How it is used, and what goes wrong -------------------------------------


def told(error):
    return f"``{type(error).__name__}``: {str(error).partition(' in the sampled')[0]}"


def attempt(function):
    """What a call raises, or None."""
    try:
        function()
    except (ValueError, RuntimeError, AttributeError, IndexError) as error:
        return told(error)
    return None


def buffer_of(kind, flat, core, reshape):
    sampler = SliceSampler(slice_len=SLICE_LEN, traj_key=("collector", "traj_ids"))
    buffer = kind(storage=LazyTensorStorage(len(flat)), sampler=sampler, batch_size=8 * SLICE_LEN)
    if reshape:
        buffer.append_transform(lambda data: data.reshape(-1, SLICE_LEN))
    buffer.append_transform(BurnInTransform([core], burn_in=8))
    buffer.extend(flat)
    return buffer


def burnt_in_sample(buffer, transform, slice_len):
    """Slices whose first row holds states of the present weights."""
    sample = buffer.sample().reshape(-1, slice_len)
    with set_recurrent_mode(True):
        return transform(sample)


def use_table(core, flat):
    """Loud and right ways to put it behind a SliceSampler."""
    rows = []
    transform = BurnInTransform([core], burn_in=8)
    with set_recurrent_mode(True):
        for kind in (TensorDictReplayBuffer, ReplayBuffer):
            for reshape in (False, True):
                raised = attempt(buffer_of(kind, flat, core, reshape).sample)
                name = f"Transform of a ``{kind.__name__}``"
                name += ", after one that reshapes to (slices, steps)" if reshape else ""
                rows.append([name, raised or "works"])
                assert (raised is None) == (reshape and kind is ReplayBuffer), (name, raised)
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(len(flat)),
            sampler=SliceSampler(slice_len=SLICE_LEN, traj_key=("collector", "traj_ids")),
            batch_size=8 * SLICE_LEN,
        )
        buffer.extend(flat)
        assert burnt_in_sample(buffer, transform, SLICE_LEN).shape == (8, SLICE_LEN - 8)
        rows.append(["Called on ``sample.reshape(-1, slice_len)``, as above", "works"])
        sample = buffer.sample().reshape(-1, SLICE_LEN)
        bare = sample.exclude(*STATES, *(("next", key) for key in STATES))
        raised = attempt(lambda: transform(bare))
        assert raised.startswith("``AttributeError``"), raised
        rows.append(["Called on a sample that holds no hidden state", raised])
        raised = attempt(lambda: transform(sample[:, :8]))
        assert raised.startswith("``IndexError``"), raised
        rows.append(["``burn_in`` not smaller than the slice", raised])
    return {"columns": ["Use", "Outcome"], "rows": rows}, sample


@torch.no_grad()
def silent_table(core, sample):
    """Mistakes that nothing reports, each against the right call on the same slices."""
    transform = BurnInTransform([core], burn_in=8)

    def feature(data):
        with set_recurrent_mode(True):
            return core(data.clone())["feature"].reshape(8, -1, HIDDEN)

    with set_recurrent_mode(True):
        right = transform(sample.clone())
        last = BurnInTransform([core], burn_in=1)(sample[:, 7:].clone())
    outside = transform(sample.clone())
    torch.testing.assert_close(outside["h"][:, 0], last["h"][:, 0])
    expected = feature(right)
    twin = make_core(default_recurrent_mode=True)
    twin.load_state_dict(core.state_dict())
    torch.testing.assert_close(BurnInTransform([twin], burn_in=8)(sample.clone())["h"], right["h"])
    rows = []

    def compare(mistake, data, cure):
        differ = (feature(data) - expected).abs().amax(-1) > 1e-5
        assert differ.any(), f"harmless: {mistake}"
        slices = int(differ.any(1).sum())
        rows.append([mistake, f"{slices} of {len(differ)}", cure])

    compare(
        "Outside recurrent mode: one row of burn-in, whatever ``burn_in`` says",
        outside,
        "``with set_recurrent_mode(True)``, or ``default_recurrent_mode=True`` in the module",
    )
    flat = right.clone().reshape(-1)
    compare("The result flattened: no row of it has ``is_init``", flat, "keep (slices, steps)")
    flat["is_init"] = flat["is_init"].clone()
    flat["is_init"][:: SLICE_LEN - 8] = True
    torch.testing.assert_close(feature(flat), expected)

    crossing = sample.clone()
    for key in STATES:
        crossing[key][:, 8] = 0
    crossing["is_init"][:, 8] = True
    reset = feature(crossing[:, 8:])
    with set_recurrent_mode(True):
        crossed = transform(crossing.clone())
    differ = (feature(crossed) - reset).abs().amax(-1) > 1e-5
    assert differ[:, 0].all(), "a new trajectory keeps its zero state"
    rows.append(
        [
            "A slice whose trajectory ends with the burn-in: the next one starts with its state",
            f"{int(differ.any(1).sum())} of {len(differ)}",
            "slices within one trajectory, ``traj_key=...``",
        ]
    )
    before = sample.clone()
    with set_recurrent_mode(True):
        transform(sample)
    changed = (sample["h"][:, 8] != before["h"][:, 8]).flatten(1).any(1)
    assert changed.all(), "the argument is left alone"
    rows.append(
        [
            "The argument used again: the first state of the result is written into it as well",
            f"{int(changed.sum())} of {len(changed)}",
            "``transform(sample.clone())``",
        ]
    )
    return {"columns": ["Mistake", "Slices that are wrong", "Right"], "rows": rows}


def main():
    core = make_core()
    flat = collect(core)
    batch = flat.reshape(EPISODES, STEPS)
    assert batch["is_init"][:, 0].all()
    assert not batch["is_init"][:, 1:].any()
    errors = errors_by_updates(core, batch)
    check(errors)
    use, sample = use_table(core, flat)
    return {
        "staleness": staleness_table(errors),
        "figure": chart(errors),
        "use": use,
        "silent": silent_table(core, sample),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(main()))
