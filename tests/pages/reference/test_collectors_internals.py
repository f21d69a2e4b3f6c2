"""What the page on collector internals says and does not show in an example."""

import ctypes
import itertools
import re
import sys
from unittest import mock

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.collectors._constants import _Interruptor
from torchrl.data import LazyTensorStorage, ReplayBuffer, Unbounded
from torchrl.envs import (
    ExplorationType,
    GymEnv,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    set_exploration_type,
)
from torchrl.envs.transforms import TensorDictPrimer
from torchrl.envs.utils import exploration_type

from tests.support.claims import guards
from tests.support.evidence_module import load_evidence
from tests.support.upstream_sources import callers


@pytest.fixture(scope="module")
def flow():
    """The script behind the figure and the tables, as a module."""
    return load_evidence("collectors_internals/rollout_flow")


def test_the_figure_and_the_tables_call_a_step_by_the_same_name(flow):
    steps = flow.three_steps()
    shown = re.findall(r">([^<>]+)</text>", flow.draw(steps))
    names = [row[0] for row in flow.step_table(steps)["rows"]]
    assert len(set(names)) == len(names)
    assert names == [row[0] for row in flow.condition_table()["rows"]]
    assert [text for text in shown if text in names] == names


def make_env(max_steps=None):
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    return TransformedEnv(env, StepCounter(max_steps=max_steps)) if max_steps else env


def push_right(tensordict):
    return tensordict.set("action", torch.tensor([0, 1]))


def make_collector(policy=push_right, env=None, frames=4, batches=2, **options):
    options.setdefault("total_frames", frames * batches)
    return Collector(env or make_env(), policy, frames_per_batch=frames, **options)


def first_batch(*args, **options):
    collector = make_collector(*args, **options)
    batch = next(iter(collector))
    collector.shutdown()
    return batch


def make_buffer():
    return ReplayBuffer(storage=LazyTensorStorage(100))


# -- One step, in order ------------------------------------------------------

DEVICES = [
    dict(zip(("policy_device", "env_device", "storing_device"), places, strict=True))
    for places in itertools.product((None, "cpu", "cpu:1"), repeat=3)
]


def given(devices):
    return {name: place for name, place in devices.items() if place}


def label(devices):
    return ",".join(f"{name}={place}" for name, place in given(devices).items()) or "none"


@pytest.mark.parametrize("no_cuda_sync", [False, True])
@pytest.mark.parametrize("devices", DEVICES, ids=label)
@guards(
    "conditions-decide",
    "update-runs-when-not-carrier",
    "storage-sync-unconditional",
    "table-held-by-rollouts",
)
def test_the_conditions_of_the_table(flow, devices, no_cuda_sync):
    """The column "Runs when", in every combination of devices."""
    collector = flow.make_collector(no_cuda_sync=no_cuda_sync, **given(devices))
    policy_cast = collector._cast_to_policy_device and collector.policy_device is not None
    env_cast = collector._cast_to_env_device and collector.env_device is not None
    stored = collector.storing_device is not None
    step = flow.one_step(flow.watched_batch(collector))
    carrier = step["branch"][0]
    expected = {
        "branch": True,
        "policy cast": policy_cast,
        "_sync_policy": policy_cast and not no_cuda_sync,
        "policy": True,
        "update": step["policy"][1] is not carrier,
        "env cast": env_cast,
        "_sync_env": env_cast and not no_cuda_sync,
        "env": True,
        "set next": step["env"][1] is not carrier,
        "compact": False,
        "keep": True,
        "_sync_storage": stored and not no_cuda_sync,
        "advance": True,
        "_update_traj_ids": True,
        "collection_stopped": False,
    }
    assert list(step) == [name for name, runs in expected.items() if runs]


