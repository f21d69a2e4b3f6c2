"""One process, workers and remote collectors of Ray: start, frames, and what a death does.

One machine plays the cluster. Every way collects as many frames of CartPole in a batch, with the
same policy; they take turns, since one that waits for all its workers is idle between two batches.
Workers start by "spawn", TorchRL's default. The guide from one process to Ray runs once, with Ray,
and compares the results of its versions. The keys of deaths use the policy and the environment of
the suite weight_sync, so that the frames tell the weights that made them. A cluster of two nodes is
simulated by ray.cluster_utils.
"""

import ast
import contextlib
import functools
import hashlib
import itertools
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.envs import GymEnv
from torchrl.modules import MLP, ProbabilisticActor

from benchmarks import measure, metrics
from benchmarks.suites import bench_weight_sync as local

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "how-to" / "from_one_process_to_ray.py"
FRAMES = 400  # of all workers together
MANY_FRAMES = 10**6  # Ray's collector wants a number
WAYS = {"one": 0, "workers-2": 2, "ray-1": 1, "ray-2": 2}  # workers
TWINS = {"ray-1": "one", "ray-2": "workers-2"}  # the same seeds
CPUS = sum(WAYS[way] for way in WAYS if way.startswith("ray"))
STARTS = 4
PARTS = ("construction_time", "first_update_time", "first_batch_time")  # of a start, in this order
ROUNDS = 15
WARMUP_ROUNDS = 2
UPDATES = 3  # between batches that are compared
STEP = 0.1  # of each weight in such an update
LIMIT = 40  # seconds for a call that may never return

TITLES = {
    "one": "Collector",
    "workers-2": "two workers",
    "ray-1": "one remote collector",
    "ray-2": "two remote collectors",
}
METRICS = metrics.declare("""
init_time [s] Start of Ray: Wall time of ray.init on this machine, once.
start_time [s] Time to the first batch: Wall time of the constructor, the first call of
    update_policy_weights_ and the first batch; Ray itself runs already.
construction_time [s] Construction: Of that, the constructor; on Ray it makes the actors, which
    import TorchRL.
first_update_time [s] First update: Of that, the first call of update_policy_weights_.
first_batch_time [s] First batch: Of that, the first batch.
guide_time [s] Time of the guide: Wall time of the script of the guide.
same_results [1, exact] The same results: 1 where one remote collector and one process, and two
    remote collectors and two workers, have trained the same weights, bit for bit, with as many
    frames and updates and the same return; else 0.
round_time [s] Time of a batch: Wall time of one batch.
frames_per_second [1] Frames per second: Frames of a batch, divided by its wall time.
vs_one [1] Frames per second against one process: Frames per second, divided by those of Collector
    in the same turn: above one, the row is faster.
same_frames [1, exact] The same frames as its twin: 1 where observations, actions and
    log-probabilities of all compared batches have the bits of the local collector with as many
    environments, although the weights were changed between the batches; else 0.
notice_time [s] Time until the loop knows: Wall time from the death to the exception in the loop, or
    to the next batch.
raises [1, exact] The next batch raises: 1 where the loop gets an exception after the death, else 0.
batches_after [1, exact] Batches after the death: Batches that the same collector yields after it,
    where three are asked for.
stale_share [1, exact] Share of old weights: Of the frames in the next batch, the share that the
    weights made which the policy had when the collector was built.
update_raises [1, exact] The next update raises: 1 where update_policy_weights_ raises after the
    death, else 0.
batches [1, exact] Batches: How many batches the loop gets.
wait_time [s] Time of the wait: Wall time until a new constructor has returned, or is given up.
returns [1, exact] A new constructor returns: 1 where one that asks for as many processors as before
    the death has returned or raised by then, else 0.
""")


def make_env(seed):
    torch.set_num_threads(measure.THREADS)
    torch.manual_seed(seed)
    env = GymEnv("CartPole-v1", categorical_action_encoding=True)
    env.set_seed(seed)
    return env


