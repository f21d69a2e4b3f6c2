"""``python -m tests.support.defects NAME``: what the doctor says of a pipeline or a defect."""

import sys

from tests.support.defects import elsewhere, planting
from tests.support.defects.diagnoses import DEFECTS as MEASURED

if __name__ == "__main__":
    DEFECTS = MEASURED | elsewhere.DEFECTS
    for name in sys.argv[1:]:
        said = planting.broken(DEFECTS[name]) if name in DEFECTS else planting.healthy(name)
        print(
            name, said["error"] or "", f"{said['build_s']:.1f} s, {said['look_s']:.1f} s", sep="\n"
        )
        for one in said["findings"]:
            print(f"  {one['look']} {one['state']:14} {one['slug']}: {one['evidence']}")
        for note in said["notes"]:
            print("  note:", note)
