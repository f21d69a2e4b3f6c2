"""Pipelines as TorchRL's own examples and tutorials build them, at a small size and all healthy.

Each function of `PIPELINES` returns the arguments of ``torchrl_doctor.diagnose`` and a function
that takes a few training steps with these objects.
"""

import torch
from tensordict.nn import (
    InteractionType,
    NormalParamExtractor,
    TensorDictModule,
    TensorDictSequential,
)
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from torchrl.envs import (
    Compose,
    DoubleToFloat,
    GymEnv,
    InitTracker,
    ObservationNorm,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)
from torchrl.envs.transforms.rb_transforms import NextStateReconstructor
from torchrl.modules import (
    MLP,
    AdditiveGaussianModule,
    EGreedyModule,
    LSTMModule,
    ProbabilisticActor,
    QValueActor,
    QValueModule,
    TanhModule,
    TanhNormal,
    ValueOperator,
    set_recurrent_mode,
)
from torchrl.objectives import (
    A2CLoss,
    ClipPPOLoss,
    DDPGLoss,
    DiscreteCQLLoss,
    DQNLoss,
    HardUpdate,
    SACLoss,
    SoftUpdate,
)
from torchrl.objectives.value import GAE, VTrace

CELLS = 16
IDS = ("collector", "traj_ids")


def cartpole():
    return GymEnv("CartPole-v1")


def mlp(inputs, outputs):
    return MLP(in_features=inputs, out_features=outputs, num_cells=[CELLS])


def collect_from(env, policy, frames_per_batch=40, **options):
    options = {"total_frames": -1, "auto_register_policy_transforms": False} | options
    return Collector(env, policy, frames_per_batch=frames_per_batch, **options)


def gaussian_actor(env, inputs):
    number = env.action_spec.shape[-1]
    net = torch.nn.Sequential(mlp(inputs, 2 * number), NormalParamExtractor())
    return ProbabilisticActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]),
        spec=env.action_spec,
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": env.action_spec.space.low, "high": env.action_spec.space.high},
        return_log_prob=True,
        default_interaction_type=InteractionType.RANDOM,
    )


def categorical_actor(env, *modules):
    return ProbabilisticActor(
        TensorDictSequential(*modules),
        spec=env.action_spec,
        in_keys=["logits"],
        distribution_class=torch.distributions.OneHotCategorical,
        return_log_prob=True,
    )


def logits():
    return TensorDictModule(mlp(4, 2), in_keys=["observation"], out_keys=["logits"])


def parts(collector, buffer, loss, **more):
    return {"collector": collector, "replay_buffer": buffer, "loss_module": loss} | more


def step(optimizer, losses):
    loss = sum(value for name, value in losses.items() if name.startswith("loss"))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
    optimizer.step()
    optimizer.zero_grad()


def ppo():
    env = TransformedEnv(
        GymEnv("Pendulum-v1"),
        Compose(ObservationNorm(in_keys=["observation"]), DoubleToFloat(), StepCounter()),
    )
    env.set_seed(0)  # else its 400 steps may all hang down, and other states lie far off
    env.transform[0].init_stats(num_iter=400, reduce_dim=0, cat_dim=0)
    actor = gaussian_actor(env, 3)
    critic = ValueOperator(mlp(3, 1))
    collector = collect_from(env, actor, 100, split_trajs=False)
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), sampler=SamplerWithoutReplacement())
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    loss = ClipPPOLoss(actor, critic, clip_epsilon=0.2, entropy_bonus=True, entropy_coeff=1e-4)
    optimizer = torch.optim.Adam(loss.parameters(), 3e-4)

    def train():
        batches = iter(collector)
        for _ in range(2):
            batch = next(batches)
            for _ in range(2):
                advantage(batch)
                buffer.extend(batch.reshape(-1).cpu())
                for _ in range(2):
                    step(optimizer, loss(buffer.sample(50)))

    return parts(collector, buffer, loss, value_estimator=advantage, env=env), train


