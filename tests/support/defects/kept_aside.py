"""Defects that are kept aside: every third by a checksum of its name.

Who writes checks of the doctor does not read this file, nor what the doctor misses of it, until the
checks are written: the share of these defects that it names tells what it does with pipelines that
nobody has looked at. What version 1.1 missed of the map was looked at then; `newer` took its place.
"""

import copy

import torch
from tensordict.nn import (
    NormalParamExtractor,
    TensorDictModule,
    TensorDictSequential,
)
from torch import nn
from torchrl.data import (
    PrioritizedSampler,
    RandomSampler,
    SliceSampler,
    Unbounded,
)
from torchrl.envs import (
    Compose,
    ExcludeTransform,
    ExplorationType,
    MultiStepTransform,
    ObservationNorm,
    RewardScaling,
    StepCounter,
    TransformedEnv,
    set_exploration_type,
)
from torchrl.envs.transforms import NextObservationDelta
from torchrl.envs.transforms.rb_transforms import NextStateReconstructor
from torchrl.modules import (
    MLP,
    LSTMModule,
    OneHotCategorical,
    QValueModule,
    ValueOperator,
)

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
    Halved,
    Scaled,
    Spoiled,
    Times,
    fills,
    keep_last_steps,
)
from tests.support.defects.environments import Corridor
from tests.support.defects.pipelines import CELLS
from tests.support.defects.planting import Defects

DEFECTS = Defects()
plant = DEFECTS.plant


# --- target networks and value estimation -------------------------------------------------------


@plant(LOSSES, "dqn_n_step td3_n_step", words=(r"gamma|discount", r"multi.?step|n.?step"))
def multi_step_has_another_gamma(script):
    ends = {"done_keys": ["done", "truncated"]}
    script.buffer_options["transform"] = lambda: MultiStepTransform(3, 0.5, **ends)


@plant(LOSSES, "dqn_n_step", words=r"steps_to_next_obs")
def steps_to_next_obs_are_dropped(script):
    steps = script.buffer_options["transform"]
    script.buffer_options["transform"] = lambda: Compose(
        steps(), ExcludeTransform("steps_to_next_obs")
    )


@plant(LOSSES, "ppo_serial", "a_new_gamma_changes_nothing")
def gamma_is_set_on_the_loss(script):
    def change(script):
        script.loss.gamma = 0.5

    script.then("loss", change)


@plant(LOSSES, "dqn_limited", words=r"episode_reward|cumulative|running sum|reward key")
def dqn_reads_the_cumulative_reward(script):
    script.keys = {"reward": "episode_reward"}


@plant(
    LOSSES,
    "dqn_limited sac_car",
    "values_too_low_at_time_limits",
    "worse_with_a_shorter_time_limit",
)
def loss_takes_done_for_terminated(script):
    script.keys = {"terminated": "done"}


@plant(
    LOSSES, "ppo ppo_continuous", "advantages_look_like_noise", "ppo_worse_with_small_minibatches"
)
def gae_on_shuffled_samples(script):
    samples = script.samples

    def estimated(batch):
        for sample in samples(batch):
            script.estimate(sample)
            script.batch = sample
            yield sample

    script.does -= {"estimate"}
    script.samples = estimated


@plant(LOSSES, "ppo_continuous", "stored_log_prob_requires_grad", loud=True)
def rollout_with_gradients(script):
    script.collector_type = None
    script.make_collector = lambda: None

    def train():
        script.batch = script.env.rollout(40, script.actor, break_when_any_done=False)
        script.advantage(script.batch)
        script.update(script.batch)

    script.train = train


@plant(LOSSES, "a2c_acrobot", "gae_none_not_subscriptable", loud=True)
def critic_writes_another_key(script):
    net = MLP(in_features=6, out_features=1, num_cells=[CELLS])
    critic = TensorDictModule(net, in_keys=["observation"], out_keys=["value"])
    script.make_critic = lambda: critic


@plant(LOSSES, "ppo", words=r"clip")
def clip_epsilon_of_zero(script):
    script.loss_options["clip_epsilon"] = 1e-6


