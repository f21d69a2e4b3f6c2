"""The tutorial on sequence training can fail."""

import ast
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.claims import guards
from tests.support.tutorial_script import run_driver

pytestmark = [pytest.mark.slow, pytest.mark.mutation]

PAGE = ROOT / "tutorials" / "recurrent" / "sequence_training.py"
PROOFS = Path(__file__).parent / "proofs" / "sequence_training.py"

# Runs in one process, which imports torchrl once for all changes. A change is either a patch of
# torchrl or another text of the page. Writes {change: failing statement of the page} as JSON.
DRIVER = """
import contextlib, json, sys
page = sys.argv[1]
import matplotlib
matplotlib.use("agg")
from unittest import mock
import torchrl.objectives.common as common
from torchrl.data import SliceSampler
from torchrl.modules import set_recurrent_mode
from tests.support.tutorial_script import failing_assertion

ONE_SEED = ("SEEDS = range(3)", "SEEDS = range(1)")
TEXTS = {
    "nothing": [ONE_SEED],
    "other_seeds": [("SEEDS = range(3)", "SEEDS = range(3, 8)")],
    "other_gravity": [("POLE_M = 9.8", "POLE_M = 9.9")],
    "no_primer": [("env.append_transform(features.make_tensordict_primer())", "pass")],
    "slices_of_full_length_only": [("strict_length=False", "strict_length=True")],
    "is_init_all_false_in_the_loss": [('if mistake == "all-False is_init":', "if True:")],
    "no_recurrent_mode": [('if mistake == "no recurrent mode":', "if True:")],
    "no_recurrent_mode_and_ratio_ignored": [
        ('if mistake == "no recurrent mode":', "if True:"),
        ("RATIO_TOLERANCE = 5e-3", "RATIO_TOLERANCE = 9"),
    ],
    "no_update": [("optimizer.step()", "pass")],
    "velocities_shown": [ONE_SEED, ("self.state[:, ::2]", "self.state[:, 2:]")],
    "primer_put_back": [ONE_SEED, ('primer=mistake != "no primer"', "primer=True")],
    "marks_put_back": [ONE_SEED, ('if mistake == "all-False is_init":', "if False:")],
    "mode_put_back": [ONE_SEED, ('if mistake == "no recurrent mode":', "if False:")],
}


def slices_not_marked():
    init = SliceSampler.__init__

    def unmarked(self, **kwargs):
        init(self, **{**kwargs, "init_key": None})

    return mock.patch.object(SliceSampler, "__init__", unmarked)


def loss_leaves_mode_alone():
    return mock.patch.object(common, "set_recurrent_mode", lambda mode: set_recurrent_mode(None))


PATCHES = {"slices_not_marked": slices_not_marked, "loss_leaves_mode_alone": loss_leaves_mode_alone}


def failing_statement(change):
    source = open(page).read()
    for old, new in TEXTS.get(change, []):
        assert old in source, old
        source = source.replace(old, new)
    if EARLY:
        end = "# Before you run the loop" if change == "other_gravity" else "# Then train with"
        assert end in source, end
        source = source.partition(end)[0].rpartition("# %%")[0] + PROOFS
    patch = PATCHES.get(change, contextlib.nullcontext)
    with patch():
        return failing_assertion(page, source)


print(json.dumps({change: failing_statement(change) for change in CHOSEN}))
"""

# Before the first training:
CAUGHT_EARLY = {
    "other_gravity": (
        "torch.testing.assert_close("
        "row['next', 'state'], torch.from_numpy(state), rtol=0, atol=1e-05)"
    ),
    "no_primer": "assert STATE_KEY in batch",
    "slices_of_full_length_only": "assert lengths.min() < lengths.max() == SLICE_STEPS",
    "slices_not_marked": "assert starts.sum() == N_SLICES",
    "is_init_all_false_in_the_loss": "assert abs(max_ratio - 1) < RATIO_TOLERANCE",
    "no_recurrent_mode": "assert abs(max_ratio - 1) < RATIO_TOLERANCE",
    "loss_leaves_mode_alone": "assert abs(max_ratio - 1) < RATIO_TOLERANCE",
    "no_recurrent_mode_and_ratio_ignored": "assert reach == n_rows",
    "no_update": "assert losses[-1] < 0.5 * losses[0]",
}
# After it:
CAUGHT_LATE = {
    "velocities_shown": "assert last.min() > plateau.max()",
    "primer_put_back": "assert ratio > 1 + 2 * RATIO_TOLERANCE, mistake",
    "marks_put_back": "assert ratio > 1 + 2 * RATIO_TOLERANCE, mistake",
    "mode_put_back": "assert ratio > 1 + 2 * RATIO_TOLERANCE, mistake",
}


def run_changed(changes, early=False):
    """What the driver writes about these changes; *early*: without the trainings."""
    start = f"CHOSEN = {list(changes)}\nEARLY = {early}\nPROOFS = {PROOFS.read_text()!r}\n"
    return run_driver(start + DRIVER, PAGE)


def test_result_holds_on_five_other_seeds():
    assert run_changed(["other_seeds"]) == {"other_seeds": "the page passed"}


@pytest.fixture(scope="module")
def early():
    return run_changed(["nothing", *CAUGHT_EARLY], early=True)


@pytest.fixture(scope="module")
def late():
    return run_changed(["nothing", *CAUGHT_LATE])


@guards("sampler-marks-without-tracker")
def test_page_and_its_proofs_pass(early):
    assert early["nothing"] == "the page passed"


@pytest.mark.parametrize("change", CAUGHT_EARLY)
def test_page_notices_a_mistake_before_it_trains(early, change):
    assert early[change] == ast.unparse(ast.parse(CAUGHT_EARLY[change]))


def test_page_passes_with_one_seed(late):
    assert late["nothing"] == "the page passed"


@pytest.mark.parametrize("change", CAUGHT_LATE)
def test_page_notices_a_lesson_that_is_not_true(late, change):
    assert late[change] == ast.unparse(ast.parse(CAUGHT_LATE[change]))
