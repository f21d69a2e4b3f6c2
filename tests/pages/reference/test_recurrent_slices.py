"""What the page on recurrent state says about slices, burn-in and compact batches."""

from unittest import mock

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import Compose, GymEnv, InitTracker, TransformedEnv
from torchrl.envs.transforms import BurnInTransform
from torchrl.modules import (
    EGreedyModule,
    GRUModule,
    LSTMModule,
    QValueModule,
    set_recurrent_mode,
)
from torchrl.objectives import DQNLoss, SoftUpdate

from tests.support.claims import guards
from tests.support.evidence_module import load_evidence

slices = load_evidence("recurrent_slices/replay")


@pytest.fixture(scope="module", params=["LSTM, pad", "GRU, pad"])
def collected(request):
    core, actor = slices.make_actor(*slices.KINDS[request.param])
    return core, actor, slices.collect(core, actor)


def wrong_rows(actor, sample, recurrent=True):
    error = (slices.ratio(actor, sample, recurrent) - 1).abs()
    return {row for row in range(len(error)) if error[row] > slices.TOLERANCE}


def begins_inside(sample):
    """First rows of slices that do not begin their trajectory."""
    starts = range(0, len(sample), slices.SLICE_LEN)
    return {row for row in starts if sample["step_count"][row] > 0}


@guards("wrong-slices", "right-slices")
def test_which_rows_are_wrong(collected):
    _, actor, batch = collected
    sample = slices.sampled(batch, slices.slices())
    inside = begins_inside(sample)
    assert 0 < len(inside) < slices.N_SLICES, "no slice, or every one, begins its trajectory"
    assert wrong_rows(actor, sample, recurrent=False) == inside
    bare = slices.sampled(slices.without_state(batch), slices.slices())
    length = slices.SLICE_LEN
    in_slice = {row - row % length for row in wrong_rows(actor, bare)}
    assert in_slice == inside


@guards("marks-after-transform")
def test_the_marks_come_after_the_transforms(collected):
    _, _, batch = collected
    seen = []
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(len(batch)), sampler=slices.slices())
    buffer.append_transform(lambda data: seen.append(data["is_init"].sum().item()) or data)
    buffer.extend(batch)
    torch.manual_seed(3)
    marked = buffer.sample(slices.BATCH)["is_init"].sum()
    assert seen[0] < marked == slices.N_SLICES


@guards("burn-in-docstring")
def test_what_burn_in_says_of_itself():
    words = " ".join(BurnInTransform.__doc__.split())
    assert "obtain up-to-date recurrent states when they are not available" in words


@guards(
    "burn-in-recomputes", "burn-in-values-replayed", "burn-in-rows-no-loss", "burn-in-no-gradient"
)
def test_burn_in_is_the_replay_of_the_first_rows(collected):
    core, _, batch = collected
    sample = slices.sampled(batch, slices.slices()).reshape(-1, slices.SLICE_LEN)
    with torch.no_grad(), set_recurrent_mode(True):
        whole = core(sample.clone())["feature"][:, 3:]
    with set_recurrent_mode(True):
        rest = BurnInTransform([core], burn_in=3)(sample.clone())
    assert not rest["h"].requires_grad
    with torch.no_grad(), set_recurrent_mode(True):
        torch.testing.assert_close(core(rest)["feature"], whole)


@guards("stale-inside-pieces", "fresh-pieces-zero")
@pytest.mark.parametrize("name", ["LSTM, pad", "GRU, pad"])
def test_which_pieces_are_stale_after_an_update(name):
    core, actor = slices.make_actor(*slices.KINDS[name])
    batch = slices.collect(core, actor)
    batch["row"] = torch.arange(len(batch))
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.add_(0.1)

    def log_prob(data):
        with torch.no_grad(), set_recurrent_mode(True):
            return actor.get_dist(data.clone()).log_prob(data["action"])

    truth = log_prob(batch)  # begins with a reset, so no state of it is stale
    sample = slices.sampled(batch, slices.slices())
    error = (log_prob(sample) - truth[sample["row"]]).abs()
    starts = {row for row in range(0, len(sample), slices.SLICE_LEN) if error[row] > 1e-5}
    assert starts == begins_inside(sample) != set()
    rows = (error > 1e-5).nonzero().flatten().tolist()
    assert {row - row % slices.SLICE_LEN for row in rows} == starts


@guards("burn-in-fails-prefetch", "above-runs-in-thread")
def test_burn_in_and_prefetch():
    burn_in = load_evidence("recurrent_slices/burn_in")
    core = burn_in.make_core()
    flat = burn_in.collect(core)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.1)
    transform = BurnInTransform([core], burn_in=8)

    def buffer_of(kind, *transforms):
        buffer = kind(
            storage=LazyTensorStorage(len(flat)),
            sampler=SliceSampler(slice_len=16, traj_key=slices.IDS),
            batch_size=64,
            prefetch=2,
        )
        for one in transforms:
            buffer.append_transform(one)
        buffer.extend(flat)
        return buffer

    flat["row"] = torch.arange(len(flat))
    with torch.no_grad(), set_recurrent_mode(True):
        # The same rows burned in by hand, from the storage.
        def right(found):
            first = found["row"][:, 0]
            whole = torch.stack([flat[row - 8 : row + 8] for row in first.tolist()])
            return torch.allclose(transform(whole.clone())["h"][:, 0], found["h"][:, 0])

        buffer = buffer_of(slices.ReplayBuffer, lambda data: data.reshape(-1, 16), transform)
        assert [right(buffer.sample()) for _ in range(4)] == [True, False, False, False]
        buffer = buffer_of(TensorDictReplayBuffer)
        assert all(right(burn_in.burnt_in_sample(buffer, transform, 16)) for _ in range(4))


