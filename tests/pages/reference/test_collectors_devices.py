"""Sync points and cast flags: sentences that no evidence script shows."""

import contextlib
import inspect
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.envs import GymEnv

from tests.support.claims import guards
from tests.support.suites import benchmarks_of

FRAMES = 3


def make_collector(home=None, **options):
    return Collector(
        GymEnv("CartPole-v1", device=home),
        policy=None,
        frames_per_batch=FRAMES,
        total_frames=FRAMES,
        **options,
    )


def reached(collector):
    """The sync points that one rollout reaches, in order."""
    order = []
    for point in ("_sync_policy", "_sync_env", "_sync_storage"):
        assert callable(getattr(collector, point))
        setattr(collector, point, lambda point=point: order.append(point))
    collector.rollout()
    collector.shutdown()
    return order


# -- The three sync points -----------------------------------------------------


@guards("sync-by-destination")
def test_each_function_is_chosen_by_its_destination():
    destinations = {"policy_device": "cpu:0", "env_device": "cpu", "storing_device": "cpu:1"}
    inside = []

    def choose(self, device):
        inside.append(inspect.stack()[1].function)
        return str(device)

    with mock.patch.object(Collector, "_get_sync_fn", choose):
        collector = make_collector(**destinations)
    points = (collector._sync_policy, collector._sync_env, collector._sync_storage)
    assert points == tuple(destinations.values())
    assert set(inside) == {"_setup_devices"}
    collector.shutdown()


@guards("sync-where-cuda-used", "sync-function-once")
@pytest.mark.parametrize("used", [False, True])
def test_the_wrapper_waits_only_where_cuda_was_used(used):
    with (
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch("torch.cuda.is_initialized", return_value=used),
        mock.patch("torch.cuda.synchronize") as synchronize,
    ):
        function = Collector._get_sync_fn(None, torch.device("cpu"))
        assert function.__name__ == "_cuda_sync_if_initialized"
        function()
        for elsewhere in (None, torch.device("cuda")):
            assert Collector._get_sync_fn(None, elsewhere).__name__ == "_do_nothing"
    assert synchronize.call_count == used


@guards("unsupported-device-raises")
@pytest.mark.parametrize("argument", ["policy_device", "env_device", "storing_device"])
def test_an_unsupported_destination_ends_the_constructor(argument):
    with (
        mock.patch("torch.cuda.is_available", return_value=False),
        pytest.raises(RuntimeError, match=r"^Non supported device$"),
    ):
        make_collector(**{argument: "meta"})


@guards("accelerator-order")
@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ({"cuda", "mps", "npu"}, "cuda"),
        ({"mps", "npu"}, "mps"),
        ({"npu"}, "npu"),
    ],
)
def test_order_of_the_accelerators(visible, expected):
    npu = SimpleNamespace(is_available=lambda: "npu" in visible, synchronize=mock.Mock())
    with (
        mock.patch("torch.cuda.is_available", return_value="cuda" in visible),
        mock.patch("torch.cuda.is_initialized", return_value=True),
        mock.patch("torch.cuda.synchronize") as cuda,
        mock.patch("torch.backends.mps.is_available", return_value="mps" in visible),
        mock.patch("torch.mps.synchronize") as mps,
        mock.patch("torch.npu", npu, create=True),
    ):
        Collector._get_sync_fn(None, torch.device("cpu"))()
    waited = {"cuda": cuda.called, "mps": mps.called, "npu": npu.synchronize.called}
    assert {name for name, called in waited.items() if called} == {expected}


@guards("sync-comment-reason")
def test_the_comment_that_gives_the_reason():
    text = " ".join(inspect.getsource(Collector._get_sync_fn).replace("#", " ").split())
    assert "need to sync to wait for async GPU→CPU transfers to complete" in text


@guards("adopted-device-no-sync")
def test_an_adopted_device_has_no_sync_point():
    asked = []

    def choose(self, device):
        asked.append(device)
        return lambda: None

    with mock.patch.object(Collector, "_get_sync_fn", choose):
        collector = make_collector("cpu")
    assert collector.env_device == torch.device("cpu")
    assert asked == [None] * 3
    collector.shutdown()


