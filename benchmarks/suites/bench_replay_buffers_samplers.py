"""Samplers, writers and prefetch of a replay buffer.

Every sampler draws the same number of rows from a LazyTensorStorage with the same small transitions
of episodes of one length. Each round comes right after a round of RandomSampler on a buffer of its
own. Keys with ``writing`` extend the buffer before each sample, as a training loop does, and so
does the RandomSampler that they are compared with. A writer is compared with the one that buffers
have by default; prefetch is compared with a buffer without, for consumers that wait, compute or do
nothing between two samples.
"""

import functools
import time

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import (
    LazyTensorStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBuffer,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)

from benchmarks import measure, metrics
from benchmarks.interleaved import note, paired

ROWS = (10_000, 100_000, 1_000_000)
EPISODE = 50
SLICE = 16
BATCH = 256
WRITTEN = 250  # rows of one extend; no episode is cut in two
STATE = (8,)
ALPHA, BETA = 0.6, 0.4
SECONDS = 0.3  # for the rounds of one configuration
DRAWS, SLICE_DRAWS = 20_000, 800  # with which the distribution of the priorities is checked
DISTRIBUTION_ROWS = 10_000  # at most, where it is checked
COMPILED_ROWS = 100_000
WRITER_ROWS = 10_000
PREFETCH = (1, 4)
STEPS = 10  # samples and updates of one round with a consumer
UPDATE = 0.004  # seconds that the consumer needs between two samples
SEED = 0
TRAJ_KEY, END_KEY = ("collector", "traj_ids"), ("next", "done")

METRICS = metrics.declare(f"""
sample_time [s] Time of a sample: Wall time of a sample of {BATCH} rows. Keys with writing: after an
    extend of {WRITTEN} rows, which counts; prioritized-update: and the update of its priorities.
time_vs_random [1] Time against RandomSampler: Time of a sample, divided by that of RandomSampler
    right before it.
first_sample_time [s] Time of the first sample: Wall time of the first sample, with compilation.
extend_time [s] Time of an extend: Wall time of an extend of {WRITTEN} rows of a full buffer.
time_vs_default [1] Time against the default writer: Time of an extend, divided by that of the
    default writer right before it.
loop_time [s] Time of the loop: Wall time of {STEPS} times a sample and what the consumer does with
    it.
time_vs_no_prefetch [1] Time against no prefetch: Time of the loop, divided by that of the same loop
    without prefetch right before it.
""")

# key: (title, what one needs it for)
TRANSITIONS, SLICES, PRIORITIES = "transitions", "slices", "priorities"
NEEDS = {
    "random": TRANSITIONS,
    "without-replacement": TRANSITIONS,
    "slice-traj": SLICES,
    "slice-end": SLICES,
    "slice-traj-cached": SLICES,
    "slice-end-cached": SLICES,
    "slice-without-replacement": SLICES,
    "prioritized": PRIORITIES,
    "prioritized-update": PRIORITIES,
    "prioritized-slice": "slices by priority",
    "prioritized-slice-cached": "slices by priority",
}
TITLES = {
    "random": "RandomSampler",
    "without-replacement": "SamplerWithoutReplacement",
    "slice-traj": "SliceSampler(traj_key)",
    "slice-end": "SliceSampler(end_key)",
    "slice-traj-cached": "SliceSampler(traj_key, cache_values=True)",
    "slice-end-cached": "SliceSampler(end_key, cache_values=True)",
    "slice-compiled": "SliceSampler(traj_key, compile=True)",
    "slice-without-replacement": "SliceSamplerWithoutReplacement(traj_key)",
    "prioritized": "PrioritizedSampler",
    "prioritized-update": "PrioritizedSampler, with update",
    "prioritized-slice": "PrioritizedSliceSampler(traj_key)",
    "prioritized-slice-cached": "PrioritizedSliceSampler(traj_key, cache_values=True)",
}
READING, WRITING = "reading", "writing"


def make_sampler(name, rows):
    where = {"traj_key": TRAJ_KEY, "slice_len": SLICE}
    if "-end" in name:
        where = {"end_key": END_KEY, "slice_len": SLICE}
    if "cached" in name:
        where["cache_values"] = True
    if name == "without-replacement":
        return SamplerWithoutReplacement(drop_last=True)
    if name == "slice-without-replacement":
        return SliceSamplerWithoutReplacement(**where, drop_last=True)
    if name == "slice-compiled":
        return SliceSampler(**where, compile=True)
    if name.startswith("slice"):
        return SliceSampler(**where)
    if name.startswith("prioritized-slice"):
        return PrioritizedSliceSampler(rows, ALPHA, BETA, **where)
    if name.startswith("prioritized"):
        return PrioritizedSampler(rows, ALPHA, BETA)
    return RandomSampler()


