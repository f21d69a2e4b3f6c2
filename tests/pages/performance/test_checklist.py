"""The suite checklist, run small, and what its page says of the record."""

import math
import re
from functools import partial
from itertools import groupby, pairwise, repeat
from unittest import mock

import pytest
import torch
from torchrl.envs import check_env_specs

from benchmarks.suites import bench_checklist as suite
from tests.support import ROOT
from tests.support.claims import guards
from tests.support.evidence_module import load_evidence
from tests.support.suites import CPU, noted
from tests.support.suites import recorded as recorded_of

PAGE = "docs/performance/checklist.rst"


@pytest.fixture
def small():
    few = {"bytes", "fused", "batched-env", "compact"}
    worlds = {
        "cartpole": suite.WORLDS["cartpole"]._replace(frames=32, epochs=1, minibatch=8),
        "pixels": suite.WORLDS["pixels"]._replace(frames=32, minibatch=8),
    }
    items = {name: item for name, item in suite.ITEMS.items() if name in few}
    with mock.patch.multiple(suite, ROUNDS=2, WARMUP_ROUNDS=0, COUNT=2, WORLDS=worlds, ITEMS=items):
        yield
    suite.measured.cache_clear()


# Wrong names fail loudly, so one world of two runs whole.
@pytest.mark.parametrize("world", ["pixels"])
def test_entries(small, world):
    found = {}
    for name in (suite.BEFORE, *suite.items_of(world), suite.AFTER):
        entry = found[name] = noted(suite.bench_item, CPU, world, name)
        assert entry["key"] == f"{world}-{name}"
        assert len(entry["seconds"]) == suite.ROUNDS
        assert entry["exact"]["gradient_steps"] == 4
    size = {name: entry["exact"]["bytes_per_frame"] for name, entry in found.items()}
    pixels = 84 * 84 * 4
    assert size["before"] - size["bytes"] == 2 * 3 * pixels  # root and next, float32 to uint8
    assert size["before"] - size["compact"] >= 4 * pixels
    assert size["after"] < 1.01 * pixels
    first = suite.items_of(world)[0]
    sampled = found[first]["sampled"]
    assert sampled["gain"] == sampled["gain_with_all_above"]
    last = suite.items_of(world)[-1]
    above = found[last]["sampled"]["gain_with_all_above"]
    assert above == found["after"]["sampled"]["gain_with_all_above"] != sampled["gain"]


@pytest.mark.parametrize("name", ["fused", "compact"])
def test_results_of_cartpole(small, name):
    before = suite.learned("cartpole", (), CPU)
    assert suite.compare("cartpole", (name,), CPU, before)["gradient_steps"] == 4


def test_an_item_that_changes_the_result_fails_the_suite(small):
    item = suite.ITEMS["batched-env"]._replace(same=True)
    before = suite.learned("cartpole", (), CPU)
    with (
        mock.patch.dict(suite.ITEMS, {"batched-env": item}),
        pytest.raises(AssertionError, match="batched-env"),
    ):
        suite.compare("cartpole", ("batched-env",), CPU, before)


@pytest.mark.parametrize("count", [None, 3])
def test_the_environment_of_pixels(count):
    env = suite.Dot(count)
    env.set_seed(0)
    check_env_specs(env)
    frames = env.rollout(50, break_when_any_done=False)
    done = frames["next", "done"][..., :-1, 0]
    assert done.any()
    assert 0 < frames["next", "reward"].sum() <= frames["next", "done"].sum()
    later, told = frames["pixels"][..., 1:, :, :, :], frames["next", "pixels"][..., :-1, :, :, :]
    assert torch.equal(later[~done], told[~done])
    assert not later[done][..., :3].any(), "an episode begins with empty pictures"
    assert later[done][..., 3].any()


def test_scaling_is_that_of_the_transform():
    env = suite.Dot()
    env.set_seed(0)
    raw = env.reset()["pixels"]
    transformed = suite.ToTensorImage(in_keys=["pixels"])(env.reset().set("pixels", raw))
    assert torch.equal(suite.Scaled()(raw), transformed["pixels"])


# -- Sentences about the record --------------------------------------------------


def recorded(key, metric="gain", point="median"):
    return recorded_of("checklist", key, metric, point)


