"""The defects of `seen` in other forms and other places: each has to be named.

They are no part of the measured shares, which keep the third that is kept aside.
"""

import copy
import functools

import gymnasium
import torch
from tensordict.nn import (
    InteractionType,
    TensorDictSequential,
)
from torch import nn
from torchrl.data import (
    LazyTensorStorage,
    PrioritizedSliceSampler,
    ReplayBuffer,
    SliceSampler,
    Unbounded,
)
from torchrl.envs import (
    Compose,
    DTypeCastTransform,
    GymEnv,
    GymWrapper,
    ObservationNorm,
    RewardClipping,
    RewardScaling,
    RewardSum,
    SerialEnv,
    SignTransform,
    StepCounter,
    TransformedEnv,
    VecNormV2,
    step_mdp,
)
from torchrl.envs.transforms.rb_transforms import NextStateReconstructor
from torchrl.modules import (
    GRUModule,
    ProbabilisticActor,
    TanhNormal,
    ValueOperator,
)

from tests.support.defects import seen
from tests.support.defects.building_blocks import (
    AGENTS,
    BUFFERS,
    COLLECTORS,
    ENVIRONMENTS,
    EVALUATION,
    EXPLORATION,
    LEARNING,
    LOSSES,
    PROCESSES,
    RECURRENT_STATE,
    SLICES,
    STORAGE,
    Scaled,
    fills,
)
from tests.support.defects.environments import Corridor
from tests.support.defects.pipelines import CELLS, forked
from tests.support.defects.planting import Defects

DEFECTS = Defects()
plant = DEFECTS.plant

LIMITS = ("values_too_low_at_time_limits", "worse_with_a_shorter_time_limit")
plant(LOSSES, "ppo_lstm", *LIMITS)(seen.environment_terminates_at_its_limit)
plant(LOSSES, "ppo_scaled", *LIMITS)(seen.gae_takes_done_for_terminated)
plant(ENVIRONMENTS, "ppo_many", "frames_after_the_end")(seen.loop_of_ones_own_steps_on)
plant(SLICES, "dqn_priority", "sequences_run_over_episode_ends")(
    seen.slices_are_cut_at_terminated_alone
)


def inside(script, *transforms):
    """Each environment of a batch has these transforms, around itself."""
    maker = script.env_maker()

    def make():
        return TransformedEnv(maker(), Compose(*(one() for one in transforms)))

    script.env_maker = lambda: make


@plant(LOSSES, "ppo_serial", "values_too_low_at_time_limits", "worse_with_a_shorter_time_limit")
def counters_inside_write_terminated(script):
    inside(script, lambda: StepCounter(max_steps=8, truncated_key="terminated"))
    script.transforms = {"return": RewardSum}


@plant(ENVIRONMENTS, "dqn_serial", words=(r"reward", r"constant|same|clip|equal"))
def each_environment_clips_its_rewards_to_one_number(script):
    inside(script, lambda: RewardClipping(0.5, 0.5))


@plant(EVALUATION, "ppo_serial", "return_is_not_the_score")
def rewards_are_scaled_inside_and_summed_outside(script):
    inside(script, lambda: RewardScaling(loc=0.0, scale=0.01))


@plant(
    ENVIRONMENTS,
    "ppo_serial",
    words=(r"norm|observation", r"standard_normal|large|scale|loc|not normal|mean"),
)
def each_environment_normalizes_backwards(script):
    inside(
        script,
        lambda: ObservationNorm(
            loc=500.0, scale=100.0, in_keys=["observation"], standard_normal=False
        ),
    )


@plant(EVALUATION, "sac_car", words=(r"evaluation", r"observation"))
def evaluation_has_no_inner_transform(script):
    script.evaluates = True
    plain = script.env_maker()
    inside(script, lambda: Scaled("observation", 0.1))
    script.make_eval_env = lambda: TransformedEnv(plain(), Compose(StepCounter(), RewardSum()))