@plant(LOSSES, "sac", words=r"target.?entropy")
def target_entropy_has_the_wrong_sign(script):
    script.loss_options["target_entropy"] = 8.0


@plant(LOSSES, "ppo_kl", words=r"reduction|sum")
def loss_is_summed(script):
    script.loss_options["reduction"] = "sum"


@plant(
    LOSSES, "dqn_evaluated", words=r"compact_obs|next.observation|NextStateReconstructor", loud=True
)
def dqn_on_compact_observations(script):
    script.collector_options["compact_obs"] = True


# --- optimization -------------------------------------------------------------------------------


@plant(LEARNING, "ppo_continuous", words=(r"grad", r"clip|norm|small|zero"))
def gradients_are_clipped_to_nothing(script):
    script.largest_gradient = 1e-12


@plant(LEARNING, "dqn_list", words=r"dropout|training mode|eval|noise|random")
def q_network_has_dropout(script):
    script.dropout = 0.5


# --- exploration --------------------------------------------------------------------------------


@plant(EXPLORATION, "dqn drqn qmix", "epsilon_never_goes_down")
def epsilon_is_never_stepped(script):
    script.does -= {"anneal"}


@plant(EXPLORATION, "ddpg td3", words=(r"explor|noise|sigma", r"zero|0|none|never|no "))
def noise_of_zero(script):
    script.noise_options |= {"sigma_init": 0.0, "sigma_end": 0.0}


@plant(EXPLORATION, "td3_n_step", words=r"noise|sigma|bound|saturat|clip")
def noise_drowns_the_action(script):
    script.noise_options |= {"sigma_init": 500.0, "sigma_end": 500.0}


@plant(
    EXPLORATION,
    "ddpg",
    "epsilon_never_goes_down",
    words=(r"sigma|noise|anneal", r"never|same|step|not"),
)
def sigma_is_never_stepped(script):
    script.does -= {"anneal"}


@plant(EXPLORATION, "ddpg_ou", "is_init_not_found", words=(r"is_init|InitTracker",), loud=None)
def ou_noise_without_init_tracker(script):
    del script.transforms["init"]


@plant(
    EXPLORATION,
    "ppo ppo_continuous",
    "stochastic_policy_does_not_sample",
    words=(r"deterministic|mode|explor|sampl",),
)
def collector_is_deterministic(script):
    script.collector_options["exploration_type"] = ExplorationType.DETERMINISTIC


@plant(EXPLORATION, "dqn_noisy", "noisy_network_repeats_its_noise")
def noise_is_never_drawn_again(script):
    script.does -= {"reset noise"}


@plant(EXPLORATION, "ppo_masked", words=r"mask")
def mask_is_not_given_to_the_actor(script):
    script.distribution_options = {
        "in_keys": ["logits"],
        "distribution_class": OneHotCategorical,
    }


@plant(EXPLORATION, "dqn_masked", words=r"mask")
def exploration_ignores_the_mask(script):
    script.greedy_options = {"action_mask_key": None, "annealing_num_steps": 500}


@plant(
    EXPLORATION, "a2c_continuous", words=(r"action", r"bound|range|low|high|outside|limits|clip")
)
def actions_are_not_squashed(script):
    script.distribution_options = {
        "distribution_class": torch.distributions.Normal,
        "distribution_kwargs": {},
    }
    made = script.module

    def wide(net, in_keys, out_keys):
        if isinstance(net, NormalParamExtractor):
            net = nn.Sequential(Times(200.0), net)
        return made(net, in_keys, out_keys)

    script.module = wide


# --- collectors ---------------------------------------------------------------------------------


@plant(COLLECTORS, "dqn", "actions_stay_random")
def collector_has_no_policy(script):
    script.does -= {"send weights"}
    script.then("policy", lambda s: setattr(s, "policy", None))
    script.then("policy", lambda s: setattr(s, "explore", None))


@plant(
    COLLECTORS,
    "sac_memmap dqn_random_start",
    "actions_stay_random",
    words=(r"init_random_frames|random",),
)
def random_frames_never_end(script):
    script.collector_options["init_random_frames"] = 10**8