def q_policy(env):
    return QValueActor(mlp(4, 2), in_keys=["observation"], spec=env.action_spec)


def dqn():
    env = TransformedEnv(cartpole(), Compose(StepCounter(), RewardSum()))
    policy = q_policy(env)
    explore = EGreedyModule(spec=env.action_spec, annealing_num_steps=1000)
    acting = TensorDictSequential(policy, explore)
    collector = collect_from(env, acting, 50, init_random_frames=100)
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=0.6, beta=0.4, storage=LazyTensorStorage(1000), batch_size=32
    )
    loss = DQNLoss(policy, loss_function="l2", delay_value=True)
    loss.make_value_estimator(gamma=0.99)
    updater = SoftUpdate(loss, eps=0.995)
    optimizer = torch.optim.Adam(loss.parameters(), 1e-3)

    def train():
        batches = iter(collector)
        for _ in range(4):
            batch = next(batches)
            explore.step(batch.numel())
            buffer.extend(batch.reshape(-1))
            for _ in range(3):
                sample = buffer.sample()
                step(optimizer, loss(sample))
                buffer.update_tensordict_priority(sample)
                updater.step()
            collector.update_policy_weights_()

    return parts(collector, buffer, loss, target_updater=updater), train


def sac():
    env = TransformedEnv(
        GymEnv("Pendulum-v1"), Compose(InitTracker(), StepCounter(), DoubleToFloat(), RewardSum())
    )
    actor = gaussian_actor(env, 3)
    critic = ValueOperator(mlp(4, 1), in_keys=["observation", "action"])
    collector = collect_from(env, actor, 20, init_random_frames=40)
    buffer = TensorDictReplayBuffer(storage=LazyMemmapStorage(500), batch_size=16, prefetch=2)
    loss = SACLoss(actor, critic, num_qvalue_nets=2, delay_qvalue=True, alpha_init=1.0)
    loss.make_value_estimator(gamma=0.99)
    updater = SoftUpdate(loss, eps=0.995)
    optimizer = torch.optim.Adam(loss.parameters(), 3e-4)

    def train():
        batches = iter(collector)
        for _ in range(4):
            buffer.extend(next(batches).reshape(-1))
            for _ in range(3):
                step(optimizer, loss(buffer.sample().clone()))
                updater.step()
            collector.update_policy_weights_()

    return parts(collector, buffer, loss, target_updater=updater), train


def lstm_features():
    return LSTMModule(input_size=4, hidden_size=8, in_key="observation", out_key="features")


def recurrent_ppo():
    lstm = lstm_features()
    env = TransformedEnv(
        SerialEnv(2, cartpole),
        Compose(InitTracker(), StepCounter(), RewardSum(), lstm.make_tensordict_primer()),
    )
    policy_head = TensorDictModule(torch.nn.Linear(8, 2), ["features"], ["logits"])
    value_head = ValueOperator(torch.nn.Linear(8, 1), in_keys=["features"])
    actor = categorical_actor(env, lstm, policy_head)
    critic = TensorDictSequential(lstm, value_head)
    collector = collect_from(env, actor, 64)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(2), sampler=SamplerWithoutReplacement(), batch_size=1
    )
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, deactivate_vmap=True)
    loss = ClipPPOLoss(actor, critic, entropy_bonus=True)
    optimizer = torch.optim.Adam(loss.parameters(), 3e-4)

    def train():
        batches = iter(collector)
        for _ in range(2):
            batch = next(batches)
            with set_recurrent_mode(True):
                with torch.no_grad():
                    advantage(batch)
                buffer.extend(batch)
                for _ in range(2):
                    step(optimizer, loss(buffer.sample()))

    return parts(collector, buffer, loss, value_estimator=advantage), train