@plant(EXPLORATION, "dqn_masked", words=r"mask|forbid|legal")
def mask_has_a_name_that_nobody_reads(script):
    class Renamed(Corridor):
        def __init__(self, **options):
            super().__init__(**options)
            self.observation_spec["legal_actions"] = self.observation_spec["action_mask"]
            del self.observation_spec["action_mask"]

        def observed(self):
            seen = super().observed()
            seen["legal_actions"] = seen.pop("action_mask")
            return seen

    script.task = lambda: Renamed(mask=True)


@plant(AGENTS, "mappo", "always_the_first_action")
def team_of_indices_in_a_one_hot_environment(script):
    made = script.make_actor

    def make():
        actor = made()
        return ProbabilisticActor(
            actor[:-1],
            in_keys=[("agents", "logits")],
            out_keys=[("agents", "action")],
            distribution_class=torch.distributions.Categorical,
            return_log_prob=True,
            default_interaction_type=InteractionType.RANDOM,
        )

    script.make_actor = make


@plant(ENVIRONMENTS, "dqn", "frames_after_the_end")
def own_loop_goes_on_after_the_end(script):
    script.make_collector = lambda: None
    script.also = ("env", "policy")
    script.log_returns = lambda batch: None
    script.does -= {"anneal", "send weights"}

    def rows():
        while True:
            found, now = [], script.env.reset()
            with torch.no_grad():
                for _ in range(script.frames):
                    now = script.env.step(script.policy(now))
                    found.append(now.clone())
                    now = step_mdp(now)
            yield torch.stack(found)

    script.then("optimizer", lambda s: setattr(s, "own", rows()))

    def training():
        script.batches = script.own
        type(script).train(script)

    script.train = training


@plant(BUFFERS, "dqn_slices", "prioritized_replay_draws_evenly")
def slices_are_drawn_by_priorities_that_nobody_sets(script):
    ids = ("collector", "traj_ids")
    script.buffer_options["sampler"] = lambda: PrioritizedSliceSampler(
        script.capacity, alpha=0.7, beta=0.5, slice_len=4, traj_key=ids
    )
    script.buffer_options.setdefault("batch_size", 24)


@plant(LEARNING, "dqn_limited", words=r"nan|infinite|learning rate|lr\b|large|explod|diverg")
def rate_of_a_hundred_with_sgd(script):
    script.make_optimizer = lambda: torch.optim.SGD(script.loss.parameters(), 100.0)


@plant(SLICES, "dqn_serial", "slices_jump_to_another_environment")
def rows_take_turns_and_have_no_ids(script):
    script.buffer_options = {
        "sampler": lambda: SliceSampler(slice_len=4, end_key=("next", "done")),
        "batch_size": 24,
    }
    script.stored = lambda batch: batch.transpose(0, 1).reshape(-1).exclude("collector")


@plant(SLICES, "drqn_gru", "slices_jump_to_another_environment")
def flattened_rows_without_ids(script):
    script.number = 2
    script.buffer_options = {
        "sampler": lambda: SliceSampler(num_slices=6, end_key=("next", "done")),
        "batch_size": 24,
    }
    script.stored = lambda batch: batch.reshape(-1).exclude("collector")


@plant(
    LEARNING, "a2c_acrobot", words=(r"critic|value", r"requires_grad|gradient|frozen|never|train")
)
def critic_does_not_learn(script):
    script.then("critic", lambda s: s.critic.requires_grad_(False))


@plant(ENVIRONMENTS, "ppo_goals", words=(r"observation|goal", r"large|scale"))
def goals_are_in_millimeters(script):
    script.transforms["scale"] = lambda: Scaled("goal", 1e5)


@plant(STORAGE, "sac_memmap", "memmap_buffer_fills_memory")
def memory_map_without_a_folder(script):
    script.storage_options = {}
    script.capacity = 1_000_000


