# ruff: noqa: RUF012 -- a script copies the dictionaries of its class
"""Healthy pipelines as users write them, each built and trained for some steps in about a second.

A `Script` makes its parts stage by stage, as a training script does. A defect changes an option,
what the loop ``does``, or, with `Script.then`, what a stage has made. `PIPELINES` has them by name.
"""

import contextlib
import functools

import torch
from tensordict.nn import (
    InteractionType,
    NormalParamExtractor,
    TensorDictModule,
    TensorDictSequential,
)
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import (
    Bounded,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
)
from torchrl.envs import (
    CatFrames,
    Compose,
    DoubleToFloat,
    GymEnv,
    InitTracker,
    MultiStepTransform,
    ObservationNorm,
    ParallelEnv,
    RewardScaling,
    RewardSum,
    SerialEnv,
    StepCounter,
    ToTensorImage,
    TransformedEnv,
    VecNormV2,
)
from torchrl.envs.transforms.rb_transforms import NextStateReconstructor
from torchrl.modules import (
    MLP,
    AdditiveGaussianModule,
    DistributionalQValueActor,
    EGreedyModule,
    GRUModule,
    LSTMModule,
    MaskedOneHotCategorical,
    MultiAgentMLP,
    NoisyLinear,
    OneHotCategorical,
    OrnsteinUhlenbeckProcessModule,
    ProbabilisticActor,
    QMixer,
    QValueModule,
    TanhModule,
    TanhNormal,
    ValueOperator,
    reset_noise,
    set_recurrent_mode,
)
from torchrl.objectives import (
    A2CLoss,
    ClipPPOLoss,
    CQLLoss,
    DDPGLoss,
    DiscreteCQLLoss,
    DiscreteIQLLoss,
    DiscreteSACLoss,
    DistributionalDQNLoss,
    DQNLoss,
    HardUpdate,
    IQLLoss,
    KLPENPPOLoss,
    QMixerLoss,
    REDQLoss,
    ReinforceLoss,
    SACLoss,
    SoftUpdate,
    TD3BCLoss,
    TD3Loss,
)
from torchrl.objectives.value import GAE, TDLambdaEstimator, VTrace

from tests.support.defects.environments import Corridor, Prompts, Team

CELLS = 16
ANSWERS = {  # what `Script.given` calls a part, and what `diagnose` does
    "collector": "collector",
    "buffer": "replay_buffer",
    "loss": "loss_module",
    "advantage": "value_estimator",
    "updater": "target_updater",
    "optimizer": "optimizer",
    "logs": "log",
}
TASKS = {
    "cartpole": functools.partial(GymEnv, "CartPole-v1"),
    "cartpole_categorical": functools.partial(
        GymEnv, "CartPole-v1", categorical_action_encoding=True
    ),
    "acrobot": functools.partial(GymEnv, "Acrobot-v1"),
    "pendulum": functools.partial(GymEnv, "Pendulum-v1"),
    "mountain_car": functools.partial(GymEnv, "MountainCarContinuous-v0"),
    "corridor": Corridor,
    "continuous_corridor": functools.partial(Corridor, continuous=True),
    "many_corridors": functools.partial(Corridor, batch_size=(4,)),
    "pixels": functools.partial(Corridor, image=True),
    "masked": functools.partial(Corridor, mask=True),
    "goals": functools.partial(Corridor, goal=True),
    "prompts": Prompts,
}


def fitted_norm(env, name="norm"):
    """Statistics of an `ObservationNorm`, from random actions."""
    for transform in env.transform:
        if isinstance(transform, ObservationNorm) and not transform.initialized:
            dims = tuple(range(1 + len(env.batch_size)))
            transform.init_stats(num_iter=200, reduce_dim=dims, cat_dim=len(env.batch_size))


