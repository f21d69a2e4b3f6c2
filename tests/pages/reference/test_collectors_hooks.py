"""Hooks: sentences that docs/evidence/collectors_internals/hooks.py does not show."""

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import GymEnv, StepCounter, TransformedEnv

from tests.support.claims import guards

FRAMES = 4
MARK = 100


def make_env():
    return TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=3))


def make_collector(batches=1, **options):
    return Collector(
        make_env(),
        policy=None,
        frames_per_batch=FRAMES,
        total_frames=batches * FRAMES,
        **options,
    )


def write(batch):
    batch.set_("step_count", batch["step_count"] + MARK)


def assign_and_add(batch):
    refused = []
    for key in ("step_count", "copied"):
        try:
            batch[key] = batch["step_count"].clone()
        except RuntimeError as error:
            refused.append(f"{key}: {error}")
    raise ValueError("; ".join(refused))


@guards("hooks-once-per-batch", "pre-hook-first")
def test_order_of_hooks_resets_and_steps():
    order = []
    env = make_env()
    collector = Collector(
        env,
        policy=None,
        frames_per_batch=2,
        total_frames=4,
        reset_at_each_iter=True,
        pre_collect_hook=lambda: order.append("pre"),
        post_collect_hook=lambda batch: order.append("post"),
    )

    def noting(name):
        method = getattr(env, name)

        def noted(*args, **kwargs):
            order.append(name)
            return method(*args, **kwargs)

        return noted

    for name in ("reset", "step_and_maybe_reset"):
        setattr(env, name, noting(name))
    list(collector)
    collector.shutdown()
    assert order == ["pre", "reset", *["step_and_maybe_reset"] * 2, "post"] * 2


@guards("post-hook-return-dropped", "post-hook-gets-object")
def test_the_batch_that_the_hook_got_is_yielded():
    got = []

    def hook(batch):
        got.append(batch)
        return TensorDict()

    collector = make_collector(post_collect_hook=hook)
    (batch,) = collector
    assert got[0] is batch
    collector.shutdown()


@guards("post-hook-gets-object", "trajectories-other-generator")
def test_the_hook_gets_frames_where_trajectories_are_yielded():
    got = []
    collector = make_collector(
        batches=3,
        trajs_per_batch=2,
        traj_format="padded",
        post_collect_hook=lambda batch: got.append(tuple(batch.shape)),
    )
    assert [tuple(batch.shape) for batch in collector] == [(2, 3)] * 2
    assert got == [(FRAMES,)] * 3
    collector.shutdown()


@guards("post-hook-set-later")
def test_a_hook_that_is_set_later_is_called():
    got = []
    collector = make_collector(batches=3)
    stream = iter(collector)
    next(stream)
    collector.post_collect_hook = got.append
    next(stream)
    collector.post_collect_hook = None
    next(stream)
    assert len(got) == 1
    collector.shutdown()


@guards("lazy-stack-edit-lost", "upstream-lazy-edit-lost")
def test_a_lazy_stack_stacks_at_each_read():
    steps = [TensorDict(x=torch.zeros(1)) for _ in range(2)]
    stack = LazyStackedTensorDict.lazy_stack(steps)
    first, second = stack["x"], stack["x"]
    assert first.data_ptr() != second.data_ptr()
    stack["x"].add_(1)
    assert stack["x"].tolist() == [[0.0], [0.0]]
    stack.set_("x", torch.ones(2, 1))
    assert [step["x"].item() for step in steps] == [1.0, 1.0]


@guards("worker-locks-batch", "in-place-set-seen", "post-hook-set-later")
@pytest.mark.slow
def test_a_worker_locks_its_batch_where_a_storing_device_is_set(capfd):
    collector = MultiSyncCollector(
        [make_env],
        policy=None,
        frames_per_batch=FRAMES,
        total_frames=-1,
        storing_device="cpu",
        post_collect_hook=write,
    )
    stream = iter(collector)
    for _ in range(2):
        assert (next(stream)["step_count"] >= MARK).all()
    collector.post_collect_hook = assign_and_add
    with pytest.raises(RuntimeError, match="At least one process failed"):
        next(stream)
    collector.shutdown()
    written = capfd.readouterr().err
    assert "step_count: Cannot modify locked TensorDict" in written
    assert "copied: Cannot modify locked TensorDict" in written


@guards("exception-shuts-down")
@pytest.mark.parametrize("hook", ["pre_collect_hook", "post_collect_hook"])
def test_an_exception_shuts_the_collector_down(hook):
    def fail(*_):
        raise ValueError("raised in the hook")

    buffer = ReplayBuffer(storage=LazyTensorStorage(10))
    collector = make_collector(replay_buffer=buffer, **{hook: fail})
    with pytest.raises(ValueError, match="raised in the hook"):
        list(collector)
    assert collector.closed
    assert len(buffer) == 0
