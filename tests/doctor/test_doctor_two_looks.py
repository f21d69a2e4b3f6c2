"""What two looks at the same objects decide, with training between them.

Each symptom is planted into the loops of the healthy pipelines that it concerns, between the looks
or before both. With `since` the doctor never says ``clear`` beside it; healthy loops get no alarm.
The table is printed with ``pytest -s``.
"""

import contextlib
import copy
import gc
import pickle
import weakref
from unittest import mock

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torchrl.envs import TransformedEnv, VecNormV2
from torchrl.envs.utils import ExplorationType
from torchrl.modules import AdditiveGaussianModule, EGreedyModule, NoisyLinear, QValueActor
from torchrl.objectives import DQNLoss, HardUpdate, SoftUpdate
from torchrl.objectives.utils import TargetNetUpdater
from torchrl_doctor import APPLIES, CHECKS, CLEAR, FAILED, UNDECIDED, diagnose, look

from tests.support.claims import guards
from tests.support.healthy_pipelines import PIPELINES, cartpole, collect_from, q_policy
from tests.support.object_state import fingerprint

SECONDS = 60  # so that a busy machine changes no verdict


def nothing(self, *args, **kwargs):
    """A step that somebody forgot to call."""


@contextlib.contextmanager
def no_target_update(given):
    with contextlib.ExitStack() as stack:
        for kind in (TargetNetUpdater, SoftUpdate, HardUpdate):
            stack.enter_context(mock.patch.object(kind, "step", nothing))
        yield given


@contextlib.contextmanager
def no_annealing(given):
    with contextlib.ExitStack() as stack:
        for kind in (EGreedyModule, AdditiveGaussianModule):
            stack.enter_context(mock.patch.object(kind, "step", nothing))
        yield given


@contextlib.contextmanager
def frozen(given, start):
    """The gradients of the parameters whose names begin with *start* reach no optimizer."""
    left = [p for name, p in given["loss_module"].named_parameters() if name.startswith(start)]

    def drop(optimizer, args, kwargs):
        for parameter in left:
            parameter.grad = None

    handle = register_optimizer_step_pre_hook(drop)
    yield given
    handle.remove()


def frozen_actor(given):
    return frozen(given, "actor_network_params.")


def frozen_first_layer(given):
    names = [name for name, _ in given["loss_module"].named_parameters() if "_params" in name]
    return frozen(given, names[0])


TARGETS = ("q_values_stop_improving", "target_updater_never_steps")
PLANTS = {  # by symptom: how to plant it, and the pipelines
    "target_updater_never_steps": (no_target_update, ("dqn", "rebuilt_dqn", "offline")),
    "epsilon_never_goes_down": (no_annealing, ("dqn", "ddpg")),
    "part_of_the_network_never_changes": (frozen_actor, ("a2c", "ddpg")),
    "part_of_the_network_never_changes, one tensor": (
        frozen_first_layer,
        ("dqn", "a2c"),
    ),
}


def only(slugs):
    """Let these checks alone run."""
    return mock.patch.dict(CHECKS, {slug: CHECKS[slug] for slug in slugs}, clear=True)


def states(report):
    return {one.slug: one.state for one in report}


def looked_twice(name, plant=contextlib.nullcontext, without=(), slugs=None):
    """The report on a pipeline some training after a first look, and some before it."""
    torch.manual_seed(0)
    given, train = PIPELINES[name]()
    known = {key: value for key, value in given.items() if key not in without}
    with plant(given):
        for _ in range(2):
            train()
        earlier = look(**known)
        for _ in range(4):
            train()
    with only(slugs) if slugs else contextlib.nullcontext():
        report = diagnose(**known, since=earlier, frames=10, seconds=SECONDS)
    if "collector" in given:
        given["collector"].shutdown()
    return report


@pytest.mark.parametrize("symptom", PLANTS)
def test_two_looks_find_what_is_planted(symptom):
    plant, names = PLANTS[symptom]
    slug = symptom.partition(",")[0]
    found = {name: states(looked_twice(name, plant, slugs=[slug])).get(slug) for name in names}
    print(symptom, found)
    assert found == dict.fromkeys(names, APPLIES)


