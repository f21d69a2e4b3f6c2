"""Values that no return has, returns over ends, and batches that are learned from too often."""

import pickle

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import MultiSyncCollector
from torchrl.data import (
    LazyTensorStorage,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from torchrl.envs import (
    DoubleToFloat,
    ExplorationType,
    GymEnv,
    InitTracker,
    ObservationNorm,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)
from torchrl.modules import MLP, LSTMModule, QValueActor, ValueOperator
from torchrl.objectives import A2CLoss, ClipPPOLoss, DQNLoss, ReinforceLoss, SACLoss
from torchrl.objectives.value import GAE, VTrace
from torchrl.objectives.value.functional import reward2go
from torchrl_doctor import APPLIES, CLEAR, UNDECIDED, look, watch

from tests.support.claims import guards
from tests.support.defects.pipelines import Joined
from tests.support.healthy_pipelines import (
    cartpole,
    categorical_actor,
    collect_from,
    gaussian_actor,
    logits,
)
from tests.support.one_check import found


def stored(rows, **options):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(1000), batch_size=32, **options)
    buffer.extend(rows)
    return buffer


# --- values that no return has ------------------------------------------------------------------


def q_loss(delay_value, times):
    env = cartpole()
    torch.manual_seed(0)
    net = MLP(in_features=4, out_features=2, num_cells=[16])
    with torch.no_grad():
        net[-1].weight.mul_(0.01)
        net[-1].bias.fill_(times)
    policy = QValueActor(net, in_keys=["observation"], spec=env.action_spec)
    loss = DQNLoss(policy, action_space=env.action_spec, delay_value=delay_value)
    loss.make_value_estimator(gamma=0.99)
    return env, loss


@pytest.mark.parametrize(
    ("delay_value", "values", "state"),
    [
        (True, 20.0, CLEAR),
        (True, 1000.0, APPLIES),  # each reward is 1, so no return is above 100
        (True, 150.0, None),  # too high, as values are for a while
        (False, 20.0, UNDECIDED),
        (False, 1000.0, APPLIES),
    ],
)
def test_values_that_no_return_has(delay_value, values, state):
    env, loss = q_loss(delay_value, values)
    buffer = stored(env.rollout(100, break_when_any_done=False))
    said, evidence = found("values_leave_all_returns", loss_module=loss, replay_buffer=buffer)
    assert said == state, evidence
    assert ("delay_value=False" in evidence) == (not delay_value)


@pytest.mark.parametrize(
    ("delay_value", "returns", "state"),
    [
        (False, [20.0, 21.0] * 30, APPLIES),
        (False, [], UNDECIDED),
        (False, range(60), UNDECIDED),  # of the values
        (True, [20.0, 21.0] * 30, None),
    ],
)
def test_an_error_that_grows_without_a_target_network(delay_value, returns, state):
    _, loss = q_loss(delay_value, 1.0)
    log = {"loss": [1.15**n for n in range(60)]}
    log |= {"episode_reward": [float(one) for one in returns]} if returns else {}
    said, evidence = found("values_leave_all_returns", loss_module=loss, log=log)
    assert said == state, evidence
    assert ("log the return, too" in evidence) == (not returns)


def values_that(bias, steps, last=None, alone=False):
    """The verdict on values of about *bias*, by *steps* rows; *last* is the last reward."""
    env, loss = q_loss(True, bias)
    rows = env.rollout(steps, break_when_any_done=False)
    rows["next", "reward"].fill_(-0.01)
    if last is not None:
        rows["next", "reward"][-1] = last
    given = {"batch": rows} if alone else {"replay_buffer": stored(rows)}
    return found("values_leave_all_returns", loss_module=loss, **given)[0]


def test_a_reward_that_was_not_seen_may_be_larger():
    assert values_that(50.0, 5) is None  # no episode has ended, so the goal is not among them
    assert values_that(50.0, 100, alone=True) == UNDECIDED
    assert values_that(50.0, 100) == APPLIES
    assert values_that(50.0, 100, last=100.0) == CLEAR