@guards("ends-not-rebuilt", "sanitizer-approximates")
def test_what_stands_in_for_the_observation_at_the_ends():
    compact = load_evidence("recurrent_critics/compact")
    _, critic, batch = compact.collect(compact_obs=True)
    rebuilt = Compose(*compact.PREPARED["... and the hidden state"]())(batch.clone())
    lost = rebuilt["next", "observation"].isnan().any(-1)
    assert lost[batch["next", "truncated"].flatten()].all()
    assert lost[-1]
    seen = []
    handle = critic.register_forward_pre_hook(
        lambda _, inputs: seen.append(inputs[0]["observation"].clone())
    )
    compact.following_values(critic, rebuilt, deactivate_vmap=True)
    handle.remove()
    assert torch.equal(seen[1][lost], batch["observation"][lost])
    assert torch.equal(seen[1][~lost], rebuilt["next", "observation"][~lost])


def test_the_burn_in_run_notices_a_burn_in_that_does_nothing():
    module = load_evidence("recurrent_slices/burn_in")
    core = module.make_core()
    flat = module.collect(core)
    batch = flat.reshape(module.EPISODES, module.STEPS)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.1)
    truth = module.true_states(core, batch)
    helps = [module.relative_error(core, batch, truth, length, True) for length in (0, 8)]
    assert helps[1] < 0.5 * helps[0]

    def idle(self, data):
        return data[..., self.burn_in :]

    with mock.patch.object(BurnInTransform, "forward", idle):
        useless = [module.relative_error(core, batch, truth, length, True) for length in (0, 8)]
    assert useless[1] == pytest.approx(useless[0])


@guards("exclusion-unwritten-entry", "compact-drops-state")
@pytest.mark.parametrize("module", [LSTMModule, GRUModule])
def test_the_buffer_of_a_compact_collector(module):
    core, actor = slices.make_actor(module, "pad")
    transforms = Compose(InitTracker(), core.make_tensordict_primer())
    collector = Collector(
        TransformedEnv(GymEnv("CartPole-v1"), transforms),
        actor,
        frames_per_batch=4,
        total_frames=4,
        compact_obs=True,
        auto_register_policy_transforms=False,
    )
    dropped, laid_out = set(collector._compact_next_keys), collector._final_rollout
    moved = {*collector.env._observation_keys_step_mdp, *collector.env._state_keys_step_mdp}
    assert {"observation", "is_init", "h"} <= moved
    assert dropped == {("next", key) for key in moved}
    assert ("next", "h") in laid_out.keys(True)
    assert ("next", "is_init") not in laid_out.keys(True)
    (batch,) = collector
    collector.shutdown()
    assert not batch["next", "h"].any()
    assert batch["h"].any()


@guards("dqn-targets-from-stored-state", "flat-slices-mix-next-values")
def test_targets_of_dqn_run_over_the_next_observations_of_a_slice():
    torch.manual_seed(0)
    gru = GRUModule(4, 8, in_keys=["observation", "h"], out_keys=["features", ("next", "h")])
    values = TensorDictModule(torch.nn.Linear(8, 2), ["features"], ["action_value"])
    env = GymEnv("CartPole-v1").append_transform(InitTracker())
    env = env.append_transform(gru.make_tensordict_primer())
    network = TensorDictSequential(gru, values, QValueModule(spec=env.action_spec))
    loss = DQNLoss(network, action_space=env.action_spec, delay_value=True)
    loss.make_value_estimator(gamma=0.9)
    SoftUpdate(loss, eps=0.99)  # without one, the loss warns
    explore = EGreedyModule(env.action_spec, eps_init=1.0, eps_end=1.0)
    policy = TensorDictSequential(network, explore)
    options = {"total_frames": 200, "auto_register_policy_transforms": False}
    (batch,) = Collector(env, policy, frames_per_batch=200, **options)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(200), sampler=SliceSampler(slice_len=8), batch_size=64
    )
    buffer.extend(batch)
    flat = buffer.sample()

    def targets(data):
        with set_recurrent_mode(True), torch.no_grad():
            return loss.value_estimator.value_estimate(
                data.clone(), target_params=loss.target_value_network_params
            )

    rows = flat.reshape(-1, 8)
    after = rows["next"]
    with torch.no_grad():
        seen, _ = gru.gru(after["observation"], after["h"][:, 0].transpose(0, 1).contiguous())
        best = values.module(seen).max(-1, keepdim=True).values
    expected = after["reward"] + 0.9 * ~after["terminated"] * best
    torch.testing.assert_close(targets(rows), expected)
    assert not torch.allclose(targets(flat).reshape(expected.shape), expected)