@pytest.mark.parametrize("name", PIPELINES)
def test_two_looks_at_a_healthy_loop_raise_no_alarm(name):
    report = looked_twice(name, slugs=[one.slug for one in CHECKS.values() if "since" in one.takes])
    assert [one for one in report if one.state in (APPLIES, FAILED)] == []
    assert states(report)["part_of_the_network_never_changes"] == CLEAR


@pytest.mark.parametrize("name", ["dqn", "rebuilt_dqn"])
def test_without_its_updater_a_target_network_is_seen_to_move(name):
    healthy = states(looked_twice(name, without=["target_updater"], slugs=TARGETS))
    assert set(healthy.values()) == {CLEAR}
    broken = states(looked_twice(name, no_target_update, ["target_updater"], TARGETS))
    assert CLEAR not in broken.values()


def a_copy_that_acts(updates_weights):
    """DQN whose collector has a copy of the policy: its arguments and its training."""
    torch.manual_seed(0)
    env = cartpole()
    policy = q_policy(env)
    acts = copy.deepcopy(policy)
    collector = collect_from(env, acts, 20)
    loss = DQNLoss(policy, action_space=env.action_spec, delay_value=False)
    optimizer = torch.optim.Adam(loss.parameters(), 1e-2)
    batches = iter(collector)

    def train():
        batch = next(batches)
        for _ in range(4):
            loss(batch.clone())["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
        if updates_weights:
            acts.load_state_dict(policy.state_dict())

    given = {"collector": collector, "policy": policy, "loss_module": loss}
    return given, train


SLUG = "collector_keeps_its_own_policy"


@pytest.mark.parametrize("without", [(), ("policy",)])
@pytest.mark.parametrize("updates_weights", [True, False])
def test_weights_that_act_and_weights_that_learn(updates_weights, without):
    given, train = a_copy_that_acts(updates_weights)
    known = {name: value for name, value in given.items() if name not in without}
    for _ in range(4):
        train()
    earlier = look(**known)
    said = []
    for _ in range(4):
        train()
        with only([SLUG]):
            said.append(states(diagnose(**known, since=earlier, seconds=SECONDS))[SLUG])
    given["collector"].shutdown()
    assert said == [CLEAR] * 4 if updates_weights else [UNDECIDED] * 2 + [APPLIES] * 2


def test_a_first_look_before_any_training_raises_no_alarm_early():
    """All that was collected may be to fill the buffer, and the first update still to come."""
    given, train = a_copy_that_acts(updates_weights=False)
    earlier = look(**given)
    for _ in range(4):
        train()
    with only([SLUG]):
        assert states(diagnose(**given, since=earlier, seconds=SECONDS)) == {SLUG: UNDECIDED}
    given["collector"].shutdown()


@pytest.mark.parametrize("learns", [True, False])
def test_noise_that_learns_and_noise_that_does_not(learns):
    """A gradient of zero is one, so one look cannot tell."""
    torch.manual_seed(0)
    env = cartpole()
    policy = QValueActor(NoisyLinear(4, 2), in_keys=["observation"], spec=env.action_spec)
    loss = DQNLoss(policy, action_space=env.action_spec, delay_value=False)
    loss.deterministic_sampling_mode = ExplorationType.RANDOM
    optimizer = torch.optim.Adam(loss.parameters(), 1e-2)
    batch = env.rollout(20)
    earlier = look(policy=policy, loss_module=loss)
    for _ in range(10):
        loss(batch.clone())["loss"].backward()
        for name, one in loss.named_parameters():
            if name.endswith("_sigma") and not learns:
                one.grad.zero_()
        optimizer.step()
        optimizer.zero_grad()
    slug = "noisy_network_never_learns_its_noise"
    with only([slug]):
        report = diagnose(policy=policy, loss_module=loss, since=earlier, seconds=SECONDS)
    assert states(report) == {slug: CLEAR if learns else APPLIES}


def normalized(frozen):
    """A training environment that normalizes, and one for evaluation with those statistics."""
    env = TransformedEnv(cartpole(), VecNormV2(in_keys=["observation"]))
    env.rollout(60)
    norm = env.transform[0] if hasattr(env.transform, "transforms") else env.transform
    twin = norm.frozen_copy()
    if not frozen:
        twin.unfreeze()
    return env, TransformedEnv(cartpole(), twin)


@pytest.mark.parametrize("frozen", [True, False])
def test_statistics_that_grow_during_evaluation(frozen):
    torch.manual_seed(0)
    env, eval_env = normalized(frozen)
    earlier = look(env=env, eval_env=eval_env)
    eval_env.rollout(50)
    slug = "good_in_training_poor_in_evaluation"
    with only([slug]):
        report = diagnose(env=env, eval_env=eval_env, since=earlier, seconds=SECONDS)
    assert states(report) == {slug: CLEAR if frozen else APPLIES}


def test_a_look_at_other_objects_decides_nothing():
    given, train = a_copy_that_acts(updates_weights=False)
    others, _ = a_copy_that_acts(updates_weights=False)
    earlier = look(**others)
    for _ in range(8):
        train()
    report = diagnose(**given, since=earlier, seconds=SECONDS)
    assert states(report)[SLUG] == UNDECIDED
    assert "part_of_the_network_never_changes" in report.unconcerned
    given["collector"].shutdown()
    others["collector"].shutdown()


def test_what_is_no_look_is_left_out():
    given, _ = a_copy_that_acts(updates_weights=True)
    report = diagnose(loss_module=given["loss_module"], since="yesterday", seconds=SECONDS)
    assert report.refused == ["since"]
    given["collector"].shutdown()


@guards("doctor-look-holds-nothing")
@pytest.mark.parametrize("name", ["dqn", "sac", "recurrent_ppo"])
def test_a_look_changes_nothing_and_keeps_nothing_alive(name):
    given, train = PIPELINES[name]()
    train()
    before = fingerprint(**given)
    seen = look(**given)
    assert fingerprint(**given) == before
    assert len(pickle.dumps((seen.traces, seen.numbers))) < 20_000
    loss = weakref.ref(given["loss_module"])
    given["collector"].shutdown()
    del given, train
    gc.collect()
    assert loss() is None, seen


def test_a_change_that_leaves_the_sum_of_the_bits_is_seen():
    """Steps of one size in opposite directions, as the two logits of a bias take them."""
    module = torch.nn.Linear(1, 2)
    with torch.no_grad():
        module.bias.copy_(torch.tensor([0.75, 0.5625]))
    earlier = look(policy=module)
    with torch.no_grad():
        module.bias.copy_(torch.tensor([0.625, 0.6875]))
    bits = module.bias.detach().view(torch.int32).sum()
    assert bits == torch.tensor([0.75, 0.5625]).view(torch.int32).sum()
    assert earlier.traces["policy"]["bias"][:2] != look(policy=module).traces["policy"]["bias"][:2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float8_e5m2, torch.complex64, torch.bool])
def test_a_change_is_seen_in_any_dtype(dtype):
    module = torch.nn.Module()
    module.register_buffer("values", torch.zeros(2, dtype=dtype))
    earlier = look(policy=module)
    module.values = torch.tensor([1, 0]).to(dtype)
    now = look(policy=module)
    assert earlier.traces["policy"]["values"][:2] != now.traces["policy"]["values"][:2]


# Once a process, by the C++ code.
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_tensors_without_plain_bits_are_left_out():
    module = torch.nn.Module()
    module.register_buffer("sparse", torch.eye(2).to_sparse())
    module.register_buffer(
        "quantized", torch.quantize_per_tensor(torch.eye(2), 1.0, 0, torch.qint8)
    )
    assert look(policy=module).traces["policy"] == {}