class Script:
    """Parts of a training script, made stage by stage by `build`, which then trains a little."""

    stages = ("env", "actor", "critic", "policy", "collector", "buffer", "advantage", "loss")
    stages += ("updater", "optimizer")
    does = frozenset()
    task = "cartpole"
    number = 0  # of environments side by side; 0: a single one
    batched = SerialEnv
    recurrent = None
    frames = 60
    rounds = 3
    gamma = 0.99
    inputs = ("observation",)
    activation = nn.Tanh
    dropout = 0.0
    evaluates = False
    clean = staticmethod(lambda: None)  # removes what a defect has left
    goes_on = True  # whether training can go on after a look
    learning_rate = 1e-3
    largest_gradient = 1.0
    collector_type = Collector
    collector_options = {}
    buffer_options = {}
    storage_options = {}
    advantage_options = {}
    loss_options = {}
    distribution_options = {}
    keys = {}
    factories = ()  # of the environments of workers
    also = ()  # further names of attributes that are given

    def __init__(self, **options):
        self.afterwards = {}
        self.transforms = {"steps": StepCounter, "return": RewardSum}
        self.explore = self.eval_env = self.batch = None
        self.logs = {}
        for name, value in options.items():
            setattr(self, name, value)
        for name in {*dir(type(self)), *options}:  # a defect changes its own
            if isinstance(getattr(self, name), dict):
                setattr(self, name, dict(getattr(self, name)))
        self.does = set(self.does)

    def then(self, stage, change):
        """Call *change* with the script as soon as *stage* is made; ``train``: after training."""
        self.afterwards.setdefault(stage, []).append(change)
        return self

    def build(self):
        """The arguments of ``diagnose``; what raises is the ``error`` among them."""
        torch.manual_seed(0)
        for stage in self.stages:
            setattr(self, stage, None)
        error = None
        try:
            for stage in self.stages:
                setattr(self, stage, getattr(self, f"make_{stage}")())
                self.finish(stage)
            if self.evaluates:
                self.eval_env = self.make_eval_env()
                self.finish("eval_env")
            self.batches = iter(self.collector) if self.collector is not None else None
            self.train()
            self.finish("train")
        except Exception as raised:
            error = raised
        return self.given() | ({} if error is None else {"error": error})

    def finish(self, stage):
        for change in self.afterwards.get(stage, ()):
            change(self)

    def given(self):
        names = ANSWERS | {name: name for name in self.also}
        if self.evaluates:
            names["eval_env"] = "eval_env"
        parts = {argument: getattr(self, name) for name, argument in names.items()}
        return {name: part for name, part in parts.items() if part is not None}

    def shutdown(self):
        self.clean()
        if self.collector is not None:
            self.collector.shutdown()
        for env in (self.env, self.eval_env):
            if env is not None and not env.is_closed:
                env.close()

    # Environments

    def env_maker(self):
        """What makes one environment without transforms; it does not refer to the script."""
        return TASKS.get(self.task, self.task)

    def batched_env(self, number):
        maker = self.env_maker()
        return self.batched(number, maker) if number else maker()

    def fresh_env(self, number=0):
        """*number* environments (0: a single one) with new transforms, not seeded, not fitted."""
        transforms = [make() for make in self.transforms.values()]
        return TransformedEnv(self.batched_env(number), Compose(*transforms))

    def make_env(self):
        env = self.fresh_env(self.number)
        env.set_seed(0)  # in some episodes 30 steps from rest are all alike
        fitted_norm(env)
        env.set_seed(0)
        return env

    def make_eval_env(self):
        """One environment with the statistics of training."""
        transforms = [make() for make in self.transforms.values()]
        for number, theirs in enumerate(self.env.transform):
            if isinstance(theirs, ObservationNorm):
                transforms[number] = theirs.clone()
            if isinstance(theirs, VecNormV2):
                transforms[number] = theirs.to_observation_norm()
        env = TransformedEnv(self.batched_env(0), Compose(*transforms))
        env.set_seed(100)
        return env

    # Networks

    def sizes(self):
        return sum(self.env.observation_spec[key].shape[-1] for key in self.inputs)

    def action_size(self):
        return self.env.action_spec.shape[-1]

    def layers(self, inputs, outputs):
        net = MLP(
            in_features=inputs,
            out_features=outputs,
            num_cells=[CELLS],
            activation_class=self.activation,
        )
        return nn.Sequential(nn.Dropout(self.dropout), net) if self.dropout else net

    def body(self, outputs, key):
        """Modules from the observation to *outputs* numbers under *key*."""
        if self.recurrent is not None:
            return [self.memory(), self.module(nn.Linear(CELLS, outputs), ["features"], [key])]
        if self.inputs == ("pixels",):
            size = self.env.observation_spec["pixels"].shape[-3]
            net = nn.Sequential(nn.Conv2d(size, 4, 5, 3), nn.ReLU(), nn.Flatten(-3))
            net = Pictures(nn.Sequential(net, nn.Linear(36, outputs)))
            return [self.module(net, ["pixels"], [key])]
        net = Joined(self.layers(self.sizes(), outputs))
        return [self.module(net, list(self.inputs), [key])]

    def module(self, net, in_keys, out_keys):
        return TensorDictModule(net, in_keys=in_keys, out_keys=out_keys)

    def memory(self):
        if "rnn" not in vars(self):
            made = {"lstm": LSTMModule, "gru": GRUModule}[self.recurrent]
            size = self.env.observation_spec["observation"].shape[-1]
            self.rnn = made(
                input_size=size, hidden_size=CELLS, in_key="observation", out_key="features"
            )
            if "prime" in self.does:
                self.env.append_transform(self.rnn.make_tensordict_primer())
        return self.rnn

    # Data

    def make_policy(self):
        return self.actor

    def make_collector(self):
        options = {"frames_per_batch": self.frames, "total_frames": -1}
        options |= {"auto_register_policy_transforms": False} | self.collector_options
        return self.collector_type(self.env, self.policy, **options)

    def make_buffer(self):
        options = {
            name: value() if name in ("sampler", "transform") else value
            for name, value in self.buffer_options.items()
        }
        storage = self.storage(self.capacity, **self.storage_options)
        return TensorDictReplayBuffer(storage=storage, **options)

    def make_critic(self):
        return None

    def make_advantage(self):
        return None

    def make_updater(self):
        return None

    def make_optimizer(self):
        return torch.optim.Adam(self.loss.parameters(), self.learning_rate)

    # Training

    def update(self, sample):
        losses = dict(self.loss(sample).items())
        loss = sum(value for name, value in losses.items() if name.startswith("loss"))
        loss.backward()
        parameters = self.optimizer.param_groups[0]["params"]
        norm = nn.utils.clip_grad_norm_(parameters, self.largest_gradient)
        self.optimizer.step()
        if "zero the gradients" in self.does:
            self.optimizer.zero_grad()
        self.log(grad_norm=norm, **losses)

    def log(self, **values):
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and value.numel() == 1:
                self.logs.setdefault(name, []).append(float(value.detach()))

    def log_returns(self, batch):
        returns = batch.get(("next", "episode_reward"), None)
        if returns is not None and (ended := returns[batch["next", "done"]]).numel():
            self.log(episode_reward=ended.mean())