@pytest.mark.parametrize(("size", "state"), [(100, APPLIES), (60, UNDECIDED)])
def test_a_reward_that_was_dropped_may_be_larger(size, state):
    """Values of 50 follow from a reward of 1, and none of the last rows has it."""
    env, loss = q_loss(True, 50.0)
    rows = env.rollout(100, break_when_any_done=False)
    rows["next", "reward"].fill_(-0.01)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(size), batch_size=32)
    for part in rows.split(20):
        buffer.extend(part)
    said, evidence = found("values_leave_all_returns", loss_module=loss, replay_buffer=buffer)
    assert (said, "40 dropped rows" in evidence) == (state, size == 60), evidence


def test_values_are_clear_if_none_is_larger():
    env, loss = q_loss(True, 20.0)
    with torch.no_grad():
        first, shift, last, bias = loss.parameters()
        first[0], shift[0] = torch.tensor([1000.0, 0.0, 0.0, 0.0]), 0.0
        last[:, 0], bias[:] = 65.0, 85.0  # values of about 20 and 150
    rows = env.rollout(100, break_when_any_done=False)
    rows["observation"][:, 0] = -1.0
    rows["observation"][::10, 0] = 1.0
    given = {"loss_module": loss, "replay_buffer": stored(rows)}
    assert found("values_leave_all_returns", **given)[0] is None


@pytest.mark.parametrize("size", [0.0, 1e5])
def test_values_with_entropy_in_them_may_be_larger(size):
    env = TransformedEnv(GymEnv("Pendulum-v1"), DoubleToFloat())
    net = MLP(in_features=4, out_features=1, num_cells=[4])
    with torch.no_grad():
        net[-1].bias.fill_(size)
    critic = ValueOperator(Joined(net), in_keys=["observation", "action"])
    loss = SACLoss(gaussian_actor(env, 3), critic, delay_qvalue=True)
    loss.make_value_estimator(gamma=0.99)
    env = env.append_transform(StepCounter(max_steps=30))
    buffer = stored(env.rollout(60, break_when_any_done=False))
    assert found("values_leave_all_returns", loss_module=loss, replay_buffer=buffer)[0] is None


@pytest.mark.parametrize("kind", ["batch", "replay_buffer"])
@pytest.mark.parametrize(("reward", "state"), [(-1.0, APPLIES), (1.0, None)])
def test_values_that_are_never_negative(kind, reward, state):
    env = cartpole()
    net = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
    loss = DQNLoss(QValueActor(net, in_keys=["observation"], spec=env.action_spec))
    rows = env.rollout(20, break_when_any_done=False)
    rows["next", "reward"].fill_(reward)
    given = {"batch": rows} if kind == "batch" else {"replay_buffer": stored(rows)}
    assert found("values_cannot_reach_returns", loss_module=loss, **given)[0] == state


# --- returns over ends --------------------------------------------------------------------------


def returns_of(rows, over_ends, gamma=0.97):
    reward, done = rows["next", "reward"], rows["next", "done"]
    if not over_ends:
        return reward2go(reward, done, gamma)
    return reward2go(reward, torch.zeros_like(done), gamma)


@pytest.mark.parametrize("kind", [ReinforceLoss, A2CLoss])
@pytest.mark.parametrize(("over_ends", "state"), [(True, APPLIES), (False, CLEAR)])
def test_returns_begin_anew_at_ends(kind, over_ends, state):
    env = SerialEnv(2, cartpole)
    actor, critic = categorical_actor(env, logits()), ValueOperator(MLP(4, 1))
    rows = env.rollout(80, break_when_any_done=False)
    rows["returns"] = returns_of(rows, over_ends)
    given = {"loss_module": kind(actor, critic), "batch": rows}
    assert found("returns_run_over_ends", **given)[0] == state


