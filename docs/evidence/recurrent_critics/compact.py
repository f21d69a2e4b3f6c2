"""Compact observations and a recurrent agent, for docs/reference/recurrent_critics.rst.

The same agent collects the same batch three times: with everything, compact, and compact without
the preallocated buffer. Actor and critic are a GRU each.
"""

import json
import os

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import Compose, GymEnv, InitTracker, StepCounter, TransformedEnv
from torchrl.envs.transforms import NextStateReconstructor
from torchrl.modules import (
    GRUModule,
    OneHotCategorical,
    ProbabilisticActor,
    ValueOperator,
    set_recurrent_mode,
)
from torchrl.objectives.value import GAE

HIDDEN = 8
FRAMES = 60
MAX_STEPS = 15
BUDGET = 9  # more than there are truncated ends in the batch
COLLECTORS = {
    "``compact_obs=False``": {},
    "``compact_obs=True``": {"compact_obs": True},
    "``compact_obs=True, use_buffers=False``": {"compact_obs": True, "use_buffers": False},
}
CALLS = {
    "``deactivate_vmap=True``": {"deactivate_vmap": True},
    "``shifted=True``": {"shifted": True, "shifted_budget": BUDGET},
}


def collect(**options):
    """Actor, critic and one batch, which depends on nothing but *options*."""
    torch.manual_seed(0)
    cores = [
        GRUModule(
            4,
            HIDDEN,
            in_keys=["observation", f"{who}_h"],
            out_keys=[f"{who}_feature", ("next", f"{who}_h")],
        )
        for who in ("actor", "critic")
    ]
    head = TensorDictModule(torch.nn.Linear(HIDDEN, 2), ["actor_feature"], ["logits"])
    actor = ProbabilisticActor(
        TensorDictSequential(cores[0], head),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    value = ValueOperator(torch.nn.Linear(HIDDEN, 1), in_keys=["critic_feature"])
    critic = TensorDictSequential(cores[1], value)
    primers = [core.make_tensordict_primer() for core in cores]
    transforms = Compose(InitTracker(), StepCounter(MAX_STEPS), *primers)
    env = TransformedEnv(GymEnv("CartPole-v1"), transforms)
    env.set_seed(0)
    collector = Collector(
        env,
        TensorDictSequential(actor, critic),
        frames_per_batch=FRAMES,
        total_frames=FRAMES,
        auto_register_policy_transforms=False,
        **options,
    )
    (batch,) = collector
    collector.shutdown()
    return actor, critic, batch.exclude("state_value", "critic_feature").clone()


def kept_table(batches):
    full = batches["``compact_obs=False``"]
    rows = []
    for name, batch in batches.items():
        following = batch["next"]
        assert (batch.exclude("next") == full.exclude("next")).all(), "the root differs"
        state = "absent"
        if "critic_h" in following:
            state = "the state" if following["critic_h"].any() else "zeros"
        flag = "present" if "is_init" in following else "absent"
        rows.append([name, f"{batch.bytes() // FRAMES}", state, f"{flag}"])
    assert [row[2:] for row in rows] == [
        ["the state", "present"],
        ["zeros", "absent"],
        ["absent", "absent"],
    ]
    columns = [
        "Collector",
        "Bytes per frame",
        "Hidden state in ``next``",
        '``("next", "is_init")``',
    ]
    return {"columns": columns, "rows": rows}


def rebuild(*keys, **options):
    return NextStateReconstructor(keys, step_count_key="step_count", **options)


def following_values(critic, batch, **options):
    with torch.no_grad(), set_recurrent_mode(True):
        GAE(gamma=0.99, lmbda=0.95, value_network=critic, **options)(data := batch.clone())
        # The sanitizer of GAE works on a copy where it found NaN, so ask it for the values.
        if ("next", "state_value") not in data.keys(True):
            kept = {}
            gae = GAE(gamma=0.99, lmbda=0.95, value_network=critic, **options)
            call = gae._call_value_nets
            gae._call_value_nets = lambda **given: kept.setdefault("values", call(**given))
            gae(batch.clone())
            return kept["values"][1]
    return data["next", "state_value"]


PREPARED = {
    "nothing rebuilt": list,
    '``"observation"`` rebuilt': lambda: [rebuild("observation")],
    '... and ``"is_init"``': lambda: [rebuild("observation", "is_init")],
    '... and ``"is_init"`` with ``fill_value=0``': lambda: [
        rebuild("observation"),
        rebuild("is_init", fill_value=0),
    ],
    "... and the hidden state": lambda: [
        rebuild("observation", "critic_h"),
        rebuild("is_init", fill_value=0),
    ],
}


def outcome(critic, batch, transforms, options, truth, ends):
    """Which rows have another V(s') than the batch with everything, or the error."""
    data = batch.clone()
    try:
        for transform in transforms:
            data = transform(data)
        values = following_values(critic, data, **options)
    except (KeyError, RuntimeError, TypeError) as error:
        return type(error).__name__, f"{type(error).__name__}: {error.args[0]}"
    goes_on = ~batch["next", "terminated"].flatten()
    wrong = (((values - truth).abs().flatten() > 1e-5) & goes_on).nonzero().flatten().tolist()
    if set(wrong) == ends:
        return "wrong at ends", None
    assert len(wrong) > 0.9 * goes_on.sum() > 2 * len(ends), wrong
    return "wrong everywhere", None


def estimates_table(critic, batches):
    full = batches["``compact_obs=False``"]
    truth = following_values(critic, full, deactivate_vmap=True)
    cut = full["next", "truncated"].flatten()
    cut[-1] = True  # nothing follows the last row of the batch
    goes_on = ~full["next", "terminated"].flatten()
    ends = set((cut & goes_on).nonzero().flatten().tolist())
    assert len(ends) > 2
    rows, errors = [], {}
    for prepared, transforms in PREPARED.items():
        row = [prepared]
        for kind in list(batches)[1:]:
            for options in CALLS.values():
                text, message = outcome(critic, batches[kind], transforms(), options, truth, ends)
                if message:
                    errors.setdefault(message.split(" in TensorDict")[0].split("; ")[0], None)
                    text = f"``{text}``"
                row.append(text)
        assert row[2] == row[4], "shifted=True depends on the buffer"
        rows.append([row[0], row[1], row[3], row[2]])
    last = rows[-1]
    assert last[1:] == ["wrong at ends"] * 3, last
    assert rows[0][3] == "wrong at ends", "shifted=True needs a reconstructor"
    assert rows[3][1] == "wrong everywhere", rows[3]
    assert rows[3][2] == "``RuntimeError``", rows[3]
    columns = [
        "Prepared",
        "``deactivate_vmap=True``",
        "the same, ``use_buffers=False``",
        "``shifted=True``, both",
    ]
    return {"columns": columns, "rows": rows}, "\n".join(errors)


def actor_is_right(actor, batch):
    """Slices of a compact batch give the actor's probabilities; it reads nothing under next."""
    sampler = SliceSampler(slice_len=8, traj_key=("collector", "traj_ids"))
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(FRAMES), sampler=sampler)
    buffer.extend(batch)
    torch.manual_seed(0)
    sample = buffer.sample(64)
    with torch.no_grad(), set_recurrent_mode(True):
        now = actor.get_dist(sample.clone()).log_prob(sample["action"])
    torch.testing.assert_close(now, sample["action_log_prob"])


def main():
    batches = {}
    for name, options in COLLECTORS.items():
        actor, critic, batches[name] = collect(**options)
        actor_is_right(actor, batches[name])
    estimates, errors = estimates_table(critic, batches)
    return {"kept": kept_table(batches), "estimates": estimates, "errors": errors}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(main()))
