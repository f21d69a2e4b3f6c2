"""What a recurrent module starts from and leaves behind, for the page on its hidden state.

Each answer is found by comparing what the module computes with single steps of a torch.nn.LSTM or
torch.nn.GRU with the same weights, started from each state that it could have started from. LSTM
and GRU have to give the same answer, or the script stops.
"""

import functools
import json

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import Unbounded
from torchrl.envs import Compose, GymEnv, InitTracker, StepCounter, TransformedEnv
from torchrl.envs.transforms import TensorDictPrimer
from torchrl.modules import (
    GRUModule,
    LSTMModule,
    OneHotCategorical,
    ProbabilisticActor,
    ValueOperator,
    set_recurrent_mode,
)
from torchrl.objectives import ClipPPOLoss, ReinforceLoss
from torchrl.objectives.value import GAE

STEPS = 6
RESET = 3  # the slot in the middle of the row whose is_init is True in half of the rows
HIDDEN = 4
CLOSE, FAR = 1e-6, 1e-2


# -- Modules and a row of data -----------------------------------------------


def make_module(kind, backend="pad", **options):
    torch.manual_seed(0)
    states = ["h", "c"] if kind is LSTMModule else ["h"]
    return kind(
        input_size=4,
        hidden_size=HIDDEN,
        in_keys=["observation", *states],
        out_keys=["features", *(("next", state) for state in states)],
        recurrent_backend=backend,
        **options,
    )


def make_row(*, first, later, stored):
    """One row of STEPS slots; *first* and *later* are the flags of slots 0 and RESET."""
    torch.manual_seed(1)
    is_init = torch.zeros(1, STEPS, 1, dtype=torch.bool)
    is_init[:, 0], is_init[:, RESET] = first, later
    row = TensorDict({"observation": torch.randn(1, STEPS, 4), "is_init": is_init}, [1, STEPS])
    row["next", "done"] = torch.zeros(1, STEPS, 1, dtype=torch.bool)
    row["next", "done"][:, RESET - 1] = True
    if stored:
        for state in ("h", "c"):
            row[state] = torch.rand(1, STEPS, 1, HIDDEN) - 0.5
    return row


def one_step(module, observation, state):
    """Output and new state of the plain torch module after one step from *state*."""
    plain = module.lstm if isinstance(module, LSTMModule) else module.gru
    given = state if isinstance(module, LSTMModule) else state[0]
    output, new = plain(observation.view(1, 1, -1), given)
    return output.flatten(), new if isinstance(module, LSTMModule) else (new,)


def zeros():
    return tuple(torch.zeros(1, 1, HIDDEN) for _ in "hc")


def run_module(module, row, mode):
    """The row with what *module* writes; slot by slot in sequential mode."""
    row = row.clone()
    if mode == "recurrent":
        with set_recurrent_mode(True):
            return module(row)
    return torch.stack([module(row[:, n]) for n in range(STEPS)], 1)


@functools.cache
def starts(kind, mode, backend, first, later, stored):
    """For each slot what it starts from, and the state after it; the row that comes back."""
    module, row = make_module(kind, backend), make_row(first=first, later=later, stored=stored)
    with torch.no_grad():
        done, before, names, news = run_module(module, row, mode), None, [], []
        for n in range(STEPS):
            candidates = {"zero": zeros()}
            if "h" in row:
                candidates["the stored state"] = (row["h"][:, n], row["c"][:, n])
            if before is not None:
                candidates["the slot before"] = before
            steps = {
                name: one_step(module, row["observation"][0, n], state)
                for name, state in candidates.items()
            }
            found = [
                name
                for name, (output, _) in steps.items()
                if (output - done["features"][0, n]).abs().max() < CLOSE
            ]
            assert len(found) == 1, f"slot {n} starts from {found}"
            for name, (output, _) in steps.items():
                far = (output - done["features"][0, n]).abs().max() > FAR
                assert name in found or far, f"{name} and {found[0]} cannot be told apart"
            names += found
            before = steps[found[0]][1]
            news.append(before[0].flatten())
    return names, news, done