def test_targets_of_gae_are_no_such_sums():
    env = cartpole()
    actor, critic = categorical_actor(env, logits()), ValueOperator(MLP(4, 1))
    rows = GAE(gamma=0.99, lmbda=1.0, value_network=critic)(
        env.rollout(80, break_when_any_done=False)
    )
    given = {"loss_module": ClipPPOLoss(actor, critic), "batch": rows.detach()}
    assert found("returns_run_over_ends", **given)[0] in (None, CLEAR)


# --- how often a batch is learned from ----------------------------------------------------------


def on_policy_loop(kind, epochs, size=40, zero="each step", shuffled=False, estimator=GAE):
    """A loop of five batches of 80 rows, and its objects."""
    torch.manual_seed(0)
    env = SerialEnv(2, cartpole)
    actor = categorical_actor(env, logits())
    critic = ValueOperator(MLP(in_features=4, out_features=1, num_cells=[16]))
    collector = collect_from(env, actor, 80, total_frames=400)
    loss = kind(actor, critic)
    optimizer = torch.optim.Adam(loss.parameters(), 1e-3)
    options = {"lmbda": 0.95} if estimator is GAE else {"actor_network": actor}
    advantage = estimator(gamma=0.99, value_network=critic, **options)
    given = {"collector": collector, "loss_module": loss, "value_estimator": advantage}

    def train():
        for batch in collector:
            if shuffled:
                batch = batch.reshape(-1)[torch.randperm(80)]
            with torch.no_grad():
                advantage(batch)
            optimizer.zero_grad()
            for _ in range(epochs):
                for rows in batch.reshape(-1).split(size):
                    if zero == "each step":
                        optimizer.zero_grad()
                    losses = loss(rows)
                    sum(v for k, v in losses.items() if k.startswith("loss")).backward()
                    optimizer.step()

    return given | {"optimizer": optimizer}, train


def watched(given, train, slug):
    kept = {name: value for name, value in given.items() if name != "optimizer"}
    with watch(**kept, only=slug, share=1.0, seconds=60) as watching:
        train()
    given["collector"].shutdown()
    return next(((one.state, one.evidence) for one in watching.report), (None, ""))


EPOCHS = "a_batch_is_learned_many_times"


@pytest.mark.parametrize(
    ("kind", "epochs", "estimator", "state"),
    [
        (A2CLoss, 1, GAE, CLEAR),
        (A2CLoss, 4, GAE, APPLIES),
        (A2CLoss, 2, GAE, APPLIES),
        (A2CLoss, 4, VTrace, None),  # which corrects for it
        (ReinforceLoss, 3, GAE, APPLIES),
        (ClipPPOLoss, 4, GAE, None),
    ],
)
def test_a_loss_without_a_ratio_learns_a_batch_once(kind, epochs, estimator, state):
    given, train = on_policy_loop(kind, epochs, estimator=estimator)
    assert watched(given, train, EPOCHS)[0] == state


@pytest.mark.parametrize(("epochs", "state"), [(1, None), (10, UNDECIDED)])
def test_the_steps_of_an_optimizer_hint_at_it_in_one_look(epochs, state):
    given, train = on_policy_loop(A2CLoss, epochs, size=20)
    train()
    assert found(EPOCHS, **given)[0] == state
    given["collector"].shutdown()


def test_steps_of_an_optimizer_may_be_of_another_run():
    given, train = on_policy_loop(A2CLoss, 4, size=20)
    train()
    given["replay_buffer"] = stored(cartpole().rollout(40, break_when_any_done=False))
    state, evidence = found(EPOCHS, **given)
    assert (state, "in this run?" in evidence) == (UNDECIDED, True)
    given["collector"].shutdown()


@pytest.mark.parametrize(
    ("learned", "state"), [(90, CLEAR), (110, CLEAR), (150, UNDECIDED), (200, APPLIES)]
)
def test_rows_that_are_learned_more_than_once(learned, state):
    given, _ = on_policy_loop(A2CLoss, 1)
    since = look(loss_module=given["loss_module"])
    since.watched = {"rows learned": {"loss_objective": learned}, "rows collected": 100}
    assert found(EPOCHS, loss_module=given["loss_module"], since=since)[0] == state
    given["collector"].shutdown()


