"""Each known symptom in each pipeline that it concerns: the doctor never says ``clear`` beside it.

Nor does it when an argument is left out, and no healthy pipeline is told that it has a symptom.
The table is printed with ``pytest -s``: in a cell, a sign for each way to plant the symptom.
"""

from unittest import mock

import pytest
import torch
from torchrl_doctor import APPLIES, ARGUMENTS, CHECKS, CLEAR, FAILED, UNDECIDED, diagnose

from tests.support.healthy_pipelines import ALSO_TRUE, PIPELINES
from tests.support.planted import copy_of, plants

SECONDS = 60  # so that a busy machine changes no verdict
FRAMES = 10
NAMES = ("ppo", "a2c", "batched_ppo", "sac", "ddpg", "dqn", "rebuilt_dqn", "offline")
NAMES += ("recurrent_ppo", "recurrent_dqn")
FOUND, SILENT, WRONG, NOT_APPLICABLE = "found", "no verdict", "WRONG CLEAR", "not applicable"
SIGNS = {FOUND: "+", UNDECIDED: "?", SILENT: "-", WRONG: "C", FAILED: "F", NOT_APPLICABLE: "."}
STATES = {APPLIES: FOUND, CLEAR: WRONG, None: SILENT}


def trained(name):
    """The arguments of ``diagnose`` after some training steps, with the next batch."""
    torch.manual_seed(0)
    given, train = PIPELINES[name]()
    train()
    if "collector" not in given:
        return given | {"batch": given["replay_buffer"].storage[:].clone()}
    collector = given["collector"]
    parts = {"env": collector.env, "policy": collector.policy}
    return parts | given | {"batch": next(iter(collector)).clone()}


@pytest.fixture(scope="module")
def pipelines():
    made = {name: trained(name) for name in NAMES}
    yield made
    for one in made.values():
        if "collector" in one:
            one["collector"].shutdown()


def views(pipeline, read=ARGUMENTS):
    """The arguments, and all of them but one that is *read*; a symptom goes with its argument."""
    given = {name: value for name, value in pipeline.items() if name in ARGUMENTS}
    yield "all", given
    for name in given:
        if name in read and name != pipeline.get("planted_in"):
            yield f"no {name}", {one: value for one, value in given.items() if one != name}


def concerned(view):
    """The checks that a view can make a difference to: all, or those that read what it lacks."""
    if view == "all":
        return ()
    name = view.removeprefix("no ")
    read = {
        "batch": {"batch", "own_batch"},
        "collector": {"collector", "env", "policy", "replay_buffer", "sample"},
        "replay_buffer": {"replay_buffer", "sample"},
    }.get(name, {name})
    return [slug for slug, one in CHECKS.items() if read & set(one.takes)]


def verdict(slug, given):
    """What the check says, and its evidence; None where it says nothing."""
    with mock.patch.dict(CHECKS, {slug: CHECKS[slug]}, clear=True):
        report = diagnose(**given, frames=FRAMES, seconds=SECONDS)
    return next(((one.state, one.evidence) for one in report), (None, ""))


def cell(slug, plant, pipeline):
    """What becomes of each way to plant a symptom in a pipeline, and what is wrong with that."""
    states, wrong = [], []
    # The collector has an environment, a policy and a buffer, and gives batches.
    read = {"own_batch": "batch"}
    read = {read.get(name, name) for name in CHECKS[slug].takes}
    if read & {"env", "policy", "replay_buffer", "batch"}:
        read.add("collector")
    torch.manual_seed(0)
    for number, planted in enumerate(plant(pipeline)):
        for view, given in views(planted, read):
            if "batch" not in read:
                given = {"batch": pipeline["batch"]} | given  # none has to be collected
            state, evidence = verdict(slug, given)
            if view == "all":
                states.append(STATES.get(state, state))
            if state in (CLEAR, FAILED):
                wrong.append(f"{state} ({number}, {view}): {evidence}")
    return states or [NOT_APPLICABLE], wrong


def table(cells):
    """Symptoms by pipeline."""
    slugs = list(dict.fromkeys(slug for slug, _ in cells))
    lines = [" " * 46 + "".join(f"{name:>14}" for name in NAMES)]
    for slug in slugs:
        states = [cells.get((slug, name), [NOT_APPLICABLE]) for name in NAMES]
        signs = ["".join(SIGNS[state] for state in one) for one in states]
        lines.append(f"{slug:46}" + "".join(f"{sign:>14}" for sign in signs))
    counted = [state for states in cells.values() for state in states]
    lines += [f"{sign} {state}: {counted.count(state)}" for state, sign in SIGNS.items()]
    return "\n".join(lines)


# The whole matrix takes minutes; each symptom, and each pipeline, is in the third.
THIRD, ALL = 3, 1
shares = pytest.mark.parametrize(
    "step",
    [pytest.param(THIRD, id="third"), pytest.param(ALL, id="all", marks=pytest.mark.mutation)],
)


# Of what is planted: too many frames for the environments, a transform around another.
@pytest.mark.filterwarnings("ignore:frames_per_batch .* is not exactly divisible:UserWarning")
@pytest.mark.filterwarnings("ignore:Nested TransformedEnvs are:UserWarning")
@shares
def test_no_symptom_is_called_clear(pipelines, step):
    cells, wrong = {}, []
    for number, (slug, (plant, names)) in enumerate(plants().items()):
        names = names or NAMES
        for name in names[number % min(step, len(names)) :: step]:
            pipeline = copy_of(pipelines[name])
            cells[slug, name], said = cell(slug, plant, pipeline)
            wrong += [f"{slug} in {name}: {one}" for one in said]
    print("\n" + table(cells))
    told = {slug for (slug, _), states in cells.items() if {FOUND, UNDECIDED} & set(states)}
    if step == ALL:  # some need a certain pipeline
        assert plants().keys() - told == set(), "planted, and the doctor says nothing"
    assert {slug for slug, _ in cells} == plants().keys()
    assert {name for _, name in cells} == set(NAMES)
    assert wrong == []


def test_a_healthy_pipeline_is_told_nothing_whatever_is_given(pipelines):
    alarms = []
    for name, pipeline in pipelines.items():
        for view, given in views(pipeline):
            ignore = ALSO_TRUE.get(name, ())
            options = {"only": concerned(view), "ignore": ignore}
            report = diagnose(**given, frames=FRAMES, seconds=SECONDS, **options)
            found = [one for one in report if one.state in (APPLIES, FAILED)]
            alarms += [f"{name}, {view}: {one.slug}: {one.evidence}" for one in found]
    assert alarms == []


def single_steps(batch):
    """Ways to give steps of a batch one by one: of one environment, of all, and a step alone."""
    rows = batch.reshape(-1)
    yield [rows[number] for number in range(3)]
    yield list(batch.unbind(-1))[:3]
    yield (rows[0],)
    yield rows[0]


@shares
def test_no_check_fails_on_single_steps(pipelines, step):
    failed = []
    for name, pipeline in [*pipelines.items()][::step]:
        for steps in single_steps(pipeline["batch"]):
            for view, given in views(pipeline | {"batch": steps, "planted_in": "batch"}):
                only = concerned(view)
                report = diagnose(**given, frames=FRAMES, seconds=SECONDS, only=only)
                found = [one for one in report if one.state == FAILED]
                failed += [f"{name}: {one.slug}: {one.evidence}" for one in found]
    assert failed == []
