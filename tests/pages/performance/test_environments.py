"""The suites environments and environments_mujoco, run small, and what their page says."""

import functools
import inspect
import re
import resource
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import gymnasium
import numpy as np
import pytest
import torch
import torchrl
from gymnasium.vector import AutoresetMode
from torchrl.envs import (
    GymEnv,
    GymWrapper,
    HopperEnv,
    ParallelEnv,
    SerialEnv,
    batched_envs,
)
from torchrl.envs.libs import isaac_lab
from torchrl_doctor.checks.memory import place_of

from benchmarks import interleaved
from benchmarks.suites import bench_environments as suite
from benchmarks.suites import bench_environments_mujoco as mujoco_suite
from benchmarks.timing import Benchmark
from tests.support.claims import guards
from tests.support.evidence_module import load_evidence
from tests.support.forks import in_a_fork
from tests.support.shown_calls import bound_calls
from tests.support.suites import COMMITTED, CPU, noted
from tests.support.suites import recorded as recorded_of

ALONE = ("loop", "sync", "serial", "wrapped-sync")  # the ways that start no process
WORKERS = ("async", "parallel", "parallel-no-buffers", "num-envs", "wrapped-async")


@pytest.fixture(autouse=True)
def small():
    sizes = {"BATCH": 3, "LARGE_BATCH": 4, "FRAMES": 6, "PART_STEPS": 8, "PITFALL_STEPS": 4}
    with (
        mock.patch.multiple(suite, **sizes),
        mock.patch.multiple(interleaved, LEAST_ROUNDS=2, MOST_ROUNDS=2),
    ):
        yield
    suite.prepare.cache_clear()


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# -- The suite, small --------------------------------------------------------------


@pytest.mark.parametrize("way", ALONE)
def test_ways_agree_and_note_what_they_declare(way):
    entry = noted(suite.bench_ways, CPU, "cartpole", 2, way)
    assert entry["metrics"] == {"round_time", "frames_per_second", "time_vs_loop", "parent_cpu"}
    assert entry["key"] == f"ways-cartpole-{way}-n2"
    assert entry["parameters"]["frames_per_round"] == 6 * suite.WAYS[way].longer
    assert len(entry["sampled"]["parent_cpu"]) == len(entry["sampled"]["time_vs_loop"]) == 2


@pytest.mark.usefixtures("forkserver", "threads")
@pytest.mark.parametrize("way", WORKERS)
def test_ways_with_workers_agree(way):
    entry = noted(suite.bench_ways, CPU, "cartpole", 2, way)
    assert entry["metrics"] >= {"time_vs_loop", "parent_cpu"}


def test_checked_steps_hold_ends():
    """Otherwise the comparison would say nothing of resets."""
    _, _, (_, _, ends) = suite.prepare("cartpole", 2)
    assert ends.sum() > 4


@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize("way", ["serial", "num-envs"])
def test_a_difference_is_found(way, part):
    expected = suite.prepare("cartpole", 2)[2]
    ours = [values.copy() for values in expected]
    suite.assert_same(ours, expected, way)
    ours[part][1] = ~ours[part][1] if part == 2 else ours[part][1] + 1
    with pytest.raises(AssertionError):
        suite.assert_same(ours, expected, way)


def test_only_first_episodes_count_under_num_envs():
    ends = np.array([[False, False], [True, False], [False, True], [False, False]])
    kept = suite.until_first_end(ends)
    assert kept.tolist() == [[True, True], [True, True], [False, True], [False, False]]


def test_waiting_is_deterministic():
    entry = suite.ENVIRONMENTS["sleep-1ms"]
    actions = suite.make_actions(entry, 3, 2)
    first, again = (suite.trace(suite.Loop(entry, 2, CPU), actions) for _ in range(2))
    suite.assert_same(first, again, "loop")


