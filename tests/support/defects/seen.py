"""Defects that those who write checks may look at, each planted in a healthy pipeline."""

import copy
import functools
import shutil
import tempfile

import gymnasium
import torch
from tensordict import TensorDict
from tensordict.nn import (
    InteractionType,
    NormalParamExtractor,
    TensorDictSequential,
)
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import (
    Bounded,
    LazyMemmapStorage,
    PrioritizedSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    Unbounded,
)
from torchrl.envs import (
    CatFrames,
    Compose,
    ExplorationType,
    GymEnv,
    GymWrapper,
    InitTracker,
    ObservationNorm,
    RewardClipping,
    RewardScaling,
    RewardSum,
    SerialEnv,
    StepCounter,
    TensorDictPrimer,
    ToTensorImage,
    TransformedEnv,
    check_env_specs,
    set_exploration_type,
    step_mdp,
)
from torchrl.envs.transforms import NextObservationDelta
from torchrl.envs.transforms.rb_transforms import NextStateReconstructor
from torchrl.modules import (
    EGreedyModule,
    LSTMModule,
    ProbabilisticActor,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss, SoftUpdate
from torchrl.objectives.value import GAE

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
    Doubles,
    Scaled,
    Shifted,
    Spoiled,
    Times,
    fills,
    keep_last_steps,
    made_like,
    ready,
    rowwise,
)
from tests.support.defects.environments import Corridor
from tests.support.defects.pipelines import CELLS, ActorCritic, Joined, OnPolicy
from tests.support.defects.planting import Defects

DEFECTS = Defects()
plant = DEFECTS.plant


# --- target networks and value estimation -------------------------------------------------------


@plant(LOSSES, "dqn sac td3", "target_updater_never_steps", "q_values_stop_improving")
def updater_is_never_called(script):
    script.does -= {"move targets"}


@plant(LOSSES, "dqn_dueling ddpg", "target_updater_never_steps", "q_values_stop_improving")
def updater_with_eps_one(script):
    script.updater_options = {"eps": 1.0}


@plant(LOSSES, "sac_corridor", "target_updater_never_steps", "q_values_stop_improving")
def updater_with_tau_zero(script):
    script.updater_options = {"tau": 0.0}


@plant(LOSSES, "dqn_double", "target_updater_never_steps", "q_values_stop_improving")
def hard_update_once_in_a_million(script):
    script.updater_options = {"value_network_update_interval": 1_000_000}


@plant(LOSSES, "redq", "target_updater_never_steps", "q_values_stop_improving")
def updater_of_a_copy_of_the_loss(script):
    def change(script):
        other = copy.deepcopy(script.loss)
        script.updater = SoftUpdate(other, eps=0.95)

    script.then("updater", change)


@plant(LOSSES, "dqn_limited iql", "q_values_stop_improving", "target_updater_never_steps")
def no_updater_at_all(script):
    script.does -= {"move targets"}
    script.then("updater", lambda script: setattr(script, "updater", None))


@plant(LOSSES, "dqn", words=(r"target", r"eps|tau|online|delay|same|equal|each step"))
def targets_copy_the_network_each_step(script):
    script.updater_options = {"eps": 0.0}


@plant(LOSSES, "ppo", words=(r"gamma|discount", r"estimator|loss|GAE"))
def loss_and_gae_have_different_gammas(script):
    script.then("loss", lambda script: script.loss.make_value_estimator(gamma=0.5))


@plant(LOSSES, "sac_car", "a_new_gamma_changes_nothing")
def gamma_is_set_as_an_attribute(script):
    def change(script):
        script.loss.gamma = 0.9

    script.then("train", change)


@plant(LOSSES, "a2c_continuous", words=r"gamma|lmbda|lambda")
def gamma_and_lambda_are_swapped_and_one(script):
    script.advantage_options = {"gamma": 0.95, "lmbda": 1.5}


@plant(LOSSES, "ppo_many", words=r"gamma|discount")
def gamma_of_zero(script):
    script.gamma = 0.0


@plant(LOSSES, "ppo_scaled", words=r"episode_reward|cumulative|running sum|reward key")
def gae_reads_the_cumulative_reward(script):
    script.then("advantage", lambda s: s.advantage.set_keys(reward="episode_reward"))


@plant(
    LOSSES, "ppo_evaluated", words=(r"critic|value network", r"GAE|estimator|copy|another|other")
)
def gae_has_a_copy_of_the_critic(script):
    def change(script):
        script.advantage_options = {"value_network": copy.deepcopy(script.critic)}

    script.then("critic", change)


@plant(LOSSES, "ppo_limited", "values_too_low_at_time_limits", "worse_with_a_shorter_time_limit")
def gae_takes_done_for_terminated(script):
    script.then("advantage", lambda s: s.advantage.set_keys(terminated="done"))


@plant(LOSSES, "ppo_stacked", "values_too_low_at_time_limits", "worse_with_a_shorter_time_limit")
def environment_terminates_at_its_limit(script):
    class Ends(Corridor):
        def flags(self):
            done = (self.place >= self.target) | (self.time >= self.limit)
            return {"terminated": done, "truncated": torch.zeros_like(done), "done": done}

    script.task = Ends


@plant(LOSSES, "a2c", "values_too_low_at_time_limits", "worse_with_a_shorter_time_limit")
def step_counter_writes_terminated(script):
    script.transforms["steps"] = lambda: StepCounter(max_steps=8, truncated_key="terminated")


@plant(LOSSES, "ppo_serial", "advantages_leak_between_environments")
def batch_is_flattened_before_gae(script):
    estimate = script.estimate

    def flat(batch):
        rows = batch.reshape(-1)
        estimate(rows)
        batch.update(rows.reshape(batch.shape))

    script.estimate = flat


@plant(LOSSES, "ppo_limited", "advantages_leak_between_environments")
def flat_batch_is_kept(script):
    script.collector_options["postproc"] = lambda batch: batch.reshape(-1)


@plant(LOSSES, "ppo_categorical", "ppo_worse_with_small_minibatches", "advantages_look_like_noise")
def loss_estimates_in_minibatches(script):
    script.does -= {"estimate"}
    script.then("advantage", lambda s: setattr(s, "advantage", None))


@plant(LOSSES, "ppo_kl", "log_prob_not_found", loud=True)
def actor_returns_no_log_prob(script):
    script.distribution_options = {"return_log_prob": False}


@plant(LOSSES, "ppo_value_clipped", "state_value_missing_on_some_batches", loud=True)
def advantage_is_computed_without_the_value(script):
    estimate = script.estimate

    def without(batch):
        estimate(batch)
        batch.exclude("state_value", inplace=True)

    script.estimate = without


