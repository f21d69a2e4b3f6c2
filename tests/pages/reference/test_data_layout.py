"""What docs/reference/data_layout.rst says without showing it."""

import textwrap
from unittest import mock

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase
from torchrl.collectors import Collector
from torchrl.data import (
    LazyTensorStorage,
    TensorDictReplayBuffer,
    Unbounded,
)
from torchrl.envs import (
    Compose,
    EnvCreator,
    GymEnv,
    InitTracker,
    ParallelEnv,
    SerialEnv,
    StepCounter,
    TensorDictPrimer,
    Transform,
    TransformedEnv,
)
from torchrl.objectives.value import GAE, TD0Estimator, TDLambdaEstimator

from tests.support import ROOT
from tests.support.claims import guards

PAGE = "docs/reference/data_layout.rst"


def cartpole():
    marks = Compose(InitTracker(), StepCounter(max_steps=3))
    return TransformedEnv(GymEnv("CartPole-v1"), marks)


def with_extra():
    return cartpole().append_transform(TensorDictPrimer(extra=Unbounded((1,)), default_value=0.0))


def batches(count, frames=8, env=None, **options):
    """The first batches of random actions."""
    collector = Collector(
        env or cartpole(), None, frames_per_batch=frames, total_frames=frames * count, **options
    )
    try:
        return [batch.clone() for batch in collector]
    finally:
        collector.shutdown()


def test_page_and_run_have_the_same_environment():
    """The page shows it, the run needs it, and neither may import the other."""
    run = (ROOT / "docs/evidence/data_layout/batch.py").read_text(encoding="utf-8")
    shown = run[run.index("class Count(EnvBase)") :].partition("\n\n\n")[0]
    assert textwrap.indent(shown, "      ", lambda line: line.strip()) in (ROOT / PAGE).read_text(
        encoding="utf-8"
    )


@guards("root-flags-false")
def test_root_flags_are_false():
    for env in (cartpole(), SerialEnv(2, cartpole)):
        for batch in batches(2, frames=16, env=env):
            assert batch["next", "done"].any()
            for flag in ("done", "terminated", "truncated"):
                assert not batch[flag].any()


@guards("root-flags-others")
def test_a_lone_flag_reaches_the_root():
    class Lone(Transform):
        def _step(self, tensordict, following):
            return following.set("truncated", torch.ones(1, dtype=torch.bool))

    (batch,) = batches(1, frames=6, env=TransformedEnv(GymEnv("CartPole-v1"), Lone()))
    assert batch["truncated"][1:].all()
    assert not batch["done"].any()


@guards("batch-row-cut")
def test_next_batch_goes_on():
    first, second = batches(2)
    assert not first["next", "done"][-1]
    assert torch.equal(first["next", "observation"][-1], second["observation"][0])
    assert first["collector", "traj_ids"][-1] == second["collector", "traj_ids"][0]


@guards("truncation-by-batch", "flag-price", "set-truncated-writes-done", "truncated-argument")
def test_a_marked_trajectory_goes_on():
    first, second = batches(2, set_truncated=True)
    assert first["next", "truncated"][-1]
    assert first["next", "done"][-1]
    assert not first["next", "terminated"][-1]
    assert first["next", "step_count"][-1] != 3  # the step counter did not end it
    assert torch.equal(first["next", "observation"][-1], second["observation"][0])
    assert first["collector", "traj_ids"][-1] == second["collector", "traj_ids"][0]


@pytest.mark.usefixtures("forkserver")
@guards("parallel-moves-specs-only")
@pytest.mark.parametrize("has_spec", [True, False])
def test_which_entries_a_parallel_env_moves(has_spec):
    seen = []

    def policy(td):
        seen.append("extra" in td)
        return td.update({"action": torch.tensor([[0, 1]]), "extra": torch.ones(1, 1)})

    env = ParallelEnv(1, EnvCreator(with_extra if has_spec else cartpole))
    env.rollout(3, policy, break_when_any_done=False)
    env.close()
    assert seen == [has_spec] * 3


@guards("policy-entries-move", "next-needs-spec")
def test_what_a_policy_finds_of_its_last_output():
    seen = []

    class Policy(TensorDictModuleBase):
        in_keys = ("observation",)
        out_keys = ("action", "extra", ("next", "hidden"))

        def forward(self, data):
            seen.append(("extra" in data, "hidden" in data, data["is_init"].item()))
            written = {"action": torch.tensor([0, 1]), "extra": torch.ones(1)}
            return data.update({**written, "next": {"hidden": torch.ones(1)}})

    collector = Collector(cartpole(), Policy(), frames_per_batch=6, total_frames=6)
    (batch,) = list(collector)
    collector.shutdown()
    assert "extra" not in batch["next"]
    assert "hidden" in batch["next"]
    moved = (True, False, False)
    assert seen[-5:] == [moved, moved, (True, False, True), moved, moved]


@guards("init-needs-tracker", "next-init-false")
def test_is_init():
    (batch,) = batches(1)
    assert batch["is_init"].sum() == 3
    assert not batch["next", "is_init"].any()
    (bare,) = batches(1, env=GymEnv("CartPole-v1"))
    assert "is_init" not in bare


@guards("rollout-resets-on")
def test_which_rollout_steps_and_resets():
    for stops, length, steps in ((True, 3, 0), (False, 8, 7)):  # the last step needs no successor
        env = cartpole()
        step = mock.patch.object(env, "step_and_maybe_reset", side_effect=env.step_and_maybe_reset)
        with step as called, mock.patch.object(env, "reset", side_effect=env.reset) as reset:
            assert len(env.rollout(8, break_when_any_done=stops)) == length
        assert called.call_count == steps
        assert reset.call_count == 1 or not stops


@guards("postproc-loses-name")
def test_what_loses_the_name():
    with pytest.warns(UserWarning, match="split_trajs=True produces"):
        (split,) = batches(1, split_trajs=True)
    (flat,) = batches(1, env=SerialEnv(2, cartpole), postproc=lambda batch: batch.reshape(-1))
    options = {"trajs_per_batch": 2, "traj_format": "cat"}
    whole = batches(1, env=SerialEnv(2, cartpole), **options)[0]
    assert [split.names, flat.names, whole.names] == [[None, None], [None], [None]]


@guards("next-step-count-ahead")
def test_next_step_count_is_one_ahead():
    (batch,) = batches(1)
    assert torch.equal(batch["next", "step_count"], batch["step_count"] + 1)


@pytest.mark.parametrize("kind", [GAE, TD0Estimator, TDLambdaEstimator])
@guards("missing-terminated-reads-done")
def test_missing_terminated_is_done(kind):
    flags = {"truncated": torch.tensor([[True]]), "done": torch.tensor([[True]])}

    def target(**extra):
        after = {"state_value": torch.ones(1, 1), "reward": torch.ones(1, 1), **flags, **extra}
        data = TensorDict({"state_value": torch.zeros(1, 1), "next": after}, [1])
        options = {"lmbda": 0.5} if kind is not TD0Estimator else {}
        estimator = kind(gamma=0.5, value_network=None, **options)
        return estimator(data)["value_target"].item()

    assert target(terminated=torch.tensor([[False]])) == 1.5
    assert target(terminated=torch.tensor([[True]])) == target() == 1.0


@guards("storage-first-dimension")
def test_storage_of_one_dimension_keeps_whole_stretches():
    (batch,) = batches(1, frames=12, env=SerialEnv(3, cartpole))
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(8, ndim=1))
    buffer.extend(batch)
    assert len(buffer) == 3
