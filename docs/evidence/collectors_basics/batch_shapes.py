"""What each collector yields, and what GAE makes of it, for the page "Collector basics".

Every cell of the tables is a batch of a collector that this script builds. It is compared, frame
for frame, with rollouts of the same environments that were collected one at a time, so a shape is
right only when each worker, environment and step stands where the page says.

The environments are seeded where they are made and the policy does not sample: a worker collects
what the main process collects. Processes come from a server that has imported torchrl once, which
is safe where ``fork`` is not and keeps this script short.
"""

import contextlib
import io
import json
import logging
import math
import multiprocessing
import multiprocessing.forkserver
import os
import warnings
from functools import cache, partial

os.environ["RL_LOGGING_LEVEL"] = "ERROR"
if __name__ == "__main__":
    # The server of the worker processes imports while this process does.
    multiprocessing.set_forkserver_preload(["torchrl.objectives.value", "gymnasium"])
    multiprocessing.forkserver.ensure_running()

import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from torchrl.envs import GymEnv, ParallelEnv, SerialEnv, StepCounter, TransformedEnv
from torchrl.modules import ValueOperator
from torchrl.objectives.value import GAE

FRAMES = 24
UNEVEN_FRAMES = 25
WORKERS = 2
ENVS = 3
MAX_STEPS = 8
GAMMA, LMBDA = 0.99, 0.95
IDS = ("collector", "traj_ids")
GRID_LIMITS = ((4, 7, 9), (6, 8, 3))  # steps of a trajectory, by worker and environment
GRID_STEPS = 10
INK = "#010203"  # becomes the color of the page's text
COLORS = ("#1f80c4", "#d1661f")


def make_env(worker, env=0):
    """CartPole, cut after eight steps; each place starts from another state."""
    made = TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=MAX_STEPS))
    made.set_seed(100 * worker + env)
    return made


def make_batched_env(worker, kind=SerialEnv):
    return kind(ENVS, [partial(make_env, worker, env) for env in range(ENVS)])


def lean(observation):
    """Push to the side to which the pole leans: action 0 or 1, one-hot."""
    return torch.nn.functional.one_hot((observation[..., 2] > 0).long(), 2)


def make_policy():
    return TensorDictModule(lean, in_keys=["observation"], out_keys=["action"])


COLLECTORS = {
    "Collector": (Collector, {}),
    "Collector(num_collectors=2, sync=True)": (Collector, {"num_collectors": 2, "sync": True}),
    "Collector(num_collectors=2)": (Collector, {"num_collectors": 2}),
    "MultiSyncCollector": (MultiSyncCollector, {}),
    'MultiSyncCollector(cat_results="stack")': (MultiSyncCollector, {"cat_results": "stack"}),
    "MultiSyncCollector(cat_results=0)": (MultiSyncCollector, {"cat_results": 0}),
    "MultiSyncCollector(cat_results=-1)": (MultiSyncCollector, {"cat_results": -1}),
    "MultiAsyncCollector": (MultiAsyncCollector, {}),
}


@contextlib.contextmanager
def collecting(name, batched=False, frames_per_batch=FRAMES, **options):
    """A collector of that name, shut down at the end."""
    kind, more = COLLECTORS[name]
    makers = [partial(make_batched_env if batched else make_env, w) for w in range(WORKERS)]
    collector = kind(
        makers[0] if name == "Collector" else makers,
        policy_factory=make_policy,
        frames_per_batch=frames_per_batch,
        total_frames=-1,
        auto_register_policy_transforms=False,
        **more,
        **options,
    )
    try:
        yield collector
    finally:
        collector.shutdown()


@cache
def first_batch(name, batched=False, **options):
    """Each collector is started once, whatever the number of tables that look at its batch."""
    with collecting(name, batched, **options) as collector:
        return next(iter(collector)).clone()


@cache
def collected_alone(worker, env):
    """What one environment yields when nothing else is collected."""
    return from_one_process(partial(make_env, worker, env), UNEVEN_FRAMES)


def alone(worker, env, steps):
    return collected_alone(worker, env)[:steps]


def from_one_process(maker, frames):
    collector = Collector(
        maker,
        policy_factory=make_policy,
        frames_per_batch=frames,
        total_frames=-1,
        auto_register_policy_transforms=False,
    )
    batch = next(iter(collector)).clone()
    collector.shutdown()
    return batch