@plant(LOSSES, "ppo_goals", "ppo_clips_before_the_first_update", words=())
def actor_has_dropout(script):
    made = script.make_actor

    def dropout():
        script.dropout = 0.5
        actor = made()
        script.dropout = 0.0
        return actor

    script.make_actor = dropout


@plant(LOSSES, "a2c", words=r"grad|graph")
def advantage_keeps_its_graph(script):
    script.advantage_options = {"differentiable": True}
    script.estimate = lambda batch: script.advantage(batch)


@plant(LOSSES, "ppo_lambda", words=r"entropy")
def entropy_is_punished(script):
    script.loss_options["entropy_coeff"] = -0.5


@plant(LOSSES, "a2c_continuous ppo_stacked", words=r"entropy")
def entropy_outweighs_the_return(script):
    script.loss_options["entropy_coeff"] = 50.0


@plant(LOSSES, "ppo_serial", words=r"clip", loud=None)
def clip_epsilon_of_twenty(script):
    script.loss_options["clip_epsilon"] = 20.0


@plant(LOSSES, "a2c_acrobot", words=(r"critic|value", r"coeff|zero|never|gradient|train"))
def critic_is_not_trained(script):
    script.loss_options["critic_coeff"] = 0.0


@plant(LOSSES, "sac_corridor", words=r"alpha|temperature")
def alpha_is_huge_and_fixed(script):
    script.loss_options |= {"alpha_init": 1e4, "fixed_alpha": True}


@plant(LOSSES, "iql", words=r"expectile")
def expectile_below_the_median(script):
    script.loss_options["expectile"] = 0.01


@plant(LOSSES, "iql_discrete", words=r"temperature")
def temperature_of_zero(script):
    script.loss_options["temperature"] = 0.0


@plant(LOSSES, "dqn_distributional", words=r"support|atoms|v_?max")
def support_is_narrower_than_the_returns(script):
    script.support = (0.0, 0.5)


@plant(
    LOSSES,
    "ppo_scaled a2c_continuous",
    words=(r"value|critic", r"tanh|bound|range|between|saturat"),
)
def values_end_in_a_tanh(script):
    made = script.make_critic

    def squashed():
        critic = made()
        net = nn.Sequential(critic.module, nn.Tanh())
        return ValueOperator(net, in_keys=list(script.inputs))

    script.make_critic = squashed


@plant(LOSSES, "sac ddpg", words=(r"critic|qvalue|q-value|value network", r"action"))
def critic_does_not_read_the_action(script):
    def blind():
        net = Joined(script.layers(script.sizes(), 1))
        return ValueOperator(net, in_keys=list(script.inputs), out_keys=["state_action_value"])

    script.make_critic = blind


@plant(LOSSES, "dqn_rebuilt", "off_policy_loss_is_nan")
def rows_without_a_next_observation_are_trained_on(script):
    script.seen = lambda sample: sample


# --- optimization -------------------------------------------------------------------------------


@plant(
    LEARNING,
    "ppo sac",
    words=(r"critic|value|qvalue", r"gradient|optimi|never|frozen|not change|train"),
)
def optimizer_has_the_actor_alone(script):
    script.make_optimizer = lambda: torch.optim.Adam(
        script.loss.actor_network_params.values(True, True), 1e-3
    )


@plant(
    LEARNING,
    "a2c",
    words=(r"parameter|weights|optimi|network", r"optimi|never|not change|unchanged|frozen|same"),
)
def optimizer_of_a_copy(script):
    def make():
        return torch.optim.Adam(copy.deepcopy(script.loss).parameters(), 1e-3)

    script.make_optimizer = make


@plant(
    LEARNING,
    "dqn_dueling",
    words=(
        r"learning rate|lr\b|parameter|weights|network|optimi",
        r"zero|never|not change|unchanged|same|0",
    ),
)
def learning_rate_of_zero(script):
    script.learning_rate = 0.0


@plant(LEARNING, "dqn_pixels", words=r"nan|infinite|learning rate|lr\b|large|explod|diverg")
def learning_rate_of_a_thousand(script):
    script.learning_rate = 1000.0


@plant(
    LEARNING,
    "ppo_categorical ddpg",
    words=(r"actor|policy", r"requires_grad|gradient|frozen|never|train"),
)
def actor_is_frozen(script):
    script.then("actor", lambda s: s.actor.requires_grad_(False))


@plant(LEARNING, "td3", words=r"grad")
def gradients_are_never_zeroed(script):
    script.does -= {"zero the gradients"}


@plant(
    LEARNING,
    "ppo_lambda",
    words=(r"actor|policy|objective", r"gradient|never|train|not change|unchanged"),
)
def critic_loss_alone_is_trained(script):
    def update(sample):
        script.loss(sample)["loss_critic"].backward()
        script.optimizer.step()
        script.optimizer.zero_grad()

    script.update = update


@plant(LEARNING, "ppo_many", words=r"relu|dead|constant|zero|same|never changes")
def units_are_dead(script):
    script.activation = nn.ReLU

    def change(script):
        first = next(m for m in script.actor.modules() if isinstance(m, nn.Linear))
        nn.init.constant_(first.bias, -1e4)

    script.then("actor", change)


@plant(LEARNING, "a2c_continuous", words=r"scale|std|deviation|entropy|deterministic")
def standard_deviation_has_collapsed(script):
    made = script.module

    def narrow(net, in_keys, out_keys):
        if isinstance(net, NormalParamExtractor):
            net = NormalParamExtractor(scale_mapping="exp", scale_lb=1e-8)
            net = nn.Sequential(Shifted(-18.0), net)
        return made(net, in_keys, out_keys)

    script.module = narrow


@plant(LEARNING, "ppo_continuous", words=r"scale|std|deviation|saturat|bound|entropy")
def standard_deviation_is_huge(script):
    made = script.module

    def wide(net, in_keys, out_keys):
        if isinstance(net, NormalParamExtractor):
            net = nn.Sequential(Shifted(8.0), NormalParamExtractor(scale_mapping="exp"))
        return made(net, in_keys, out_keys)

    script.module = wide


@plant(LEARNING, "reinforce ppo_masked", words=r"softmax|probability|probabilities|logits")
def probabilities_are_given_as_logits(script):
    made = script.make_actor
    module = script.module

    def softmax(net, in_keys, out_keys):
        if out_keys == ["logits"]:
            net = nn.Sequential(net, nn.Softmax(-1))
        return module(net, in_keys, out_keys)

    def make():
        script.module = softmax
        actor = made()
        script.module = module
        return actor

    script.make_actor = make