MODES = {
    "sequential mode": ("sequential", "pad"),
    "recurrent mode, pad": ("recurrent", "pad"),
    "recurrent mode, scan": ("recurrent", "scan"),
}


def alike(question):
    """The answer for each mode, which LSTM and GRU have to share."""
    answers = []
    for mode in MODES.values():
        found = {kind.__name__: question(kind, *mode) for kind in (LSTMModule, GRUModule)}
        assert len(set(found.values())) == 1, f"LSTM and GRU differ: {found}"
        answers.append(found["LSTMModule"])
    return answers


# -- What a slot starts from -------------------------------------------------

SITUATIONS = {  # by title: the slot, the flags of slots 0 and RESET, whether states are stored
    "first, ``is_init``, stored state": (0, True, False, True),
    "first, no ``is_init``, stored state": (0, False, False, True),
    "later, ``is_init``, stored state": (RESET, True, True, True),
    "later, no ``is_init``, stored state": (RESET, True, False, True),
    "first, nothing stored": (0, False, False, False),
    "later, ``is_init``, nothing stored": (RESET, True, True, False),
    "later, no ``is_init``, nothing stored": (RESET, True, False, False),
}
STARTS = {
    "first, ``is_init``, stored state": ["zero", "the stored state", "the stored state"],
    "first, no ``is_init``, stored state": ["the stored state"] * 3,
    "later, ``is_init``, stored state": ["zero", "the stored state", "the stored state"],
    "later, no ``is_init``, stored state": ["the stored state", *["the slot before"] * 2],
    "first, nothing stored": ["zero"] * 3,
    "later, ``is_init``, nothing stored": ["zero"] * 3,
    "later, no ``is_init``, nothing stored": ["zero", "the slot before", "the slot before"],
}


def start_table():
    rows = []
    for title, (slot, *row) in SITUATIONS.items():
        found = alike(lambda *mode, at=slot, row=row: starts(*mode, *row)[0][at])
        assert found == STARTS[title], f"{title}: {found}"
        rows.append([title, *found])
    return {"columns": ["Slot", *MODES], "rows": rows}


# -- What stands in ("next", "h") --------------------------------------------

AFTER = "the state after it"
NEXT = {  # by title: the slot, whether the row has a reset, and the answers
    "inside a sequence": (1, True, [AFTER, "zeros", "zeros"]),
    "inside, in a row without a reset": (1, False, [AFTER, "zeros", "zeros"]),
    "before an ``is_init``": (RESET - 1, True, [AFTER, AFTER, AFTER]),
    "``done``, but no ``is_init`` behind it": (RESET - 1, False, [AFTER, "zeros", "zeros"]),
    "last of the row": (STEPS - 1, True, [AFTER, AFTER, AFTER]),
    "last of a row without a reset": (STEPS - 1, False, [AFTER, AFTER, AFTER]),
}


def left_behind(slot, kind, mode, backend, reset):
    _, news, done = starts(kind, mode, backend, True, reset, True)
    value = done["next", "h"][0, slot].flatten()
    if value.count_nonzero() == 0:
        return "zeros"
    assert (value - news[slot]).abs().max() < CLOSE, f"slot {slot} holds another state"
    return AFTER


def next_table():
    rows = []
    for title, (slot, reset, expected) in NEXT.items():
        found = alike(lambda *mode, at=slot, reset=reset: left_behind(at, *mode, reset))
        assert found == expected, f"{title}: {found}"
        rows.append([title, *found])
    return {"columns": ["Slot", *MODES], "rows": rows}


# -- A primer that is not zero -----------------------------------------------


