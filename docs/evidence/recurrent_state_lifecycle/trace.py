"""One hidden state of an LSTM, followed from the reset to the loss, for the page on its lifecycle.

Every call stays torchrl's own. A profiler watches who calls whom and what the state is on the way
in and out. The order of the calls and each value are asserted, so a torchrl that hands the state on
elsewhere stops this script.
"""

import contextlib
import inspect
import io
import json
import math
import sys

import matplotlib as mpl
import torch
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from tensordict.nn import (
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import (
    Compose,
    EnvBase,
    ExplorationType,
    GymEnv,
    InitTracker,
    TransformedEnv,
)
from torchrl.envs.transforms import TensorDictPrimer
from torchrl.envs.utils import _StepMDP
from torchrl.modules import (
    LSTMModule,
    OneHotCategorical,
    ProbabilisticActor,
    ValueOperator,
    recurrent_mode,
    set_recurrent_mode,
)
from torchrl.modules.tensordict_module import rnn
from torchrl.objectives import ClipPPOLoss, common

SEED = 94
FRAMES = 8  # per batch
SLICE = 4
FOLLOWED = 7  # the step whose new state is followed: the last one of the first batch
INK = "#010203"
BLUE, ORANGE, GREEN, VIOLET = "#1f80c4", "#d1661f", "#2f9458", "#b0589f"


# -- What is watched ---------------------------------------------------------


def make_policy():
    torch.manual_seed(SEED)
    lstm = LSTMModule(
        input_size=4,
        hidden_size=2,
        in_keys=["observation", "h", "c"],
        out_keys=["features", ("next", "h"), ("next", "c")],
    )
    with torch.no_grad():
        for weight in lstm.parameters():
            weight.mul_(2.5)  # so that the state moves far enough to be seen
    head = TensorDictModule(torch.nn.Linear(2, 2), ["features"], ["logits"])
    policy = ProbabilisticActor(
        TensorDictSequential(lstm, head),
        in_keys=["logits"],
        out_keys=["action"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    return lstm, policy


def make_env(lstm):
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    return TransformedEnv(env, Compose(InitTracker(), lstm.make_tensordict_primer()))


def make_collector(env, policy):
    return Collector(
        env,
        policy,
        frames_per_batch=FRAMES,
        total_frames=2 * FRAMES,
        exploration_type=ExplorationType.DETERMINISTIC,
        auto_register_policy_transforms=False,  # both transforms are in place
    )


def make_loss(policy):
    critic = ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"])
    return ClipPPOLoss(policy, critic)


def hidden(data, *key):
    """The state at *key* of a TensorDict, a copy without the dimension of layers; or None."""
    value = data.get((*key, "h"), None)
    return None if value is None else value.detach().clone().squeeze(-2)


def first_chunk(value):
    """The first sequence of what the LSTM takes and gives: (layers, batch, hidden)."""
    return value.detach()[0, 0].clone()


def root_to_next(place, argument="tensordict"):
    return lambda there: hidden(there[argument]), lambda there: hidden(there["return"], *place)


# By symbol: its lane, and how to read the state from its arguments and from what it returns.
LANES = ENV, LOOP, POLICY, TRAIN = "env,|transforms", "collector,|buffer", "policy", "loss"
COLORS = {ENV: GREEN, LOOP: BLUE, POLICY: ORANGE, TRAIN: VIOLET}
NOTHING = (lambda there: None, lambda there: None)
SYMBOLS = {
    "torchrl.collectors.Collector._make_carrier": (LOOP, Collector._make_carrier, NOTHING),
    "torchrl.collectors.Collector.rollout": (LOOP, Collector.rollout, NOTHING),
    "torchrl.envs.EnvBase.reset": (
        ENV,
        EnvBase.reset,
        (lambda there: None, lambda there: hidden(there["return"])),
    ),
    "torchrl.envs.TransformedEnv._reset": (
        ENV,
        TransformedEnv._reset,
        (lambda there: None, lambda there: hidden(there["return"])),
    ),
    "torchrl.envs.transforms.InitTracker._reset": (ENV, InitTracker._reset, NOTHING),
    "torchrl.envs.transforms.TensorDictPrimer._reset": (
        ENV,
        TensorDictPrimer._reset,
        (lambda there: None, lambda there: hidden(there["return"])),
    ),
    "tensordict.nn.ProbabilisticTensorDictSequential.forward": (
        POLICY,
        ProbabilisticTensorDictSequential.forward,
        root_to_next(("next",)),
    ),
    "tensordict.nn.ProbabilisticTensorDictSequential.get_dist": (
        POLICY,
        ProbabilisticTensorDictSequential.get_dist,
        NOTHING,
    ),
    "torchrl.modules.LSTMModule.forward": (POLICY, LSTMModule.forward, root_to_next(("next",))),
    "torchrl.modules.LSTMModule._lstm": (
        POLICY,
        LSTMModule._lstm,
        (
            lambda there: there["hidden0_in"].detach()[0, 0, 0].clone(),
            lambda there: there["return"][1].detach()[0, -1, 0].clone(),
        ),
    ),
    "torch.nn.LSTM.forward": (
        POLICY,
        torch.nn.LSTM.forward,
        (
            lambda there: first_chunk(there["hx"][0]),
            lambda there: first_chunk(there["return"][1][0]),
        ),
    ),
    "torchrl.envs.EnvBase.step_and_maybe_reset": (ENV, EnvBase.step_and_maybe_reset, NOTHING),
    "torchrl.envs.EnvBase.step": (ENV, EnvBase.step, NOTHING),
    "torchrl.envs.TransformedEnv._step": (
        ENV,
        TransformedEnv._step,
        (
            lambda there: hidden(there["tensordict"], "next"),
            lambda there: hidden(there["return"]),
        ),
    ),
    "torchrl.envs.transforms.InitTracker._call": (ENV, InitTracker._call, NOTHING),
    "torchrl.envs.transforms.TensorDictPrimer._step": (
        ENV,
        TensorDictPrimer._step,
        (
            lambda there: hidden(there["next_tensordict"]),
            lambda there: hidden(there["return"]),
        ),
    ),
    "torchrl.envs.utils._StepMDP.__call__": (
        ENV,
        _StepMDP.__call__,
        (
            lambda there: hidden(there["tensordict"], "next"),
            lambda there: hidden(there["return"]),
        ),
    ),
    "torchrl.envs.EnvBase.maybe_reset": (ENV, EnvBase.maybe_reset, root_to_next(())),
    "torchrl.data.TensorDictReplayBuffer.extend": (LOOP, TensorDictReplayBuffer.extend, NOTHING),
    "torchrl.data.TensorDictReplayBuffer.sample": (LOOP, TensorDictReplayBuffer.sample, NOTHING),
    "torchrl.data.SliceSampler.sample": (LOOP, SliceSampler.sample, NOTHING),
    "torchrl.data.SliceSampler._maybe_emit_init_marker": (
        LOOP,
        SliceSampler._maybe_emit_init_marker,
        NOTHING,
    ),
    "torchrl.objectives.common._forward_wrapper": (TRAIN, None, NOTHING),
    "torchrl.modules.set_recurrent_mode.__enter__": (
        TRAIN,
        set_recurrent_mode.__enter__,
        NOTHING,
    ),
    "torchrl.modules.set_recurrent_mode.__exit__": (TRAIN, set_recurrent_mode.__exit__, NOTHING),
    "torchrl.objectives.ClipPPOLoss.forward": (TRAIN, ClipPPOLoss.forward, NOTHING),
    "torchrl.modules.tensordict_module.rnn._split_and_pad_for_reset": (
        POLICY,
        rnn._split_and_pad_for_reset,
        (
            lambda there: hidden(there["tensordict_shaped"])[0, 0],
            lambda there: hidden(there["return"][0])[0, 0],
        ),
    ),
    "torchrl.modules.tensordict_module.rnn._place_at_traj_end": (
        POLICY,
        rnn._place_at_traj_end,
        (
            lambda there: there["h"].detach()[0, 0].clone(),
            lambda there: there["return"].detach()[0, -1, 0].clone(),
        ),
    ),
    "torchrl.modules.tensordict_module.rnn._inv_pad_for_reset": (
        POLICY,
        rnn._inv_pad_for_reset,
        (
            lambda there: hidden(there["tensordict_shaped"], "next")[0, -1],
            lambda there: hidden(there["return"], "next")[0, SLICE - 1],
        ),
    ),
}


def codes():
    """The symbol of each code object that is watched."""
    found = {}
    for symbol, (_, function, _) in SYMBOLS.items():
        if function is None:  # the closure that every loss has in place of its forward
            code = ClipPPOLoss.forward.__code__
            wrapper = common._forward_wrapper.__code__
            assert code in wrapper.co_consts, "a loss is wrapped elsewhere"
        else:
            code = inspect.unwrap(function).__code__
        found[code] = symbol
    assert len(found) == len(SYMBOLS), "two symbols share their code"
    return found


class Call:
    """One call that was seen: the symbols on both sides, the state on the way in and out."""

    def __init__(self, caller, symbol, before):
        self.caller, self.symbol, self.before, self.after = caller, symbol, before, None
        self.mode = recurrent_mode()

    @property
    def ends(self):
        return self.caller, self.symbol


@contextlib.contextmanager
def watched(calls):
    """Append to *calls* what is called, with the nearest caller that is watched, too."""
    known, open_calls = codes(), {}

    def profile(frame, event, value):
        symbol = known.get(frame.f_code)
        if symbol is None or event not in ("call", "return"):
            return
        _, _, (before, after) = SYMBOLS[symbol]
        if event == "call":
            caller = frame.f_back
            while caller is not None and caller.f_code not in known:
                caller = caller.f_back
            name = known[caller.f_code] if caller is not None else None
            open_calls[frame] = call = Call(name, symbol, before(frame.f_locals))
            calls.append(call)
        elif frame in open_calls:
            there = {**frame.f_locals, "return": value}
            open_calls.pop(frame).after = after(there) if value is not None else None

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


# -- The order of 0.14.1 -----------------------------------------------------

SEQUENCE = "tensordict.nn.ProbabilisticTensorDictSequential"
TRANSFORMS = "torchrl.envs.transforms"
RESET = [
    ("torchrl.envs.EnvBase.reset", "torchrl.envs.TransformedEnv._reset"),
    ("torchrl.envs.TransformedEnv._reset", f"{TRANSFORMS}.InitTracker._reset"),
    ("torchrl.envs.TransformedEnv._reset", f"{TRANSFORMS}.TensorDictPrimer._reset"),
]
START = [("torchrl.collectors.Collector._make_carrier", "torchrl.envs.EnvBase.reset"), *RESET]
STEP = [
    ("torchrl.collectors.Collector.rollout", f"{SEQUENCE}.forward"),
    (f"{SEQUENCE}.forward", "torchrl.modules.LSTMModule.forward"),
    ("torchrl.modules.LSTMModule.forward", "torchrl.modules.LSTMModule._lstm"),
    ("torchrl.modules.LSTMModule._lstm", "torch.nn.LSTM.forward"),
    ("torchrl.collectors.Collector.rollout", "torchrl.envs.EnvBase.step_and_maybe_reset"),
    ("torchrl.envs.EnvBase.step_and_maybe_reset", "torchrl.envs.EnvBase.step"),
    ("torchrl.envs.EnvBase.step", "torchrl.envs.TransformedEnv._step"),
    ("torchrl.envs.TransformedEnv._step", f"{TRANSFORMS}.InitTracker._call"),
    ("torchrl.envs.TransformedEnv._step", f"{TRANSFORMS}.TensorDictPrimer._step"),
    ("torchrl.envs.EnvBase.step_and_maybe_reset", "torchrl.envs.utils._StepMDP.__call__"),
    ("torchrl.envs.EnvBase.step_and_maybe_reset", "torchrl.envs.EnvBase.maybe_reset"),
]
DONE = [("torchrl.envs.EnvBase.maybe_reset", "torchrl.envs.EnvBase.reset"), *RESET]
STORE = [(None, "torchrl.data.TensorDictReplayBuffer.extend")]
DRAW = [
    (None, "torchrl.data.TensorDictReplayBuffer.sample"),
    ("torchrl.data.TensorDictReplayBuffer.sample", "torchrl.data.SliceSampler.sample"),
    ("torchrl.data.SliceSampler.sample", "torchrl.data.SliceSampler._maybe_emit_init_marker"),
]
RNN = "torchrl.modules.tensordict_module.rnn"
WRAPPER = "torchrl.objectives.common._forward_wrapper"
LOSS = [
    (None, WRAPPER),
    (WRAPPER, "torchrl.modules.set_recurrent_mode.__enter__"),
    (WRAPPER, "torchrl.objectives.ClipPPOLoss.forward"),
    ("torchrl.objectives.ClipPPOLoss.forward", f"{SEQUENCE}.get_dist"),
    (f"{SEQUENCE}.get_dist", "torchrl.modules.LSTMModule.forward"),
    ("torchrl.modules.LSTMModule.forward", f"{RNN}._split_and_pad_for_reset"),
    ("torchrl.modules.LSTMModule.forward", "torchrl.modules.LSTMModule._lstm"),
    ("torchrl.modules.LSTMModule._lstm", "torch.nn.LSTM.forward"),
    ("torchrl.modules.LSTMModule._lstm", f"{RNN}._place_at_traj_end"),
    ("torchrl.modules.LSTMModule._lstm", f"{RNN}._place_at_traj_end"),
    ("torchrl.modules.LSTMModule.forward", f"{RNN}._inv_pad_for_reset"),
    (WRAPPER, "torchrl.modules.set_recurrent_mode.__exit__"),
]


def run():
    """Two batches, a sample, a loss; every call in between, in order."""
    calls, (lstm, policy) = [], make_policy()
    env = make_env(lstm)
    with watched(calls):
        collector = make_collector(env, policy)
    # What the constructor calls after the first reset only learns the keys of the policy.
    assert [call.ends for call in calls[: len(START) + 1]] == [
        (None, "torchrl.collectors.Collector._make_carrier"),
        *START,
    ], "the first carrier is made elsewhere"
    parts = {"start": calls[1 : len(START) + 1]}
    calls = []
    with watched(calls):
        batches = [batch.clone() for batch in collector]
    collector.shutdown()
    steps, rollouts = [], 0
    for call in calls:
        if call.symbol == "torchrl.collectors.Collector.rollout":
            rollouts += 1
        elif call.ends == STEP[0]:
            steps.append([call])
        else:
            steps[-1].append(call)
    assert (rollouts, len(steps)) == (2, 2 * FRAMES)
    rows = torch.cat(batches)
    done = rows["next", "done"].squeeze(-1).tolist()
    for step, ended in zip(steps, done, strict=True):
        expected = STEP + DONE if ended else STEP
        assert [call.ends for call in step] == expected, "a step has another order"
    parts["step"] = steps[FOLLOWED]
    parts["done"] = steps[done.index(True)][len(STEP) :]

    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(2 * FRAMES),
        sampler=SliceSampler(slice_len=SLICE, traj_key=("collector", "traj_ids")),
        batch_size=2 * SLICE,
    )
    calls = []
    with watched(calls):
        for batch in batches:
            buffer.extend(batch)
    assert [call.ends for call in calls] == 2 * STORE
    parts["store"] = calls[:1]
    for _ in range(2000):
        calls = []
        with watched(calls):
            sample = buffer.sample()
        places = [row_of(sample[n], rows) for n in (0, SLICE)]
        if places == [FOLLOWED + 1, done.index(True) + 1]:
            break
    else:
        raise AssertionError("no sample begins at the batch boundary and at the reset")
    assert [call.ends for call in calls] == DRAW
    parts["draw"] = calls

    loss, replay = make_loss(policy), sample.clone()
    replay["advantage"] = replay["value_target"] = torch.ones(2 * SLICE, 1)
    calls = []
    with watched(calls):
        loss(replay)
    assert [call.ends for call in calls] == LOSS, [call.ends for call in calls]
    assert replay["next", "h"].equal(sample["next", "h"]), "the loss writes into its input"
    assert sample["next", "h"].equal(rows["next", "h"][FOLLOWED + 1 :])
    parts["loss"] = calls
    starts = [call.before for step in steps for call in step if call.ends == STEP[3]]
    return rows, buffer[:], sample, parts, torch.stack(starts)


def row_of(row, rows):
    (place,) = (rows["observation"] == row["observation"]).all(-1).nonzero().squeeze(-1).tolist()
    return place


# -- Values ------------------------------------------------------------------


def number(value):
    value = float(value)
    edge = abs(value * 100 - math.floor(value * 100) - 0.5)
    assert value == 0 or edge > 1e-3, f"{value} may be rounded up on one machine and down elsewhere"
    return f"{value:.2f}".replace("-0.00", "0.00")


def vector(value):
    return f"``({', '.join(number(one) for one in value.flatten())})``"


def flag(value):
    return "True" if value.item() else "–"


def timeline(rows):
    """Each step of both batches."""
    table, root, new = [], rows["h"].squeeze(-2), rows["next", "h"].squeeze(-2)
    for n in range(len(rows)):
        row = rows[n]
        if row["is_init"].item():
            origin = "zero, by the primer"
            assert root[n].count_nonzero() == 0, "a trajectory does not begin at zero"
        else:
            origin = "carried into batch 2" if n == FRAMES else "carried"
            assert torch.equal(root[n], new[n - 1]), f"the state of step {n} is another one"
        if row["next", "done"].item():
            assert new[n].count_nonzero(), "the state at the end is not zero"
        cells = [str(n), flag(row["is_init"]), vector(root[n])]
        table.append([*cells, origin, vector(new[n]), flag(row["next", "done"])])
    resets, ends = rows["is_init"].squeeze(-1).nonzero(), rows["next", "done"].squeeze(-1).nonzero()
    assert resets.squeeze(-1).tolist() == [0, ends.item() + 1]
    assert FRAMES < ends.item() < 2 * FRAMES - 1, "the end is not in the middle of a batch"
    columns = ["Step", "``is_init``", "``h``", "from", '``("next", "h")``', "``done``"]
    return {"columns": columns, "rows": table}


def one_vector(rows, stored, sample, parts):
    """The state after the followed step at each place where it stands, the same bits each time."""
    state = rows["next", "h"][FOLLOWED].squeeze(-2)

    def seen(part, symbol, side):
        (call, *_) = (call for call in parts[part] if call.symbol == symbol)
        return getattr(call, side)

    module = "torchrl.modules.LSTMModule.forward"
    stations = [
        (
            f"written by the policy at step {FOLLOWED}",
            '``("next", "h")`` of the :term:`carrier`',
            ":source:`torchrl.modules.LSTMModule.forward`",
            seen("step", module, "after"),
        ),
        (
            "kept by the environment's step",
            '``("next", "h")`` of the row',
            ":source:`torchrl.envs.TransformedEnv._step`",
            seen("step", "torchrl.envs.TransformedEnv._step", "after"),
        ),
        (
            "moved to the root",
            "``h`` of the next carrier, which outlives the batch",
            ":source:`step_mdp <torchrl.envs.utils._StepMDP.__call__>`",
            seen("step", "torchrl.envs.utils._StepMDP.__call__", "after"),
        ),
        (
            "opens the second batch",
            f"``h`` of step {FOLLOWED + 1}",
            ":source:`torchrl.collectors.Collector.rollout`",
            rows["h"][FOLLOWED + 1].squeeze(-2),
        ),
        (
            "stored",
            f"``h`` of row {FOLLOWED + 1} of the storage",
            ":source:`torchrl.data.TensorDictReplayBuffer.extend`",
            stored["h"][FOLLOWED + 1].squeeze(-2),
        ),
        (
            "drawn",
            "``h`` of the first row of a slice",
            ":source:`torchrl.data.SliceSampler.sample`",
            sample["h"][0].squeeze(-2),
        ),
        (
            "restarts the replay in the loss",
            "``hx`` of ``torch.nn.LSTM``",
            ":source:`torchrl.modules.LSTMModule._lstm`",
            seen("loss", "torch.nn.LSTM.forward", "before"),
        ),
    ]
    for title, _, _, value in stations:
        assert torch.equal(value.flatten(), state.flatten()), f"another state where it is {title}"
    table = [[title, place, by, vector(value)] for title, place, by, value in stations]
    return {"columns": ["The state is", "as", "by", "Value"], "rows": table}


def replay_table(rows, sample, lstm):
    """What the loss finds in the sample, and what a replay of it computes."""
    replay = sample.clone()
    with torch.no_grad(), set_recurrent_mode(True):
        lstm(replay)
    error = (replay["features"] - sample["features"]).abs().max().item()
    assert error < 1e-6, "a replay from stored states gives other features"
    ends = [SLICE - 1, 2 * SLICE - 1]
    new = replay["next", "h"].squeeze(-2)
    stored = rows["is_init"][FOLLOWED + 1 :].squeeze(-1)
    table = []
    for n in range(2 * SLICE):
        step = FOLLOWED + 1 + n
        if n in ends:
            close = torch.allclose(new[n], sample["next", "h"][n].squeeze(-2), atol=1e-6)
            assert close, "the state at the end of a slice is another one"
        else:
            assert new[n].count_nonzero() == 0, "no placeholder inside a slice"
        marked = sample["is_init"][n].item()
        assert marked == (n % SLICE == 0), "the sampler does not mark the slices"
        origin = "the tracker" if stored[n] else "the sampler" if marked else ""
        table.append(
            [
                str(step),
                f"True, by {origin}" if marked else "–",
                vector(sample["h"][n]),
                vector(sample["next", "h"][n]),
                vector(new[n]),
            ]
        )
    columns = [
        "Step",
        "``is_init``",
        "stored ``h``",
        'stored ``("next", "h")``',
        'computed ``("next", "h")``',
    ]
    return {"columns": columns, "rows": table}


def two_modes(rows, sample, lstm, starts):
    """By mode the state that each step of the second batch starts from, and what stands under next.

    A state is None where the module takes none from the data.
    """
    batch = rows[FRAMES:]
    start, root = starts[FRAMES:], batch["h"].squeeze(-2)
    assert torch.equal(start, root), "a step starts from another state than that of its row"
    primed = sample.clone()
    primed["h"][primed["is_init"].squeeze(-1)] = 1.0
    with torch.no_grad(), set_recurrent_mode(False):
        zeroed = lstm(primed.clone().unsqueeze(-1))["features"].squeeze(-2)[SLICE]
    assert torch.allclose(zeroed, batch["features"][SLICE], atol=1e-6), "no zeros from the module"
    given, replay = [], sample.clone()
    inside = ~sample["is_init"].squeeze(-1)
    replay["h"][inside] = replay["c"][inside] = float("nan")  # what is read would show
    handle = lstm.lstm.register_forward_pre_hook(lambda _, given_: given.append(given_[1][0][0]))
    with torch.no_grad(), set_recurrent_mode(True):
        lstm(replay)
    handle.remove()
    assert torch.allclose(replay["features"], sample["features"], atol=1e-6)
    assert torch.equal(given[0], root[::SLICE]), "the replay starts from another state"
    left, missing = replay["next", "h"].squeeze(-2), [None] * (SLICE - 1)
    starts = [state for first in given[0] for state in (first, *missing)]
    ends = [n % SLICE == SLICE - 1 for n in range(len(left))]
    assert [bool(state.any()) for state in left] == ends, "placeholders stand elsewhere"
    return {
        "sequential": (list(start), list(batch["next", "h"].squeeze(-2))),
        "recurrent": (starts, list(left)),
    }


# -- The arrows --------------------------------------------------------------

EFFECT = {
    ("start", 0): "asks for the first carrier",
    ("start", 1): "resets the environment, then calls the transforms in their order",
    ("start", 2): "``is_init`` becomes True",
    ("start", 3): "``h`` becomes zero",
    ("step", 0): "hands over the carrier",
    ("step", 1): 'reads ``h`` and ``is_init``, writes ``("next", "h")``',
    ("step", 2): "takes the state of the first slot, moves the layers to the front",
    ("step", 3): "computes one step",
    ("step", 4): 'hands over the carrier, ``("next", "h")`` included',
    ("step", 5): "calls the step of the environment",
    ("step", 6): 'keeps what the policy left under ``"next"``',
    ("step", 7): '``("next", "is_init")`` becomes False',
    ("step", 8): 'leaves ``("next", "h")``; copies ``h`` there if the policy wrote none',
    ("step", 9): '``("next", "h")`` becomes ``h`` of the next carrier',
    ("step", 10): "looks at ``done`` and, without one, changes nothing",
    ("done", 0): "after a ``done``: resets",
    ("done", 1): "as arrow {start:1}",
    ("done", 2): "``is_init`` becomes True",
    ("done", 3): "``h`` of the next carrier becomes zero",
    ("store", 0): "copies the rows, ``h`` included",
    ("draw", 0): "copies the rows of the slices, and the flags of the sampler into them",
    ("draw", 1): "chooses slices",
    ("draw", 2): "``is_init`` is True on the first row of each slice",
    ("loss", 0): "wraps ``forward`` of every loss module",
    ("loss", 1): "recurrent mode on",
    ("loss", 2): "the loss itself",
    ("loss", 3): "asks the policy for its distribution",
    ("loss", 4): "reads all rows at once",
    ("loss", 5): "cuts the rows at ``is_init``, and pads the pieces",
    ("loss", 6): "takes the stored state of each first slot",
    ("loss", 7): "computes all steps, each sequence from its stored state",
    ("loss", 8): "puts each last state at the end of its sequence, zeros before it",
    ("loss", 9): "the same for ``c``",
    ("loss", 10): "drops the padding",
    ("loss", 11): "recurrent mode as before",
}
# Owners that are left out of a name, because the name says enough.
PLAIN = ("rnn", "common", "EnvBase", "Collector", "SliceSampler")
RENAMED = {
    "ProbabilisticTensorDictSequential": "policy",
    "TensorDictReplayBuffer": "buffer",
    "LSTM": "torch.nn.LSTM",
}


def short(symbol):
    *_, owner, name = symbol.split(".")
    if name == "__call__":
        return owner
    if owner in PLAIN and name != "sample":
        return name
    return f"{RENAMED.get(owner, owner)}.{name}"


def arrows(parts):
    return [(part, n, call) for part, calls in parts.items() for n, call in enumerate(calls)]


def callers(parts):
    """For each arrow the number of the arrow that led to its caller, or None."""
    numbers, found = {}, []
    for at, (_, _, call) in enumerate(arrows(parts), 1):
        found.append(numbers.get(call.caller))
        numbers[call.symbol] = at
    return found


def arrow_table(parts):
    found = arrows(parts)
    places = {f"{part}:{n}": at for at, (part, n, _) in enumerate(found, 1)}
    assert {(part, n) for part, n, _ in found} == set(EFFECT)
    rows = []
    for (at, (part, n, call)), by in zip(enumerate(found, 1), callers(parts), strict=True):
        outer = f":source:`{short(call.caller)} <{call.caller}>`" if call.caller else "you"
        caller = str(by) if by else outer
        effect = EFFECT[part, n]
        for name, place in places.items():
            effect = effect.replace("{" + name + "}", str(place))
        state = " to ".join(vector(v) for v in (call.before, call.after) if v is not None)
        if (part, n) in {("loss", 4), ("loss", 9)}:
            state = ""  # all rows; the other state
        rows.append(
            [
                str(at),
                caller,
                f":source:`{short(call.symbol)} <{call.symbol}>`",
                effect,
                state or "–",
            ]
        )
    columns = ["No.", "From", "To", "What it does", "``h``"]
    return {"columns": columns, "rows": rows}


def check_effects(rows, sample, parts):
    """What the table says about the state, held against the values that were seen."""
    zero, state = torch.zeros(2), rows["next", "h"][FOLLOWED].flatten()
    for part in ("start", "done"):
        assert torch.equal(parts[part][-1].after.flatten(), zero), "the primer writes no zeros"
    by_name = {call.symbol.rpartition("torchrl.")[2]: call for call in parts["step"]}
    assert torch.equal(by_name["envs.utils._StepMDP.__call__"].after.flatten(), state)
    assert torch.equal(by_name["envs.transforms.TensorDictPrimer._step"].after.flatten(), state)
    again = by_name["envs.EnvBase.maybe_reset"]
    assert torch.equal(again.before, again.after), "a step without an end changes the state"
    assert not rows["next", "is_init"].any(), "the tracker marks a step that is no reset"
    loss = parts["loss"]
    modes = [call.mode for call in (parts["step"][1], loss[1], loss[4], loss[-1])]
    assert modes == [None, None, True, True], f"another recurrent mode: {modes}"
    assert recurrent_mode() is None, "the loss leaves its mode behind"
    assert torch.equal(loss[7].before.flatten(), state), "the replay starts elsewhere"
    assert torch.equal(loss[8].before, loss[8].after), "the last state is not kept"


# -- Figures -----------------------------------------------------------------


@contextlib.contextmanager
def canvas(size):
    settings = {"svg.fonttype": "none", "svg.hashsalt": "recurrent_trace", "font.size": 11.4}
    colors = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({**settings, **dict.fromkeys(colors, INK), "font.family": "sans-serif"})
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        yield figure


def rendered(figure):
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return text.getvalue()


def draw_values(rows):
    with canvas((5.4, 3.4)) as figure:
        axes = figure.subplots()
        root = rows["h"].squeeze(-2).mul(100).round().div(100)
        new = rows["next", "h"].squeeze(-2).mul(100).round().div(100)
        steps = torch.arange(len(rows))
        resets = rows["is_init"].squeeze(-1).nonzero().squeeze(-1).tolist()
        (end,) = rows["next", "done"].squeeze(-1).nonzero().squeeze(-1).tolist()
        found = []  # the values, in the order of their marks

        def mark(name, step, x, y, **look):
            axes.plot(x, y, **look, gid=f"point-{len(found)}")
            found.append([name, str(step), f"{y:.2f}"])

        for n, (color, marker) in enumerate(((BLUE, "o"), (ORANGE, "s"))):
            name, look = f"h[{n}]", {"color": color, "marker": marker}
            for part in (steps < resets[1], steps >= resets[1]):
                line = steps[part].tolist(), root[part, n].tolist()
                axes.plot(*line, color=color)
                for step, value in zip(*line, strict=True):
                    mark(name, step, step, value, **look, markersize=5)
            axes.text(len(rows) - 0.5, root[-1, n].item(), name, va="center", color=color)
            last = new[end, n].item()
            axes.plot([end, end + 0.6], [root[end, n].item(), last], color=color, linestyle=":")
            hollow = {"markersize": 7, "fillstyle": "none"}
            mark(f'{name} under "next"', end, end + 0.6, last, **look, **hollow)
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.3 * (high - low))
        top = high + 0.2 * (high - low)
        for reset in resets:
            axes.axvline(reset, color=INK, linestyle="--", linewidth=1)
            axes.text(reset + 0.2, top, "reset", va="bottom")
        axes.axvline(FRAMES - 0.5, color=INK, linewidth=1)
        axes.text(FRAMES - 0.3, high + 0.05 * (high - low), "batch 2", va="bottom")
        axes.set(xlabel="step")
        axes.set_title("hidden state at the root", loc="left", fontsize="medium")
        axes.set_xticks(range(0, len(rows), 2))
        axes.spines[["left", "top", "right"]].set_visible(False)
        axes.tick_params(length=0)
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:.3g}".replace("-", "\N{MINUS SIGN}"))
        axes.grid(True, axis="y", color=INK, alpha=0.2)
        columns = ["feature", "step", "hidden state"]
        return {"columns": columns, "rows": found, "svg": rendered(figure)}


