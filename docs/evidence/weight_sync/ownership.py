"""Who owns a policy's parameters, and which changes reach the workers; for performance/weight_sync.

A policy with one parameter acts with it and writes into the batch which memory it lies in: the
number of the shared file that backs it, the same in every process, or 0 for memory of one process
alone. The workers start by "forkserver" with TorchRL preloaded, so that objects reach them pickled,
as under "spawn". Linux only, because the mapped files are read from /proc.
"""

import contextlib
import json
import multiprocessing
import os
import time
import warnings
from collections import Counter
from pathlib import Path
from unittest import mock

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch.utils._python_dispatch import TorchDispatchMode
from torchrl.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from torchrl.collectors import weight_update as updaters
from torchrl.data import Binary, Composite, Unbounded
from torchrl.envs import EnvBase, GymEnv
from torchrl.modules import MLP, QValueActor
from torchrl.modules.inference_server import InferenceServer
from torchrl.weight_update import MultiProcessWeightSyncScheme, SharedMemWeightSyncScheme

FRAMES = 4
QUEUED = 2  # batches of an asynchronous worker that may be older than a change


class Nothing(EnvBase):
    """Observes zero and goes on for ever."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((1,)))
        self.action_spec = Unbounded((1,))
        self.reward_spec = Unbounded((1,))
        flag = Binary(1, dtype=torch.bool)
        self.full_done_spec = Composite(done=flag, terminated=flag.clone())

    def _reset(self, tensordict=None, **options):
        return self.full_done_spec.zero().update(self.observation_spec.zero())

    def _step(self, tensordict):
        return self._reset().set("reward", torch.zeros(1))

    def _set_seed(self, seed):
        """Nothing here is random."""


class Marked(torch.nn.Module):
    """Acts with its parameter and says where that lies."""

    def __init__(self):
        super().__init__()
        self.marker = torch.nn.Parameter(torch.zeros(1))

    def forward(self, observation):
        memory = torch.full_like(observation, memory_of(self.marker), dtype=torch.int64)
        return observation + self.marker.detach(), memory


def memory_of(tensor):
    """The number of the file that backs *tensor*, or 0 for memory of this process alone."""
    address = tensor.data_ptr()
    for line in Path("/proc/self/maps").read_text("utf-8").splitlines():
        span, _, _, _, inode, *_ = line.split()
        begin, end = (int(bound, 16) for bound in span.split("-"))
        if begin <= address < end:
            return int(inode)
    raise AssertionError("a tensor outside of all memory")


def make_policy():
    return TensorDictModule(Marked(), ["observation"], ["action", "memory"])


# -- Measure it yourself ---------------------------------------------------------


def plays(policy, batch, key):
    """Whether *policy* computes every frame of *batch* with its weights of now."""
    device = next(policy.parameters()).device  # the batch may lie on another
    with torch.no_grad():
        again = policy(batch.clone().to(device))[key].to(batch[key].device)
    return torch.isclose(again, batch[key], rtol=1e-4, atol=1e-5).all().item()


def verdict(collector, policy, batches, key, queued=0):
    """How the weights of *policy*, which you train, reach *collector*.

    *batches* is the iterator of the collector. *key* names an output of the policy
    that is not drawn at random, like "logits" or "action_value". With
    MultiAsyncCollector, *queued* is the number of its workers plus one.
    """

    def plays_now():
        for _ in range(queued):
            next(batches)  # may be older than the weights
        return plays(policy, next(batches), key)

    def change(sign):
        with torch.no_grad():  # stands for the step of an optimizer
            for parameter in policy.parameters():
                parameter.add_(sign * 0.1)

    if not plays_now():
        return "stale: call update_policy_weights_() and run this again"
    change(+1)
    by_itself = plays_now()
    by_call, error = False, None
    if not by_itself:
        try:
            collector.update_policy_weights_()
            by_call = plays_now()
        except RuntimeError as raised:
            error = raised
    change(-1)
    if by_call:
        collector.update_policy_weights_()
        return "call update_policy_weights_() after the optimizer steps"
    if error:
        return f"no way to the workers: {error}"
    return "no call needed" if by_itself else "the call does not help"


def example():
    """The check on one collector; replace policy, collector and key by yours."""
    env = GymEnv("CartPole-v1")
    network = MLP(in_features=4, out_features=2, num_cells=[32])
    policy = QValueActor(network, in_keys=["observation"], spec=env.action_spec)
    collector = Collector(
        env,
        policy,
        frames_per_batch=100,
        total_frames=-1,
        auto_register_policy_transforms=False,
    )
    said = verdict(collector, policy, iter(collector), "action_value")
    collector.shutdown()
    return said


# -- Tables ----------------------------------------------------------------------


def schemes(kind):
    return {"weight_sync_schemes": {"policy": kind()}}


# name: (kind of collector, arguments, whether it is given the policy)
COLLECTORS = {
    "``Collector(env, policy)``": (Collector, dict, True),
    "``policy_device`` is another device": (Collector, lambda: {"policy_device": "cpu:0"}, True),
    "``policy_factory``": (Collector, lambda: {"policy_factory": make_policy}, False),
    "``MultiSyncCollector(envs, policy)``": (MultiSyncCollector, dict, True),
    "``MultiAsyncCollector(envs, policy)``": (MultiAsyncCollector, dict, True),
    "``MultiProcessWeightSyncScheme``": (
        MultiSyncCollector,
        lambda: schemes(MultiProcessWeightSyncScheme),
        True,
    ),
    "``policy`` and ``policy_factory``": (
        MultiSyncCollector,
        lambda: {"policy_factory": make_policy},
        True,
    ),
    "``policy_factory`` alone": (
        MultiSyncCollector,
        lambda: {"policy_factory": make_policy},
        False,
    ),
    "``policy_factory`` and a scheme": (
        MultiSyncCollector,
        lambda: {"policy_factory": make_policy, **schemes(SharedMemWeightSyncScheme)},
        False,
    ),
}


@contextlib.contextmanager
def collecting(name, policy):
    """The collector of this name, its iterator, and how to get the batch after a change."""
    kind, options, given = COLLECTORS[name]
    options = options()
    if given:
        options["policy"] = policy
    collector = kind(
        Nothing() if kind is Collector else [Nothing],
        frames_per_batch=FRAMES,
        total_frames=-1,
        auto_register_policy_transforms=False,
        **options,
    )
    batches = iter(collector)
    queued = QUEUED if kind is MultiAsyncCollector else 0

    def fresh_batch():
        for _ in range(queued):
            next(batches)
        return next(batches)

    try:
        yield collector, batches, fresh_batch, queued
    finally:
        collector.shutdown()
        for scheme in options.get("weight_sync_schemes", {}).values():
            scheme.shutdown()


def acted(batch):
    found = set(batch["action"].flatten().tolist())
    assert len(found) == 1, f"a batch of several weights: {found}"
    return found.pop()


def same_memory(policy, batch):
    """Whether the frames were made with the very memory that *policy* has in this process."""
    theirs = set(batch["memory"].flatten().tolist())
    return theirs == {memory_of(policy.module.marker)}


def yes(value):
    return "yes" if value else "no"


def call(collector, *arguments):
    """What update_policy_weights_ raises, or None."""
    try:
        collector.update_policy_weights_(*arguments)
    except RuntimeError as error:
        return str(error)
    return None


def study(name):
    """What holds of this collector, in the order in which it was done."""
    policy = make_policy()
    inner = policy.module
    found = {"before": memory_of(inner.marker) != 0}

    def arrives(value):
        return acted(fresh_batch()) == value

    def same():
        if isinstance(collector, Collector):
            return collector.policy.module.marker.data_ptr() == inner.marker.data_ptr()
        return memory_of(inner.marker) != 0 and same_memory(policy, fresh_batch())

    with collecting(name, policy) as (collector, _, fresh_batch, _):
        assert acted(fresh_batch()) == 0.0
        found["file"] = memory_of(inner.marker) != 0
        found["same"] = same()
        with torch.no_grad():
            inner.marker.add_(1)  # what an optimizer does
        found["in place"] = arrives(1.0)
        found["error"] = call(collector)
        found["call"] = arrives(1.0)
        if not found["call"]:
            found["error"] = found["error"] or call(collector, TensorDict.from_module(policy))
            found["explicit"] = arrives(1.0)
        policy.load_state_dict({"module.marker": torch.full((1,), 5.0)})
        found["loaded"] = arrives(5.0)
        # A new tensor in the place of the parameter's.
        policy.load_state_dict({"module.marker": torch.full((1,), 7.0)}, assign=True)
        found["replaced"] = arrives(7.0)
        call(collector)
        found["replaced, call"] = arrives(7.0)
        found["same later"] = same()
        with torch.no_grad():
            inner.marker.add_(1)
        found["later in place"] = arrives(8.0)
    return found


def ownership_table(studies):
    rows = []
    for name, found in studies.items():
        process = "same process" if COLLECTORS[name][0] is Collector else "workers"
        keys = ("before", "file", "same", "same later")
        rows.append([name, process, *(yes(found[key]) for key in keys)])
    columns = [
        "Collector",
        "The policy runs in",
        "Yours in shared memory, before",
        "After",
        "It acts with your tensors",
        "Also after a replaced tensor and a call",
    ]
    return {"columns": columns, "rows": rows}


def arrival(found, by_itself, by_call):
    if found[by_itself]:
        return "by itself"
    if found[by_call]:
        return "after the call"
    if by_call == "call" and found.get("explicit"):
        return "**not**, unless the call is given the weights"
    if found["error"]:
        return "**never**; the call raises"
    return "**never**"


def arrivals_table(studies):
    rows = []
    for name, found in studies.items():
        if found["call"]:
            replaced = arrival(found, "replaced", "replaced, call")
            later = "by itself" if found["later in place"] else "after the call"
        else:
            replaced = later = arrival(found, "in place", "call")
        rows.append([name, arrival(found, "in place", "call"), replaced, later])
    columns = [
        "Collector",
        "A step in place",
        "A replaced tensor",
        "A step after that",
    ]
    return {"columns": columns, "rows": rows}


def assert_what_the_page_says(studies):
    shared = [name for name, found in studies.items() if found["in place"]]
    assert shared == [
        "``Collector(env, policy)``",
        "``MultiSyncCollector(envs, policy)``",
        "``MultiAsyncCollector(envs, policy)``",
        "``MultiProcessWeightSyncScheme``",
        "``policy`` and ``policy_factory``",
    ], shared
    for name, found in studies.items():
        assert not found["before"], f"{name}: a new policy lies in shared memory"
        assert found["same"] is found["in place"], f"{name}: one memory, and changes do not arrive"
        assert found["loaded"] is found["in place"], (
            f"{name}: load_state_dict does not copy in place"
        )
        workers = COLLECTORS[name][0] is not Collector
        assert found["file"] is (workers and found["same"]), f"{name}: {found}"
        if workers and found["in place"]:
            assert not found["replaced"], f"{name}: a replaced tensor arrives by itself"
            assert found["replaced, call"], f"{name}: the call brings no replaced tensor"
            assert not found["later in place"], f"{name}: the call renews the link"
            assert not found["same later"], f"{name}: the call renews the sharing"
    alone = studies["``policy_factory`` alone"]
    assert alone["error"].startswith("No weight updater"), alone
    assert not alone["explicit"]
    for name in ("``policy_factory``", "``policy_factory`` and a scheme"):
        found = studies[name]
        assert found["error"] is None, f"{name}: the call without an argument raises"
        assert not found["call"], f"{name}: the call without an argument brings the weights"
        assert found["explicit"], f"{name}: the call with weights does not bring them"


def work_table():
    """What the main process does in one call: copies, messages, and waits for the workers."""
    workers, rows = 2, []
    for name, scheme in (
        ("``SharedMemWeightSyncScheme()``", SharedMemWeightSyncScheme()),
        ("``SharedMemWeightSyncScheme(sync=False)``", SharedMemWeightSyncScheme(sync=False)),
        ("``MultiProcessWeightSyncScheme()``", MultiProcessWeightSyncScheme()),
    ):
        policy = TensorDictModule(MLP(1, 1, num_cells=[8]), ["observation"], ["action"])
        tensors = len(list(policy.parameters()))
        collector = MultiSyncCollector(
            [Nothing] * workers,
            policy,
            frames_per_batch=FRAMES,
            total_frames=-1,
            auto_register_policy_transforms=False,
            weight_sync_schemes={"policy": scheme},
        )
        next(iter(collector))
        counts = Counter()
        with counting(scheme, counts), Copies() as copies:
            collector.update_policy_weights_()
        collector.shutdown()
        scheme.shutdown()
        pipe = isinstance(scheme, MultiProcessWeightSyncScheme)
        # Into the one memory of all workers, once for each of them.
        assert copies.tensors == (0 if pipe else workers * tensors)
        assert copies.by <= {"aten::_foreach_copy_"}, copies.by
        assert counts["weights sent"] == (workers if pipe else 0)
        assert counts["waits"] == (workers if scheme.sync else 0)
        said = (tensors, copies.tensors, *(counts[key] for key in COUNTED.values()))
        rows.append([name, *map(str, said)])
    columns = ["Scheme", "Tensors of the policy", "Tensors copied", *COUNTED]
    return {"columns": columns, "rows": rows}


COUNTED = {
    "Weights put into a queue": "weights sent",
    "Instructions sent": "instructions",
    "Acknowledgments waited for": "waits",
}


class Copies(TorchDispatchMode):
    """Counts the tensors that are copied in this thread."""

    def __init__(self):
        super().__init__()
        self.tensors, self.by = 0, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name()
        if name in ("aten::copy_", "aten::_foreach_copy_"):
            self.tensors += len(args[0]) if "foreach" in name else 1
            self.by.add(name)
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def counting(scheme, counts):
    """Count what *scheme* puts into its queues and waits for."""

    def watch(stack, queue, method, name):
        original = getattr(queue, method)

        def counted(*args, **kwargs):
            counts[name] += 1
            return original(*args, **kwargs)

        stack.enter_context(mock.patch.object(queue, method, counted))

    with contextlib.ExitStack() as stack:
        for queues, method, name in (
            (scheme._weight_init_queues, "put", "weights sent"),
            (scheme._instruction_queues, "put", "instructions"),
            (scheme._ack_queues, "get", "waits"),
        ):
            for queue in queues.values():
                watch(stack, queue, method, name)
        yield


def verdicts_table():
    expected = {
        "``Collector(env, policy)``": "no call needed",
        "``policy_device`` is another device": "call update_policy_weights_()",
        "``MultiSyncCollector(envs, policy)``": "no call needed",
        "``MultiAsyncCollector(envs, policy)``": "no call needed",
        "``policy_factory`` alone": "no way to the workers",
        "``policy_factory`` and a scheme": "the call does not help",
    }
    rows = []
    for name, said in expected.items():
        policy = make_policy()
        with collecting(name, policy) as (collector, batches, _, queued):
            found = verdict(collector, policy, batches, "action", queued)
        assert found.startswith(said), f"{name}: {found}"
        left = abs(policy.module.marker.item())
        assert left < 1e-6, f"{name}: the check leaves other weights"
        rows.append([name, found.partition(":")[0]])
    name = "``MultiSyncCollector(envs, policy)``"
    policy = make_policy()
    with collecting(name, policy) as (collector, batches, _, queued):
        policy.load_state_dict({"module.marker": torch.full((1,), 7.0)}, assign=True)
        found = verdict(collector, policy, batches, "action", queued)
        assert found.startswith("stale"), found
        rows.append([f"{name}, then ``load_state_dict(assign=True)``", found.partition(":")[0]])
        collector.update_policy_weights_()
        found = verdict(collector, policy, batches, "action", queued)
        assert found.startswith("call update"), found
        rows.append(["the same after the call", found])
    return {"columns": ["Collector", "Verdict"], "rows": rows}


# -- One worker of several ----------------------------------------------------------


def one_worker_table():
    """Two workers, the second with another ``policy_device``: which of them gets a step."""
    rows, arrived = [], {}
    for kind in (SharedMemWeightSyncScheme, MultiProcessWeightSyncScheme):
        policy, scheme = make_policy(), kind()
        collector = MultiSyncCollector(
            [Nothing] * 2,
            policy,
            frames_per_batch=2 * FRAMES,
            total_frames=-1,
            policy_device=["cpu", "cpu:0"],
            env_device="cpu",
            storing_device="cpu",
            auto_register_policy_transforms=False,
            weight_sync_schemes={"policy": scheme},
        )
        batches = iter(collector)
        next(batches)
        with torch.no_grad():
            policy.module.marker.add_(1)
        by_itself = [plays(policy, one, "action") for one in next(batches)]
        collector.update_policy_weights_()
        by_call = [plays(policy, one, "action") for one in next(batches)]
        collector.shutdown()
        scheme.shutdown()
        arrived[kind] = by_itself, by_call
        said = (
            "by itself" if own else "after the call" if call else "**never**"
            for own, call in zip(by_itself, by_call, strict=True)
        )
        rows.append([f"``{kind.__name__}()``", *said])
    assert arrived == {
        SharedMemWeightSyncScheme: ([True, False], [True, False]),
        MultiProcessWeightSyncScheme: ([True, False], [True, True]),
    }, arrived
    columns = ["Scheme", "Worker on the policy's device", "Worker on the second device"]
    return {"columns": columns, "rows": rows}


# -- The deprecated way ------------------------------------------------------------


def caught(function):
    """The category and start of the warning or error that *function* gives."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            function()
        except (TypeError, KeyError) as error:
            return f"``{type(error).__name__}``: {error}"
    deprecations = [w for w in found if issubclass(w.category, DeprecationWarning)]
    if not deprecations:
        return "nothing"
    return f"``{deprecations[0].category.__name__}``: {deprecations[0].message}"