@plant(RECURRENT_STATE, "ppo_gru", "lstm_raises_in_parallel_env_only", loud=True)
def primer_is_missing_around_processes(script):
    script.batched = forked
    script.does -= {"prime"}


@plant(BUFFERS, "iql_discrete", words=(r"action", r"row|shift|late"))
def actions_of_a_data_set_are_a_row_late(script):
    data = script.data

    def late():
        rows = data()
        rows["action"] = rows["action"].roll(1, 0)
        return rows

    script.data = late


@plant(EVALUATION, "ppo_serial", words=(r"evaluation", r"max_steps|limit"))
def evaluation_has_a_limit_inside(script):
    script.evaluates = True

    def make():
        def limited():
            return TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=5))

        return TransformedEnv(SerialEnv(2, limited), RewardSum())

    script.make_eval_env = make
    script.then("eval_env", lambda s: s.eval_env.reset())


@plant(LOSSES, "qmix", words=r"gamma|discount")
def team_with_a_gamma_of_zero(script):
    script.gamma = 0.0


@plant(EXPLORATION, "ddpg_ou", "collector_keeps_its_own_policy")
def noise_stands_around_a_copy_of_the_actor(script):
    def change(script):
        script.policy = TensorDictSequential(copy.deepcopy(script.actor), script.explore)

    script.then("policy", change)


@plant(LOSSES, "ippo", "advantages_look_like_noise", "ppo_worse_with_small_minibatches")
def team_estimates_on_shuffled_rows(script):
    estimate = script.estimate

    def shuffled(batch):
        rows = batch.reshape(-1)
        rows = rows[torch.randperm(len(rows))]
        estimate(rows)
        script.batch = rows
        script.rows = rows

    script.estimate = shuffled

    def samples(batch):
        for _ in range(script.epochs):
            script.buffer.extend(script.rows)
            yield from script.buffer

    script.samples = samples


@plant(BUFFERS, "qmix", "loss_stays_high_with_normalized_observations")
def team_normalizes_in_the_buffer(script):
    key = ("agents", "observation")
    script.buffer_options["transform"] = lambda: ObservationNorm(
        0.5, 3.0, in_keys=[key], out_keys=[key]
    )


@plant(COLLECTORS, "sac_corridor", "hook_changes_nothing_that_is_stored")
def hook_scales_a_reward_that_it_holds(script):
    def scale(batch):
        reward = batch["next"]["reward"]
        reward *= 0.1

    fills(script, post_collect_hook=scale)


@plant(EVALUATION, "a2c_acrobot", "episode_return_looks_too_low")
def mean_of_all_running_sums_is_logged(script):
    script.log_returns = lambda batch: script.log(
        episode_reward=batch["next", "episode_reward"].mean()
    )


@plant(PROCESSES, "dqn_workers", "workers_never_learn")
def workers_make_policies_of_their_own(script):
    made = script.collector_type

    def collector(env, policy, **options):
        twin = copy.deepcopy(policy)
        return made(env, None, policy_factory=lambda: twin, **options)

    script.collector_type = collector
    script.does -= {"send weights"}


@plant(EVALUATION, "ppo_running_norm", "good_in_training_poor_in_evaluation")
def evaluations_use_a_fresh_running_norm(script):
    script.make_eval_env = script.fresh_env
    log = script.log_returns

    def log_and_evaluate(batch):
        log(batch)
        with torch.no_grad():
            script.eval_env.rollout(50, script.policy, break_when_any_done=False)

    script.log_returns = log_and_evaluate


@plant(AGENTS, "mappo_continuous", "advantages_leak_between_environments")
def team_batch_that_ends_within_episodes_is_flattened(script):
    script.frames = 90
    script.collector_options["postproc"] = lambda batch: batch.reshape(-1)


@plant(PROCESSES, "ppo_workers", "every_environment_starts_alike")
def nobody_seeds_the_workers(script):
    script.does -= {"seed"}


