"""The suites weight_sync*, run small, and what the page says of them and of TorchRL's inside."""

import inspect
import threading
from datetime import timedelta
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torchrl.collectors import MultiSyncCollector
from torchrl.modules.inference_server import InferenceServer
from torchrl.weight_update import (
    MultiProcessWeightSyncScheme,
    SharedMemWeightSyncScheme,
    _ray,
    llm,
)

from benchmarks import interleaved
from benchmarks.suites import bench_weight_sync as suite
from benchmarks.suites import bench_weight_sync_ray as on_ray
from benchmarks.suites import bench_weight_sync_server as server_suite
from benchmarks.timing import Benchmark
from tests.support.claims import guards
from tests.support.evidence_module import load_evidence
from tests.support.suites import CPU, noted, recorded


@pytest.fixture
def small():
    with (
        mock.patch.multiple(suite, ROUNDS=2, WARMUP_ROUNDS=1),
        mock.patch.multiple(on_ray, ROUNDS=2, WARMUP_ROUNDS=1, FRAMES=8),
        mock.patch.multiple(interleaved, LEAST_ROUNDS=2, MOST_ROUNDS=2),
    ):
        yield


# -- weight_sync -----------------------------------------------------------------

SMALL = suite.Case("shared", "sync", 1, "20kb", "elsewhere", tensors=2)


@pytest.mark.parametrize(
    ("case", "by_itself"),
    [
        (SMALL, 1),
        (SMALL._replace(scheme="pipe", origin="inplace"), 1),
        (SMALL._replace(topology="async"), 1),
        (suite.Case("none", "copy", 0, "20kb", "inplace"), 0),
    ],
    ids=lambda value: getattr(value, "key", None),
)
def test_entry_of_an_update(small, case, by_itself):
    found = noted(suite.bench_update, CPU, case)
    assert found["key"] == case.key
    assert found["exact"]["arrives_without_call"] == by_itself
    numbers = suite.SIZES["20kb"] // 4 // case.tensors * case.tensors + 1
    assert found["exact"]["model_bytes"] == 4 * numbers
    assert ("time_vs_copy" in found["sampled"]) is (case.topology != "async")


def test_weights_that_do_not_arrive_fail_the_suite(small):
    with (
        mock.patch.object(SharedMemWeightSyncScheme, "send", return_value=None),
        pytest.raises(AssertionError, match=r"the weights are 10\.0, the batches are of"),
    ):
        suite.bench_update(Benchmark(), CPU, SMALL)


# -- weight_sync_server ------------------------------------------------------------


@pytest.fixture
def few_requests():
    with (
        mock.patch.object(server_suite, "REQUESTS", 8),
        mock.patch.object(server_suite, "SECONDS", 0),
        mock.patch.dict(server_suite.HIDDEN, {"small": 8}),
    ):
        yield


@pytest.mark.parametrize("knobs", ["defaults", "direct", "no-stats", "starved-1ms", "max-batch-1"])
def test_entry_of_a_server(small, few_requests, knobs):
    case = server_suite.Case("small", 4, knobs)
    found = noted(server_suite.bench_requests, CPU, case)
    assert found["key"] == case.key
    assert ("mean_batch" in found["sampled"]) is (knobs != "no-stats")
    if knobs == "max-batch-1":
        assert found["sampled"]["mean_batch"] == [1.0]


def test_wrong_answer_fails_the_suite(small, few_requests):
    case = server_suite.Case("small", 2)

    def mixed_up(client, requests):
        return [client(request.clone())["action"] + 1 for request in requests]

    with (
        mock.patch.object(server_suite, "answers", mixed_up),
        pytest.raises(AssertionError, match="an answer is off by"),
    ):
        server_suite.bench_requests(Benchmark(), CPU, case)


# -- weight_sync_ray ---------------------------------------------------------------


def test_entry_of_ray_with_local_workers_in_its_place(small):
    """What the suite does with a collector, without a Ray."""

    def local_collector(policy):
        with suite.quick_start():
            return MultiSyncCollector(
                [suite.one_thread] * on_ray.WORKERS,
                policy,
                frames_per_batch=on_ray.FRAMES,
                total_frames=-1,
                auto_register_policy_transforms=False,
            )

    with mock.patch.object(on_ray, "make_collector", local_collector):
        found = noted(on_ray.bench_ray, CPU, None, on_ray.SIZES[0])
    assert found["key"] == "update-w2-20kb"
    assert {"batch_time", "time_vs_multisync", "first_update_time"} <= set(found["sampled"])


def test_entry_of_the_start():
    calls = []
    ray = SimpleNamespace(
        init=lambda **options: calls.append(options),
        cluster_resources=lambda: {"CPU": on_ray.WORKERS},
    )
    assert noted(on_ray.bench_start, ray)["key"] == "start"
    assert calls[0]["num_cpus"] == on_ray.WORKERS


# -- Inside ------------------------------------------------------------------------


def weights_of(policy):
    return suite.TensorDict.from_module(policy)


