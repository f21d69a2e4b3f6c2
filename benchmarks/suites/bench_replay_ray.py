"""A replay buffer in a process of Ray against one in the own process: writing and sampling.

One machine plays the cluster. Each call goes to both buffers in turn, with the same rows. Samples
are random rows; those of the remote buffer arrive as a copy in the own process.
"""

import functools
import os

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, RayReplayBuffer, ReplayBuffer

from benchmarks import interleaved, metrics
from benchmarks.suites import bench_scaling_ray as rays

CAPACITY = 4096
ROWS = 256  # of a call
ROUNDS = 30
WARMUP_ROUNDS = 5
SHAPES = {"cartpole": ((4,), torch.float32), "pixels": ((4, 84, 84), torch.uint8)}
WAYS = ("local", "ray")
CALLS = ("extend", "sample")

METRICS = metrics.declare("""
call_time [s] Time of a call: Wall time of one call with 256 rows.
vs_local [1] Time against a buffer in the own process: Time of a call, divided by that of the buffer
    in the own process in the same turn.
""")


def make_rows(content):
    shape, dtype = SHAPES[content]
    kind = {"observation": torch.randint(0, 255, (ROWS, *shape)).to(dtype)}
    kind |= {"action": torch.zeros(ROWS, dtype=torch.int64)}
    kind |= {"reward": torch.zeros(ROWS, 1), "done": torch.zeros(ROWS, 1, dtype=torch.bool)}
    return TensorDict(kind, [ROWS])


@pytest.fixture(scope="module")
def ray():
    """Ray with room for one buffer, stopped at the end."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    ray = pytest.importorskip("ray")
    rays.start(ray)
    yield ray
    ray.shutdown()


@functools.cache
def timed(content, device):
    """The seconds of each call by way, and the bytes of its rows."""
    torch.manual_seed(0)
    rows = make_rows(content)
    storage = functools.partial(LazyTensorStorage, CAPACITY)
    buffers = {
        "local": ReplayBuffer(storage=storage(), batch_size=ROWS),
        "ray": RayReplayBuffer(storage=storage, batch_size=ROWS, remote_config={"num_cpus": 1}),
    }
    spent = {}
    for call in CALLS:
        ways = {
            way: functools.partial(buffer.extend, rows) if call == "extend" else buffer.sample
            for way, buffer in buffers.items()
        }
        spent[call] = interleaved.rounds(device, ways, ROUNDS, WARMUP_ROUNDS)
    for buffer in buffers.values():
        drawn = buffer.sample()
        assert drawn["observation"].shape == rows["observation"].shape
        assert len(buffer) == min(CAPACITY, ROWS * (ROUNDS + WARMUP_ROUNDS))
    buffers["ray"].close()
    return spent, rows.bytes()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("content", SHAPES)
def bench_call(benchmark, ray, device, content, call, way):
    spent, size = timed(content, device)
    ours, local = spent[call][way], spent[call]["local"]
    compared = {"vs_local": [a / b for a, b in zip(ours, local, strict=True)]}
    where = {"local": "own process", "ray": "a process of Ray"}[way]
    interleaved.report(
        benchmark,
        ours,
        WARMUP_ROUNDS,
        f"{content}-{call}-{way}",
        "call_time",
        title=f"{call}, {content}, {where}",
        parameters={"content": content, "call": call, "buffer": where, "rows": ROWS, "bytes": size},
        sampled=compared if way == "ray" else None,
    )
