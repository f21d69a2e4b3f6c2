"""GAE with a recurrent critic, for docs/reference/recurrent_critics.rst.

Every cell of the tables is a call on one batch that a recurrent actor and critic collected. The
values are compared with those of a plain ``torch.nn.LSTM`` or ``torch.nn.GRU`` that runs over each
trajectory from the state it started with, the advantages with a loop over these values.
"""

import json
import os
import warnings
from itertools import pairwise

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.envs import Compose, GymEnv, InitTracker, StepCounter, TransformedEnv
from torchrl.modules import (
    GRUModule,
    LSTMModule,
    OneHotCategorical,
    ProbabilisticActor,
    ValueOperator,
    recurrent_mode,
    set_recurrent_mode,
)
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE, TD0Estimator, TDLambdaEstimator

HIDDEN = 8
FRAMES = 60
MAX_STEPS = 15
GAMMA, LMBDA = 0.99, 0.95
BACKENDS = ("pad", "scan", "auto")
CALLS = {
    "default": {},
    "``deactivate_vmap=True``": {"deactivate_vmap": True},
    "``shifted=True``": {"shifted": True},
}
WARNED = []  # torch says it once in a process
ESTIMATORS = {
    "GAE": lambda **options: GAE(gamma=GAMMA, lmbda=LMBDA, **options),
    "TDLambdaEstimator": lambda **options: TDLambdaEstimator(gamma=GAMMA, lmbda=LMBDA, **options),
    "TD0Estimator": lambda **options: TD0Estimator(gamma=GAMMA, **options),
}


def make_core(module, prefix, backend):
    states = [prefix + "h", prefix + "c"] if module is LSTMModule else [prefix + "h"]
    return module(
        4,
        HIDDEN,
        in_keys=["observation", *states],
        out_keys=[prefix + "feature", *(("next", state) for state in states)],
        recurrent_backend=backend,
    )


