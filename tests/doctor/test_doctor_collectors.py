"""What looks like a symptom of collectors, exploration, devices or workers, and is none."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import (
    Categorical,
    Composite,
    LazyMemmapStorage,
    LazyTensorStorage,
    NonTensor,
    StalenessAwareSampler,
    TensorDictReplayBuffer,
    Unbounded,
)
from torchrl.envs import (
    DoubleToFloat,
    EnvBase,
    ExplorationType,
    GymEnv,
    SerialEnv,
    TransformedEnv,
    set_exploration_type,
)
from torchrl.modules import (
    EGreedyModule,
    NoisyLinear,
    OneHotCategorical,
    OrnsteinUhlenbeckProcessModule,
    ProbabilisticActor,
    QValueActor,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss, DQNLoss
from torchrl_doctor import APPLIES, CLEAR, FAILED, UNDECIDED, diagnose

from tests.support.healthy_pipelines import (
    cartpole,
    categorical_actor,
    collect_from,
    gaussian_actor,
    logits,
)

pytestmark = pytest.mark.usefixtures("seeded")


@pytest.fixture
def seeded():
    torch.manual_seed(0)


def said(slug, **given):
    """The state of one check; None where it has nothing to say."""
    report = diagnose(**given, seconds=60)
    assert report.of(FAILED) == []
    return {one.slug: one.state for one in report}.get(slug)


def batch_of(env, policy, frames):
    collector = collect_from(env, policy, frames)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    return batch


def q_network(env, *layers):
    network = torch.nn.Sequential(*layers, torch.nn.Linear(4, 2))
    return QValueActor(network, in_keys=["observation"], spec=env.action_spec)


class FewStarts(EnvBase):
    """Episodes of six steps from one of a few places; the environment has a name."""

    def __init__(self, *places):
        super().__init__()
        self.places = torch.tensor(places)
        self.generator = torch.Generator()
        self.observation_spec = Composite(observation=Unbounded((1,)), name=NonTensor(()))
        self.action_spec = Categorical(2)
        self.reward_spec = Unbounded((1,))

    def _data(self):
        done = torch.tensor([self.clock >= 6])
        return {"observation": self.position.clone(), "name": "few", "done": done}

    def _reset(self, tensordict=None, **options):
        self.clock = 0
        place = torch.randint(len(self.places), (1,), generator=self.generator)
        self.position = self.places[place]
        return TensorDict(self._data())

    def _step(self, tensordict):
        self.clock += 1
        self.position = self.position + 0.01 * (1 + tensordict["action"])
        return TensorDict({**self._data(), "reward": torch.ones(1)})

    def _set_seed(self, seed):
        self.generator.manual_seed(seed)


@pytest.mark.parametrize("places", [(0.3,), (0.0, 0.25, 0.5, 0.75)])
def test_environments_with_few_places_to_start_from(places):
    env = SerialEnv(8, lambda: FewStarts(*places))
    env.set_seed(0)
    batch = batch_of(env, None, 160)
    assert said("every_environment_starts_alike", batch=batch) in (None, CLEAR, UNDECIDED)


def test_an_observation_without_a_type_loses_no_decimals():
    env = SerialEnv(2, lambda: FewStarts(0.3))
    env.rollout(2)
    assert said("decimals_are_lost", env=env) == CLEAR


class Stuck(FewStarts):
    """Cannot step; its observation says that it is whole."""

    opened, closed = 0, 0

    def __init__(self):
        super().__init__(0.3)
        self.observation_spec["observation"] = Unbounded((1,), dtype=torch.int64)
        Stuck.opened += 1

    def _step(self, tensordict):
        raise OSError

    def close(self, **options):
        Stuck.closed += 1
        super().close(**options)


def test_an_environment_that_cannot_step_is_closed_again():
    env = SerialEnv(1, Stuck)
    assert env.full_observation_spec["observation"].dtype == torch.int64
    Stuck.opened = Stuck.closed = 0
    assert said("decimals_are_lost", env=env) == UNDECIDED
    assert Stuck.closed == Stuck.opened > 0


def test_environments_under_one_plan():
    """The actions are the same everywhere, and none is drawn."""
    steps = iter(range(1000))

    def plan(tensordict):
        force = torch.tensor(0.1 * next(steps)).sin()
        return tensordict.set("action", force.expand(2, 1).clone())

    batch = batch_of(SerialEnv(2, lambda: GymEnv("Pendulum-v1")), plan, 128)
    for given in ({"batch": batch}, {"batch": batch, "policy": plan}):
        assert said("workers_act_alike", **given) is None


@pytest.mark.parametrize("shared", [torch.zeros(1).expand(10), torch.zeros(10, 0)])
def test_batches_that_share_a_constant(shared):
    batches = [TensorDict({"a": shared, "b": torch.rand(10)}, [10]) for _ in range(2)]
    assert said("kept_batches_are_all_the_same", batch=batches) == CLEAR


def test_episodes_are_short_for_the_policy_that_samples_alone():
    # Pushes against the fall: certain to balance where the most likely action is taken.
    balance = torch.nn.Linear(4, 2)
    with torch.no_grad():
        balance.weight.copy_(torch.tensor([[-1, -3, -20, -10], [1, 3, 20, 10]]) * 0.015)
        balance.bias.zero_()
    policy = ProbabilisticActor(
        TensorDictModule(balance, ["observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    env = cartpole()
    env.set_seed(0)
    options = {"trajs_per_batch": 1, "traj_format": "cat", "reset_at_each_iter": True}
    collector = collect_from(env, policy, 120, **options)
    assert said("collector_yields_nothing", collector=collector) == CLEAR
    collector.exploration_type = ExplorationType.DETERMINISTIC
    assert said("collector_yields_nothing", collector=collector) == APPLIES


def test_the_policy_that_is_trained_does_not_hide_a_random_one():
    env = cartpole()
    actor = q_network(env)
    given = {
        "collector": Collector(env, None, frames_per_batch=20, total_frames=-1),
        "loss_module": DQNLoss(actor, action_space=env.action_spec, delay_value=True),
        "policy": actor,
    }
    assert said("actions_stay_random", **given) == APPLIES


def test_a_rollout_for_training_explores():
    env = cartpole()
    actor = q_network(env)
    policy = TensorDictSequential(actor, EGreedyModule(spec=env.action_spec, eps_init=0.5))
    with set_exploration_type(ExplorationType.RANDOM):
        batch = env.rollout(60, policy, break_when_any_done=False)
    loss = DQNLoss(actor, action_space=env.action_spec, delay_value=True)
    given = {"policy": policy, "batch": batch, "eval_env": cartpole()}
    assert said("evaluation_takes_random_actions", loss_module=loss, **given) is None
    assert said("evaluation_takes_random_actions", **given) == APPLIES


def test_a_policy_with_dropout_whose_mode_is_switched():
    layers = [torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)]
    policy = q_network(cartpole(), *layers)
    batches = {mode: batch_of(cartpole(), policy.train(mode), 100) for mode in (False, True)}
    assert policy.training
    assert said("actions_stay_noisy", policy=policy) == UNDECIDED
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    for _ in range(5):
        optimizer.zero_grad()
        policy(batches[False].clone())["action_value"].square().mean().backward()
        optimizer.step()
    assert said("actions_stay_noisy", policy=policy, batch=batches[False]) == CLEAR
    assert said("actions_stay_noisy", policy=policy, batch=batches[True]) == APPLIES


class Copies:
    """A PPO run on two devices: ``cpu:0`` stands for the second one."""

    def __init__(self, kind):
        torch.manual_seed(0)
        env = cartpole()
        head = torch.nn.Linear(4, 2)
        self.actor = ProbabilisticActor(
            TensorDictModule(head, ["observation"], ["logits"]),
            in_keys=["logits"],
            distribution_class=OneHotCategorical,
            return_log_prob=True,
        )
        critic = ValueOperator(torch.nn.Linear(4, 1))
        self.loss_module = ClipPPOLoss(self.actor, critic)
        self.optimizer = torch.optim.SGD(self.actor.parameters(), lr=0.1)
        self.collector = collect_from(env, self.actor, 30, policy_device="cpu:0")
        self.kind, self.batch = kind, []

    def run(self, batches, syncs):
        """The arguments of the doctor after some batches, each followed by an optimizer step."""
        for _ in range(batches):
            batch = self.collector.next().clone()
            self.batch.append(batch if self.kind == "all" else batch.exclude("logits"))
            self.optimizer.zero_grad()
            self.actor.log_prob(batch).mean().backward()
            self.optimizer.step()
            if syncs and len(self.batch) < 2:
                self.collector.update_policy_weights_()
        return {"collector": self.collector, "batch": self.batch}


@pytest.mark.parametrize("kind", ["all", "log_prob alone"])
@pytest.mark.parametrize(("syncs", "state"), [(False, APPLIES), (True, CLEAR)])
def test_the_copy_of_a_policy_that_draws_its_actions(kind, syncs, state):
    run = Copies(kind)
    given = run.run(2, syncs)
    for trained in ({"policy": run.actor}, {"loss_module": run.loss_module}):
        assert said("collector_keeps_its_own_policy", **given, **trained) == state


def test_nothing_is_said_of_a_policy_whose_draws_alone_are_known():
    run = Copies("all")
    given = run.run(2, False)
    given["batch"] = [one.exclude("logits", "action_log_prob") for one in given["batch"]]
    assert said("collector_keeps_its_own_policy", policy=run.actor, **given) == UNDECIDED


@pytest.mark.parametrize("together", [True, False])
def test_environments_that_are_seeded_alike_in_the_middle_of_training(together):
    env = SerialEnv(2, lambda: GymEnv("CartPole-v1"))
    env.set_seed(0, static_seed=together)
    collector = Collector(env, None, frames_per_batch=800, total_frames=-1)
    batches = [collector.next().clone() for _ in range(4)]
    collector.shutdown()
    state = said("every_environment_starts_alike", batch=batches[0])
    assert state == (APPLIES if together else CLEAR)
    state = said("every_environment_starts_alike", batch=batches[-1])
    assert state == (APPLIES if together else UNDECIDED)


@pytest.mark.parametrize(("critic", "state"), [(False, UNDECIDED), (True, APPLIES)])
def test_answers_that_are_compared_begin_with_one_prompt(critic, state):
    env = SerialEnv(2, cartpole)
    env.set_seed(0, static_seed=True)
    batch = env.rollout(200, break_when_any_done=False)
    network = ValueOperator(torch.nn.Linear(4, 1)) if critic else None
    options = {} if critic else {"critic_coeff": None}
    loss = ClipPPOLoss(categorical_actor(env, logits()), network, **options)
    assert said("every_environment_starts_alike", batch=batch, loss_module=loss) == state


def test_noise_that_is_not_greedy_has_no_spec_to_fit():
    env = GymEnv("Pendulum-v1")
    noise = OrnsteinUhlenbeckProcessModule(spec=env.action_spec)
    actor = TensorDictModule(torch.nn.Linear(3, 1), ["observation"], ["action"])
    given = {"policy": TensorDictSequential(actor, noise), "eval_env": env}
    assert said("actor_of_many_fails_in_one", **given) is None


def test_a_batch_that_is_moved_before_the_loss():
    env = cartpole()
    actor = q_network(env)
    loss = DQNLoss(actor, action_space=env.action_spec, delay_value=True)
    batch = batch_of(env, None, 20).to("meta")  # stands for the other device
    assert said("loss_and_data_on_two_devices", loss_module=loss, batch=batch) is None


def test_versions_are_read_where_they_are_right():
    collector = Collector(
        cartpole(), None, frames_per_batch=6, total_frames=-1, track_policy_version=True
    )
    collector.next()
    collector.increment_version()
    batch = collector.next().clone()
    states = []
    for key in ("policy_version", ("next", "policy_version")):
        sampler = StalenessAwareSampler(version_key=key)
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(10), sampler=sampler, batch_size=4
        )
        buffer.extend(batch)
        given = {"batch": batch, "replay_buffer": buffer}
        states.append(said("old_policy_version_after_update", **given))
    assert states == [APPLIES, CLEAR]
    assert said("old_policy_version_after_update", batch=batch) == UNDECIDED


class Contexts(EnvBase):
    """A bandit: each step ends an episode and shows the context of the next."""

    ends_from = 0  # the first steps may all be of one episode

    def __init__(self):
        super().__init__()
        self.steps = 0
        self.context = torch.rand(3)
        self.observation_spec = Composite(observation=Unbounded((3,)))
        self.action_spec = Categorical(2)
        self.reward_spec = Unbounded((1,))

    def _data(self, done):
        return {"observation": self.context.clone(), "done": torch.tensor([done])}

    def _reset(self, tensordict=None, **options):
        return TensorDict(self._data(False))

    def _step(self, tensordict):
        self.context = torch.rand(3)
        self.steps += 1
        return TensorDict({**self._data(self.steps > self.ends_from), "reward": torch.ones(1)})

    def _set_seed(self, seed):
        """The context is drawn from the generator of PyTorch."""


def ended(rows):
    """The rows with an end in each step."""
    rows["next", "done"] = torch.ones_like(rows["next", "done"])
    return rows


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        (lambda: Contexts().rollout(40, break_when_any_done=False), UNDECIDED),
        (lambda: ended(cartpole().rollout(40, break_when_any_done=False)), APPLIES),
    ],
)
def test_each_step_of_a_bandit_ends_an_episode(rows, state):
    assert said("each_step_ends_an_episode", batch=rows()) == state


def test_episodes_that_were_longer_before():
    """Each step of the second batch ends an episode; the collector has counted the first one."""
    env = Contexts()
    env.ends_from = 30
    collector = collect_from(env, None, 40)
    batches = iter(collector)
    _, batch = next(batches), next(batches).clone()
    assert batch["next", "done"].all()
    given = {"batch": batch, "collector": collector}
    assert said("each_step_ends_an_episode", **given) == APPLIES
    collector.shutdown()


class MultiCollector:
    """Stands for one whose workers write to the buffer."""

    def __init__(self, replay_buffer):
        self.replay_buffer = replay_buffer

    def update_policy_weights_(self):
        """None has a policy."""


@pytest.mark.parametrize("kind", [LazyTensorStorage, LazyMemmapStorage])
def test_files_are_memory_that_is_shared(kind):
    buffer = TensorDictReplayBuffer(storage=kind(10), batch_size=4)
    buffer.extend(TensorDict({"a": torch.rand(10)}, [10]))
    expected = {LazyTensorStorage: APPLIES, LazyMemmapStorage: CLEAR}[kind]
    assert said("buffer_holds_garbage", collector=MultiCollector(buffer)) == expected


def test_a_collector_goes_on_from_no_end():
    assert said("frames_after_the_end", batch=batch_of(Contexts(), None, 30)) is None


@pytest.mark.parametrize(("seeds", "state"), [((0, 0), APPLIES), ((0, 1), CLEAR)])
def test_what_gaussian_workers_draw_is_compared_without_what_they_saw(seeds, state):
    env = TransformedEnv(GymEnv("Pendulum-v1"), DoubleToFloat())
    policy, lines = gaussian_actor(env, 3), []
    for place, seed in enumerate(seeds):
        env.set_seed(place)
        torch.manual_seed(seed)
        with torch.no_grad():
            lines.append(env.rollout(60, policy))
    batch = torch.stack(lines)
    assert said("workers_act_alike", batch=batch, policy=policy) == state
    if state == APPLIES:  # the policy is another one by now
        with torch.no_grad():
            policy[0].module[0][0].weight.mul_(2)
        assert said("workers_act_alike", batch=batch, policy=policy) == UNDECIDED
        assert said("workers_act_alike", batch=batch) == UNDECIDED


@pytest.mark.parametrize(("learns", "states"), [(True, [CLEAR] * 2), (False, [UNDECIDED] * 2)])
def test_noise_that_has_a_gradient_and_is_in_no_optimizer(learns, states):
    env = cartpole()
    layer = NoisyLinear(4, 2)
    policy = QValueActor(layer, in_keys=["observation"], spec=env.action_spec)
    loss = DQNLoss(policy, action_space=env.action_spec, delay_value=False)
    loss.deterministic_sampling_mode = ExplorationType.RANDOM
    weights = list(policy.parameters()) if learns else [layer.weight_mu, layer.bias_mu]
    optimizer, batch = torch.optim.SGD(weights, lr=0.1), env.rollout(5)
    for number in range(30):
        loss(batch)["loss"].backward()
        optimizer.step()
        if learns or not number:  # else it is drawn anew but once
            layer.reset_noise()
    slugs = ("noisy_network_never_learns_its_noise", "noisy_network_repeats_its_noise")
    given = {"policy": policy, "loss_module": loss}
    assert [said(slug, **given) for slug in slugs] == states


def test_a_serial_environment_that_its_collector_has_closed_is_started_anew():
    env = SerialEnv(2, cartpole)
    collector = Collector(env, None, frames_per_batch=20, total_frames=20)
    for _ in collector:
        pass
    assert env.is_closed
    report = diagnose(collector=collector, frames=20, seconds=60)
    assert not [note for note in report.notes if "no batch could be collected" in note]
    assert env.is_closed
    collector.shutdown()