@plant(LEARNING, "dqn", words=(r"weight.?decay|weights|parameters", r"decay|zero|shrink|small"))
def weight_decay_kills_the_weights(script):
    script.make_optimizer = lambda: torch.optim.AdamW(
        script.loss.parameters(), 1e-2, weight_decay=100.0
    )


@plant(
    LEARNING,
    "ppo_stacked",
    words=(
        r"observation|input|feature|network",
        r"ignor|zero|constant|not depend|same|no effect|unused|read|never changes",
    ),
)
def network_multiplies_its_input_by_zero(script):
    layers = script.layers
    script.layers = lambda inputs, outputs: nn.Sequential(Times(0.0), layers(inputs, outputs))


# --- exploration --------------------------------------------------------------------------------


@plant(EXPLORATION, "dqn_limited", "epsilon_never_goes_down")
def epsilon_anneals_over_a_billion_steps(script):
    script.greedy_options["annealing_num_steps"] = 10**9


@plant(EXPLORATION, "dqn_serial", "epsilon_never_goes_down", words=())
def epsilon_ends_where_it_begins(script):
    script.greedy_options |= {"eps_init": 1.0, "eps_end": 1.0}


@plant(EXPLORATION, "dqn_dueling", words=(r"eps|explor", r"zero|0|greedy|never|no exploration"))
def epsilon_is_zero(script):
    script.greedy_options |= {"eps_init": 0.0, "eps_end": 0.0}


@plant(EXPLORATION, "dqn_memmap", words=r"explor|e-?greedy|never random|greedy")
def collector_gets_the_greedy_policy(script):
    script.then("policy", lambda s: setattr(s, "policy", s.actor))


@plant(EXPLORATION, "ppo a2c_continuous", "stochastic_policy_does_not_sample")
def rollouts_by_hand_take_the_mode(script):
    script.interaction = InteractionType.DETERMINISTIC
    script.make_collector = lambda: None
    script.also = ("batch", "env", "policy")

    def train():
        for _ in range(script.rounds):
            with torch.no_grad():
                script.batch = script.env.rollout(40, script.actor, break_when_any_done=False)
            script.estimate(script.batch)
            for _ in range(2):
                script.update(script.batch)

    script.train = train


@plant(EXPLORATION, "dqn_noisy", "noisy_network_never_learns_its_noise")
def noise_follows_the_exploration_type(script):
    script.noise_options = {}


@plant(EXPLORATION, "dqn_noisy", "noisy_network_never_learns_its_noise", words=())
def noisy_network_is_in_eval_mode(script):
    script.then("actor", lambda s: s.actor.eval())


@plant(EXPLORATION, "dqn_masked", words=r"mask")
def mask_is_inverted(script):
    class Inverted(Corridor):
        def observed(self):
            seen = super().observed()
            seen["action_mask"] = torch.cat([self.place < 1, self.place >= 0], -1)
            return seen

    script.task = lambda: Inverted(mask=True)


@plant(EXPLORATION, "ppo_continuous sac", words=(r"action", r"bound|range|low|high|half|limits"))
def actor_uses_half_of_the_action_range(script):
    script.bounds = (-1.0, 1.0)


@plant(EXPLORATION, "sac_corridor", words=(r"action", r"bound|range|low|high|outside|limits"))
def actor_leaves_the_action_range(script):
    script.bounds = (-20.0, 20.0)


# --- collectors ---------------------------------------------------------------------------------


@plant(COLLECTORS, "ppo", "log_probability_is_zero")
def ppo_begins_with_random_frames(script):
    script.collector_options["init_random_frames"] = 10_000


@plant(COLLECTORS, "dqn", "set_truncated_marks_nothing")
def truncation_asked_of_a_collector_with_a_buffer(script):
    fills(script, set_truncated=True, extend_buffer=False)


@plant(COLLECTORS, "sac_corridor", "hook_changes_nothing_that_is_stored")
def hook_scales_rewards_that_are_stored_elsewhere(script):
    def scale(batch):
        batch["next", "reward"].mul_(0.1)

    fills(script, post_collect_hook=scale)


@plant(COLLECTORS, "ppo_limited", "max_frames_per_traj_is_refused", loud=True)
def limit_is_given_twice(script):
    script.collector_options["max_frames_per_traj"] = 20


@plant(COLLECTORS, "a2c", "update_weights_wants_data", loud=True)
def update_takes_the_policy(script):
    script.then("collector", lambda s: s.collector.update_policy_weights_(s.policy))


@plant(COLLECTORS, "dqn_list", words=(r"twice|duplicate|same row|each row|repeated",))
def rows_are_stored_twice(script):
    fill = script.fill

    def twice(batch):
        fill(batch)
        fill(batch)

    script.fill = twice


@plant(COLLECTORS, "sac", words=(r"buffer", r"another|other|not the|two|differ|empty"))
def collector_fills_another_buffer(script):
    other = {}

    def make_collector():
        other["buffer"] = script.make_buffer()
        script.collector_options["replay_buffer"] = other["buffer"]
        return ActorCritic.make_collector(script)

    script.log_returns = lambda batch: None
    script.stored = lambda batch: script.env.rollout(40, break_when_any_done=False)
    script.make_collector = make_collector
    ready(script)


@plant(COLLECTORS, "dqn_serial dqn_workers", "collector_keeps_its_own_policy")
def exploration_stands_around_a_copy(script):
    script.then("policy", lambda s: setattr(s, "policy", copy.deepcopy(s.policy)))


@plant(COLLECTORS, "sac_memmap", "actions_stay_random")
def random_frames_without_end(script):
    script.collector_options["init_random_frames"] = 10**9


@plant(COLLECTORS, "dqn", words=(r"episode|trajector", r"limit|short|frames"))
def trajectories_of_two_frames(script):
    script.transforms = {"return": RewardSum}
    script.collector_options["max_frames_per_traj"] = 2


@plant(COLLECTORS, "sac", words=(r"reset", r"batch|each"))
def each_batch_begins_anew(script):
    script.frames, script.rounds = 8, 6
    script.collector_options["reset_at_each_iter"] = True


# --- evaluation ---------------------------------------------------------------------------------


@plant(EVALUATION, "dqn_evaluated", "evaluation_takes_random_actions")
def evaluation_explores(script):
    script.also = ("batch", "policy")

    def change(script):
        with torch.no_grad():
            script.batch = script.eval_env.rollout(60, script.policy)

    script.then("train", change)