def of_worker(worker, batched, steps):
    """What one worker yields: one environment, or three in the first dimension."""
    if not batched:
        return alone(worker, 0, steps)
    return torch.stack([alone(worker, env, steps) for env in range(ENVS)])


def steps_per_env(name, batched, frames):
    """A synchronous collector divides the frames by its workers; each rounds up."""
    divides = "Sync" in name or "sync=True" in name
    share = math.ceil(frames / WORKERS) if divides else frames
    return math.ceil(share / ENVS) if batched else share


def expected(name, batched, frames):
    """The batches that are right for that collector, from environments collected alone."""
    steps = steps_per_env(name, batched, frames)
    parts = [of_worker(worker, batched, steps) for worker in range(WORKERS)]
    if name == "Collector":
        return parts[:1]
    if "Async" in name or name == "Collector(num_collectors=2)":
        return parts
    dim = COLLECTORS[name][1].get("cat_results", "stack")
    return [torch.stack(parts) if dim in (None, "stack") else torch.cat(parts, dim)]


def same(batch, other):
    """Equal shapes and values, but for the trajectory ids."""
    if batch.shape != other.shape:
        return False
    return bool((batch.exclude("collector") == other.exclude("collector")).all())


def cell(name, batched, **options):
    """Collect a batch, compare it, and describe it: shape with names, number of frames."""
    batch = first_batch(name, batched, **options)
    right = expected(name, batched, options.get("frames_per_batch", FRAMES))
    assert any(same(batch, one) for one in right), (
        f"{name}, batched={batched}: the workers, environments and steps of the batch of shape "
        f"{tuple(batch.shape)} do not stand where the page says; expected {tuple(right[0].shape)}"
    )
    assert batch.names == [None] * (batch.ndim - 1) + ["time"], f"{name}: names {batch.names}"
    return f"``{tuple(batch.shape)}`` ``{batch.names}``", batch.numel()


def shapes():
    cells = {name: (cell(name, False), cell(name, True)) for name in COLLECTORS}
    stacked = cells['MultiSyncCollector(cat_results="stack")']
    assert cells["MultiSyncCollector"] == stacked, "the default of cat_results is not 'stack'"
    assert cells["Collector(num_collectors=2, sync=True)"] == stacked, "sync=True is not MultiSync"
    assert cells["Collector(num_collectors=2)"] == cells["MultiAsyncCollector"], "default: async"
    ambiguous = {cells[name][1] for name in ("Collector", "MultiSyncCollector(cat_results=-1)")}
    assert ambiguous == {("``(3, 8)`` ``[None, 'time']``", FRAMES)}, (
        f"the page gives (3, 8) as a shape with two meanings: {ambiguous}"
    )
    rows = []
    for name, ((one, frames), (batched, batched_frames)) in cells.items():
        assert frames == batched_frames == FRAMES, f"{name}: {frames} and {batched_frames} frames"
        rows.append([f"``{name}``", one, batched, str(frames)])
    header = ["Collector", "One environment", f"``SerialEnv({ENVS})``", "Frames"]
    return {"columns": header, "rows": rows}