@pytest.mark.parametrize("part", suite.PARTS)
def test_parts_can_be_removed(part):
    metrics = noted(suite.bench_part, CPU, part)["metrics"]
    assert metrics == {"round_time", "time_vs_cut", "part_share", "part_time"}


@pytest.mark.parametrize("variant", suite.VARIANTS)
def test_variants_end_where_the_plain_environment_does(variant):
    metrics = noted(suite.bench_variant, CPU, variant)["metrics"]
    assert metrics == {"round_time", "time_vs_plain", "frames_per_second"}


@guards("float64-doubles-frame")
@pytest.mark.parametrize("pitfall", suite.PITFALLS)
def test_pitfalls_compute_what_the_repaired_environment_does(pitfall):
    entry = noted(suite.bench_pitfall, CPU, pitfall)
    assert "time_vs_repaired" in entry["metrics"]
    with_pitfall, repaired = entry["exact"].values()
    if pitfall == "double":
        flags = 4  # done and terminated, under next as well
        assert with_pitfall - flags == 2 * (repaired - flags)
    else:
        assert with_pitfall == repaired


def test_a_pitfall_that_computes_something_else_fails():
    with (
        mock.patch.object(suite.RowByRow, "advance", return_value=None),
        pytest.raises(AssertionError, match="not close"),
    ):
        suite.bench_pitfall(Benchmark(), CPU, "row-by-row")


def test_checked_of_the_second_suite_finds_a_difference():
    def simulation(offset):
        return SimpleNamespace(step=lambda: None, positions=lambda: np.zeros((2, 3)) + offset)

    assert mujoco_suite.checked(simulation(0), simulation(0)) == 0
    with pytest.raises(AssertionError):
        mujoco_suite.checked(simulation(0.1), simulation(0))


# -- What the page says about the code ---------------------------------------------


class Flags(list):
    """Flags of workers that are set after *reads* reads."""

    def __init__(self, reads):
        super().__init__([0, 0])
        self.left = reads

    def __getitem__(self, index):
        self.left -= 1
        if not self.left:
            self[0] = self[1] = 1
        return super().__getitem__(index)


def waiting_env(**attributes):
    return SimpleNamespace(BATCHED_PIPE_TIMEOUT=60, _worker_indices=[0, 1], **attributes)


@guards("parent-polls-flags", "no-buffers-blocks-pipes")
def test_parent_polls_flags_and_blocks_on_pipes():
    forbidden = mock.Mock(side_effect=AssertionError("waits"))
    flags = Flags(reads=1000)
    with (
        mock.patch.object(batched_envs, "connection_wait", forbidden),
        mock.patch.object(time, "sleep", forbidden),
    ):
        env = waiting_env(_use_buffers=True, _shm_done_flags=flags)
        ParallelEnv._wait_for_workers(env, range(2))
    assert flags.left <= 0  # each of the reads was one of the loop
    assert list(flags) == [0, 0]

    blocked = mock.Mock(side_effect=lambda pipes, timeout: pipes)
    env = waiting_env(_use_buffers=False, parent_channels=["a", "b"], _events=[mock.Mock()] * 2)
    with mock.patch.object(batched_envs, "connection_wait", blocked):
        ParallelEnv._wait_for_workers(env, range(2))
    assert blocked.call_count == 1
    assert blocked.call_args.kwargs["timeout"] > 0


@guards("num-envs-unchecked-autoreset", "num-envs-async-vector")
@pytest.mark.usefixtures("forkserver")
def test_num_envs_takes_the_refused_mode():
    env = GymEnv("CartPole-v1", num_envs=2)
    vector = env.base_env._env
    assert isinstance(vector, gymnasium.vector.AsyncVectorEnv)
    assert vector.autoreset_mode is AutoresetMode.NEXT_STEP
    env.close()