@plant(COLLECTORS, "dqn_serial ddpg a2c", "collector_keeps_its_own_policy")
def collector_gets_a_copy_of_the_policy(script):
    script.then("policy", lambda s: setattr(s, "policy", copy.deepcopy(s.policy)))


@plant(COLLECTORS, "sac", "collector_keeps_its_own_policy")
def loss_gets_a_copy_of_the_actor(script):
    script.then("collector", lambda s: setattr(s, "actor", copy.deepcopy(s.actor)))


@plant(COLLECTORS, "a2c", "kept_batches_are_all_the_same")
def batches_are_kept_in_a_list(script):
    script.collector_options["return_same_td"] = True
    kept = []
    script.then("train", lambda s: setattr(s, "batch", kept))
    log = script.log_returns

    def keep(batch):
        kept.append(batch)
        log(batch)

    script.log_returns = keep


@plant(COLLECTORS, "ppo_serial", "more_frames_than_asked_for", words=())
def frames_do_not_divide_by_the_environments(script):
    script.frames = 100


@plant(COLLECTORS, "ppo_lambda", "collector_yields_nothing", words=())
def whole_trajectories_after_each_reset(script):
    script.frames = 10
    script.rounds = 0
    script.goes_on = False  # it would wait for ever
    script.task = "acrobot"
    script.collector_options |= {"trajs_per_batch": 2, "reset_at_each_iter": True}


@plant(COLLECTORS, "ppo_many", "whole_trajectories_blame_split_trajs", loud=True)
def whole_trajectories_of_a_batched_environment(script):
    script.collector_options |= {"trajs_per_batch": 2}
    script.transforms = {}
    script.collector_options["track_traj_ids"] = False


@plant(COLLECTORS, "ppo_gru", words=r"reset|hidden|state|carr")
def environment_is_reset_in_each_batch(script):
    script.collector_options["reset_at_each_iter"] = True
    script.frames = 8


# --- evaluation ---------------------------------------------------------------------------------


@plant(EVALUATION, "ppo_evaluated", "evaluation_takes_random_actions", words=())
def evaluation_samples(script):
    script.also = ("batch", "policy")

    def change(script):
        with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
            script.batch = script.eval_env.rollout(60, script.policy)

    script.then("train", change)


@plant(EVALUATION, "ppo_running_norm", "good_in_training_poor_in_evaluation")
def evaluation_has_a_fresh_running_norm(script):
    script.make_eval_env = script.fresh_env


@plant(
    EVALUATION, "ppo_normalized", "good_in_training_poor_in_evaluation", words=(r"norm", r"eval")
)
def evaluation_does_not_normalize(script):
    def make():
        transforms = [make() for name, make in script.transforms.items() if name != "norm"]
        return TransformedEnv(script.batched_env(0), Compose(*transforms))

    script.make_eval_env = make


@plant(
    EVALUATION,
    "ppo_running_norm",
    words=(r"statistic|norm", r"eval|grow|frozen|freeze|update|shar"),
)
def evaluation_updates_the_statistics(script):
    def make():
        env = script.fresh_env()
        env.rollout(2)
        env.transform[0].load_state_dict(script.env.transform[0].state_dict())
        return env

    script.make_eval_env = make


# --- environments -------------------------------------------------------------------------------


@plant(ENVIRONMENTS, "dqn_serial", "always_the_first_action")
def one_hot_environment_gets_an_index(script):
    def make():
        head = QValueModule(action_space="categorical")
        return TensorDictSequential(*script.body(2, "action_value"), head)

    script.make_actor = make
    script.loss_options["action_space"] = "categorical"
    script.then("policy", lambda s: setattr(s, "policy", s.actor))
    script.then("policy", lambda s: setattr(s, "explore", None))


@plant(ENVIRONMENTS, "a2c_acrobot", "decimals_are_lost")
def reward_spec_is_of_integers(script):
    class Whole(Corridor):
        def __init__(self, **options):
            super().__init__(**options)
            self.reward_spec = Unbounded((*self.batch_size, 1), dtype=torch.int64)

    script.task = Whole
    script.transforms = {"steps": StepCounter}