def updaters_table():
    policy = make_policy()

    def updater():
        return updaters.VanillaWeightUpdater(policy_weights=TensorDict.from_module(policy).data)

    def subclass():
        type("Mine", (updaters.WeightUpdaterBase,), {})

    def collector(kind, **options):
        env = Nothing() if kind is Collector else [Nothing]
        kind(
            env,
            policy,
            frames_per_batch=FRAMES,
            total_frames=-1,
            auto_register_policy_transforms=False,
            **options,
        ).shutdown()

    both = {"weight_updater": updater(), **schemes(SharedMemWeightSyncScheme)}
    found = {
        "a subclass of ``WeightUpdaterBase``": caught(subclass),
        "``Collector(..., weight_updater=...)``": caught(
            lambda: collector(Collector, weight_updater=updater())
        ),
        "``MultiSyncCollector(..., weight_updater=...)``": caught(
            lambda: collector(MultiSyncCollector, weight_updater=updater())
        ),
        "``MultiSyncCollector`` with both": caught(lambda: collector(MultiSyncCollector, **both)),
    }
    kinds = [said.partition(":")[0] for said in found.values()]
    deprecated, error = "``DeprecationWarning``", "``TypeError``"
    assert kinds == [deprecated, deprecated, "nothing", error], kinds
    return {
        "columns": ["What you write", "What is raised or warned"],
        "rows": [list(row) for row in found.items()],
    }


