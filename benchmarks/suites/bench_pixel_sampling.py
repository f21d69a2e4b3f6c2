"""Time of a sample of stacked Atari frames, by the way of storing them.

The buffers, and the rows in them, are those of the suite pixel_replay: frames of random play of
Pong. A sample has 32 transitions of stacks of four frames. The ways are timed in turn, in one
process.
"""

import functools

import pytest
import torch

from benchmarks import interleaved, measure, metrics
from benchmarks.suites import bench_pixel_replay as replay

GAME, ROWS = "Pong", 5_000
ROUNDS, WARMUP_ROUNDS = 60, 5
# A compressed list compresses the first level of a row alone, and gives no stacks.
WAYS = {way: title for way, title in replay.WAYS.items() if way != "frame-list"}

METRICS = metrics.declare(f"""
sample_time [s] Time of a sample: Wall time of a sample of {replay.BATCH} transitions of stacks.
time_vs_stacks [1] Time against two stored stacks: Time of a sample, divided by that of a
    LazyTensorStorage with both stacks in each row, in the same turn.
""")


@functools.cache
def timed(device):
    """The seconds of each way's samples, in turn."""
    torch.set_num_threads(measure.THREADS)
    name, marks = replay.play(GAME, ROWS)
    frames = replay.read_frames(name, ROWS)
    buffers = {way: replay.make_buffer(way, ROWS) for way in WAYS}
    for way, buffer in buffers.items():
        replay.fill(buffer, way, frames, marks, ROWS)
        replay.assert_true(buffer, frames, marks)
    samples = {way: buffer.sample for way, buffer in buffers.items()}
    spent = interleaved.rounds(device, samples, ROUNDS, WARMUP_ROUNDS)
    for buffer in buffers.values():
        buffer.close()
    return spent


@pytest.mark.parametrize("way", WAYS)
def bench_sample(benchmark, device, way):
    if device.type == "cuda":
        pytest.skip("the buffers are on the CPU")
    spent = timed(device)
    ratios = [ours / base for ours, base in zip(spent[way], spent["stacks"], strict=True)]
    interleaved.report(
        benchmark,
        spent[way],
        WARMUP_ROUNDS,
        f"sample-{way}",
        "sample_time",
        **replay.entry(way, game=GAME, rows=ROWS),
        sampled={"time_vs_stacks": ratios},
    )