def listed():
    """The items in the order of the page's first table, and its last column."""
    text = (ROOT / PAGE).read_text("utf-8").split(".. list-table::")[1]
    return re.findall(
        r"\* - :ref:`.*<performance-checklist-([a-z-]+)>`\n.*\n.*\n +- (yes|no)\n", text
    )


def test_every_item_is_listed():
    found = dict(listed())
    assert found == {name: "yes" if item.same else "no" for name, item in suite.ITEMS.items()}


@guards("checklist-ordered-by-gain", "items-by-gain")
def test_order_of_the_list():
    """A pair whose quartiles overlap may stand either way."""
    names = [name for name, _ in listed() if "cartpole" in suite.ITEMS[name].worlds]
    for position, first in enumerate(names):
        for later in names[position + 1 :]:
            gain = recorded(f"cartpole-{first}", point="q3")
            assert gain >= recorded(f"cartpole-{later}", point="q1"), (first, later)
    only_pixels = [name for name, _ in listed() if name not in names]
    assert [name for name, _ in listed()][len(names) :] == only_pixels


@guards("gain-one-means-nothing", "single-items-gain-little")
def test_most_items_gain_little():
    for world in suite.WORLDS:
        gains = [recorded(f"{world}-{name}") for name in suite.items_of(world)]
        assert sum(gain < 1.2 for gain in gains) > len(gains) / 2


@guards("first-row-stands-clear")
def test_neighbors_overlap_below_the_first_row():
    names = [name for name, _ in listed() if "cartpole" in suite.ITEMS[name].worlds]
    clear = [
        recorded(f"cartpole-{name}", point="q1") > recorded(f"cartpole-{below}", point="q3")
        for name, below in pairwise(names)
    ]
    assert clear == [True] + [False] * (len(names) - 2)


@guards("validation-off-already")
def test_no_pipeline_validates(small):
    for items in ((), ("no-validation",)):
        pipeline = suite.Pipeline("cartpole", items, CPU)
        batch = pipeline.collector.rollout()
        pipeline.collector.shutdown()
        assert not pipeline.actor.get_dist(batch)._validate_args, items


@guards("small-batches-form-no-gain")
def test_the_vectorized_form_gains_nothing():
    for world in suite.WORLDS:
        assert recorded(f"{world}-vectorized") < 1.05


@guards("items-gain-more-together")
def test_all_items_together():
    for world in suite.WORLDS:
        product = math.prod(recorded(f"{world}-{name}") for name in suite.items_of(world))
        assert recorded(f"{world}-after", "gain_with_all_above", "q1") > product > 1.5


@guards("shifted-loses-on-pixels", "compact-saves-memory")
def test_items_that_gain_no_time_on_pixels():
    assert recorded("pixels-shifted", point="q3") < 1
    assert 0.95 < recorded("pixels-bytes") < 1.1
    before, ours = (recorded(f"pixels-{n}", "bytes_per_frame") for n in ("before", "bytes"))
    assert ours < before / 3


@guards("loss-read-cost")
def test_reading_losses_is_free_on_a_cpu():
    for world in suite.WORLDS:
        assert 0.9 < recorded(f"{world}-log-once") < 1.1


@guards("graph-advice-not-needed")
def test_no_graph_gains_nothing():
    for world in suite.WORLDS:
        assert 0.9 < recorded(f"{world}-no-graph") < 1.1
        assert recorded(f"{world}-no-graph", "parameter_difference") == 0


@guards("same-result-is-compared", "other-items-finite-checked")
def test_three_items_change_the_result():
    changed = {name for name, item in suite.ITEMS.items() if not item.same}
    assert changed == {"batched-env", "whole-batches", "compact"}
    for world in suite.WORLDS:
        for name in suite.items_of(world):
            difference = recorded(f"{world}-{name}", "parameter_difference")
            assert (difference > suite.PARAMETER_TOLERANCE) == (name in changed)


@guards("compact-drops-half-bytes")
def test_bytes_of_compact():
    before, ours = (recorded(f"pixels-{n}", "bytes_per_frame") for n in ("before", "compact"))
    assert ours == pytest.approx(before / 2, rel=0.01)


