"""What the page on the recurrent state says and does not show in an example."""

from unittest import mock

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import Compose, GymEnv, InitTracker, SerialEnv, TransformedEnv
from torchrl.modules import GRUModule, LSTMModule, ValueOperator, set_recurrent_mode
from torchrl.objectives.value import GAE

from tests.support.claims import guards
from tests.support.evidence_module import load_evidence

H = 3  # features of the state
kinds = pytest.mark.parametrize("kind", [LSTMModule, GRUModule])


@pytest.fixture(scope="module")
def shapes():
    return load_evidence("recurrent_state_lifecycle/shapes")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def make_module(kind=LSTMModule, **options):
    states = ["h", "c"] if kind is LSTMModule else ["h"]
    return kind(
        input_size=4,
        hidden_size=H,
        in_keys=["observation", *states],
        out_keys=["features", *(("next", state) for state in states)],
        **options,
    )


def make_policy(module):
    def push_right(features):
        return torch.tensor([0, 1]).expand(*features.shape[:-1], 2)

    return TensorDictSequential(module, TensorDictModule(push_right, ["features"], ["action"]))


def make_env(*transforms):
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    return TransformedEnv(env, Compose(*transforms))


def make_rows(steps=15, module=None):
    """Steps that the policy took, an end in the middle."""
    module = module or make_module()
    env = make_env(InitTracker(), module.make_tensordict_primer())
    with torch.no_grad():
        rows = env.rollout(steps, make_policy(module), break_when_any_done=False)
    assert rows["is_init"].sum() > 1
    return rows.exclude("features"), module


def make_data(*shape, flags=False):
    state = torch.rand(*shape, 1, H) - 0.5
    data = {"observation": torch.randn(*shape, 4), "h": state, "c": state.clone()}
    data["is_init"] = torch.full((*shape, 1), flags)
    return TensorDict(data, shape)


def call(module, data, mode):
    with torch.no_grad(), set_recurrent_mode(mode):
        return module(data)


# -- What costs most ---------------------------------------------------------


def has_memory(*transforms, module):
    """Whether a step's features depend on more than its own observation."""
    rows = make_env(*transforms).rollout(6, make_policy(module))
    alone = rows.select("observation", "is_init").clone()
    again = call(module, alone, False)["features"]
    return not torch.allclose(again[1:], rows["features"][1:], atol=1e-6)


@kinds
@guards("each-step-from-zero", "no-primer-no-entry", "missing-primer-default")
def test_a_policy_without_a_primer_has_no_memory(kind):
    module = make_module(kind)
    primer = module.make_tensordict_primer()
    assert has_memory(InitTracker(), primer, module=module)
    assert not has_memory(InitTracker(), module=module)
    rows = make_env(InitTracker()).rollout(6, make_policy(module))
    assert "h" not in rows
    assert ("next", "h") in rows.keys(include_nested=True)


@guards("gae-alone-no-mode")
def test_an_advantage_computed_alone():
    rows, module = make_rows()
    head = ValueOperator(torch.nn.Linear(H, 1), in_keys=["features"])
    critic = TensorDictSequential(module, head)
    advantage = GAE(gamma=0.9, lmbda=0.9, value_network=critic, deactivate_vmap=True)
    with torch.no_grad():
        alone = advantage(rows.clone())
        with set_recurrent_mode(True):
            right = advantage(rows.clone())
    torch.testing.assert_close(alone["state_value"], right["state_value"])
    error = (alone["next", "state_value"] - right["next", "state_value"]).abs().squeeze(-1)
    wrong = (error > 1e-4).nonzero().flatten().tolist()
    assert wrong == rows["is_init"].squeeze(-1).nonzero().flatten().tolist()


@guards("unmarked-slice-leaks")
def test_slices_without_marks_leak():
    rows, module = make_rows()
    collected = call(module, rows.clone(), True)["features"]
    rows["features"] = collected

    def error(**options):
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(len(rows)),
            sampler=SliceSampler(slice_len=3, end_key=("next", "done"), **options),
            batch_size=9,
        )
        buffer.extend(rows)
        samples = [buffer.sample() for _ in range(5)]
        replays = [call(module, sample.clone(), True) for sample in samples]
        pairs = zip(samples, replays, strict=True)
        return max((one["features"] - two["features"]).abs().max().item() for one, two in pairs)

    assert error() < 1e-6
    assert error(init_key=None) > 1e-3