@plant(PROCESSES, "ppo_parallel", "workers_normalize_differently")
def each_process_has_its_own_statistics(script):
    inside(script, lambda: VecNormV2(in_keys=["observation"]))


@plant(PROCESSES, "ppo_running_norm", "workers_normalize_differently")
def each_place_has_its_own_statistics(script):
    inside(script, lambda: VecNormV2(in_keys=["observation"]))
    script.evaluates = False
    del script.transforms["norm"]


@plant(PROCESSES, "dqn_workers", "sequences_mix_workers")
def workers_are_joined_in_time_and_cut_at_done(script):
    script.collector_options["cat_results"] = -1
    script.does -= {"flatten"}
    script.buffer_options = {
        "sampler": lambda: SliceSampler(num_slices=6, end_key=("next", "done")),
        "batch_size": 24,
    }


@plant(PROCESSES, "ppo_workers", "advantages_wrong_with_several_workers")
def workers_are_joined_in_their_first_dimension(script):
    script.collector_options["cat_results"] = 0


@plant(PROCESSES, "ppo_workers", "collector_keeps_its_own_policy")
def loss_trains_a_copy_of_what_workers_have(script):
    script.then("policy", lambda s: setattr(s, "policy", copy.deepcopy(s.policy)))


class OneDraw(Corridor):
    """All environments of a batch start from one random number."""

    def start(self):
        return super().start()[:1].expand(*self.batch_size, 1).clone()


@plant(ENVIRONMENTS, "ppo_many", "every_environment_starts_alike")
def one_draw_is_for_all_environments(script):
    script.task = lambda: OneDraw(batch_size=(4,))


class WholeNumbers(Corridor):
    def __init__(self, **options):
        super().__init__(**options)
        self.observation_spec["observation"] = Unbounded((3,), dtype=torch.int64)

    def move(self, action):
        return super().move(action.float())  # random ones are boolean


@plant(ENVIRONMENTS, "dqn_serial", "decimals_are_lost")
def spec_has_whole_numbers(script):
    cast = functools.partial(DTypeCastTransform, torch.int64, torch.float32, ["observation"])
    script.task = WholeNumbers
    script.transforms["float"] = cast


class Cuts(gymnasium.Wrapper):
    """Ends an episode at a limit of its own, and calls that terminated."""

    def __init__(self, env):
        super().__init__(env)
        self.limit = 10

    def reset(self, **options):
        self.steps = 0
        return self.env.reset(**options)

    def step(self, action):
        seen, reward, terminated, truncated, more = self.env.step(action)
        self.steps += 1
        return seen, reward, terminated or self.steps >= self.limit, truncated, more


@plant(LOSSES, "sac a2c", *reversed(LIMITS))
def wrapper_of_gymnasium_terminates_at_its_limit(script):
    name = "Pendulum-v1" if script.task == "pendulum" else "CartPole-v1"
    script.env_maker = lambda: lambda: GymWrapper(Cuts(gymnasium.make(name)))
    del script.transforms["steps"]


@plant(LOSSES, "vtrace", "log_prob_not_found", loud=True)
def vtrace_gets_no_log_probabilities(script):
    script.distribution_options = {"return_log_prob": False}


@plant(SLICES, "dqn_n_step td3_n_step", "n_step_next_observation_wrong")
def steps_of_compact_observations_are_summed(script):
    script.collector_options["compact_obs"] = True
    script.updates = 0


@plant(RECURRENT_STATE, "drqn_gru", "next_hidden_state_is_zero")
def compact_observations_of_a_recurrent_policy(script):
    script.collector_options["compact_obs"] = True
    script.updates = 0


@plant(SLICES, "sac", "off_policy_loss_is_nan")
def compact_observations_reach_the_loss(script):
    script.does -= {"flatten"}
    script.collector_options["compact_obs"] = True
    script.buffer_options = {
        "batch_size": 24,
        "sampler": lambda: SliceSampler(slice_len=6, traj_key=("collector", "traj_ids")),
        "transform": lambda: NextStateReconstructor(step_count_key="step_count"),
    }


