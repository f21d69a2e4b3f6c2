"""What the page on recurrent state says about value estimators and the run does not show."""

from unittest import mock

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs.transforms import BurnInTransform
from torchrl.modules import GRUModule, LSTMModule, set_recurrent_mode
from torchrl.modules.tensordict_module import rnn

from tests.support.claims import guards
from tests.support.evidence_module import load_evidence

run = load_evidence("recurrent_critics/advantages")

DEACTIVATED = {"deactivate_vmap": True}


@pytest.fixture(scope="module", params=[LSTMModule, GRUModule], ids=["LSTM", "GRU"])
def collected(request):
    actor, critic = run.make_agent(request.param, "pad")
    return critic, run.collect(actor, critic)[1]


def estimate(critic, batch, mode=True, **options):
    data = run.inputs(batch)
    gae = run.ESTIMATORS["GAE"](value_network=critic, **options)
    with torch.no_grad(), set_recurrent_mode(mode):
        return gae(data)


@guards("estimator-marks-next-init")
def test_the_estimator_marks_the_first_rows_of_next(collected):
    critic, batch = collected
    assert not batch["next", "is_init"].any()
    seen = []
    handle = critic.register_forward_pre_hook(
        lambda _, inputs: seen.append(inputs[0]["is_init"].clone())
    )
    estimate(critic, batch, **DEACTIVATED)
    handle.remove()
    root, following = seen
    assert torch.equal(root, batch["is_init"])
    assert torch.equal(following, batch["is_init"])


@guards("auto-is-pad", "auto-picks-pad-or-scan")
@pytest.mark.parametrize(("module", "method"), [(LSTMModule, "_lstm"), (GRUModule, "_gru")])
@pytest.mark.parametrize("compiling", [False, True])
def test_auto(module, method, compiling):
    _, critic = run.make_agent(module, "auto")
    core, given = critic[0], []

    def stop(*args, backend, **options):
        given.append(backend)
        raise InterruptedError

    flags = torch.zeros(2, 1, dtype=torch.bool)
    rows = TensorDict({"observation": torch.zeros(2, 4), "is_init": flags}, [2])
    with (
        mock.patch.object(rnn, "is_compiling", return_value=compiling),
        mock.patch.object(module, "recurrent_mode", True),
        mock.patch.object(core, method, stop),
        pytest.raises(InterruptedError),
    ):
        core(rows)
    assert given == ["scan" if compiling else "pad"]


@guards("shifted-drops-rows")
def test_rows_that_do_not_fit_have_no_advantage(collected):
    critic, batch = collected
    found = estimate(critic, batch, shifted=True)
    assert not found["shifted_valid"].all()
    assert not found["advantage"][~found["shifted_valid"]].any()
    assert found["advantage"][found["shifted_valid"]].all()


@guards("no-vmap-two-calls", "shifted-one-call")
def test_how_often_the_network_is_called(collected):
    critic, batch = collected
    calls = []
    handle = critic.register_forward_pre_hook(lambda _, inputs: calls.append(len(inputs[0])))
    estimate(critic, batch, **DEACTIVATED)
    two, calls[:] = list(calls), []
    estimate(critic, batch, shifted=True, shifted_budget=9)
    handle.remove()
    assert two == [len(batch)] * 2
    assert calls == [len(batch) + 9]


@guards("flat-sample-budget")
def test_a_flat_sample_needs_room_for_each_slice(collected):
    critic, batch = collected
    sampler = SliceSampler(slice_len=5, traj_key=("collector", "traj_ids"))
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(len(batch)), sampler=sampler)
    buffer.extend(batch)
    torch.manual_seed(0)
    flat = buffer.sample(40)
    ends = int(flat["next", "truncated"].sum())
    assert ends == 8
    assert not flat["next", "terminated"].any(), "an end that takes no place"
    for budget in (1, ends - 1):
        found = estimate(critic, flat, shifted=True, shifted_budget=budget)
        assert not found["shifted_valid"].all()
    roomy = estimate(critic, flat, shifted=True, shifted_budget=ends)
    assert roomy["shifted_valid"].all()
    reshaped = estimate(critic, flat.reshape(-1, 5), shifted=True)
    assert reshaped["shifted_valid"].all()
    torch.testing.assert_close(reshaped["advantage"].reshape(-1, 1), roomy["advantage"])


@guards("whole-batch-one-stale", "burn-in-every-module")
@pytest.mark.parametrize("module", [LSTMModule, GRUModule])
def test_after_an_update(module):
    actor, critic = run.make_agent(module, "pad")
    batches = run.collect(actor, critic)
    with torch.no_grad():
        for parameter in [*actor.parameters(), *critic.parameters()]:
            parameter.add_(0.1)
    both = run.inputs(torch.cat(batches))
    with torch.no_grad(), set_recurrent_mode(True):
        # The first batch begins with a reset, so no state that is used here is stale.
        truth = critic(both.clone())["state_value"][len(batches[0]) :]
        found = critic(run.inputs(batches[1]))["state_value"]
    error = (found - truth).abs().flatten()
    (_, last), *others = run.pieces(batches[1])
    assert others
    assert error[0] > 1e-3
    assert error[last:].max() < 1e-5

    rows = run.inputs(batches[1])[:12].unsqueeze(0)
    cores = {"actor_": actor[0][0], "critic_": critic[0]}
    for given in (cores, {"critic_": critic[0]}):
        with set_recurrent_mode(True):
            rest = BurnInTransform(list(given.values()), burn_in=6)(rows.clone())
        for prefix in cores:
            fresh = not torch.equal(rest[prefix + "h"][:, 0], rows[prefix + "h"][:, 6])
            assert fresh is (prefix in given)


@guards("single-row-exception")
def test_a_trajectory_of_one_row(collected):
    critic, batch = collected
    first = int(batch["is_init"].flatten().nonzero()[0])
    batch = batch[: first + 1]
    assert run.pieces(batch)[-1] == (first, first + 1)
    assert not batch["next", "done"][-1]
    right = estimate(critic, batch, shifted=True, shifted_budget=9)
    lost = batch.clone()
    for key in critic.in_keys:
        if key.startswith("critic_"):
            lost["next", key] = torch.zeros_like(lost["next", key])
    wrong = estimate(critic, lost, shifted=True, shifted_budget=9)
    _, following = run.true_values(critic, batch)
    torch.testing.assert_close(right["next", "state_value"][-1], following[-1])
    differs = (wrong["next", "state_value"] - right["next", "state_value"]).abs().flatten() > 1e-5
    assert differs.nonzero().flatten().tolist() == [first]


@guards("sequential-needs-same-weights")
def test_sequential_mode_is_right_for_fresh_weights_only():
    actor, critic = run.make_agent(GRUModule, "pad")
    batch = run.collect(actor, critic)[1]
    for fresh in (True, False):
        if not fresh:
            with torch.no_grad():
                for parameter in critic.parameters():
                    parameter.add_(0.1)
        value, _ = run.true_values(critic, batch)
        with torch.no_grad():
            found = critic(batch.clone())["state_value"]
        assert torch.allclose(found, value, atol=1e-5) is fresh