# --- the order of rows, gradients and networks that are left out ---------------------------------


@pytest.mark.parametrize("estimator", [GAE, VTrace])
@pytest.mark.parametrize("shuffled", [True, False])
def test_an_estimator_gets_rows_that_follow(estimator, shuffled):
    given, train = on_policy_loop(A2CLoss, 1, shuffled=shuffled, estimator=estimator)
    state, evidence = watched(given, train, "advantages_look_like_noise")
    assert (state == APPLIES) == shuffled, evidence


@pytest.mark.parametrize(("shuffled", "state"), [(True, APPLIES), (False, None)])
def test_targets_of_vtrace_tell_the_order_that_they_were_made_in(shuffled, state):
    torch.manual_seed(0)
    env = cartpole()
    actor, critic = categorical_actor(env, logits()), ValueOperator(MLP(4, 1, num_cells=[16]))
    with torch.no_grad():
        rows = env.rollout(100, actor, break_when_any_done=False)
        rows = rows[torch.randperm(100)] if shuffled else rows
        vtrace = VTrace(gamma=0.99, actor_network=actor, value_network=critic)
        vtrace(rows)
    said, evidence = found("advantages_look_like_noise", value_estimator=vtrace, batch=rows)
    assert said == state, evidence


@pytest.mark.parametrize(("zero", "state"), [("each step", CLEAR), ("each batch", APPLIES)])
def test_gradients_that_are_zeroed_once_a_batch(zero, state):
    given, train = on_policy_loop(ClipPPOLoss, 2, size=20, zero=zero)
    assert watched(given, train, "gradients_are_never_zeroed")[0] == state


@pytest.mark.parametrize(
    ("forgotten", "kind", "state"),
    [
        ("loss_critic", torch.optim.Adam, APPLIES),
        ("loss_critic", torch.optim.SGD, UNDECIDED),  # which counts no steps
        ("", torch.optim.Adam, None),
    ],
)
def test_one_look_finds_a_network_that_no_loss_reaches(forgotten, kind, state):
    env = cartpole()
    actor = categorical_actor(env, logits())
    loss = ClipPPOLoss(actor, ValueOperator(MLP(in_features=4, out_features=1, num_cells=[16])))
    optimizer = kind(loss.parameters(), 1e-3)
    rows = env.rollout(20, actor).detach()
    GAE(gamma=0.99, lmbda=0.95, value_network=loss.critic_network)(
        rows, params=loss.critic_network_params
    )
    for _ in range(40):
        losses = loss(rows)
        parts = [v for k, v in losses.items() if k.startswith("loss") and k != forgotten]
        optimizer.zero_grad()
        sum(parts).backward()
        optimizer.step()
    given = {"loss_module": loss, "optimizer": optimizer}
    said, evidence = found("part_of_the_network_never_changes", **given)
    assert said == state
    assert ("critic_network_params" in evidence) == bool(forgotten)


def test_an_actor_that_was_trained_before_tells_nothing_of_its_critic():
    actor = categorical_actor(cartpole(), logits())
    before = torch.optim.Adam(actor.parameters(), 1e-3)
    for _ in range(100):
        sum(one.sum() for one in actor.parameters()).backward()
        before.step()
    loss = ClipPPOLoss(actor, ValueOperator(MLP(in_features=4, out_features=1, num_cells=[16])))
    new = torch.optim.Adam(loss.parameters(), 1e-3)
    for optimizer in ({}, {"optimizer": new}):
        given = {"loss_module": loss, **optimizer}
        assert found("part_of_the_network_never_changes", **given)[0] == UNDECIDED


