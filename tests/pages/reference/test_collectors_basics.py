"""The sentences of docs/reference/collectors_basics.rst that no example or run on it shows."""

import pytest
import torch
import torchrl
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector, MultiAsyncCollector, MultiCollector, MultiSyncCollector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import GymEnv, StepCounter, TransformedEnv
from torchrl.envs.transforms import NextStateReconstructor

from tests.support.claims import guards

IDS = ("collector", "traj_ids")


def make_env():
    return TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=3))


@pytest.fixture
def make_collector():
    made = []

    def make(frames, env=make_env, policy=None, total_frames=-1, **options):
        options.setdefault("auto_register_policy_transforms", False)
        collector = Collector(
            env, policy, frames_per_batch=frames, total_frames=total_frames, **options
        )
        made.append(collector)
        return collector

    yield make
    for collector in made:
        collector.shutdown()


def first_of_loop(collector):
    for batch in collector:
        return batch


@guards("second-loop-goes-on")
def test_a_second_loop_goes_on(make_collector):
    collector = make_collector(4)
    steps = [first_of_loop(collector)["step_count"].flatten().tolist() for _ in range(2)]
    assert steps == [[0, 1, 2, 0], [1, 2, 0, 1]]


@guards("batch-not-overwritten")
@guards("same-td-argument")
@pytest.mark.parametrize("overwritten", [False, True])
def test_a_batch_is_overwritten_only_on_demand(make_collector, overwritten):
    collector = make_collector(4, return_same_td=overwritten)
    batches = iter(collector)
    first = next(batches)
    kept = first.clone()
    next(batches)
    assert (first["step_count"] == kept["step_count"]).all().item() != overwritten


@guards("multi-process-not-collector")
@pytest.mark.parametrize("kind", [MultiSyncCollector, MultiAsyncCollector])
def test_a_multi_process_collector_is_no_collector(kind):
    assert not issubclass(kind, Collector)


@guards("dispatch-drops-defaults")
def test_the_dispatch_drops_defaults_alone():
    options = {"track_traj_ids": True}
    type(Collector)._drop_inapplicable_defaults(MultiCollector, options)
    assert not options
    with pytest.raises(TypeError, match="unexpected keyword argument 'track_traj_ids'"):
        Collector(make_env, num_collectors=1, frames_per_batch=4, track_traj_ids=False)


@guards("worker-rounding-silent")
def test_workers_filter_warnings():
    assert torchrl.filter_warnings_subprocess is True


@guards("docstring-announces-exception")
def test_the_docstring_announces_an_exception():
    said = " ".join(Collector.__doc__.split())
    assert "not divisible by ``frames_per_batch``, an exception is raised" in said


@guards("docstring-recommends-minus-one")
def test_the_docstring_recommends_minus_one():
    said = " ".join(MultiCollector.__doc__.split())
    assert "time dimension. This should be preferred over the default." in said


class Stop:
    """An interruptor that ends each batch after its first step."""

    def collection_stopped(self):
        return True


@guards("uncollected-frames-minus-one")
def test_frames_that_were_not_collected_have_the_id_minus_one(make_collector):
    batch = make_collector(4, interruptor=Stop()).next()
    assert batch[IDS].tolist() == [0, -1, -1, -1]


@guards("reconstructor-compares-ids")
def test_the_reconstructor_compares_ids():
    ids = {"traj_ids": torch.tensor([0, 0, 1, 1])}
    done = {"done": torch.zeros(4, 1, dtype=torch.bool)}
    rows = TensorDict({"observation": torch.arange(4.0), "collector": ids, "next": done}, [4])
    following = NextStateReconstructor()(rows)["next", "observation"]
    assert following[[0, 2]].tolist() == [1, 3]
    assert following[[1, 3]].isnan().all()


# -- The table of arguments ----------------------------------------------------


@guards("random-frames-argument", "placement-script-collector")
def test_random_frames_are_whole_batches(make_collector):
    calls = []

    def push(observation):
        calls.append(1)
        return torch.tensor([1, 0])

    policy = TensorDictModule(push, in_keys=["observation"], out_keys=["action"])
    with pytest.warns(UserWarning, match="not exactly a multiple of frames_per_batch"):
        collector = make_collector(4, policy=policy, init_random_frames=5)
    calls.clear()  # the constructor asks the policy once
    asked = [len(calls) for _ in range(3) if collector.next() is not None]
    assert asked == [0, 0, 4]


@guards("max-frames-argument", "truncation-by-max-steps")
def test_max_frames_per_traj_truncates(make_collector):
    batch = make_collector(4, lambda: GymEnv("CartPole-v1"), max_frames_per_traj=2).next()
    assert batch["next", "truncated"].flatten().tolist() == [False, True, False, True]
    assert batch["step_count"].flatten().tolist() == [0, 1, 0, 1]


@guards("reset-argument")
def test_a_reset_between_batches_is_not_marked(make_collector):
    collector = make_collector(4, reset_at_each_iter=True)
    for _ in range(2):
        batch = collector.next()
        assert batch["step_count"].flatten().tolist() == [0, 1, 2, 0]
        assert not batch["next", "done"][-1]


@guards("split-argument", "split-trajs-warns")
def test_split_trajs_pads(make_collector):
    with pytest.warns(UserWarning, match="split_trajs=True produces.*contiguous-trajectory layout"):
        batch = make_collector(4, split_trajs=True).next()
    assert batch["collector", "mask"].tolist() == [[True] * 3, [True, False, False]]


@guards("use-buffers-argument")
def test_the_steps_are_stacked_into_the_same_memory(make_collector):
    collector = make_collector(4, use_buffers=True)
    before = collector._final_rollout["observation"].data_ptr()
    collector.next()
    assert collector._final_rollout["observation"].data_ptr() == before
    assert not hasattr(make_collector(4, use_buffers=False), "_final_rollout")


@guards("postproc-argument")
def test_postproc_comes_before_the_buffer(make_collector):
    buffer = ReplayBuffer(storage=LazyTensorStorage(100))
    make_collector(4, postproc=lambda batch: batch[:2], replay_buffer=buffer).next()
    assert len(buffer) == 2
    assert make_collector(4, postproc=lambda batch: batch[:2]).next().shape == (2,)


@guards("extend-buffer-argument")
@pytest.mark.parametrize("whole", [True, False])
def test_the_buffer_is_filled_by_batch_or_by_step(make_collector, monkeypatch, whole):
    assert "``extend_buffer=False`` (deprecated)" in Collector.__doc__
    buffer = ReplayBuffer(storage=LazyTensorStorage(100))
    shapes = []
    for name in ("add", "extend"):
        write = getattr(buffer, name)

        def spy(data, *args, write=write, **options):
            shapes.append(tuple(data.shape))
            return write(data, *args, **options)

        monkeypatch.setattr(buffer, name, spy)
    make_collector(4, replay_buffer=buffer, extend_buffer=whole).next()
    assert shapes == ([(4,)] if whole else [()] * 4)


@guards("plain-module-by-argument-names")
def test_a_plain_module_reads_the_entries_that_its_arguments_name():
    class Net(torch.nn.Linear):
        def forward(self, observation):
            return torch.nn.functional.one_hot(super().forward(observation).argmax(-1), 2)

    net = Net(4, 2)
    options = {"frames_per_batch": 4, "total_frames": 4, "auto_register_policy_transforms": False}
    collector = Collector(GymEnv("CartPole-v1"), net, **options)
    batch = collector.next()
    collector.shutdown()
    assert torch.equal(batch["action"], net(batch["observation"]))
