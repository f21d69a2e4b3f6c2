"""What users do wrong in buffers, evaluation, values and settings, planted in healthy pipelines."""

import copy
import functools

import gymnasium
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor
from torch import nn
from torchrl.data import (
    LazyTensorStorage,
    MultiStep,
    PrioritizedSampler,
    TensorDictReplayBuffer,
)
from torchrl.envs import (
    Compose,
    ExplorationType,
    GymWrapper,
    ParallelEnv,
    RenameTransform,
    RewardSum,
    StepCounter,
    TransformedEnv,
    set_exploration_type,
)
from torchrl.modules import ValueOperator
from torchrl.objectives import IQLLoss, TD3BCLoss, ValueEstimators
from torchrl_doctor import APPLIES, diagnose, watch

from tests.support.defects.building_blocks import Scaled, Shifted
from tests.support.defects.environments import Corridor, Team
from tests.support.defects.pipelines import (
    PIPELINES as USUAL,
)
from tests.support.defects.pipelines import ActorCritic, OnPolicy, QLearning, multi_async
from tests.support.defects.planting import accepted, watched

RENAMED = {
    "rename": functools.partial(RenameTransform, ["observation"], ["state"]),
    "steps": StepCounter,
    "return": RewardSum,
}
CORRIDOR = {"task": "continuous_corridor"}
STATE = CORRIDOR | {"inputs": ("state",), "transforms": RENAMED}
PIPELINES = USUAL | {
    "dqn_async": lambda: multi_async(QLearning(rounds=3)),
    "iql_state": lambda: ActorCritic(loss_type=IQLLoss, offline=True, **STATE),
    "sac_state": lambda: ActorCritic(**STATE),
    "td3_bc_corridor": lambda: ActorCritic(loss_type=TD3BCLoss, offline=True, **CORRIDOR),
}
PLANTED = {}


def plant(slug, *pipelines):
    def added(alter):
        for pipeline in pipelines:
            PLANTED[f"{alter.__name__} in {pipeline}"] = (slug, pipeline, alter)
        return alter

    return added


# --- replay buffers -------------------------------------------------------------------------------


@plant("n_step_next_observation_wrong", "dqn_n_step")
def steps_are_summed_twice(script):
    script.collector_options["postproc"] = MultiStep(script.gamma, 3)


@plant("n_step_next_observation_wrong", "dqn_n_step_serial")
def steps_are_summed_over_environments(script):
    script.storage_options = {}
    script.does |= {"flatten"}


@plant("samples_differ_from_what_the_policy_saw", "dqn")
def observations_lose_their_decimals(script):
    def stored(batch):
        rows = batch.reshape(-1).clone()
        rows["observation"] = rows["observation"].byte().float()
        return rows

    script.stored = stored


def change_data(script, change):
    """Let *change* have the rows of the data set, each time that the script makes them."""
    data = script.data

    def changed():
        rows = data()
        change(rows)
        return rows

    script.data = changed


@plant("actions_and_bounds_differ", "td3_bc")
def data_set_has_other_actions(script):
    change_data(script, lambda rows: rows["action"].mul_(4))


@plant("end_without_a_reason", "iql_discrete")
def data_set_has_lost_why_it_ends(script):
    def reasonless(rows):
        for name in ("terminated", "truncated"):
            rows["next", name].zero_()

    change_data(script, reasonless)


@plant("data_set_is_shifted", "td3_bc_corridor")
def data_set_has_rewards_one_row_early(script):
    change_data(script, lambda rows: rows.set(("next", "reward"), rows["next", "reward"].roll(-1)))


@plant("data_set_is_shifted", "cql_discrete")
def data_set_has_actions_one_row_late(script):
    change_data(script, lambda rows: rows.set("action", rows["action"].roll(1, 0)))


@plant("data_set_is_shifted", "iql_state")
def data_set_repeats_observations_under_another_key(script):
    change_data(script, lambda rows: rows["next"].set("state", rows["state"].clone()))


@plant("data_set_has_no_ends", "iql_state")
def data_set_has_no_ends_under_another_key(script):
    def endless(rows):
        for name in ("done", "terminated", "truncated"):
            rows["next", name].zero_()

    change_data(script, endless)


