"""What the glossary and the API notes say about torchrl and do not show in an example."""

import ast
import inspect
import os
import re
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from source_lookup import find, locate

# Before torchrl is imported: its log lines carry a time stamp.
os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import torch
from tensordict import TensorDict
from torchrl.collectors import Collector, MultiCollector, MultiSyncCollector
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    MultiStep,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
)
from torchrl.envs import Compose, GymEnv, InitTracker, ParallelEnv, StepCounter, TransformedEnv
from torchrl.envs.transforms import NextObservationDelta, NextStateReconstructor, Transform
from torchrl.modules import LSTMModule, ValueOperator, recurrent_mode, set_recurrent_mode
from torchrl.objectives.value import GAE, TD0Estimator

GLOSSARY = Path(__file__).parents[1] / "docs" / "reference" / "glossary.rst"
TEXT = GLOSSARY.read_text(encoding="utf-8")


def make_env():
    return TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=3))


def collect(frames, batches=1, **options):
    collector = Collector(
        make_env(),
        policy=None,
        frames_per_batch=frames,
        total_frames=frames * batches,
        **options,
    )
    collected = list(collector)
    collector.shutdown()
    return collected


def entries():
    """Each term of the glossary with the text of its entry."""
    found = {}
    for block in TEXT.split(".. glossary::")[1:]:
        terms = []
        for line in block.splitlines():
            if re.match(r"   \S", line):
                if terms and found[terms[-1]].strip():
                    terms = []
                terms.append(line.strip())
                found[line.strip()] = ""
            elif line.startswith("      ") or not line.strip():
                for term in terms:
                    found[term] += line[6:] + "\n"
            else:
                break
    return found


# -- The page ----------------------------------------------------------------

# Addresses that other pages and outside links rely on: #term-<term>.
TERMS = """
    frames_per_batch, batched environment, carrier, collector devices, policy_device, env_device,
    storing_device, trajectory id, compact observations, compact_obs, time dimension, TED, done,
    terminated, truncated, terminal observation, boundary, spec, in_keys, out_keys, storage,
    memory-mapped storage, scratch_dir, ndim, sampler, slice, next-state reconstruction,
    observation delta, n-step return, MultiStep, value estimator, GAE, sanitizer,
    shifted value call, shifted_valid, is_init, primer, hidden state, recurrent mode,
    recurrent backend, SyncDataCollector, MultiSyncDataCollector, MultiaSyncDataCollector,
    shuttle, CompressedStorage
"""


def test_no_term_disappears():
    assert {term.strip() for term in TERMS.split(",")} <= set(entries())


@pytest.mark.parametrize("term", list(entries()))
def test_an_entry_begins_with_one_sentence_that_stands_alone(term):
    definition = entries()[term].strip().split("\n\n")[0]
    assert definition.endswith(".")
    assert not definition.startswith((">>>", "It ", "This ", "See "))


@pytest.mark.parametrize("term", list(entries()))
def test_an_entry_leads_on(term):
    """To its source, to the API, to a neighbor or to the tutorial."""
    assert re.search(r":(source|class|term|doc):`", entries()[term]) or term == "boundary"


@pytest.mark.parametrize("old", ["SyncDataCollector", "MultiSyncDataCollector"])
def test_old_names_are_gone(old):
    assert find(f"torchrl.collectors.{old}") is None


# -- Collecting --------------------------------------------------------------


def test_the_carrier_has_no_device_when_the_environment_has_none():
    collector = Collector(make_env(), policy=None, frames_per_batch=4, total_frames=4)
    assert collector._carrier_has_no_device
    assert collector._carrier.device is None
    collector.shutdown()


def test_a_trajectory_keeps_its_number_in_the_next_batch():
    first, second = collect(4, batches=2)
    assert first["collector", "traj_ids"].tolist() == [0, 0, 0, 1]
    assert second["collector", "traj_ids"].tolist() == [1, 1, 2, 2]


def test_two_collectors_use_the_same_numbers():
    assert [collect(4)[0]["collector", "traj_ids"][0].item() for _ in range(2)] == [0, 0]


def test_only_the_single_process_collector_can_leave_trajectory_ids_out():
    assert ("collector", "traj_ids") not in collect(4, track_traj_ids=False)[0].keys(True)
    assert "track_traj_ids" not in inspect.signature(MultiCollector.__init__).parameters


@pytest.mark.slow
def test_workers_drop_next_observations():
    collector = MultiSyncCollector(
        [make_env], policy=None, frames_per_batch=4, total_frames=4, compact_obs=True
    )
    try:
        batch = next(iter(collector))
    finally:
        collector.shutdown()
    assert set(batch["next"].keys()) == {"done", "reward", "terminated", "truncated"}
    assert ("collector", "traj_ids") in batch.keys(True)


