"""How much of what users do wrong the doctor names, and that it accuses no healthy pipeline.

``pytest -s`` prints the table, and what is missed of the defects that are not kept aside.
`make mutation-test` looks at each defect and pipeline; `make unit` at every tenth, chosen by a
checksum of its name, and asserts what holds of each.
"""

import binascii
import collections
import importlib.metadata
import time

import pytest

from tests.support.claims import guards
from tests.support.defects import kept_aside, newer, planting, seen
from tests.support.defects.diagnoses import DEFECTS, NAMES, looked_at
from tools import doctor_detection

# What is reached, so that it does not sink: shares in per cent, in the order of `GROUPS`.
FLOORS = dict(zip(planting.GROUPS, (95, 80, 80, 93, 78), strict=True))

TOLERATED = 0.03  # of a group


def is_in_tenth(name):
    return binascii.crc32(f"{name}!".encode()) % 10 == 0


ALL = pytest.param("all", marks=pytest.mark.mutation)


@pytest.fixture(scope="module", params=["tenth", ALL])
def looks(request):
    names = [one for one in NAMES if request.param == "all" or is_in_tenth(one)]
    start = time.perf_counter()
    results = looked_at(names)
    print(f"\n{len(names)} pipelines in {time.perf_counter() - start:.0f} s")
    planted = [DEFECTS[one] for one in names if one in DEFECTS]
    print(planting.misses(planted, results), planting.table(planted, results), sep="\n\n")
    return results


def planted(looks):
    return [one for name, one in DEFECTS.items() if name in looks]


def test_each_is_built(looks):
    assert {name: one["fault"] for name, one in looks.items() if "fault" in one} == {}
    wrong = {
        defect.name: looks[defect.name]["error"]
        for defect in planted(looks)
        if defect.loud is not None and defect.loud != bool(looks[defect.name]["error"])
    }
    assert wrong == {}, "silent, and raises; or loud, and does not"


def test_no_healthy_pipeline_is_accused(looks):
    healthy = {name: looks[name] for name in planting.PIPELINES if name in looks}
    assert {name: one["error"] for name, one in healthy.items() if one["error"]} == {}
    assert {
        name: planting.alarms(one) for name, one in healthy.items() if planting.alarms(one)
    } == {}


def test_a_healthy_pipeline_warns_of_nothing(looks):
    """So what one warns of is no part of what is planted; VecNormV2 calls itself experimental."""
    healthy = {name: looks[name]["warnings"] for name in planting.PIPELINES if name in looks}
    known = "UserWarning: Support of VecNormV2 for containers"
    unknown = {name: [one for one in said if known not in one] for name, said in healthy.items()}
    assert {name: said for name, said in unknown.items() if said} == {}


def test_no_promised_row_is_clear_where_its_defect_is(looks):
    wrong = {one.name: planting.wrongly_clear(one, looks[one.name]) for one in planted(looks)}
    assert {name: said for name, said in wrong.items() if said} == {}


def test_no_check_fails(looks):
    failed = {
        name: [said for said in one["findings"] if said["state"] == "check failed"]
        for name, one in looks.items()
    }
    assert {name: said for name, said in failed.items() if said} == {}


@pytest.mark.parametrize("looks", [ALL], indirect=True)
def test_shares_do_not_sink(looks):
    for kind, floor in FLOORS.items():
        defects = [one for one in DEFECTS.values() if one.kind == kind]
        named, number = planting.share(defects, looks)
        assert 100 * named >= floor * number, kind


@pytest.mark.parametrize("looks", [ALL], indirect=True)
def test_the_tables_of_the_page_are_what_a_run_finds(looks):
    """But for `TOLERATED` of a group: what runs beside it decides some looks."""
    table, run = doctor_detection.read()
    found = doctor_detection.counts(DEFECTS.values(), looks, planting)
    cure = "run: python tools/doctor_detection.py"
    assert {name: [n for _, n in pairs] for name, pairs in table.items()} == {
        name: [n for _, n in pairs] for name, pairs in found.items()
    }, cure
    for (recorded, number), (named, _) in zip(table["all"], found["all"], strict=True):
        assert abs(recorded - named) <= TOLERATED * number, cure
    assert run["Healthy pipelines"] == str(len(planting.PIPELINES)), cure
    assert (run["Accused"], run["Wrong clears"], run["Checks that failed"]) == ("0", "0", "0")


@guards("doctor-detection-table")
def test_the_tables_have_all_defects():
    table, run = doctor_detection.read()
    planted = collections.Counter(one.kind for one in DEFECTS.values())
    assert [number for _, number in table["all"]] == [planted[kind] for kind in planting.GROUPS]
    for (named, number), (kind, floor) in zip(table["all"], FLOORS.items(), strict=True):
        assert 100 * named >= floor * number, kind
    assert run["Defects"] == str(len(DEFECTS))
    assert run["Healthy pipelines"] == str(len(planting.PIPELINES))
    assert importlib.metadata.version("torchrl") == run["TorchRL"]


def test_a_third_is_kept_aside():
    assert {one.group for one in kept_aside.DEFECTS.values()} == {"kept aside"}
    assert {one.group for one in seen.DEFECTS.values()} == {"seen"}
    assert {one.kind for one in newer.DEFECTS.values()} == {("promised", "newer")}
    assert len(planting.PIPELINES) >= 60
    assert len({one.alter for one in DEFECTS.values()}) >= 150