@plant("values_too_low_at_time_limits", "td3_bc_corridor")
def data_set_has_done_for_terminated(script):
    change_data(script, lambda rows: rows["next"].set("terminated", rows["next", "done"].clone()))


@plant("rows_are_stored_twice", "sac_state")
def rows_come_twice_under_another_key(script):
    fill = script.fill

    def twice(batch):
        fill(batch)
        fill(batch)

    script.fill = twice


@plant("reward_is_a_running_sum", "dqn")
def rows_are_stored_with_the_sum_as_reward(script):
    def stored(batch):
        rows = batch.reshape(-1).clone()
        rows["next", "reward"] = rows["next", "episode_reward"]
        return rows

    script.stored = stored


# --- several agents -------------------------------------------------------------------------------


@plant("values_too_low_at_time_limits", "ippo")
def team_has_done_for_terminated(script):
    def estimate(batch):
        rewards = batch["next", "agents", "reward"]
        for name in ("done", "terminated"):
            flag = batch["next", "done"].unsqueeze(-1).expand(rewards.shape)
            batch["next", "agents", name] = flag
        OnPolicy.estimate(script, batch)

    script.estimate = estimate


@plant("advantages_leak_between_environments", "mappo_continuous")
def team_is_flattened_before_gae(script):
    script.frames = script.capacity = 70  # no episode ends where an environment does
    estimate = script.estimate

    def flat(batch):
        rows = batch.reshape(-1)
        estimate(rows)
        batch.update(rows.reshape(batch.shape))

    script.estimate = flat


@plant("probabilities_as_logits", "ippo")
def team_has_a_softmax_before_its_logits(script):
    net = script.net
    script.net = lambda outputs, centralized: nn.Sequential(
        net(outputs, centralized), *[nn.Softmax(-1)] * (outputs == 3)
    )


class Paid(Team):
    by = 0.0

    def _step(self, tensordict):
        out = super()._step(tensordict)
        out["agents", "reward"] = self.by * out["agents", "reward"]
        return out


class PaidInMillions(Paid):
    by = 1e7


@plant("all_rewards_are_zero", "mappo")
def team_is_paid_nothing(script):
    script.env_maker = lambda: Paid


@plant("numbers_are_far_from_one", "mappo")
def team_is_paid_in_millions(script):
    script.env_maker = lambda: PaidInMillions


@plant("noise_is_gone_or_all", "mappo_continuous")
def team_has_a_huge_deviation(script):
    module = script.module

    def wide(net, in_keys, out_keys):
        if len(out_keys) == 2:
            wider = nn.Sequential(Shifted(8.0), NormalParamExtractor(scale_mapping="exp"))
            net = nn.Sequential(net[0], wider)
        return module(net, in_keys, out_keys)

    script.module = wide


# --- collectors and environments ------------------------------------------------------------------


@plant("epsilon_starts_at_zero", "dqn")
def collector_is_told_not_to_explore(script):
    script.collector_options["exploration_type"] = ExplorationType.DETERMINISTIC


@plant("every_environment_starts_alike", "ppo_parallel")
def processes_have_one_seed(script):
    script.then("env", lambda script: script.env.set_seed(0, static_seed=True))


class Ends(gymnasium.Wrapper):
    def step(self, action):
        *step, terminated, truncated, info = self.env.step(action)
        return *step, terminated or truncated, False, info


def acrobot_that_ends():
    return GymWrapper(Ends(gymnasium.make("Acrobot-v1", max_episode_steps=20)))


@plant("worse_with_a_shorter_time_limit", "dqn_dueling")
def wrapper_has_one_flag_for_both_ends(script):
    script.env_maker = lambda: acrobot_that_ends


# --- evaluation -----------------------------------------------------------------------------------


@plant("one_environment_for_both", "ppo_evaluated")
def evaluation_wraps_the_environment_of_training(script):
    transforms = (StepCounter, RewardSum)
    script.make_eval_env = lambda: TransformedEnv(
        script.env.base_env, Compose(*(make() for make in transforms))
    )


@plant("evaluation_is_another_task", "sac_corridor")
def evaluation_has_one_more_transform(script):
    make = script.make_eval_env

    def scaled():
        env = make()
        env.append_transform(Scaled("observation", 0.1))
        return env

    script.make_eval_env = scaled


