"""Which storage holds slices of which collector, checked row by row; for the page on replay.

The environment writes into each observation which environment, which episode and which step it
is, so a sampled slice can be compared with what happened, not only with what its trajectory ids
say. The same batches go into a buffer of each ``ndim``.

The workers start by "forkserver" with TorchRL preloaded: objects reach them pickled, as under
"spawn", but TorchRL is imported once instead of once for each worker.
"""

import io
import json
import math
import multiprocessing
import os
import warnings
from functools import partial

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import torch
from tensordict import TensorDict
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.data import (
    Binary,
    Categorical,
    Composite,
    LazyTensorStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
    Unbounded,
)
from torchrl.envs import EnvBase, SerialEnv, StepCounter, TransformedEnv
from torchrl.objectives import DQNLoss

TRAJ_KEY = ("collector", "traj_ids")
N_BATCHES = 3
MAX_ROWS = 480
SLICE_LEN = 4
BATCH_SIZE = 16
N_SLICES = 5000  # so many that no place to start from is left out by chance
EPISODES = (3, 11, 6)  # lengths, in steps, after a first one that differs by environment
FIRST_EPISODE = (5, 4, 2, 8, 1, 3)


class Tape(EnvBase):
    """Observes ``(environment, episode, step)``; each episode has a length that is known before."""

    def __init__(self, number):
        super().__init__()
        self.number, self.episode, self.step_number = number, -1, 0
        self.observation_spec = Composite(observation=Unbounded((3,), dtype=torch.int64))
        self.action_spec = Categorical(2)
        self.reward_spec = Unbounded((1,))
        flag = Binary(1, dtype=torch.bool)
        self.full_done_spec = Composite(done=flag, terminated=flag.clone())

    def _data(self, done):
        done = torch.tensor([done])
        observation = torch.tensor([self.number, self.episode, self.step_number])
        return {"observation": observation, "done": done, "terminated": done.clone()}

    def _reset(self, tensordict=None, **options):
        self.episode, self.step_number = self.episode + 1, 0
        return TensorDict(self._data(done=False), [])

    def _step(self, tensordict):
        self.step_number += 1
        later = EPISODES[(self.episode - 1) % len(EPISODES)]
        length = later if self.episode else FIRST_EPISODE[self.number]
        done = self.step_number == length
        return TensorDict({**self._data(done), "reward": torch.ones(1)}, [])

    def _set_seed(self, seed):
        """Nothing here is random."""


def several(numbers):
    """A batched environment."""
    return SerialEnv(len(numbers), [partial(Tape, number) for number in numbers])


def collect(collector):
    """The first batches of a collector, which ends here."""
    try:
        return [batch for batch, _ in zip(collector, range(N_BATCHES), strict=False)]
    finally:
        collector.shutdown()


def configurations():
    """The four that the page names: what collects, and the ndim that fits."""
    stack = {"cat_results": "stack", "total_frames": -1}
    return {
        "``Collector``, one environment": (
            Collector(Tape(0), None, frames_per_batch=24, total_frames=-1),
            1,
        ),
        "``Collector``, batched environment": (
            Collector(several([0, 1, 2]), None, frames_per_batch=24, total_frames=-1),
            2,
        ),
        '``MultiSyncCollector``, ``"stack"``': (
            MultiSyncCollector(
                [partial(Tape, 0), partial(Tape, 1)], None, frames_per_batch=24, **stack
            ),
            2,
        ),
        '``MultiSyncCollector``, ``"stack"``, batched environments': (
            MultiSyncCollector(
                [partial(several, [0, 1, 2]), partial(several, [3, 4, 5])],
                None,
                frames_per_batch=48,
                **stack,
            ),
            3,
        ),
    }


# -- The truth ---------------------------------------------------------------


def false_slices(sample):
    """How many slices are not consecutive steps of one episode with the right next observations."""
    now = sample["observation"].reshape(-1, SLICE_LEN, 3)
    following = sample["next", "observation"].reshape(-1, SLICE_LEN, 3)
    steps = torch.zeros(SLICE_LEN, 3, dtype=torch.int64)
    steps[:, 2] = torch.arange(SLICE_LEN)
    true = (now == now[:, :1] + steps) & (following == now + steps[1])
    return int((~true.all(-1).all(-1)).sum())


