"""What each omission in the wiring of a recurrent policy does; for the page on wiring.

Every batch is also held against an LSTM that steps through each episode by itself, so "right" in a
table means that the policy remembered what it should have, not only that nothing was raised.

The workers start by "forkserver" with TorchRL preloaded: objects reach them pickled, as under
"spawn", but TorchRL is imported once instead of once for each worker.
"""

import json
import multiprocessing
import os
import warnings
from functools import partial

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer, Unbounded
from torchrl.envs import GymEnv, InitTracker, ParallelEnv, SerialEnv, StepCounter, TransformedEnv
from torchrl.envs.transforms import TensorDictPrimer, Transform
from torchrl.modules import LSTMModule, set_recurrent_mode

N_HIDDEN = 8
N_FRAMES = 40  # of each environment
SLICE_LEN = 4
STATES = ("h", "c")
SECOND = ("h2", "c2")  # of a second module
SEED = 0


# -- The check that readers take ---------------------------------------------


def check_recurrent_wiring(batch, *modules):
    """The faults that a batch, as a collector yields it, shows in the wiring of *modules*."""
    start, done = (batch[key].squeeze(-1) for key in ("is_init", ("next", "done")))
    faults = [] if done[..., :-1].any() else ["no episode ends inside: collect more"]
    faults += ["is_init does not follow done"] * bool((start[..., 1:] != done[..., :-1]).any())
    for module in modules:
        for key in module.in_keys[1:-1]:
            if batch.get(key) is None or batch["next"].get(key) is None:
                faults.append(f"{key} is missing")
                continue
            now, after = (part[key].flatten(batch.ndim) for part in (batch, batch["next"]))
            zero, carried = (now == 0).all(-1), (now[..., 1:, :] == after[..., :-1, :]).all(-1)
            faults += [f"{key} is not zero at is_init"] * (not zero[start].all())
            faults += [f"{key} is zero elsewhere"] * bool(zero[~start].any())
            faults += [f"{key} is not carried"] * (not carried[~start[..., 1:]].all())
        with set_recurrent_mode(True), torch.no_grad():
            replayed, key = module(batch.clone()), module.out_keys[0]
        faults += [f"replay changes {key}"] * (not replayed[key].allclose(batch[key], atol=1e-5))
    return faults


# -- Parts -------------------------------------------------------------------


def make_env():
    return GymEnv("CartPole-v1")


def make_lstm(features="features", states=STATES, written=None, **options):
    return LSTMModule(
        4,
        N_HIDDEN,
        in_keys=["observation", *states],
        out_keys=[features, *(written or [("next", key) for key in states])],
        **options,
    )


def best(logits):
    return torch.nn.functional.one_hot(logits.argmax(-1), 2)


def policy_of(*modules):
    """A policy that picks the better of two actions by what the first module returns."""
    head = TensorDictModule(torch.nn.Linear(N_HIDDEN, 2), ["features"], ["logits"])
    return TensorDictSequential(*modules, head, TensorDictModule(best, ["logits"], ["action"]))


def hand_written(shape=(1, N_HIDDEN), states=STATES, **options):
    """A primer as one writes it without ``make_tensordict_primer``."""
    options.setdefault("expand_specs", True)
    return TensorDictPrimer({key: Unbounded(shape) for key in states}, **options)


class NeverInit(Transform):
    """Overwrites ``is_init``, as a wrapper that forgets to set it would."""

    def _call(self, next_tensordict):
        return next_tensordict.set("is_init", torch.zeros_like(next_tensordict["is_init"]))

    def _reset(self, tensordict, tensordict_reset):
        return self._call(tensordict_reset)

    def _step(self, tensordict, next_tensordict):
        return self._call(next_tensordict)


def with_tracker():
    return TransformedEnv(make_env(), InitTracker())


def with_both():
    return with_tracker().append_transform(hand_written())


def collect(env, policy=None, **options):
    """One batch."""
    options.setdefault("auto_register_policy_transforms", False)
    env.set_seed(SEED)
    n_frames = N_FRAMES * env.batch_size.numel()
    # A collector that reaches its total_frames closes the environment.
    collector = Collector(env, policy, frames_per_batch=n_frames, total_frames=-1, **options)
    try:
        return next(iter(collector)).clone()
    finally:
        collector.shutdown(close_env=False)


# -- The truth ---------------------------------------------------------------