def warmed_up(parts):
    """A loss and an optimizer of these *parts*, after many updates of its critic alone."""
    env = cartpole()
    loss = ClipPPOLoss(
        categorical_actor(env, logits()),
        ValueOperator(MLP(in_features=4, out_features=1, num_cells=[16])),
    )
    optimizer = torch.optim.Adam(
        [{"params": [*getattr(loss, f"{one}_network_params").parameters()]} for one in parts], 1e-3
    )

    def train(number, alone=True):
        rows = env.rollout(20, loss.actor_network).detach()
        GAE(gamma=0.99, lmbda=0.95, value_network=loss.critic_network)(
            rows, params=loss.critic_network_params
        )
        for _ in range(number):
            losses = loss(rows)
            optimizer.zero_grad()
            (losses["loss_critic"] + (0 if alone else losses["loss_objective"])).backward()
            optimizer.step()

    train(40)
    return loss, optimizer, train


def test_a_warm_up_of_the_critic_whose_optimizer_then_gets_the_actor():
    loss, optimizer, train = warmed_up(["critic"])
    given, slugs = {"loss_module": loss, "optimizer": optimizer}, ALL_PARAMETERS
    assert [found(one, **given)[0] for one in slugs] == [UNDECIDED, UNDECIDED]
    optimizer.add_param_group({"params": [*loss.actor_network_params.parameters()]})
    assert [found(one, **given)[0] for one in slugs] == [CLEAR, UNDECIDED]
    train(40, alone=False)
    assert [found(one, **given)[0] for one in slugs] == [CLEAR, None]


def test_an_optimizer_that_leaves_a_network_out_is_told_from_a_warm_up_by_two_looks():
    loss, optimizer, train = warmed_up(["critic"])
    given = {"loss_module": loss, "optimizer": optimizer}
    earlier = look(**given)
    train(20)
    assert [found(one, **given, since=earlier)[0] for one in ALL_PARAMETERS] == [APPLIES, APPLIES]


ALL_PARAMETERS = ("optimizer_trains_others", "part_of_the_network_never_changes")


def test_a_network_in_a_group_of_its_own_may_have_come_later():
    loss, optimizer, train = warmed_up(["critic", "actor"])
    given = {"loss_module": loss, "optimizer": optimizer}
    state, evidence = found(ALL_PARAMETERS[1], **given)
    assert (state, "group" in evidence) == (UNDECIDED, True)
    earlier = look(**given)
    train(20)
    assert found(ALL_PARAMETERS[1], **given, since=earlier)[0] == APPLIES


# --- learning rates ------------------------------------------------------------------------------


def constant(step):
    return 1.0


def cosine(step):
    return 0.5 * (1 + torch.cos(torch.tensor(step * torch.pi / 15)).item())


def warm_up(step):
    return min(1.0, step / 20)


def begins_again(step):
    return 1 - (step % 15) / 15 + 1e-6


@pytest.mark.parametrize(
    ("schedule", "state"),
    [(constant, CLEAR), (cosine, APPLIES), (warm_up, CLEAR), (begins_again, CLEAR)],
)
def test_a_schedule_that_comes_back(schedule, state):
    given, train = on_policy_loop(ClipPPOLoss, 4)
    optimizer = given["optimizer"]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    optimizer.register_step_post_hook(lambda *_: scheduler.step())
    with watch(**given, only="learning_rate_is_wrong", share=1.0, seconds=60) as watching:
        train()
    given["collector"].shutdown()
    (one,) = watching.report
    assert one.state == state, one.evidence


def test_of_a_run_of_any_length_as_many_rates_are_kept():
    parameter = torch.nn.Parameter(torch.zeros(3))
    loss = ClipPPOLoss(
        categorical_actor(cartpole(), torch.nn.Linear(4, 2)), ValueOperator(nn.Linear(4, 1))
    )
    optimizer = torch.optim.SGD([parameter, *loss.parameters()], 0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, constant)
    with watch(loss_module=loss, optimizer=optimizer, share=1.0, seconds=60) as watching:
        for number in range(200):
            parameter.grad = torch.ones(3)
            optimizer.step()
            schedule.step()
            if number == 20:
                few = len(pickle.dumps(watching.learners[None].rates))
        many = len(pickle.dumps(watching.learners[None].rates))
    assert many - few < 20


