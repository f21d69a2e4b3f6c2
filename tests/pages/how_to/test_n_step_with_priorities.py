"""What the guide to n-step returns says and does not run is so."""

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import MultiStepTransform
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss

from tests.support.claims import guards
from tests.support.suites import recorded

N_STEPS, GAMMA, VALUE = 3, 0.5, 8.0


def make_buffer():
    transform = MultiStepTransform(n_steps=N_STEPS, gamma=GAMMA, done_keys=["done", "truncated"])
    return TensorDictReplayBuffer(storage=LazyTensorStorage(100), transform=transform, batch_size=4)


def episode(n_steps, end):
    """Rewards of one; the last step is marked by the flag *end*."""
    last = torch.zeros(n_steps, 1, dtype=torch.bool)
    last[-1] = True
    flags = {key: torch.zeros_like(last) for key in ("terminated", "truncated")}
    following = {**flags, end: last, "done": last, "reward": torch.ones(n_steps, 1)}
    data = {"action": torch.zeros(n_steps, dtype=torch.long)}
    for part in (data, following):
        part["observation"] = torch.ones(n_steps, 1)
    return TensorDict({**data, "next": TensorDict(following, [n_steps])}, [n_steps])


@guards("multi-step-rows-not-saved")
def test_rows_that_are_held_back_are_in_no_save(tmp_path):
    first = make_buffer()
    first.extend(episode(10, "terminated"))
    assert len(first) == 10 - N_STEPS
    assert first.state_dict()["_transforms"] == {}
    first.dumps(tmp_path)
    resumed = make_buffer()
    resumed.loads(tmp_path)
    for buffer in (first, resumed):
        buffer.extend(episode(10, "terminated"))
    assert (len(first), len(resumed)) == (20 - N_STEPS, 20 - 2 * N_STEPS)


@guards("multi-step-time-limit-bootstraps")
def test_a_time_limit_leaves_the_value_in_the_target():
    net = torch.nn.Linear(1, 2, bias=False)
    torch.nn.init.constant_(net.weight, VALUE)
    actor = QValueActor(net, in_keys=["observation"], action_space="categorical")
    loss = DQNLoss(actor, action_space="categorical", delay_value=False)
    loss.make_value_estimator(gamma=GAMMA)
    found = {}
    for end in ("terminated", "truncated"):
        buffer = make_buffer()
        for _ in range(2):
            buffer.extend(episode(5, end))
        rows = buffer[:]
        found[end] = loss.value_estimator.value_estimate(
            rows, target_params=loss.target_value_network_params
        )[:5].flatten()
        assert rows["steps_to_next_obs"].flatten()[:5].tolist() == [3, 3, 3, 2, 1]
    sums = torch.tensor([1.75, 1.75, 1.75, 1.5, 1.0])
    values = VALUE * GAMMA ** torch.tensor([3, 3, 3, 2, 1])
    torch.testing.assert_close(found["truncated"], sums + values)
    ended = torch.tensor([False, False, True, True, True])
    torch.testing.assert_close(found["terminated"], sums + values * ~ended)


@guards("multi-step-sums-along-the-last-dimension")
def test_several_environments_are_summed_by_row():
    transform = MultiStepTransform(n_steps=N_STEPS, gamma=GAMMA)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100, ndim=2), transform=transform, batch_size=4
    )
    batch = torch.stack([episode(10, "terminated"), episode(10, "truncated")])
    batch[1]["next", "reward"] *= 10
    buffer.extend(batch)
    assert buffer[:]["next", "reward"][:, 0].flatten().tolist() == [1.75, 17.5]


@guards("priorities-cost-a-multiple-of-random")
def test_priorities_take_longer_than_rows_at_random_and_their_update_longer_still():
    drawn, updated = (
        [recorded("replay_buffers_samplers", key, "time_vs_random", of) for of in ("q1", "q3")]
        for key in ("prioritized-reading-100k", "prioritized-update-reading-100k")
    )
    assert 1 < min(drawn) < max(drawn) < min(updated)


@guards("multi-step-makes-an-extend-longer")
def test_an_extend_with_the_transform_takes_longer():
    assert recorded("multi_step", "extend-n3", "time_vs_plain", "q1") > 1
