"""Knobs that have no suite of their own, each against its alternative in turn.

The advantage functions of TD(1) and TD(lambda) in their vectorized form against the loop; frames of
ParallelEnv in memory-mapped files against shared memory; an inference server in a process of its
own against one in a thread; networks of several agents with shared parameters against one for each.
The results of both ways are compared first. Agents with parameters of their own start from other
weights, so there the shapes are.
"""

import functools
import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.envs import GymWrapper, ParallelEnv
from torchrl.modules import MLP, MultiAgentMLP
from torchrl.modules.inference_server import InferenceServer, MPTransport, ProcessInferenceServer
from torchrl.objectives.value.functional import (
    td1_advantage_estimate,
    td_lambda_advantage_estimate,
    vec_td1_advantage_estimate,
    vec_td_lambda_advantage_estimate,
)

from benchmarks import metrics
from benchmarks.interleaved import note, paired

SEED = 0
GAMMA, LMBDA = 0.99, 0.95
BATCH = 16
STEPS = (128, 1024)
END = 0.02  # of the steps end a trajectory
WORKERS = 2
ENV_STEPS = 32  # in a round
FRAMES = {"vector": (4,), "pixels": (4, 84, 84)}
CLIENTS, REQUESTS = 4, 96
HIDDEN = {"small": 64, "large": 2048}
AGENTS, ROWS = 8, 256
TOLERANCE = 1e-3

METRICS = metrics.declare("""
time [s] Time of a call: Wall time of a call, or of a round of steps or requests.
time_vs_alternative [1] Time against the alternative: Time of a round, divided by that of the
    alternative right before it. Below one, the knob is faster.
error [1, exact] Largest difference: Largest absolute difference of a result to that of the
    alternative.
parameters_vs_alternative [1, exact] Parameters against the alternative: Number of parameters,
    divided by that of the alternative.
""")


def compare(benchmark, device, key, title, ours, alternative, parameters, exact=()):
    """Time *ours* and *alternative* in turn; both return a tensor, of the same shape."""
    found, expected = ours(), alternative()
    assert found.shape == expected.shape, key
    ratios = paired(benchmark, device, ours, alternative)
    exact = dict(exact)
    if "parameters_vs_alternative" not in exact:
        exact["error"] = (found - expected).abs().max().item()
        assert exact["error"] < TOLERANCE, (key, exact["error"])
    note(
        benchmark,
        key,
        "time",
        title=title,
        parameters=parameters,
        exact=exact,
        sampled={"time_vs_alternative": ratios},
    )


# -- Advantages ------------------------------------------------------------------

ADVANTAGES = {
    "td1": ("TD(1)", (), td1_advantage_estimate, vec_td1_advantage_estimate),
    "tdlambda": (
        "TD(lambda)",
        (LMBDA,),
        td_lambda_advantage_estimate,
        vec_td_lambda_advantage_estimate,
    ),
}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", ADVANTAGES)
def bench_advantage(benchmark, device, name, steps):
    title, options, loop, vectorized = ADVANTAGES[name]
    generator = torch.Generator().manual_seed(SEED)
    shape = (BATCH, steps, 1)
    signals = [torch.randn(shape, generator=generator).to(device) for _ in range(3)]
    done = (torch.rand(shape, generator=generator) < END).to(device)
    calls = [
        functools.partial(function, GAMMA, *options, *signals, done, done)
        for function in (vectorized, loop)
    ]
    parameters = {"function": title, "batch": BATCH, "steps": steps}
    compare(
        benchmark, device, f"advantage-{name}-t{steps}", f"vectorized {title}", *calls, parameters
    )


# -- Frames of ParallelEnv -------------------------------------------------------


class Counting(gymnasium.Env):
    """Its observation has the number of the step in every place."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, shape):
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)

    def observation(self):
        return np.full(self.observation_space.shape, self.steps % 256, np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation(), {}

    def step(self, action):
        self.steps += 1
        return self.observation(), 0.0, False, False, {}


def make_env(shape):
    return GymWrapper(Counting(shape))


@pytest.mark.parametrize("frames", FRAMES)
def bench_memmap(benchmark, device, frames):
    if device.type == "cuda":
        pytest.skip("frames of worker processes are on the CPU")
    make = functools.partial(make_env, FRAMES[frames])
    envs = [
        ParallelEnv(WORKERS, make, mp_start_method="spawn", **options)
        for options in ({"shared_memory": False, "memmap": True}, {})
    ]

    def run(env):
        return env.rollout(ENV_STEPS, break_when_any_done=False)["next", "observation"].float()

    try:
        calls = [functools.partial(run, env) for env in envs]
        parameters = {"frame": " x ".join(map(str, FRAMES[frames])), "workers": WORKERS}
        compare(benchmark, device, f"memmap-{frames}", f"memmap=True, {frames}", *calls, parameters)
    finally:
        for env in envs:
            env.close()


# -- A server in a process -------------------------------------------------------


def make_policy(size):
    torch.manual_seed(SEED)
    network = MLP(in_features=4, out_features=2, num_cells=[HIDDEN[size]] * 2)
    return TensorDictModule(network, ["observation"], ["action"])


@pytest.mark.parametrize("size", HIDDEN)
def bench_process_server(benchmark, device, size):
    if device.type == "cuda":
        pytest.skip("its policy is on the CPU")
    generator = torch.Generator().manual_seed(SEED)
    rows = torch.randn(CLIENTS, REQUESTS // CLIENTS, 4, generator=generator)
    context = multiprocessing.get_context("spawn")
    make = functools.partial(make_policy, size)
    server = ProcessInferenceServer(
        policy_factory=make, transport=MPTransport(ctx=context), mp_context=context
    )
    remote = server.clients(CLIENTS)  # before the process starts
    server.start()
    try:
        with (
            ThreadPoolExecutor(CLIENTS) as threads,
            InferenceServer(make(), transport="auto") as local,
        ):

            def ask(client, mine):
                with torch.no_grad():
                    found = [client(TensorDict({"observation": row}))["action"] for row in mine]
                return torch.stack(found)

            def served(clients):
                return torch.stack(list(threads.map(ask, clients, rows)))

            calls = [functools.partial(served, found) for found in (remote, local.clients(CLIENTS))]
            parameters = {"hidden": HIDDEN[size], "clients": CLIENTS, "requests": REQUESTS}
            compare(
                benchmark,
                device,
                f"process-server-{size}",
                f"ProcessInferenceServer, {size} policy",
                *calls,
                parameters,
            )
    finally:
        server.shutdown()


# -- Agents that share parameters ------------------------------------------------


def bench_share_params(benchmark, device):
    observations = torch.randn(ROWS, AGENTS, 4, generator=torch.Generator().manual_seed(SEED))
    observations = observations.to(device)
    networks = [
        MultiAgentMLP(
            n_agent_inputs=4,
            n_agent_outputs=2,
            n_agents=AGENTS,
            centralized=False,
            share_params=shared,
            num_cells=[64, 64],
            device=device,
        )
        for shared in (True, False)
    ]

    def step(network):
        for parameter in network.parameters():
            parameter.grad = None
        output = network(observations)
        output.square().mean().backward()
        return output.detach()

    counts = [sum(p.numel() for p in network.parameters()) for network in networks]
    calls = [functools.partial(step, network) for network in networks]
    compare(
        benchmark,
        device,
        "share-params",
        "MultiAgentMLP, share_params=True",
        *calls,
        {"agents": AGENTS, "rows": ROWS, "hidden": 64},
        {"parameters_vs_alternative": counts[0] / counts[1]},
    )