@pytest.mark.parametrize(("seen", "state"), [(False, UNDECIDED), (True, APPLIES)])
def test_a_schedule_that_is_over_in_a_run_that_goes_on(seen, state):
    given, _ = on_policy_loop(ClipPPOLoss, 1)
    optimizer, slug = given["optimizer"], "learning_rate_is_wrong"
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: max(1 - n / 20, 1e-6))

    def steps():
        given["collector"].next()
        for one in given["loss_module"].parameters():
            one.grad = torch.ones_like(one)
        for _ in range(30):
            optimizer.step()
            schedule.step()

    if seen:
        with watch(**given, only=slug, share=1.0, seconds=60) as watching:
            steps()
        (one,) = watching.report
        said, evidence = one.state, one.evidence
    else:  # the steps may have been those of a run that is resumed here
        steps()
        said, evidence = found(slug, **given)
    given["collector"].shutdown()
    assert said == state, evidence


# --- what the critic reads -----------------------------------------------------------------------


@pytest.mark.parametrize(("constant_state", "state"), [(True, APPLIES), (False, CLEAR)])
def test_what_a_critic_reads_changes(constant_state, state):
    rows = cartpole().rollout(40, break_when_any_done=False)
    rows["state"] = torch.zeros(40, 3) if constant_state else torch.randn(40, 3)
    actor = categorical_actor(cartpole(), logits())
    loss = ClipPPOLoss(actor, ValueOperator(nn.Linear(3, 1), in_keys=["state"]))
    given = {"batch": rows, "policy": actor, "loss_module": loss}
    assert found("observations_never_change", **given)[0] == state


def test_a_data_set_of_another_scale_is_named_as_one():
    env = cartpole()
    actor = categorical_actor(env, logits())
    rows = env.rollout(100, break_when_any_done=False)
    slugs = ("evaluation_gives_other_numbers", "samples_differ_from_what_the_policy_saw")
    for by, states in ((0.0, (None, None)), (500.0, (APPLIES, None))):
        data = rows.clone()
        data["observation"] += by
        data["next", "observation"] += by
        given = {"env": env, "policy": actor, "replay_buffer": stored(data)}
        assert tuple(found(slug, **given)[0] for slug in slugs) == states


def test_no_row_is_needed():
    rows = TensorDict(batch_size=[3])
    loss = ReinforceLoss(categorical_actor(cartpole(), logits()), ValueOperator(MLP(4, 1)))
    assert found("returns_run_over_ends", loss_module=loss, batch=rows)[0] is None


# --- data that were changed in part ---------------------------------------------------------------


def both_normalized(rows):
    for part in (rows, rows["next"]):
        part["observation"] = (part["observation"] - 1.0) / 0.5


def one_normalized(rows):
    rows["observation"] = (rows["observation"] - 1.0) / 0.5


def in_disorder(rows):
    one_normalized(rows)
    rows.update(rows[torch.randperm(len(rows))].clone())


@pytest.mark.parametrize(
    ("change", "state"), [(both_normalized, CLEAR), (one_normalized, APPLIES), (in_disorder, None)]
)
@pytest.mark.parametrize("kind", ["batch", "replay_buffer"])
def test_both_observations_have_one_scale(change, state, kind):
    env = TransformedEnv(GymEnv("Pendulum-v1"), DoubleToFloat())
    rows = env.rollout(120, break_when_any_done=False)
    change(rows)
    given = {kind: rows if kind == "batch" else stored(rows)}
    assert found("next_observation_has_another_scale", **given)[0] == state


@pytest.mark.parametrize("kind", ["batch", "replay_buffer"])
def test_the_next_observation_of_several_steps_is_not_that_of_the_next_row(kind):
    rows = cartpole().rollout(120, break_when_any_done=False)
    slope = torch.arange(120.0).unsqueeze(-1).expand(120, 4)
    rows["observation"], rows["next", "observation"] = slope.clone(), slope + 3
    rows["next", "done"].zero_()
    given = {kind: rows if kind == "batch" else stored(rows)}
    assert found("next_observation_has_another_scale", **given)[0] == APPLIES
    rows["steps_to_next_obs"] = torch.full((120, 1), 3)
    given = {kind: rows if kind == "batch" else stored(rows)}
    assert found("next_observation_has_another_scale", **given)[0] is None


