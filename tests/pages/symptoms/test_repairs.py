"""A torchrl whose causes were repaired: exactly the pages of each cause say so.

``tests/pages/symptoms/repairs/*.toml`` holds the repairs, each an edit of one file of torchrl. Most
of a run is the import of torchrl, so the repairs of one ``group`` are made at once: a page that
fails in the wrong group shows which repair it really belongs to. What runs the pages is
``tests/support/symptom_pages.py``.
"""

import tomllib

import pytest

from docs._ext.gallery.order import read_order
from docs._ext.symptoms.store import GONE
from tests.support import ROOT
from tests.support.symptom_pages import run_pages
from tests.support.torchrl_copy import copy_of_torchrl, edit

pytestmark = [pytest.mark.slow, pytest.mark.mutation]

# Pages that a repair of something else may change. Three train on few seeds, where another draw or
# rollout makes another run. The fix of the last steps epsilon, as a repaired module does by itself.
MAY_CHANGE = {
    "entropy_is_gone_early",
    "one_observation_dwarfs_the_others",
    "ppo_clips_almost_everything",
    "epsilon_goes_down_too_soon",
}
SLUGS = read_order(ROOT / "tutorials" / "debugging")
REPAIRS = [
    repair
    for path in sorted((ROOT / "tests" / "pages" / "symptoms" / "repairs").glob("*.toml"))
    for repair in tomllib.loads(path.read_text(encoding="utf-8"))["repair"]
]


@pytest.mark.parametrize("group", sorted({repair["group"] for repair in REPAIRS}))
def test_the_pages_of_each_cause_notice_its_repair_and_no_other_does(tmp_path, group):
    repairs = [repair for repair in REPAIRS if repair["group"] == group]
    expected = {slug for repair in repairs for slug in repair["pages"]}
    torchrl = copy_of_torchrl(tmp_path)
    for repair in repairs:
        edit(torchrl, repair["file"], repair["before"], repair["after"], repair["what"])
    found = run_pages(SLUGS, "--no-doctor", folder=tmp_path, PYTHONPATH=str(tmp_path))
    failed = {slug: seen["error"] for slug, seen in found.items() if seen["error"]}
    failed = {slug: error for slug, error in failed.items() if slug not in MAY_CHANGE}
    assert set(failed) == expected, {slug: failed.get(slug) for slug in set(failed) ^ expected}
    silent = {slug for slug in failed if not failed[slug].startswith(f"AssertionError: {GONE}")}
    assert not silent, {slug: failed[slug] for slug in silent}