class Joined(nn.Module):
    """A network of several inputs."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, *inputs):
        return self.net(torch.cat(inputs, -1))


class Pictures(nn.Module):
    """A network of pictures with any number of dimensions before theirs."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, pictures):
        shape = pictures.shape[:-3]
        return self.net(pictures.reshape(-1, *pictures.shape[-3:])).reshape(*shape, -1)


class OnPolicy(Script):
    """PPO, A2C, REINFORCE and V-trace: collect, estimate, a few epochs over the batch."""

    does = frozenset(
        {
            "estimate",
            "flatten",
            "prime",
            "recurrent mode",
            "recurrent mode in the estimator",
            "send weights",
            "zero the gradients",
        }
    )
    loss_type = ClipPPOLoss
    estimator = GAE
    with_buffer = True
    storage = LazyTensorStorage
    epochs = 2
    also = ("batch",)
    interaction = InteractionType.RANDOM
    buffer_options = {"sampler": SamplerWithoutReplacement, "batch_size": 20}
    bounds = None

    def __init__(self, **options):
        super().__init__(**options)
        self.capacity = options.get("capacity", self.frames)

    def make_actor(self):
        spec = self.env.action_spec
        options = {"in_keys": ["logits"], "distribution_class": OneHotCategorical}
        outputs, key = spec.shape[-1] if spec.shape else spec.n, "logits"
        more = []
        if isinstance(spec, Bounded):
            outputs, key = 2 * self.action_size(), "params"
            extract = NormalParamExtractor()
            more = [self.module(extract, ["params"], ["loc", "scale"])]
            low, high = self.bounds or (spec.space.low, spec.space.high)
            options = {"in_keys": ["loc", "scale"], "distribution_class": TanhNormal}
            options["distribution_kwargs"] = {"low": low, "high": high}
        elif spec.shape == self.env.batch_size:
            outputs = spec.n
            options["distribution_class"] = torch.distributions.Categorical
        elif "action_mask" in set(self.env.observation_spec.keys()):
            options["in_keys"] = {"logits": "logits", "mask": "action_mask"}
            options["distribution_class"] = MaskedOneHotCategorical
        options |= {"return_log_prob": True, "default_interaction_type": self.interaction}
        options |= self.distribution_options
        net = TensorDictSequential(*self.body(outputs, key), *more)
        return ProbabilisticActor(net, spec=spec, **options)

    def make_critic(self):
        if self.estimator is None:
            return None
        if self.recurrent is not None:
            head = ValueOperator(nn.Linear(CELLS, 1), in_keys=["features"])
            return TensorDictSequential(self.memory(), head)
        if self.inputs == ("pixels",):
            return ValueOperator(self.body(1, "value")[0].module, in_keys=["pixels"])
        return ValueOperator(Joined(self.layers(self.sizes(), 1)), in_keys=list(self.inputs))

    def make_buffer(self):
        return super().make_buffer() if self.with_buffer else None

    def make_advantage(self):
        if self.estimator is None:
            return None
        options = {"gamma": self.gamma, "value_network": self.critic}
        if self.estimator is VTrace:
            options["actor_network"] = self.actor
        else:
            options["lmbda"] = 0.95
        if self.recurrent is not None:
            options["deactivate_vmap"] = True
        made = self.estimator(**options | self.advantage_options)
        return made

    def make_loss(self):
        loss = self.loss_type(self.actor, self.critic, **self.loss_options)
        if self.keys:
            loss.set_keys(**self.keys)
        return loss

    def mode(self, name):
        if self.recurrent is None or name not in self.does:
            return contextlib.nullcontext()
        return set_recurrent_mode(True)

    def estimate(self, batch):
        with self.mode("recurrent mode in the estimator"), torch.no_grad():
            self.advantage(batch)

    def train(self):
        for _ in range(self.rounds):
            self.batch = batch = next(self.batches)
            self.log_returns(batch)
            if "estimate" in self.does:
                self.estimate(batch)
            for sample in self.samples(batch):
                with self.mode("recurrent mode"):
                    self.update(sample)
            if "send weights" in self.does:
                self.collector.update_policy_weights_()

    def samples(self, batch):
        if self.buffer is None:
            yield batch
            return
        for _ in range(self.epochs):
            self.buffer.extend(batch.reshape(-1) if "flatten" in self.does else batch)
            yield from self.buffer