@pytest.mark.parametrize(("lost", "state"), [(True, APPLIES), (False, None)])
def test_chunks_of_sequences_keep_their_hidden_states(lost, state):
    lstm = LSTMModule(4, 8, in_key="observation", out_key="features")
    env = TransformedEnv(cartpole(), InitTracker())
    env.append_transform(lstm.make_tensordict_primer())
    head = TensorDictModule(nn.Linear(8, 2), ["features"], ["logits"])
    policy = categorical_actor(env, lstm, head)
    rows = env.rollout(40, policy, break_when_any_done=False).detach()
    states = [key for key in rows.keys(True, True) if "recurrent" in str(key)]
    rows = (rows.exclude(*states) if lost else rows).reshape(-1, 8)
    given = {"policy": policy, "env": env, "batch": rows}
    assert found("lstm_outputs_differ_in_slices", **given)[0] == state


@pytest.mark.parametrize(("each", "state"), [(True, CLEAR), (False, UNDECIDED)])
def test_each_row_of_a_sample_has_a_priority_of_its_own(each, state):
    rows = cartpole().rollout(200, break_when_any_done=False)
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=0.7, beta=0.5, storage=LazyTensorStorage(200), batch_size=20
    )
    buffer.extend(rows)
    for number in range(12):
        sample = buffer.sample()
        sample["td_error"] = torch.rand(20) if each else torch.full((20,), 0.1 + number / 50)
        buffer.update_tensordict_priority(sample)
    assert found("prioritized_replay_draws_evenly", replay_buffer=buffer)[0] == state


# --- collectors with worker processes -------------------------------------------------------------


def plain():
    return TransformedEnv(cartpole(), StepCounter())


def normalized():
    norm = ObservationNorm(loc=0.0, scale=0.5, in_keys=["observation"], standard_normal=True)
    return TransformedEnv(cartpole(), norm)


def in_processes(maker, policy, **options):
    return MultiSyncCollector(
        [maker] * 2, policy, frames_per_batch=40, total_frames=-1, cat_results="stack", **options
    )


@guards("doctor-env-of-workers")
@pytest.mark.parametrize(("evaluated_in", "state"), [(plain, APPLIES), (normalized, CLEAR)])
def test_evaluation_is_compared_with_the_environments_of_workers(evaluated_in, state):
    closed = []

    class Norm(ObservationNorm):
        def close(self):
            closed.append(self)

    def maker():
        return TransformedEnv(
            cartpole(), Norm(loc=0.0, scale=0.5, in_keys=["observation"], standard_normal=True)
        )

    collector = in_processes(maker, actor := categorical_actor(cartpole(), logits()))
    given = {"collector": collector, "policy": actor, "eval_env": evaluated_in()}
    said, evidence = found("good_in_training_poor_in_evaluation", **given)
    collector.shutdown()
    assert said == state, evidence
    assert closed


@guards("doctor-collector-evaluates")
@pytest.mark.parametrize("several", [True, False])
@pytest.mark.parametrize(("kind", "state"), [("RANDOM", APPLIES), ("DETERMINISTIC", CLEAR)])
def test_a_collector_evaluates(kind, state, several):
    actor = categorical_actor(cartpole(), logits())
    options = {"exploration_type": ExplorationType[kind]}
    if several:
        evaluates = in_processes(plain, actor, **options)
    else:
        evaluates = collect_from(plain(), actor, 40, **options)
    training = collect_from(plain(), actor, 40)
    loss = A2CLoss(actor, ValueOperator(MLP(4, 1)))
    given = {"collector": training, "eval_env": evaluates, "loss_module": loss}
    assert found("evaluation_collector_explores", **given)[0] == state
    for one in (training, evaluates):
        one.shutdown()