def make_policy():
    module = make_module(LSTMModule)
    head = TensorDictModule(torch.nn.Linear(HIDDEN, 2), ["features"], ["logits"])
    policy = ProbabilisticActor(
        TensorDictSequential(module, head),
        in_keys=["logits"],
        out_keys=["action"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    return module, policy


def collect(policy, primer, frames=12):
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    env = TransformedEnv(env, Compose(InitTracker(), StepCounter(max_steps=5), primer))
    collector = Collector(
        env,
        policy,
        frames_per_batch=frames,
        total_frames=frames,
        auto_register_policy_transforms=False,
    )
    (batch,) = (batch.clone() for batch in collector)
    collector.shutdown()
    assert batch["is_init"].squeeze(-1).nonzero().flatten().tolist() == [0, 5, 10]
    return batch


def primed_with(value):
    """The features as collected, as replayed, and what was stored at the resets."""
    torch.manual_seed(2)
    module, policy = make_policy()
    state = Unbounded(shape=(1, HIDDEN))
    primer = TensorDictPrimer({"h": state, "c": state.clone()}, default_value=value)
    batch = collect(policy, primer)
    with torch.no_grad(), set_recurrent_mode(True):
        replayed = module(batch.clone())["features"]
    return batch["features"], replayed, batch["h"][batch["is_init"].squeeze(-1)]


def primer_table():
    rows = []
    for value in (0.0, 1.0):
        collected, replayed, stored = primed_with(value)
        assert (stored == value).all(), "the primer stores something else at a reset"
        from_zero = primed_with(0.0)[0]
        assert (collected[0] - from_zero[0]).abs().max() < CLOSE, "collected from another state"
        error = (collected - replayed).abs().max()
        assert error < CLOSE if value == 0 else error > FAR, f"error {error} with {value}"
        rows.append(
            [
                f"``{value}``",
                f"``{value}``",
                "``0.0``, by the module",
                f"``{value}``",
                "the same, but for rounding" if value == 0 else "**others**",
            ]
        )
    columns = [
        "Primer's value",
        "stored at ``is_init``",
        "collected from",
        "replayed from",
        "Features of the replay",
    ]
    return {"columns": columns, "rows": rows}


# -- Who overwrites ("next", "h") --------------------------------------------


def full_rows(batch):
    return f"{batch['next', 'h'].flatten(1).count_nonzero(-1).count_nonzero().item()}"


def overwritten_table():
    torch.manual_seed(3)
    module, policy = make_policy()
    head = ValueOperator(torch.nn.Linear(HIDDEN, 1), in_keys=["features"])
    critic = TensorDictSequential(module, head)
    batch = collect(policy, module.make_tensordict_primer())

    def call(function):
        with set_recurrent_mode(True):
            function()

    def direct(data):
        call(lambda: module(data))

    def on_copy(data):
        call(lambda: module(data.copy()))

    def estimate(data):
        advantage = GAE(gamma=0.9, lmbda=0.9, value_network=critic, deactivate_vmap=True)
        call(lambda: advantage(data))

    def lose(kind, data):
        critic = ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"])
        data["advantage"] = data["value_target"] = torch.ones(len(data), 1)
        kind(policy, critic)(data)

    rows = [["collected", full_rows(batch)]]
    expected = ["12", "3", "12", "12", "12", "3"]
    for title, use in {
        "``module(batch)`` in recurrent mode": direct,
        "``module(batch.copy())`` in recurrent mode": on_copy,
        ":class:`~torchrl.objectives.value.GAE` in recurrent mode": estimate,
        ":class:`~torchrl.objectives.ClipPPOLoss`": functools.partial(lose, ClipPPOLoss),
        ":source:`ReinforceLoss <torchrl.objectives.ReinforceLoss.forward>`": functools.partial(
            lose, ReinforceLoss
        ),
    }.items():
        data = batch.clone()
        use(data)
        assert torch.equal(data["h"], batch["h"]), "the states at the root have changed"
        rows.append([title, full_rows(data)])
    found = [row[1] for row in rows]
    assert found == expected, f"rows with a state: {found}"
    return {"columns": ["After", 'rows of 12 with a state in ``("next", "h")``'], "rows": rows}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(
        json.dumps(
            {
                "starts": start_table(),
                "next": next_table(),
                "primer": primer_table(),
                "overwritten": overwritten_table(),
            }
        )
    )