@plant("evaluation_is_another_task", "ppo_evaluated")
def evaluation_has_a_limit_of_gymnasium(script):
    def make():
        env = gymnasium.make("CartPole-v1", max_episode_steps=8)
        return TransformedEnv(GymWrapper(env), Compose(StepCounter(), RewardSum()))

    script.make_eval_env = make


@plant("actions_stay_noisy", "ppo_evaluated")
def evaluation_has_dropout(script):
    script.dropout = 0.5
    script.also = ("batch", "policy")

    def evaluate(script):
        script.policy.train()
        with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
            script.batch = script.eval_env.rollout(60, script.policy)

    script.then("train", evaluate)


# --- value estimation -----------------------------------------------------------------------------


@plant("values_too_low_at_time_limits", "ppo")
def truncated_is_read_as_terminated(script):
    script.then("advantage", lambda s: s.advantage.set_keys(terminated="truncated"))


@plant("advantages_look_like_noise", "dqn", "sac")
def loss_sums_over_random_rows(script):
    options = {"gamma": script.gamma, "lmbda": 0.95}
    kind = ValueEstimators.TDLambda
    script.then("loss", lambda s: s.loss.make_value_estimator(kind, **options))


@plant("advantages_look_like_noise", "ppo", "a2c_acrobot")
def advantages_are_of_shuffled_rows(script):
    estimate = script.estimate

    def shuffled(batch):
        order = torch.randperm(batch.numel())
        rows = batch.reshape(-1)[order].clone()
        estimate(rows)
        batch.update(rows[order.argsort()].reshape(batch.shape))

    script.estimate = shuffled


@plant("advantages_are_constant", "a2c")
def advantages_have_the_wrong_sign(script):
    estimate = script.estimate

    def opposite(batch):
        estimate(batch)
        batch["advantage"] = -batch["advantage"]

    script.estimate = opposite


@plant("values_cannot_reach_returns", "ppo_continuous")
def values_are_never_negative(script):
    made = script.make_critic

    def positive():
        return ValueOperator(nn.Sequential(made().module, nn.ReLU()), in_keys=["observation"])

    script.make_critic = positive


@plant("values_cannot_reach_returns", "dqn_distributional")
def support_goes_down(script):
    script.support = (100.0, 0.0)


# --- settings -------------------------------------------------------------------------------------

OUT_OF_RANGE = {
    ("a2c", "loss_options"): {"critic_coeff": -0.5},
    ("ppo", "loss_options"): {"clip_epsilon": 0.0},
    ("ppo_kl", "loss_options"): {"beta": -1.0},
    ("iql", "loss_options"): {"expectile": 1.0},
    ("iql_discrete", "loss_options"): {"temperature": -3.0},
    ("cql_online", "loss_options"): {"min_q_weight": -1.0},
    ("td3_bc", "loss_options"): {"alpha": 0.0},
    ("td3", "loss_options"): {"policy_noise": 50.0, "noise_clip": 100.0},
    ("sac", "loss_options"): {"target_entropy": 10.0},
    ("vtrace", "advantage_options"): {"rho_thresh": torch.tensor(0.0)},
}


def findings(pipeline, alter, slug):
    """What one look says of a pipeline."""
    script = PIPELINES[pipeline]()
    alter(script)
    given = script.build()
    try:
        assert "error" not in given
        return [one.state for one in diagnose(**accepted(diagnose, given), only=slug, seconds=60)]
    finally:
        script.shutdown()


@pytest.mark.parametrize("name", PLANTED)
def test_one_look_names_it(name):
    slug, pipeline, alter = PLANTED[name]
    assert findings(pipeline, alter, slug) == [APPLIES]
    assert APPLIES not in findings(pipeline, lambda script: None, slug)


@pytest.mark.parametrize(("pipeline", "options"), OUT_OF_RANGE)
def test_a_setting_that_works_against_the_training_is_named(pipeline, options):
    def alter(script):
        script.rounds = 1
        getattr(script, options).update(OUT_OF_RANGE[pipeline, options])

    assert findings(pipeline, alter, "a_setting_is_out_of_range") == [APPLIES]


def emptied(script):
    fill = script.fill

    def anew(batch):
        script.buffer.empty()
        fill(batch)

    script.fill = anew


