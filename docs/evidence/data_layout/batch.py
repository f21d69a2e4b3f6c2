"""What a batch holds, for docs/reference/data_layout.rst: keys, bytes, flags, names, one figure."""

import io
import json
import os
from functools import partial
from itertools import accumulate

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import torch
from tensordict import TensorDict, lazy_stack
from torchrl.collectors import Collector
from torchrl.collectors.utils import split_trajectories
from torchrl.data import (
    Binary,
    Composite,
    LazyTensorStorage,
    OneHot,
    ReplayBuffer,
    SliceSampler,
    Unbounded,
)
from torchrl.envs import (
    Compose,
    EnvBase,
    GymEnv,
    InitTracker,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)
from torchrl.objectives.value import GAE

FLAGS = ("done", "terminated", "truncated")
INK = "#010203"  # becomes the color of the page's text


class Count(EnvBase):
    """Trajectory k observes 10k, 10k + 1, 10k + 2 and ends with 10k + 3."""

    def __init__(self, **flags):
        super().__init__()
        self.flags_at_the_end = flags or {"terminated": True}
        self.observation_spec = Composite(observation=Unbounded((1,)))
        self.action_spec = OneHot(2)
        self.reward_spec = Unbounded((1,))
        flag = Binary(1, dtype=torch.bool)
        self.full_done_spec = Composite(done=flag, terminated=flag, truncated=flag)
        self.now = 0

    def _reset(self, tensordict=None):
        self.now = self.now // 10 * 10 + 10
        return TensorDict(observation=torch.tensor([float(self.now)]))

    def _step(self, tensordict):
        self.now += 1
        end = self.now % 10 == 3
        flags = {key: torch.tensor([end and on]) for key, on in self.flags_at_the_end.items()}
        observation = torch.tensor([float(self.now)])
        return TensorDict(observation=observation, reward=torch.ones(1), **flags)

    def _set_seed(self, seed):
        return seed


def collect(frames, env, **options):
    """First batch of random actions."""
    collector = Collector(env, None, frames_per_batch=frames, total_frames=frames, **options)
    try:
        return next(iter(collector))
    finally:
        collector.shutdown()


def cartpole():
    """CartPole with the two transforms that mark the starts, cut after three steps."""
    return TransformedEnv(GymEnv("CartPole-v1"), Compose(InitTracker(), StepCounter(max_steps=3)))


def leaves(data):
    """Entries of a TensorDict by key, each key a tuple."""
    entries = data.items(include_nested=True, leaves_only=True)
    return {key if isinstance(key, tuple) else (key,): value for key, value in entries}


def literal(key):
    """A key as a reader would type it."""
    return (
        f"``{json.dumps(key[0])}``" if len(key) == 1 else f"``({', '.join(map(json.dumps, key))})``"
    )


def keys_table(frames=8):
    """Who writes which key first, and how it is laid out."""
    env = cartpole()
    seen, writer = set(), {}
    data = env.reset()
    stages = {
        "reset": lambda: data,
        "policy": lambda: env.rand_action(data),
        "environment step": lambda: env.step(data),
        "collector": lambda: collect(frames, cartpole()),
    }
    for stage, run in stages.items():
        batch = run()
        for key in leaves(batch).keys() - seen:
            writer[key] = stage
        seen |= leaves(batch).keys()
    assert leaves(batch).keys() == seen, "a key that was written is missing in the batch"
    assert writer["next", "reward"] == "environment step"
    assert writer["collector", "traj_ids"] == "collector"
    rows = []
    for stage in stages:
        for key in sorted(key for key in writer if writer[key] == stage):
            value = batch[key]
            kind = str(value.dtype).removeprefix("torch.")
            rows.append([literal(key), stage, f"``{tuple(value.shape)}``", f"``{kind}``"])
    return {
        "columns": ["key", "first written by", f"shape in a batch of {frames}", "dtype"],
        "rows": rows,
    }