@guards("new-tensordict-makes-update")
def test_a_policy_that_returns_a_new_tensordict_makes_the_loop_update(flow):
    class Fresh(TensorDictModule):
        def forward(self, tensordict):
            return super().forward(tensordict.copy())

    policy = Fresh(flow.Balance(), in_keys=["observation"], out_keys=["action"])
    step = flow.one_step(flow.watched_batch(flow.make_collector(policy)))
    assert "update" in step
    assert "policy cast" not in step


@guards("host-sync-does-nothing")
def test_without_an_accelerator_the_sync_functions_do_nothing(flow, monkeypatch):
    for module in (torch.cuda, torch.backends.mps):
        monkeypatch.setattr(module, "is_available", lambda: False)
    monkeypatch.delattr(torch, "npu", raising=False)
    collector = flow.three_devices()
    for name in ("_sync_policy", "_sync_env", "_sync_storage"):
        assert getattr(collector, name).__name__ == "_do_nothing"


# -- Around the loop ---------------------------------------------------------


def modes(**options):
    """Exploration type and gradient mode in the policy, the hooks and ``postproc``."""
    seen = {}

    def note(place, value=None):
        seen.setdefault(place, (str(exploration_type()), torch.is_grad_enabled()))
        return value

    with set_exploration_type(ExplorationType.DETERMINISTIC):
        collector = make_collector(
            pre_collect_hook=lambda: note("before"),
            postproc=lambda batch: note("postproc", batch),
            post_collect_hook=lambda batch: note("after"),
            **options,
        )
        collector._wrapped_policy = lambda tensordict: note("policy", push_right(tensordict))
        next(iter(collector))
    collector.shutdown()
    return seen


@guards("exploration-type-of-loop", "no-grad-whole-method", "collector-sets-exploration")
def test_exploration_type_and_gradient_mode():
    assert modes() == {
        "before": ("deterministic", False),
        "policy": ("random", False),
        "postproc": ("deterministic", True),
        "after": ("deterministic", True),
    }


@guards("exploration-type-argument")
def test_the_argument_sets_the_exploration_type_of_the_loop():
    assert modes(exploration_type=ExplorationType.MEAN)["policy"] == ("mean", False)


@guards("reset-draws-new-ids")
def test_a_reset_at_each_iteration_draws_new_ids():
    carriers = []
    collector = make_collector(env=make_env(3), reset_at_each_iter=True)
    original = collector._start_new_trajectories
    collector._start_new_trajectories = lambda: carriers.append(collector._carrier) or original()
    first, second = collector
    assert first["collector", "traj_ids"].tolist() == [1, 1, 1, 2]
    assert second["collector", "traj_ids"].tolist() == [3, 3, 3, 4]
    assert [carrier["step_count"].item() for carrier in carriers] == [0, 0]


@guards("dense-stack-dynamic-specs")
def test_dynamic_specs_leave_the_output_buffer_out():
    assert make_collector()._use_buffers
    with mock.patch.object(GymEnv, "_has_dynamic_specs", True):
        assert not make_collector()._use_buffers


@guards("lazy-stack-holds-rows", "lazy-stack-time-unnamed")
def test_the_lazy_stack_holds_the_rows():
    rows, batches = [], []
    collector = make_collector(
        lambda tensordict: push_right(rows.append(tensordict) or tensordict),
        replay_buffer=make_buffer(),
        post_collect_hook=batches.append,
    )
    rows.clear()
    next(iter(collector))
    collector.shutdown()
    (batch,) = batches
    assert isinstance(batch, LazyStackedTensorDict)
    assert all(row is kept for row, kept in zip(rows, batch.tensordicts, strict=True))
    assert batch.names == [None]
    assert first_batch().names == ["time"]
    assert first_batch(use_buffers=False).names == ["time"]


def batches_of_the_hook(**options):
    batches = []
    list(make_collector(env=make_env(2), post_collect_hook=batches.append, **options))
    return batches