def remembered(batch, lstm, features="features"):
    """Whether each output is that of an LSTM which saw its own episode, from the start, alone."""
    for row in batch.reshape(-1, N_FRAMES):
        lengths = (row["next", "done"].squeeze(-1).nonzero().squeeze(-1) + 1).tolist()
        first = 0
        for end in [*lengths, N_FRAMES]:
            if first < end:
                with torch.no_grad():
                    output, _ = lstm.lstm(row["observation"][None, first:end])
                if not torch.allclose(output[0], row[features][first:end], atol=1e-5):
                    return False
            first = end
    return True


def replayed(batch, lstm, features="features"):
    """The batch, with the outputs that a loss would see."""
    with set_recurrent_mode(True), torch.no_grad():
        data = lstm(batch.clone())
    return batch.clone().set(features, data[features])


def states_fed(lstm, function):
    """The result of *function*, and for each call of the LSTM whether its state was not zero."""
    fed = []
    hook = lstm.lstm.register_forward_pre_hook(lambda _, args: fed.append(bool(args[1][0].any())))
    try:
        batch = function()
    finally:
        hook.remove()
    return batch, fed


def head(error):
    """Kind of the error and its text, without the names of all keys."""
    text, keys, _ = str(error.args[0]).partition(" with keys ")
    return f"{type(error).__name__}: {text}{keys and ' with keys ...'}"


ERRORS = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


# -- Where the two transforms stand ------------------------------------------

MESSAGES = {  # in a table, and in full
    "``KeyError``: ``is_init``": 'KeyError: key "is_init" not found in TensorDict with keys ...',
    "``KeyError``: ``h``": "KeyError: The key h was not found in the dest tensordict.",
}
NO_INIT, NOT_IN_DEST = MESSAGES
SHORT = {text: short for short, text in MESSAGES.items()}
ZEROS = "**silent**: zeros at every step"
RIGHT = "right"


def placed(env, lstm, policy):
    """What comes of collecting from *env*, and whether the collector warns of a missing primer."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = collected(env, lstm, policy)
    return result, any("TensorDictPrimer" in str(warning.message) for warning in caught)


def collected(env, lstm, policy):
    run = partial(collect, env, policy, auto_register_policy_transforms=None)
    try:
        batch, fed = states_fed(lstm, run)
    except KeyError as error:
        return SHORT[head(error)]
    if not any(fed):
        assert not remembered(batch, lstm), "outputs are right without a state"
        assert check_recurrent_wiring(batch, lstm)[:2] == ["h is missing", "c is missing"]
        return ZEROS
    assert remembered(batch, lstm), "the policy does not remember its episodes"
    assert remembered(replayed(batch, lstm), lstm), "the replay is another one"
    faults = check_recurrent_wiring(batch, lstm)
    assert not faults, faults
    return RIGHT


PLACES = [  # in the workers, around them, and what must come of it: one, SerialEnv, ParallelEnv
    (make_env, [], "nowhere", "nowhere", NO_INIT, NO_INIT, NO_INIT),
    (make_env, [hand_written], "nowhere", "outside", NO_INIT, NO_INIT, NO_INIT),
    (make_env, [InitTracker], "outside", "nowhere", ZEROS, ZEROS, ZEROS),
    (make_env, [InitTracker, hand_written], "outside", "outside", RIGHT, RIGHT, RIGHT),
    (with_tracker, [], "inside", "nowhere", ZEROS, ZEROS, NOT_IN_DEST),
    (with_tracker, [StepCounter], "inside", "nowhere; another outside", ZEROS, ZEROS, ZEROS),
    (with_tracker, [hand_written], "inside", "outside", RIGHT, RIGHT, RIGHT),
    (with_both, [], "inside", "inside", RIGHT, RIGHT, RIGHT),
]


def steps_after_done(env, policy):
    env.rollout(N_FRAMES, policy, break_when_any_done=False)


def wrapped(env, *transforms):
    """*env* inside these transforms."""
    for transform in transforms:
        env = env.append_transform(transform())
    return env


def place_table():
    torch.manual_seed(SEED)
    lstm = make_lstm()
    policy = policy_of(lstm)
    rows, parallel = [], {}
    for worker, around, tracker, primer, *expected in PLACES:
        if worker not in parallel:  # those that differ only outside share their workers
            for other in parallel.values():
                other.close(raise_if_closed=False)
            parallel[worker] = ParallelEnv(2, worker)
        bases = worker(), SerialEnv(2, worker), parallel[worker]
        lacks = "nowhere" in primer
        found = [placed(wrapped(base, *around), lstm, policy) for base in bases]
        assert found == [(result, lacks) for result in expected], (tracker, primer, found)
        rows.append([tracker, primer, *expected])
        if NOT_IN_DEST in expected:  # the collector's way of stepping; the other one is silent
            steps = parallel[worker].rollout(N_FRAMES, policy)
            assert steps.get("h") is None, "a rollout that ends at done carries the state"
            error = attempt(partial(steps_after_done, parallel[worker], policy))
            assert SHORT[head(error)] == NOT_IN_DEST, f"a rollout that goes on: {error!r}"
    for other in parallel.values():
        other.close(raise_if_closed=False)
    columns = ["InitTracker", "TensorDictPrimer", "One environment", "SerialEnv", "ParallelEnv"]
    return {"columns": columns, "rows": rows}


# -- What adds them ----------------------------------------------------------


def registered(policy, *transforms, **options):
    """Whether it is warned and of what, what comes of it, and what the batch has."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            batch = collect(wrapped(make_env(), *transforms), **policy(), **options)
        except KeyError as error:
            result = SHORT[head(error)]
        else:
            added = ["``is_init``"] * (batch.get("is_init") is not None)
            added += ["the state"] * (batch.get("h") is not None)
            result = "collects" + (", with " if added else "") + " and ".join(added)
    said = [str(warning.message) for warning in caught]
    assert all("is missing transforms required by the policy" in one for one in said), said
    if said and InitTracker in transforms:
        assert "by the policy (TensorDictPrimer)" in said[0], said
    assert all(issubclass(warning.category, FutureWarning) for warning in caught)
    return ("``FutureWarning``, " if said else "") + result


