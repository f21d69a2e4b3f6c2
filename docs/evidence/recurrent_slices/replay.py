"""What a recurrent policy makes of a sample, for docs/reference/recurrent_slices.rst.

One policy collects, nothing is trained, and the loss side recomputes the log-probability of each
sampled action. As long as the weights are the same, a true replay gives the same log-probability,
so every difference is a fault of the replay.
"""

import json
import os

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import (
    LazyTensorStorage,
    RandomSampler,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
)
from torchrl.envs import Compose, GymEnv, InitTracker, StepCounter, TransformedEnv
from torchrl.modules import (
    GRUModule,
    LSTMModule,
    OneHotCategorical,
    ProbabilisticActor,
    set_recurrent_mode,
)

HIDDEN = 8
FRAMES = 160
SLICE_LEN = 8
N_SLICES = 8
BATCH = SLICE_LEN * N_SLICES
IDS = ("collector", "traj_ids")
TOLERANCE = 1e-4
KINDS = {
    "LSTM, pad": (LSTMModule, "pad"),
    "LSTM, scan": (LSTMModule, "scan"),
    "GRU, pad": (GRUModule, "pad"),
    "GRU, scan": (GRUModule, "scan"),
}


def make_actor(module, backend):
    """A policy with weights so wide that the hidden state decides about the action."""
    torch.manual_seed(3)
    states = ["h", "c"] if module is LSTMModule else ["h"]
    core = module(
        4,
        HIDDEN,
        in_keys=["observation", *states],
        out_keys=["feature", *(("next", state) for state in states)],
        recurrent_backend=backend,
    )
    head = TensorDictModule(torch.nn.Linear(HIDDEN, 2), ["feature"], ["logits"])
    actor = ProbabilisticActor(
        TensorDictSequential(core, head),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    for parameter in actor.parameters():
        torch.nn.init.uniform_(parameter, -1, 1)
    return core, actor


def collect(core, actor):
    """Several episodes; the collector stops in the middle of the last."""
    transforms = Compose(InitTracker(), StepCounter(), core.make_tensordict_primer())
    env = TransformedEnv(GymEnv("CartPole-v1"), transforms)
    env.set_seed(0)
    collector = Collector(
        env,
        actor,
        frames_per_batch=FRAMES,
        total_frames=FRAMES,
        auto_register_policy_transforms=False,
    )
    (batch,) = collector
    collector.shutdown()
    return batch


def sampled(batch, sampler, kind=TensorDictReplayBuffer, size=BATCH):
    """A sample of the stored batch, the same for every sampler with the same arguments."""
    buffer = kind(storage=LazyTensorStorage(len(batch)), sampler=sampler)
    buffer.extend(batch)
    torch.manual_seed(3)
    return buffer.sample(size)


def slices(**options):
    return SliceSampler(**{"slice_len": SLICE_LEN, "traj_key": IDS, **options})


def ratio(actor, sample, recurrent=True):
    """What a PPO loss would compute before the first step: current probability by stored one."""
    with torch.no_grad(), set_recurrent_mode(recurrent):
        now = actor.get_dist(sample.clone()).log_prob(sample["action"])
    return (now - sample["action_log_prob"]).exp().flatten()


def without_state(batch):
    keys = [key for key in batch.keys(True, True) if {"h", "c"} & {key, key[-1]}]
    return batch.exclude(*keys)


def samples_of(batch):
    """Each way to sample: the sample and whether the call is in recurrent mode."""
    flat = sampled(batch, slices())
    unmarked = sampled(batch, slices(init_key=None))
    short = slices(slice_len=2 * SLICE_LEN, strict_length=False)
    return {
        "``SliceSampler``": (flat, True),
        "... reshaped to (slices, steps)": (flat.reshape(-1, SLICE_LEN), True),
        "... ``strict_length=False``, slices of several lengths": (sampled(batch, short), True),
        "... in a plain ``ReplayBuffer``": (sampled(batch, slices(), ReplayBuffer), True),
        "... ``init_key=None``": (unmarked, True),
        "... ``init_key=None``, reshaped": (unmarked.reshape(-1, SLICE_LEN), True),
        "... stored without the hidden state": (sampled(without_state(batch), slices()), True),
        "... called outside recurrent mode": (flat, False),
        "``RandomSampler``": (sampled(batch, RandomSampler()), True),
    }


RIGHT = (
    "``SliceSampler``",
    "... reshaped to (slices, steps)",
    "... ``strict_length=False``, slices of several lengths",
    "... ``init_key=None``, reshaped",
)


def replay_table(batches):
    rows = []
    samples = {name: samples_of(batch) for name, (_, batch) in batches.items()}
    for how in samples["LSTM, pad"]:
        cells = []
        for name, (actor, _) in batches.items():
            sample, recurrent = samples[name][how]
            error = (ratio(actor, sample, recurrent) - 1).abs()
            wrong = int((error > TOLERANCE).sum())
            assert (wrong == 0) == (how in RIGHT), (how, name, wrong)
            cells.append((wrong, error.numel(), error.max().item()))
        for pad, scan in ((cells[0], cells[1]), (cells[2], cells[3])):
            assert pad[:2] == scan[:2], f"the backends differ: {how}"
        shown = []
        for wrong, total, largest in (cells[0], cells[2]):
            size = f", by up to {largest:.1g}" if wrong else ""
            shown.append(f"{wrong} of {total}{size}")
        rows.append([how, *shown])
    return {"columns": ["Sample", "LSTM: rows whose ratio is not 1", "GRU"], "rows": rows}


def bits(flags):
    return " ".join(str(int(flag)) for flag in flags.flatten())


def marks_table(batch):
    """Two slices as they are stored and as they are sampled."""
    rows = []
    for kind in (TensorDictReplayBuffer, ReplayBuffer):
        buffer = kind(storage=LazyTensorStorage(FRAMES), sampler=slices(slice_len=4))
        batch["row"] = torch.arange(FRAMES)
        buffer.extend(batch)
        torch.manual_seed(4)
        sample = buffer.sample(8)
        stored = batch[sample["row"]]
        for key in ("is_init", ("next", "done"), ("next", "truncated"), ("next", "terminated")):
            name = f'``"{key}"``' if isinstance(key, str) else f'``("next", "{key[1]}")``'
            if kind is TensorDictReplayBuffer:
                rows.append([name, f"``{bits(stored[key])}``", f"``{bits(sample[key])}``"])
            else:
                row = next(row for row in rows if row[0] == name)
                row.append(f"``{bits(sample[key])}``")
                assert row[3] == row[1], "a plain ReplayBuffer marks slices"
    assert rows[0][2] == "``1 0 0 0 1 0 0 0``", "is_init does not mark the starts of slices"
    assert rows[1][2] == rows[2][2] == "``0 0 0 1 0 0 0 1``", "the ends are not marked"
    assert rows[3][2] == rows[3][1], "the sampler writes terminated"
    columns = ["Entry", "Stored", "``TensorDictReplayBuffer``", "``ReplayBuffer``"]
    return {"columns": columns, "rows": rows}


def joins(sample, slice_len):
    """How many slices hold two rows that did not follow each other."""
    cut = sample.reshape(-1, slice_len)
    follows = cut["step_count"][:, 1:] == cut["step_count"][:, :-1] + 1
    return int((~follows).any(1).sum())


def second_table(actor, batch):
    """A sample stored in a second buffer, as the block on upstream's page does."""
    by_id, by_mark = slices(), slices(traj_key=None, end_key=("next", "truncated"))
    rows = []
    for kind, sampler, cut in (
        (TensorDictReplayBuffer, by_id, "trajectory id"),
        (TensorDictReplayBuffer, by_mark, "``truncated``"),
        (ReplayBuffer, slices(), "trajectory id"),
    ):
        first = sampled(batch, slices(), kind, FRAMES)
        sample = sampled(first.exclude("index"), sampler, size=FRAMES)
        wrong = int(((ratio(actor, sample) - 1).abs() > TOLERANCE).sum())
        broken = joins(sample, SLICE_LEN)
        assert (broken > 0) == (cut == "trajectory id"), (cut, broken)
        assert (wrong > 0) == (kind is ReplayBuffer), (kind, wrong)
        cells = f"{broken} of {FRAMES // SLICE_LEN}", f"{wrong} of {FRAMES}"
        rows.append([f"``{kind.__name__}``", cut, *cells])
    columns = [
        "First buffer",
        "Second buffer cuts at",
        "Slices that join two places",
        "Rows whose ratio is not 1",
    ]
    return {"columns": columns, "rows": rows}


def main():
    batches = {}
    for name, (module, backend) in KINDS.items():
        core, actor = make_actor(module, backend)
        batches[name] = actor, collect(core, actor)
    actor, batch = batches["LSTM, pad"]
    done = batch["next", "done"]
    assert done.sum() > 3, "too few episodes"
    assert not done[-1], "the last episode is complete"
    return {
        "marks": marks_table(batch.clone()),
        "replay": replay_table(batches),
        "second": second_table(actor, batch),
        "state-share": f"{100 * (1 - without_state(batch).bytes() / batch.bytes()):.0f} %",
        "hidden": HIDDEN,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(main()))