def make_policy():
    torch.manual_seed(0)
    net = MLP(in_features=4, out_features=2, num_cells=[64])
    return ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["logits"]),
        ["logits"],
        distribution_class=Categorical,
        return_log_prob=True,
    )


def make_collector(way, policy, factories=None, total_frames=MANY_FRAMES, **remote):
    """The collector of *way*; *remote* is what Ray gives each of its actors."""
    count = WAYS[way]
    factories = factories or [functools.partial(make_env, i) for i in range(count or 1)]
    common = {"frames_per_batch": FRAMES, "total_frames": total_frames}
    quiet = {"auto_register_policy_transforms": False}
    if way == "one":
        return Collector(factories[0], policy, **common, **quiet)
    common |= {"num_collectors": count, "sync": True}
    if way.startswith("workers"):
        return Collector(factories, policy, **common, **quiet)
    resources = {"num_cpus": 1, "num_gpus": 0, "memory": 200 * 1024**2, **remote}
    options = {"collector_kwargs": quiet, "remote_configs": resources}
    return Collector(factories, policy, backend="ray", backend_options=options, **common)


class Running:
    """A collector from its constructor to its first batch, with the seconds that took by metric."""

    def __init__(self, way):
        self.policy = make_policy()
        marks = [time.perf_counter()]
        self.collector = make_collector(way, self.policy)
        marks.append(time.perf_counter())
        self.collector.update_policy_weights_()
        marks.append(time.perf_counter())
        self.batches = iter(self.collector)
        first = next(self.batches)
        marks.append(time.perf_counter())
        self.spent = {"start_time": marks[-1] - marks[0]}
        self.spent |= {
            part: end - begin
            for part, (begin, end) in zip(PARTS, itertools.pairwise(marks), strict=True)
        }
        assert first.numel() == FRAMES
        self.first = first.clone()

    def following(self):
        """The first batch and those after some updates, as one mapping of flat tensors."""
        found = [self.first]
        for _ in range(UPDATES):
            with torch.no_grad():
                for weight in self.policy.parameters():
                    weight += STEP
            self.collector.update_policy_weights_()
            found.append(next(self.batches).clone())
        keys = ("observation", "action", "action_log_prob")
        return {key: torch.cat([batch[key].flatten() for batch in found]) for key in keys}


def start(ray):
    """Start a local Ray whose workers find this module."""
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(measure.THREADS)}
    ray.init(
        address="local",
        num_cpus=CPUS,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": environment},
    )


@pytest.fixture(scope="module")
def ray():
    """Ray, stopped at the end."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    ray = pytest.importorskip("ray")
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)
    yield ray
    ray.shutdown()
    multiprocessing.set_start_method(before, force=True)


def by_metric(starts):
    return {name: [spent[name] for spent in starts] for name in starts[0]}


@pytest.fixture(scope="module")
def running(ray):
    """All ways at once; what some starts of each took, by metric; and the seconds of Ray's own."""
    begin = time.perf_counter()
    start(ray)
    init, kept, spent = time.perf_counter() - begin, {}, {way: [] for way in WAYS}
    for last in [False] * (STARTS - 1) + [True]:
        for way in WAYS:
            started = Running(way)
            spent[way].append(started.spent)
            if last:
                kept[way] = started
            else:
                started.collector.shutdown()
    yield kept, {way: by_metric(starts) for way, starts in spent.items()}, init
    for started in kept.values():
        started.collector.shutdown()
    ray.shutdown()


def parameters(way, **more):
    return {"way": TITLES[way], "workers": WAYS[way], "frames": FRAMES, **more}


@pytest.mark.parametrize("way", WAYS)
def bench_start(benchmark, running, way):
    kept, spent, _ = running
    sampled = dict(spent[way])
    benchmark.state(sampled.pop("start_time"))
    exact = {}
    if way in TWINS:
        twin = Running(TWINS[way])
        ours, theirs = Running.following(kept[way]), twin.following()
        twin.collector.shutdown()
        exact["same_frames"] = int(all(torch.equal(ours[key], theirs[key]) for key in ours))
    measure.note(
        benchmark,
        f"start-{way}",
        "start_time",
        title=f"Start, {TITLES[way]}",
        parameters=parameters(way, start="spawn" if "workers" in way else "none"),
        exact=exact,
        sampled=sampled,
    )
    benchmark.extra_info["warmup_rounds"] = 0