@guards("num-workers-makes-parallel", "gym-workers-no-buffers")
@pytest.mark.usefixtures("forkserver")
def test_num_workers_is_a_parallel_env():
    env = GymEnv("CartPole-v1", num_workers=2)
    try:
        assert type(env) is ParallelEnv
        assert env.rollout(3).batch_size == (2, 3)
        assert env._use_buffers is False
        assert len(env._workers) == 2
    finally:
        env.close()
    with pytest.raises(Exception, match="requires use_buffers=False"):
        ParallelEnv(2, GymEnv, metadata_from_workers=True, use_buffers=True)


@guards("parallel-takes-threads", "num-threads-of-caller")
@pytest.mark.usefixtures("forkserver", "threads")
@pytest.mark.parametrize(
    ("found", "options", "left"), [(5, {}, 3), (2, {}, 1), (5, {"num_threads": 4}, 4)]
)
def test_parallel_env_sets_threads_of_its_parent(found, options, left):
    torch.set_num_threads(found)
    env = ParallelEnv(2, functools.partial(GymEnv, "CartPole-v1"), **options)
    env.start()
    assert torch.get_num_threads() == left
    env.close()


@guards("hopper-fallen-threshold", "hopper-rootz-zero")
def test_hopper_starts_below_its_threshold():
    asset = Path(torchrl.__file__).parent / "envs/custom/mujoco/assets/hopper.xml"
    joints = ET.parse(asset).getroot().findall(".//joint")
    (rootz,) = (joint for joint in joints if joint.get("name") == "rootz")
    assert [joint.get("name") for joint in joints].index("rootz") == 1  # the place in qpos
    assert rootz.get("ref") is None  # so qpos starts at zero
    healthy = SimpleNamespace(
        HEALTHY_Z_MIN=HopperEnv.HEALTHY_Z_MIN, HEALTHY_ANGLE_MAX=HopperEnv.HEALTHY_ANGLE_MAX
    )
    at = torch.zeros(6)
    assert not HopperEnv._is_healthy(healthy, at)
    at[1] = 1.25
    assert HopperEnv._is_healthy(healthy, at)


@guards("env-script-verdicts")
@pytest.mark.parametrize(("bare", "dominates"), [(0.4, "TorchRL"), (0.6, "the environment")])
def test_verdicts(bare, dominates):
    run = load_evidence("environments/vectorized")
    times = iter([1.0, 3.0, 2.0])  # one alone, SerialEnv, the wrapped vector
    with (
        mock.patch.object(run, "gymnasium_seconds", return_value=bare),
        mock.patch.object(run, "torchrl_seconds", side_effect=lambda env, steps: next(times)),
    ):
        answer = run.which_side(run.MAKE, 2, workers=False, steps=3)
    assert answer["dominates"] == dominates
    assert answer["try"] == "SyncVectorEnv, wrapped"


@guards("closing-returns-threads", "num-threads-documented")
@pytest.mark.usefixtures("forkserver", "threads")
def test_closing_adds_threads():
    torch.set_num_threads(1)
    env = ParallelEnv(2, functools.partial(GymEnv, "CartPole-v1"))
    env.start()
    assert torch.get_num_threads() == 1
    with mock.patch.object(torchrl, "_THREAD_POOL_INIT", 9):
        env.close()
    assert torch.get_num_threads() == 3
    said = " ".join(batched_envs.BatchedEnvBase.__doc__.split())
    assert "Defaults to the number of workers + 1. This parameter has no effect" in said


@guards("use-buffers-none-true")
def test_buffers_are_the_default_without_dynamic_specs():
    env = SerialEnv(2, functools.partial(GymEnv, "CartPole-v1"))
    assert env._use_buffers is True
    env.close(raise_if_closed=False)

    def dynamic():
        env = suite.Swing(2)
        env.observation_spec = suite.Composite(
            observation=suite.Unbounded((2, -1)), shape=env.batch_size
        )
        return env

    assert SerialEnv(2, dynamic)._use_buffers is False


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@guards("forked-frames-are-zero", "spawned-frames-are-shared")
def test_frames_outside_shared_memory(forkserver, method):
    make = functools.partial(GymEnv, "CartPole-v1")
    env = ParallelEnv(1, make, shared_memory=False, mp_start_method=method)
    try:
        frames = env.rollout(3, break_when_any_done=False)
    finally:
        env.close()
    for key in ("observation", ("next", "observation"), ("next", "reward")):
        assert bool(frames[key].any()) == (method == "forkserver"), key