@guards("scheme-copies-per-worker", "dedup-compares-later-copies")
def test_shared_memory_is_written_once_for_each_worker():
    policy = suite.make_policy(4000, 2)
    scheme = SharedMemWeightSyncScheme()
    scheme.init_on_sender(weights=weights_of(policy), devices=[CPU] * 3)
    try:
        buffers = scheme.shared_transport.unique_weights
        assert len(buffers) == 3
        key = next(iter(buffers[0].keys(include_nested=True, leaves_only=True)))
        assert len({buffer[key].data_ptr() for buffer in buffers}) == 1
        # What the comparison is meant to find: the workers of one device are given one object.
        given = scheme.shared_transport._params_map
        assert len({id(weights) for weights in given.values()}) == 1
        assert not {id(weights) for weights in given.values()} & {id(b) for b in buffers}
    finally:
        scheme.shutdown()


@guards("queue-scheme-promise", "queue-shares-tensors")
def test_pipe_scheme_shares():
    said = " ".join(inspect.getdoc(MultiProcessWeightSyncScheme).split())
    assert "this scheme sends actual weight copies through queues to workers" in said
    tensor = torch.zeros(3)
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    queue.put(tensor)
    assert tensor.is_shared()
    source, target = suite.make_policy(4000, 2), suite.make_policy(4000, 2)
    strategy = MultiProcessWeightSyncScheme()._strategy
    strategy.apply_weights(target, weights_of(source).data, inplace=False)
    assert target.module.marker.data_ptr() == source.module.marker.data_ptr()


@guards("no-worker-on-other-device-learns")
def test_no_worker_learns_where_all_act_on_another_device():
    plays, policy = load_evidence("weight_sync/ownership").plays, suite.make_policy(4000, 2)
    with suite.quick_start():
        collector = MultiSyncCollector(
            [suite.one_thread] * 2,
            policy,
            frames_per_batch=8,
            total_frames=-1,
            policy_device="cpu:0",
            env_device="cpu",
            storing_device="cpu",
            auto_register_policy_transforms=False,
        )
    batches = iter(collector)
    played = [plays(policy, next(batches), "action")]
    with torch.no_grad():
        policy.module.marker.add_(1)
    played.append(plays(policy, next(batches), "action"))
    collector.update_policy_weights_()
    played.append(plays(policy, next(batches), "action"))
    collector.shutdown()
    assert played == [True, False, False]


@guards("update-advances-version", "server-thread-same-module")
def test_a_call_advances_the_version():
    policy = suite.make_policy(4000, 2)
    collector = suite.Collector(
        suite.Nothing(),
        policy,
        frames_per_batch=2,
        total_frames=-1,
        track_policy_version=True,
        auto_register_policy_transforms=False,
    )
    before = collector.policy_version
    collector.update_policy_weights_()
    assert collector.policy_version == before + 1
    collector.shutdown()