@functools.lru_cache(maxsize=2)
def make_rows(count):
    """Episodes of one length; each row knows its place."""
    generator = torch.Generator().manual_seed(SEED)
    place = torch.arange(count)
    done = (place % EPISODE == EPISODE - 1).unsqueeze(-1)
    return TensorDict(
        {
            "observation": torch.randn(count, *STATE, generator=generator),
            "place": place,
            "is_init": done.roll(1),
            "collector": {"traj_ids": place // EPISODE},
            "next": {
                "reward": torch.randn(count, 1, generator=generator),
                "done": done,
                "terminated": done.clone(),
                "truncated": torch.zeros_like(done),
            },
        },
        [count],
    )


def make_buffer(sampler, rows, device, **options):
    storage = LazyTensorStorage(len(rows), device=device)
    buffer = TensorDictReplayBuffer(
        storage=storage, sampler=sampler, batch_size=BATCH, priority_key="priority", **options
    )
    buffer.extend(rows.clone().to(device))
    return buffer


def make_buffer_or_skip(name, rows, device):
    """A tree of priorities for rows on a GPU is in TorchRL's wheel for CUDA alone."""
    try:
        return make_buffer(make_sampler(name, len(rows)), rows, device)
    except RuntimeError as error:
        if "require a TorchRL CUDA wheel" not in str(error):
            raise
        pytest.skip(str(error))


# -- Samples that are true -------------------------------------------------------


def assert_stored(sample, rows):
    place = sample["place"].cpu()
    assert len(place) == BATCH
    for key in ("observation", ("next", "reward")):
        assert torch.equal(sample[key].cpu(), rows[key][place]), key


def assert_slices(sample):
    """Each slice is of one episode, without a gap."""
    place = sample["place"].cpu().reshape(-1, SLICE)
    assert (place.diff(dim=1) == 1).all()
    assert (place[:, 0] // EPISODE == place[:, -1] // EPISODE).all()


def assert_priorities(buffer, rows):
    """Rows of the first half have twice the priority: so much more often are they drawn."""
    half = len(rows) // 2
    first = torch.arange(len(rows)) < half
    buffer.update_priority(torch.arange(len(rows)), torch.where(first, 2.0, 1.0))
    np.random.seed(SEED)
    slices = isinstance(buffer.sampler, SliceSampler)
    drawn, drawn_first = 0, 0
    while drawn < (SLICE_DRAWS if slices else DRAWS):
        places = buffer.sample()["place"]
        if slices:
            places = places.reshape(-1, SLICE)[:, 0]
        drawn, drawn_first = drawn + len(places), drawn_first + (places < half).sum().item()
    expected = 2**ALPHA / (1 + 2**ALPHA)
    assert abs(drawn_first / drawn - expected) < 4 * (0.25 / drawn) ** 0.5, drawn_first / drawn


def assert_sample(name, buffer, rows):
    sample = buffer.sample()
    assert_stored(sample, rows)
    if "slice" in name:
        assert_slices(sample)
    if name.startswith("prioritized") and len(rows) <= DISTRIBUTION_ROWS:
        assert_priorities(buffer, rows)


# -- Samplers --------------------------------------------------------------------


def device_of(buffer):
    return buffer.storage.device


def make_round(name, buffer, rows, access):
    # Each row is written where it was.
    chunks = rows.to(device_of(buffer)).split(WRITTEN) if access == WRITING else []
    place = -1

    def step():
        nonlocal place
        if access == WRITING:
            place = (place + 1) % len(chunks)
            buffer.extend(chunks[place])
        sample = buffer.sample()
        if name == "prioritized-update":
            buffer.update_priority(sample["index"], sample["next", "reward"].abs())
        return sample

    return step


def entry(name, rows, **varied):
    return {
        "title": ", ".join([TITLES[name], f"{rows} rows", *map(str, varied.values())]),
        "parameters": {"sampler": TITLES[name], "rows": rows, **varied, "batch": BATCH},
    }


@functools.lru_cache(maxsize=2)
def random_buffer(count, device):
    """What the samplers of one size are compared with."""
    return make_buffer(RandomSampler(), make_rows(count), device)


def cases():
    for count in ROWS:
        for name in NEEDS:
            yield count, name, READING
            # Writing into a million rows slows in the same way as into a hundred thousand.
            if count < ROWS[-1] and name != "prioritized-update":
                yield count, name, WRITING


@pytest.mark.parametrize(("count", "name", "access"), list(cases()))
def bench_sampler(benchmark, device, count, name, access):
    rows = make_rows(count)
    buffer = make_buffer_or_skip(name, rows, device)
    assert_sample(name, buffer, rows)
    ours = make_round(name, buffer, rows, access)
    theirs = make_round("random", random_buffer(count, device), rows, access)
    ratios = paired(benchmark, device, ours, theirs, SECONDS)

    assert_sample(name, buffer, rows)
    note(
        benchmark,
        f"{name}-{access}-{count // 1000}k",
        "sample_time",
        **entry(name, count, need=NEEDS[name], access=access),
        sampled={"time_vs_random": ratios},
    )


@pytest.fixture
def _nothing_compiled_before(monkeypatch, tmp_path):
    """The compiler finds none of what an earlier process has compiled."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.compiler.reset()


@pytest.mark.usefixtures("_nothing_compiled_before")
def bench_compiled_slices(benchmark, device):
    """SliceSampler(compile=True) against RandomSampler."""
    rows = make_rows(COMPILED_ROWS)
    buffer = make_buffer(make_sampler("slice-compiled", COMPILED_ROWS), rows, device)
    begin = time.perf_counter()
    measure.settled(device, buffer.sample)
    first = time.perf_counter() - begin
    ours = make_round("slice-compiled", buffer, rows, READING)
    theirs = make_round("random", random_buffer(COMPILED_ROWS, device), rows, READING)
    ratios = paired(benchmark, device, ours, theirs, SECONDS)

    assert_sample("slice-compiled", buffer, rows)
    note(
        benchmark,
        f"slice-compiled-reading-{COMPILED_ROWS // 1000}k",
        "sample_time",
        **entry("slice-compiled", COMPILED_ROWS, need=SLICES, access=READING),
        sampled={"time_vs_random": ratios, "first_sample_time": [first]},
    )


COMPILABLE = {
    "eager": "ReplayBuffer",
    "compilable": "ReplayBuffer(compilable=True)",
    "compiled": "torch.compile(ReplayBuffer(compilable=True).sample)",
}


@pytest.mark.usefixtures("_nothing_compiled_before")
@pytest.mark.parametrize("name", COMPILABLE)
def bench_compilable(benchmark, device, name):
    rows = make_rows(COMPILED_ROWS).exclude("collector", "is_init")
    placed = rows.to(device)
    compilable = name != "eager"

    def make(compilable):
        buffer = ReplayBuffer(
            storage=LazyTensorStorage(len(rows), device=device, compilable=compilable),
            sampler=RandomSampler(),
            writer=TensorDictRoundRobinWriter(compilable=compilable),
            batch_size=BATCH,
            compilable=compilable,
        )
        buffer.extend(placed)
        return buffer.sample

    ours = make(compilable)
    if name == "compiled":
        ours = torch.compile(ours)
    begin = time.perf_counter()
    measure.settled(device, ours)
    first = time.perf_counter() - begin
    ratios = paired(benchmark, device, ours, make(compilable=False), SECONDS)

    assert_stored(ours(), rows)
    note(
        benchmark,
        f"compilable-{name}",
        "sample_time",
        title=COMPILABLE[name],
        parameters={"buffer": COMPILABLE[name], "rows": COMPILED_ROWS, "batch": BATCH},
        sampled={"time_vs_random": ratios, "first_sample_time": [first]},
    )


# -- Writers ---------------------------------------------------------------------

WRITERS = {
    "tensordict-round-robin": TensorDictRoundRobinWriter,
    "round-robin": RoundRobinWriter,
    "generations": functools.partial(TensorDictRoundRobinWriter, track_generations=True),
    "max-value": functools.partial(TensorDictMaxValueWriter, rank_key="rank"),
}
WRITER_TITLES = {
    "tensordict-round-robin": "TensorDictRoundRobinWriter",
    "round-robin": "RoundRobinWriter",
    "generations": "TensorDictRoundRobinWriter(track_generations=True)",
    "max-value": "TensorDictMaxValueWriter",
}


@pytest.mark.parametrize("name", WRITERS)
def bench_writer(benchmark, device, name):
    generator = torch.Generator().manual_seed(SEED)
    total = 2 * WRITER_ROWS
    rows = make_rows(total).select("observation", "place")
    rows["rank"] = torch.randperm(total, generator=generator).float()
    buffers = [
        TensorDictReplayBuffer(
            storage=LazyTensorStorage(WRITER_ROWS, device=device),
            writer=writer(),
            batch_size=BATCH,
        )
        for writer in (WRITERS[name], WRITERS["tensordict-round-robin"])
    ]
    chunks = [chunk.clone().to(device) for chunk in rows.split(WRITTEN)]
    for buffer in buffers:
        for chunk in chunks:
            buffer.extend(chunk)
    kept = buffers[0][:]["place"].cpu().sort().values
    if name == "max-value":
        truth = rows["rank"].topk(WRITER_ROWS).indices.sort().values
    else:
        truth = torch.arange(WRITER_ROWS, total)
    assert torch.equal(kept, truth)

    places = [-1, -1]

    def write(which):
        places[which] = (places[which] + 1) % len(chunks)
        chunk = chunks[places[which]]
        chunk["rank"].add_(total)  # each row is better than those before, and is kept
        buffers[which].extend(chunk)

    ratios = paired(benchmark, device, lambda: write(0), lambda: write(1), SECONDS)
    note(
        benchmark,
        f"writer-{name}",
        "extend_time",
        title=WRITER_TITLES[name],
        parameters={"writer": WRITER_TITLES[name], "rows": WRITER_ROWS, "written": WRITTEN},
        sampled={"time_vs_default": ratios},
    )


# -- Prefetch --------------------------------------------------------------------

NOTHING, WAITS, COMPUTES = "nothing", "waits", "computes"


def make_consumer(name, device):
    """What happens between two samples: nothing, waiting for something else, or arithmetic."""
    if name == NOTHING:
        return lambda: None
    if name == WAITS:
        return lambda: time.sleep(UPDATE)
    size = 256
    matrix = torch.randn(size, size, device=device) / size**0.5

    def multiply(times):
        result = matrix
        for _ in range(times):
            result = result @ matrix
        return measure.settled(device, lambda: result)

    begin, times = time.perf_counter(), 50
    multiply(times)
    times = max(1, round(times * UPDATE / (time.perf_counter() - begin)))
    return lambda: multiply(times)


def slow_transform(rows):
    """Pixels of the sample as numbers from zero to one: work that lets other threads run."""
    return rows.set("pixels", rows["pixels"].float().div_(255))


@pytest.mark.parametrize("consumer", [NOTHING, WAITS, COMPUTES])
@pytest.mark.parametrize("prefetch", PREFETCH)
@pytest.mark.parametrize("content", ["state", "pixels"])
def bench_prefetch(benchmark, device, content, prefetch, consumer):
    count = 4_096 if content == "state" else 1_024
    rows = make_rows(ROWS[0])[:count].clone()
    options = {}
    if content == "pixels":
        # As integers of eight bytes, which are drawn fast; the transform then has the larger part.
        rows["pixels"] = torch.arange(count)[:, None].expand(-1, 3528).contiguous()
        options["transform"] = lambda rows: slow_transform(
            rows.set("pixels", rows["pixels"].view(torch.uint8))
        )
    plain = make_buffer(RandomSampler(), rows, device, **options)
    ahead = make_buffer(RandomSampler(), rows, device, prefetch=prefetch, **options)
    consume = make_consumer(consumer, device)

    def loop(buffer):
        for _ in range(STEPS):
            buffer.sample()
            consume()
        buffer.synchronize()  # what was drawn ahead belongs to the next round, its cost to this one

    ratios = paired(benchmark, device, lambda: loop(ahead), lambda: loop(plain), SECONDS)

    sample = ahead.sample()
    assert_stored(sample, rows)
    if content == "pixels":
        stored = rows["pixels"][sample["place"].cpu()].view(torch.uint8).float() / 255
        assert torch.equal(sample["pixels"].cpu(), stored)
    ahead.shutdown()
    note(
        benchmark,
        f"prefetch-{content}-{consumer}-{prefetch}",
        "loop_time",
        title=f"prefetch={prefetch}, {content}, the consumer {consumer}",
        parameters={
            "content": content,
            "consumer": consumer,
            "prefetch": prefetch,
            "steps": STEPS,
            "batch": BATCH,
        },
        sampled={"time_vs_no_prefetch": ratios},
    )


# -- CUDA ------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize("count", ROWS)
@pytest.mark.parametrize("tree", ["cpu", "cuda"])
def bench_tree(benchmark, device, count, tree):
    """Priorities of rows on the GPU: a tree on the CPU or on the GPU."""
    rows = make_rows(count)
    try:
        sampler = PrioritizedSampler(count, ALPHA, BETA, device=tree)
    except RuntimeError as error:
        if "require a TorchRL CUDA wheel" not in str(error):
            raise
        pytest.skip(str(error))
    buffer = make_buffer(sampler, rows, device)
    ours = make_round("prioritized-update", buffer, rows, READING)
    theirs = make_round("random", random_buffer(count, device), rows, READING)
    ratios = paired(benchmark, device, ours, theirs, SECONDS)
    assert_stored(buffer.sample(), rows)
    note(
        benchmark,
        f"tree-{tree}-{count // 1000}k",
        "sample_time",
        title=f"PrioritizedSampler, tree on {tree}, {count} rows",
        parameters={"tree": tree, "rows": count, "batch": BATCH},
        sampled={"time_vs_random": ratios},
    )