PANELS = {
    "sequential": (
        "Sequential mode, the collector: a call for each step",
        "A step starts from what the one before wrote. At the reset two\n"
        "parties zero: the primer in the data, the module in its call.",
    ),
    "recurrent": (
        f"Recurrent mode, the loss: one call for all {FRAMES} steps",
        "It reads h at the first step and where is_init is True.\n"
        "It zeroes nothing: the primer stored the 0.00 at the reset.",
    ),
}


def draw_modes(states, marks):
    """The first feature of the state, step by step, in both modes; *marks* has is_init by mode."""
    with canvas((5.4, 5.1)) as figure:
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(-2.1, FRAMES - 0.4), ylim=(14.75, -0.6))
        axes.axis("off")
        for top, (mode, (title, note)) in zip((0, 7.5), PANELS.items(), strict=True):
            axes.text(-2, top, title, fontweight="bold", va="center")
            for y, name in ((1, "step"), (2, "is_init"), (3.1, "reads h"), (4.8, "writes")):
                axes.text(-2, top + y, name, va="center")
            axes.text(-2, top + 5.5, note, va="top", linespacing=1.4)
            read, written = states[mode]
            for n in range(FRAMES):
                axes.text(n, top + 1, str(FRAMES + n), ha="center", va="center")
                if marks[mode][n]:
                    axes.text(n, top + 2, "True", ha="center", va="center")
                placeholder = not written[n].any()
                cell(axes, n, top + 3.1, read[n], ORANGE if n == SLICE else BLUE)
                cell(axes, n, top + 4.8, None if placeholder else written[n], BLUE, "0")
            for n in range(FRAMES - 1):
                if mode == "sequential" and read[n + 1].any():
                    link(axes, (n + 0.2, top + 4.45), (n + 0.8, top + 3.45))
            for n in range(0, FRAMES, SLICE) if mode == "recurrent" else ():
                last = n + SLICE - 1
                axes.plot(
                    [n, n, last], [top + 3.45, top + 3.95, top + 3.95], color=BLUE, linewidth=1.5
                )
                link(axes, (last, top + 3.95), (last, top + 4.45))
            line = {"color": INK, "linestyle": "--", "linewidth": 1}
            axes.plot(2 * [SLICE - 0.5], [top + 0.6, top + 5.2], **line)
        return rendered(figure)