@guards("worker-batches-dense", "hooks-get-lazy-stack")
def test_where_a_batch_for_a_buffer_is_dense():
    kinds = {type(batch) for batch in batches_of_the_hook(replay_buffer=make_buffer())}
    assert kinds == {LazyStackedTensorDict}
    options = {"trajs_per_batch": 1, "traj_format": "padded"}
    batches = batches_of_the_hook(replay_buffer=make_buffer(), **options)
    assert {type(batch) for batch in batches} == {TensorDict}
    # What a worker sets before it makes its collector.
    with mock.patch.object(Collector, "_ignore_rb", True):
        batches = batches_of_the_hook(replay_buffer=make_buffer())
    assert {type(batch) for batch in batches} == {TensorDict}


@guards("stack-into-same-memory", "iterator-clones", "dense-stack-dynamic-specs")
def test_which_stack_takes_new_memory():
    for buffers in (True, False):
        collector = make_collector(use_buffers=buffers)
        stacks = [collector.rollout() for _ in range(2)]
        places = {stack["observation"].data_ptr() for stack in stacks}
        assert len(places) == (1 if buffers else 2)


@guards("order-after-loop")
def test_the_order_after_the_loop():
    seen = []

    def postproc(batch):
        seen.append((collector._frames, "mask" in batch["collector"], batch.ndim))
        return batch.set("_private", torch.zeros(batch.shape))

    with pytest.warns(UserWarning, match="split_trajs=True produces"):
        collector = make_collector(
            env=make_env(3),
            split_trajs=True,
            postproc=postproc,
            post_collect_hook=lambda batch: seen.append("_private" in batch),
        )
    next(iter(collector))
    assert seen == [(4, True, 2), False]


# -- The carrier -------------------------------------------------------------


@guards("carrier-holds-next-state")
def test_the_carrier_holds_the_state_of_a_recurrent_policy():
    primer = TensorDictPrimer({"hidden": Unbounded(shape=(1,))}, default_value=0.0)
    env = TransformedEnv(make_env(), primer)

    def policy(tensordict):
        tensordict["next", "hidden"] = tensordict["hidden"] + 1
        return push_right(tensordict)

    collector = make_collector(policy, env)
    first, second = (batch["hidden"].flatten().tolist() for batch in collector)
    assert (first, second) == ([0, 1, 2, 3], [4, 5, 6, 7])


@guards("carrier-keeps-last-action")
def test_the_carrier_still_has_the_last_action():
    collector = make_collector(None)
    for batch in collector:
        assert torch.equal(collector._carrier["action"], batch["action"][-1])
        assert "reward" not in collector._carrier


@guards("allocation-docstring-says")
def test_the_docstring_still_says_so():
    """When this fails, upstream has corrected it: retire the sentence and its erratum."""
    assert "allocated once" in " ".join(Collector.rollout.__doc__.split())


@guards("tensordict-device-moves")
def test_devices_of_a_tensordict():
    there = TensorDict({}, device="meta")
    there["x"] = torch.zeros(1)
    assert there["x"].device.type == "meta"
    mixed = TensorDict({"x": torch.zeros(1), "y": torch.zeros(1, device="meta")})
    assert {value.device.type for value in mixed.values()} == {"cpu", "meta"}


@guards("carrier-device-cleared")
@pytest.mark.parametrize("devices", DEVICES, ids=label)
def test_when_the_carrier_has_no_device(devices):
    collector = make_collector(None, **given(devices))
    cleared = collector.policy_device != collector.env_device or collector.env_device is None
    assert collector._carrier_has_no_device == cleared
    for _ in collector:
        assert (collector._carrier.device is None) == cleared


@pytest.mark.parametrize("devices", DEVICES, ids=label)
@guards("batch-device-is-storing")
def test_the_device_of_a_batch_is_the_storing_device(devices):
    collector = make_collector(None, **given(devices))
    assert next(iter(collector)).device == collector.storing_device


# -- Branches of the loop ----------------------------------------------------