def recurrent_dqn():
    lstm = lstm_features()
    env = TransformedEnv(
        cartpole(),
        Compose(StepCounter(), InitTracker(), RewardSum(), lstm.make_tensordict_primer()),
    )
    head = TensorDictModule(torch.nn.Linear(8, 2), ["features"], ["action_value"])
    policy = TensorDictSequential(lstm, head, QValueModule(spec=env.action_spec))
    explore = EGreedyModule(spec=env.action_spec, annealing_num_steps=1000, eps_init=0.2)
    collector = collect_from(env, TensorDictSequential(policy, explore), 50)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(1000),
        sampler=SliceSampler(slice_len=5, traj_key=IDS),
        batch_size=20,
    )
    loss = DQNLoss(policy, action_space=env.action_spec, delay_value=True)
    loss.make_value_estimator(gamma=0.99)
    updater = SoftUpdate(loss, eps=0.95)
    optimizer = torch.optim.Adam(loss.parameters(), 3e-4)

    def train():
        batches = iter(collector)
        for _ in range(3):
            batch = next(batches)
            explore.step(batch.numel())
            buffer.extend(batch)
            for _ in range(2):
                with set_recurrent_mode(True):
                    step(optimizer, loss(buffer.sample().reshape(-1, 5)))
                updater.step()
            collector.update_policy_weights_()

    return parts(collector, buffer, loss, target_updater=updater), train


def batched_ppo():
    env = TransformedEnv(SerialEnv(3, cartpole), Compose(StepCounter(), RewardSum()))
    actor = categorical_actor(env, logits())
    critic = ValueOperator(mlp(4, 1))
    collector = collect_from(env, actor, 96)
    return ppo_loop(collector, actor, critic)


def ppo_loop(collector, actor, critic):
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(96), sampler=SamplerWithoutReplacement(), batch_size=32
    )
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss = ClipPPOLoss(actor, critic, entropy_bonus=True)
    optimizer = torch.optim.Adam(loss.parameters(), 3e-4)

    def train():
        batches = iter(collector)
        for _ in range(2):
            batch = next(batches)
            with torch.no_grad():
                advantage(batch)
            buffer.extend(batch.reshape(-1))
            for sample in buffer:
                step(optimizer, loss(sample))
            collector.update_policy_weights_()
        return batch

    return parts(collector, buffer, loss, value_estimator=advantage, policy=actor), train


def vtrace():
    """Whole stretches are sampled, as V-trace reads them."""
    env = TransformedEnv(SerialEnv(2, cartpole), Compose(StepCounter(), RewardSum()))
    actor = categorical_actor(env, logits())
    critic = ValueOperator(mlp(4, 1))
    collector = collect_from(env, actor, 80)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(2), sampler=SamplerWithoutReplacement(), batch_size=2
    )
    advantage = VTrace(gamma=0.99, value_network=critic, actor_network=actor)
    loss = A2CLoss(actor, critic)
    optimizer = torch.optim.Adam(loss.parameters(), 3e-4)

    def train():
        batches = iter(collector)
        for _ in range(2):
            buffer.extend(next(batches))
            for sample in buffer:
                with torch.no_grad():
                    advantage(sample)
                step(optimizer, loss(sample))
            collector.update_policy_weights_()

    return parts(collector, buffer, loss, value_estimator=advantage), train


def rebuilt_dqn():
    """Next observations are not stored, but rebuilt when slices are sampled."""
    env = TransformedEnv(cartpole(), StepCounter())
    policy = q_policy(env)
    collector = collect_from(env, policy, 60, compact_obs=True)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(500),
        sampler=SliceSampler(slice_len=6, traj_key=IDS),
        transform=NextStateReconstructor(step_count_key="step_count"),
        batch_size=24,
    )
    loss = DQNLoss(policy, delay_value=True)
    updater = HardUpdate(loss, value_network_update_interval=5)
    optimizer = torch.optim.Adam(loss.parameters(), 3e-4)

    def train():
        batches = iter(collector)
        for _ in range(3):
            buffer.extend(next(batches))
            sample = buffer.sample()
            known = ~sample["next", "observation"].isnan().any(-1)
            step(optimizer, loss(sample[known]))
            updater.step()
            collector.update_policy_weights_()

    return parts(collector, buffer, loss, target_updater=updater), train