def rows_of(data):
    return {tuple(row) for row in data["observation"].reshape(-1, 3).tolist()}


def in_reach(batches):
    """The rows of those episodes that are long enough for a slice, over all batches."""
    rows = set().union(*map(rows_of, batches))
    lengths = {}
    for number, episode, _ in rows:
        lengths[number, episode] = lengths.get((number, episode), 0) + 1
    return {row for row in rows if lengths[row[:2]] >= SLICE_LEN}


# -- The buffers -------------------------------------------------------------


def filled(batches, ndim, sampler=None, kind=TensorDictReplayBuffer, flat=False):
    storage = LazyTensorStorage(MAX_ROWS, ndim=ndim)
    buffer = kind(storage=storage, sampler=sampler)
    for batch in batches:
        buffer.extend(batch.reshape(-1) if flat else batch.clone())
    return buffer


def by_id():
    return SliceSampler(slice_len=SLICE_LEN, traj_key=TRAJ_KEY)


def by_done():
    return SliceSampler(slice_len=SLICE_LEN, end_key=("next", "done"))


def check(buffer):
    """False slices among those drawn, and every row that was seen."""
    torch.manual_seed(0)
    sample = buffer.sample(N_SLICES * SLICE_LEN)
    assert sample.shape == (N_SLICES * SLICE_LEN,)
    return false_slices(sample), rows_of(sample)


def code(value):
    return f"``{value}``"


def told(error):
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def attempt(function, *arguments):
    """The error that a wrong ndim raises, or the result."""
    try:
        return function(*arguments)
    except (RuntimeError, ValueError) as error:
        return error


def right_table(collected):
    rows = []
    for name, (batches, ndim) in collected.items():
        buffer = filled(batches, ndim, by_id())
        false, seen = check(buffer)
        stored = set().union(*map(rows_of, batches))
        assert false == 0, f"{name}: {false} slices do not lie in one trajectory"
        assert seen == in_reach(batches), f"{name}: some long trajectory is not sampled"
        assert seen < stored, f"{name}: no trajectory is too short"
        assert len(buffer) == len(stored) == sum(batch.numel() for batch in batches)
        storage = buffer._storage
        rows.append(
            [
                name,
                code(tuple(batches[0].shape)),
                code(f"ndim={ndim}"),
                code(tuple(storage._storage.shape)),
                str(len(buffer)),
                f"{false} of {N_SLICES}",
                f"{len(stored - seen)} of {len(stored)}",
            ]
        )
    columns = [
        "Collector",
        "Batch",
        "Storage",
        "Storage shape",
        "``len``",
        "Wrong slices",
        "Rows in trajectories too short for a slice",
    ]
    return {"columns": columns, "rows": rows}


KINDS = (TensorDictReplayBuffer, ReplayBuffer)


def wrong_row(batches, right, ndim, kind):
    """What extending, slicing and drawing rows do with a storage of the wrong ndim."""
    shape = code(tuple(batches[0].shape))
    frames = sum(batch.numel() for batch in batches)
    buffer = attempt(filled, batches, ndim, by_id(), kind)
    loud = isinstance(buffer, Exception)
    by_chance = (right, ndim, kind) == (3, 2, TensorDictReplayBuffer)
    assert loud is (ndim > right or by_chance), (
        f"{shape}, ndim={ndim}, {kind.__name__}: extending raises: {loud}"
    )
    stored = f"{shape}, {code(f'ndim={ndim}')}"
    if loud:
        return [stored, told(buffer), "–"]
    fitting = filled(batches, right, kind=kind)._storage._storage.numel()
    allocated = buffer._storage._storage.numel()
    assert allocated > fitting, "a wrong ndim takes no more room"
    assert allocated % fitting == 0, "the room is no multiple of the room asked for"
    assert len(buffer) < frames, "a wrong ndim counts the frames"
    error = attempt(check, buffer)
    assert isinstance(error, RuntimeError), f"{shape}, ndim={ndim}: slices are sampled"
    drawn = filled(batches, ndim, kind=kind).sample(BATCH_SIZE)
    assert drawn.numel() > BATCH_SIZE, "a wrong ndim gives the number of rows asked for"
    assert drawn.shape[-1] == batches[0].shape[-1], "an item is no whole stretch of time"
    return [
        stored,
        f"silent: ``len`` is {len(buffer)} of {frames}, {allocated // fitting} times the room",
        f"``SliceSampler``: {told(error)} "
        f"Default sampler, silent: {drawn.numel()} rows for ``sample({BATCH_SIZE})``.",
    ]