def bench_init(benchmark, running):
    benchmark.state([running[-1]])
    measure.note(
        benchmark, "init", "init_time", title="Start of a local Ray", parameters={"cpus": CPUS}
    )
    benchmark.extra_info["warmup_rounds"] = 0


@pytest.fixture(scope="module")
def turns(running):
    """The seconds of a batch, for each way in turn."""
    kept, _, _ = running
    spent = {way: [] for way in WAYS}
    for _ in range(WARMUP_ROUNDS + ROUNDS):
        for way, started in kept.items():
            begin = time.perf_counter()
            assert next(started.batches).numel() == FRAMES
            spent[way].append(time.perf_counter() - begin)
    return {way: seconds[WARMUP_ROUNDS:] for way, seconds in spent.items()}


@pytest.mark.parametrize("way", WAYS)
def bench_throughput(benchmark, turns, way):
    benchmark.state(turns[way])
    rates = [FRAMES / seconds for seconds in turns[way]]
    ratios = [one / ours for one, ours in zip(turns["one"], turns[way], strict=True)]
    assert median(rates) > 0
    measure.note(
        benchmark,
        f"throughput-{way}",
        "round_time",
        title=f"Frames, {TITLES[way]}",
        parameters=parameters(way),
        sampled={"frames_per_second": rates, "vs_one": ratios},
    )
    benchmark.extra_info["warmup_rounds"] = WARMUP_ROUNDS


def versions_of_the_guide():
    """A digest of the code of the guide up to where it has compared its versions."""
    source = GUIDE.read_text("utf-8").partition("# Where it goes wrong")[0]
    statements = map(ast.unparse, ast.parse(source).body[1:])  # without the docstring
    return hashlib.sha256("\n".join(statements).encode()).hexdigest()[:12]


def bench_guide(benchmark, ray):
    ray.shutdown()
    begin = time.perf_counter()
    run = subprocess.run([sys.executable, GUIDE], capture_output=True, text=True, check=True)
    benchmark.state([time.perf_counter() - begin])
    said = set(run.stdout.splitlines())
    pairs = [("one process", "one"), ("two workers", "two")]
    lines = {f"{local} and {n} remote: the same results" for local, n in pairs}
    measure.note(
        benchmark,
        "guide",
        "guide_time",
        title="The versions of the guide",
        parameters={"versions": versions_of_the_guide()},
        exact={"same_results": int(lines <= said)},
    )
    benchmark.extra_info["warmup_rounds"] = 0


# -- What does not raise where one expects it, and deaths --------------------------------


@pytest.fixture
def restarted(ray):
    """A Ray of its own: what a death leaves behind goes with it."""
    ray.shutdown()
    start(ray)
    yield ray
    ray.shutdown()


class Pair:
    """Two workers whose frames tell which weights made them: 0 the first, 1 those of now."""

    def __init__(self, way, **remote):
        self.policy = local.make_policy(local.SIZES["20kb"], local.TENSORS)
        factories = [local.one_thread] * WAYS[way]
        self.collector = make_collector(way, self.policy, factories, **remote)
        with torch.no_grad():
            self.policy.module.marker.fill_(1.0)
        self.collector.update_policy_weights_()
        self.batches = iter(self.collector)
        assert next(self.batches)["action"].unique().tolist() == [1.0]

    def after(self, death):
        """What the loop sees after *death*, as the seconds until then and exact metrics."""
        begin = time.perf_counter()
        death()
        error, found = caught(lambda: next(self.batches))
        seconds = time.perf_counter() - begin
        seen = {"raises": int(error is not None), "batches_after": 0}
        if found is not None:
            seen["stale_share"] = (found["action"] == 0).float().mean().item()
            error, _ = caught(self.collector.update_policy_weights_)
            seen |= {"batches_after": 1, "update_raises": int(error is not None)}
        else:
            seen["batches_after"] = sum(1 for _, _ in zip(range(3), self.batches, strict=False))
        return seconds, seen