def a2c():
    """On-policy, with GAE, without a replay buffer."""
    env = TransformedEnv(cartpole(), Compose(StepCounter(max_steps=100), RewardSum()))
    actor = categorical_actor(env, logits())
    critic = ValueOperator(mlp(4, 1))
    collector = collect_from(env, actor, 60)
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss = A2CLoss(actor, critic)
    optimizer = torch.optim.RMSprop(loss.parameters(), 1e-3)

    def train():
        batches = iter(collector)
        for _ in range(3):
            batch = next(batches)
            with torch.no_grad():
                advantage(batch)
            step(optimizer, loss(batch))

    given = {"collector": collector, "loss_module": loss}
    return given | {"value_estimator": advantage, "policy": actor}, train


def ddpg():
    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(DoubleToFloat(), StepCounter(max_steps=50)))
    net = mlp(3, 1)
    actor = TensorDictSequential(
        TensorDictModule(net, in_keys=["observation"], out_keys=["param"]),
        TanhModule(in_keys=["param"], out_keys=["action"], spec=env.action_spec),
    )
    noise = AdditiveGaussianModule(spec=env.action_spec, annealing_num_steps=500)
    critic = ValueOperator(mlp(4, 1), in_keys=["observation", "action"])
    collector = collect_from(env, TensorDictSequential(actor, noise), 60)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(500), batch_size=16)
    loss = DDPGLoss(actor, critic, delay_actor=True, delay_value=True)
    loss.make_value_estimator(gamma=0.99)
    updater = SoftUpdate(loss, tau=0.01)
    optimizer = torch.optim.Adam(loss.parameters(), 1e-3)

    def train():
        batches = iter(collector)
        for _ in range(3):
            batch = next(batches)
            noise.step(batch.numel())
            buffer.extend(batch.reshape(-1))
            for _ in range(4):
                step(optimizer, loss(buffer.sample()))
                updater.step()

    return parts(collector, buffer, loss, target_updater=updater), train


def offline():
    """A data set, and no collector; the policy acts in an environment of the evaluation."""
    env = TransformedEnv(cartpole(), Compose(StepCounter(), InitTracker()))
    with torch.no_grad():
        data = env.rollout(120, break_when_any_done=False)
    data[IDS] = data["is_init"].squeeze(-1).cumsum(0)
    policy = q_policy(env)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(len(data)),
        sampler=SliceSampler(slice_len=4, traj_key=IDS),
        batch_size=16,
    )
    buffer.extend(data)
    loss = DiscreteCQLLoss(policy)
    loss.make_value_estimator(gamma=0.99)
    updater = SoftUpdate(loss, tau=0.05)
    optimizer = torch.optim.Adam(loss.parameters(), 1e-3)

    def train():
        for _ in range(12):
            step(optimizer, loss(buffer.sample()))
            updater.step()

    given = {"replay_buffer": buffer, "loss_module": loss, "target_updater": updater}
    return given | {"policy": policy, "env": env}, train


def workers_environment():
    return TransformedEnv(cartpole(), Compose(StepCounter(), RewardSum()))


def multi_process_ppo():
    env = workers_environment()
    actor = categorical_actor(env, logits())
    critic = ValueOperator(mlp(4, 1))
    collector = MultiSyncCollector(
        [workers_environment, workers_environment],
        actor,
        frames_per_batch=96,
        total_frames=-1,
        cat_results="stack",
        auto_register_policy_transforms=False,
    )
    # A fork server that has torch loaded gives each worker the same generator.
    collector.set_seed(0)
    return ppo_loop(collector, actor, critic)


# Greedy, so that noise can be planted into it.
ALSO_TRUE = {"rebuilt_dqn": ["epsilon_starts_at_zero"]}

PIPELINES = {
    one.__name__: one
    for one in (
        ppo,
        dqn,
        sac,
        recurrent_ppo,
        recurrent_dqn,
        batched_ppo,
        vtrace,
        rebuilt_dqn,
        a2c,
        ddpg,
        offline,
    )
}