@plant(EVALUATION, "dqn_evaluated", "evaluation_collector_explores")
def evaluation_collector_in_a_context(script):
    def change(script):
        script.eval_collector = Collector(
            script.eval_env, script.policy, frames_per_batch=40, total_frames=-1,
            auto_register_policy_transforms=False,
        )  # fmt: skip
        with set_exploration_type(ExplorationType.DETERMINISTIC):
            script.batch = next(iter(script.eval_collector))
        script.collector.shutdown()
        script.collector = script.eval_collector

    script.goes_on = False
    script.then("train", change)


@plant(EVALUATION, "ppo_normalized", "good_in_training_poor_in_evaluation")
def evaluation_has_its_own_statistics(script):
    def make():
        env = script.fresh_env()
        env.transform[0].init_stats(num_iter=5, reduce_dim=0, cat_dim=0)
        return env

    script.make_eval_env = make


@plant(EVALUATION, "ppo_serial", "evaluation_rollout_ends_too_early", words=())
def evaluation_stops_with_the_first_environment(script):
    script.evaluates = True
    script.also = ("batch",)

    def change(script):
        with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
            script.batch = script.eval_env.rollout(200, script.policy)

    script.make_eval_env = lambda: script.fresh_env(4)
    script.then("train", change)


@plant(EVALUATION, "ppo_evaluated", words=(r"same|one|shared|both", r"eval|environment"))
def evaluation_uses_the_training_environment(script):
    script.make_eval_env = lambda: script.env


@plant(EVALUATION, "ppo_scaled dqn", "return_is_not_the_score")
def return_is_summed_after_scaling(script):
    script.transforms = {
        "steps": StepCounter,
        "scale": lambda: RewardScaling(loc=0.0, scale=0.01),
        "return": RewardSum,
    }


@plant(EVALUATION, "dqn_limited", "return_is_not_the_score")
def return_is_summed_after_clipping(script):
    script.transforms = {
        "steps": StepCounter,
        "clip": lambda: RewardClipping(-0.1, 0.1),
        "return": RewardSum,
    }


@plant(EVALUATION, "dqn_dueling", "actor_of_many_fails_in_one", loud=True)
def policy_has_the_spec_of_many(script):
    script.number = 2
    script.evaluates = True
    script.also = ("policy",)

    def make_policy():
        script.explore = EGreedyModule(spec=script.env.action_spec, annealing_num_steps=500)
        return TensorDictSequential(script.actor, script.explore)

    def change(script):
        script.policy(script.eval_env.reset())

    script.make_policy = make_policy
    script.then("eval_env", change)


@plant(EVALUATION, "ppo_evaluated", words=(r"evaluation", r"max_steps|limit"))
def evaluation_has_another_limit(script):
    def make():
        return TransformedEnv(script.batched_env(0), Compose(StepCounter(max_steps=5), RewardSum()))

    script.make_eval_env = make


@plant(EVALUATION, "sac_corridor", words=(r"evaluation", r"observation"))
def evaluation_lacks_a_transform(script):
    script.transforms["scale"] = lambda: Scaled("observation", 0.1)

    def make():
        return TransformedEnv(script.batched_env(0), Compose(StepCounter(), RewardSum()))

    script.make_eval_env = make


# --- environments -------------------------------------------------------------------------------


@plant(ENVIRONMENTS, "ppo_many dqn_pixels", "only_the_first_episode_is_long")
def reset_forgets_the_clock(script):
    class Forgets(Corridor):
        def _reset(self, tensordict):
            time = getattr(self, "time", None)
            out = super()._reset(tensordict)
            if time is not None:
                self.time = time
                out.update(self.observed())
            return out

    script.task = made_like(script, Forgets)


@plant(ENVIRONMENTS, "ppo", "always_the_first_action")
def categorical_actor_in_a_one_hot_environment(script):
    script.distribution_options = {"distribution_class": torch.distributions.Categorical}
    made = script.make_actor

    def make():
        actor = made()
        return ProbabilisticActor(
            actor[:-1],
            in_keys=["logits"],
            distribution_class=torch.distributions.Categorical,
            return_log_prob=True,
            default_interaction_type=InteractionType.RANDOM,
        )

    script.make_actor = make


@plant(ENVIRONMENTS, "ppo_serial", "every_environment_starts_alike")
def each_environment_has_the_same_seed(script):
    make = script.make_env

    def seeded():
        env = make()
        env.set_seed(0, static_seed=True)
        return env

    script.make_env = seeded


@plant(ENVIRONMENTS, "dqn_serial", "every_environment_starts_alike")
def factory_seeds_the_environment(script):
    class Seeded(Corridor):
        def _set_seed(self, seed):
            self.generator.manual_seed(0)

    script.task = Seeded


@plant(
    ENVIRONMENTS,
    "sac_corridor",
    "only_the_first_episode_is_long",
    "frames_after_the_end",
    words=(r"done|ends?\b", r"reset|after|first|every|each"),
)
def done_stays_after_a_reset(script):
    class Sticky(Corridor):
        def flags(self):
            flags = super().flags()
            self.over = getattr(self, "over", torch.zeros_like(flags["done"])) | flags["done"]
            return flags | {"done": self.over.clone(), "terminated": self.over.clone()}

        def _reset(self, tensordict):
            out = super()._reset(tensordict)
            return out.update({k: torch.zeros_like(out[k]) for k in ("done", "terminated")})

    script.task = lambda: Sticky(continuous=True)


@plant(ENVIRONMENTS, "ppo_stacked", "frames_after_the_end")
def loop_of_ones_own_steps_on(script):
    script.also = ("batch", "env", "policy")
    script.make_collector = lambda: None

    def train():
        rows, now = [], script.env.reset()
        with torch.no_grad():
            for _ in range(40):
                now = script.env.step(script.actor(now))
                rows.append(now.clone())
                now = step_mdp(now)
        script.batch = torch.stack(rows)
        script.estimate(script.batch)
        script.update(script.batch)

    script.train = train


@plant(ENVIRONMENTS, "a2c_continuous", "specs_and_data_disagree", loud=True)
def observation_has_another_type(script):
    class Double(Corridor):
        def observed(self):
            return {"observation": super().observed()["observation"].double()}

    def change(script):
        check_env_specs(script.env)

    script.task = lambda: Double(continuous=True)
    script.then("env", change)