def feed_forward():
    return {
        "policy": TensorDictSequential(
            TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["logits"]),
            TensorDictModule(best, ["logits"], ["action"]),
        )
    }


def recurrent():
    return policy_of(make_lstm())


def in_function():
    policy = recurrent()
    return {"policy": lambda tensordict: policy(tensordict)}


POLICIES = [  # name, what makes it, the transforms that are there
    ("recurrent module", lambda: {"policy": recurrent()}),
    ("the same, tracker in place", lambda: {"policy": recurrent()}, InitTracker),
    ("the same, both in place", lambda: {"policy": recurrent()}, InitTracker, hand_written),
    ("``policy_factory`` that makes one", lambda: {"policy_factory": recurrent}),
    ("function that calls one", in_function),
    ("module without memory", feed_forward),
    ("the same, tracker in place", feed_forward, InitTracker),
]
GIVEN = "collects, with ``is_init`` and the state"
WARNED = "``FutureWarning``, "
NO_MEMORY = "collects, with ``is_init``"
REGISTERED = [  # what must come of None, False, True
    [WARNED + NO_INIT, NO_INIT, GIVEN],
    [WARNED + NO_MEMORY, NO_MEMORY, GIVEN],
    [GIVEN] * 3,
    [WARNED + NO_INIT, NO_INIT, GIVEN],
    [NO_INIT] * 3,
    [WARNED + "collects", "collects", NO_MEMORY],
    [NO_MEMORY] * 3,
]


def register_table():
    rows = []
    for (name, *case), expected in zip(POLICIES, REGISTERED, strict=True):
        found = [
            registered(*case, auto_register_policy_transforms=flag) for flag in (None, False, True)
        ]
        assert found == expected, f"{name}: {found}"
        rows.append([name, *found])
    return {"columns": ["Policy", "``None``, the default", "``False``", "``True``"], "rows": rows}


def policy_of_the_env():
    """``policy=`` of an environment adds both transforms."""
    torch.manual_seed(SEED)
    lstm = make_lstm()
    policy = policy_of(lstm)
    for env in (GymEnv("CartPole-v1", policy=policy), SerialEnv(2, make_env, policy=policy)):
        assert placed(env, lstm, policy) == (RIGHT, False)
        env.close(raise_if_closed=False)
    return True


# -- Mistakes ----------------------------------------------------------------


class Case:
    """A policy, its recurrent modules and its environment; right unless options say otherwise."""

    def __init__(
        self,
        *,
        modules=(make_lstm,),
        transforms=(InitTracker, hand_written),
        base=make_env,
        policy=policy_of,
    ):
        torch.manual_seed(SEED)
        self.modules = [make() for make in modules]
        self.policy = policy(*self.modules)
        self.transforms, self.base = transforms, base

    def batch(self):
        return collect(wrapped(self.base(), *self.transforms), self.policy)


def two():
    return SerialEnv(2, make_env)


def from_module(**options):
    """A primer made by the module."""
    return make_lstm(**options).make_tensordict_primer()


