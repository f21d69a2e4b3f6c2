"""What users do wrong, in other forms and places than where it is measured: all of it is named.

`make unit` looks at a tenth, `make mutation-test` at all.
"""

import pytest

from tests.support.defects import planting
from tests.support.defects.diagnoses import looked_at
from tests.support.defects.elsewhere import DEFECTS


@pytest.mark.parametrize(
    "step",
    [pytest.param(10, id="tenth"), pytest.param(1, id="all", marks=pytest.mark.mutation)],
)
def test_each_is_named(step):
    names = [*DEFECTS][::step]
    looks = looked_at(names)
    assert {name: one["fault"] for name, one in looks.items() if "fault" in one} == {}
    missed = [name for name, one in looks.items() if not planting.is_named(DEFECTS[name], one)]
    assert missed == []
    for name, one in looks.items():
        assert planting.wrongly_clear(DEFECTS[name], one) == [], name
        assert [said for said in one["findings"] if said["state"] == "check failed"] == [], name
        loud = DEFECTS[name].loud
        assert loud is None or loud == bool(one["error"]), name
