"""An inference server against calling the policy directly, by clients, size and batching knobs.

Threads ask an InferenceServer for actions, each with one request at a time and nothing to do in
between. The same requests go to the policy in a plain loop of the main thread, one call for each,
right before: *time against direct calls* is the ratio, and above one the server loses. Every answer
is compared with what the policy says to the same observation. The environment's own time, which a
server can hide, is not in it.
"""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.modules import MLP
from torchrl.modules.inference_server import InferenceServer

from benchmarks import measure, metrics
from benchmarks.interleaved import note, paired

OBSERVATIONS, ACTIONS = 4, 2
REQUESTS = 96  # in one round, of all clients together
STARVED_REQUESTS = 8
HIDDEN = {"small": 64, "large": 2048}  # two hidden layers each
CLIENTS = (1, 4, 16)
SECONDS = 1.2
TOLERANCE = 1e-5
SEED = 0

METRICS = metrics.declare("""
batch_time [s] Time of all requests: Wall time until every client has all its answers.
time_vs_direct [1] Time against direct calls: Time of all requests divided by that of one direct
    call of the policy for each of them, in one thread.
mean_batch [1] Requests in a batch: Mean number of requests in a forward pass of the server, by its
    stats().
max_error [1, exact] Greatest difference: Greatest absolute difference of an answer from that of the
    policy.
""")


class Case(NamedTuple):
    """One configuration."""

    size: str
    clients: int
    knobs: str = "defaults"

    @property
    def key(self):
        return f"{self.size}-c{self.clients}-{self.knobs}"


def options_of(case):
    """The arguments of the server."""
    return {
        "defaults": {},
        "min-batch": {"min_batch_size": case.clients},
        "max-batch-1": {"max_batch_size": 1},
        "direct": {"transport": "direct", "num_clients": case.clients},
        "no-stats": {"collect_stats": False},
        "starved-10ms": {"min_batch_size": 2 * case.clients, "timeout": 0.01},
        "starved-1ms": {"min_batch_size": 2 * case.clients, "timeout": 0.001},
    }[case.knobs]


def cases():
    found = [Case(size, clients) for size in HIDDEN for clients in CLIENTS]
    for knobs in ("min-batch", "max-batch-1", "direct", "no-stats"):
        found += [Case(size, 16, knobs) for size in HIDDEN]
    return found + [Case("small", 4, knobs) for knobs in ("starved-10ms", "starved-1ms")]


def make_policy(size, device):
    torch.manual_seed(SEED)
    network = MLP(
        in_features=OBSERVATIONS, out_features=ACTIONS, num_cells=[HIDDEN[size]] * 2, device=device
    )
    return TensorDictModule(network, ["observation"], ["action"])


def requests_of(case):
    """The requests of each client."""
    total = STARVED_REQUESTS if case.knobs.startswith("starved") else REQUESTS
    generator = torch.Generator().manual_seed(SEED)
    return [
        [
            TensorDict({"observation": torch.randn(OBSERVATIONS, generator=generator)})
            for _ in range(total // case.clients)
        ]
        for _ in range(case.clients)
    ]


def answers(client, requests):
    """What one client gets, one request after the other."""
    return [client(request.clone())["action"] for request in requests]


@contextlib.contextmanager
def serving(case, policy, device):
    """A server of *case* and its clients."""
    options = {"transport": "auto", **options_of(case)}
    if device.type == "cuda":
        options |= {"policy_device": device, "output_device": "cpu"}
    with InferenceServer(policy, **options) as server:
        yield server, server.clients(case.clients)


def largest_error(policy, requests, found, device):
    error = 0.0
    for mine, theirs in zip(requests, found, strict=True):
        for request, answer in zip(mine, theirs, strict=True):
            expected = policy(request.clone().to(device))["action"].cpu()
            error = max(error, (expected - answer).abs().max().item())
    return error


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.key)
def bench_requests(benchmark, device, case):
    policy = make_policy(case.size, device)
    requests = requests_of(case)

    def client_of(client, mine):
        with torch.no_grad():
            return answers(client, mine)

    def direct():
        with torch.no_grad():
            for mine in requests:
                for request in mine:
                    policy(request.clone().to(device))["action"].cpu()

    with (
        ThreadPoolExecutor(case.clients) as threads,
        serving(case, policy, device) as (server, clients),
    ):

        def served():
            return list(threads.map(client_of, clients, requests))

        with torch.no_grad():
            error = largest_error(policy, requests, served(), device)
        assert error < TOLERANCE, f"{case.key}: an answer is off by {error}"
        server.stats(reset=True)
        ratios = paired(benchmark, device, served, direct, SECONDS)
        stats = server.stats()
        with torch.no_grad():
            error = max(error, largest_error(policy, requests, served(), device))
        assert error < TOLERANCE, f"{case.key}: an answer is off by {error}"
    counted = {} if case.knobs == "no-stats" else {"mean_batch": [stats["avg_batch_size"]]}
    note(
        benchmark,
        case.key,
        "batch_time",
        title=f"{case.size} policy, {case.clients} clients, {case.knobs}",
        parameters={
            "size": case.size,
            "clients": case.clients,
            "knobs": case.knobs,
            "hidden": HIDDEN[case.size],
            "requests": sum(map(len, requests)),
            "threads": measure.THREADS,
        },
        exact={"max_error": error},
        sampled={"time_vs_direct": ratios, **counted},
    )