def second(states):
    return partial(make_lstm, "value_features", states)


def shared_transform():
    """The same transform object in two environments."""
    tracker = InitTracker()
    return SerialEnv(2, lambda: TransformedEnv(make_env(), tracker))


TWIN = "a twin for training, see :ref:`recurrent-mode`"
FROM_MODULE = "the primer that the module makes"
WRITTEN = {"modules": (partial(make_lstm, written=STATES),)}
OTHER_NAME = {"modules": (partial(make_lstm, written=[("next", "new_h"), ("next", "new_c")]),)}
IN_SEQUENCES = {"modules": (partial(make_lstm, default_recurrent_mode=True),)}
LOUD = [  # mistake, the options that make it, how its error begins, cure
    (
        "``InitTracker(init_key=...)``",
        {"transforms": (partial(InitTracker, "start"), hand_written)},
        'KeyError: key "is_init" not found in TensorDict',
        "the default name: the module reads ``is_init``",
    ),
    (
        "primer without ``expand_specs``, batched environment",
        {"transforms": (InitTracker, partial(hand_written, expand_specs=None)), "base": two},
        "RuntimeError: expand_specs wasn't specified in the TensorDictPrimer",
        FROM_MODULE,
    ),
    (
        "primer for one of the two states of an LSTM",
        {"transforms": (InitTracker, partial(hand_written, states=("h",)))},
        "TypeError: where() received an invalid combination of arguments",
        FROM_MODULE,
    ),
    (
        "primer without the dimension of layers",
        {"transforms": (InitTracker, partial(hand_written, (N_HIDDEN,)))},
        "IndexError: Dimension out of range",
        FROM_MODULE,
    ),
    (
        '``out_keys`` of the state without ``"next"``, ``make_tensordict_primer()``',
        {"transforms": (InitTracker, partial(from_module, written=STATES))},
        "RuntimeError: make_tensordict_primer is supposed to work with",
        '``("next", "h")`` for ``"h"``',
    ),
    (
        "``default_recurrent_mode=True`` in the policy, one environment",
        IN_SEQUENCES,
        "ValueError: LSTMModule(recurrent_mode=True) requires the input tensordict",
        TWIN,
    ),
    (
        "one transform object in several environments",
        {"transforms": (hand_written,), "base": shared_transform},
        "AttributeError: parent of transform",
        "transforms made inside the factory",
    ),
]
REPLAY = "replay changes features"
SILENT = [  # mistake, options, outputs of collection and of a replay, faults of h and others, cure
    (
        "``is_init`` is False everywhere",
        {"transforms": (InitTracker, hand_written, NeverInit)},
        "right: the primer zeroes",
        "wrong: the state goes on into the next episode",
        ["is_init does not follow done", "h is zero elsewhere", "h is not carried", REPLAY],
        "``InitTracker`` alone writes it",
    ),
    (
        "primer with ``random=True``",
        {"transforms": (InitTracker, partial(hand_written, random=True))},
        "right: the module zeroes",
        "wrong: starts from what is stored",
        ["h is not zero at is_init", REPLAY],
        FROM_MODULE,
    ),
    (
        "primer with ``default_value=1.0``",
        {"transforms": (InitTracker, partial(hand_written, default_value=1.0))},
        "right: the module zeroes",
        "wrong: starts from what is stored",
        ["h is not zero at is_init", REPLAY],
        FROM_MODULE,
    ),
    (
        '``out_keys`` of the state without ``"next"``, primer by hand',
        WRITTEN,
        "right",
        "wrong: starts one step ahead",
        ["h is not zero at is_init", "h is not carried", REPLAY],
        '``("next", "h")`` for ``"h"``',
    ),
    (
        "``out_keys`` of the state with another name, primer by hand",
        OTHER_NAME,
        "wrong: zeros at every step",
        "right",
        ["h is zero elsewhere", REPLAY],
        '``("next", "h")`` for ``"h"``',
    ),
    (
        "two recurrent modules, a primer for the first",
        {"modules": (make_lstm, second(SECOND))},
        "wrong: zeros at every step of the second",
        "right",
        ["h2 is missing", "c2 is missing", "replay changes value_features"],
        "a primer for each",
    ),
    (
        "two recurrent modules with the same state keys, as ``in_key=`` gives them",
        {"modules": (make_lstm, second(STATES))},
        "wrong: the first continues from the state of the second",
        "right",
        [REPLAY],
        "``in_keys`` and ``out_keys`` with names of their own",
    ),
    (
        "``default_recurrent_mode=True`` in the policy, batched environment",
        {**IN_SEQUENCES, "base": two},
        "wrong: environments are read as time steps",
        "right",
        ["h is zero elsewhere", REPLAY],
        TWIN,
    ),
]