def server_shares():
    """Whether a server in a thread answers with weights that were changed in place."""
    policy = make_policy()
    with InferenceServer(policy, transport="auto") as server:
        client = server.client()
        request = TensorDict({"observation": torch.zeros(1)})
        before = client(request.clone())["action"].item()
        with torch.no_grad():
            policy.module.marker.add_(1)
        after = client(request.clone())["action"].item()
        assert server.policy_version == 0, "a step in place counts as an update"
    assert (before, after) == (0.0, 1.0), "the server has weights of its own"
    return "by itself"


def mid_batch():
    """How many weights and policy versions one batch has while the policy changes in place."""
    policy = make_policy()
    collector = MultiAsyncCollector(
        [Nothing],
        policy,
        frames_per_batch=200,
        total_frames=-1,
        track_policy_version=True,
        auto_register_policy_transforms=False,
    )
    batches = iter(collector)
    next(batches)  # from here on the worker collects the next one
    give_up = time.monotonic() + 60
    while collector.queue_out.empty():
        assert time.monotonic() < give_up, "the worker has stopped"
        with torch.no_grad():
            policy.module.marker.add_(1)
    batch = next(batches)
    collector.shutdown()
    weights, versions = (len(batch[key].unique()) for key in ("action", ("next", "policy_version")))
    assert weights > 1, "a batch of one policy"
    assert versions == 1, "a step in place counts as a version"
    return f"several weights: {weights > 1}\nversions: {versions}"


def main():
    studies = {name: study(name) for name in COLLECTORS}
    assert_what_the_page_says(studies)
    said = example()
    assert said == "no call needed", said
    return {
        "ownership": ownership_table(studies),
        "arrivals": arrivals_table(studies),
        "work": work_table(),
        "verdicts": verdicts_table(),
        "one-worker": one_worker_table(),
        "mid-batch": mid_batch(),
        "updaters": updaters_table(),
        "factory-error": studies["``policy_factory`` alone"]["error"],
        "server": server_shares(),
        "example": said,
    }


if __name__ == "__main__":
    multiprocessing.set_start_method("forkserver", force=True)
    multiprocessing.set_forkserver_preload(["torchrl.collectors", "torchrl.envs"])
    torch.set_num_threads(1)
    print(json.dumps(main()))