def cell(axes, x, y, state, color, instead=""):
    """A box with the first feature of *state*, or a dashed one where no state stands."""
    empty = state is None
    style = {"edgecolor": INK if empty else color, "linestyle": ":" if empty else "-"}
    box = mpl.patches.Rectangle((x - 0.43, y - 0.35), 0.86, 0.7, fill=False, linewidth=1.3, **style)
    axes.add_patch(box)
    text = instead if empty else number(state[0]).replace("-", "\N{MINUS SIGN}")
    axes.text(x, y, text, ha="center", va="center")


def link(axes, begin, end):
    style = {"arrowstyle": "->", "color": BLUE, "linewidth": 1.5, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=end, xytext=begin, arrowprops=style)


PHASES = {
    "start": "Construction of the collector",
    "step": "A step",
    "done": "... whose episode ends",
    "store": "Storing and drawing",
    "loss": "The loss",
}


# In two drawings: one of all would leave half a sheet of paper blank.
COLLECTED = ("start", "step", "done")
TRAINED = ("store", "draw", "loss")


def draw_arrows(parts, shown):
    row, lines, depths = 0.0, [], []
    for (at, (part, n, call)), by in zip(enumerate(arrows(parts), 1), callers(parts), strict=True):
        depths.append(depths[by - 1] + 1 if by else 0)
        if part not in shown:
            continue
        if n == 0 and part in PHASES:
            row += 0.4
            lines.append((row, PHASES[part], None, None, 0))
            row += 1
        start = SYMBOLS[call.caller][0] if call.caller else None
        lines.append((row, at, start, call.symbol, depths[-1]))
        row += 1
    with canvas((5.4, 0.21 * row + 0.5)) as figure:
        axes = figure.subplots()
        axes.set(xlim=(-0.75, 9), ylim=(row - 0.3, -0.6), yticks=[])
        axes.set_xticks(range(len(LANES)), [lane.replace("|", "\n") for lane in LANES])
        axes.tick_params(length=0)
        axes.xaxis.tick_top()
        axes.xaxis.get_ticklabels()[0].set_horizontalalignment("right")  # else the next one
        axes.spines[:].set_visible(False)
        for place in range(len(LANES)):
            axes.plot([place, place], [0, row], color=INK, linewidth=0.6, alpha=0.4)
        for y, what, start, symbol, depth in lines:
            if symbol is None:
                axes.text(3.5, y, what, va="center", fontweight="bold")
                continue
            axes.text(-0.5, y, str(what), va="center", ha="right")
            axes.text(3.5 + 0.12 * depth, y, short(symbol), va="center")
            arrow(axes, y, start, SYMBOLS[symbol][0])
        return rendered(figure)


