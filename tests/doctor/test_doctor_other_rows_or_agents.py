"""What belongs to another row, another action or another agent, as the data alone tell it."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv, ObservationNorm, TransformedEnv
from torchrl.modules import (
    AdditiveGaussianModule,
    IndependentNormal,
    MultiAgentMLP,
    ProbabilisticActor,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss, SACLoss
from torchrl.objectives.value import GAE
from torchrl_doctor import APPLIES, CLEAR, UNDECIDED, diagnose

from tests.support.defects.environments import Team
from tests.support.one_check import found

# --- actions and their log-probabilities --------------------------------------------------------


def gaussian_actor(kind=TanhNormal, wide=1.0, **options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), NormalParamExtractor())
    nn.init.normal_(net[0].weight, std=wide)
    return ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=kind,
        return_log_prob=True,
        **options,
    )


def drawn_rows(actor, number=64):
    torch.manual_seed(1)
    rows = TensorDict(observation=torch.randn(number, 3), batch_size=[number])
    with torch.no_grad():
        actor(rows)
    rows["next"] = TensorDict(
        observation=torch.randn(number, 3),
        reward=torch.randn(number, 1),
        done=torch.zeros(number, 1, dtype=torch.bool),
        batch_size=[number],
    )
    return rows


def off_policy(actor):
    critic = ValueOperator(Sum(), in_keys=["observation", "action"])
    return SACLoss(actor, critic, action_spec=None, target_entropy=-2.0)


def on_policy(actor):
    return ClipPPOLoss(actor, ValueOperator(nn.Linear(3, 1), in_keys=["observation"]))


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(5, 1)

    def forward(self, observation, action):
        return self.net(torch.cat([observation, action], -1))


def cut(rows):
    rows["action"] = rows["action"].clamp(-0.5, 0.5)


def cut_at_the_bounds(rows):
    rows["action"] = rows["action"].clamp(-1, 1)


def with_noise(rows):
    rows["action"] = rows["action"] + 0.1 * torch.randn_like(rows["action"])


def with_noise_in_some(rows):
    rows["action"][::4] += 0.1


def of_another_policy(rows):
    rows["action_log_prob"] = rows["action_log_prob"] + 0.2 * torch.randn(len(rows))


def of_a_later_policy(rows):
    """As a loss leaves a batch in its second epoch: some rows are far off, and none is exact."""
    rows["loc"] = rows["loc"] + 0.03


def begun_at_random(rows):
    for key in ("loc", "scale", "action_log_prob"):
        rows[key][:20] = 0
    rows["action"][:20] = 2 * torch.rand(20, 2) - 1


def as_it_is(rows):
    pass


CUT = "were cut at -0.5 and 0.5"


@pytest.mark.parametrize(
    ("change", "make_loss", "state", "words"),
    [
        (as_it_is, off_policy, CLEAR, "64 log-probabilities"),
        (as_it_is, on_policy, CLEAR, "64 log-probabilities"),
        (cut, off_policy, APPLIES, CUT),
        (cut, on_policy, APPLIES, CUT),
        (cut_at_the_bounds, off_policy, CLEAR, ""),
        (with_noise, off_policy, None, ""),  # what was taken is stored, and nothing else is read
        (with_noise, on_policy, UNDECIDED, "another policy?"),
        (with_noise_in_some, on_policy, APPLIES, "16 of 64 actions"),
        (of_another_policy, on_policy, UNDECIDED, "another policy?"),
        (of_another_policy, off_policy, None, ""),
        (of_a_later_policy, on_policy, UNDECIDED, "another policy?"),
        (of_a_later_policy, off_policy, None, ""),
        (begun_at_random, off_policy, CLEAR, "44 log-probabilities"),
        (begun_at_random, on_policy, CLEAR, "44 log-probabilities"),
    ],
)
def test_an_action_is_compared_with_its_log_probability(change, make_loss, state, words):
    actor = gaussian_actor()
    rows = drawn_rows(actor)
    change(rows)
    given = {"policy": actor, "loss_module": make_loss(actor), "batch": rows}
    said, evidence = found("log_prob_of_another_action", **given)
    assert said == state, evidence
    assert words in (evidence or "")


def test_actions_next_to_a_bound_are_their_own():
    actor = gaussian_actor(wide=8.0)
    rows = drawn_rows(actor, 400)
    assert (rows["action"].abs() > 1 - 1e-5).any()
    given = {"policy": actor, "loss_module": on_policy(actor), "batch": rows}
    assert found("log_prob_of_another_action", **given)[0] == CLEAR


def test_actions_of_a_gaussian_that_are_cut_at_the_bounds_of_the_environment():
    actor = gaussian_actor(IndependentNormal)
    rows = drawn_rows(actor)
    cut_at_the_bounds(rows)
    given = {"policy": actor, "loss_module": on_policy(actor), "batch": rows}
    said, evidence = found("log_prob_of_another_action", **given)
    assert (said, "cut at -1 and 1" in evidence) == (APPLIES, True)


def test_a_later_policy_plays_no_part():
    actor = gaussian_actor()
    rows = drawn_rows(actor)
    for parameter in actor.parameters():
        parameter.data.add_(1.0)
    given = {"policy": actor, "loss_module": on_policy(actor), "batch": rows}
    assert found("log_prob_of_another_action", **given)[0] == CLEAR


@pytest.mark.parametrize("where", ["before they are stored", "in a sample"])
def test_actions_of_a_buffer_are_cut(where):
    actor = gaussian_actor()
    rows, transform = drawn_rows(actor), None
    if where == "in a sample":
        transform = cut_in_a_sample
    else:
        cut(rows)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(64), batch_size=32, transform=transform
    )
    buffer.extend(rows)
    given = {"policy": actor, "loss_module": off_policy(actor), "replay_buffer": buffer}
    assert found("log_prob_of_another_action", **given)[0] == APPLIES


def cut_in_a_sample(rows):
    return rows.set("action", rows["action"].clamp(-0.5, 0.5))


def test_actions_that_a_module_of_the_policy_cuts():
    actor = gaussian_actor()
    clip = TensorDictModule(lambda action: action.clamp(-0.5, 0.5), ["action"], ["action"])
    policy = TensorDictSequential(actor, clip)
    given = {"policy": policy, "loss_module": off_policy(actor), "batch": drawn_rows(policy)}
    said, evidence = found("log_prob_of_another_action", **given)
    assert (said, CUT in evidence) == (APPLIES, True)


def test_noise_on_a_policy_that_samples_is_named_as_before():
    actor = gaussian_actor()
    noise = AdditiveGaussianModule(spec=Team(continuous=True).action_spec, sigma_init=0.1)
    given = {"policy": TensorDictSequential(actor, noise), "loss_module": on_policy(actor)}
    assert found("log_prob_of_another_action", **given)[0] == APPLIES


# --- advantages of agents -----------------------------------------------------------------------

GROUP_KEYS = {
    "action": ("agents", "action"),
    "advantage": ("agents", "advantage"),
    "value_target": ("agents", "value_target"),
    "value": ("agents", "state_value"),
    "reward": ("agents", "reward"),
    "sample_log_prob": ("agents", "action_log_prob"),
}


def team_loss(**options):
    net = MultiAgentMLP(2, 2, 3, centralized=False, share_params=True, depth=1, num_cells=8)
    head = nn.Sequential(net, NormalParamExtractor())
    keys = [("agents", "loc"), ("agents", "scale")]
    actor = ProbabilisticActor(
        TensorDictModule(head, [("agents", "observation")], keys),
        in_keys=keys,
        out_keys=[("agents", "action")],
        distribution_class=TanhNormal,
        return_log_prob=True,
    )
    values = MultiAgentMLP(2, 1, 3, centralized=False, share_params=True, depth=1, num_cells=8)
    critic = TensorDictModule(values, [("agents", "observation")], [("agents", "state_value")])
    loss = ClipPPOLoss(actor, critic, **options)
    loss.set_keys(**GROUP_KEYS)
    return loss


def team_rows(shape=(4, 10), agents=3, common=False, scales=(1.0, 1.0, 1.0)):
    """Rows as GAE leaves them, of which each agent has rewards of its own or all the same."""
    torch.manual_seed(0)
    wide = (*shape, agents, 1)
    rewards = torch.randn(wide) if not common else torch.randn(*shape, 1, 1).expand(wide).clone()
    group = TensorDict(
        observation=torch.randn(*shape, agents, 2),
        action=torch.rand(*shape, agents, 1),
        action_log_prob=torch.randn(*shape, agents),
        state_value=torch.randn(wide),
        batch_size=[*shape, agents],
    )
    group["value_target"] = group["state_value"] + rewards + 0.3
    group["value_target"] += (torch.tensor(scales) - 1).reshape(-1, 1) * rewards
    group["advantage"] = group["value_target"] - group["state_value"]
    after = TensorDict(reward=rewards, batch_size=[*shape, agents])
    rows = TensorDict(agents=group, batch_size=shape)
    return rows.set("next", TensorDict(agents=after, batch_size=shape))


def over_agents(rows):
    values = rows["agents", "advantage"]
    middle, spread = values.mean(-2, keepdim=True), values.std(-2, keepdim=True)
    rows["agents", "advantage"] = (values - middle) / spread


def mean_of_agents(rows):
    values = rows["agents", "advantage"]
    rows["agents", "advantage"] = values.mean(-2, keepdim=True).expand_as(values).clone()


def over_all(rows):
    values = rows["agents", "advantage"]
    rows["agents", "advantage"] = (values - values.mean()) / values.std()


def one_target_for_all(rows):
    rows["agents"].batch_size = rows.batch_size
    target = rows["agents", "value_target"].mean(-2, keepdim=True)
    rows["agents", "value_target"] = target


def zero_sum(rows):
    for key in (("agents", "value_target"), ("agents", "state_value"), ("agents", "advantage")):
        rows[key] = rows[key] - rows[key].mean(-2, keepdim=True)


@pytest.mark.parametrize(
    ("change", "common", "state", "words"),
    [
        (as_it_is, False, CLEAR, "3 agents"),
        (over_all, False, CLEAR, "3 agents"),
        (over_agents, False, APPLIES, "in each of 40 rows the advantages of 3 agents sum to zero"),
        (mean_of_agents, False, APPLIES, "3 agents have one advantage"),
        (one_target_for_all, False, APPLIES, "value_target (4, 10, 1, 1)"),
        (as_it_is, True, None, ""),  # they are alike in any case
        (mean_of_agents, True, None, ""),
        (zero_sum, False, CLEAR, "3 agents"),  # what one wins the others lose
    ],
)
def test_advantages_of_agents_are_their_own(change, common, state, words):
    rows = team_rows(common=common)
    change(rows)
    said, evidence = found("advantages_mix_agents", loss_module=team_loss(), batch=rows)
    assert said == state, evidence
    assert words in (evidence or "")


@pytest.mark.parametrize(
    ("dims", "scales", "state"),
    [
        ((-2,), (1.0, 1.0, 1.0), CLEAR),
        ((), (1.0, 1.0, 1.0), CLEAR),
        ((), (1.0, 1.0, 100.0), UNDECIDED),
        ((-2,), (1.0, 1.0, 100.0), CLEAR),
        ((0,), (1.0, 1.0, 1.0), APPLIES),
        ((0, 1), (1.0, 1.0, 1.0), CLEAR),
    ],
)
def test_over_what_a_loss_normalizes(dims, scales, state):
    rows = team_rows(scales=scales)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(40), batch_size=20)
    buffer.extend(rows.reshape(-1))
    loss = team_loss(normalize_advantage=True, normalize_advantage_exclude_dims=dims)
    given = {"loss_module": loss, "batch": rows, "replay_buffer": buffer}
    said, evidence = found("advantages_mix_agents", **given)
    assert said == state, evidence
    if dims == (0,):
        del given["replay_buffer"]
        assert found("advantages_mix_agents", **given)[0] == UNDECIDED


def test_one_agent_has_nobody_to_be_mixed_with():
    rows = team_rows(agents=1, scales=(1.0,))
    assert found("advantages_mix_agents", loss_module=team_loss(), batch=rows)[0] is None
    alone = drawn_rows(actor := gaussian_actor())
    alone["advantage"], loss = torch.randn(64, 1), on_policy(actor)
    assert found("advantages_mix_agents", loss_module=loss, batch=alone)[0] is None


def test_log_probabilities_that_are_added_up_over_agents():
    loss = team_loss()
    rows = team_rows()
    with torch.no_grad():
        loss.actor_network(rows)
    given = {"policy": loss.actor_network, "loss_module": loss, "batch": rows}
    assert found("log_prob_of_another_action", **given)[0] == CLEAR
    summed = rows["agents", "action_log_prob"].sum(-1, keepdim=True)
    rows["agents", "action_log_prob"] = summed.expand(4, 10, 3).clone()
    said, evidence = found("log_prob_of_another_action", **given)
    assert (said, "sum over 3 agents" in evidence) == (APPLIES, True)


# --- observations that come late ----------------------------------------------------------------


def walked_rows(shape=(60,), ends=(19, 39)):
    torch.manual_seed(0)
    places = torch.randn(shape[-1] + 1, *shape[:-1], 3).cumsum(0)
    rows = TensorDict(observation=places[:-1].transpose(0, len(shape) - 1), batch_size=shape)
    done = torch.zeros(*shape, 1, dtype=torch.bool)
    for end in ends:
        done[..., end, :] = True
    rows["action"] = torch.randn(*shape, 1)
    rows["next"] = TensorDict(
        observation=places[1:].transpose(0, len(shape) - 1),
        reward=torch.randn(*shape, 1),
        done=done,
        terminated=done.clone(),
        batch_size=shape,
    )
    return rows.clone()


def late(rows):
    rows["observation"] = rows["next", "observation"].clone()


def late_but_for_ends(rows):
    first = rows["observation"].clone()
    late(rows)
    done = rows["next", "done"].squeeze(-1)
    rows["observation"][done] = first[done] + 10


def late_in_some(rows):
    rows["observation"][..., ::2, :] = rows["next", "observation"][..., ::2, :]


def one_step_each(rows):
    late(rows)
    for key in ("done", "terminated"):
        rows["next", key][:] = True


def standing_still(rows):
    for part in (rows, rows["next"]):
        part["observation"] = torch.ones_like(part["observation"])


@pytest.mark.parametrize("kind", ["batch", "replay_buffer"])
@pytest.mark.parametrize(
    ("change", "state"),
    [
        (as_it_is, None),
        (late, APPLIES),
        (late_but_for_ends, APPLIES),
        (late_in_some, None),
        (one_step_each, None),  # a bandit, whose next observation nobody reads
        (standing_still, None),
    ],
)
def test_observations_are_those_before_the_step(change, state, kind):
    rows = walked_rows()
    change(rows)
    given = {"batch": rows}
    if kind == "replay_buffer":
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(60), batch_size=8)
        buffer.extend(rows)
        given = {"replay_buffer": buffer}
    said, evidence = found("data_set_is_shifted", **given)
    assert (said == APPLIES) == (state == APPLIES), evidence
    if said == APPLIES:
        assert "the next observation is the observation itself" in evidence


def test_observations_of_agents_come_late():
    rows = team_rows((4, 20))
    seen = rows["agents", "observation"]
    rows["next", "agents", "observation"] = seen.clone()
    rows["next", "done"] = torch.zeros(4, 20, 1, dtype=torch.bool)
    loss = team_loss()
    given = {"batch": rows, "policy": loss.actor_network}
    assert found("data_set_is_shifted", **given)[0] == APPLIES
    rows["next", "agents", "observation"] = seen + 0.1
    assert found("data_set_is_shifted", **given)[0] is None


def test_a_key_that_stays_as_it_is_is_not_late():
    """The goal of an episode, beside what the policy sees."""
    rows = walked_rows()
    rows["goal"] = torch.arange(60.0).div(20, rounding_mode="floor").unsqueeze(-1)
    rows["next", "goal"] = rows["goal"].clone()
    policy = TensorDictModule(lambda *seen: seen[0], ["goal", "observation"], ["out"])
    assert found("data_set_is_shifted", batch=rows, policy=policy)[0] is None


@pytest.mark.parametrize("width", [3, 4])
def test_a_storage_of_several_environments_is_read_row_by_row(width):
    torch.manual_seed(0)
    rows = TensorDict(observation=torch.randn(300, 10, width), batch_size=[300, 10])
    rows["action"] = torch.randn(300, 10, 1)
    rows["next"] = TensorDict(
        observation=torch.randn(300, 10, width),
        reward=torch.randn(300, 10, 1),
        done=torch.zeros(300, 10, 1, dtype=torch.bool),
        batch_size=[300, 10],
    )
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(3000, ndim=2), batch_size=8)
    buffer.extend(rows)
    report = diagnose(replay_buffer=buffer, only="data_set_is_shifted", seconds=60)
    assert [one.state for one in report if one.state == "check failed"] == []


def test_the_estimator_of_a_team_is_told_nothing():
    """GAE leaves advantages of which the doctor says that they are the agents' own."""
    rows = team_rows()
    for key in ("done", "terminated"):
        flags = torch.zeros(4, 10, 3, 1, dtype=torch.bool)
        rows["next", "agents", key] = flags
    rows["next", "agents", "observation"] = torch.randn(4, 10, 3, 2)
    loss = team_loss()
    estimator = GAE(gamma=0.9, lmbda=0.9, value_network=loss.critic_network, average_gae=True)
    keys = {name: GROUP_KEYS[name] for name in ("advantage", "value_target", "value", "reward")}
    estimator.set_keys(**keys, done=("agents", "done"), terminated=("agents", "terminated"))
    rows = rows.exclude(*(GROUP_KEYS[name] for name in ("advantage", "value_target", "value")))
    with torch.no_grad():
        estimator(rows)
    given = {"loss_module": loss, "value_estimator": estimator, "batch": rows}
    assert found("advantages_mix_agents", **given)[0] == CLEAR