class VTraceLearner(OnPolicy):
    """Stretches are stored whole and corrected when they are sampled, as IMPALA does."""

    estimator = VTrace
    loss_type = A2CLoss
    number = 2
    does = OnPolicy.does - {"estimate", "flatten"}

    def samples(self, batch):
        self.buffer.extend(batch if batch.ndim > 1 else batch.unsqueeze(0))  # stretches, not steps
        for sample in self.buffer:
            self.estimate(sample)
            yield sample


class GroupRelative(OnPolicy):
    """GRPO on a toy task: the advantage of an episode is its return against that of its group."""

    estimator = None
    number = 4
    frames = 96
    loss_type = ClipPPOLoss
    loss_options = {"critic_coeff": None, "entropy_coeff": 0.01}
    task = "corridor"

    def estimate(self, batch):
        score = batch["next", "reward"].sum(-2, keepdim=True)
        advantage = (score - score.mean(0)) / score.std(0).clamp_min(1e-6)
        batch["advantage"] = advantage.expand_as(batch["next", "reward"]).clone()


class SingleTurn(GroupRelative):
    """GRPO with one action for an answer, as a language model gives one text for a prompt."""

    number = 0
    frames = 2 * Prompts.prompts * Prompts.answers
    task = "prompts"

    def estimate(self, batch):
        reward = batch["next", "reward"]
        score = reward.unflatten(0, (Prompts.prompts, Prompts.answers))
        advantage = score - score.mean(1, keepdim=True)
        batch["advantage"] = (advantage / score.std(1, keepdim=True).clamp_min(1e-6)).flatten(0, 1)


class OffPolicy(Script):
    """What Q-learning and actor-critic with replay have in common."""

    does = frozenset(
        {
            "anneal",
            "flatten",
            "move targets",
            "prime",
            "recurrent mode",
            "reset noise",
            "send weights",
            "set priorities",
            "zero the gradients",
        }
    )
    storage = LazyTensorStorage
    capacity = 500
    updates = 3
    offline = False
    priority = False
    slices = None
    steps = 1
    buffer_options = {"batch_size": 24}
    updater_type = SoftUpdate
    updater_options = {"eps": 0.95}

    def __init__(self, **options):
        super().__init__(**options)
        if self.offline:
            self.also = (*self.also, "env", "actor")
        chosen = {}
        if self.priority:
            chosen["sampler"] = lambda: PrioritizedSampler(self.capacity, alpha=0.6, beta=0.4)
            chosen["priority_key"] = "td_error"
        elif self.slices:
            ids = ("collector", "traj_ids")
            chosen["sampler"] = lambda: SliceSampler(slice_len=self.slices, traj_key=ids)
            self.does -= {"flatten"}
        if self.steps > 1:
            ends = {"done_keys": ["done", "truncated"]}
            chosen["transform"] = lambda: MultiStepTransform(self.steps, self.gamma, **ends)
            self.does -= {"flatten"} if not self.number else set()
        self.buffer_options = chosen | self.buffer_options

    def given(self):
        given = super().given()
        if "actor" in given:
            given["policy"] = given.pop("actor")
        return given

    def make_collector(self):
        return None if self.offline else super().make_collector()

    def make_updater(self):
        return self.updater_type(self.loss, **self.updater_options)

    def make_loss(self):
        loss = self.make_loss_module()
        if self.keys:
            loss.set_keys(**self.keys)
        if not isinstance(loss, DistributionalDQNLoss):
            loss.make_value_estimator(gamma=self.gamma)
        return loss

    def data(self):
        """A data set of random actions, for those who learn offline."""
        with torch.no_grad():
            data = self.env.rollout(self.frames * 3, break_when_any_done=False)
        if self.slices:
            data["collector", "traj_ids"] = data["is_init"].squeeze(-1).cumsum(0)
        return data

    def train(self):
        if self.offline and not len(self.buffer):
            self.buffer.extend(self.stored(self.data()))
        for _ in range(self.rounds):
            if not self.offline:
                batch = self.batch = next(self.batches)
                self.log_returns(batch)
                if "anneal" in self.does and self.explore is not None:
                    self.explore.step(batch.numel())
                self.fill(batch)
            for _ in range(self.updates):
                sample = self.buffer.sample()
                self.update(self.seen(sample))
                if self.priority and "set priorities" in self.does:
                    self.buffer.update_tensordict_priority(sample)
                if "move targets" in self.does:
                    self.updater.step()
                if "reset noise" in self.does:
                    self.actor.apply(reset_noise)
            if self.collector is not None and "send weights" in self.does:
                self.collector.update_policy_weights_()

    def fill(self, batch):
        self.buffer.extend(self.stored(batch))

    def stored(self, batch):
        return batch.reshape(-1) if "flatten" in self.does else batch

    def seen(self, sample):
        """The sample as the loss gets it."""
        return sample.reshape(-1, self.slices) if self.slices and self.recurrent else sample

    def update(self, sample):
        mode = self.recurrent is not None and "recurrent mode" in self.does
        with set_recurrent_mode(True) if mode else contextlib.nullcontext():
            super().update(sample)