def wrong_table(collected):
    rows = []
    for batches, right in collected.values():
        for ndim in range(1, batches[0].ndim + 2):
            if ndim == right:
                continue
            outcomes = [wrong_row(batches, right, ndim, kind) for kind in KINDS]
            if outcomes[0] == outcomes[1]:
                rows.append(outcomes[0])
            else:
                for kind, (stored, *rest) in zip(KINDS, outcomes, strict=True):
                    rows.append([f"{stored}, {code(kind.__name__)}", *rest])
    columns = ["Batch, storage, and the buffer where it matters", "``extend``", "Samplers"]
    return {"columns": columns, "rows": rows}


def flat_table(collected):
    """Batches with an environment dimension, flattened before they are stored."""
    rows = []
    for name, (batches, _) in collected.items():
        if batches[0].ndim == 1:
            continue
        crossed, _ = check(filled(batches, 1, by_done(), flat=True))
        false, seen = check(filled(batches, 1, by_id(), flat=True))
        lost = in_reach(batches) - seen
        assert crossed > 0, "flat batches cut at done give true slices"
        assert false == 0, "flat batches cut at trajectory ids give false slices"
        assert lost, "flat batches reach as many rows as the right ndim"
        rows.append(
            [
                name,
                f"{crossed} of {N_SLICES}",
                f"{false} of {N_SLICES}",
                str(len(lost)),
            ]
        )
    columns = [
        "Collector",
        'Wrong slices, ``end_key=("next", "done")``',
        "Wrong slices, ``traj_key``",
        "Rows that ``traj_key`` loses against the right ``ndim``",
    ]
    return {"columns": columns, "rows": rows}


def seen_episodes(batches, **options):
    """Episodes that a sampler reaches, the smallest sample, and broken steps inside slices."""
    torch.manual_seed(0)
    sampler = SliceSampler(slice_len=SLICE_LEN, traj_key=TRAJ_KEY, **options)
    buffer = filled(batches, 1, sampler)
    episodes, smallest, broken = set(), math.inf, 0
    for _ in range(100):
        sample = buffer.sample(BATCH_SIZE)
        episodes |= {row[:2] for row in rows_of(sample)}
        smallest = min(smallest, len(sample))
        apart = (sample["next", "observation"][:-1] != sample["observation"][1:]).any(-1)
        broken += int((apart & ~sample["next", "done"][:-1, 0]).sum())
    return episodes, smallest, broken


def strict_table(collected):
    batches, _ = collected["``Collector``, one environment"]
    stored = set().union(*map(rows_of, batches))
    lengths = {}
    for row in stored:
        lengths[row[:2]] = lengths.get(row[:2], 0) + 1
    short = {episode for episode, length in lengths.items() if length < SLICE_LEN}
    assert short, "no episode is too short"
    rows = []
    for strict in (True, False):
        episodes, smallest, broken = seen_episodes(batches, strict_length=strict)
        assert broken == 0, "a step inside a slice does not follow from the one before"
        rows.append(
            [
                code(f"strict_length={strict}"),
                f"{len(episodes)} of {len(lengths)}",
                f"{len(episodes & short)} of {len(short)}",
                f"{smallest} of {BATCH_SIZE}",
            ]
        )
        assert (episodes == set(lengths) - short) is strict
        assert (smallest == BATCH_SIZE) is strict
    assert episodes == set(lengths), "strict_length=False leaves an episode out"
    columns = ["Sampler", "Episodes seen", "Short episodes seen", "Smallest sample, in rows"]
    return {"columns": columns, "rows": rows}


