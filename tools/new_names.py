"""List the names that a release of TorchRL exports and another does not.

    $ python tools/new_names.py 0.13.3 0.14.1

The wheels of both are unpacked by uv into a temporary folder, without what they require. The list
goes into ``docs/reference/new_in_014.csv``, a row for each package.
"""

import ast
import csv
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "reference" / "new_in_014.csv"
UV = Path(sys.executable).with_name("uv")
COLUMNS = ("Package", "New names")
PACKAGES = (
    "torchrl.checkpoint",
    "torchrl.collectors",
    "torchrl.data",
    "torchrl.envs",
    "torchrl.envs.transforms",
    "torchrl.modules",
    "torchrl.modules.inference_server",
    "torchrl.objectives",
    "torchrl.objectives.value",
    "torchrl.record",
    "torchrl.trainers",
    "torchrl.weight_update",
)


def exported(folder, package):
    """The public names that the ``__init__`` of a package below *folder* imports."""
    path = Path(folder, *package.split("."), "__init__.py")
    if not path.is_file():
        return set()
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    names = {alias.asname or alias.name for node in imports for alias in node.names}
    return {name for name in names if not name.startswith("_")} - {"annotations"}


def unpacked(version, folder):
    requirement = f"torchrl=={version}"
    command = [UV, "pip", "install", "--quiet", "--no-deps", "--target", folder, requirement]
    subprocess.run(command, check=True)
    return folder


def main(older, newer):
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        before, after = unpacked(older, one), unpacked(newer, other)
        seen, rows = set(), []
        for package in PACKAGES:
            new = exported(after, package) - exported(before, package) - seen
            seen |= new
            if new:
                rows.append([package, ", ".join(f"``{name}``" for name in sorted(new))])
    with TARGET.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])


if __name__ == "__main__":
    main(*sys.argv[1:])