@plant(EVALUATION, "ippo", "episode_return_looks_too_low")
def mean_of_the_running_sums_of_a_team_is_logged(script):
    key = ("next", "agents", "episode_reward")
    script.log_returns = lambda batch: script.log(train_return=batch[key].mean())


@plant(EXPLORATION, "dqn_workers", "epsilon_never_goes_down")
def nobody_anneals_what_workers_do(script):
    script.does -= {"anneal"}


@plant(BUFFERS, "sac", "values_are_zero_for_no_reason")
def key_comes_with_later_batches(script):
    fill = script.fill

    def later(batch):
        if len(script.buffer):
            batch["bonus"] = torch.ones(batch.shape)
        fill(batch)

    script.fill = later


@plant(LEARNING, "ppo", "value_loss_dwarfs_the_policy")
def networks_share_layers_and_rewards_are_large(script):
    script.transforms["scale"] = lambda: RewardScaling(0.0, 1000.0)
    script.loss_options["loss_critic_type"] = "l2"
    made = script.make_actor

    def make():
        actor = made()
        body = actor[0][0]  # from the observation to logits
        script.make_critic = lambda: TensorDictSequential(
            body, ValueOperator(nn.Linear(2, 1), in_keys=["logits"])
        )
        return actor

    script.make_actor = make


@plant(COLLECTORS, "sac dqn_noisy", "collector_keeps_its_own_policy")
def factory_makes_a_copy(script):
    made = script.collector_type

    def collector(env, policy, **options):
        twin = copy.deepcopy(policy)
        return made(env, policy_factory=lambda: twin, **options)

    script.collector_type = collector
    script.does -= {"send weights"}


@plant(RECURRENT_STATE, "ppo_gru", "environments_share_one_memory")
def memory_takes_sequences_by_default(script):
    def memory():
        if "rnn" not in vars(script):
            script.rnn = GRUModule(
                input_size=4,
                hidden_size=CELLS,
                in_key="observation",
                out_key="features",
                default_recurrent_mode=True,
            )
            script.env.append_transform(script.rnn.make_tensordict_primer())
        return script.rnn

    script.memory = memory


@plant(SLICES, "drqn_gru", "sequences_run_into_each_other")
def plain_buffer_loses_the_ends_of_slices(script):
    ids = ("collector", "traj_ids")
    sampler = SliceSampler(slice_len=4, traj_key=ids)
    script.seen = lambda sample: sample
    script.make_buffer = lambda: ReplayBuffer(
        storage=LazyTensorStorage(500), sampler=sampler, batch_size=24
    )


@plant(EVALUATION, "ddpg_ou", "evaluation_takes_random_actions")
def evaluation_has_correlated_noise(script):
    script.evaluates = True
    script.also = ("batch", "policy")

    def change(script):
        with torch.no_grad():
            script.batch = script.eval_env.rollout(60, script.policy)

    script.then("train", change)


@plant(LOSSES, "ppo_lambda", "advantages_look_like_noise")
def rows_are_shuffled_before_lambda_returns(script):
    estimate, samples = script.estimate, script.samples

    def shuffled(batch):
        script.batch = batch[torch.randperm(len(batch))].contiguous()
        estimate(script.batch)

    script.estimate = shuffled
    script.samples = lambda batch: samples(script.batch)


@plant(AGENTS, "mappo_continuous", "actions_and_bounds_differ")
def team_uses_the_upper_half_of_its_range(script):
    made = script.make_actor

    def make():
        return ProbabilisticActor(
            made()[0],
            in_keys=[("agents", "loc"), ("agents", "scale")],
            out_keys=[("agents", "action")],
            distribution_class=TanhNormal,
            distribution_kwargs={"low": 0.0, "high": 1.0},
            return_log_prob=True,
            default_interaction_type=InteractionType.RANDOM,
        )

    script.make_actor = make


