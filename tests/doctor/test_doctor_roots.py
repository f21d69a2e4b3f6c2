"""What follows from a root is there with it, and gone without it.

Each pair of ``FOLLOWS`` has a run: a healthy pipeline with the root planted into it, or the broken
side of a page, shows both, and the pipeline without the plant, or the fixed side, neither. The
pages run in ``tests/pages/symptoms/test_doctor_names_the_row.py``.
"""

import itertools

import pytest
import torch
from torchrl_doctor import ARGUMENTS, CHECKS, diagnose
from torchrl_doctor.report import Finding
from torchrl_doctor.roots import FOLLOWS, by_root, root_of
from torchrl_doctor.rows import ROWS

from tests.doctor.test_doctor_matrix import trained
from tests.support.planted import copy_of, plants
from tests.support.symptom_pages import FOLLOWS_ON

SECONDS = 60  # so that a busy machine changes no verdict
# (root, pipeline, which of the ways to plant it): what follows.
PLANTED = {
    ("actions_stay_random", "ppo", 1): ["log_prob_not_found"],
    ("actions_stay_random", "ppo", 2): ["log_probability_is_zero"],
    ("q_values_stop_improving", "dqn", 3): ["target_updater_never_steps"],
    ("ppo_worse_with_small_minibatches", "ppo", 1): ["advantages_look_like_noise"],
    ("ppo_ratio_off_in_minibatches", "recurrent_ppo", 0): ["advantages_look_like_noise"],
}


def finding(slug):
    return Finding(slug, slug, "applies", "seen", row=ROWS.get(slug))


def test_each_pair_has_a_run():
    shown = {(one, root) for (root, *_), below in PLANTED.items() for one in below}
    shown |= {(one, root) for root, below in FOLLOWS_ON.values() for one in below}
    assert shown == {(one, root) for one, roots in FOLLOWS.items() for root in roots}
    assert {name for pair in shown for name in pair} <= CHECKS.keys()


def test_no_symptom_follows_from_itself():
    for slug in FOLLOWS:
        above, seen = {slug}, set()
        while above:
            above = {root for one in above for root in FOLLOWS.get(one, ())}
            assert slug not in above
            assert not above & seen
            seen |= above


@pytest.fixture(scope="module")
def pipelines():
    made = {name: trained(name) for name in sorted({name for _, name, _ in PLANTED})}
    yield made
    for one in made.values():
        one["collector"].shutdown()


def looked_at(pipeline):
    given = {name: value for name, value in pipeline.items() if name in ARGUMENTS}
    report = diagnose(**given, frames=40, seconds=SECONDS)
    return {root.slug: [one.slug for one in below] for root, below in report.roots}


@pytest.mark.parametrize("run", PLANTED, ids=lambda run: "-".join(map(str, run)))
def test_what_follows_is_there_with_its_root_and_gone_without(run, pipelines):
    root, name, number = run
    torch.manual_seed(0)
    assert looked_at(pipelines[name]) == {}
    plant, _ = plants()[root]
    planted = next(itertools.islice(plant(copy_of(pipelines[name])), number, None))
    # A plant may leave copies behind, which are roots of their own.
    assert looked_at(planted)[root] == PLANTED[run]


def test_what_explains_most_is_first_and_then_what_is_loud():
    names = ["epsilon_never_goes_down", "is_init_not_found", "lstm_forgets_every_step"]
    names.append("lstm_raises_in_parallel_env_only")
    pairs = by_root([finding(name) for name in names])
    assert [root.slug for root, _ in pairs] == [names[2], names[1], names[0]]
    assert [[one.slug for one in below] for _, below in pairs] == [[names[3]], [], []]


def test_a_symptom_without_its_root_is_a_root():
    assert root_of("log_prob_not_found", ["epsilon_never_goes_down"]) is None
    assert [root.slug for root, _ in by_root([finding("log_prob_not_found")])] == [
        "log_prob_not_found"
    ]