# --- what the data of a buffer are beside the environment ---------------------------------------


def pendulum_data(change=None, norm=False):
    torch.manual_seed(0)
    data = GymEnv("Pendulum-v1").rollout(80, break_when_any_done=False)
    if change is not None:
        data["action"] = change(data["action"])
    transform = None
    if norm:
        keys = ["observation", ("next", "observation")]
        transform = ObservationNorm(loc=0.5, scale=2.0, in_keys=keys, standard_normal=True)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(80), batch_size=16, transform=transform
    )
    buffer.extend(data)
    return buffer


def pendulum_actor():
    return gaussian_actor(
        distribution_kwargs={"low": torch.tensor([-2.0] * 1), "high": torch.tensor([2.0] * 1)}
    )


@pytest.mark.parametrize(
    ("change", "state"),
    [
        (None, CLEAR),
        (lambda action: action.clamp(-0.5, 0.5), UNDECIDED),
        (lambda action: action.clamp(-2, 2), CLEAR),
        (lambda action: action.clamp(-2, 1.0), UNDECIDED),
        (torch.sign, CLEAR),  # of two actions both come often
        (torch.round, CLEAR),
    ],
)
def test_actions_of_a_data_set_that_were_cut(change, state):
    given = {"policy": pendulum_actor(), "replay_buffer": pendulum_data(change)}
    said, evidence = found("actions_and_bounds_differ", env=GymEnv("Pendulum-v1"), **given)
    assert said == state, evidence


class Own(ObservationNorm):
    """A normalization of the reader's."""


@pytest.mark.parametrize(
    ("in_buffer", "in_env", "state"),
    [
        (True, None, APPLIES),
        (True, ObservationNorm, None),
        (True, Own, None),
        (False, None, None),
    ],
)
def test_a_buffer_normalizes_what_the_evaluation_does_not(in_buffer, in_env, state):
    evaluation = GymEnv("Pendulum-v1")
    if in_env is not None:
        options = {"loc": 0.5, "scale": 2.0, "in_keys": ["observation"], "standard_normal": True}
        evaluation = TransformedEnv(evaluation, in_env(**options))
    given = {"policy": pendulum_actor(), "replay_buffer": pendulum_data(norm=in_buffer)}
    slug = "evaluation_gives_other_numbers"
    assert found(slug, eval_env=evaluation, **given)[0] == state
    if state is None:
        given["env"] = evaluation
        assert found(slug, eval_env=evaluation, **given)[0] is None