@guards("no-cuda-sync-no-stream")
@pytest.mark.parametrize("no_cuda_sync", [False, True])
def test_no_cuda_sync_leaves_out_the_stream(no_cuda_sync):
    """A CUDA storing device is simulated: the collector is told of it after construction."""
    collector = make_collector(return_same_td=True, no_cuda_sync=no_cuda_sync)
    collector.storing_device = torch.device("cuda:0")
    original = TensorDict.to

    def to(self, *args, **kwargs):
        on_cuda = args and args[0] == torch.device("cuda:0")
        return self.copy() if on_cuda else original(self, *args, **kwargs)

    def stay(trajectories, device):
        return torch.zeros(1, dtype=torch.int64)

    pool = mock.Mock(get_traj_and_increment=stay)
    with (
        mock.patch.object(TensorDict, "to", to),
        mock.patch.object(collector, "_traj_pool_val", pool),
        mock.patch("torch.cuda.Stream") as stream,
        mock.patch("torch.cuda.stream", return_value=contextlib.nullcontext()),
    ):
        assert next(collector.iterator()).shape == (FRAMES,)
    event = stream.return_value.record_event.return_value
    assert stream.called == event.synchronize.called == (not no_cuda_sync)
    collector.shutdown()


# -- The cast flags ------------------------------------------------------------


@guards("device-arguments-filled")
def test_gaps_in_the_arguments_are_filled():
    def devices(**options):
        collector = make_collector(**options)
        names = ("policy_device", "env_device", "storing_device")
        found = tuple(str(getattr(collector, name)) for name in names)
        collector.shutdown()
        return found

    assert devices(device="cpu") == ("cpu", "cpu", "cpu")
    assert devices(device="cpu", env_device="cpu:0") == ("cpu", "cpu:0", "cpu")
    assert devices(policy_device="cpu", env_device="cpu") == ("cpu", "cpu", "cpu")
    assert devices(policy_device="cpu", env_device="cpu:0") == ("cpu", "cpu:0", "None")


@guards(
    "policy-cast-set-first",
    "env-device-applied",
    "env-cast-set-second",
    "carrier-device-from-adopted",
)
def test_order_in_which_the_attributes_are_set():
    flags = ("_cast_to_policy_device", "_cast_to_env_device", "_carrier_has_no_device")
    seen = {}

    def after(name):
        original = getattr(Collector, name)

        def method(self, *args, **kwargs):
            original(self, *args, **kwargs)
            known = tuple(flag for flag in flags if flag in vars(self))
            seen[name] = (known, self.env_device)

        return mock.patch.object(Collector, name, method)

    with after("_setup_devices"), after("_apply_env_device"), after("_make_carrier"):
        make_collector("cpu").shutdown()
    assert seen == {
        "_setup_devices": (flags[:1], None),
        "_apply_env_device": (flags[:2], torch.device("cpu")),
        "_make_carrier": (flags, torch.device("cpu")),
    }
    collector = make_collector(None, env_device="cpu")
    assert collector.env.device == torch.device("cpu")
    collector.shutdown()


@guards("cast-docstring-compares")
def test_what_the_docstring_says_of_the_cast():
    text = " ".join(inspect.getdoc(Collector.rollout).split())
    assert "cast the carrier to ``policy_device`` if it differs from ``env_device``" in text


@guards("cuda-gets-index", "cpu-index-copies")
def test_which_devices_get_an_index():
    given = {"policy_device": "cuda", "env_device": "mps", "storing_device": "cpu"}
    with mock.patch("torch.cuda.current_device", return_value=0):
        devices = Collector._get_devices(device=None, **given)
    assert [str(device) for device in devices] == ["cpu", "cuda:0", "mps:0"]


@guards("cpu-index-copies", "processor-names-unequal")
def test_an_index_is_enough_for_a_copy():
    assert torch.device("cpu") != torch.device("cpu:0") != torch.device("cpu:1")
    assert reached(make_collector("cpu", device="cpu")) == ["_sync_storage"] * FRAMES
    order = reached(make_collector("cpu", device="cpu", policy_device="cpu:0"))
    assert order.count("_sync_policy") == FRAMES


@guards("no-wrong-action-seen", "errata-no-wrong-action")
def test_no_action_was_wrong_on_the_gpu():
    found = benchmarks_of("collector_sync", "cuda")
    assert {one["metrics"]["wrong_actions"]["max"] for one in found.values()} == {0}
    assert "adopted" in found