@guards("state-key-names")
def test_the_default_names():
    lstm = LSTMModule(input_size=4, hidden_size=H, in_key="observation", out_key="features")
    gru = GRUModule(input_size=4, hidden_size=H, in_key="observation", out_key="features")
    assert lstm.in_keys[1:3] == ["recurrent_state_h", "recurrent_state_c"]
    assert gru.in_keys[1:] == ["recurrent_state", "is_init"]


# -- Who does what -----------------------------------------------------------


@guards("tracker-and-primer-independent")
def test_tracker_and_primer_work_alone():
    module = make_module()

    def after_an_end(*transforms):
        env = make_env(*transforms)
        carrier, ends = env.reset(), 0
        while not ends:
            carrier = env.rand_action(carrier)
            for state in "hc":
                carrier["next", state] = torch.ones(1, H)
            row, carrier = env.step_and_maybe_reset(carrier)
            ends = row["next", "done"].item()
            if not ends and len(transforms) == 1 and "h" in carrier:
                assert carrier["h"].all()
        return carrier

    tracked, primed = after_an_end(InitTracker()), after_an_end(module.make_tensordict_primer())
    assert tracked["is_init"].item()
    assert "h" not in tracked
    assert not primed["h"].any()
    assert "is_init" not in primed


@kinds
@guards("module-keeps-no-state")
def test_the_module_holds_no_state(kind):
    module, data = make_module(kind), make_data(5)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    first = call(module, data.clone(), False)
    call(module, make_data(5), False)
    assert torch.equal(call(module, data.clone(), False)["features"], first["features"])
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


@guards("zeroes-only-reset-envs", "symptom-envs-keep-state")
def test_a_partial_reset():
    module = make_module()
    batched = SerialEnv(2, lambda: GymEnv("CartPole-v1"))
    batched.set_seed(1)
    transforms = Compose(InitTracker(), module.make_tensordict_primer())
    env = TransformedEnv(batched, transforms)
    rows = env.rollout(25, make_policy(module), break_when_any_done=False)
    is_init = rows["is_init"].squeeze(-1)
    assert (is_init[0] != is_init[1]).any()
    assert torch.equal(rows["h"].flatten(2).count_nonzero(-1) == 0, is_init)
    goes_on = ~rows["next", "done"].squeeze(-1)[:, :-1]
    assert torch.equal(rows["h"][:, 1:][goes_on], rows["next", "h"][:, :-1][goes_on])


@guards("symptom-state-copied")
def test_the_primer_copies_a_state_that_no_policy_wrote():
    env = make_env(make_module().make_tensordict_primer())
    carrier = env.rand_action(env.reset())
    carrier["h"] = torch.ones(1, H)
    row, carrier = env.step_and_maybe_reset(carrier)
    assert row["next", "h"].all()
    assert not row["next", "c"].any()
    assert carrier["h"].all()


def test_another_order_stops_the_trace(monkeypatch):
    """The run on the page compares what it sees with the order that the page states."""
    trace = load_evidence("recurrent_state_lifecycle/trace")
    compose = trace.Compose
    monkeypatch.setattr(trace, "Compose", lambda tracker, primer: compose(primer, tracker))
    with pytest.raises(AssertionError, match="carrier is made elsewhere"):
        trace.run()


# -- Zeroed, carried, restarted ----------------------------------------------


@guards("between-rollouts")
@pytest.mark.parametrize("auto_reset", [True, False])
def test_between_two_rollouts(auto_reset):
    module = make_module()
    env = make_env(InitTracker(), module.make_tensordict_primer())
    first = env.rollout(3, make_policy(module))
    carrier = None if auto_reset else env.step_mdp(first[-1])
    second = env.rollout(3, make_policy(module), auto_reset=auto_reset, tensordict=carrier)
    assert torch.equal(second["h"][0], first["next", "h"][-1]) is not auto_reset


@kinds
@guards("zeroing-leaves-data")
def test_zeroing_in_sequential_mode_leaves_the_data(kind):
    module, data = make_module(kind), make_data(5, flags=True)
    stored = data["h"].clone()
    found = call(module, data, False)
    assert torch.equal(found["h"], stored)
    zero = call(module, data.exclude("h", "c"), False)
    assert torch.equal(found["features"], zero["features"])