@pytest.mark.parametrize(("names", "dim"), [(["time", None], 0), ([None, None], 1)])
def test_an_estimator_takes_the_dimension_named_time_or_the_last(names, dim):
    gae = GAE(gamma=0.9, lmbda=0.5, value_network=None)
    assert gae._get_time_dim(None, TensorDict(batch_size=[2, 3], names=names)) == dim


# -- Episode data ------------------------------------------------------------


def network():
    torch.manual_seed(0)
    return ValueOperator(torch.nn.Linear(1, 1), in_keys=["observation"])


def rollout(last=3.0, **ends):
    """Three rows; ``last`` is the last next observation."""
    end = torch.tensor([[False], [False], [True]])
    return TensorDict(
        {
            "observation": torch.tensor([[0.0], [1.0], [2.0]]),
            "next": {
                "observation": torch.tensor([[1.0], [2.0], [last]]),
                "reward": torch.ones(3, 1),
                "done": end,
                **ends,
            },
        },
        [3],
    )


def test_without_terminated_the_estimators_take_done():
    td0 = TD0Estimator(gamma=0.9, value_network=network())
    zeros, end = torch.zeros(3, 1, dtype=torch.bool), rollout()["next", "done"]
    missing, as_done, cut = (
        td0(rollout(**ends))["value_target"]
        for ends in ({}, {"terminated": end}, {"terminated": zeros})
    )
    torch.testing.assert_close(missing, as_done)
    assert not torch.allclose(missing, cut)


def lstm():
    return LSTMModule(input_size=4, hidden_size=2, in_key="observation", out_key="embed")


def test_what_the_policy_leaves_for_the_next_step_needs_a_spec():
    module = lstm()
    env = TransformedEnv(GymEnv("CartPole-v1"), InitTracker())
    _, following = env.step_and_maybe_reset(env.rand_action(module(env.reset())))
    assert following.get("recurrent_state_h", None) is None
    env.append_transform(module.make_tensordict_primer())
    _, following = env.step_and_maybe_reset(env.rand_action(module(env.reset())))
    assert following["recurrent_state_h"].abs().sum() > 0


# -- Storing and sampling ----------------------------------------------------


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/maps")
@pytest.mark.parametrize("options", [{"scratch_dir": ...}, {"shared_init": True}, {}])
def test_without_scratch_dir_the_mapping_is_in_shared_memory(tmp_path, monkeypatch, options):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    options = {name: tmp_path if value is ... else value for name, value in options.items()}
    buffer = ReplayBuffer(storage=LazyMemmapStorage(100_000, **options))
    buffer.extend(collect(8)[0])
    address = buffer.storage._storage["observation"].data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(part, 16) for part in line.split()[0].split("-"))
        if first <= address < last:
            break
    assert ("/dev/shm" in line) == (not options)
    assert (str(tmp_path) in line) == bool(options)


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_sampled_rows_are_copies_and_slices_of_the_buffer_are_views(storage, tmp_path):
    options = {"scratch_dir": tmp_path} if storage is LazyMemmapStorage else {}
    buffer = ReplayBuffer(storage=storage(8, **options), batch_size=8)
    buffer.extend(TensorDict(x=torch.ones(8), batch_size=[8]))
    buffer.sample()["x"].fill_(2.0)
    assert buffer[:]["x"].tolist() == [1.0] * 8
    buffer[:]["x"].fill_(3.0)
    assert buffer.sample()["x"].tolist() == [3.0] * 8


def test_a_storage_allocates_when_it_sees_data():
    storage = LazyTensorStorage(100)
    assert not storage.initialized
    buffer = ReplayBuffer(storage=storage)
    buffer.extend(TensorDict(x=torch.ones(8), batch_size=[8]))
    assert storage.initialized
    assert storage._storage["x"].shape == (100,)


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_the_first_data_fixes_shapes_and_dtypes_and_not_keys(storage):
    buffer = ReplayBuffer(storage=storage(2), batch_size=2)
    buffer.extend(TensorDict(x=torch.ones(2), y=torch.ones(2), batch_size=[2]))
    for wrong in (torch.ones(2, 3), torch.ones(2, dtype=torch.float64)):
        with pytest.raises(RuntimeError):
            buffer.extend(TensorDict(x=wrong, y=torch.ones(2), batch_size=[2]))
    buffer.extend(TensorDict(x=torch.full((2,), 2.0), z=torch.ones(2), batch_size=[2]))
    # two new rows, with the "y" of the rows they replace
    assert buffer[:]["x"].tolist() == [2.0, 2.0]
    assert buffer[:]["y"].tolist() == [1.0, 1.0]
    assert (buffer[:].get("z", None) is not None) == (storage is LazyTensorStorage)


