"""What the page on a hundred collectors says: of the model, of its records, and of torchrl."""

import inspect
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from tensordict import TensorDict
from torchrl.collectors.distributed import RayCollector
from torchrl.collectors.distributed import ray as ray_module
from torchrl.data.replay_buffers import ray_buffer
from torchrl.weight_update._ray import RayTransport

from docs._ext.records import scaling
from tests.support.claims import guards
from tests.support.suites import COMMITTED

FOUND = {suite: COMMITTED.find(suite, "cpu") for suite in scaling.SUITES}
COSTS = scaling.fit(FOUND)
COLLECTORS, FEW, MANY = scaling.COLLECTORS, scaling.FEW, scaling.MANY


# -- The model -------------------------------------------------------------------


def test_a_fit_finds_the_numbers_behind_exact_rows():
    rows = [(a, b, 2.0 * a + 3.0 * b) for a, b in ((1, 0), (1, 1), (0.5, 2))]
    assert scaling.fitted(rows) == pytest.approx((2.0, 3.0))


def test_a_fit_has_no_cost_below_zero():
    rows = [(1, 0, 2.0), (1, 1, 2.0), (1, 2, 1.0)]  # faster with more of b
    x, z = scaling.fitted(rows)
    assert z == 0
    best = sum((x * a / y - 1) ** 2 for a, _, y in rows)
    for other in (0.99 * x, 1.01 * x):
        assert sum((other * a / y - 1) ** 2 for a, _, y in rows) > best


def test_the_model_is_near_what_it_was_fitted_to_and_says_how_far_from_the_rest():
    fitted, held = {}, {}
    for title, measured, modeled, seen in scaling.errors(FOUND):
        (fitted if seen else held)[title] = modeled / measured - 1
    assert len(fitted) == 9
    assert max(map(abs, fitted.values())) < 0.15, fitted
    batches = [held.pop("Batch of one, CartPole"), held.pop("Batch of two, CartPole")]
    assert max(map(abs, batches)) < 0.25
    assert len(held) == 4
    assert max(map(abs, held.values())) < 0.6, held


def test_the_rate_of_two_is_that_of_the_record():
    two = FOUND["scaling_ray"]["benchmarks"]["throughput-ray-2"]
    assert two["parameters"]["frames"] == 2 * FEW
    rate = two["metrics"]["frames_per_second"]["median"]
    assert COSTS.rate(2, FEW) == pytest.approx(rate, rel=0.1)


def test_the_code_on_the_page_says_collector_as_its_text_does():
    assert "worker" not in inspect.getsource(scaling.Costs)


def test_parts_grow_with_what_they_are_paid_for():
    costs = scaling.Costs(1.0, 10.0, 100.0, 1.0, 0.5, frame_bytes=3.0, link=6.0)
    assert costs.parts(2, 4, environments=2, weights=6) == {
        "steps": 4 * (0.25 + 0.5),
        "fetching": 20.0,
        "weights": 2 * (100.0 + 6.0),
        "network": 2 * (4 * 3 + 6) / 6,
    }
    assert costs.rate(10**9, 4) == pytest.approx(costs.most(4))


@guards("hundred-collectors-are-held-up")
def test_the_learner_holds_a_hundred_collectors_up():
    parts = COSTS.parts(COLLECTORS, FEW)
    assert COSTS.rate(COLLECTORS, FEW) * COSTS.step < COLLECTORS / 4
    assert parts["fetching"] + parts["weights"] > 2 * parts["steps"]
    assert COSTS.rate(COLLECTORS, MANY) > 2 * COSTS.rate(COLLECTORS, FEW)


@guards("more-environments-help-long-batches")
def test_more_environments_help_where_steps_take_the_time():
    for frames, low, high in ((FEW, 1.0, 1.1), (MANY, 1.2, 4.0)):
        more = COSTS.rate(COLLECTORS, frames, environments=4) / COSTS.rate(COLLECTORS, frames)
        assert low < more < high


@guards("sending-weights-took-longer")
def test_sending_weights_took_longer_than_the_model_says():
    rows = {title: (is_, said) for title, is_, said, _ in scaling.errors(FOUND)}
    held = scaling.HELD_OUT["sync"][2].values()
    assert len(held) == 4
    assert all(rows[title][0] > rows[title][1] for title in held), rows
    one, *_, eight = (rows[title][0] for title in held)
    assert (eight - one) / 7 < 1.2 * COSTS.call


@guards("further-collectors-add-less")
def test_a_further_collector_adds_less_to_four_than_to_one():
    rows = {n: seconds for _, n, seconds in scaling.rows_of(scaling.FITTED["batch"], FOUND)}
    assert (rows[8] - rows[4]) / 4 < rows[2] - rows[1]
    least, most = scaling.gathers(FOUND)
    assert least == pytest.approx((rows[8] - rows[4]) / 4)
    assert most == pytest.approx(rows[2] - rows[1])
    assert least < COSTS.gather < most


# -- What torchrl does -----------------------------------------------------------


@guards("learner-serves-each-collector")
def test_batches_are_fetched_one_by_one():
    ray = mock.MagicMock()
    ray.wait.side_effect = lambda tasks, num_returns: (tasks, [])
    ray.get.side_effect = lambda task: TensorDict(a=torch.full((2,), task), batch_size=2)
    remotes = [mock.MagicMock() for _ in range(3)]
    for number, remote in enumerate(remotes):
        remote.next.remote.return_value = number
    collector = SimpleNamespace(
        collected_frames=0,
        total_frames=6,
        _stop_event=mock.MagicMock(is_set=lambda: False),
        update_after_each_batch=False,
        max_weight_update_interval=-1,
        remote_collectors=remotes,
        num_collectors=3,
        _collection_thread=None,
        shutdown=mock.MagicMock(),
    )
    with mock.patch.object(ray_module, "ray", ray, create=True):
        [batch] = RayCollector._sync_iterator(collector)
    assert batch["a"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert ray.get.call_args_list == [mock.call(number) for number in range(3)]


def test_weights_are_sent_to_each_collector():
    weights, sent = TensorDict(a=torch.ones(3), b=torch.ones(2)), []
    for number in range(2):
        transport = RayTransport.__new__(RayTransport)
        group = mock.MagicMock()
        group.send.side_effect = lambda tensors, rank, tag: sent.append((rank, len(tensors[0])))
        transport.__dict__ |= {"_remote_actor": mock.MagicMock(), "_model_version": None}
        transport.__dict__ |= {"_backend": "gloo", "_process_group": group, "_worker_idx": number}
        transport.send_weights_async(weights)
    assert sent == [(1, 3), (1, 2), (2, 3), (2, 2)]


# -- A buffer in a process of Ray --------------------------------------------------


@guards("remote-buffer-is-slower")
def test_a_remote_buffer_takes_several_times_as_long():
    found = COMMITTED.find("replay_ray", "cpu")["benchmarks"]
    for content in ("cartpole", "pixels"):
        for call in ("extend", "sample"):
            assert found[f"{content}-{call}-ray"]["metrics"]["vs_local"]["q1"] > 3
    # Each call of a client goes to the process of the buffer, and its result comes back.
    actor, calls = SimpleNamespace(), []
    actor.sample = SimpleNamespace(remote=lambda *args: calls.append(args) or "reference")
    client = ray_buffer._RayReplayBufferClient(actor, has_gpu=False)
    with mock.patch.object(ray_buffer, "ray", SimpleNamespace(get=lambda one: [one])):
        assert client.sample(4) == ["reference"]
    assert calls == [(4,)]
