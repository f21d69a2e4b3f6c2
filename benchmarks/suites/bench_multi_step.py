"""What MultiStepTransform costs when a replay buffer is extended, by the number of its steps.

Each batch is one line of episodes as a collector delivers it, of small rows. Every way writes the
same batch into a full buffer, in turn; the ratio is to a buffer without a transform.
"""

import functools

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import MultiStepTransform

from benchmarks import interleaved, measure, metrics

BATCH, CAPACITY, EPISODE = 200, 10_000, 25  # rows
STEPS = (1, 3, 10)
ROUNDS, WARMUP_ROUNDS = 60, 5
GAMMA = 0.99

METRICS = metrics.declare(f"""
extend_time [s] Time of an extend: Wall time of an extend of {BATCH} rows of a full buffer.
time_vs_plain [1] Time against no transform: Time of an extend, divided by that of a buffer without
    a transform in the same turn.
""")


def make_batch():
    """Rows in which an episode ends every so often, by turns in a terminal state and cut off."""
    ends = (torch.arange(1, BATCH + 1) % EPISODE == 0).unsqueeze(-1)
    cut = (torch.arange(BATCH) // EPISODE % 2 == 1).unsqueeze(-1)
    no = torch.zeros(BATCH, 1, dtype=torch.bool)
    observed = torch.randn(BATCH + 1, 4)
    following = {"observation": observed[1:], "reward": torch.ones(BATCH, 1), "done": ends}
    following |= {"terminated": ends & ~cut, "truncated": ends & cut}
    rows = {"observation": observed[:-1], "action": torch.zeros(BATCH, dtype=torch.long)}
    rows |= {"done": no, "terminated": no.clone(), "truncated": no.clone()}
    return TensorDict({**rows, "next": TensorDict(following, [BATCH])}, [BATCH])


def make_buffer(steps):
    """A full buffer; with a transform, unless *steps* is None."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(CAPACITY), batch_size=64)
    if steps is not None:
        buffer.append_transform(
            MultiStepTransform(n_steps=steps, gamma=GAMMA, done_keys=["done", "truncated"])
        )
    for _ in range(CAPACITY // BATCH + 1):
        buffer.extend(make_batch())
    assert len(buffer) == CAPACITY
    return buffer


def assert_right(steps):
    """The sum of discounted rewards of a row that no end is near."""
    row = make_buffer(steps).storage.get(0)
    wanted = sum(GAMMA**k for k in range(steps or 1))
    assert row["next", "reward"].item() == pytest.approx(wanted)


@functools.cache
def timed():
    batch = make_batch()
    buffers = {steps: make_buffer(steps) for steps in (None, *STEPS)}
    ways = {steps: functools.partial(buffer.extend, batch) for steps, buffer in buffers.items()}
    return interleaved.rounds(torch.device("cpu"), ways, ROUNDS, WARMUP_ROUNDS)


@pytest.mark.parametrize("steps", [None, *STEPS])
def bench_extend(benchmark, device, steps):
    if device.type == "cuda":
        pytest.skip("a buffer on the CPU is measured")
    assert_right(steps)
    torch.set_num_threads(measure.THREADS)
    spent = timed()
    ratios = [ours / plain for ours, plain in zip(spent[steps], spent[None], strict=True)]
    name = "no transform" if steps is None else f"MultiStepTransform, {steps} steps"
    interleaved.report(
        benchmark,
        spent[steps],
        WARMUP_ROUNDS,
        "extend-plain" if steps is None else f"extend-n{steps}",
        "extend_time",
        title=name,
        parameters={"transform": name, "steps": steps or 0, "rows": BATCH},
        sampled={} if steps is None else {"time_vs_plain": ratios},
    )