@plant(EVALUATION, "td3", "actor_of_many_fails_in_one", loud=True)
def actor_has_the_bounds_of_two(script):
    script.number = 2


@plant(RECURRENT_STATE, "drqn", "lstm_outputs_change_after_done")
def stored_rows_never_begin(script):
    def stored(batch):
        return batch.set("is_init", torch.zeros_like(batch["is_init"]))

    script.stored = stored


@plant(RECURRENT_STATE, "ppo_gru", "critic_ignores_the_past_in_gae")
def critic_has_a_memory_of_its_own_and_takes_single_steps(script):
    script.does -= {"recurrent mode in the estimator"}

    def make():
        keys = {"in_keys": ["observation", "past"], "out_keys": ["seen", ("next", "past")]}
        memory = GRUModule(input_size=4, hidden_size=CELLS, **keys)
        return TensorDictSequential(memory, ValueOperator(nn.Linear(CELLS, 1), in_keys=["seen"]))

    script.make_critic = make


@plant(EXPLORATION, "dqn", "epsilon_never_goes_down")
def epsilon_takes_one_step_for_each_batch(script):
    script.does -= {"anneal"}
    script.greedy_options["annealing_num_steps"] = 6_000
    script.collector_options["total_frames"] = 12_000
    log = script.log_returns

    def step(batch):
        log(batch)
        script.explore.step()

    script.log_returns = step


@plant(EXPLORATION, "dqn_limited dqn_serial", "epsilon_never_goes_down")
def nobody_says_how_many_frames_epsilon_has(script):
    epsilon_takes_one_step_for_each_batch(script)
    del script.collector_options["total_frames"]
    script.greedy_options["annealing_num_steps"] = 4_000_000
    script.frames = 120


@plant(BUFFERS, "td3", "reading_changes_the_buffer")
def rewards_are_scaled_through_a_view(script):
    fill = script.fill

    def scaled(batch):
        fill(batch)
        script.buffer[:]["next", "reward"].mul_(0.1)

    script.fill = scaled


@plant(LOSSES, "sac_car", *LIMITS)
def ends_are_called_terminated_where_they_are_stored(script):
    def stored(batch):
        return batch.set(("next", "terminated"), batch["next", "done"]).reshape(-1)

    script.stored = stored


@plant(ENVIRONMENTS, "td3", words=(r"RewardClipping", r"reward", r"equal"))
def rewards_are_all_beyond_their_clipping(script):
    script.transforms["clip"] = lambda: RewardClipping(-0.01, 0.01)


@plant(ENVIRONMENTS, "sac", words=(r"SignTransform", r"reward", r"equal"))
def sign_is_all_that_is_left_of_a_cost(script):
    script.transforms["sign"] = lambda: SignTransform(in_keys=["reward"])


@plant(ENVIRONMENTS, "ppo_normalized", words=(r"one after the other",))
def observations_are_normalized_twice(script):
    script.evaluates = False
    script.transforms["again"] = lambda: ObservationNorm(
        loc=3.0, scale=20.0, in_keys=["observation"], standard_normal=True
    )


@plant(ENVIRONMENTS, "dqn_pixels", words=(r"pixels", r"twice"))
def pixels_are_divided_twice(script):
    script.transforms["again"] = lambda: Scaled("pixels", 1 / 255)


class Swaps(gymnasium.Wrapper):
    """Calls what terminates truncated, and the other way round."""

    def step(self, action):
        seen, reward, terminated, truncated, more = self.env.step(action)
        return seen, reward, truncated, terminated, more


@plant(ENVIRONMENTS, "ppo ppo_serial", words=(r"ends that the game calls terminated",))
def terminated_and_truncated_are_swapped(script):
    script.env_maker = lambda: lambda: GymWrapper(Swaps(gymnasium.make("CartPole-v1")))