class QLearning(OffPolicy):
    """DQN and its relatives."""

    distributional = dueling = noisy = False
    support = (0.0, 100.0)
    noise_options = {"use_exploration_type": False}
    greedy_options = {"annealing_num_steps": 500}
    loss_type = DQNLoss
    loss_options = {"delay_value": True}

    def make_actor(self):
        spec = self.env.action_spec_unbatched
        number = spec.shape[-1] if spec.shape else spec.n
        mask = "action_mask" if "action_mask" in set(self.env.observation_spec.keys()) else None
        self.modules = self.body(number, "action_value")
        if self.distributional:
            atoms = 11
            net = self.layers(self.sizes(), atoms * number)
            net = nn.Sequential(net, nn.Unflatten(-1, (atoms, number)))
            support = torch.linspace(*self.support, atoms)
            return DistributionalQValueActor(
                net, support=support, in_keys=list(self.inputs), spec=spec
            )
        head = QValueModule(spec=spec, action_mask_key=mask)
        return TensorDictSequential(*self.modules, head)

    def layers(self, inputs, outputs):
        if self.dueling:
            return Dueling(inputs, outputs)
        if self.noisy:
            return nn.Sequential(
                nn.Linear(inputs, CELLS),
                nn.ReLU(),
                NoisyLinear(CELLS, outputs, **self.noise_options),
            )
        return super().layers(inputs, outputs)

    def make_policy(self):
        if self.noisy or self.offline:
            return self.actor
        mask = "action_mask" if "action_mask" in set(self.env.observation_spec.keys()) else None
        options = {"action_mask_key": mask} | self.greedy_options
        self.explore = EGreedyModule(spec=self.env.action_spec_unbatched, **options)
        return TensorDictSequential(self.actor, self.explore)

    def make_loss_module(self):
        if self.distributional:
            return DistributionalDQNLoss(self.actor, gamma=self.gamma, **self.loss_options)
        options = {"action_space": self.env.action_spec_unbatched} | self.loss_options
        return self.loss_type(self.actor, **options)