@plant(ENVIRONMENTS, "a2c ddpg", words=(r"reward", r"large|magnitude|scale|size|up to"))
def rewards_are_huge(script):
    script.transforms["scale"] = lambda: RewardScaling(loc=0.0, scale=1e6)


@plant(
    ENVIRONMENTS,
    "ppo_goals td3",
    words=(r"observation", r"large|scale|magnitude|normaliz|size|up to|range"),
)
def observations_are_huge(script):
    script.transforms["large"] = lambda: Scaled("observation", 1e5)


@plant(
    ENVIRONMENTS,
    "ppo_normalized",
    words=(r"norm|scale|observation", r"large|zero|size|standard|scale|up to"),
)
def statistics_of_one_observation(script):
    script.transforms["norm"] = lambda: ObservationNorm(
        loc=0.0, scale=1e-7, in_keys=["observation"], standard_normal=True
    )


# --- replay buffers -----------------------------------------------------------------------------


@plant(BUFFERS, "dqn_priority", "prioritized_replay_draws_evenly", words=())
def alpha_of_zero(script):
    script.buffer_options["sampler"] = lambda: PrioritizedSampler(
        script.capacity, alpha=1e-8, beta=0.4
    )


@plant(BUFFERS, "sac_corridor", "reading_changes_the_buffer", words=())
def sample_transform_writes_in_place(script):
    script.buffer_options = {"batch_size": 24, "transform": Halved}
    fill = script.fill

    def fill_and_read(batch):
        fill(batch)
        script.log(mean_reward=script.buffer[:]["next", "reward"].mean())

    script.fill = fill_and_read


@plant(BUFFERS, "ppo_kl", "first_samples_after_refill_are_old")
def on_policy_buffer_prefetches(script):
    script.buffer_options = {"batch_size": 20, "prefetch": 3}

    def samples(batch):
        script.buffer.empty()
        script.buffer.extend(batch.reshape(-1))
        for _ in range(3):
            yield script.buffer.sample()

    script.samples = samples


@plant(BUFFERS, "td3 sac_corridor", "samples_differ_from_what_the_policy_saw")
def buffer_normalizes_what_the_policy_sees_raw(script):
    script.buffer_options["transform"] = lambda: ObservationNorm(
        1.0, 20.0, ["observation", ("next", "observation")]
    )


@plant(BUFFERS, "dqn", "loss_stays_high_with_normalized_observations")
def buffer_normalizes_the_first_observation_alone(script):
    script.buffer_options["transform"] = lambda: ObservationNorm(1.0, 20.0, ["observation"])


@plant(BUFFERS, "cql td3_bc", words=(r"action", r"bound|range|outside|spec|low|high"))
def stored_actions_are_out_of_range(script):
    data = script.data

    def scaled():
        rows = data()
        rows["action"] *= 50
        return rows

    script.data = scaled


@plant(BUFFERS, "cql_discrete", words=(r"action", r"one|same|constant|single|never"))
def data_set_has_one_action(script):
    data = script.data

    def same():
        rows = data()
        rows["action"] = rows["action"][:1].expand_as(rows["action"]).clone()
        return rows

    script.data = same


@plant(
    BUFFERS, "cql_discrete", words=(r"observation|normal", r"differ|scale|range|normal|environment")
)
def data_set_is_on_another_scale(script):
    data = script.data

    def scaled():
        rows = data()
        for key in ("observation", ("next", "observation")):
            rows[key] = rows[key] * 255
        return rows

    script.data = scaled


# --- trajectories and slices --------------------------------------------------------------------


@plant(SLICES, "dqn_slices", "slice_sampler_refuses_trajectory_key", loud=True)
def sampler_takes_trajectory_key(script):
    script.buffer_options["sampler"] = lambda: SliceSampler(
        slice_len=4, trajectory_key=("collector", "traj_ids")
    )