@guards("idle-transforms-dropped")
def test_transforms_that_nothing_reads():
    env = suite.cartpole()
    kinds = {leaf.dtype for leaf in env.observation_spec.values(True, True)}
    assert torch.float64 not in kinds
    for name in ("cartpole", "pixels"):
        difference = recorded(f"{name}-lean-env", "parameter_difference")
        assert difference == 0


@guards("compact-drops-next-entries")
@pytest.mark.parametrize("compact", [False, True])
def test_compact_drops_the_returns(compact):
    from torchrl.collectors import Collector
    from torchrl.envs import GymEnv, TransformedEnv

    env = TransformedEnv(GymEnv("CartPole-v1"), suite.RewardSum())
    collector = Collector(
        env,
        frames_per_batch=4,
        total_frames=-1,
        compact_obs=compact,
        auto_register_policy_transforms=False,
    )
    batch = collector.rollout()
    collector.shutdown()
    assert ("episode_reward" in batch["next"].keys()) is not compact  # noqa: SIM118 - no dict


@guards("compact-takes-following-value")
def test_compact_changes_the_last_trajectory_alone(small):
    found = []
    for items in ((), ("compact",)):
        pipeline = suite.Pipeline("cartpole", items, CPU)
        torch.manual_seed(suite.SEED)
        batches = [pipeline.collector.rollout().clone() for _ in range(8)]
        pipeline.collector.shutdown()
        batch = next(one for one in batches if one["next", "done"][:-1].any())
        found.append(pipeline.advantages(batch))
    full, compact = found
    assert torch.equal(full["observation"], compact["observation"])
    last = full["next", "done"].squeeze(-1).nonzero().max() + 1
    torch.testing.assert_close(full["advantage"][:last], compact["advantage"][:last])
    assert last == len(full) or not torch.allclose(full["advantage"][-1], compact["advantage"][-1])


def test_the_imports_are_those_of_the_section():
    run = load_evidence("checklist/imports")
    pages = [path.stem for path in (ROOT / "docs" / "performance").glob("*.rst")]
    named = [page for _, _, page in run.IMPORTS]
    assert set(named) <= set(pages)
    assert len([*groupby(named)]) == len(set(named)), "the rows of a page stand together"
    gone = (("torchrl.collectors", "Gone", "collectors"),)
    with (
        mock.patch.object(run, "IMPORTS", gone),
        pytest.raises(AssertionError, match="has no Gone"),
    ):
        run.main()


# Knobs of these are set through a class below them.
BASES = {"BaseCollector", "BatchedEnvBase", "EnvBase", "LossModule", "MujocoEnv", "TensorDict"}
BASES |= {"GymLikeEnv", "ProbabilisticTensorDictModule"}
WHERE = re.compile(r"^   :(?:of|source): (.+(?:\n      .+)*)$", re.M)


def test_the_imports_have_every_class_with_a_knob():
    imports = load_evidence("checklist/imports").IMPORTS
    known = BASES | {name for _, names, _ in imports for name in names.split()}
    missing = set()
    for page in (ROOT / "docs" / "performance").glob("*.rst"):
        for paths in WHERE.findall(page.read_text("utf-8")):
            parts = {part for path in paths.split() for part in path.split(".")}
            if not parts & known:
                missing |= {part for part in parts if part[0].isupper()}
    assert missing <= {"SyncVectorEnv", "AsyncVectorEnv"}, "gymnasium's own"


@guards("no-clear-difference-quartiles")
def test_verdicts_of_the_check():
    check = load_evidence("checklist/check")
    for second, expected in (
        ((5, 5, 6, 5), (check.FASTER, 2)),
        ((20, 20, 19, 20), (check.SLOWER, 0.5)),
        ((5, 20, 5, 20), (check.NEITHER, 1.25)),
    ):
        clock = Clock()
        costs = iter((3, *second))  # the first round warms up
        before = partial(clock.spend, repeat(10))
        after = partial(clock.spend, costs)
        with mock.patch.object(check.time, "perf_counter", clock):
            assert check.gain(before, after, rounds=4) == expected


class Clock:
    """A clock that goes on by what an iteration is said to take."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def spend(self, seconds):
        self.now += next(seconds)