def make_agent(module, backend):
    """Actor and critic with a recurrent network each; the weights depend on the module alone."""
    torch.manual_seed(0)
    cores = make_core(module, "actor_", backend), make_core(module, "critic_", backend)
    head = TensorDictModule(torch.nn.Linear(HIDDEN, 2), ["actor_feature"], ["logits"])
    actor = ProbabilisticActor(
        TensorDictSequential(cores[0], head),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    value = ValueOperator(torch.nn.Linear(HIDDEN, 1), in_keys=["critic_feature"])
    critic = TensorDictSequential(cores[1], value)
    for parameter in [*actor.parameters(), *critic.parameters()]:
        torch.nn.init.uniform_(parameter, -0.7, 0.7)
    return actor, critic


def collect(actor, critic, with_critic=True):
    """Two batches of one collector: the second begins and ends within an episode."""
    primers = [actor[0][0].make_tensordict_primer()]
    if with_critic:
        primers.append(critic[0].make_tensordict_primer())
    transforms = Compose(InitTracker(), StepCounter(MAX_STEPS), *primers)
    env = TransformedEnv(GymEnv("CartPole-v1"), transforms)
    env.set_seed(0)
    collector = Collector(
        env,
        TensorDictSequential(actor, critic) if with_critic else actor,
        frames_per_batch=FRAMES,
        total_frames=2 * FRAMES,
        auto_register_policy_transforms=False,
    )
    batches = [batch.clone() for batch in collector]
    collector.shutdown()
    return batches


# -- The values and advantages, computed another way -------------------------


def pieces(batch):
    """First row and length of each trajectory in the batch."""
    ends = [0, *(batch["next", "done"].flatten().nonzero().flatten() + 1).tolist(), len(batch)]
    return [(first, last) for first, last in pairwise(ends) if first < last]


@torch.no_grad()
def true_values(critic, batch):
    """V(s) and V(s'): each trajectory from its stored first state, zeros where it has none."""
    core = critic[0]
    lstm = isinstance(core, LSTMModule)
    plain = (torch.nn.LSTM if lstm else torch.nn.GRU)(4, HIDDEN)
    plain.load_state_dict((core.lstm if lstm else core.gru).state_dict())
    value, following = torch.zeros(len(batch), 1), torch.zeros(len(batch), 1)
    for first, last in pieces(batch):
        zeros = torch.zeros(1, HIDDEN)
        state = tuple(
            batch.get(key, zeros[None].expand(len(batch), 1, HIDDEN))[first]
            for key in core.in_keys[1:]
            if key != "is_init"
        )
        seen = torch.cat(
            [batch["observation"][first:last], batch["next", "observation"][last - 1 : last]]
        )
        feature, _ = plain(seen, state if lstm else state[0])
        values = critic[1].module(feature)
        value[first:last], following[first:last] = values[:-1], values[1:]
    return value, following


def by_hand(name, batch, value, following):
    """The advantage of each row, one trajectory at a time, from the last row to the first."""
    reward, end = batch["next", "reward"], batch["next", "terminated"]
    error = reward + GAMMA * following * ~end - value
    if name == "TD0Estimator":
        return error
    advantage = torch.zeros_like(error)
    for first, last in pieces(batch):
        carried = torch.zeros(1)
        for row in reversed(range(first, last)):
            carried = advantage[row] = error[row] + GAMMA * LMBDA * carried
    return advantage


# -- One call ----------------------------------------------------------------


def inputs(batch):
    """What the estimator is to read: without what the critic wrote while it collected."""
    return batch.exclude("state_value", "critic_feature").clone()


def differing(found, expected, mask):
    return [
        row for row in range(len(found)) if mask[row] and (found - expected)[row].abs().max() > 1e-5
    ]


def call(name, critic, batch, options, mode):
    """``(text, wrong rows)``: the error, or where V(s') is not what it is by hand."""
    options = dict(options)
    if options.get("shifted"):
        options["shifted_budget"] = 1 + int(batch["next", "truncated"].sum())
    data = inputs(batch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with torch.no_grad(), set_recurrent_mode(mode):
                ESTIMATORS[name](value_network=critic, **options)(data)
        except RuntimeError as error:
            assert not caught
            return f"``{type(error).__name__}``: {str(error).partition('. ')[0]}", None
    WARNED.extend(str(warning.message).partition(". ")[0] for warning in caught)
    value, following = true_values(critic, batch)
    everywhere = torch.ones(len(batch), dtype=torch.bool)
    goes_on = ~batch["next", "terminated"].flatten()
    assert not differing(data["state_value"], value, everywhere), "V(s) is wrong"
    wrong = differing(data["next", "state_value"], following, goes_on)
    expected = by_hand(name, batch, value, following)
    off = differing(data["advantage"], expected, everywhere)
    assert bool(off) == bool(wrong), "the advantage is right with a wrong value, or the reverse"
    if "shifted" in options:
        assert data["shifted_valid"].all(), "a row of the shifted call did not fit"
    return "right", wrong


def firsts(batch):
    """First rows of trajectories, except where the value that follows does not count."""
    begins = batch["is_init"].flatten() & ~batch["next", "terminated"].flatten()
    return begins.nonzero().flatten().tolist()


def calls_table(agents):
    """The outcome of every call, and the errors by the letter that stands for them."""
    letters, cells = {}, {}
    for (module, backend), (critic, batch) in agents.items():
        for mode in (True, None):
            for title, options in CALLS.items():
                outcomes = [call(name, critic, batch, options, mode) for name in ESTIMATORS]
                assert all(outcome == outcomes[0] for outcome in outcomes), outcomes
                text, wrong = outcomes[0]
                if wrong is None:
                    letter = letters.setdefault(text, "ABCDEF"[len(letters)])
                    text = f"error {letter}"
                elif wrong:
                    assert wrong == firsts(batch), "wrong elsewhere than at first rows"
                    text = "wrong at first rows"
                cells[module, backend, mode, title] = text
    rows = []
    for module in (LSTMModule, GRUModule):
        for mode in (True, None):
            for title in CALLS:
                assert cells[module, "auto", mode, title] == cells[module, "pad", mode, title]
            for backend, shown in (("pad", "pad, auto"), ("scan", "scan")):
                where = "inside" if mode else "outside"
                row = [cells[module, backend, mode, title] for title in CALLS]
                rows.append([f"``{module.__name__}``, {shown}", where, *row])
                right = [cell == "right" for cell in row]
                assert right[2], "shifted=True is wrong"
                assert right[1] == (mode is True), "deactivate_vmap=True"
                assert right[0] == (mode is True and (module, backend) == (LSTMModule, "scan"))
    errors = {
        "columns": ["", "Error"],
        "rows": [[letter, text] for text, letter in letters.items()],
    }
    return {"columns": ["Critic", "Recurrent mode", *CALLS], "rows": rows}, errors


def size_of_the_error(critic, batch):
    """How far off a call outside recurrent mode is, for the text of the page."""
    data, right = inputs(batch), inputs(batch)
    gae = ESTIMATORS["GAE"](value_network=critic, deactivate_vmap=True)
    with torch.no_grad():
        gae(data)
        with set_recurrent_mode(True):
            gae(right)
    rows = firsts(batch)
    value = (data["next", "state_value"] - right["next", "state_value"]).abs()[rows].max()
    advantage = (data["advantage"] - right["advantage"]).abs().flatten()
    reached = int((advantage > 1e-5).sum())
    return f"{value:.1g}", f"{advantage.max():.1g}", f"{reached} of {len(batch)}"


# -- A critic whose stored state is missing or stale -------------------------


def stateless(module):
    """An agent and a batch of its actor alone, which begins with a reset."""
    actor, critic = make_agent(module, "pad")
    return critic, collect(actor, critic, with_critic=False)[0]


def changed(module):
    """An agent and its batch, where the weights have changed since."""
    actor, critic = make_agent(module, "pad")
    batch = collect(actor, critic)[1]
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return critic, batch


def states_table():
    """V(s') by each call in recurrent mode, with the states of the batch missing or stale."""
    rows = []
    for name, make in (("not stored", stateless), ("of older weights", changed)):
        for module in (LSTMModule, GRUModule):
            critic, batch = make(module)
            value, following = true_values(critic, batch)
            goes_on = ~batch["next", "terminated"].flatten()
            assert min(last - first for first, last in pieces(batch)) > 1, "a piece of one row"
            row = [f"``{module.__name__}``", name]
            for options in ({"deactivate_vmap": True}, {"shifted": True, "shifted_budget": 9}):
                data = inputs(batch)
                with torch.no_grad(), set_recurrent_mode(True):
                    ESTIMATORS["GAE"](value_network=critic, **options)(data)
                everywhere = torch.ones_like(goes_on)
                assert not differing(data["state_value"], value, everywhere), "V(s) is wrong"
                wrong = differing(data["next", "state_value"], following, goes_on)
                assert (wrong == []) == ("shifted" in options), (name, module, wrong)
                row.append(f"{len(wrong)} of {int(goes_on.sum())}")
            rows.append(row)
    columns = [
        "Critic",
        "Stored state",
        "Rows with a wrong V(s′), ``deactivate_vmap=True``",
        "``shifted=True``",
    ]
    return {"columns": columns, "rows": rows}


def leftover(critic, batch):
    """What GAE says about the values that the critic wrote at the root while it collected."""
    try:
        with torch.no_grad(), set_recurrent_mode(True):
            ESTIMATORS["GAE"](value_network=critic, deactivate_vmap=True)(batch.clone())
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("GAE takes a batch with state_value at the root alone")


def budget_table(critic, batch):
    """Rows that the shifted call drops when it has room for fewer ends than there are."""
    ends = int(batch["next", "truncated"][:-1].sum())
    rows = []
    for budget in range(1, ends + 2):
        data = inputs(batch)
        with torch.no_grad(), set_recurrent_mode(True):
            ESTIMATORS["GAE"](value_network=critic, shifted=True, shifted_budget=budget)(data)
        rows.append([str(budget), f"{int(data['shifted_valid'].sum())} of {len(batch)}"])
    assert rows[-1][1] == f"{len(batch)} of {len(batch)}" != rows[0][1]
    return {"columns": [f"``shifted_budget``, {ends} ends inside", "Valid rows"], "rows": rows}


def modes_table(actor, critic, batch):
    """The mode that the critic is called in, by who calls."""
    seen = []
    handle = critic[0].register_forward_pre_hook(lambda *_: seen.append(recurrent_mode()))
    loss = ClipPPOLoss(actor, critic)
    loss.make_value_estimator(gamma=GAMMA, lmbda=LMBDA, deactivate_vmap=True)
    gae = ESTIMATORS["GAE"](value_network=critic, deactivate_vmap=True)
    bare, ready = inputs(batch), inputs(batch)
    with torch.no_grad(), set_recurrent_mode(True):
        gae(ready)
    callers = {
        "``GAE(...)(batch)``": lambda: gae(bare.clone()),
        "``loss(batch)``, advantages in the batch": lambda: loss(ready.clone()),
        "``loss(batch)``, no advantages: it calls its estimator": lambda: loss(bare.clone()),
        "``loss.value_estimator(batch)``": lambda: loss.value_estimator(bare.clone()),
    }
    rows = []
    for who, function in callers.items():
        seen.clear()
        with torch.no_grad():
            function()
        (mode,) = set(seen)
        assert (mode is True) == who.startswith("``loss(batch)")
        rows.append([who, f"``{mode}``"])
    handle.remove()
    return {"columns": ["Call, nothing set outside", "Recurrent mode in the critic"], "rows": rows}


def main():
    agents, actors = {}, {}
    for module in (LSTMModule, GRUModule):
        for backend in BACKENDS:
            actor, critic = make_agent(module, backend)
            agents[module, backend] = critic, collect(actor, critic)[1]
            actors[module, backend] = actor
    critic, batch = agents[LSTMModule, "pad"]
    assert len(firsts(batch)) >= 3
    assert not batch["is_init"][0], "the batch begins with an episode"
    assert not batch["next", "done"][-1], "the batch ends with an episode"
    calls, errors = calls_table(agents)
    (warning,) = set(WARNED)
    assert "performance drop" in warning, warning
    value, advantage, reached = size_of_the_error(critic, batch)
    return {
        "calls": calls,
        "errors": errors,
        "warning": warning,
        "value-error": value,
        "advantage-error": advantage,
        "rows-reached": reached,
        "states": states_table(),
        "leftover": leftover(critic, batch),
        "budget": budget_table(critic, batch),
        "modes": modes_table(actors[LSTMModule, "pad"], critic, batch),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(main()))