@plant(SLICES, "drqn", "sampler_refuses_the_batch_size", loud=True)
def batch_size_is_no_multiple_of_the_slice(script):
    script.buffer_options["batch_size"] = 25


@plant(SLICES, "dqn_slices", "no_trajectory_is_long_enough", loud=True)
def slices_are_longer_than_episodes(script):
    script.buffer_options["sampler"] = lambda: SliceSampler(
        slice_len=400, traj_key=("collector", "traj_ids")
    )
    script.buffer_options["batch_size"] = 800


@plant(SLICES, "dqn_slices offline_slices", "short_episodes_are_never_replayed")
def slices_are_longer_than_most_episodes(script):
    length = 20 if script.offline else 12  # the greedy policy lets the pole fall after 8 to 15
    script.slices = length
    script.frames = 120
    script.buffer_options = {
        "sampler": lambda: SliceSampler(slice_len=length, traj_key=("collector", "traj_ids")),
        "batch_size": 2 * length,
    }


@plant(SLICES, "a2c_continuous", "mean_reward_is_far_too_low")
def padded_trajectories_are_flattened(script):
    script.collector_options["split_trajs"] = True
    script.with_buffer = True
    script.capacity = 400
    script.buffer_options = {"batch_size": 20}

    def samples(batch):
        script.buffer.extend(batch.reshape(-1))
        for _ in range(3):
            yield script.buffer.sample()

    script.samples = samples


@plant(
    SLICES,
    "dqn_n_step_serial",
    "n_step_next_observation_wrong",
    words=(r"step", r"environment|interleav|flatten"),
)
def n_step_over_flattened_environments(script):
    script.storage_options = {}
    script.stored = lambda batch: batch.transpose(0, 1).reshape(-1)


# --- recurrent state ----------------------------------------------------------------------------


@plant(RECURRENT_STATE, "ppo_lstm drqn_gru a2c_lstm", "lstm_forgets_every_step", loud=None)
def state_is_not_carried(script):
    script.does -= {"prime"}


@plant(RECURRENT_STATE, "drqn ppo_gru", "is_init_not_found", loud=True)
def environment_has_no_init_tracker(script):
    del script.transforms["init"]


@plant(RECURRENT_STATE, "drqn", "lstm_learns_nothing_from_the_past", "ppo_ratio_off_in_minibatches")
def single_rows_train_the_lstm(script):
    script.buffer_options = {"batch_size": 24, "sampler": RandomSampler}
    script.seen = lambda sample: sample.unsqueeze(-1)


@plant(RECURRENT_STATE, "a2c_lstm", "two_lstms_share_their_memory", loud=None)
def actor_and_critic_have_the_same_state_keys(script):
    def make():
        lstm = LSTMModule(input_size=4, hidden_size=CELLS, in_key="observation", out_key="seen")
        head = ValueOperator(nn.Linear(CELLS, 1), in_keys=["seen"])
        return TensorDictSequential(lstm, head)

    script.make_critic = make
    script.make_policy = lambda: TensorDictSequential(script.actor, script.critic)


# --- memory and storage -------------------------------------------------------------------------


@plant(STORAGE, "sac_corridor", "first_extend_takes_all_memory", loud=True)
def storage_for_a_trillion_rows(script):
    script.capacity = 10**12


@plant(STORAGE, "a2c", "one_kept_step_keeps_the_batch", words=())
def first_steps_are_kept(script):
    keep_last_steps(script, 0)


@plant(STORAGE, "ppo_serial dqn_serial", "one_step_cannot_be_stored", loud=True)
def one_step_of_each_environment(script):
    script.does -= {"flatten"}
    script.frames = script.number
    script.storage_options = {"ndim": 2}
    script.capacity = 100
    if hasattr(script, "fill"):
        script.stored = lambda batch: batch[:, 0]
    script.rounds = 6


@plant(STORAGE, "dqn", "filling_a_buffer_raises_about_dimensions", loud=True)
def storage_has_two_dimensions_and_the_batch_one(script):
    script.storage_options = {"ndim": 2}
    fills(script)


# --- several processes --------------------------------------------------------------------------