@guards("memmap-excludes-shared")
def test_frames_in_files_exclude_shared_memory():
    make = functools.partial(GymEnv, "CartPole-v1")
    with pytest.raises(RuntimeError, match="mutually exclusive"):
        SerialEnv(1, make, memmap=True)
    SerialEnv(1, make, memmap=True, shared_memory=False)


def first_reset(memmap):
    """The folder of the frames of a `ParallelEnv`, or its error, where shared memory is full.

    Only root can fill /dev/shm without harm to others. Here no file may grow, which torch reports
    from the same place, and /dev/shm says that it has no room.
    """
    options = {"memmap": True, "shared_memory": False} if memmap else {}
    make = functools.partial(GymEnv, "CartPole-v1")
    env = ParallelEnv(1, make, mp_start_method="fork", **options)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft if memmap else 0, hard))
    try:
        with mock.patch("os.statvfs", return_value=SimpleNamespace(f_bavail=0, f_frsize=1)):
            env.reset()
        return place_of(env.shared_tensordict_parent["observation"])
    except RuntimeError as error:
        return removed_from(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        env.close(raise_if_closed=False)


def removed_from(error):
    """The text of an error of torch, whose file goes: torch itself leaves it in shared memory."""
    Path("/dev/shm", re.search(r"</(torch_\w+)>", str(error))[1]).unlink()
    return str(error)


@guards("full-shared-memory-raises")
def test_a_parallel_env_needs_shared_memory_and_torch_says_when_there_is_none():
    assert "unable to resize file </torch_" in in_a_fork(first_reset, False)
    words = r"unable to allocate shared memory\(shm\) for file </torch_"
    with pytest.raises(RuntimeError, match=words) as said:
        torch.UntypedStorage._new_shared(1 << 50)  # bytes, more than there are
    removed_from(said.value)


@guards("memmap-avoids-full-shared-memory")
def test_files_of_a_parallel_env_avoid_shared_memory_that_is_full():
    folder = in_a_fork(first_reset, True)
    assert folder.startswith(f"{tempfile.gettempdir()}/pymp-")


@guards("strict-dtype-raises", "own-env-not-cast")
def test_types_of_an_own_environment():
    env = suite.Swing(2)
    env.reward_spec = suite.Unbounded((2, 1), dtype=torch.float64)
    carrier = env.rand_action(env.reset())
    assert env.step(carrier.copy())["next", "reward"].dtype is torch.float32
    env.run_type_checks = True
    with pytest.raises(TypeError, match="reward"):
        env.step(carrier.copy())
    env = suite.Swing(2)
    env.reset()
    env.run_type_checks = True
    env.off = env.off.float()
    with pytest.raises(TypeError, match="done"):
        env.step(carrier.copy())


@guards("gym-casts-to-spec")
def test_gym_env_casts():
    env = suite.wide(np.float64, None, CPU)
    assert env._env.unwrapped.observation().dtype == np.float64
    assert env.rollout(1)["next", "observation"].dtype is torch.float32


@guards("float-pixels-quadruple")
def test_floats_of_pixels():
    pixels = torch.zeros(84, 84, 1, dtype=torch.uint8)
    image = suite.ToTensorImage(in_keys=["pixels"])(suite.TensorDict(pixels=pixels))["pixels"]
    assert image.dtype is torch.float32
    assert image.shape == (1, 84, 84)
    assert image.nbytes == 4 * pixels.nbytes


@guards("mujoco-num-envs-splits", "mjx-compiles-first")
def test_mujoco_environments_dispatch():
    for parallel, kind in ((None, "ParallelEnv"), (False, "SerialEnv")):
        with mock.patch(f"torchrl.envs.batched_envs.{kind}") as batched:
            options = {} if parallel is None else {"parallel": parallel}
            made = HopperEnv(num_envs=3, backend="mujoco", **options)
        assert made is batched.return_value
        assert batched.call_args.args[0] == 3
    with pytest.raises(ImportError, match="mujoco-torch"):
        HopperEnv(num_envs=3)


@guards("isaaclab-is-gym-wrapper", "isaaclab-leaves-actions", "native-autoreset-rows")
def test_isaac_lab_wrapper_as_read():
    assert bound_calls("docs/performance/environments.rst") == ["IsaacLabWrapper"]
    wrapper = isaac_lab.IsaacLabWrapper
    assert issubclass(wrapper, GymWrapper)
    own = inspect.signature(wrapper.__init__).parameters
    assert own["convert_actions_to_numpy"].default is False
    assert GymEnv("CartPole-v1")._convert_actions_to_numpy is True
    with mock.patch.object(GymWrapper, "__init__") as made:
        wrapper.__init__(object.__new__(wrapper), None)
    assert made.call_args.kwargs["device"] == torch.device("cuda:0")
    rows = suite.TensorDict(_reset=torch.tensor([True, False]), batch_size=[2])
    some = SimpleNamespace(_is_batched=True, _native_autoreset_enabled=False)
    some._input_td_has_state = lambda tensordict: False
    assert "_reset" not in wrapper._reset(some, rows)
    direct = object.__new__(type("Direct", (wrapper,), {"_is_batched": False}))
    with pytest.raises(RuntimeError, match="Partial resets are not handled"):
        wrapper._reset(direct, rows)


# -- What the page says about the records ------------------------------------------


def recorded(key, metric, name="environments"):
    return recorded_of(name, key, metric)


def way(environment, name, count, metric="time_vs_loop"):
    return recorded(suite.key_of(environment, count, name), metric)


THREE = ("cartpole", "halfcheetah", "pong")


def ways_of(environment, count):
    return {
        w: way(environment, w, count) for e, n, w in suite.cases() if (e, n) == (environment, count)
    }


@guards("gymnasium-not-beaten")
def test_torchrl_does_not_beat_gymnasium():
    for environment in THREE:
        for count in suite.ENVIRONMENTS[environment].counts:
            ways = ways_of(environment, count)
            assert min(ways, key=ways.get) in ("loop", "sync", "async")


@guards(
    "gym-vector-first-everywhere",
    "step-price-remedies",
    "batch-more-frames",
    "vector-one-env-longer",
    "gym-vector-short-answer",
    "wrap-vector-for-speed",
)
def test_wrapped_vector_environments_are_first():
    for environment in THREE:
        for count in (2, 8):
            ways = ways_of(environment, count)
            # Under num_envs the frames are not those of the other ways.
            ours = [w for w in ways if w not in ("loop", "sync", "async", "num-envs")]
            assert min(ours, key=ways.get).startswith("wrapped")
            assert ways["wrapped-sync"] < ways["serial"]
            assert environment != "cartpole" or ways["wrapped-sync"] < ways["num-envs"]
    assert way("cartpole", "wrapped-sync", 1) > way("cartpole", "gymenv", 1)


@guards("parallel-slower-than-serial", "round-trip-exceeds-step")
def test_parallel_env_loses_to_serial_env():
    assert COMMITTED.find("environments", "cpu")["machine"]["cores"] == 2
    for environment in THREE:
        for count in (2, 8):
            assert way(environment, "parallel", count) > way(environment, "serial", count)


@guards("overhead-per-call")
def test_overhead_is_per_call():
    assert way("cartpole", "gymenv", 1) > 5
    assert way("pong", "serial", 2) < way("cartpole", "serial", 2) / 5


@guards("no-dominant-part", "two-largest-parts")
def test_shares_of_a_step():
    shares = {part: recorded(f"part-{part}", "part_share") for part in suite.PARTS}
    del shares["simulator"]  # what the price is added to
    assert max(shares.values()) < 30
    assert set(sorted(shares, key=shares.get)[-2:]) == {"completion", "read-action"}


@guards(
    "parent-holds-core",
    "no-buffers-blocks-pipes",
    "sleeping-workers-parallel-wins",
    "computing-workers-no-gain",
    "no-buffers-slower-mostly",
    "no-buffers-frees-core",
    "pipe-cost-per-exchange",
    "computing-wrap-async-vector",
)
def test_busy_waiting():
    waiting = [f"{kind}-{cost}ms" for kind in ("sleep", "busy") for cost in (1, 5)]
    for environment in waiting:
        assert way(environment, "parallel", 2, "parent_cpu") > 80
        assert way(environment, "parallel-no-buffers", 2, "parent_cpu") < 50
        assert way(environment, "async", 2, "parent_cpu") < 20
        with_buffers, without = (
            way(environment, f"parallel{name}", 2) for name in ("", "-no-buffers")
        )
        assert (without > with_buffers) == (environment != "busy-5ms")
        parallel, serial = (way(environment, name, 2) for name in ("parallel", "serial"))
        assert (parallel < serial) == environment.startswith("sleep")
        assert way(environment, "async", 2) < 0.8
    assert way("busy-5ms", "parallel", 2) > 1
    # A step of one environment is two frames of a round with two of them.
    exchange = 2 / way("cartpole", "parallel-no-buffers", 2, "frames_per_second")
    assert exchange > 2e-3


@guards("no-mjx-crossover", "batch-brings-mjx-closer", "mjx-compiles-first")
def test_no_crossover():
    name, batches = "environments_mujoco", mujoco_suite.BATCHES
    ratios = [recorded(f"mjx-b{batch}", "time_vs_c", name) for batch in batches]
    assert min(ratios) > 1
    assert ratios[0] > max(ratios[1:])
    assert min(recorded(f"mjx-b{batch}", "first_call_time", name) for batch in batches) > 2


@guards("hopper-ends-each-step")
def test_hopper_ends_at_every_step():
    ends = {
        one: recorded(f"ends-{one}env", "ends", "environments_mujoco")
        for one in ("ant", "hopper", "humanoid", "walker2d")
    }
    assert ends.pop("hopper") == 100
    assert max(ends.values()) < 50


@guards("frame-skip-divides-price", "transforms-lengthen-step", "named-host-moves-frames")
def test_options_and_transforms():
    assert recorded("variant-frame-skip", "time_vs_plain") < 0.75
    for variant in ("step-counter", "reward-sum", "init-tracker"):
        assert recorded(f"variant-{variant}", "time_vs_plain") > 1.5
    assert 1.4 < recorded("variant-device", "time_vs_plain") < 1.5
    assert recorded("pixels-cat-frames", "bytes_per_frame") > 3.9 * recorded(
        "pixels-frame-stack", "bytes_per_frame"
    )


@guards(
    "python-row-loops-cost",
    "small-pitfalls-fifth",
    "item-per-row-dearer",
    "spec-zero-builds-tensors",
)
def test_prices_of_pitfalls():
    price = {name: recorded(f"pitfall-{name}", "time_vs_repaired") for name in suite.PITFALLS}
    for cheap in ("item-once", "allocate", "list", "cast"):
        assert price[cheap] < 1.2
    assert price["item-rows"] > price["item-once"]
    for dear in ("unbatched", "row-by-row", "filled-spec"):
        assert price[dear] > 3
    assert price["checks"] > 1.5


def test_noise_is_small():
    assert 0.9 < recorded("pitfall-none", "time_vs_repaired") < 1.1
    assert 0.9 < recorded("variant-plain", "time_vs_plain") < 1.1