@guards("random-frame-no-cast")
def test_a_random_frame_leaves_out_the_cast_and_the_sync(flow):
    plain = [call.name for call in flow.watched_batch(flow.three_devices())]
    random = flow.three_devices(init_random_frames=flow.STEPS)
    names = [call.name for call in flow.watched_batch(random)]
    assert plain.count("_sync_policy") == plain.count("policy") == flow.STEPS
    assert not {"_sync_policy", "policy"} & set(names)
    assert plain.count("to") - names.count("to") == flow.STEPS


@guards("random-action-moved")
@pytest.mark.parametrize("policy_device", [None, "cpu:0", "cpu:1"])
def test_a_random_action_moves_to_the_device_of_the_policy(flow, monkeypatch, policy_device):
    moved = []
    to = torch.Tensor.to

    def watched(self, *args, **options):
        if sys._getframe(1).f_code in flow.LOOP.co_consts:
            moved.append((options["device"], self.shape))
        return to(self, *args, **options)

    monkeypatch.setattr(torch.Tensor, "to", watched)
    options = {"policy_device": policy_device, "env_device": "cpu:1"}
    collector = flow.make_collector(init_random_frames=flow.STEPS, **options)
    names = [call.name for call in flow.watched_batch(collector)]
    differs = policy_device == "cpu:0"
    assert moved == [(torch.device("cpu:0"), (2,))] * (flow.STEPS if differs else 0)
    assert "_sync_policy" not in names


@guards("random-frames-counted")
def test_random_frames_are_counted_by_the_buffer():
    buffer = make_buffer()
    collector = make_collector(init_random_frames=4, replay_buffer=buffer)
    assert collector._should_use_random_frames()
    buffer.extend(first_batch())
    assert collector._frames == 0
    assert not collector._should_use_random_frames()
    buffer = make_buffer()
    list(make_collector(None, SerialEnv(3, make_env), 24, 1, replay_buffer=buffer))
    assert buffer.write_count == 3  # items, for 24 frames


@guards("compact-leaves-carrier")
def test_compact_leaves_the_carrier_whole(flow):
    calls = flow.watched_batch(flow.make_collector(compact_obs=True))
    for call in calls:
        if call.name == "exclude":
            assert call.args[0] is call.at
            assert ("next", "observation") in call.at.keys(True)
            assert ("next", "observation") not in call.result.keys(True)


@guards("compiled-policy-cloned", "compiled-always-updates", "compiled-output-copied")
def test_a_compiled_policy_is_followed_by_an_update(flow, monkeypatch):
    plain = flow.one_step(flow.watched_batch(flow.make_collector()))
    assert "update" not in plain
    collector = flow.make_collector()
    # The loop reads the attribute. To compile, or only to mark a step, imports a compiler.
    monkeypatch.setattr(collector, "compiled_policy", True)
    monkeypatch.setattr(sys.modules[Collector.__module__], "cudagraph_mark_step_begin", list)
    step = flow.one_step(flow.watched_batch(collector))
    assert [name for name in step if name not in plain] == ["clone", "update"]
    written, carrier = step["update"]
    assert written is step["clone"][1]
    assert set(written.keys()) == {"action"}
    assert carrier is step["branch"][0]


@guards("interruptor-after-step", "interruptor-shared-flag")
def test_the_interruptor_is_a_byte_that_the_main_process_writes():
    assert isinstance(_Interruptor()._collect, ctypes.c_byte)
    assert callers("collection_stopped") == {("_single.py", "Collector.rollout")}
    for name in ("start_collection", "stop_collection"):
        assert callers(name) == {("_multi_sync.py", "MultiSyncCollector.iterator")}


@pytest.mark.parametrize("threshold", [None, 0.5, 1.0])
@guards("preemption-makes-interruptor", "sync-uses-interruptor")
def test_when_the_multi_process_collector_makes_an_interruptor(threshold):
    with mock.patch.object(MultiSyncCollector, "_run_processes"):
        collector = MultiSyncCollector(
            [make_env], push_right, frames_per_batch=4, preemptive_threshold=threshold
        )
    assert (collector.interruptor is not None) == (threshold == 0.5)


