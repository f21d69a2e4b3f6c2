"""What looks like a symptom of recurrent state or of evaluation, and is none."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.collectors.utils import split_trajectories
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import (
    Compose,
    GymEnv,
    InitTracker,
    RewardScaling,
    RewardSum,
    SerialEnv,
    StepCounter,
    Transform,
    TransformedEnv,
    VecNormV2,
)
from torchrl.modules import GRUModule, QValueModule, ValueOperator, set_recurrent_mode
from torchrl.objectives.value import VTrace
from torchrl_doctor import CLEAR, diagnose

from tests.support.healthy_pipelines import cartpole, collect_from


def gru_policy(*before):
    gru = GRUModule(4, 8, in_key="observation", out_key="features")
    head = TensorDictModule(torch.nn.Linear(8, 2), ["features"], ["action_value"])
    return TensorDictSequential(*before, gru, head, QValueModule(spec=cartpole().action_spec))


def env_for(policy, number=0, tracker=None):
    base = SerialEnv(number, cartpole) if number else cartpole()
    base.set_seed(0)
    gru = next(one for one in policy if isinstance(one, GRUModule))
    transforms = Compose(tracker or InitTracker(), gru.make_tensordict_primer())
    return TransformedEnv(base, transforms)


def collected(number=3, frames=90):
    torch.manual_seed(0)
    policy = gru_policy()
    collector = collect_from(env_for(policy, number), policy, frames)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    return {"batch": batch, "policy": policy}


def padded():
    given = collected()
    return given | {"batch": split_trajectories(given["batch"])}


def shuffled():
    given = collected(number=0)
    return given | {"batch": given["batch"][torch.randperm(90)]}


def an_agent_that_acts_with_one_of_its_networks():
    class Agent(torch.nn.Module):
        def __init__(self, actor):
            super().__init__()
            self.actor, self.critic = actor, gru_policy()

        def forward(self, data):
            return self.actor(data)

    given = collected()
    return given | {"policy": Agent(given["policy"])}


def a_policy_that_marks_the_starts():
    mark = TensorDictModule(lambda count: count == 0, ["step_count"], ["is_init"])
    policy = gru_policy(mark)
    return {"policy": policy, "env": env_for(policy, tracker=StepCounter())}


def transforms_added_by_the_collector():
    policy, env = gru_policy(), cartpole()
    options = {"frames_per_batch": 40, "total_frames": -1}
    collector = Collector(env, policy, auto_register_policy_transforms=True, **options)
    return {"collector": collector, "policy": policy, "env": env}


def a_loss_of_shorter_sequences():
    class Loss(torch.nn.Module):
        def __init__(self, policy):
            super().__init__()
            self.policy = policy

        def forward(self, batch):
            with set_recurrent_mode(True):
                data = self.policy(batch.reshape(-1, 8).copy())
            return TensorDict(loss=data["chosen_action_value"].square().mean())

    given = collected(number=0, frames=64)
    return {"batch": given["batch"], "loss_module": Loss(given["policy"])}


def a_critic_without_memory():
    value = ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"])
    return {"value_estimator": VTrace(gamma=0.9, actor_network=gru_policy(), value_network=value)}


def slices_as_rows():
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(120),
        sampler=SliceSampler(slice_len=8, end_key=("next", "done"), truncated_key=None),
        batch_size=64,
    )
    torch.manual_seed(0)
    env = cartpole()
    env.set_seed(0)
    buffer.extend(env.rollout(120, break_when_any_done=False))
    rows = [buffer.sample().reshape(-1, 8) for _ in range(20)]
    ends = [row["next", "done"].any(1) for row in rows]
    chosen = next(row for row, end in zip(rows, ends, strict=True) if 0 < end.sum() < 8)
    return {"batch": chosen}


def normed(*transforms):
    return TransformedEnv(cartpole(), Compose(*transforms))


def trained():
    torch.manual_seed(0)
    env = normed(VecNormV2(in_keys=["observation"], decay=1.0))
    env.base_env.set_seed(0)
    env.rollout(300, break_when_any_done=False)
    return env


def an_old_copy_that_agrees():
    env = trained()
    copy = env.transform[0].frozen_copy()
    env.transform[0]._count.apply_(lambda count: count.mul_(1000))
    return {"env": env, "eval_env": normed(copy)}


def a_norm_of_the_reader():
    class Halve(Transform):
        pass

    return {"env": trained(), "eval_env": normed(Halve(in_keys=["observation"]))}


def norms_in_the_workers():
    env = trained()
    return {"env": env, "eval_env": SerialEnv(2, lambda: normed(env.transform[0].frozen_copy()))}


def two_sums():
    raw = RewardSum(in_keys=["reward"], out_keys=["score"])
    env = GymEnv("Pendulum-v1")
    return {"env": TransformedEnv(env, Compose(raw, RewardScaling(0.0, 0.1), RewardSum()))}


LOOKALIKES = {
    "environments_share_one_memory": [padded],
    "lstm_outputs_change_after_done": [shuffled],
    "two_lstms_share_their_memory": [an_agent_that_acts_with_one_of_its_networks],
    "is_init_not_found": [a_policy_that_marks_the_starts, transforms_added_by_the_collector],
    "lstm_learns_nothing_from_the_past": [a_loss_of_shorter_sequences],
    "gae_raises_with_lstm": [a_critic_without_memory],
    "evaluation_rollout_ends_too_early": [slices_as_rows],
    "good_in_training_poor_in_evaluation": [
        an_old_copy_that_agrees,
        a_norm_of_the_reader,
        norms_in_the_workers,
    ],
    "return_is_not_the_score": [two_sums],
}


@pytest.mark.parametrize(
    ("slug", "make"), [(slug, make) for slug, makes in LOOKALIKES.items() for make in makes]
)
def test_what_looks_like_a_symptom_is_not_named(slug, make):
    report = diagnose(**make())
    assert [one.evidence for one in report.applies if one.slug == slug] == []


@pytest.mark.parametrize("frames", [6, 400])
def test_a_recurrent_collector_is_told_nothing(frames):
    """Neither where episodes end in its batch nor where none does."""
    policy = gru_policy()
    collector = collect_from(env_for(policy), policy, frames)
    told = [(one.slug, one.state) for one in diagnose(collector=collector) if one.state != CLEAR]
    collector.shutdown()
    assert told == []