# -- What to choose ----------------------------------------------------------


def counted(number):
    """One environment with a step counter, which ``fragmented=True`` needs."""
    return TransformedEnv(Tape(number), StepCounter())


def written_by_workers(sampler, **options):
    """A buffer that two workers fill themselves."""
    storage = LazyTensorStorage(MAX_ROWS, shared_init=True)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="A SliceSampler is used with a multi-process")
        collector = MultiSyncCollector(
            [partial(counted, 0), partial(counted, 1)],
            None,
            frames_per_batch=20,
            total_frames=200,
            replay_buffer=buffer,
            **options,
        )
    try:
        for _ in collector:
            pass
    finally:
        collector.shutdown()
    return buffer


def check_rows(buffer):
    """Every row holds one step and the observation that it led to."""
    sample = buffer.sample(N_SLICES)
    step = sample["next", "observation"] - sample["observation"]
    assert step.tolist() == [[0, 0, 1]] * N_SLICES


def decision_table(collected):
    """The rows of the table, each with the buffer it describes, filled and sampled here."""
    single, batched, stacked, deep = (batches for batches, _ in collected.values())
    for batches in (single, batched, stacked, deep):
        check_rows(filled(batches, 1, flat=True))
    fragmented = SliceSampler(slice_len=SLICE_LEN, traj_key=TRAJ_KEY, fragmented=True)
    for buffer in (
        filled(single, 1, by_id()),
        filled(batched, 2, by_id()),
        filled(stacked, 2, by_id()),
        filled(deep, 3, by_id()),
        written_by_workers(fragmented),
        written_by_workers(by_id(), trajs_per_batch=1),
    ):
        false, seen = check(buffer)
        assert false == 0, "a choice that the page recommends gives false slices"
        assert seen == in_reach([buffer[:]]), "a choice that the page recommends loses rows"
    slices = "``SliceSampler``, ``traj_key``"
    rows = [
        ["Single transitions", "any shape, ``reshape(-1)``", "``ndim=1``", "the default"],
        ["Slices", "``(T,)``", "``ndim=1``", slices],
        ["Slices", "``(environments, T)`` or ``(workers, T)``", "``ndim=2``", slices],
        ["Slices", "``(workers, environments, T)``", "``ndim=3``", slices],
        [
            "Slices",
            "written by the workers, ``StepCounter`` in the environment",
            "``ndim=1``, ``shared_init=True``",
            f"{slices}, ``fragmented=True``",
        ],
        [
            "Slices of whole episodes",
            "written by the workers, ``trajs_per_batch``",
            "``ndim=1``, ``shared_init=True``",
            slices,
        ],
    ]
    return {"columns": ["You train on", "Batch", "Storage", "Sampler"], "rows": rows}


# -- The figure --------------------------------------------------------------

INK = "#010203"  # becomes the color of the page's text
COLORS = {0: "#1f80c4", 1: "#d1661f", 4: "#2f9458"}  # of the environments with these numbers


def stages():
    """From one step of three environments to a loss: title, code, and who and when by cell."""
    torch.manual_seed(0)
    env = several(list(COLORS))
    step = env.rand_step(env.reset())
    (batch, *_) = collect(
        Collector(several(list(COLORS)), None, frames_per_batch=24, total_frames=24)
    )
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(MAX_ROWS, ndim=2),
        sampler=SliceSampler(slice_len=SLICE_LEN, traj_key=TRAJ_KEY),
        batch_size=BATCH_SIZE,
    )
    buffer.extend(batch)
    stored = buffer._storage._storage[: batch.shape[-1]]
    sample = buffer.sample()
    assert set(sample["observation"][:, 0].tolist()) == set(COLORS), "an environment is missing"
    slices = sample.reshape(-1, SLICE_LEN)
    assert false_slices(sample) == 0
    network = torch.nn.Sequential(Float(), torch.nn.Linear(3, 2))
    loss = DQNLoss(network, action_space="categorical", delay_value=False)
    loss.make_value_estimator(gamma=0.9)
    value = loss(slices)["loss"]
    assert value.isfinite()
    shapes = [tuple(data.shape) for data in (step, batch, stored, sample, slices, value)]
    assert shapes == [(3,), (3, 8), (8, 3), (16,), (4, 4), ()], shapes
    code = ["env.step", "frames_per_batch=24", "ndim=2", "sample(16)", "reshape(-1, 4)", "DQNLoss"]
    titles = ["environments", "collector", "buffer", "sampler", "slices", "loss"]
    seen = [data["observation"].flatten(0, -2) for data in (step, batch, stored, sample, slices)]
    return list(zip(titles, code, shapes, [*seen, None], strict=True))