def test_without_replacement_every_row_comes_before_one_repeats():
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(8), sampler=SamplerWithoutReplacement(), batch_size=2
    )
    buffer.extend(TensorDict(x=torch.arange(8), batch_size=[8]))
    for _ in range(2):
        rows = [row for _ in range(4) for row in buffer.sample()["x"].tolist()]
        assert sorted(rows) == list(range(8))


def test_with_too_few_dimensions_a_row_is_a_whole_stretch():
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=32)
    buffer.extend(TensorDict(x=torch.ones(3, 8), batch_size=[3, 8]))
    assert buffer.sample().shape == (32, 8)


class Spy(Transform):
    """Keep the end flags that a transform of the buffer sees."""

    def forward(self, tensordict):
        self.seen = tensordict["next", "truncated"].clone()
        return tensordict


@pytest.mark.parametrize("kind", [TensorDictReplayBuffer, ReplayBuffer])
def test_the_slice_mark_comes_after_the_transforms(kind):
    spy = Spy()
    buffer = kind(
        storage=LazyTensorStorage(100),
        sampler=SliceSampler(slice_len=2, traj_key=("collector", "traj_ids")),
        transform=spy,
        batch_size=60,
    )
    buffer.extend(collect(6)[0])
    sample = buffer.sample()
    at_end = sample["next", "step_count"].view(30, 2)[:, 1] == 3
    # the transform sees the ends of trajectories alone
    assert torch.equal(spy.seen.view(30, 2)[:, 1], at_end)
    assert not at_end.all()
    for flag in ("truncated", "done"):
        marked = sample["next", flag].view(30, 2)[:, 1].all().item()
        assert marked == (kind is TensorDictReplayBuffer)
    # a slice end is a boundary that the batch itself did not mark
    assert not buffer[:]["next", "done"].all()


def test_integers_are_rebuilt_with_a_fill_value_that_the_sanitizer_passes_over():
    sample = TensorDict(
        {
            "observation": torch.tensor([[10], [11]], dtype=torch.uint8),
            "collector": {"traj_ids": torch.tensor([0, 1])},
            "next": {"done": torch.zeros(2, 1, dtype=torch.bool)},
        },
        [2],
    )
    with pytest.raises(TypeError, match="fill_value"):
        NextStateReconstructor()(sample.clone())
    data = NextStateReconstructor(fill_value=0)(sample)
    clean = GAE._sanitize_next_obs_nan(data, ["observation"])
    assert clean["next", "observation"].flatten().tolist() == [0, 0]


@pytest.mark.parametrize("options", [{"compact_obs": True}, {"delta": True}])
def test_multi_step_on_incomplete_data_is_wrong_and_raises_nothing(options):
    """``torchrl.data.MultiStep``; the tutorial runs the transform of the same purpose."""

    def steps(delta=False, **options):
        env = make_env()
        env.set_seed(0)
        env = env.append_transform(NextObservationDelta()) if delta else env
        torch.manual_seed(0)
        collector = Collector(env, policy=None, frames_per_batch=6, total_frames=6, **options)
        data = MultiStep(gamma=0.9, n_steps=2)(next(iter(collector)))
        collector.shutdown()
        return data

    right, wrong = steps(), steps(**options)
    assert torch.equal(right["observation"], wrong["observation"])
    assert torch.equal(right["next", "reward"], wrong["next", "reward"])
    if "delta" in options:
        wrong = NextObservationDelta(in_keys=["observation"])(wrong)
    else:
        wrong = NextStateReconstructor(step_count_key="step_count")(wrong)
    first = [data["next", "observation"][0] for data in (right, wrong)]
    assert not torch.allclose(*first, atol=1e-2)


def test_the_delta_leaves_integers_alone():
    assert torch.uint8 in NextObservationDelta(in_keys=["observation"]).excluded_dtypes


def test_a_large_difference_becomes_infinite():
    delta = NextObservationDelta(in_keys=["observation"])
    assert torch.tensor(1e5).to(delta.delta_dtype).isinf()


# -- Values ------------------------------------------------------------------


def test_only_call_value_nets_calls_the_sanitizer():
    location = locate("torchrl.objectives.value.ValueEstimatorBase")
    package = location.file.parents[2]
    callers = []
    for file in package.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if "_sanitize_next_obs_nan(" not in text:
            continue
        callers += [
            function.name
            for function in ast.walk(ast.parse(text))
            if isinstance(function, ast.FunctionDef)
            for call in ast.walk(function)
            if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "_sanitize_next_obs_nan"
        ]
    assert callers == ["_call_value_nets"]


