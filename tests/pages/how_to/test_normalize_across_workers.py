"""What the guide to normalization across workers says and does not run is so."""

import copy
import pickle
from functools import partial
from multiprocessing import context, resource_sharer
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict
from torchrl.data.utils import CloudpickleWrapper
from torchrl.envs import (
    EnvCreator,
    GymEnv,
    ParallelEnv,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    VecNorm,
    VecNormV2,
)

from tests.support.claims import guards
from tests.support.suites import recorded

COUNT = "count.-|-.observation"
KEYS = {"in_keys": ["observation"]}


def make_env(shared_data=None):
    norm = VecNormV2(**KEYS, decay=1.0, shared_data=shared_data)
    return TransformedEnv(GymEnv("CartPole-v1"), norm)


def zeros():
    """What ``shared_data`` takes."""
    mean = TensorDict(observation=torch.zeros(4))
    count = TensorDict(observation=torch.zeros((), dtype=torch.int64))
    return TensorDict(loc=mean, var=mean.clone(), count=count).share_memory_()


def shared_creator():
    creator = EnvCreator(make_env)
    for tensor in creator.state_dict()["_extra_state"].values():
        tensor.share_memory_()
    return creator


WAYS = {
    "function": lambda: make_env,
    "shared_data": lambda: partial(make_env, zeros()),
    "EnvCreator": lambda: EnvCreator(make_env),
    "as above": shared_creator,
}


def share_by_fork(make):
    env = ParallelEnv(2, make, mp_start_method="fork")
    try:
        env.reset()  # counts one observation in each worker
        before = steps_of_workers(env)
        env.rollout(3)
        after = steps_of_workers(env)
    finally:
        env.close()
    # Each worker adds the same number to its own statistics, and two that share add both.
    steps = 1 + 3
    assert after[0] - before[0] in (steps, 2 * steps)
    return after[0] - before[0] == 2 * steps


def steps_of_workers(env):
    return [int(state["_extra_state"][COUNT]) for state in env.state_dict().values()]


def share_by_pickle(make):
    """Whether two environments share whose constructor was pickled as for a spawned process."""
    wrapped = make if isinstance(make, EnvCreator) else CloudpickleWrapper(make)
    spawning = SimpleNamespace(duplicate_for_child=lambda fd: fd, DupFd=resource_sharer.DupFd)
    context.set_spawning_popen(spawning)  # a lock is pickled for a new process alone
    try:
        sent = [ForkingPickler.dumps(wrapped) for _ in range(2)]
    finally:
        context.set_spawning_popen(None)
    one, two = (pickle.loads(each)().transform for each in sent)
    resource_sharer.stop()
    before = two.loc["observation"].clone()
    feed(one, torch.ones(1, 4))
    return not torch.equal(two.loc["observation"], before)


def feed(norm, values):
    """Show rows to a transform without an environment; what it made of the last one."""
    for row in values:
        step = TensorDict(observation=row)
        if isinstance(norm, VecNorm):
            seen = norm._call(step.clone())
        else:
            seen = norm._step(step, step.clone())
    return seen["observation"]


@pytest.mark.filterwarnings("ignore:.*fork.*may lead to deadlocks")
@guards("vecnorm-shared-by-start-method")
def test_what_shares_statistics_under_which_start_method():
    found = {name: (share_by_fork(make()), share_by_pickle(make())) for name, make in WAYS.items()}
    assert found == {
        "function": (False, False),
        "shared_data": (True, False),
        "EnvCreator": (False, True),
        "as above": (True, True),
    }


@pytest.mark.filterwarnings("ignore:.*fork.*may lead to deadlocks")
@guards("vecnorm-load-detaches-workers")
def test_loading_gives_the_workers_other_tensors():
    creator = shared_creator()
    count = creator.state_dict()["_extra_state"][COUNT]
    env = ParallelEnv(2, creator, mp_start_method="fork")
    try:
        env.rollout(3)
        before = int(count)
        assert before == steps_of_workers(env)[0]
        env.load_state_dict(copy.deepcopy(env.state_dict()))
        env.rollout(3)
        assert int(count) == before < steps_of_workers(env)[0]
    finally:
        env.close()


@pytest.mark.filterwarnings("ignore:.*VecNorm")
@guards("vecnorm-frozen-copy-follows")
def test_only_the_frozen_copy_of_the_older_one_follows():
    follows = {}
    for make in (partial(VecNorm, new_api=False), VecNormV2):
        norm = make(**KEYS)
        feed(norm, torch.randn(5, 4))
        frozen = norm.frozen_copy()
        before = frozen.loc["observation"].clone()
        feed(norm, torch.randn(5, 4))
        follows[type(norm)] = not torch.equal(frozen.loc["observation"], before)
    assert follows == {VecNorm: True, VecNormV2: False}


@guards("vecnorm-v2-decay-inflates-scale")
def test_the_scale_is_that_of_the_mean_until_the_start_is_forgotten():
    torch.manual_seed(0)
    decay, mean = 0.95, 50.0
    norm = VecNormV2(**KEYS, decay=decay)
    for n_rows in (10, 40, 250):
        feed(norm, mean + torch.randn(n_rows, 1, dtype=torch.float64))
        n = norm._count["observation"].item()
        expected = (1 + mean**2 * decay**n) ** 0.5
        assert norm.scale["observation"].item() == pytest.approx(expected, rel=0.2)
    assert norm.scale["observation"].item() < 1.2
    norm = VecNormV2(**KEYS, decay=1.0)
    feed(norm, mean + torch.randn(100, 1, dtype=torch.float64))
    assert norm.scale["observation"].item() == pytest.approx(1, rel=0.2)


@pytest.mark.filterwarnings("ignore:Support of VecNormV2 for containers with non-empty")
@guards("vecnorm-v2-counts-rows-again")
def test_around_a_batched_environment_a_reset_counts_rows_of_the_others():
    def limited(max_steps):
        return TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps))

    def outside(**options):
        makers = [partial(limited, max_steps) for max_steps in (3, 5)]
        norm = VecNormV2(**KEYS, decay=1.0, **options)
        env = TransformedEnv(SerialEnv(len(makers), makers), norm)
        rows = env.rollout(20, break_when_any_done=False)
        return norm, rows.numel() + int((rows["step_count"] == 0).sum())

    assert outside()[0].loc["observation"].shape == (2, 4)
    norm, seen = outside(reduce_batch_dims=True)
    assert norm.loc["observation"].shape == (4,)
    assert norm.state_dict()["_extra_state"][COUNT] > seen


@pytest.mark.filterwarnings("ignore:.*VecNorm")
@guards("vecnorm-v2-nan-far-from-zero")
def test_rounding_makes_an_observation_nan():
    torch.manual_seed(0)
    rows = 1e4 + torch.randn(200, 1)

    def some_are_nan(norm, rows):
        return any(feed(norm, row[None]).isnan().any() for row in rows)

    assert some_are_nan(VecNormV2(**KEYS, decay=1.0), rows)
    assert not some_are_nan(VecNormV2(**KEYS, decay=1.0), rows - 1e4)
    assert not some_are_nan(VecNorm(**KEYS, new_api=False), rows)


@guards("normalization-cost-by-way")
def test_statistics_cost_time_and_neither_sharing_them_nor_fixed_numbers_do():
    def quartiles(way, metric):
        return [recorded("normalization", f"{way}-w2", metric, of) for of in ("q1", "q3")]

    assert min(quartiles("own", "vs_none")) > 1
    for low, high in (quartiles("shared", "vs_own"), quartiles("fixed", "vs_none")):
        assert low < 1 < high