def arrow(axes, y, start, lane):
    end = LANES.index(lane)
    # A call within a lane is a short arrow from its left, one of yours comes from the right.
    begin = end + 0.4 if start is None else end - 0.45 if start == lane else LANES.index(start)
    style = {"arrowstyle": "->", "color": COLORS[lane], "linewidth": 1.5, "shrinkA": 0}
    axes.annotate("", xy=(end, y), xytext=(begin, y), arrowprops={**style, "shrinkB": 0})


if __name__ == "__main__":
    torch.set_num_threads(1)
    rows, stored, sample, parts, starts = run()
    check_effects(rows, sample, parts)
    lstm, _ = make_policy()
    marks = {"sequential": rows[FRAMES:]["is_init"], "recurrent": sample["is_init"]}
    print(
        json.dumps(
            {
                "timeline": timeline(rows),
                "vector": one_vector(rows, stored, sample, parts),
                "replay": replay_table(rows, sample, lstm),
                "arrows": arrow_table(parts),
                "values": draw_values(rows),
                "modes": draw_modes(two_modes(rows, sample, lstm, starts), marks),
                "calls_collected": draw_arrows(parts, COLLECTED),
                "calls_trained": draw_arrows(parts, TRAINED),
                "followed": FOLLOWED,
                "count": len(arrows(parts)),
            }
        )
    )