@plant(PROCESSES, "dqn_workers ppo_workers", "workers_never_learn")
def weights_are_never_sent(script):
    made = script.collector_type

    def collector(env, policy, **options):  # workers share the memory of a policy that they get
        twin = copy.deepcopy(policy)
        return made(env, None, policy_factory=lambda: twin, **options)

    script.collector_type = collector
    script.does -= {"send weights"}


@plant(PROCESSES, "ppo_workers", "advantages_wrong_with_several_workers")
def batches_of_workers_are_joined_in_time(script):
    script.collector_options["cat_results"] = 0


# --- several agents -----------------------------------------------------------------------------


@plant(AGENTS, "ippo", words=(r"reward", r"episode_reward|cumulative|sum"))
def team_reads_the_cumulative_reward(script):
    script.team_keys = script.team_keys | {"reward": ("agents", "episode_reward")}


@plant(AGENTS, "mappo_continuous", words=r"entropy")
def entropy_of_the_team_is_punished(script):
    script.loss_options["entropy_coeff"] = -1.0


@plant(AGENTS, "mappo", words=(r"reward", r"nan"), loud=None)
def rewards_of_one_agent_are_nan(script):
    script.transforms["spoil"] = lambda: Spoiled(("agents", "reward"), float("nan"))


@plant(AGENTS, "mappo_continuous", "advantages_leak_between_environments")
def team_batch_is_flattened_before_gae(script):
    script.collector_options["postproc"] = lambda batch: batch.reshape(-1)


@plant(AGENTS, "qmix", words=(r"reward", r"large|scale|magnitude|size|up to"))
def team_reward_is_huge(script):
    script.transforms["scale"] = lambda: RewardScaling(loc=0.0, scale=1e6)


@plant(
    AGENTS,
    "mappo",
    "stochastic_policy_does_not_sample",
    words=(r"deterministic|mode|explor|sampl",),
)
def team_collects_without_sampling(script):
    script.collector_options["exploration_type"] = ExplorationType.DETERMINISTIC


@plant(AGENTS, "mappo", words=(r"agents?|observation", r"constant|same|zero|never"))
def observations_of_the_team_are_constant(script):
    script.transforms["constant"] = lambda: Scaled(("agents", "observation"), 0.0)


# --- GRPO ---------------------------------------------------------------------------------------


@plant(LOSSES, "grpo", words=(r"advantage", r"nan"), loud=None)
def advantage_is_divided_by_zero(script):
    def estimate(batch):
        score = batch["next", "reward"].sum(-2, keepdim=True)
        advantage = (score - score) / (score - score)
        batch["advantage"] = advantage.expand_as(batch["next", "reward"]).clone()

    script.estimate = estimate


@plant(STORAGE, "dqn_pixels", "sampling_raises_nonetype_floating", loud=True)
def observations_to_rebuild_have_another_name(script):
    del script.transforms["image"]
    module = script.module
    script.module = lambda net, *keys: module(nn.Sequential(Times(1 / 255), net), *keys)
    script.slices = 6
    script.does -= {"flatten"}
    script.collector_options["compact_obs"] = True
    script.buffer_options = {
        "batch_size": 24,
        "sampler": lambda: SliceSampler(slice_len=6, traj_key=("collector", "traj_ids")),
        "transform": lambda: NextStateReconstructor(step_count_key="step_count"),
    }


@plant(STORAGE, "sac_corridor", "restored_observations_infinite")
def delta_of_halves_overflows(script):
    class Far(Corridor):
        def observed(self):
            seen = super().observed()
            return {"observation": 1e5 * (self.time % 2) + seen["observation"]}

    script.task = lambda: Far(continuous=True)
    script.evaluates = False
    script.transforms["delta"] = lambda: NextObservationDelta(in_keys=["observation"])
    script.buffer_options["transform"] = script.transforms["delta"]


@plant(COLLECTORS, "dqn_serial", "stopping_a_rollout_raises", loud=True)
def interrupted_rollout_fills_a_buffer(script):
    class Stops:
        def collection_stopped(self):
            return True

    fills(script, interruptor=Stops())