@plant(LOSSES, "dqn", words=(r"values", r"reach"))
def q_values_leave_a_softmax(script):
    layers = script.layers
    script.layers = lambda inputs, outputs: nn.Sequential(layers(inputs, outputs), nn.Softmax(-1))


@plant(BUFFERS, "dqn_priority", words=r"use_prioritized_weights")
def weights_of_priorities_are_left_out(script):
    script.loss_options["use_prioritized_weights"] = False


@plant(BUFFERS, "dqn", words=(r"the loss gets", r"no sample"))
def loss_gets_the_batch_and_no_sample(script):
    update = script.update
    script.update = lambda sample: update(script.batch)


@plant(LOSSES, "a2c", words=(r"advantage", r"nan"), loud=None)
def advantages_are_normalized_one_by_one(script):
    estimate = script.estimate

    def normalized(batch):
        estimate(batch)
        advantage = batch["advantage"]
        batch["advantage"] = (advantage - advantage.mean(-1, True)) / advantage.std(-1, True)

    script.estimate = normalized


@plant(LOSSES, "ppo_masked", words=(r"old log-probabilities",))
def old_log_probabilities_are_computed_anew(script):
    update = script.update

    def anew(sample):
        with torch.no_grad():
            chosen = script.actor.get_dist(sample).log_prob(sample["action"])
        update(sample.set("action_log_prob", chosen))

    script.update = anew


@plant(LEARNING, "sac_corridor", words=(r"first of their optimizer",))
def optimizer_is_made_for_each_step(script):
    update = script.update

    def anew(sample):
        script.optimizer, kept = script.make_optimizer(), script.optimizer
        update(sample)
        script.optimizer = kept

    script.update = anew


@plant(PROCESSES, "ppo_parallel", words=(r"RewardClipping\(0.5", r"reward", r"equal"))
def rewards_are_clipped_in_processes(script):
    inside(script, lambda: RewardClipping(0.5, 0.5))


@plant(PROCESSES, "ppo_parallel", *LIMITS)
def counters_in_processes_write_terminated(script):
    inside(script, lambda: StepCounter(max_steps=8, truncated_key="terminated"))
    script.transforms = {"return": RewardSum}


@plant(PROCESSES, "ppo_parallel", "return_is_not_the_score")
def rewards_are_scaled_in_processes(script):
    inside(script, lambda: RewardScaling(loc=0.0, scale=0.01))


@plant(PROCESSES, "ppo_parallel", words=(r"evaluation", r"observation"))
def evaluation_lacks_what_processes_have(script):
    plain = script.env_maker()
    inside(script, lambda: Scaled("observation", 0.1))
    script.evaluates = True
    script.make_eval_env = lambda: TransformedEnv(plain(), Compose(StepCounter(), RewardSum()))


@plant(LEARNING, "ppo dqn sac", "loss_is_maximized", "a_setting_is_out_of_range")
def optimizer_maximizes(script):
    script.make_optimizer = lambda: torch.optim.Adam(
        script.loss.parameters(), script.learning_rate, maximize=True
    )


@plant(LEARNING, "a2c_acrobot td3 qmix", "loss_is_maximized")
def negative_of_the_loss_goes_backward(script):
    update = script.update

    def negative(sample):
        script.loss, kept = (lambda rows: {k: -v for k, v in kept(rows).items()}), script.loss
        update(sample)
        script.loss = kept

    script.update = negative


class Repeats(gymnasium.Wrapper):
    """Takes each action four times."""

    def step(self, action):
        for _ in range(4):
            seen, reward, terminated, truncated, more = self.env.step(action)
            if terminated or truncated:
                break
        return seen, reward, terminated, truncated, more


@plant(ENVIRONMENTS, "ppo_continuous sac", "repeat_loses_rewards")
def wrapper_returns_the_last_reward(script):
    script.env_maker = lambda: lambda: GymWrapper(Repeats(gymnasium.make("Pendulum-v1")))