@plant(ENVIRONMENTS, "ppo_continuous", words=r"float64|double", loud=True)
def observations_are_doubles(script):
    del script.transforms["norm"]
    script.transforms.pop("float", None)
    script.transforms["double"] = lambda: Doubles()


@plant(ENVIRONMENTS, "dqn_slices td3_bc ppo_goals", words=(r"reward", r"nan"), loud=None)
def some_rewards_are_nan(script):
    script.transforms["spoil"] = lambda: Spoiled("reward", float("nan"))


@plant(ENVIRONMENTS, "sac_priority", words=(r"reward", r"inf"), loud=None)
def some_rewards_are_infinite(script):
    script.transforms["spoil"] = lambda: Spoiled("reward", float("inf"))


@plant(ENVIRONMENTS, "ppo_many dqn_memmap", words=(r"observation", r"nan|infinite"), loud=None)
def some_observations_are_nan(script):
    script.transforms["spoil"] = lambda: Spoiled("observation", float("nan"))


@plant(
    ENVIRONMENTS,
    "ppo_serial dqn_n_step",
    words=(r"observation", r"constant|same|never change|zero"),
)
def observations_are_constant(script):
    script.transforms["constant"] = lambda: Scaled("observation", 0.0)


@plant(ENVIRONMENTS, "sac ppo_categorical", words=(r"reward", r"constant|zero|same|never"))
def rewards_are_zero(script):
    script.transforms["scale"] = lambda: RewardScaling(loc=0.0, scale=0.0)


@plant(ENVIRONMENTS, "dqn_pixels ppo_pixels", words=r"uint8|255|scale|pixel")
def pictures_are_not_scaled(script):
    script.transforms["image"] = lambda: ToTensorImage(
        from_int=False, unsqueeze=False, shape_tolerant=True
    )


@plant(ENVIRONMENTS, "ppo_many", words=(r"truncated", r"done"))
def truncated_is_not_done(script):
    class Truncates(Corridor):
        def flags(self):
            flags = super().flags()
            return flags | {"done": flags["terminated"].clone()}

    script.task = made_like(script, Truncates)
    script.transforms = {"return": RewardSum}


@plant(ENVIRONMENTS, "dqn_masked", words=(r"done", r"terminated|truncated"))
def done_without_a_reason(script):
    class Reasonless(Corridor):
        def flags(self):
            flags = super().flags()
            none = torch.zeros_like(flags["done"])
            return {"done": flags["done"], "terminated": none, "truncated": none.clone()}

    script.task = made_like(script, Reasonless)


@plant(
    ENVIRONMENTS,
    "sac_corridor",
    words=(r"end|done|limit|truncated|terminat", r"never|no |without|none"),
)
def episodes_never_end(script):
    class Endless(Corridor):
        limit = 10**9
        length = 1e9

    script.task = lambda: Endless(continuous=True)


@plant(
    ENVIRONMENTS,
    "ppo_stacked dqn_masked",
    words=(r"action", r"ignor|no effect|not depend|same|never"),
)
def environment_ignores_the_action(script):
    class Deaf(Corridor):
        def move(self, action):
            return torch.rand((*self.batch_size, 1), generator=self.generator)

    script.task = made_like(script, Deaf)


@plant(
    ENVIRONMENTS,
    "a2c_acrobot",
    "every_environment_starts_alike",
    words=(r"same|shared|one", r"environment"),
)
def one_environment_object_in_all_places(script):
    env = GymEnv("Acrobot-v1")
    script.batched_env = lambda number: SerialEnv(number, lambda: env)


@plant(
    ENVIRONMENTS, "ppo_limited", words=(r"max_steps|limit|length|episode", r"one|1|single|short")
)
def episodes_have_one_step(script):
    script.transforms["steps"] = lambda: StepCounter(max_steps=1)


@plant(
    ENVIRONMENTS,
    "ppo_continuous",
    words=(r"norm|observation", r"standard_normal|large|scale|loc|not normal|mean"),
)
def normalization_is_applied_backwards(script):
    script.transforms["norm"] = lambda: ObservationNorm(
        loc=500.0, scale=100.0, in_keys=["observation"], standard_normal=False
    )


@plant(ENVIRONMENTS, "dqn_limited", words=(r"reward", r"constant|same|clip"))
def clipping_makes_all_rewards_equal(script):
    script.transforms["clip"] = lambda: RewardClipping(0.5, 0.5)


@plant(ENVIRONMENTS, "sac_corridor ppo", words=(r"reward", r"sign|negative"))
def reward_has_the_wrong_sign(script):
    script.transforms["sign"] = lambda: RewardScaling(loc=0.0, scale=-1.0)


@plant(ENVIRONMENTS, "sac", words=(r"reward", r"large|scale"))
def rewards_in_millions(script):
    script.transforms["scale"] = lambda: RewardScaling(loc=0.0, scale=1e6)


@plant(ENVIRONMENTS, "dqn_limited", words=(r"observation", r"large|scale"))
def observations_in_thousands(script):
    script.transforms["scale"] = lambda: Scaled("observation", 1e5)


@plant(ENVIRONMENTS, "ppo", words=(r"reset|start", r"seed|same"))
def wrapper_resets_with_one_seed(script):
    class Seeded(gymnasium.Wrapper):
        def reset(self, **options):
            return self.env.reset(seed=0)

    script.env_maker = lambda: lambda: GymWrapper(Seeded(gymnasium.make("CartPole-v1")))


@plant(ENVIRONMENTS, "sac_corridor", words=(r"observation", r"in place|overwritten"))
def observation_is_changed_in_place(script):
    class InPlace(Corridor):
        def observed(self):
            new = super().observed()["observation"]
            self.seen = getattr(self, "seen", new).copy_(new)
            return {"observation": self.seen}

    script.task = made_like(script, InPlace)


@plant(ENVIRONMENTS, "ppo_many", words=(r"reset", r"other|all"))
def reset_ignores_its_mask(script):
    class All(Corridor):
        def _reset(self, tensordict):
            return super()._reset(None)

    script.task = made_like(script, All)


@plant(ENVIRONMENTS, "dqn_masked", words=(r"observation", r"spec|bound"))
def observation_leaves_its_spec(script):
    class Narrow(Corridor):
        def __init__(self, **options):
            super().__init__(**options)
            self.observation_spec["observation"] = Bounded(0.0, 1.0, (*self.batch_size, 3))

    script.task = made_like(script, Narrow)


# --- replay buffers -----------------------------------------------------------------------------


@plant(BUFFERS, "dqn_priority sac_priority", "prioritized_replay_draws_evenly")
def priorities_are_never_set(script):
    script.does -= {"set priorities"}