def test_a_batch_with_nan_does_not_receive_state_value():
    gae = GAE(gamma=0.9, lmbda=0.5, value_network=network())
    end = {"terminated": rollout()["next", "done"]}
    assert gae(rollout(**end)).get("state_value", None) is not None
    assert gae(rollout(last=torch.nan, **end)).get("state_value", None) is None


def test_the_stand_in_is_the_observation_of_the_row():
    data = rollout(last=torch.nan)
    clean = GAE._sanitize_next_obs_nan(data, ["observation"])
    assert clean["next", "observation"].flatten().tolist() == [1.0, 2.0, 2.0]
    assert data["next", "observation"].isnan().any()


def test_one_nan_spreads_backward_without_the_sanitizer(monkeypatch):
    monkeypatch.setattr(GAE, "_sanitize_next_obs_nan", staticmethod(lambda data, in_keys: data))
    gae = GAE(gamma=0.9, lmbda=0.5, value_network=network())
    data = gae(rollout(last=torch.nan, terminated=rollout()["next", "done"]))
    assert data["advantage"].isnan().all()


def test_rows_outside_the_budget_are_finite_and_wrong():
    """What the glossary says of ``shifted_valid``."""
    cut = torch.tensor([[False], [True], [False], [True]])
    data = TensorDict(
        {
            "observation": torch.tensor([[1.0], [2.0], [5.0], [6.0]]),
            "next": {
                "observation": torch.tensor([[2.0], [3.0], [6.0], [7.0]]),
                "reward": torch.ones(4, 1),
                "done": cut,
                "terminated": torch.zeros_like(cut),
            },
        },
        [4],
    )
    small, enough, plain = (
        GAE(gamma=0.9, lmbda=0.5, value_network=network(), **options)(data.clone())
        for options in (
            {"shifted": True, "shifted_budget": 1},
            {"shifted": True, "shifted_budget": 2},
            {},
        )
    )
    torch.testing.assert_close(enough["advantage"], plain["advantage"])
    assert small["shifted_valid"].tolist() == [True, True, True, False]
    assert small["advantage"].isfinite().all()
    assert not torch.allclose(small["advantage"][3], plain["advantage"][3])


# -- Recurrent policies ------------------------------------------------------


def test_the_module_needs_is_init():
    with pytest.raises(KeyError, match="is_init"):
        lstm()(GymEnv("CartPole-v1").reset())


def test_an_is_init_that_is_always_false_raises_nothing():
    module = lstm()
    is_init = torch.tensor([True, False, False, True, False, False]).view(1, 6, 1)
    data = TensorDict({"observation": torch.ones(1, 6, 4), "is_init": is_init}, [1, 6])
    with set_recurrent_mode(True):
        right = module(data.clone())["embed"]
        wrong = module(data.set("is_init", torch.zeros_like(is_init)))["embed"]
    assert not torch.allclose(right[:, 3:], wrong[:, 3:])


def test_the_recurrent_mode_belongs_to_its_thread():
    seen = []
    with set_recurrent_mode(True):
        thread = threading.Thread(target=lambda: seen.append(recurrent_mode()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_without_a_primer_the_hidden_state_is_zero_at_every_step():
    module = lstm()
    plain = TransformedEnv(GymEnv("CartPole-v1"), InitTracker())
    primed = TransformedEnv(
        GymEnv("CartPole-v1"), Compose(InitTracker(), module.make_tensordict_primer())
    )
    forgetful, remembering = [], []
    for env, steps in ((plain, forgetful), (primed, remembering)):
        data = env.reset()
        for _ in range(3):
            out = module(data)
            fresh = module(data.select("observation", "is_init"))
            steps.append(torch.equal(out["embed"], fresh["embed"]))
            _, data = env.step_and_maybe_reset(env.rand_action(out))
    assert forgetful == [True, True, True]
    assert remembering == [True, False, False]


def test_parallel_env_starts_processes():
    assert ".Process" in inspect.getsource(ParallelEnv._start_workers)


def test_rollout_moves_each_step_between_the_three_devices():
    loop = inspect.getsource(Collector.rollout).partition("for t in range(")[2]
    assert loop, "the loop of Collector.rollout looks different: read it again"
    for device in ("policy_device", "env_device", "storing_device"):
        assert re.search(rf"\.to\(\s*self\.{device},\s*non_blocking", loop), device


def test_triton_refuses_the_cpu():
    pytest.importorskip("triton", reason="triton is published for Linux only")
    module = LSTMModule(
        input_size=4, hidden_size=2, in_key="obs", out_key="embed", recurrent_backend="triton"
    )
    data = TensorDict(
        {"obs": torch.ones(1, 6, 4), "is_init": torch.zeros(1, 6, 1, dtype=torch.bool)}, [1, 6]
    )
    with set_recurrent_mode(True), pytest.raises(ValueError, match="Expected a cuda device"):
        module(data)