def attempt(function):
    """The error, or None."""
    try:
        function()
    except ERRORS as error:
        return error


def loud_table():
    rows = []
    for name, options, expected, cure in LOUD:
        kind, _, beginning = expected.partition(": ")
        error = attempt(Case(**options).batch)
        assert type(error).__name__ == kind, f"{name}: {error!r}"
        assert str(error.args[0]).startswith(beginning), f"{name}: {error}"
        rows.append([name, cure, f"``{expected} ...``"])
    return {"columns": ["Mistake", "Cure", "Error"], "rows": rows}


def outcome(options):
    """Whether collection is right, whether a replay is, what was fed, and the faults named."""
    case = Case(**options)
    batch, fed = states_fed(case.modules[-1], case.batch)
    named = [(module, module.out_keys[0]) for module in case.modules]
    return (
        all(remembered(batch, module, key) for module, key in named),
        all(remembered(replayed(batch, module, key), module, key) for module, key in named),
        any(fed),
        check_recurrent_wiring(batch, *case.modules),
    )


def silent_table():
    rows = []
    for name, options, collection, replay, expected, cure in SILENT:
        *right, fed, faults = outcome(options)
        assert right == [text.startswith("right") for text in (collection, replay)], (name, right)
        assert fed is not ("zeros at every step" in collection), name
        shown = [fault for fault in faults if not fault.startswith("c ")]
        assert shown == expected, f"{name}: {faults}"
        rows.append([name, collection, replay, listed(shown), cure])
    rows.append(buffer_row())
    columns = ["Mistake", "Collected outputs", "Replayed outputs", "The check says", "Cure"]
    return {"columns": columns, "rows": rows}


def listed(faults):
    return "; ".join(faults)


def sampled(*left_out):
    """Slices of a batch whose keys *left_out* were not stored, with the outputs of a replay."""
    case = Case()
    batch = case.batch()
    sampler = SliceSampler(slice_len=SLICE_LEN, traj_key=("collector", "traj_ids"))
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(N_FRAMES), sampler=sampler)
    buffer.extend(batch.exclude(*left_out))
    sample = buffer.sample(64 * SLICE_LEN)
    again = replayed(sample, *case.modules)
    return sample, bool(again["features"].allclose(sample["features"], atol=1e-5)), case.modules


def buffer_row():
    _, right, _ = sampled()
    assert right, "slices with stored state are replayed otherwise"
    sample, right, modules = sampled(*STATES)
    assert not right, "slices without stored state are replayed as they were collected"
    faults = [fault for fault in check_recurrent_wiring(sample, *modules) if "missing" in fault]
    assert faults == ["h is missing", "c is missing"], faults
    return [
        "a buffer that is not given the state keys",
        "right",
        "wrong: slices that begin inside an episode start from zeros",
        f"on a sample: {listed(faults)}",
        "store them, or burn in",
    ]


def check_is_quiet():
    """No fault where nothing is wrong, whatever stands around the modules."""
    for options in (
        {},
        {"base": two},
        {"transforms": (InitTracker, from_module)},
        {"transforms": (hand_written, InitTracker)},
        {
            "modules": (make_lstm, second(SECOND)),
            "transforms": (InitTracker, hand_written, partial(hand_written, states=SECOND)),
        },
    ):
        case = Case(**options)
        batch = case.batch()
        faults = check_recurrent_wiring(batch, *case.modules)
        assert not faults, f"{options}: {faults}"
        for module in case.modules:
            assert remembered(batch, module, module.out_keys[0]), options
    return True


def main():
    result = {
        "places": place_table(),
        "messages": "\n".join(MESSAGES.values()),
        "register": register_table(),
        "policy-argument": policy_of_the_env(),
        "loud": loud_table(),
        "silent": silent_table(),
        "quiet": check_is_quiet(),
    }
    assert not multiprocessing.active_children()
    return result


def start_workers_by_forkserver():
    """Import TorchRL once for all workers; call it before the first environment."""
    multiprocessing.set_start_method("forkserver", force=True)
    multiprocessing.set_forkserver_preload(["torchrl.envs", "torchrl.modules"])


if __name__ == "__main__":
    start_workers_by_forkserver()
    torch.set_num_threads(1)
    print(json.dumps(main()))