@plant(BUFFERS, "dqn_priority", "prioritized_replay_draws_evenly", words=(r"priorit",))
def priority_key_of_the_loss_differs(script):
    script.keys = {"priority": "error_of_td"}
    script.loss_priority = True


@plant(BUFFERS, "dqn_serial ppo_many", "sample_returns_far_more_rows", words=())
def rows_are_stored_with_their_time(script):
    script.does -= {"flatten"}
    script.capacity = 40


@plant(BUFFERS, "dqn_slices", "sample_has_fewer_rows_than_asked")
def slices_may_be_short(script):
    ids = ("collector", "traj_ids")
    script.slices = 30
    script.buffer_options = {
        "sampler": lambda: SliceSampler(slice_len=30, traj_key=ids, strict_length=False),
        "batch_size": 60,
    }


@plant(BUFFERS, "dqn_memmap", "sample_asks_for_a_batch_size", loud=True)
def buffer_without_a_batch_size(script):
    script.buffer_options = {"prefetch": 2}


@plant(BUFFERS, "sac", "sample_asks_for_a_batch_size", loud=True)
def sample_without_a_batch_size(script):
    script.buffer_options = {}


@plant(BUFFERS, "dqn", "sampling_raises_at_the_start", loud=True)
def sampling_before_filling(script):
    script.fill = lambda batch: None


@plant(BUFFERS, "dqn_list", words=(r"capacity|size|rows|small|holds", r"buffer|storage|batch"))
def buffer_is_smaller_than_a_sample(script):
    script.capacity = 8


@plant(
    BUFFERS, "ppo_kl a2c_continuous", words=r"old|earlier|stale|capacity|on-policy|previous|version"
)
def on_policy_buffer_keeps_old_batches(script):
    script.with_buffer = True
    script.capacity = 10_000
    script.buffer_options = {"batch_size": 20}

    def samples(batch):
        script.buffer.extend(batch.reshape(-1))
        for _ in range(3):
            yield script.buffer.sample()

    script.samples = samples


@plant(BUFFERS, "dqn", "values_are_zero_for_no_reason", "buffer_holds_garbage")
def key_is_written_for_some_rows_only(script):
    fill = script.fill

    def partly(batch):
        if not len(script.buffer):
            batch["bonus"] = torch.ones(batch.shape)
        fill(batch)

    script.fill = partly


@plant(BUFFERS, "dqn_random_start", "samples_differ_from_what_the_policy_saw", words=())
def buffer_normalizes_a_second_time(script):
    script.transforms["norm"] = lambda: ObservationNorm(0.5, 3.0, ["observation"])
    script.buffer_options["transform"] = lambda: ObservationNorm(
        0.5, 3.0, ["observation", ("next", "observation")]
    )


@plant(
    BUFFERS, "iql iql_discrete", words=(r"done|terminat|end", r"never|no |none|without|not|false")
)
def data_set_has_no_ends(script):
    data = script.data

    def endless():
        rows = data()
        for name in ("done", "terminated", "truncated"):
            rows["next", name].zero_()
        return rows

    script.data = endless


@plant(BUFFERS, "cql iql", words=(r"next|shift|follow|observation",))
def data_set_is_shifted_by_one(script):
    data = script.data

    def shifted():
        rows = data()
        rows["next", "observation"] = rows["observation"].clone()
        return rows

    script.data = shifted


@plant(BUFFERS, "td3_bc", words=(r"reward", r"zero|constant|never"))
def data_set_has_lost_its_rewards(script):
    data = script.data

    def zero():
        rows = data()
        rows["next", "reward"].zero_()
        return rows

    script.data = zero


@plant(BUFFERS, "dqn_priority", "prioritized_replay_draws_evenly")
def priorities_have_no_weight(script):
    sampler = functools.partial(PrioritizedSampler, script.capacity, alpha=0.0, beta=0.4)
    script.buffer_options["sampler"] = sampler


@plant(BUFFERS, "dqn", words=(r"buffer|storage", r"batch", r"holds|small"))
def buffer_is_smaller_than_a_batch(script):
    script.capacity = 30


class Repeats(RandomSampler):
    def sample(self, storage, batch_size):
        generator = torch.Generator().manual_seed(0)
        return torch.randint(len(storage), (batch_size,), generator=generator), {}


@plant(BUFFERS, "dqn_memmap", words=(r"same|repeat", r"row|sample"))
def sampler_is_seeded_each_time(script):
    script.buffer_options["sampler"] = Repeats


@plant(BUFFERS, "sac_car", "values_too_low_at_time_limits", "worse_with_a_shorter_time_limit")
def only_done_is_stored(script):
    later = [("next", key) for key in ("observation", "reward", "done")]
    script.stored = lambda batch: batch.reshape(-1).select("observation", "action", *later)


@plant(BUFFERS, "sac", "reading_changes_the_buffer")
def stored_rewards_are_centered(script):
    def change(script):
        rows = script.buffer[:]
        rows["next", "reward"].sub_(rows["next", "reward"].mean())

    script.then("train", change)


# --- trajectories and slices --------------------------------------------------------------------


@plant(SLICES, "dqn_serial", "slices_jump_to_another_environment")
def slices_of_interleaved_environments(script):
    # Steps of the environments take turns, as those who put time first flatten them.
    script.buffer_options = {
        "sampler": lambda: SliceSampler(slice_len=4, end_key=("next", "done")),
        "batch_size": 24,
    }
    script.stored = lambda batch: batch.transpose(0, 1).reshape(-1)


@plant(SLICES, "drqn_gru", "slices_jump_to_another_environment", words=())
def flattened_environments_are_cut_at_done(script):
    script.number = 2
    script.buffer_options = {
        "sampler": lambda: SliceSampler(slice_len=4, end_key=("next", "done")),
        "batch_size": 24,
    }
    script.stored = lambda batch: batch.reshape(-1)


@plant(SLICES, "dqn_limited", "sequences_run_over_episode_ends")
def slices_are_cut_at_terminated_alone(script):
    script.buffer_options = {
        "sampler": lambda: SliceSampler(slice_len=4, end_key=("next", "terminated")),
        "batch_size": 24,
    }


@plant(SLICES, "drqn", "sequences_run_into_each_other")
def flat_slices_reach_the_lstm(script):
    script.seen = lambda sample: sample
    script.buffer_options = {
        "sampler": lambda: SliceSampler(
            slice_len=4, traj_key=("collector", "traj_ids"), truncated_key=None
        ),
        "batch_size": 24,
    }


