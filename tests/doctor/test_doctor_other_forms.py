"""Symptoms in forms that differ from those of their pages, and what looks like them and is none."""

from types import SimpleNamespace

import pytest
import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer, Unbounded
from torchrl.envs import ObservationNorm, SerialEnv, TransformedEnv, VecNormV2
from torchrl.modules import ValueOperator
from torchrl.objectives import ClipPPOLoss, DQNLoss
from torchrl.objectives.value import GAE
from torchrl_doctor import APPLIES, CHECKS, CLEAR, UNDECIDED, look

from tests.support.defects.environments import Corridor
from tests.support.healthy_pipelines import cartpole, categorical_actor, logits, q_policy
from tests.support.one_check import found


@pytest.mark.parametrize(
    ("gamma", "given", "state"),
    [(0.5, True, APPLIES), (0.99, True, None), (0.5, False, UNDECIDED), (None, True, None)],
)
def test_a_discount_is_set_on_a_loss_whose_loop_has_the_estimator(gamma, given, state):
    env, critic = cartpole(), ValueOperator(torch.nn.Linear(4, 1))
    loss = ClipPPOLoss(categorical_actor(env, logits()), critic)
    if gamma is not None:
        loss.gamma = gamma
    estimator = {"value_estimator": GAE(gamma=0.99, lmbda=0.95, value_network=critic)}
    said, evidence = found(
        "a_new_gamma_changes_nothing", loss_module=loss, **(estimator if given else {})
    )
    assert said == state, evidence


@pytest.mark.filterwarnings("ignore:.*not exactly divisible:UserWarning")
@pytest.mark.parametrize(("frames", "state"), [(100, UNDECIDED), (90, None), (96, None)])
def test_a_number_of_frames_that_nobody_chooses(frames, state):
    options = {"frames_per_batch": frames, "total_frames": -1}
    collector = Collector(SerialEnv(3, cartpole), None, **options)
    said, evidence = found("more_frames_than_asked_for", collector=collector)
    collector.shutdown()
    assert said == state
    assert said is None or "did you ask for 100?" in evidence


class MultiSyncCollector(SimpleNamespace):
    """What the check reads of one."""


@pytest.mark.parametrize(("frames", "state"), [(25, APPLIES), (24, None)])
def test_workers_round_their_part(frames, state):
    collector = MultiSyncCollector(requested_frames_per_batch=frames, num_workers=4)
    verdict = CHECKS["more_frames_than_asked_for"].look(collector)
    assert getattr(verdict, "state", None) == state


@pytest.mark.parametrize(
    ("dtype", "given", "state"),
    [
        (torch.int64, True, APPLIES),
        (torch.float32, True, CLEAR),
        (torch.int64, False, UNDECIDED),
    ],
)
def test_decimals_of_an_environment_that_refuses_the_actions_of_its_spec(dtype, given, state):
    class Whole(Corridor):  # takes the long actions of a policy, and no random ones
        def __init__(self):
            super().__init__()
            self.reward_spec = Unbounded((1,), dtype=dtype)

    env = SerialEnv(2, Whole)
    one = torch.tensor([0, 1]).expand(2, 2)
    batch = env.step(env.reset().set("action", one.clone())).unsqueeze(-1)
    given = {"batch": batch.set("action", one[:, None].clone())} if given else {}
    said, evidence = found("decimals_are_lost", env=env, **given)
    assert said == state, evidence


def raw(rows):
    return rows


def normalized_by_hand(rows):
    for key in ("observation", ("next", "observation")):
        rows[key] = 20 * rows[key] + 1
    return rows


@pytest.mark.parametrize(
    ("scale", "stored", "state"),
    [(20.0, raw, APPLIES), (1.0, raw, UNDECIDED), (20.0, normalized_by_hand, UNDECIDED)],
)
def test_a_buffer_normalizes_what_the_policy_reads_as_it_is(scale, stored, state):
    torch.manual_seed(0)
    env = cartpole()
    policy, keys = q_policy(env), ["observation", ("next", "observation")]
    options = {"frames_per_batch": 40, "total_frames": -1}
    collector = Collector(env, policy, auto_register_policy_transforms=False, **options)
    norm = ObservationNorm(0.0, scale, keys)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(80), batch_size=16, transform=norm)
    while True:
        batch = next(iter(collector)).clone()
        buffer.extend(stored(batch.clone()))
        if not batch["next", "done"][-1]:
            break
    given = {"collector": collector, "loss_module": DQNLoss(policy, delay_value=False)}
    slug = "samples_differ_from_what_the_policy_saw"
    said, evidence = found(slug, replay_buffer=buffer, **given)
    collector.shutdown()
    assert said == state, evidence


def test_evaluation_and_training_add_to_statistics_of_their_own():
    torch.manual_seed(0)
    env, eval_env = (
        TransformedEnv(cartpole(), VecNormV2(in_keys=["observation"])) for _ in range(2)
    )
    slug, given = "good_in_training_poor_in_evaluation", {"env": env, "eval_env": eval_env}
    env.rollout(300, break_when_any_done=False)
    eval_env.rollout(200, break_when_any_done=False)
    assert found(slug, **given)[0] == UNDECIDED  # they agree by now
    earlier = look(**given)
    env.rollout(100, break_when_any_done=False)
    eval_env.rollout(50, break_when_any_done=False)
    said, evidence = found(slug, since=earlier, **given)
    assert (said, "of its own" in evidence) == (APPLIES, True)


@pytest.mark.parametrize(
    ("entropy", "state"),
    [
        ([0.69 - 0.001 * n for n in range(60)], CLEAR),
        ([0.69] * 30 + [0.001] * 30, UNDECIDED),  # gone halfway
        ([0.0016 - 1e-5 * n for n in range(60)], UNDECIDED),  # gone before the log begins
        ([0.69] * 3 + [0.001] * 57, APPLIES),
    ],
)
def test_an_entropy_that_is_gone_at_the_end_is_not_clear(entropy, state):
    log = {"entropy": entropy, "episode_reward": [10.0] * 60}
    said, evidence = found("entropy_is_gone_early", log=log)
    assert said == state, evidence
