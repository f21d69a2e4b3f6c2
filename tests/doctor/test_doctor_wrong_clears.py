"""Ways in which a symptom hides from a look at one place: no check says ``clear`` to them."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torch.distributions import Normal
from torchrl.data import (
    Bounded,
    Categorical,
    Composite,
    LazyTensorStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
    Unbounded,
)
from torchrl.envs import (
    ActionScaling,
    CatFrames,
    Compose,
    DoubleToFloat,
    EnvBase,
    ExplorationType,
    GymEnv,
    MultiStepTransform,
    ObservationNorm,
    RewardSum,
    SerialEnv,
    StepCounter,
    TargetReturn,
    Transform,
    TransformedEnv,
    set_exploration_type,
)
from torchrl.modules import MLP, AdditiveGaussianModule, LSTMModule, TanhModule, ValueOperator
from torchrl.objectives import (
    A2CLoss,
    ClipPPOLoss,
    DiscreteSACLoss,
    SACLoss,
    TD3Loss,
    ValueEstimators,
)
from torchrl.objectives.value import GAE
from torchrl_doctor import APPLIES, CLEAR, UNDECIDED, diagnose
from torchrl_doctor.checks.trajectories import advantages_wrong_with_several_workers

from tests.support.defects.pipelines import Joined
from tests.support.healthy_pipelines import cartpole, categorical_actor, gaussian_actor, logits


def said(slug, **given):
    """The state of one check; None where it says nothing."""
    return next((one.state for one in diagnose(**given, only=slug, seconds=60)), None)


class Sensor(EnvBase):
    """Observation and reward of one type, whatever the specs say."""

    def __init__(self, spec=torch.float32, data=torch.float32, reward=torch.float32, action=None):
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((1,), dtype=spec))
        self.action_spec = Categorical(2) if action is None else Bounded(-2, 2, (1,), dtype=action)
        self.reward_spec = Unbounded((1,), dtype=reward)
        self.data = data

    def seen(self):
        done = torch.zeros(1, dtype=torch.bool)
        value = (1000 * torch.rand(1, dtype=torch.float64) + 0.3).to(self.data)
        return {"observation": value, "done": done}

    def _reset(self, tensordict=None, **options):
        return TensorDict(self.seen())

    def _step(self, tensordict):
        return TensorDict({**self.seen(), "reward": torch.rand(1) + 0.1})

    def _set_seed(self, seed):
        torch.manual_seed(seed)


@pytest.mark.parametrize(
    ("options", "state"),
    [
        ([{}], CLEAR),
        ([{"spec": torch.int64}], APPLIES),
        ([{"spec": torch.int64, "data": torch.float64}], APPLIES),
        ([{"reward": torch.int64}], APPLIES),
        ([{"spec": torch.float32, "data": torch.float64}], UNDECIDED),
        ([{"spec": torch.float32, "data": torch.int64}], CLEAR),  # as small as these
        ([{"action": torch.int64}], UNDECIDED),
    ],
)
def test_decimals_are_looked_for_in_the_data(options, state):
    makers = [lambda one=one: Sensor(**one) for one in options]
    assert said("decimals_are_lost", env=SerialEnv(len(makers), makers)) == state


def test_actions_lose_decimals_too():
    env = SerialEnv(2, lambda: Sensor(action=torch.int64))
    rows = TensorDict(action=torch.rand(8, 2, 1), next={"done": torch.zeros(8, 2, 1).bool()})
    rows.batch_size = [8, 2]
    assert said("decimals_are_lost", env=env, batch=rows) == APPLIES
    whole = rows.clone().set("action", torch.ones(8, 2, 1, dtype=torch.int64))
    assert said("decimals_are_lost", env=env, batch=whole) == CLEAR


def waiting(rows, **options):
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(len(rows)), batch_size=8, prefetch=3, **options
    )
    buffer.extend(rows)
    buffer.sample()
    buffer.synchronize()
    return buffer


def rollout(env=None):
    torch.manual_seed(0)
    return (env or cartpole()).rollout(40, break_when_any_done=False)


def test_all_samples_that_wait_are_compared():
    slug, rows = "first_samples_after_refill_are_old", rollout()
    buffer = waiting(rows)
    assert said(slug, replay_buffer=buffer) == CLEAR
    first = buffer._prefetch_queue[0]
    buffer.extend(rows.clone().set("observation", rows["observation"] + 1))
    _, info = first.result()
    info = {"index": torch.as_tensor(info["index"])}
    first._result = (buffer[info["index"]], info)  # the next sample is new, the others are old
    assert said(slug, replay_buffer=buffer) == APPLIES
    buffer.shutdown()


def test_samples_that_wait_for_an_on_policy_loss_will_be_old():
    slug, rows = "first_samples_after_refill_are_old", rollout()
    loss = A2CLoss.__new__(A2CLoss)
    torch.nn.Module.__init__(loss)
    buffer = waiting(rows)
    assert said(slug, replay_buffer=buffer, loss_module=loss) == APPLIES
    buffer.extend(rows)
    assert said(slug, replay_buffer=buffer) in (APPLIES, UNDECIDED)  # refilled
    buffer.shutdown()


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.set("observation", (rows["observation"] - 0.5) / 0.1),
        lambda rows: rows.set("observation", rows["observation"].round()),
        lambda rows: rows.set("observation", rows["observation"].mul(9).to(torch.int32)),
        lambda rows: rows.set("observation", rows["observation"].flip(-1)),
    ],
)
def test_samples_are_compared_with_what_the_policy_saw(change):
    slug, rows = "samples_differ_from_what_the_policy_saw", rollout()
    rows["step_count"] = torch.arange(40)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(40), batch_size=16)
    buffer.extend(rows)
    given = {"env": cartpole(), "batch": rows}
    assert said(slug, replay_buffer=buffer, **given) == CLEAR
    other = TensorDictReplayBuffer(storage=LazyTensorStorage(40), batch_size=16)
    other.extend(change(rows.clone()))
    assert said(slug, replay_buffer=other, **given) == APPLIES
    unknown = TensorDictReplayBuffer(storage=LazyTensorStorage(40), batch_size=16)
    unknown.extend(torch.zeros_like(rows))
    assert said(slug, replay_buffer=unknown, **given) == UNDECIDED


def test_a_transform_of_the_buffer_is_not_taken_on_trust():
    slug, rows = "samples_differ_from_what_the_policy_saw", rollout()
    rows["step_count"] = torch.arange(40)
    norm = ObservationNorm(0.5, 3.0, in_keys=["observation"])
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(40), batch_size=16, transform=norm)
    buffer.extend(rows)
    env = TransformedEnv(cartpole(), DoubleToFloat())
    assert said(slug, replay_buffer=buffer, env=env, batch=rows) == APPLIES
    assert said(slug, replay_buffer=buffer, env=env) == UNDECIDED


def test_a_running_sum_that_begins_anew():
    env = TransformedEnv(cartpole(), RewardSum())
    rows, slug = rollout(env), "episode_return_looks_too_low"
    assert said(slug, env=env, batch=rows) is None
    rows["next", "reward"][20] = rows["episode_reward"][21:] = float("nan")
    rows["next", "episode_reward"][20:] = float("nan")
    assert said(slug, env=env, batch=rows) is None
    rows["episode_reward"][3:20:5] = 0
    assert said(slug, env=env, batch=rows) == APPLIES


def pendulums():
    return SerialEnv(2, lambda: TransformedEnv(GymEnv("Pendulum-v1"), Compose()))


def test_evaluation_in_a_batched_environment_that_has_not_started():
    env, eval_env = (TransformedEnv(pendulums(), StepCounter(200)) for _ in range(2))
    env.reset()
    given = {"env": env, "eval_env": eval_env, "only": "evaluation_is_another_task"}
    assert not diagnose(**given, seconds=60).findings
    assert eval_env.is_closed


def test_actions_of_a_batched_environment_are_compared_row_by_row():
    env, slug = pendulums(), "actions_and_bounds_differ"
    policy = TensorDictModule(torch.nn.Linear(3, 1), ["observation"], ["action"])
    rows = env.rollout(50)
    assert said(slug, env=env, policy=policy, batch=rows) is None
    rows["action"][1, 7] = 3
    assert said(slug, env=env, policy=policy, batch=rows) == APPLIES


def test_a_data_set_is_compared_with_the_evaluation_environment():
    eval_env, slug = GymEnv("Pendulum-v1"), "actions_and_bounds_differ"
    policy = TensorDictModule(torch.nn.Linear(3, 1), ["observation"], ["action"])
    rows = eval_env.rollout(50)
    rows["action"] *= 50
    assert said(slug, eval_env=eval_env, policy=policy, replay_buffer=held(rows)) == APPLIES


def pendulum(*transforms):
    return TransformedEnv(GymEnv("Pendulum-v1"), Compose(StepCounter(25), *transforms))


def normalized(loc=0.0, scale=1.0):
    options = {"in_keys": ["observation"], "standard_normal": True}
    return ObservationNorm(loc=torch.tensor(loc), scale=torch.tensor(scale), **options)


@pytest.mark.parametrize(
    ("scale", "eval_env", "state"),
    [
        (0.5, pendulum, APPLIES),
        (0.5, lambda: pendulum(normalized(scale=[1.0, 0.25, 2.0])), APPLIES),
        (0.5, lambda: pendulum(normalized(scale=[0.5] * 3)), None),
        (1.0, pendulum, None),
        (0.5, lambda: Sensor(), None),  # which has another observation
    ],
)
def test_a_data_set_has_observations_that_the_evaluation_cannot_give(scale, eval_env, state):
    rows = pendulum().rollout(60, break_when_any_done=False)
    for one in (rows, rows["next"]):
        one["observation"] /= scale
    policy = TensorDictModule(torch.nn.Linear(3, 1), ["observation"], ["action"])
    given = {"replay_buffer": held(rows), "policy": policy, "eval_env": eval_env()}
    assert said("evaluation_gives_other_numbers", **given) == state


class Eye(torch.nn.Module):
    """Divides inside, where no key shows it."""

    def __init__(self, by):
        super().__init__()
        self.by, self.conv = by, torch.nn.Conv2d(3, 2, 3)

    def forward(self, pixels):
        return self.conv(pixels.float() / self.by)


@pytest.mark.parametrize(
    ("largest", "by", "state"), [(1, 255, APPLIES), (1, 1, CLEAR), (255, 255**2, APPLIES)]
)
def test_a_network_divides_pixels_once_more(largest, by, state):
    pixels = torch.rand(4, 3, 8, 8) if largest == 1 else torch.randint(256, (4, 3, 8, 8)).byte()
    policy = TensorDictModule(Eye(by), in_keys=["pixels"], out_keys=["features"])
    batch = TensorDict(pixels=pixels, batch_size=4)
    assert said("pixels_are_not_scaled", batch=batch, policy=policy) == state


class Pit(Sensor):
    """Action 0 ends the episode; with *stuck*, so does each step after the first end."""

    def __init__(self, stuck):
        super().__init__()
        self.stuck, self.ended = stuck, False

    def _step(self, tensordict):
        self.ended = done = not tensordict["action"].any() or (self.stuck and self.ended)
        return super()._step(tensordict).set("done", torch.tensor([done]))


@pytest.mark.parametrize(
    ("stuck", "limit", "state"),
    [(False, 9, UNDECIDED), (True, 9, APPLIES), (True, None, UNDECIDED)],
)
def test_a_policy_that_fails_at_once(stuck, limit, state):
    env = Pit(stuck)
    env.max_steps = limit
    fails = TensorDictModule(
        lambda seen: torch.zeros_like(seen, dtype=torch.int64)[..., 0], ["observation"], ["action"]
    )
    rows = env.rollout(20, fails, break_when_any_done=False)
    given = {"batch": rows, "policy": fails}
    assert said("each_step_ends_an_episode", **given) == UNDECIDED
    assert said("each_step_ends_an_episode", **given, env=env) == state


def test_all_limits_of_a_data_set_are_deaths_and_those_of_its_environment_are_not():
    rows, slug = pendulum().rollout(200, break_when_any_done=False), "values_too_low_at_time_limits"
    critic = ValueOperator(torch.nn.Linear(3, 1), in_keys=["observation"])
    given = {"value_estimator": GAE(gamma=0.99, lmbda=0.95, value_network=critic)}
    assert said(slug, **given, replay_buffer=held(rows), eval_env=pendulum()) == CLEAR
    rows["next", "terminated"] = rows["next", "truncated"].clone()
    assert said(slug, **given, replay_buffer=held(rows)) == UNDECIDED
    assert said(slug, **given, replay_buffer=held(rows), eval_env=pendulum()) == APPLIES


def test_a_next_observation_is_not_of_the_next_episode():
    env, slug = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter(25)), "data_set_is_shifted"
    rows = env.rollout(300, break_when_any_done=False)
    assert said(slug, replay_buffer=held(rows)) == UNDECIDED
    rows["next", "observation"][:-1] = rows["observation"][1:]
    assert said(slug, replay_buffer=held(rows)) == APPLIES
    windows = GymEnv("Pendulum-v1").rollout(200)  # one episode in pieces that merely end
    for name in ("truncated", "done"):
        windows["next", name][24::25] = True
    assert said(slug, replay_buffer=held(windows)) == UNDECIDED


def of_agents(rows, **entries):
    rows["next", "agents"] = TensorDict(entries, [len(rows), 3])
    return rows.exclude(("next", "reward"))


def test_an_agent_that_is_never_paid_is_not_clear():
    paid, slug = torch.rand(60, 3, 1) + 0.1, "all_rewards_are_zero"
    assert said(slug, batch=of_agents(ended(), reward=paid)) == CLEAR
    paid[:, 1] = 0
    assert said(slug, batch=of_agents(ended(), reward=paid)) == UNDECIDED


def ended():
    return cartpole().rollout(60, break_when_any_done=False)


def test_flags_of_agents_are_compared():
    slug, done = "truncated_is_not_done", torch.zeros(60, 3, 1, dtype=torch.bool)
    flags = {"done": done, "terminated": done.clone()}
    rows, reward = ended(), torch.rand(60, 3, 1)
    kept = held(of_agents(rows.clone(), reward=reward, **flags))
    assert said(slug, batch=rows, replay_buffer=kept) == CLEAR
    flags["terminated"] = ~done
    wrong = held(of_agents(rows.clone(), reward=reward, **flags))
    assert said(slug, batch=rows, replay_buffer=wrong) == APPLIES


def test_a_standard_deviation_that_is_none():
    slug, rows = "noise_is_gone_or_all", rollout()
    policy = ProbabilisticTensorDictSequential(
        TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["loc"]),
        ProbabilisticTensorDictModule(["loc", "scale"], ["action"], distribution_class=Normal),
    )
    rows["scale"] = torch.rand(40, 2) + 0.1
    assert said(slug, batch=rows, policy=policy) == CLEAR
    rows["scale"][7] = -0.2
    assert said(slug, batch=rows, policy=policy) == APPLIES
    rows["scale"][:] = float("nan")
    assert said(slug, batch=rows, policy=policy) is None


def test_the_last_of_several_batches_was_drawn_without_sampling():
    slug, actor = "stochastic_policy_does_not_sample", categorical_actor(cartpole(), logits())
    critic = ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"])
    given = {"policy": actor, "loss_module": A2CLoss(actor, critic)}
    for kind, state in (("RANDOM", CLEAR), ("DETERMINISTIC", APPLIES)):
        with set_exploration_type(ExplorationType[kind]):
            batches = [cartpole().rollout(60, actor, break_when_any_done=False) for _ in range(2)]
        assert said(slug, batch=batches, **given) == state


def test_a_large_learning_rate_is_not_clear():
    slug, layer = "learning_rate_is_wrong", torch.nn.Linear(4, 4)
    assert said(slug, optimizer=torch.optim.Adam(layer.parameters(), 1e-2)) == CLEAR
    assert said(slug, optimizer=torch.optim.Adam(layer.parameters(), 0.5)) == UNDECIDED
    alone = [torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(16, 1))]
    assert said(slug, optimizer=torch.optim.Adam(alone, 0.1)) == CLEAR


def test_two_shapes_in_an_estimator():
    estimator = GAE(gamma=0.99, lmbda=0.95, value_network=None)
    rows, slug = rollout(), "estimator_reads_two_shapes"
    assert said(slug, value_estimator=estimator, batch=rows) == CLEAR
    rows["next", "reward"] = torch.zeros(40, 3, 1)
    assert said(slug, value_estimator=estimator, batch=rows) == APPLIES


def held(rows):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(len(rows)), batch_size=16)
    buffer.extend(rows)
    return buffer


def set_to(key, value):
    return lambda rows: rows[key].view(-1)[::7].fill_(value)


@pytest.mark.parametrize(
    ("slug", "change"),
    [
        ("numbers_are_not_finite", set_to(("next", "reward"), torch.nan)),
        ("numbers_are_not_finite", set_to("observation", torch.inf)),
        ("numbers_are_far_from_one", lambda rows: rows["next", "reward"].mul_(1e6)),
        ("observations_never_change", lambda rows: rows["observation"].zero_()),
        ("truncated_is_not_done", lambda rows: rows["next", "done"].zero_()),
        ("each_step_ends_an_episode", lambda rows: rows["next", "done"].fill_(True)),
        ("evaluation_gives_other_numbers", lambda rows: rows["observation"].add_(50)),
    ],
)
def test_a_data_set_is_looked_at_beside_what_a_copy_collects(slug, change):
    env = cartpole()
    policy, rows = categorical_actor(env, logits()), rollout(env)
    given = {"env": env, "policy": policy, "frames": 32}
    assert said(slug, replay_buffer=held(rows), **given) != APPLIES
    change(spoiled := rows.clone())
    assert said(slug, replay_buffer=held(spoiled), **given) == APPLIES


def test_rows_of_several_steps_are_no_truncated_ones():
    """`MultiStepTransform` moves the flags that it is told of."""
    transform = MultiStepTransform(3, 0.99, done_keys=["done", "truncated"])
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(40), transform=transform)
    buffer.extend(rollout())
    stored = buffer[:]["next"]
    assert (stored["terminated"] & ~stored["done"]).any()
    assert said("truncated_is_not_done", replay_buffer=buffer) is None


def estimated(rows):
    torch.manual_seed(0)
    critic = ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"])
    estimator = GAE(gamma=0.9, lmbda=0.9, value_network=critic)
    with torch.no_grad():
        return estimator, estimator(rows)


def test_targets_of_shuffled_rows_are_known():
    rows, slug = rollout(), "advantages_look_like_noise"
    order = torch.randperm(40)
    for batch in (estimated(rows.clone())[1], estimated(rows.clone())[1][order]):
        estimator, _ = estimated(rows.clone())
        assert said(slug, value_estimator=estimator, batch=batch) != APPLIES
    estimator, batch = estimated(rows[order].clone())
    assert said(slug, value_estimator=estimator, batch=batch) == APPLIES


def test_targets_with_limits_as_deaths_are_known():
    rows, slug = rollout(), "values_too_low_at_time_limits"
    rows["next", "terminated"][::9] = False
    rows["next", "truncated"] = rows["next", "done"] & ~rows["next", "terminated"]
    rows["next", "done"][::9] = rows["next", "truncated"][::9] = True
    estimator, batch = estimated(rows.clone())
    assert said(slug, value_estimator=estimator, batch=batch) == CLEAR
    lacking = rows.exclude(("next", "terminated"), ("next", "truncated"))
    batch = rows.update(estimated(lacking.clone())[1])
    assert said(slug, value_estimator=estimator, batch=batch) == APPLIES


def test_an_advantage_that_comes_after_the_rows_were_stored():
    env, slug = cartpole(), "ppo_worse_with_small_minibatches"
    actor = categorical_actor(env, logits())
    rows = rollout(env)
    estimator, batch = estimated(rows.clone())
    loss = A2CLoss(actor, estimator.value_network)
    given = {"loss_module": loss, "value_estimator": estimator, "batch": batch}
    assert said(slug, replay_buffer=held(batch), **given) != APPLIES
    assert said(slug, replay_buffer=held(rows), **given) == APPLIES


def test_slices_alone_do_not_make_stacks_right():
    stack = CatFrames(2, dim=-1, in_keys=["observation"], out_keys=["stack"], reset_key="_reset")
    transform, sampler = stack.make_rb_transform_and_sampler(batch_size=4)
    by_hand = SliceSampler(slice_len=2)
    for parts, state in (((transform, sampler), CLEAR), ((stack, by_hand), UNDECIDED)):
        buffer = ReplayBuffer(
            storage=LazyTensorStorage(40), transform=parts[0], sampler=parts[1], batch_size=4
        )
        buffer.extend(cartpole().rollout(20, break_when_any_done=False))
        assert said("stacked_frames_of_different_episodes", replay_buffer=buffer) == state


@pytest.mark.parametrize(("high", "state"), [(2.0, CLEAR), (1.0, APPLIES)])
def test_a_tanh_module_has_bounds_too(high, state):
    policy = TanhModule(["param"], ["action"], low=-2.0, high=high)
    env = Sensor(action=torch.float32)
    assert said("actions_and_bounds_differ", env=env, policy=policy) == state


class Doubled(Transform):
    """Takes actions from -1 to 1, and says nothing of it."""

    def _inv_apply_transform(self, action):
        return 2 * action


def ends_in_tanh():
    net = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Tanh())
    return TensorDictModule(net, ["observation"], ["action"])


def twice():
    return TensorDictModule(lambda action: 2 * action, ["action"], ["action"])


class Twice(torch.nn.Sequential):
    """Looks like a network that ends in a tanh."""

    def forward(self, observation):
        return 2 * super().forward(observation)


class Inside(TensorDictModule):
    def __init__(self):
        super().__init__(Twice(torch.nn.Linear(3, 1), torch.nn.Tanh()), ["observation"], ["action"])


def noise():
    return AdditiveGaussianModule(GymEnv("Pendulum-v1").action_spec)


@pytest.mark.parametrize(
    ("modules", "transforms", "state"),
    [
        ((ends_in_tanh,), (), APPLIES),
        ((ends_in_tanh, noise), (), APPLIES),
        ((lambda: TensorDictSequential(ends_in_tanh()), noise), (), APPLIES),
        ((ends_in_tanh, twice), (), None),
        ((ends_in_tanh, twice, noise), (), None),
        ((Inside,), (), None),
        ((ends_in_tanh,), (ActionScaling,), CLEAR),
        ((ends_in_tanh,), (lambda: Doubled(in_keys_inv=["action"]),), None),
    ],
)
def test_an_actor_that_ends_in_a_plain_tanh(modules, transforms, state):
    policy = TensorDictSequential(*(make() for make in modules))
    env = pendulum(*(make() for make in transforms))
    assert said("actions_and_bounds_differ", env=env, policy=policy) == state


def td3(**options):
    critic = ValueOperator(Joined(torch.nn.Linear(4, 1)), in_keys=["observation", "action"])
    return TD3Loss(ends_in_tanh(), critic, **options)


@pytest.mark.parametrize(
    ("options", "state"),
    [
        ({"bounds": (-1.0, 1.0)}, APPLIES),
        ({"bounds": (-2.0, 2.0)}, CLEAR),
        ({"action_spec": GymEnv("Pendulum-v1").action_spec}, CLEAR),
    ],
)
def test_next_actions_are_cut_at_the_bounds_of_the_environment(options, state):
    loss, env = td3(**options), pendulum()
    given = {"env": env, "policy": TanhModule(["param"], ["action"], spec=env.action_spec)}
    assert said("actions_and_bounds_differ", **given, loss_module=loss) == state


def test_a_target_network_that_is_the_network():
    slug = "targets_follow_at_once"
    for options in ({}, {"delay_qvalue": False}):
        loss = td3(bounds=(-2.0, 2.0), **options)
        assert said(slug, loss_module=loss) is None
    loss = td3(bounds=(-2.0, 2.0))
    loss.target_qvalue_network_params = loss.qvalue_network_params
    assert said(slug, loss_module=loss) == APPLIES


@pytest.mark.parametrize(
    ("other", "state"),
    [
        (lambda: cartpole(), CLEAR),
        (lambda: GymEnv("CartPole-v1", sutton_barto_reward=False), CLEAR),  # the default
        (lambda: GymEnv("CartPole-v1", sutton_barto_reward=True), APPLIES),
        (lambda: GymEnv("Acrobot-v1"), APPLIES),
    ],
)
def test_evaluation_plays_another_game(other, state):
    policy = categorical_actor(cartpole(), logits())
    given = {"env": cartpole(), "eval_env": other(), "policy": policy}
    assert said("evaluation_is_another_task", **given) == state


@pytest.mark.parametrize(
    ("options", "state"), [({}, None), ({"maximize": True}, APPLIES), ({"lr": 1e-12}, APPLIES)]
)
def test_an_optimizer_that_goes_the_wrong_way_or_none(options, state):
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(1))], **options)
    slug = "learning_rate_is_wrong" if "lr" in options else "a_setting_is_out_of_range"
    assert said(slug, optimizer=optimizer) == state


@pytest.mark.parametrize(
    ("target", "state"), [("auto", CLEAR), (0.6, CLEAR), (2.0, APPLIES), (-2.0, APPLIES)]
)
def test_an_entropy_that_no_choice_of_two_has(target, state):
    env = cartpole()
    critic = TensorDictModule(MLP(4, 2, num_cells=[4]), ["observation"], ["action_value"])
    actor = categorical_actor(env, logits())
    options = {"action_space": env.action_spec, "num_actions": 2, "target_entropy": target}
    loss = DiscreteSACLoss(actor, critic, **options)
    loss.make_value_estimator(gamma=0.99)
    assert said("a_setting_is_out_of_range", loss_module=loss, env=env) == state


@pytest.mark.parametrize(("target", "state"), [(-1.0, CLEAR), (1.0, UNDECIDED), (2.0, APPLIES)])
def test_an_entropy_that_lost_its_sign(target, state):
    env = pendulum()
    critic = ValueOperator(MLP(4, 1, num_cells=[4]), in_keys=["observation", "action"])
    loss = SACLoss(gaussian_actor(env, 3), critic, target_entropy=target)
    loss.make_value_estimator(gamma=0.99)
    assert said("a_setting_is_out_of_range", loss_module=loss, env=env) == state


@pytest.mark.parametrize(("kept", "state"), [(1.0, CLEAR), (0.0, APPLIES)])
def test_a_hidden_state_that_is_stored_as_zeros(kept, state):
    policy = LSTMModule(4, 3, in_key="observation", out_key="features")
    rows = TensorDict(
        observation=torch.randn(40, 4), is_init=torch.zeros(40, 1).bool(), batch_size=40
    )
    rows["is_init"][::20] = True
    rows["recurrent_state_h"] = kept * torch.rand(40, 1, 3)
    rows["recurrent_state_c"] = rows["recurrent_state_h"].clone()
    rows["episode"] = torch.arange(40) // 20
    sampler = SliceSampler(slice_len=5, traj_key="episode")
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(40), sampler=sampler, batch_size=20)
    buffer.extend(rows)
    given = {"replay_buffer": buffer, "policy": policy}
    assert said("lstm_outputs_differ_in_slices", **given) == state


class Duel(EnvBase):
    """Two players, each with an action of its own, which may do nothing."""

    def __init__(self, heard):
        super().__init__()
        self.heard = heard
        self.observation_spec = Composite(observation=Unbounded((2,)))
        self.action_spec = Composite(
            {one: Composite(action=Bounded(-1, 1, (1,))) for one in ("left", "right")}
        )
        self.reward_spec = Unbounded((1,))

    def _reset(self, tensordict=None):
        return TensorDict(observation=torch.zeros(2))

    def _step(self, tensordict):
        actions = torch.cat([tensordict[one, "action"] for one in ("left", "right")])
        seen = tensordict["observation"] + self.heard * actions + 1
        done = torch.zeros(1, dtype=torch.bool)
        return TensorDict(
            observation=seen, reward=seen[:1].clone(), done=done, terminated=done.clone()
        )

    def _set_seed(self, seed):
        pass


@pytest.mark.parametrize(("heard", "state"), [(0.0, APPLIES), (1.0, None)])
def test_groups_have_actions_of_their_own(heard, state):
    assert said("actions_have_no_effect", env=Duel(heard)) == state


@pytest.mark.parametrize(("missing", "state"), [(0, CLEAR), (1, APPLIES), (50, CLEAR)])
def test_a_next_observation_is_nan_inside_an_episode(missing, state):
    rows = cartpole().rollout(50, break_when_any_done=False)
    rows["next", "done"][20] = False
    rows["next", "observation"][20 : 20 + missing] = float("nan")
    if missing == 50:  # nobody kept them
        rows["next", "observation"].fill_(float("nan"))
    assert said("numbers_are_not_finite", batch=rows) == state


def test_a_reconstructed_row_has_no_next_observation_at_the_end_of_a_batch_and_before_a_cut():
    rows = cartpole().rollout(50, break_when_any_done=False)
    rows["next", "done"][[20, 49]] = False
    rows["collector", "traj_ids"] = (torch.arange(50) > 20).long()
    rows["next", "observation"][[20, 49]] = float("nan")
    assert said("numbers_are_not_finite", batch=rows) == CLEAR


@pytest.mark.parametrize(("drawn", "state"), [(False, CLEAR), (True, APPLIES)])
def test_the_estimator_of_a_loss_gets_rows_in_no_order(drawn, state):
    env = cartpole()
    actor = categorical_actor(env, logits())
    loss = ClipPPOLoss(actor, ValueOperator(MLP(4, 1, num_cells=[4])))
    loss.make_value_estimator(ValueEstimators.GAE, gamma=0.99, lmbda=0.95)
    rows = env.rollout(80, actor, break_when_any_done=False).detach()
    rows = rows[torch.randperm(80)] if drawn else rows
    assert said("advantages_look_like_noise", loss_module=loss, batch=rows) == state


def test_the_returns_that_an_evaluation_asks_for():
    """A data set may hold them scaled, and the evaluation not."""
    rows = pendulum().rollout(60, break_when_any_done=False)
    rows["return_to_go"] = rows["next", "reward"] / 100
    network = TensorDictModule(MLP(4, 1), ["observation", "return_to_go"], ["action"])
    for target, state in ((-0.1, None), (-300.0, APPLIES)):
        eval_env = pendulum(TargetReturn(target, out_keys=["return_to_go"], mode="constant"))
        given = {"eval_env": eval_env, "policy": network, "replay_buffer": held(rows)}
        assert said("evaluation_gives_other_numbers", **given) == state


@pytest.mark.parametrize(("norm", "state"), [(0.3, CLEAR), (1e-8, UNDECIDED), (0.0, APPLIES)])
def test_gradients_that_are_clipped_to_nothing(norm, state):
    assert said("gradients_are_zero", log={"grad_norm": [norm] * 40}) == state


class Workers:
    """What the check reads of a collector that joins its workers along time."""

    cat_results, num_workers = 0, 2


@pytest.mark.parametrize(("ends", "state"), [((9,), APPLIES), ((9, 19), UNDECIDED)])
def test_workers_whose_episodes_end_with_their_parts(ends, state):
    rows = TensorDict(batch_size=40)
    rows["collector", "traj_ids"] = torch.tensor([0, 1, 2, 3]).repeat_interleave(10)
    done = torch.zeros(40, 1, dtype=torch.bool)
    done[[*ends, 29]] = True
    rows["next"] = TensorDict(done=done, batch_size=40)
    gae = GAE(gamma=0.99, lmbda=0.95, value_network=ValueOperator(MLP(4, 1)))
    check = advantages_wrong_with_several_workers
    assert check(rows, gae, Workers()).state == state