@plant(SLICES, "vtrace", "sequences_run_into_each_other", words=())
def vtrace_on_flat_slices(script):
    script.capacity = 200
    script.buffer_options = {
        "sampler": lambda: SliceSampler(
            slice_len=8, traj_key=("collector", "traj_ids"), truncated_key=None, strict_length=False
        ),
        "batch_size": 32,
    }

    def samples(batch):
        script.buffer.extend(batch.reshape(-1))
        for _ in range(2):
            sample = script.buffer.sample()
            script.estimate(sample)
            yield sample

    script.samples = samples


@plant(SLICES, "dqn_slices", "sequences_mix_two_runs")
def two_collectors_fill_one_buffer(script):
    fill = script.fill

    def both(batch):
        if not hasattr(script, "second"):
            env = script.make_env()
            script.second = iter(Collector(
                env, script.policy, frames_per_batch=script.frames, total_frames=-1,
                auto_register_policy_transforms=False,
            ))  # fmt: skip
        fill(batch)
        fill(next(script.second))

    script.fill = both


@plant(SLICES, "dqn_serial", "end_signal_has_two_dimensions", loud=True)
def sampler_reads_two_dimensions(script):
    script.does -= {"flatten"}
    script.buffer_options = {
        "sampler": lambda: SliceSampler(slice_len=4, end_key=("next", "done")),
        "batch_size": 24,
    }


@plant(SLICES, "dqn_limited dqn_memmap", "stacked_frames_of_different_episodes", words=())
def frames_are_stacked_from_single_rows(script):
    seen, later = ["observation"], [("next", "observation")]
    script.inputs = ("stacked",)
    script.transforms["stack"] = lambda: CatFrames(N=4, dim=-1, in_keys=seen, out_keys=["stacked"])
    script.buffer_options["transform"] = lambda: CatFrames(
        N=4, dim=-1, in_keys=seen + later, out_keys=["stacked", ("next", "stacked")]
    )
    script.stored = lambda batch: batch.reshape(-1).exclude("stacked", ("next", "stacked"))


@plant(SLICES, "dqn_rebuilt", "most_next_observations_nan")
def rebuilding_from_single_rows(script):
    script.buffer_options["sampler"] = RandomSampler
    script.slices = None


@plant(SLICES, "dqn_rebuilt", "next_observation_of_another_step", words=())
def rebuilding_without_step_counts(script):
    script.buffer_options["transform"] = NextStateReconstructor
    script.number = 2
    script.stored = lambda batch: batch.transpose(0, 1).reshape(-1).exclude("step_count")
    script.buffer_options["sampler"] = lambda: SliceSampler(
        slice_len=6, end_key=("next", "done"), strict_length=False
    )
    script.buffer_options["transform"] = lambda: NextStateReconstructor(step_count_key=None)


# --- recurrent state ----------------------------------------------------------------------------


class Regression(nn.Module):
    """A loss of one's own, which is no `LossModule`: values against rewards."""

    def __init__(self, network, key):
        super().__init__()
        self.network, self.key = network, key

    def forward(self, sample):
        values = self.network(sample)[self.key]
        error = nn.functional.mse_loss(values, sample["next", "reward"])
        return TensorDict(loss_value=error)


@plant(RECURRENT_STATE, "drqn_gru a2c_lstm", "lstm_learns_nothing_from_the_past", words=())
def loss_runs_without_recurrent_mode(script):
    script.does -= {"recurrent mode"}

    def change(script):
        key = "state_value" if script.critic is not None else "chosen_action_value"
        script.loss = Regression(script.critic or script.actor, key)

    script.then("updater", change)


@plant(RECURRENT_STATE, "ppo_lstm", "critic_ignores_the_past_in_gae")
def estimator_runs_without_recurrent_mode(script):
    script.does -= {"recurrent mode in the estimator"}

    def make_critic():
        states = ["critic_h", "critic_c"]
        memory = LSTMModule(
            input_size=script.sizes(),
            hidden_size=8,
            in_keys=["observation", *states],
            out_keys=["critic_features", *(("next", one) for one in states)],
        )
        return TensorDictSequential(
            memory, ValueOperator(nn.Linear(8, 1), in_keys=["critic_features"])
        )

    script.make_critic = make_critic


@plant(
    RECURRENT_STATE, "ppo_lstm", "ppo_ratio_off_in_minibatches", "lstm_learns_nothing_from_the_past"
)
def minibatches_of_single_steps(script):
    script.does |= {"flatten"}
    script.capacity = script.frames
    script.buffer_options = {"sampler": SamplerWithoutReplacement, "batch_size": 20}
    script.update = functools.partial(rowwise, script)


@plant(RECURRENT_STATE, "ppo_gru", "gae_raises_with_lstm", loud=True)
def gae_uses_vmap(script):
    script.advantage_options = {"deactivate_vmap": False}


@plant(RECURRENT_STATE, "drqn", "lstm_outputs_differ_in_slices")
def hidden_states_are_not_stored(script):
    script.stored = lambda batch: batch.exclude("recurrent_state_h", "recurrent_state_c")


@plant(RECURRENT_STATE, "ppo_gru", "primer_raises_in_batched_env", loud=True)
def primer_has_the_shape_of_one(script):
    script.does -= {"prime"}

    def change(script):
        primer = TensorDictPrimer({"recurrent_state": Unbounded((1, CELLS))})
        script.env.append_transform(primer)
        script.env.reset()

    script.then("env", change)


@plant(RECURRENT_STATE, "ppo_lstm", "lstm_outputs_change_after_done")
def hidden_state_survives_the_reset(script):
    class Never(InitTracker):
        def _reset(self, tensordict, tensordict_reset):
            out = super()._reset(tensordict, tensordict_reset)
            out[self.init_keys[0]] = torch.zeros_like(out[self.init_keys[0]])
            return out

    script.transforms["init"] = Never


# --- memory and storage -------------------------------------------------------------------------


@plant(STORAGE, "dqn_memmap", "memmap_buffer_fills_memory")
def memory_map_lies_in_shared_memory(script):
    folder = tempfile.mkdtemp(dir="/dev/shm")
    script.storage_options = {"scratch_dir": folder}
    script.capacity = 1_000_000
    script.clean = lambda: shutil.rmtree(folder, ignore_errors=True)


@plant(STORAGE, "sac_memmap", "buffer_outlives_its_files")
def memory_map_in_a_temporary_folder(script):
    folder = tempfile.mkdtemp()
    script.storage_options = {"scratch_dir": folder}
    script.buffer_options = {"batch_size": 24}
    # The watched loop is told once more that it has trained.
    script.then("train", lambda s: shutil.rmtree(folder, ignore_errors=True))


