"""A fix as code has the values of the objects, and takes the symptom away."""

import ast

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl import envs, modules, objectives
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import InitTracker, MultiStepTransform, TransformedEnv
from torchrl.modules import LSTMModule, QValueActor, QValueModule, ValueOperator
from torchrl.objectives import DQNLoss
from torchrl.objectives.value import GAE
from torchrl_doctor import CHECKS, diagnose
from torchrl_doctor.copies import MADE_ANEW
from torchrl_doctor.examination import ARGUMENTS
from torchrl_doctor.fixes import CODES, MADE, in_names, names_of_reader
from torchrl_doctor.objects import LIKE_THOSE_OF_WORKERS
from torchrl_doctor.other_rows import OTHER_ROWS
from torchrl_doctor.rows import ROWS

from tests.support.claims import guards
from tests.support.healthy_pipelines import cartpole, collect_from

SECONDS = 60  # so that a busy machine changes no verdict


def codes(**given):
    """The fix as code of what applies, by check."""
    return {one.slug: one.code for one in diagnose(**given, seconds=SECONDS).applies}


def test_each_check_of_the_manual_has_a_cause_and_a_fix():
    assert {slug for slug, one in CHECKS.items() if one.row is None or not one.page} == set()
    assert ROWS.keys() & OTHER_ROWS.keys() == set()
    assert (ROWS | OTHER_ROWS).keys() == CHECKS.keys()


def sliced(storage, batch_size):
    sampler = SliceSampler(slice_len=5)
    return TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=batch_size)


def test_the_dimensions_of_a_storage():
    batch = TensorDict(
        {"a": torch.zeros(2, 20, 1), ("next", "done"): torch.zeros(2, 20, 1, dtype=torch.bool)},
        batch_size=[2, 20],
    )
    name, fix = "end_signal_has_two_dimensions", "LazyTensorStorage(40, ndim=2)"
    for storage, found in (("LazyTensorStorage(40)", {name: fix}), (fix, {})):
        buffer = sliced(eval(storage), 10)
        buffer.extend(batch)
        assert codes(replay_buffer=buffer, only=name) == found


def test_a_batch_size_that_slices_divide():
    name = "sampler_refuses_the_batch_size"
    fix = codes(replay_buffer=sliced(LazyTensorStorage(40), 12), only=name)[name]
    assert fix == "batch_size=15"
    assert codes(replay_buffer=sliced(LazyTensorStorage(40), 15), only=name) == {}


def test_the_key_of_a_value():
    name = "gae_none_not_subscriptable"
    critic = ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"], out_keys=["v"])
    value_estimator = GAE(gamma=0.9, lmbda=0.9, value_network=critic)
    fix = codes(value_estimator=value_estimator, only=name)[name]
    assert fix == "value_estimator.set_keys(value='v')"
    exec(fix)
    assert codes(value_estimator=value_estimator, only=name) == {}


def test_one_discount():
    env = cartpole()
    policy = QValueActor(torch.nn.Linear(4, 2), in_keys=["observation"], spec=env.action_spec)
    loss_module = DQNLoss(policy, action_space=env.action_spec, delay_value=True)
    loss_module.make_value_estimator(gamma=0.95)
    transform = MultiStepTransform(n_steps=3, gamma=0.99)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), transform=transform)
    fix = codes(loss_module=loss_module, replay_buffer=buffer, only="two_discounts")
    assert fix == {"two_discounts": "loss_module.make_value_estimator(gamma=0.99)"}
    exec(fix["two_discounts"])
    assert codes(loss_module=loss_module, replay_buffer=buffer, only="two_discounts") == {}


def test_the_budget_of_a_shifted_call():
    name = "part_of_the_batch_has_no_advantage"
    critic = TensorDictModule(torch.nn.Linear(4, 1), ["observation"], ["state_value"])
    cut = torch.zeros(1, 30, 1, dtype=torch.bool)
    cut[:, [5, 10, 15, 29]] = True
    follow = {"observation": torch.zeros(1, 30, 4), "reward": torch.zeros(1, 30, 1), "done": cut}
    follow |= {"terminated": torch.zeros_like(cut), "truncated": cut}
    batch = TensorDict({"observation": torch.zeros(1, 30, 4), "next": follow}, [1, 30])

    def estimator(**options):
        return GAE(gamma=0.9, lmbda=0.9, value_network=critic, shifted=True, **options)

    fix = codes(batch=batch, value_estimator=estimator(shifted_budget=1), only=name)[name]
    mended = eval(f"estimator({fix})", {"estimator": estimator})
    assert codes(batch=batch, value_estimator=mended, only=name) == {}


