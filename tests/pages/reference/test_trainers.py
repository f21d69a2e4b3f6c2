"""What docs/reference/trainers.rst says without showing it."""

import warnings

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import (
    LazyTensorStorage,
    SamplerWithoutReplacement,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from torchrl.envs import Compose, GymEnv, RewardSum, TransformedEnv
from torchrl.modules import (
    NormalParamExtractor,
    OneHotCategorical,
    ProbabilisticActor,
    QValueModule,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss, DDPGLoss, DQNLoss, SACLoss, SoftUpdate, TD3Loss
from torchrl.trainers import (
    DefaultOptimizationStepper,
    ReplayBufferTrainer,
    RewardNormalizer,
    Trainer,
)
from torchrl.trainers.algorithms import DDPGTrainer, DQNTrainer, PPOTrainer, SACTrainer, TD3Trainer

from tests.support.claims import guards


@pytest.fixture(autouse=True)
def quiet():
    """The trainers call what they use deprecated, and themselves experimental."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\w+ is an experimental/prototype feature")
        warnings.filterwarnings("ignore", message="The '(post_loss|optimizer)' hook stage")
        yield


class Log:
    def __init__(self):
        self.seen = {}

    def log_scalar(self, name, value, step):
        self.seen.setdefault(name, []).append(float(value))


def ppo(total=100, collected=None, lr=1e-3, **changed):
    """PPO on CartPole; a batch has 100 frames in two minibatches, an epoch."""
    torch.manual_seed(0)
    logits = TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["logits"])
    choice = {"in_keys": ["logits"], "distribution_class": OneHotCategorical}
    actor = ProbabilisticActor(logits, **choice, return_log_prob=True)
    loss = ClipPPOLoss(actor, ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"]))
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    frames = {"frames_per_batch": 100, "total_frames": collected or total}
    given = {
        "collector": Collector(env, actor, **frames, auto_register_policy_transforms=False),
        "replay_buffer": TensorDictReplayBuffer(
            storage=LazyTensorStorage(100), sampler=SamplerWithoutReplacement(), batch_size=50
        ),
        "optimizer": torch.optim.SGD(loss.parameters(), lr=lr),
        "optim_steps_per_batch": None,
        "num_epochs": 1,
        "frame_skip": 1,
    }
    given = given | {"progress_bar": False, "loss_module": loss} | changed
    return PPOTrainer(total_frames=total, **given)


def off_policy(loss_type, *transforms, random=0, prioritized=False):
    """The arguments of a trainer: four batches of 20 frames."""
    torch.manual_seed(0)
    if loss_type is DQNLoss:
        env = GymEnv("CartPole-v1")
        net = TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["action_value"])
        actor = TensorDictSequential(net, QValueModule(spec=env.action_spec))
        loss = DQNLoss(actor, action_space="one-hot", delay_value=True)
    else:
        env = GymEnv("Pendulum-v1")
        actor = TensorDictModule(torch.nn.Linear(3, 1), ["observation"], ["action"])
        if loss_type is SACLoss:
            net = torch.nn.Sequential(torch.nn.Linear(3, 2), NormalParamExtractor())
            actor = TensorDictModule(net, ["observation"], ["loc", "scale"])
            keys = {"in_keys": ["loc", "scale"], "distribution_class": TanhNormal}
            actor = ProbabilisticActor(actor, **keys)
        both = TensorDictModule(
            lambda o, a: torch.cat([o, a], -1), ["observation", "action"], ["x"]
        )
        critic = TensorDictModule(torch.nn.Linear(4, 1), ["x"], ["state_action_value"])
        specs = {} if loss_type is DDPGLoss else {"action_spec": env.action_spec}
        loss = loss_type(actor, TensorDictSequential(both, critic), **specs)
    env = TransformedEnv(env, Compose(*transforms))
    frames = {"frames_per_batch": 20, "total_frames": 80, "init_random_frames": random}
    options = {"storage": LazyTensorStorage(80), "batch_size": 10}
    kind = TensorDictReplayBuffer
    if prioritized:
        options, kind = options | {"alpha": 0.7, "beta": 0.5}, TensorDictPrioritizedReplayBuffer
    return {
        "collector": Collector(env, actor, **frames, auto_register_policy_transforms=False),
        "loss_module": loss,
        "replay_buffer": kind(**options),
        "target_net_updater": SoftUpdate(loss, eps=0.5),
        "optimizer": torch.optim.Adam(loss.parameters()),
        "total_frames": 80,
        "frame_skip": 1,
        "optim_steps_per_batch": 2,
        "progress_bar": False,
    }


def weights(buffer):
    """How many importance weights a sample has: one as long as no priority is updated."""
    return len(buffer.sample()["priority_weight"].unique())


@guards("last-checkpoint-needs-equal-frames")
@pytest.mark.parametrize("collected", [200, 300])
def test_the_last_checkpoint(collected, monkeypatch):
    forced = []
    trainer = ppo(total=300, collected=collected)
    monkeypatch.setattr(trainer, "save_trainer", lambda force_save=False: forced.append(force_save))
    trainer.train()
    assert forced[-1] == (collected == 300)


@guards("trainer-clips-with-clip-norm")
def test_gradients_are_clipped_with_clip_norm_alone():
    def moved(**options):
        trainer = ppo(lr=1.0, **options)
        before = [one.detach().clone() for one in trainer.loss_module.parameters()]
        trainer.train()
        pairs = zip(trainer.loss_module.parameters(), before, strict=True)
        return sum((new - old).square().sum().item() for new, old in pairs) ** 0.5

    assert moved() > 0.1
    assert moved(clip_norm=0.01) <= 0.02001  # two steps


@guards("short-runs-log-nothing", "r-total-is-of-the-batch")
def test_what_is_logged():
    for options, total in (({}, None), ({"log_interval": 1}, [100.0])):
        log = Log()
        ppo(logger=log, **options).train()
        assert log.seen.get("r_total") == total
        assert bool(log.seen) == bool(total)


@guards("reward-sum-is-required")
@pytest.mark.parametrize(
    ("kind", "loss"), [(SACTrainer, SACLoss), (DQNTrainer, DQNLoss), (DDPGTrainer, DDPGLoss)]
)
def test_a_sum_of_rewards_is_required(kind, loss):
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'max'"):
        kind(**off_policy(loss)).train()
    kind(**off_policy(loss, RewardSum(in_keys=["reward"], out_keys=["reward_sum"]))).train()


@guards("reward-normalizer-misses-advantages")
def test_a_reward_normalizer_does_not_reach_the_advantages():
    def targets(normalizes):
        trainer, seen = ppo(), []
        if normalizes:
            RewardNormalizer(scale=100.0).register(trainer)
        trainer.register_op("post_optim_log", lambda batch: seen.append(batch["value_target"]))
        trainer.train()
        return torch.cat(seen).sort(0).values

    torch.testing.assert_close(targets(True), targets(False))


@guards("few-steps-carry-over")
def test_with_few_steps_a_later_batch_takes_none():
    trainer, steps, after = ppo(total=300, optim_steps_per_batch=1), [], []
    trainer.register_op("post_optim", lambda: steps.append(1))
    trainer.register_op("post_steps", lambda: after.append(len(steps)))
    trainer.train()
    assert after == [1, 2, 2]


@guards("off-policy-trainers-lose-frames")
@pytest.mark.parametrize(
    ("kind", "loss"),
    [(SACTrainer, SACLoss), (DQNTrainer, DQNLoss), (DDPGTrainer, DDPGLoss), (TD3Trainer, TD3Loss)],
)
def test_random_frames_are_lost(kind, loss):
    trainer = kind(**off_policy(loss, random=60), enable_logging=False)
    trainer.train()
    assert (trainer.collected_frames, len(trainer.replay_buffer)) == (80, 40)


@guards("priorities-without-post-loss")
def test_who_updates_priorities():
    given = off_policy(TD3Loss, prioritized=True)
    TD3Trainer(**given, enable_logging=False).train()
    assert weights(given["replay_buffer"]) == 1
    given = off_policy(SACLoss, prioritized=True)
    SACTrainer(**given, enable_logging=False).train()
    assert weights(given["replay_buffer"]) > 1


@guards("priorities-without-post-loss", "priorities-with-a-hook")
def test_a_stepper_needs_a_hook():
    for hook, updates in ((False, False), (True, True)):
        given = off_policy(DQNLoss, prioritized=True)
        trainer = Trainer(**given, optimization_stepper=DefaultOptimizationStepper())
        buffer = given["replay_buffer"]
        ReplayBufferTrainer(buffer, flatten_tensordicts=True).register(trainer)
        if hook:
            trainer.register_op("post_optim_log", buffer.update_tensordict_priority)
        trainer.train()
        assert (weights(buffer) > 1) == updates
