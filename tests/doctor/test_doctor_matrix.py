"""Each known symptom in each pipeline that it concerns: the doctor never says ``clear`` beside it.

Nor does it when an argument is left out, and no healthy pipeline is told that it has a symptom.
"""

import pytest
import torch
import torchrl_doctor
from torchrl_doctor import APPLIES, CHECKS, CLEAR, FAILED, UNDECIDED, diagnose

from tests.support.healthy_pipelines import PIPELINES
from tests.support.planted import copy_of, plants

SECONDS = 60  # so that a busy machine changes no verdict
FRAMES = 24
NAMES = ("ppo", "a2c", "batched_ppo", "sac", "ddpg", "dqn", "rebuilt_dqn", "offline")
NAMES += ("recurrent_ppo", "recurrent_dqn")
FOUND, MISSED, WRONG, ALARM = "found", "no verdict", "WRONG CLEAR", "FALSE ALARM"
SIGNS = {FOUND: "+", UNDECIDED: "?", MISSED: "0", WRONG: "CLEAR", None: "."}


def trained(name):
    """The arguments of ``diagnose`` after some training steps, with the next batch."""
    torch.manual_seed(0)
    given, train = PIPELINES[name]()
    train()
    collector = given.get("collector")
    given = {
        "env": getattr(collector, "env", None),
        "policy": getattr(collector, "policy", None),
    } | given
    if collector is None:
        return given | {"batch": given["replay_buffer"].storage[:].clone(), "frames": 64}
    batch = next(iter(collector)).clone()
    return given | {"batch": batch, "frames": batch.numel()}


@pytest.fixture(scope="module")
def pipelines():
    made = {name: trained(name) for name in NAMES}
    yield made
    for one in made.values():
        if "collector" in one:
            one["collector"].shutdown()


def arguments(pipeline):
    return {name: value for name, value in pipeline.items() if name in torchrl_doctor.ARGUMENTS}


def views(given, slug=None):
    """The arguments, and all of them but one that makes a difference to the check."""
    yield "all", given
    parts = {"env", "policy", "replay_buffer", "batch", "collector"}
    read = {*CHECKS[slug].takes} if slug else {*CHECKS["lstm_forgets_every_step"].takes}
    for name in given:
        if slug is None or name in read or (name == "collector" and read & parts):
            yield f"no {name}", {n: value for n, value in given.items() if n != name}


def verdict(slug, given, monkeypatch):
    """What the check says, and its evidence; None where it says nothing."""
    with monkeypatch.context() as patch:
        patch.setattr(torchrl_doctor, "CHECKS", {slug: CHECKS[slug]})
        report = diagnose(**given, frames=FRAMES, seconds=SECONDS)
    return next(((one.state, one.evidence) for one in report), (None, ""))


def cell(slug, plant, pipeline, monkeypatch):
    """What becomes of a symptom in a pipeline, and what is wrong with that."""
    found, wrong = [], []
    torch.manual_seed(0)
    for number, planted in enumerate(plant(pipeline)):
        for view, given in views(arguments(planted), slug):
            if view == f"no {planted.get('planted_in')}":
                continue
            if not {"batch", "own_batch"} & set(CHECKS[slug].takes):
                given = {"batch": pipeline["batch"]} | given  # none has to be collected
            state, evidence = verdict(slug, given, monkeypatch)
            if view == "all":
                found.append({APPLIES: FOUND, None: MISSED}.get(state, state))
            if state in (CLEAR, FAILED):
                wrong.append(f"{state} (plant {number}, {view}): {evidence}")
    return found, wrong


def table(cells):
    """Symptoms by pipeline; of several ways to plant one the signs stand side by side."""
    width = max(map(len, NAMES)) + 2
    lines = [" " * 48 + "".join(f"{name:>{width}}" for name in NAMES)]
    for slug in plants():
        signs = [
            "".join(SIGNS.get(s, "C") for s in cells.get((slug, name), [None])) for name in NAMES
        ]
        lines.append(f"{slug:48}" + "".join(f"{sign or '.':>{width}}" for sign in signs))
    return "\n".join(lines)


def test_no_symptom_is_called_clear_and_each_is_told_of(pipelines, monkeypatch, capsys):
    cells, wrong = {}, []
    for slug, (plant, names) in plants().items():
        for name in names or NAMES:
            pipeline = pipelines[name]
            found, said = cell(slug, plant, copy_of(pipeline), monkeypatch)
            cells[slug, name] = found or [None]
            wrong += [f"{slug} in {name}: {one}" for one in said]
    counts = [state for states in cells.values() for state in states if state]
    with capsys.disabled():
        print("\n" + table(cells))
        print({state: counts.count(state) for state in sorted(set(counts))})
    assert wrong == []


def test_a_healthy_pipeline_is_told_nothing_whatever_is_given(pipelines):
    alarms = []
    for name, pipeline in pipelines.items():
        for view, given in views(arguments(pipeline)):
            report = diagnose(**given, frames=FRAMES, seconds=SECONDS)
            alarms += [
                f"{name}, {view}: {one.slug} {one.state}: {one.evidence}"
                for one in report
                if one.state in (APPLIES, FAILED)
            ]
    assert alarms == []