@plant(STORAGE, "dqn_memmap", "buffer_file_already_exists", loud=True)
def folder_of_an_earlier_run(script):
    folder = tempfile.mkdtemp()
    script.storage_options = {"scratch_dir": folder, "existsok": False}
    script.clean = lambda: shutil.rmtree(folder, ignore_errors=True)

    def change(script):
        other = LazyMemmapStorage(500, scratch_dir=folder)
        other.set(range(4), script.env.rollout(4, break_when_any_done=False))

    script.then("env", change)


@plant(STORAGE, "dqn_serial", "one_kept_step_keeps_the_batch")
def last_steps_are_kept(script):
    keep_last_steps(script)


@plant(STORAGE, "dqn_pixels", "delta_saves_no_memory", words=())
def delta_of_pictures(script):
    del script.transforms["image"]
    script.transforms["delta"] = lambda: NextObservationDelta(in_keys=["pixels"])
    module = script.module
    script.module = lambda net, *keys: module(nn.Sequential(Times(1 / 255), net), *keys)
    script.updates = 0


@plant(STORAGE, "dqn_pixels", "next_image_is_black", words=())
def rebuilt_pictures_are_filled_with_zeros(script):
    script.slices = 6
    script.does -= {"flatten"}
    script.collector_options["compact_obs"] = True
    script.buffer_options = {
        "batch_size": 24,
        "sampler": lambda: SliceSampler(slice_len=6, traj_key=("collector", "traj_ids")),
        "transform": lambda: NextStateReconstructor(keys=["pixels"], fill_value=0),
    }


# --- several processes --------------------------------------------------------------------------


@plant(PROCESSES, "dqn_workers", "workers_act_alike", "every_environment_starts_alike")
def workers_have_the_same_seed(script):
    script.does -= {"seed"}
    maker = OnPolicy(task="corridor").make_env

    def seeded():
        torch.manual_seed(0)
        env = maker()
        env.set_seed(0)
        return env

    script.task = "corridor"
    script.factories = [seeded] * 2
    script.also = ("batch",)


@plant(PROCESSES, "impala", "new_weights_arrive_late", words=())
def ppo_with_an_asynchronous_collector(script):
    script.estimator = GAE
    script.loss_type = ClipPPOLoss
    script.collector_options["track_policy_version"] = True


@plant(PROCESSES, "dqn_workers", "sequences_mix_workers")
def workers_share_trajectory_numbers(script):
    script.collector_options["cat_results"] = 0
    script.slices = 4
    script.does -= {"flatten"}
    script.buffer_options = {
        "sampler": lambda: SliceSampler(slice_len=4, end_key=("next", "done")),
        "batch_size": 24,
    }
    script.stored = lambda batch: batch.reshape(-1)


@plant(PROCESSES, "ppo_workers", "advantages_wrong_with_several_workers")
def workers_joined_in_time(script):
    script.collector_options["cat_results"] = -1


# --- several agents -----------------------------------------------------------------------------


@plant(AGENTS, "mappo", words=(r"done|terminated|reward|shape", r"agents|group"), loud=True)
def team_reads_the_done_of_the_root(script):
    script.team_keys = script.team_keys | {"done": "done", "terminated": "terminated"}


@plant(AGENTS, "qmix", "target_updater_never_steps", "q_values_stop_improving")
def mixer_targets_never_move(script):
    script.does -= {"move targets"}


@plant(AGENTS, "ippo mappo", "collector_keeps_its_own_policy")
def team_collects_with_a_copy(script):
    script.then("policy", lambda s: setattr(s, "policy", copy.deepcopy(s.policy)))


# --- GRPO ---------------------------------------------------------------------------------------


@plant(LOSSES, "grpo", words=r"advantage|objective")
def group_of_one(script):
    script.number = 1
    script.frames = 48
    script.buffer_options = {"sampler": SamplerWithoutReplacement, "batch_size": 20}

    def estimate(batch):
        score = batch["next", "reward"].sum(-2, keepdim=True)
        advantage = (score - score.mean(0)) / score.std(0, correction=0).clamp_min(1e-6)
        batch["advantage"] = advantage.expand_as(batch["next", "reward"]).clone()

    script.estimate = estimate


@plant(
    LOSSES,
    "grpo reinforce",
    words=(r"advantage|return", r"mean|large|normal|scale|positive|constant|same|sign"),
)
def advantage_is_the_raw_return_of_a_constant(script):
    def estimate(batch):
        batch["advantage"] = torch.full_like(batch["next", "reward"], 1e4)
        batch["value_target"] = batch["advantage"].clone()
        batch["state_value"] = torch.zeros_like(batch["advantage"])

    script.estimate = estimate


@plant(EXPLORATION, "ddpg", "actions_stay_noisy")
def deterministic_actor_has_dropout(script):
    script.dropout = 0.5
    script.collector_options["exploration_type"] = ExplorationType.DETERMINISTIC
    script.then("policy", lambda s: setattr(s, "policy", s.actor))
    script.then("policy", lambda s: setattr(s, "explore", None))


@plant(STORAGE, "dqn_pixels", "sampling_images_raises_type_error", loud=True)
def rebuilt_pictures_are_bytes(script):
    del script.transforms["image"]
    module = script.module
    script.module = lambda net, *keys: module(nn.Sequential(Times(1 / 255), net), *keys)
    script.slices = 6
    script.does -= {"flatten"}
    script.collector_options["compact_obs"] = True
    script.buffer_options = {
        "batch_size": 24,
        "sampler": lambda: SliceSampler(slice_len=6, traj_key=("collector", "traj_ids")),
        "transform": lambda: NextStateReconstructor(keys=["pixels"]),
    }


@plant(LOSSES, "a2c_lstm", "sets_of_keys_are_exclusive", loud=True)
def critic_reads_a_feature_of_the_actor(script):
    def make():
        return ValueOperator(nn.Linear(CELLS, 1), in_keys=["features"])

    script.make_critic = make


@plant(
    EVALUATION, "dqn", "episode_return_looks_too_low", words=(r"return|episode_reward|RewardSum",)
)
def running_return_is_zeroed_between(script):
    class Forgets(RewardSum):
        steps = 0

        def _step(self, tensordict, next_tensordict):
            self.steps += 1
            if self.steps % 5 == 0:
                tensordict["episode_reward"].zero_()
            return super()._step(tensordict, next_tensordict)

    script.transforms["return"] = Forgets