def parallel_env():
    """Processes in place of a loop change nothing about the batch."""
    batch = from_one_process(partial(make_batched_env, 0, ParallelEnv), FRAMES)
    assert same(batch, of_worker(0, True, FRAMES // ENVS)), "ParallelEnv differs from SerialEnv"
    return str(tuple(batch.shape))


def rounding():
    """Frames that nothing divides; the warnings of the main process are part of the result."""
    rows = []
    for name in ("Collector", "MultiSyncCollector", "MultiAsyncCollector"):
        row = [f"``{name}``"]
        for batched in (False, True):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                shape, frames = cell(name, batched, frames_per_batch=UNEVEN_FRAMES)
            said = {"not exactly divisible" in str(warning.message) for warning in caught}
            warns = name == "MultiSyncCollector" or (name == "Collector" and batched)
            assert said == ({True} if warns else set()), f"{name}, batched={batched}: {caught}"
            row += [shape, str(frames), "yes" if warns else "no"]
        rows.append(row)
    header = ["Collector", "One environment", "Frames", "Warns"]
    header += [f"``SerialEnv({ENVS})``", "Frames", "Warns"]
    return {"columns": header, "rows": rows}


# -- Advantages ---------------------------------------------------------------


def make_critic():
    torch.manual_seed(0)
    return ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"])


def by_hand(batch, critic):
    """Advantages of one environment's frames in order, one trajectory at a time, in Python."""
    with torch.no_grad():
        value = critic.module(batch["observation"]).flatten().tolist()
        following = critic.module(batch["next", "observation"]).flatten().tolist()
    reward = batch["next", "reward"].flatten().tolist()
    done = batch["next", "done"].flatten().tolist()
    terminated = batch["next", "terminated"].flatten().tolist()
    advantages, after = [], 0.0
    for t in reversed(range(len(reward))):
        bootstrap = 0.0 if terminated[t] else GAMMA * following[t]
        after = 0.0 if done[t] else after
        after = reward[t] + bootstrap - value[t] + GAMMA * LMBDA * after
        advantages.append(after)
    return torch.tensor(advantages[::-1])


def truth(batch, name, batched, critic):
    """The advantage of each frame, laid out as the batch is."""
    steps = steps_per_env(name, batched, FRAMES)
    envs = range(ENVS) if batched else (0,)
    parts = []
    for worker in range(WORKERS):
        rows = [by_hand(alone(worker, env, steps), critic) for env in envs]
        parts.append(torch.stack(rows) if batched else rows[0])
    dim = COLLECTORS[name][1].get("cat_results", "stack")
    advantages = torch.stack(parts) if dim == "stack" else torch.cat(parts, dim)
    assert advantages.shape == batch.shape, (
        f"{name}, batched={batched}: the shape is {tuple(batch.shape)}, and in the layout of the "
        f"page {tuple(advantages.shape)}"
    )
    return advantages


@contextlib.contextmanager
def log_lines():
    """What torchrl logs from level WARNING on; its own handlers are set aside."""
    lines, logger = [], logging.getLogger("torchrl")
    handlers, level = logger.handlers, logger.level
    catcher = logging.Handler()
    catcher.emit = lambda record: lines.append(record.getMessage())
    logger.handlers = [catcher]
    logger.setLevel(logging.WARNING)
    try:
        yield lines
    finally:
        logger.handlers = handlers
        logger.setLevel(level)


def leak():
    """GAE on the batch as it comes, against the advantages by hand."""
    critic = make_critic()
    gae = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=critic)
    rows, wrong_counts, detail, logged = [], {}, None, None
    for batched in (False, True):
        for cat_results in ("stack", 0, -1, "-1, set_truncated"):
            cut = cat_results == "-1, set_truncated"
            shown = -1 if cut else cat_results
            label = f'"{shown}"' if shown == "stack" else shown
            name = f"MultiSyncCollector(cat_results={label})"
            with log_lines() as lines, warnings.catch_warnings():
                warnings.simplefilter("error")
                batch = first_batch(name, batched, **({"set_truncated": True} if cut else {}))
                computed = gae(batch.clone())["advantage"].squeeze(-1)
            right = truth(batch, name, batched, critic)
            error = (computed - right).abs()
            wrong = error > 1e-4
            wrong_counts[batched, cat_results] = int(wrong.sum())
            rows.append(
                [
                    f"``{label}``" + (", ``set_truncated=True``" if cut else ""),
                    f"``SerialEnv({ENVS})``" if batched else "one",
                    f"``{tuple(batch.shape)}``",
                    f"{int(wrong.sum())} of {batch.numel()}",
                    f"{error.max() if wrong.any() else 0:.2f}",
                    f"{right.abs().max():.2f}",
                ]
            )
            if not batched and cat_results == 0:
                detail, logged = rows_at_the_seam(batch, computed, right, wrong), lines
                assert_transitions_are_intact(batch)
    assert wrong_counts == {
        (False, "stack"): 0,
        (False, 0): 4,
        (False, -1): 4,
        (False, "-1, set_truncated"): 0,
        (True, "stack"): 0,
        (True, 0): 0,
        (True, -1): 12,
        (True, "-1, set_truncated"): 0,
    }, f"GAE is wrong elsewhere than the page says: {wrong_counts}"
    assert len(logged) == 1, f"the page says that one line is logged: {logged}"
    assert "use_buffer" in logged[0], logged
    header = [
        "``cat_results``",
        "Environment",
        "Shape",
        "Wrong rows",
        "Largest error",
        "Largest advantage",
    ]
    return {"columns": header, "rows": rows}, detail, logged[0]


def rows_at_the_seam(batch, computed, right, wrong):
    """The frames around the end of the first worker's part, one line each."""
    seam = FRAMES // WORKERS
    done = batch["next", "done"].flatten().tolist()
    assert not done[seam - 1], "the first worker's part ends with done: nothing to leak"
    last_end = max(row for row in range(seam) if done[row])
    assert wrong.nonzero().flatten().tolist() == list(range(last_end + 1, seam)), (
        "the wrong rows are not those between the first worker's last end and the seam"
    )
    for row in range(last_end + 1, seam):
        carried = (GAMMA * LMBDA) ** (seam - row) * right[seam]
        assert (computed[row] - right[row] - carried).abs() < 1e-4, (
            "the error is not the discounted advantage of the other worker's first row"
        )
    rows = []
    for row in range(last_end, seam + 2):
        one = [row, row // seam, done[row], f"{computed[row]:.2f}", f"{right[row]:.2f}"]
        rows.append([str(entry) for entry in one] + ["wrong" if wrong[row] else "right"])
    header = ["Row", "Worker", "``done``", "GAE on the batch", "By hand", "Verdict"]
    return {"columns": header, "rows": rows}


def assert_transitions_are_intact(batch):
    """A row alone is the same in all layouts: what one-step losses read is right."""
    parts = [alone(worker, 0, FRAMES // WORKERS) for worker in range(WORKERS)]
    for row in range(FRAMES):
        one = parts[row // (FRAMES // WORKERS)][row % (FRAMES // WORKERS)]
        assert same(batch[row], one), f"row {row} of the concatenated batch is not a transition"
    before, after = batch[IDS][FRAMES // WORKERS - 1 : FRAMES // WORKERS + 1].tolist()
    assert before != after, "the page says that the ids differ on the two sides of the seam"


# -- Iteration, trajectory ids ------------------------------------------------


def iterated():
    """Two batches of one collector: their ids, and what a second loop over it does."""
    with collecting("MultiSyncCollector") as collector:
        batches = [collector.next() for _ in range(2)]
        try:
            for _ in collector:
                break
        except RuntimeError as error:
            message = f"RuntimeError: {error}"
        else:
            raise AssertionError("the page says that a second iterator raises")
    assert not same(*batches), "the page says that a batch is not overwritten by the next"
    return {"worker_ids": drawn_ids(batches), "second_loop": message}


def drawn_ids(batches):
    """Both workers draw from one pool: no number is drawn twice."""
    drawn = [{i for b in batches for i in b[w][IDS].tolist()} for w in range(WORKERS)]
    assert not drawn[0] & drawn[1], f"two workers wrote the same id: {drawn}"
    # A worker whose last frame ended a trajectory has drawn a number that no frame has yet.
    together = drawn[0] | drawn[1]
    assert together <= set(range(len(together) + WORKERS)), f"not one pool: {together}"
    for worker in range(WORKERS):
        assert batches[0][worker, -1][IDS] == batches[1][worker, 0][IDS], "an id was lost"
    return f"{len(drawn[0])} and {len(drawn[1])} trajectories, no id in both"


def split_ids():
    """With ``split_trajs``, the ids of every worker but the first are shifted in each batch."""

    def id_of(batch, frame):
        """The id under which a batch holds the trajectory with that frame."""
        holds = (batch["observation"] == frame["observation"]).all(-1).any(-1)
        assert holds.sum() == 1
        return int(batch[holds][IDS][0, 0])

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "split_trajs=True produces")
        with collecting("MultiSyncCollector", split_trajs=True) as collector:
            batches = [collector.next().clone() for _ in range(2)]
    kept = []
    for worker in range(WORKERS):
        frames = alone(worker, 0, FRAMES)
        assert not frames["next", "done"][FRAMES // WORKERS - 1]
        ends = FRAMES // WORKERS - 1, FRAMES // WORKERS
        ids = [id_of(b, frames[t]) for b, t in zip(batches, ends, strict=True)]
        kept.append(ids[0] == ids[1])
    assert kept == [True, False], f"the page says that the second worker's ids move: {kept}"
    return "first worker: same id in both batches; second worker: another id in each"


def refuses(call, message):
    try:
        call()
    except RuntimeError as error:
        return message in str(error)
    return False


def uneven_workers():
    """A list of frames, one per worker: stacking leaves a dimension without a size."""
    batch = first_batch("MultiSyncCollector", frames_per_batch=(8, 16))
    assert refuses(partial(batch.get, "observation"), "Failed to stack"), "its tensors can be read"
    joined = first_batch("MultiSyncCollector(cat_results=-1)", frames_per_batch=(8, 16))
    assert same(joined, torch.cat([alone(0, 0, 8), alone(1, 0, 16)])), "-1 does not join them"
    return str(tuple(batch.shape))


# -- The figure --------------------------------------------------------------


def limited(steps):
    return TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=steps))


def limited_envs(limits):
    return SerialEnv(len(limits), [partial(limited, steps) for steps in limits])


def grid_batch():
    """Two workers with three environments each, whose trajectories differ in length."""
    collector = MultiSyncCollector(
        [partial(limited_envs, limits) for limits in GRID_LIMITS],
        policy_factory=make_policy,
        frames_per_batch=WORKERS * ENVS * GRID_STEPS,
        total_frames=-1,
        auto_register_policy_transforms=False,
    )
    try:
        return next(iter(collector)).clone()
    finally:
        collector.shutdown()


def grid():
    """A batch of two workers with three environments each, a cell for a step; SVG."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    batch, steps = grid_batch(), GRID_STEPS
    assert batch.shape == (WORKERS, ENVS, steps)
    # Which worker draws which number is chance: letters, in the order of the grid.
    order = dict.fromkeys(batch[IDS].flatten().tolist())
    names = {number: chr(ord("A") + place) for place, number in enumerate(order)}
    cells = [[[names[one] for one in row] for row in worker] for worker in batch[IDS].tolist()]
    ends = batch["next", "done"].squeeze(-1).tolist()
    rows = [(w, e) for w in range(WORKERS) for e in range(ENVS)]
    for w, e in rows:
        row, limit = cells[w][e], GRID_LIMITS[w][e]
        assert ends[w][e] == [t % limit == limit - 1 for t in range(steps)], "ended before"
        changes = [row[t] != row[t + 1] for t in range(steps - 1)]
        assert changes == ends[w][e][:-1], "the id does not change where a trajectory ends"
    in_row = [set(cells[w][e]) for w, e in rows]
    assert sum(map(len, in_row)) == len(names), "a trajectory is in two rows"
    settings = {"svg.fonttype": "none", "svg.hashsalt": "batch_grid", "text.color": INK}
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({**settings, "font.size": 11.4})
        figure = Figure(figsize=(5.45, 4.1))
        FigureCanvasSVG(figure)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(-3.4, steps + 0.15), ylim=(2 * ENVS + 3.05, -0.75))
        axes.axis("off")
        for w, e in rows:
            y = e + w * (ENVS + 0.9)
            axes.text(-0.15, y + 0.5, f"environment {e}", ha="right", va="center")
            for t, letter in enumerate(cells[w][e]):
                color = COLORS[sum(ends[w][e][:t]) % 2]
                place = (t + 0.04, y + 0.06), 0.92, 0.88
                axes.add_patch(mpl.patches.Rectangle(*place, fc=color, alpha=0.18))
                axes.add_patch(mpl.patches.Rectangle(*place, fill=False, ec=color))
                axes.text(t + 0.5, y + 0.5, letter, ha="center", va="center")
                if ends[w][e][t]:
                    axes.plot([t + 1] * 2, [y + 0.02, y + 0.98], color=INK, lw=3)
        for w in range(WORKERS):
            y = w * (ENVS + 0.9)
            axes.text(-3.35, y - 0.3, f"worker {w}", ha="left", va="center", weight="bold")
        bottom = 2 * ENVS + 1.3
        arrow = {"arrowstyle": "->", "color": INK, "lw": 1.2}
        axes.annotate("", (steps, bottom), (0, bottom), arrowprops=arrow)
        axes.text(steps / 2, bottom + 0.45, "time, the last dimension", ha="center", va="center")
        shape = f"batch.shape == {tuple(batch.shape)}: worker, environment, time"
        axes.text(steps + 0.1, bottom + 1.25, shape, ha="right", va="center")
        output = io.StringIO()
        metadata = {"Date": None, "Creator": None}
        figure.savefig(output, format="svg", transparent=True, metadata=metadata)
    return output.getvalue()


def main():
    multiprocessing.set_start_method("forkserver", force=True)
    leaks, detail, logged = leak()
    result = {
        "shapes": shapes(),
        "parallel_env": parallel_env(),
        "rounding": rounding(),
        "uneven_workers": uneven_workers(),
        "leak": leaks,
        "seam": detail,
        "logged": logged,
        "split_ids": split_ids(),
        "grid": grid(),
        **iterated(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