def ask(server, clients, requests=3):
    """Let each client ask some times, all at once."""
    found = []

    def client_of(client):
        for _ in range(requests):
            request = suite.TensorDict({"observation": torch.zeros(1)})
            found.append(client(request)["action"].item())

    threads = [threading.Thread(target=client_of, args=(one,)) for one in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == requests * len(clients)
    return server.stats()


@guards(
    "min-batch-meaning",
    "timeout-meaning",
    "max-batch-meaning",
    "transport-meaning",
    "direct-transport-slots",
    "server-thread-same-module",
    "server-stats-batch-size",
    "knob-inference-server-default",
)
def test_knobs_of_the_server():
    policy = suite.make_policy(40, 2)
    # So long that only the number of requests can end the wait.
    with InferenceServer(policy, min_batch_size=4, timeout=20.0) as server:
        assert server.service_backend == "thread"
        assert server.model is policy
        stats = ask(server, server.clients(4))
        assert stats["avg_batch_size"] == 4
        assert {"p50_queue_ms", "p95_queue_ms"} <= set(stats)
    with InferenceServer(policy, max_batch_size=1) as server:
        assert ask(server, server.clients(4))["avg_batch_size"] == 1
    # Two are never asked for: what ends the wait is the timeout.
    with InferenceServer(policy, min_batch_size=2, timeout=0.001) as server:
        assert ask(server, server.clients(1))["avg_batch_size"] == 1
    with InferenceServer(policy, transport="direct", num_clients=2) as server:
        server.clients(2)
        with pytest.raises(RuntimeError, match="SlotTransport has 2 slots"):
            server.client()


@guards("static-batch-needs-gpu")
def test_static_batch_needs_a_gpu():
    with pytest.raises(ValueError, match="static_batch_size requires an explicit CUDA"):
        InferenceServer(
            suite.make_policy(40, 2), policy_device="cpu", max_batch_size=4, static_batch_size=4
        )


# -- What the page says of the records ---------------------------------------------


def update_time(key, point="median"):
    return recorded("weight_sync", key, "update_time", point)


@guards("queue-scheme-rarely", "shared-memory-scheme-faster")
def test_shared_memory_is_faster():
    for size in suite.SIZES:
        for origin in ("inplace", "elsewhere"):
            shared, pipe = (
                update_time(f"{scheme}-sync-w2-{size}-{origin}") for scheme in ("shared", "pipe")
            )
            assert shared < pipe, f"{size}, {origin}: {shared}, {pipe}"


@guards("already-shared-costs", "own-device-copy-fastest")
def test_the_round_trip():
    for scheme in suite.SCHEMES:
        assert recorded("weight_sync", f"{scheme}-sync-w2-20kb-inplace", "time_vs_copy") > 10
    for size in suite.SIZES:
        alone = update_time(f"none-copy-{size}-inplace")
        for scheme in suite.SCHEMES:
            assert alone < update_time(f"{scheme}-sync-w2-{size}-elsewhere")


@guards(
    "many-tensors-longer", "each-worker-adds", "four-workers-longer", "collecting-worker-longer"
)
def test_tensors_and_workers():
    for scheme in suite.SCHEMES:
        many = update_time(f"{scheme}-sync-w2-4mb-elsewhere-t{suite.MANY_TENSORS}")
        assert many > update_time(f"{scheme}-sync-w2-16mb-elsewhere")
        one, two, four = (update_time(f"{scheme}-sync-w{n}-4mb-elsewhere") for n in (1, 2, 4))
        assert one < two < four
        assert one < update_time(f"{scheme}-async-w1-4mb-elsewhere")


@guards("remote-needs-call", "remote-first-call-long", "remote-later-longer")
def test_ray():
    for size in on_ray.SIZES:
        key = f"update-w{on_ray.WORKERS}-{size}"
        later = recorded("weight_sync_ray", key, "update_time")
        assert recorded("weight_sync_ray", key, "arrives_without_call") == 0
        assert recorded("weight_sync_ray", key, "first_update_time") > 100 * later
        assert later > update_time(f"shared-sync-w{on_ray.WORKERS}-{size}-elsewhere")


@guards("ray-connects-within-a-minute")
def test_the_first_update_on_ray_waits_a_minute():
    assert timedelta(minutes=1) == _ray._DIST_TIMEOUT


def against_direct(key, point="median"):
    return recorded("weight_sync_server", key, "time_vs_direct", point)


@guards("server-against-direct", "transports-no-winner")
def test_transports_are_no_clear_winner():
    low, high = (
        max(against_direct(f"large-c16-{knobs}", "q1") for knobs in ("direct", "defaults")),
        min(against_direct(f"large-c16-{knobs}", "q3") for knobs in ("direct", "defaults")),
    )
    assert low < high, "the quartiles do not overlap"


@guards(
    "one-client-server-loses",
    "one-client-no-gain",
    "many-clients-gain",
    "four-clients-lose",
    "small-policy-unclear",
    "server-batch-bounds",
    "min-batch-timeout",
    "server-batch-never-fills",
)
def test_where_the_server_pays_off():
    assert min(against_direct(f"{size}-c1-defaults") for size in server_suite.HIDDEN) > 1
    assert (
        against_direct("large-c16-defaults", "q3") < 1 < against_direct("large-c4-defaults", "q1")
    )
    assert (
        against_direct("small-c16-defaults", "q1") < 1 < against_direct("small-c16-defaults", "q3")
    )
    assert against_direct("large-c16-defaults", "q3") < against_direct(
        "large-c16-max-batch-1", "q1"
    )
    assert against_direct("large-c16-min-batch", "q3") < against_direct("large-c16-defaults", "q1")
    starved = [f"small-c4-starved-{wait}" for wait in ("1ms", "10ms")]
    assert against_direct("small-c4-defaults") < against_direct(starved[0])
    assert against_direct(starved[0]) < against_direct(starved[1])
    batches = server_suite.STARVED_REQUESTS / 4
    for key, wait in zip(starved, (0.001, 0.01), strict=True):
        assert recorded("weight_sync_server", key, "batch_time") > batches * wait


# -- vLLM and SGLang ----------------------------------------------------------------


@guards("llm-weight-schemes")
def test_schemes_for_engines_of_language_models():
    """What the page shows and nobody runs here, against the installed signatures."""

    def arguments(function):
        return inspect.signature(function).parameters

    assert {"gpus_per_replica", "num_replicas"} <= set(arguments(llm.VLLMWeightSyncScheme))
    assert "remote_addr" in arguments(llm.VLLMDoubleBufferSyncScheme)
    assert "server_url" in arguments(llm.SGLangWeightSyncScheme)
    sender = llm.VLLMWeightSyncScheme(gpus_per_replica=1, num_replicas=1).create_sender()
    assert isinstance(sender, llm.VLLMWeightSender)
    model = torch.nn.Linear(2, 1)
    sender.register_model(model)
    assert set(llm.get_model_metadata(model)) == {"weight", "bias"}
    assert {"model_metadata", "vllm_engine"} <= set(arguments(sender.init_all_workers_group))
    assert arguments(sender.update_weights)["weights"].default is None