class Dueling(nn.Module):
    """A value and advantages."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, CELLS), nn.ReLU())
        self.value, self.advantage = nn.Linear(CELLS, 1), nn.Linear(CELLS, outputs)

    def forward(self, observation):
        features = self.body(observation)
        advantage = self.advantage(features)
        return self.value(features) + advantage - advantage.mean(-1, keepdim=True)


class ActorCritic(OffPolicy):
    """SAC, TD3, DDPG, and their offline relatives."""

    task = "pendulum"
    loss_type = SACLoss
    interaction = InteractionType.RANDOM
    noise_type = AdditiveGaussianModule
    noise_options = {"annealing_num_steps": 500, "sigma_init": 0.5}
    bounds = None
    takes_spec = (TD3Loss, TD3BCLoss, CQLLoss, REDQLoss, SACLoss)
    deterministic = (TD3Loss, TD3BCLoss, DDPGLoss)
    discrete = (DiscreteSACLoss, DiscreteIQLLoss)

    def __init__(self, **options):
        super().__init__(**options)
        if self.task == "pendulum":
            self.transforms = {"float": DoubleToFloat} | self.transforms

    def make_actor(self):
        spec = self.env.action_spec
        number = self.action_size()
        if self.loss_type in self.deterministic:
            low, high = self.bounds or (spec.space.low, spec.space.high)
            tanh = TanhModule(in_keys=["param"], out_keys=["action"], low=low, high=high)
            return TensorDictSequential(*self.body(number, "param"), tanh)
        if self.loss_type in self.discrete:
            net = TensorDictSequential(*self.body(number, "logits"))
            options = {"in_keys": ["logits"], "distribution_class": OneHotCategorical}
        else:
            extract = self.module(NormalParamExtractor(), ["params"], ["loc", "scale"])
            net = TensorDictSequential(*self.body(2 * number, "params"), extract)
            low, high = self.bounds or (spec.space.low, spec.space.high)
            options = {"in_keys": ["loc", "scale"], "distribution_class": TanhNormal}
            options["distribution_kwargs"] = {"low": low, "high": high}
        options["default_interaction_type"] = self.interaction
        return ProbabilisticActor(net, spec=spec, **options | self.distribution_options)

    def make_critic(self):
        if self.loss_type in self.discrete:
            key = "action_value" if self.loss_type is DiscreteSACLoss else "state_action_value"
            return TensorDictSequential(*self.body(self.action_size(), key))
        net = Joined(self.layers(self.sizes() + self.action_size(), 1))
        return ValueOperator(net, in_keys=[*self.inputs, "action"])

    def make_policy(self):
        if self.loss_type not in self.deterministic or self.offline:
            return self.actor
        self.explore = self.noise_type(spec=self.env.action_spec, **self.noise_options)
        return TensorDictSequential(self.actor, self.explore)

    def make_loss_module(self):
        networks = [self.actor, self.critic]
        options = dict(self.loss_options)
        if self.loss_type in (IQLLoss, DiscreteIQLLoss):
            net = Joined(self.layers(self.sizes(), 1))
            networks.append(ValueOperator(net, in_keys=list(self.inputs)))
        if self.loss_type in self.takes_spec:
            options = {"action_spec": self.env.action_spec_unbatched} | options
        if self.loss_type in self.discrete:
            options = {"action_space": self.env.action_spec_unbatched} | options
        if self.loss_type is DiscreteSACLoss:
            options = {"num_actions": self.action_size()} | options
        if self.loss_type is DDPGLoss:
            options = {"delay_actor": True, "delay_value": True} | options
        return self.loss_type(*networks, **options)


class TeamOnPolicy(OnPolicy):
    """MAPPO, and IPPO where the critic sees one agent."""

    task = "team"
    centralized = True
    continuous = False
    inputs = (("agents", "observation"),)

    def __init__(self, **options):
        super().__init__(**options)
        self.transforms = {"return": self.summed, "steps": StepCounter}

    def env_maker(self):
        return functools.partial(Team, continuous=self.continuous)

    def summed(self):
        return RewardSum(in_keys=[("agents", "reward")], out_keys=[("agents", "episode_reward")])

    def net(self, outputs, centralized):
        return MultiAgentMLP(
            n_agent_inputs=2,
            n_agent_outputs=outputs,
            n_agents=Team.agents,
            centralized=centralized,
            share_params=True,
            depth=1,
            num_cells=CELLS,
        )

    def make_actor(self):
        options = {"in_keys": [("agents", "logits")], "distribution_class": OneHotCategorical}
        modules = [self.module(self.net(3, False), list(self.inputs), [("agents", "logits")])]
        if self.continuous:
            keys = [("agents", "loc"), ("agents", "scale")]
            net = nn.Sequential(self.net(2, False), NormalParamExtractor())
            modules = [self.module(net, list(self.inputs), keys)]
            options = {"in_keys": keys, "distribution_class": TanhNormal}
            options["distribution_kwargs"] = {"low": -1.0, "high": 1.0}
        return ProbabilisticActor(
            TensorDictSequential(*modules),
            spec=self.env.full_action_spec_unbatched,
            out_keys=[("agents", "action")],
            return_log_prob=True,
            default_interaction_type=self.interaction,
            **options,
        )

    def make_critic(self):
        net = self.net(1, self.centralized)
        return self.module(net, list(self.inputs), [("agents", "state_value")])

    team_keys = {
        "reward": ("agents", "reward"),
        "value": ("agents", "state_value"),
        "done": ("agents", "done"),
        "terminated": ("agents", "terminated"),
    }

    def make_advantage(self):
        made = super().make_advantage()
        made.set_keys(**self.team_keys)
        return made

    def make_loss(self):
        loss = super().make_loss()
        loss.set_keys(action=("agents", "action"), value=("agents", "state_value"))
        return loss

    def estimate(self, batch):
        shape = batch["next", "agents", "reward"].shape
        for name in ("done", "terminated"):
            flag = batch["next", name].unsqueeze(-1).expand(shape)
            batch["next", "agents", name] = flag
        super().estimate(batch)


class TeamQLearning(OffPolicy):
    """QMIX."""

    task = "team"
    inputs = (("agents", "observation"),)

    def env_maker(self):
        return functools.partial(Team, state=True, common_reward=True)

    def make_actor(self):
        net = MultiAgentMLP(
            n_agent_inputs=2,
            n_agent_outputs=3,
            n_agents=Team.agents,
            centralized=False,
            share_params=True,
            depth=1,
            num_cells=CELLS,
        )
        values = [("agents", "action_value")]
        out_keys = [("agents", "action"), *values, ("agents", "chosen_action_value")]
        head = QValueModule(
            action_value_key=values[0], out_keys=out_keys, spec=self.env.full_action_spec_unbatched
        )
        return TensorDictSequential(self.module(net, list(self.inputs), values), head)

    def make_policy(self):
        key = ("agents", "action")
        spec = self.env.full_action_spec_unbatched
        self.explore = EGreedyModule(spec=spec, action_key=key, annealing_num_steps=500)
        return TensorDictSequential(self.actor, self.explore)

    def make_critic(self):
        net = QMixer((Team.agents,), mixing_embed_dim=8, n_agents=Team.agents, device="cpu")
        keys = [("agents", "chosen_action_value"), "state"]
        return self.module(net, keys, ["chosen_action_value"])

    def make_loss_module(self):
        options = {"delay_value": True, "action_space": self.env.full_action_spec_unbatched}
        options["action_space"] = options["action_space"]["agents", "action"]
        loss = QMixerLoss(self.actor, self.critic, **options | self.loss_options)
        loss.set_keys(
            action_value=("agents", "action_value"),
            local_value=("agents", "chosen_action_value"),
            global_value="chosen_action_value",
            action=("agents", "action"),
        )
        return loss


def stacked(key, dim, number=4):
    return lambda: CatFrames(N=number, dim=dim, in_keys=[key])


def limited(steps):
    return {"steps": lambda: StepCounter(max_steps=steps), "return": RewardSum}


def pictures(**more):
    first = {"image": lambda: ToTensorImage(from_int=True, unsqueeze=False, shape_tolerant=True)}
    return first | more | {"steps": StepCounter, "return": RewardSum}


def norm():
    return ObservationNorm(in_keys=["observation"], standard_normal=True)


def running_norm():
    return VecNormV2(in_keys=["observation"])


forked = functools.partial(ParallelEnv, mp_start_method="fork")
RECURRENT = {"init": InitTracker, "steps": StepCounter, "return": RewardSum}
WHOLE = {"sampler": SamplerWithoutReplacement, "batch_size": 2}


def multi_sync(script):
    """The collector of a script in two processes."""
    from torchrl.collectors import MultiSyncCollector

    return workers(script, MultiSyncCollector)


def multi_async(script):
    from torchrl.collectors import MultiAsyncCollector

    return workers(script, MultiAsyncCollector)


def workers(script, made):
    def collector(env, policy, **options):
        maker = OnPolicy(task=script.task, transforms=script.transforms).make_env
        factories = script.factories or [maker] * 2
        options = {"cat_results": "stack"} | options if made.__name__[5] == "S" else options
        collector = made(factories, policy, **options)
        if "seed" in script.does:
            collector.set_seed(0)
        return collector

    script.does.add("seed")
    script.collector_type = collector
    return script


PIPELINES = {
    # On-policy
    "ppo": lambda: OnPolicy(),
    "ppo_kl": lambda: OnPolicy(loss_type=KLPENPPOLoss),
    "ppo_continuous": lambda: OnPolicy(task="pendulum", transforms=normalized()),
    "ppo_serial": lambda: OnPolicy(number=3, frames=90),
    "ppo_parallel": lambda: OnPolicy(number=2, batched=forked, rounds=2),
    "ppo_categorical": lambda: OnPolicy(task="cartpole_categorical"),
    "ppo_evaluated": lambda: OnPolicy(evaluates=True),
    "ppo_normalized": lambda: OnPolicy(
        transforms={"norm": norm, "steps": StepCounter, "return": RewardSum}, evaluates=True
    ),
    "ppo_running_norm": lambda: OnPolicy(
        number=2,
        transforms={"norm": running_norm, "steps": StepCounter, "return": RewardSum},
        evaluates=True,
    ),
    "ppo_many": lambda: OnPolicy(task="many_corridors", frames=80),
    "ppo_masked": lambda: OnPolicy(task="masked"),
    "ppo_pixels": lambda: OnPolicy(task="pixels", inputs=("pixels",), transforms=pictures()),
    "ppo_stacked": lambda: OnPolicy(
        task="corridor",
        transforms={"stack": stacked("observation", -1), "steps": StepCounter, "return": RewardSum},
    ),
    "ppo_goals": lambda: OnPolicy(task="goals", inputs=("observation", "goal")),
    "ppo_value_clipped": lambda: OnPolicy(loss_options={"clip_value": True}),
    "ppo_scaled": lambda: OnPolicy(
        transforms={
            "return": RewardSum,
            "scale": lambda: RewardScaling(loc=0.0, scale=0.1),
            "steps": StepCounter,
        }
    ),
    "ppo_lambda": lambda: OnPolicy(estimator=TDLambdaEstimator),
    "ppo_limited": lambda: OnPolicy(transforms=limited(30), number=2),
    "ppo_lstm": lambda: OnPolicy(
        recurrent="lstm",
        number=2,
        transforms=RECURRENT,
        does=OnPolicy.does - {"flatten"},
        buffer_options={"sampler": SamplerWithoutReplacement, "batch_size": 1},
        capacity=2,
    ),
    "ppo_gru": lambda: OnPolicy(
        recurrent="gru",
        number=2,
        transforms=RECURRENT,
        does=OnPolicy.does - {"flatten"},
        with_buffer=False,
    ),
    "ppo_workers": lambda: multi_sync(OnPolicy(rounds=2)),
    "a2c": lambda: OnPolicy(loss_type=A2CLoss, with_buffer=False, transforms=limited(100)),
    "a2c_acrobot": lambda: OnPolicy(
        loss_type=A2CLoss, with_buffer=False, task="acrobot", number=2, transforms=limited(20)
    ),
    "a2c_continuous": lambda: OnPolicy(
        loss_type=A2CLoss, task="continuous_corridor", with_buffer=False
    ),
    "a2c_lstm": lambda: OnPolicy(
        loss_type=A2CLoss, recurrent="lstm", transforms=RECURRENT, with_buffer=False
    ),
    "reinforce": lambda: OnPolicy(loss_type=ReinforceLoss, with_buffer=False),
    "vtrace": lambda: VTraceLearner(capacity=2, buffer_options=WHOLE),
    "impala": lambda: multi_async(
        VTraceLearner(number=0, capacity=1, buffer_options=WHOLE | {"batch_size": 1}, rounds=2)
    ),
    "grpo": lambda: GroupRelative(),
    "mappo": lambda: TeamOnPolicy(),
    "mappo_continuous": lambda: TeamOnPolicy(continuous=True, number=2, frames=80),
    "ippo": lambda: TeamOnPolicy(centralized=False),
    # Q-learning
    "dqn": lambda: QLearning(),
    "dqn_double": lambda: QLearning(
        loss_options={"delay_value": True, "double_dqn": True},
        updater_type=HardUpdate,
        updater_options={"value_network_update_interval": 2},
    ),
    "dqn_dueling": lambda: QLearning(dueling=True, task="acrobot"),
    "dqn_distributional": lambda: QLearning(distributional=True),
    "dqn_noisy": lambda: QLearning(noisy=True),
    "dqn_priority": lambda: QLearning(priority=True),
    "dqn_n_step": lambda: QLearning(steps=3),
    "dqn_n_step_serial": lambda: QLearning(
        steps=3, number=2, storage_options={"ndim": 2}, does=OffPolicy.does - {"flatten"}
    ),
    "dqn_memmap": lambda: QLearning(
        storage=LazyMemmapStorage, buffer_options={"batch_size": 24, "prefetch": 2}
    ),
    "dqn_list": lambda: QLearning(storage=ListStorage, buffer_options={"batch_size": 24}),
    "dqn_serial": lambda: QLearning(number=2),
    "dqn_slices": lambda: QLearning(slices=4, storage_options={}),
    "dqn_rebuilt": lambda: QLearning(
        slices=6,
        collector_options={"compact_obs": True},
        buffer_options={
            "batch_size": 24,
            "transform": lambda: NextStateReconstructor(step_count_key="step_count"),
        },
        seen=lambda sample: sample[~sample["next", "observation"].isnan().any(-1)],
    ),
    "dqn_pixels": lambda: QLearning(task="pixels", inputs=("pixels",), transforms=pictures()),
    "dqn_masked": lambda: QLearning(task="masked"),
    "dqn_random_start": lambda: QLearning(collector_options={"init_random_frames": 60}),
    "dqn_evaluated": lambda: QLearning(evaluates=True),
    "dqn_limited": lambda: QLearning(transforms=limited(20), task="acrobot"),
    "drqn": lambda: QLearning(recurrent="lstm", slices=4, transforms=RECURRENT),
    "drqn_gru": lambda: QLearning(recurrent="gru", slices=4, transforms=RECURRENT),
    "dqn_workers": lambda: multi_sync(QLearning(rounds=2)),
    "qmix": lambda: TeamQLearning(transforms={"steps": StepCounter, "return": RewardSum}),
    # Actor-critic with replay
    "sac": lambda: ActorCritic(),
    "sac_corridor": lambda: ActorCritic(task="continuous_corridor", evaluates=True),
    "sac_car": lambda: ActorCritic(task="mountain_car", transforms=limited(40), number=2),
    "sac_memmap": lambda: ActorCritic(
        storage=LazyMemmapStorage,
        buffer_options={"batch_size": 24, "prefetch": 2},
        collector_options={"init_random_frames": 60},
    ),
    "sac_priority": lambda: ActorCritic(priority=True),
    "sac_discrete": lambda: ActorCritic(loss_type=DiscreteSACLoss, task="cartpole"),
    "td3": lambda: ActorCritic(loss_type=TD3Loss),
    "td3_n_step": lambda: ActorCritic(loss_type=TD3Loss, steps=3),
    "ddpg": lambda: ActorCritic(loss_type=DDPGLoss),
    "ddpg_ou": lambda: ActorCritic(
        loss_type=DDPGLoss,
        noise_type=OrnsteinUhlenbeckProcessModule,
        noise_options={"annealing_num_steps": 500},
        transforms={"init": InitTracker, "steps": StepCounter, "return": RewardSum},
    ),
    "redq": lambda: ActorCritic(loss_type=REDQLoss, loss_options={"num_qvalue_nets": 3}),
    "cql_online": lambda: ActorCritic(loss_type=CQLLoss),
    # Offline
    "iql": lambda: ActorCritic(loss_type=IQLLoss, offline=True),
    "iql_discrete": lambda: ActorCritic(loss_type=DiscreteIQLLoss, offline=True, task="cartpole"),
    "cql": lambda: ActorCritic(loss_type=CQLLoss, offline=True),
    "cql_discrete": lambda: QLearning(loss_type=DiscreteCQLLoss, offline=True),
    "td3_bc": lambda: ActorCritic(loss_type=TD3BCLoss, offline=True),
    "offline_slices": lambda: QLearning(offline=True, slices=4, transforms=RECURRENT),
}


def normalized():
    return {
        "norm": norm,
        "float": DoubleToFloat,
        "steps": StepCounter,
        "return": RewardSum,
    }