@pytest.mark.parametrize("python_based", [False, True])
@kinds
@guards("final-values-docstring")
def test_final_states_are_right(kind, python_based):
    """When the docstring no longer says so, retire the sentence."""
    assert "should not be trusted in those cases" in " ".join(LSTMModule.__doc__.split())
    module, data = make_module(kind, python_based=python_based), make_data(2, 7)
    data["is_init"][:, 0] = data["is_init"][0, 2] = data["is_init"][1, 5] = True
    found = call(module, data.clone(), True)
    for row, start, end in ((0, 0, 2), (0, 2, 7), (1, 0, 5), (1, 5, 7)):
        alone = call(module, data[row, start:end].clone(), True)
        for state in module.out_keys[1:]:
            torch.testing.assert_close(found[row, end - 1][state], alone[-1][state])
            assert alone[-1][state].all()


# -- Shapes ------------------------------------------------------------------


def test_another_order_of_statements_is_noticed(shapes):
    """The run on the page compares what the trace notes with the rows of its table."""
    title = "recurrent"
    events, order = shapes.called(title), [(*row[:3], row[4]) for row in shapes.ORDER if row[4]]
    shapes.check(title, events, order)
    place = next(n for n, event in enumerate(events) if event[1] == "_hidden0_in")
    moved = [*events[:place], *events[place + 2 :], *events[place : place + 2]]
    with pytest.raises(AssertionError, match=title):
        shapes.check(title, moved, order)
    with pytest.raises(AssertionError, match=title):
        shapes.check(title, events[:-1], order)


@kinds
@guards("batch-as-environments")
def test_sequential_mode_takes_whole_batches(kind):
    module, data = make_module(kind), make_data(2, 5)
    whole = call(module, data.clone(), False)
    for row in range(2):
        for step in range(5):
            alone = call(module, data[row, step].clone(), False)
            torch.testing.assert_close(whole["next", "h"][row, step], alone["next", "h"])


@kinds
@guards("padded-replaces-entries")
def test_the_padded_path_replaces_the_input(kind):
    module = make_module(kind)
    for resets in (False, True):
        data = make_data(2, 5)
        data["is_init"][:, 3] = resets
        before = {key: data[key] for key in ("observation", "h")}
        call(module, data, True)
        for key, value in before.items():
            assert torch.equal(data[key], value)
            assert (data[key].data_ptr() != value.data_ptr()) == resets


@pytest.mark.parametrize("backend", ["pad", "scan"])
@pytest.mark.parametrize("resets", [False, True])
@guards("gru-one-state")
def test_the_shapes_of_a_gru(backend, resets):
    seen = {}
    for kind in (LSTMModule, GRUModule):
        module, data = make_module(kind, recurrent_backend=backend), make_data(2, 5)
        data["is_init"][:, 3] = resets
        inner = module.lstm if kind is LSTMModule else module.gru

        def note(inner, args, kind=kind):
            given, state = args
            given = given.data if isinstance(given, tuple) else given
            first = state[0] if isinstance(state, tuple) else state
            seen.setdefault(kind, []).append((given.shape, first.shape))

        inner.register_forward_pre_hook(note)
        found = call(module, data, True)
        seen.setdefault(kind, []).append((found["features"].shape, found["next", "h"].shape))
    assert seen[LSTMModule] == seen[GRUModule]
    assert len(seen[GRUModule]) == (2 if backend == "pad" else 1)


@guards("python-based-masks", "pieces-are-packed")
@pytest.mark.parametrize("python_based", [False, True])
def test_how_the_padding_is_left_out(python_based):
    module, seen = make_module(python_based=python_based), []
    module.lstm.register_forward_pre_hook(
        lambda _, args, options: seen.append((type(args[0]).__name__, [*options])),
        with_kwargs=True,
    )
    data = make_data(2, 5)
    data["is_init"][:, 3] = True
    call(module, data, True)
    assert seen == [("Tensor", ["mask"]) if python_based else ("PackedSequence", [])]


@guards("gru-first-slot")
def test_where_a_gru_differs():
    for kind, flag, calls in (
        (GRUModule, False, 0),
        (GRUModule, True, 1),
        (LSTMModule, False, 2),
        (LSTMModule, True, 2),
    ):
        with mock.patch("torch.where", wraps=torch.where) as where:
            call(make_module(kind), make_data(5, flags=flag), False)
        assert where.call_count == calls, (kind, flag)