def bytes_table(frames=8):
    """Bytes of each key, with and without the next observations."""
    full, compact = (collect(frames, cartpole(), compact_obs=value) for value in (False, True))
    sizes, left = leaves(full), leaves(compact)
    assert full.bytes() == sum(value.nbytes for value in sizes.values())
    assert compact.bytes() == sum(value.nbytes for value in left.values())
    dropped = sizes.keys() - left.keys()
    assert dropped == {("next", key) for key in ("observation", "is_init", "step_count")}
    rows = [
        [
            literal(key),
            str(value.nbytes // frames),
            "dropped" if key in dropped else str(left[key].nbytes // frames),
        ]
        for key, value in sorted(sizes.items(), key=lambda item: (-item[1].nbytes, item[0]))
    ]
    rows.append(["**all**", str(full.bytes() // frames), str(compact.bytes() // frames)])
    return {"columns": ["key", "bytes per frame", "with ``compact_obs``"], "rows": rows}


def outcome(batch):
    """Flags of the third row, and what happens after it: a reset, a new trajectory id."""
    flags = [bool(batch["next", flag][2]) for flag in FLAGS]
    resets = bool(batch["observation"][3] != batch["next", "observation"][2])
    ids = batch["collector", "traj_ids"]
    return (*flags, resets, bool(ids[3] != ids[2]))


def completed_table():
    """What the base class makes of the flags that an environment writes."""
    cases = [
        {"terminated": True},
        {"terminated": False, "truncated": True},
        {"done": True},
        {"done": True, "truncated": True},
        {"done": False, "terminated": False, "truncated": True},
        {"done": True, "terminated": False, "truncated": True},
    ]
    rows, alone, inside = [], [], []
    for written in cases:
        said = ", ".join(f"``{key}={value}``" for key, value in written.items())
        try:
            alone.append(outcome(collect(4, Count(**written))))
            shown = ["yes" if answer else "no" for answer in alone[-1]]
        except RuntimeError as error:
            if "Cannot infer the value of terminated" not in str(error):
                raise
            alone.append(None)
            shown = ["error"] + ["--"] * 4
        inside.append(outcome(collect(4, SerialEnv(1, partial(Count, **written)))[0]))
        rows.append([said, *shown, "yes" if inside[-1][3] else "no"])
    assert alone[0] == (True, True, False, True, True)
    assert alone[1] == (True, False, True, True, True)
    assert alone[2] == (True, True, False, True, True), "a lone done is taken for a termination"
    assert alone[3] is None
    assert alone[4] == (False, False, True, False, True), (
        "a done that is written is not corrected; the reset follows done, the id any flag"
    )
    assert alone[5] == (True, False, True, True, True)
    assert all(resets == done for done, *_, resets, _ in filter(None, alone))
    assert [answer[3] for answer in inside] == ["done" in w and w["done"] for w in cases], (
        "a batched environment completes no done flag"
    )
    assert all(answer[4] for answer in inside), "the trajectory id follows any flag"
    header = ["the environment writes", *(f"``{flag}``" for flag in FLAGS), "reset", "new id"]
    return {"columns": [*header, "reset in a ``SerialEnv``"], "rows": rows}


def gae_reads(flags):
    """Whether GAE bootstraps after the flagged row, and whether it stops there."""
    gamma, lmbda, value, after = 0.9, 0.5, 2.0, 10.0
    data = TensorDict(
        {
            "state_value": torch.tensor([[value], [0.0]]),
            "next": {
                "state_value": torch.tensor([[after], [0.0]]),
                "reward": torch.tensor([[1.0], [100.0]]),
                **{key: torch.tensor([[flag], [True]]) for key, flag in flags.items()},
            },
        },
        [2],
    )
    advantage = GAE(gamma=gamma, lmbda=lmbda, value_network=None)(data)["advantage"][0].item()
    outcomes = {
        (bootstraps, stops): 1.0
        + gamma * after * bootstraps
        - value
        + gamma * lmbda * 100.0 * (not stops)
        for bootstraps in (False, True)
        for stops in (False, True)
    }
    found = [case for case, expected in outcomes.items() if abs(advantage - expected) < 1e-4]
    assert len(found) == 1, f"GAE gives {advantage}, which is none of {outcomes}"
    return found[0]


def sampler_stops(flags):
    """Whether a slice sampler without trajectory ids ends its slices at the flagged row."""
    rows = {key: torch.tensor([[False], [flag], [False], [True]]) for key, flag in flags.items()}
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(4),
        sampler=SliceSampler(slice_len=2, end_key=("next", "done")),
        batch_size=64,
    )
    buffer.extend(TensorDict({"row": torch.arange(4), "next": rows}, [4]))
    torch.manual_seed(0)
    starts = set(buffer.sample()["row"].view(-1, 2)[:, 0].tolist())
    assert {0, 2} <= starts
    return 1 not in starts


def split_stops(flags):
    """Whether split_trajectories without trajectory ids cuts after the flagged row."""
    rows = {key: torch.tensor([[False], [flag], [False], [True]]) for key, flag in flags.items()}
    return len(split_trajectories(TensorDict({"next": rows}, [4]))) == 2


def flags_table():
    """Who acts on which flag."""
    rows, seen = [], {}
    for terminated, truncated, done in [
        (False, False, False),
        (True, False, True),
        (False, True, True),
        (True, True, True),
        (False, True, False),
        (True, False, False),
    ]:
        flags = {"terminated": terminated, "truncated": truncated, "done": done}
        answers = [*gae_reads(flags), sampler_stops(flags), split_stops(flags)]
        seen[terminated, truncated, done] = answers
        rows.append(
            [str(terminated), str(truncated), str(done), *("yes" if a else "no" for a in answers)]
        )
    for (terminated, _, done), (bootstraps, *stops) in seen.items():
        assert bootstraps == (not terminated), "GAE bootstraps unless terminated"
        assert stops == [done] * 3, "GAE, the sampler and the splitter read done, and nothing else"
    header = [
        "``terminated``",
        "``truncated``",
        "``done``",
        "GAE bootstraps",
        "GAE stops",
        "slices stop",
        "split cuts",
    ]
    return {"columns": header, "rows": rows}


def walks_time(data, dim):
    """Whether neighbors along *dim* are consecutive steps, or have an end between them."""
    steps, done = data["step_count"].squeeze(-1), data["next", "done"].squeeze(-1)
    length = data.shape[dim] - 1
    consecutive = steps.narrow(dim, 1, length) == steps.narrow(dim, 0, length) + 1
    return bool((consecutive | done.narrow(dim, 0, length)).all())


def names_table():
    """What becomes of the name of the time dimension, and which dimension GAE takes."""
    batch = collect(24, SerialEnv(3, cartpole))
    assert batch.names == [None, "time"]
    buffer = ReplayBuffer(storage=LazyTensorStorage(100, ndim=2))
    buffer.extend(batch)
    cases = {
        "as collected": batch,
        "``batch[0]``": batch[0],
        "``torch.stack([batch, batch])``": torch.stack([batch, batch]),
        "``batch.transpose(0, 1)``": batch.transpose(0, 1),
        "``torch.stack(batch.unbind(-1))``": torch.stack(batch.unbind(-1)),
        "``batch.reshape(-1)``": batch.reshape(-1),
        "``lazy_stack(batch.unbind(-1), -1)``": lazy_stack(batch.unbind(-1), -1),
        "``split_trajectories(batch)``": split_trajectories(batch),
        "``buffer[:]``, storage with ``ndim=2``": buffer[:],
    }
    rows, right = [], {}
    for said, data in cases.items():
        dim = GAE(gamma=0.9, lmbda=0.9, value_network=None)._get_time_dim(None, data)
        right[said] = walks_time(data, dim)
        names = [f"``{name!r}``" if name else "--" for name in data.names]
        rows.append(
            [
                said,
                f"``{tuple(data.shape)}``",
                ", ".join(names),
                str(dim),
                "yes" if right[said] else "**no**",
            ]
        )
    assert [said for said, walks in right.items() if not walks] == [
        "``torch.stack(batch.unbind(-1))``",
        "``batch.reshape(-1)``",
        "``split_trajectories(batch)``",
    ], right
    unnamed = [said for said, data in cases.items() if "time" not in data.names and right[said]]
    assert unnamed == [
        "``lazy_stack(batch.unbind(-1), -1)``",
        "``buffer[:]``, storage with ``ndim=2``",
    ], f"without a name and walked rightly: {unnamed}"
    header = ["after", "batch size", "names", "GAE runs along dim", "that is time"]
    return {"columns": header, "rows": rows}


def figure():
    """Five rows of two trajectories, drawn from a batch."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    batch = collect(5, TransformedEnv(Count(), InitTracker()))
    ids = batch["collector", "traj_ids"].tolist()
    columns = [  # name, width, values
        ("is_init", 0.8, batch["is_init"]),
        ("observation", 1.3, batch["observation"]),
        ("observation", 1.3, batch["next", "observation"]),
        ("reward", 0.8, batch["next", "reward"]),
        ("done", 0.75, batch["next", "done"]),
        ("traj_ids", 1.05, batch["collector", "traj_ids"]),
    ]
    edges = list(accumulate((width for _, width, _ in columns), initial=0.0))
    cells = [
        [
            f"{cell:g}" if value.dtype.is_floating_point else str(cell)
            for cell in value.flatten().tolist()
        ]
        for *_, value in columns
    ]
    observed, following = cells[1], cells[2]
    assert ids == [0, 0, 0, 1, 1]
    assert [following[t] == observed[t + 1] for t in range(4)] == [True, True, False, True]

    first, second = "#1f80c4", "#d1661f"
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(
            {
                "svg.fonttype": "none",
                "svg.hashsalt": "data_layout",
                "text.color": INK,
                "font.size": 11.4,
            }
        )
        canvas = Figure(figsize=(5.4, 3.4))
        FigureCanvasSVG(canvas)
        axes = canvas.add_axes((0, 0, 1, 1))
        axes.set(xlim=(-0.8, 6.05), ylim=(5.6, -1.45))
        axes.axis("off")
        for left, right, text in [(0, 1, "root"), (2, 4, '"next"'), (5, 5, '"collector"')]:
            start, end = edges[left], edges[right + 1]
            axes.plot([start + 0.06, end - 0.06], [-0.72] * 2, color=INK, lw=1)
            axes.text((start + end) / 2, -1.0, text, ha="center", va="center")
        for x, (name, width, _) in enumerate(columns):
            middle = edges[x] + width / 2
            axes.text(middle, -0.35, name, ha="center", va="center")
            for t, trajectory in enumerate(ids):
                color = (first, second)[trajectory]
                place = (edges[x] + 0.04, t + 0.08), width - 0.08, 0.84
                axes.add_patch(mpl.patches.Rectangle(*place, fc=color, alpha=0.18))
                axes.add_patch(mpl.patches.Rectangle(*place, fill=False, ec=color))
                axes.text(middle, t + 0.5, cells[x][t], ha="center", va="center")
        for t in range(5):
            axes.text(-0.15, t + 0.5, f"t = {t}", ha="right", va="center")
            if t < 4 and following[t] == observed[t + 1]:
                axes.annotate(
                    "",
                    (edges[2] - 0.35, t + 1.36),
                    (edges[2] + 0.35, t + 0.64),
                    arrowprops={"arrowstyle": "-", "color": INK, "lw": 1.2},
                )
        for row in (3, 5):
            axes.plot([-0.75, 6.0], [row] * 2, color=INK, lw=1.5, ls="--")
        end = "the batch ends, done is False"
        axes.text(6.0, 5.3, end, ha="right", va="center")
        output = io.StringIO()
        canvas.savefig(
            output, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    return output.getvalue()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(
        json.dumps(
            {
                "keys": keys_table(),
                "bytes": bytes_table(),
                "completed": completed_table(),
                "flags": flags_table(),
                "names": names_table(),
                "figure": figure(),
            }
        )
    )