class Float(torch.nn.Module):
    """The observations are integers, and a layer wants none."""

    def forward(self, observation):
        return observation.float()


def draw():
    """A row for each stage: shape, and a cell for each row of data; SVG."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings = {"svg.fonttype": "none", "svg.hashsalt": "data_flow", "text.color": INK}
    size, gap, right = 0.62, 0.8, 5.4
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({**settings, "font.size": 11.4})
        found = stages()
        heights = [max(3.2 * size, (shape or (1,))[0] * size) for _, _, shape, _ in found]
        heights[3] = heights[-1] = 3.2 * size  # one line
        total = sum(heights) + gap * (len(found) - 1)
        width = right + 16 * size + 0.1
        figure = Figure(figsize=(5.45, 5.45 * (total + 0.6) / width))
        FigureCanvasSVG(figure)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, width), ylim=(total + 0.3, -0.3))
        axes.axis("off")
        y = 0.0
        for place, (title, code, shape, seen) in enumerate(found):
            middle = y + heights[place] / 2
            axes.text(0.1, middle - 0.85, title, ha="left", va="center", weight="bold")
            axes.text(0.1, middle, code, ha="left", va="center")
            axes.text(0.1, middle + 0.85, f"{list(shape)}", ha="left", va="center")
            lines, columns = {0: (1, 1), 1: (1, shape[-1] if shape else 1)}.get(len(shape), shape)
            if title == "environments":
                lines, columns = 3, 1
            top = middle - lines * size / 2
            for cell in range(lines * columns):
                left, up = right + cell % columns * size, top + cell // columns * size
                number = COLORS[int(seen[cell][0])] if seen is not None else INK
                box = (left + 0.03, up + 0.03), size - 0.06, size - 0.06
                axes.add_patch(mpl.patches.Rectangle(*box, fc=number, alpha=0.18))
                axes.add_patch(mpl.patches.Rectangle(*box, fill=False, ec=number))
            y += heights[place]
            if place < len(found) - 1:
                arrow = {"arrowstyle": "->", "color": INK, "lw": 1.2}
                x = right + size / 2
                axes.annotate("", (x, y + gap - 0.15), (x, y + 0.15), arrowprops=arrow)
            y += gap
        output = io.StringIO()
        metadata = {"Date": None, "Creator": None}
        figure.savefig(output, format="svg", transparent=True, metadata=metadata)
    return output.getvalue()


def main():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        collected = {
            name: (collect(collector), ndim) for name, (collector, ndim) in configurations().items()
        }
    assert not caught, [str(warning.message) for warning in caught]
    return {
        "right": right_table(collected),
        "wrong": wrong_table(collected),
        "flat": flat_table(collected),
        "strict": strict_table(collected),
        "decisions": decision_table(collected),
        "flow": draw(),
    }


def start_workers_by_forkserver():
    """Import TorchRL once for all workers; call it before the first buffer or collector."""
    multiprocessing.set_start_method("forkserver", force=True)
    multiprocessing.set_forkserver_preload(["torchrl.collectors", "torchrl.envs"])


if __name__ == "__main__":
    start_workers_by_forkserver()
    torch.set_num_threads(1)
    result = main()
    print(json.dumps(result))