@guards("direct-write-stops-early")
def test_a_direct_write_stops_at_the_frame():
    for extend, frames in ((False, 6), (True, 8)):
        with pytest.warns(UserWarning, match="not exactly divisible"):
            collector = make_collector(
                total_frames=6, replay_buffer=make_buffer(), extend_buffer=extend
            )
        assert list(collector) == [None, None]
        assert len(collector.replay_buffer) == frames


@guards("direct-write-last-row")
def test_after_the_last_direct_write_no_id_is_drawn():
    for extend, drawn in ((False, 1), (True, 2)):
        collector = make_collector(
            env=make_env(4), batches=1, replay_buffer=make_buffer(), extend_buffer=extend
        )
        list(collector)
        assert collector.replay_buffer[:]["next", "done"].flatten().tolist()[-1]
        assert collector._traj_pool.get_traj_and_increment(1).item() == drawn


@guards("direct-write-refusals", "whole-run-no-hooks")
def test_what_a_direct_write_accepts():
    def direct(**options):
        return make_collector(replay_buffer=make_buffer(), extend_buffer=False, **options)

    for refused in ({"postproc": push_right}, {"split_trajs": True}):
        with pytest.raises(TypeError, match="extend_buffer must be set to True"):
            direct(**refused)
    called = []
    collector = direct(post_collect_hook=called.append, set_truncated=True)
    list(collector)
    assert not called
    assert not collector.replay_buffer[:]["next", "truncated"].any()


@guards("interruption-needs-buffer")
def test_an_interruption_of_a_direct_write_is_no_error():
    class Stop:
        def collection_stopped(self):
            return True

    collector = make_collector(interruptor=Stop(), replay_buffer=make_buffer(), extend_buffer=False)
    assert next(iter(collector)) is None
    assert len(collector.replay_buffer) == 1


@guards("direct-write-no-cast")
def test_a_direct_write_does_not_cast_to_the_storing_device(flow):
    options = {"replay_buffer": make_buffer(), "storing_device": "cpu:1"}
    for extend, casts in ((False, 0), (True, flow.STEPS)):
        calls = flow.watched_batch(flow.make_collector(extend_buffer=extend, **options))
        names = [call.name for call in calls]
        assert names.count("_sync_storage") == names.count("to") == casts


# -- What the constructor runs -----------------------------------------------


@guards("layout-call-shallow", "layout-call-side-effects")
def test_the_constructor_keeps_keys_of_the_policy_call():
    def policy(tensordict):
        tensordict["extra"] = torch.ones(2, dtype=torch.float64)
        tensordict["observation"].fill_(7)
        return push_right(tensordict)

    collector = make_collector(policy)
    assert not {"extra", "action"} & set(collector._carrier.keys())
    extra = collector._final_rollout["extra"]
    assert (extra.shape, extra.dtype) == ((4, 2), torch.float64)
    assert not extra.any()
    assert (collector._carrier["observation"] == 7).all()


@guards("seed-actions-after")
def test_a_seed_before_construction_gives_other_actions():
    def actions(after):
        torch.manual_seed(0)
        collector = make_collector(None, frames=32)
        if after:
            torch.manual_seed(0)
        return next(iter(collector))["action"]

    assert torch.equal(actions(True), actions(True))
    assert not torch.equal(actions(True), actions(False))


@guards("seed-env-before")
def test_a_seed_for_the_collector_comes_after_the_first_reset():
    def observation(seed_env, seed_collector):
        env = GymEnv("CartPole-v1")
        if seed_env is not None:
            env.set_seed(seed_env)
        collector = make_collector(env=env)
        if seed_collector is not None:
            collector.set_seed(seed_collector)
        return next(iter(collector))["observation"][0]

    assert torch.equal(observation(0, None), observation(0, None))
    assert torch.equal(observation(0, 1), observation(0, 2))
    assert not torch.equal(observation(0, None), observation(1, None))