@guards("doctor-names-of-reader")
def test_a_fix_has_the_names_of_the_reader():
    """The variable of each object where the doctor was called, and what the collector has."""
    game = TransformedEnv(cartpole(), InitTracker())
    memory = LSTMModule(4, 8, in_key="observation", out_key="features")
    head = TensorDictModule(torch.nn.Linear(8, 2), ["features"], ["action_value"])
    agent = TensorDictSequential(memory, head, QValueModule(spec=game.action_spec))
    frames = collect_from(game, agent, 20)
    name = "lstm_forgets_every_step"
    fix = "game.append_transform(agent[0].make_tensordict_primer())"
    assert codes(collector=frames, only=name) == {
        name: "env.append_transform(policy[0].make_tensordict_primer())"
    }  # `codes` has them under no name
    (one,) = diagnose(collector=frames, only=name, seconds=SECONDS).applies
    assert one.code == fix
    frames.shutdown()
    exec(fix)
    again = collect_from(game, agent, 20)
    assert codes(collector=again, only=name) == {}
    again.shutdown()


def test_names_are_of_objects_and_not_of_what_they_have():
    names = {"loss_module": "ppo", "replay_buffer": "memory"}
    code = "loss_module.replay_buffer(replay_buffer, loss_module=1)  # after loss_module(x)"
    assert in_names(code, names) == "ppo.replay_buffer(memory, loss_module=1)  # after ppo(x)"


def test_words_of_a_comment_are_no_names():
    code = "policy.step(batch.numel())  # once for each batch\nbatch.empty()  # before batch.split"
    assert in_names(code, {"batch": "rows"}) == (
        "policy.step(rows.numel())  # once for each batch\nrows.empty()  # before rows.split"
    )


def test_no_method_is_called_of_a_list():
    optimizers = [torch.optim.Adam(two_values().parameters()) for _ in range(2)]
    assert names_of_reader({"optimizer": optimizers}) == {}
    optimizer = optimizers[0]
    assert names_of_reader({"optimizer": optimizer}) == {"optimizer": "optimizer"}


def test_each_fix_names_what_there_is():
    """Python, of names that are arguments of `diagnose`, `sample`, or of TorchRL."""
    known = {*ARGUMENTS, "sample", "torch"}
    known |= {name for one in (envs, modules, objectives) for name in dir(one)}
    for slug, code in CODES.items():
        assert slug in CHECKS
        names = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)]
        made = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        assert {node.id for node in names} - made <= known, slug
    assert MADE.keys() <= CHECKS.keys()


class Elsewhere(torch.optim.Optimizer):
    """Of a library whose options nobody here knows."""

    def __init__(self, parameters, lr=None):
        super().__init__(parameters, {} if lr is None else {"lr": lr})


@pytest.mark.parametrize("options", [{}, {"lr": 0.1}])
def test_no_code_of_an_optimizer_of_another_library(options):
    given = {"optimizer": Elsewhere(two_values().parameters(), **options)}
    name = "optimizer_trains_others"
    assert codes(loss_module=two_values(), **given, only=name) == {name: None}


def test_a_fix_that_cannot_be_written_ends_nothing(monkeypatch):
    def broken(given):
        raise ValueError("unwritable")

    name = "optimizer_trains_others"
    monkeypatch.setitem(MADE, name, broken)
    optimizer = torch.optim.Adam(two_values().parameters())
    report = diagnose(loss_module=two_values(), optimizer=optimizer, only=name, seconds=SECONDS)
    assert [one.slug for one in report.applies] == [name]
    assert any("unwritable" in note for note in report.notes)


def test_what_is_made_anew_is_closed_when_the_examination_breaks(monkeypatch):
    def stopped(examination):
        raise KeyboardInterrupt

    monkeypatch.setattr("torchrl_doctor.diagnosis.savings_of", stopped)
    env = cartpole()
    monkeypatch.setitem(LIKE_THOSE_OF_WORKERS, "env", env)
    MADE_ANEW.append(env)
    with pytest.raises(KeyboardInterrupt):
        diagnose(loss_module=two_values(), seconds=SECONDS)
    left = len(MADE_ANEW), len(LIKE_THOSE_OF_WORKERS)
    MADE_ANEW.clear()
    assert left == (0, 0)
    assert env.is_closed


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_an_optimizer_of_the_parameters_of_the_loss(kind):
    name, loss_module = "optimizer_trains_others", two_values()
    optimizer = kind(two_values().parameters(), lr=3e-3)
    fix = codes(loss_module=loss_module, optimizer=optimizer, only=name)[name]
    exec(fix, {"torch": torch}, made := {"loss_module": loss_module})
    assert type(made["optimizer"]) is kind
    assert codes(loss_module=loss_module, optimizer=made["optimizer"], only=name) == {}


def two_values():
    policy = QValueActor(torch.nn.Linear(4, 2), in_keys=["observation"], action_space="one_hot")
    return DQNLoss(policy, action_space="one_hot", delay_value=True)