def caught(function):
    """The exception of *function* or None, and its result or None."""
    try:
        return None, function()
    except Exception as error:
        print(f"{type(error).__name__}: {str(error)[:200]}")
        return error, None


def note_death(benchmark, key, title, seconds, seen, way):
    benchmark.state([seconds])
    measure.note(
        benchmark,
        key,
        "notice_time",
        title=title,
        parameters=parameters(way),
        exact=seen,
    )
    benchmark.extra_info["warmup_rounds"] = 0


def bench_killed_worker(benchmark, ray):
    pair = Pair("workers-2")

    def kill():
        pair.collector.procs[1].kill()
        pair.collector.procs[1].join()

    seconds, seen = pair.after(kill)
    pair.collector.shutdown()
    note_death(benchmark, "killed-worker", "A worker is killed", seconds, seen, "workers-2")


@pytest.mark.parametrize("restarts", [0, -1])
def bench_killed_actor(benchmark, restarted, restarts):
    ways = {"max_restarts": restarts, "max_task_retries": restarts} if restarts else {}
    pair = Pair("ray-2", **ways)
    actor = pair.collector.remote_collectors[1]
    seconds, seen = pair.after(lambda: restarted.kill(actor, no_restart=not restarts))
    key, title = "killed-actor", "A remote collector is killed"
    if restarts:
        key, title = f"{key}-restarts", f"{title}, max_restarts=-1 and max_task_retries=-1"
    note_death(benchmark, key, title, seconds, seen, "ray-2")


def bench_update_of_killed_actor(benchmark, restarted):
    pair, errors = Pair("ray-2"), []
    restarted.kill(pair.collector.remote_collectors[1])

    def update():
        errors.append(caught(pair.collector.update_policy_weights_)[0])

    seconds, _ = within_limit(update)
    raises = int(bool(errors) and errors[0] is not None)
    title = "A remote collector is killed, and the weights are updated"
    seen = {"update_raises": raises}
    note_death(benchmark, "killed-actor-update", title, seconds, seen, "ray-2")


def bench_endless(benchmark, restarted):
    policy = local.make_policy(local.SIZES["20kb"], local.TENSORS)
    collector = make_collector("ray-1", policy, [local.one_thread], total_frames=-1)
    collector.update_policy_weights_()
    number = benchmark.pedantic(lambda: sum(1 for _ in collector), rounds=1)
    measure.note(
        benchmark,
        "endless",
        "round_time",
        title="total_frames=-1 on Ray",
        parameters=parameters("ray-1", total_frames=-1),
        exact={"batches": number},
    )
    benchmark.extra_info["warmup_rounds"] = 0


@contextlib.contextmanager
def two_nodes(ray):
    """A cluster of two nodes on this machine, with room for one remote collector each."""
    from ray.cluster_utils import Cluster

    ray.shutdown()
    head = {"num_cpus": 1, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(num_cpus=1)
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(measure.THREADS)}
    options = {"log_to_driver": False, "runtime_env": {"env_vars": environment}}
    ray.init(address=cluster.address, **options)
    try:
        yield cluster, second
    finally:
        ray.shutdown()
        cluster.shutdown()


def build_again():
    """The stop of Ray ends this wait with a SystemExit."""
    with contextlib.suppress(SystemExit):
        caught(lambda: Pair("ray-2"))


def within_limit(function):
    """Seconds of *function* in a thread, or until it is given up; whether it has ended."""
    begin = time.perf_counter()
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(LIMIT)
    return time.perf_counter() - begin, not thread.is_alive()


def bench_removed_node(benchmark, ray):
    with two_nodes(ray) as (cluster, second):
        pair = Pair("ray-2")
        seconds, seen = pair.after(lambda: cluster.remove_node(second))
        waited, returned = within_limit(build_again)
    note_death(benchmark, "removed-node", "A node is removed", seconds, seen, "ray-2")
    benchmark.extra_info["exact"]["returns"] = int(returned)
    benchmark.extra_info["sampled"]["wait_time"] = [waited]