def last_step(script):
    script.stored = lambda batch: batch.reshape(-1)[-1:]
    script.buffer_options["batch_size"] = 4


def all_rows(script):
    """As it should be."""


@pytest.mark.parametrize(
    ("pipeline", "alter", "named"),
    [("dqn", emptied, True), ("sac", last_step, True), ("dqn", all_rows, False)],
)
def test_rows_that_are_lost_while_a_loop_runs(pipeline, alter, named):
    script = PIPELINES[pipeline]()
    alter(script)
    script.build()
    report, error = watched(script)
    script.shutdown()
    assert error is None
    assert ("collected_rows_are_lost" in [one.slug for one in report.applies]) == named


def test_a_data_set_does_not_grow_while_a_policy_is_evaluated():
    script = PIPELINES["dqn"]()
    script.build()
    # It may be relabeled meanwhile.
    script.fill = lambda batch: script.buffer[:]["next", "reward"].mul_(0.5)
    report, _ = watched(script)
    script.shutdown()
    assert "collected_rows_are_lost" not in [one.slug for one in report.applies]


def test_samples_of_more_rows_than_there_are():
    script = PIPELINES["dqn"]()
    script.buffer_options["batch_size"] = 400
    given = script.build()
    script.rounds = 3
    with watch(**accepted(watch, given), share=1.0, seconds=60) as watching:
        script.train()
    script.shutdown()
    said = {one.slug: one.evidence for one in watching.report.applies}
    assert "buffer_below_a_sample" in said


def test_a_short_rollout_of_an_evaluation_is_no_batch_of_training():
    script = PIPELINES["ppo_evaluated"]()
    given = script.build()
    given["batch"] = script.eval_env.rollout(10)
    given = accepted(diagnose, given)
    assert len(diagnose(**given, only="old_batches_stay", seconds=60)) == 0
    script.shutdown()


def test_workers_whose_policy_nothing_reaches():
    script = PIPELINES["dqn_workers"]()
    collector = script.collector_type

    def with_a_factory(env, policy, **options):
        factories = [functools.partial(copy.deepcopy, copy.deepcopy(policy))] * 2
        return collector(env, None, policy_factory=factories, **options)

    script.collector_type = with_a_factory
    script.does -= {"send weights"}
    given = accepted(diagnose, script.build())
    found = diagnose(**given, only="workers_never_learn", seconds=60)
    script.shutdown()
    assert [one.state for one in found] == [APPLIES]


@pytest.mark.parametrize("change", ["minibatch", "flat", "one"])
def test_advantages_are_those_of_rows_in_their_order(change):
    script = PIPELINES["ppo_serial"]()
    given = accepted(diagnose, script.build())
    rows = given["batch"].clone()
    changed = {"minibatch": rows.reshape(-1)[torch.randperm(90)[:40]], "flat": rows.reshape(-1)}
    given["batch"] = changed.get(change, rows)
    found = diagnose(**given, only="advantages_look_like_noise", seconds=60).applies
    script.shutdown()
    assert found == []


def test_a_sampler_that_is_smaller_than_its_storage():
    storage, sampler = LazyTensorStorage(500), PrioritizedSampler(50, alpha=0.6, beta=0.4)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=4)
    buffer.extend(TensorDict(observation=torch.rand(40, 2), batch_size=40))  # more would crash
    found = diagnose(replay_buffer=buffer, only="collected_rows_are_lost", seconds=60)
    assert [one.state for one in found] == [APPLIES]


def test_workers_are_not_asked_for_what_they_lack():
    """They would end."""
    make = functools.partial(Corridor, continuous=True)
    env = ParallelEnv(2, make, mp_start_method="fork")
    env.set_seed(0, static_seed=True)
    given = {"env": env, "batch": env.rollout(20, break_when_any_done=False)}
    diagnose(**given, only="every_environment_starts_alike", seconds=60)
    assert env.rollout(3).shape == (2, 3)
    env.close()


def test_workers_that_nobody_can_ask_act_with_a_copy():
    script = PIPELINES["dqn_async"]()
    script.then("policy", lambda script: setattr(script, "policy", copy.deepcopy(script.policy)))
    script.build()
    report, error = watched(script)
    script.shutdown()
    assert error is None
    assert "collector_keeps_its_own_policy" in [one.slug for one in report.applies]
