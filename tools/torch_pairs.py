"""Try releases of TorchRL beside releases of torch: ``python tools/torch_pairs.py --torch 2.15.0``.

Each pair is installed by uv into a throw-away environment outside the repository, an environment
for each torch, and asked four things: does ``import torchrl`` work and what does it print, does
the C++ extension load, and does prioritized replay sample. The answers go into
``docs/reference/torch_pairs.csv``, a row for each pair, and from there into the tables of the page
(`TABLES`). Rows of other pairs stay.

    $ nice python tools/torch_pairs.py --torchrl 0.14.1 0.14.0 --torch 2.15.0 2.14.1

uv keeps some five gigabytes for each torch; ``UV_CACHE_DIR`` names a folder that you can remove.

``--check`` writes nothing. It tries the pairs of the table again, and the newest releases beside
them, and fails with the answers that differ and the command that takes their rows anew. The nightly
run does that, with the CPU builds of torch: ``UV_TORCH_BACKEND=cpu``.
"""

import argparse
import csv
import json
import re
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
TARGET = REFERENCE / "torch_pairs.csv"
UV = Path(sys.executable).with_name("uv")
COLUMNS = (
    "TorchRL",
    "torch",
    "tensordict",
    "torch if none is named",
    "Import",
    "Printed by the import",
    "Extension",
    "Prioritized replay",
    "Python",
    "Platform",
    "Date",
)
COMPARED = COLUMNS[2:8]  # by a check: Python, platform and date may differ
WORKS = ("works", "nothing", "loads", "samples")
NOT_TRIED = "not tried"
PROBE = """
import json


def ask(question, healthy, action):
    try:
        action()
        answer = healthy
    except Exception as error:
        answer = f"{type(error).__name__}: {error}".splitlines()[0]
    print(json.dumps({question: answer}), flush=True)


def sample():
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

    storage = LazyTensorStorage(100)
    buffer = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=0.5, storage=storage, batch_size=64)
    error = torch.full((10,), 1e-3)
    error[7] = 1e6
    buffer.extend(TensorDict({"row": torch.arange(10), "td_error": error}, [10]))
    if not (buffer.sample()["row"] == 7).all():
        raise ValueError("it draws rows without priority")


ask("Import", "works", lambda: __import__("torchrl"))
ask("Extension", "loads", lambda: __import__("torchrl._torchrl"))
ask("Prioritized replay", "samples", sample)
"""


def uv(*command, **options):
    return subprocess.run([UV, *command], capture_output=True, text=True, check=False, **options)


def first_line(text):
    """The first line, without the folder of the throw-away environment."""
    return re.sub(r"\S*/site-packages/", "", text.strip().partition("\n")[0])


def asked(python):
    """The answers of PROBE, and the first line that the import printed."""
    probe = subprocess.run(
        [python, "-c", PROBE],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    answers, printed = {}, []
    for line in probe.stdout.splitlines():
        if line.startswith('{"'):
            answers |= json.loads(line)
        elif not answers:
            printed.append(line)
    ended = f"the process ended with status {probe.returncode}"
    answers = {key: first_line(answers.get(key, ended)) for key in COLUMNS[4:8] if key in PROBE}
    return answers | {"Printed by the import": first_line("\n".join(printed)) or "nothing"}


def version_of(package, lines):
    """Its version, without the local part that tells builds of torch apart."""
    return re.search(rf"^{package}==([^\s+]+)(\+\S+)?$", lines, re.MULTILINE)[1]


def released(requirement, *options):
    """The TorchRL and the torch that uv installs for *requirement* alone."""
    found = uv("pip", "compile", "--quiet", *options, "-", input=requirement)
    found.check_returncode()
    return [version_of(package, found.stdout) for package in ("torchrl", "torch")]


def rows_of(torch, releases, python):
    """A row of COLUMNS for each release of TorchRL beside one torch."""
    with tempfile.TemporaryDirectory() as folder:
        uv("venv", "--python", python, folder).check_returncode()
        inside = ("--python", Path(folder, "bin", "python"))
        for torchrl in releases:
            row = dict.fromkeys(COLUMNS, "") | {"TorchRL": torchrl, "torch": torch}
            row |= machine_of(python)
            row |= {"torch if none is named": released(f"torchrl=={torchrl}", *inside)[1]}
            row |= {"Date": date.today().isoformat()}
            uv("pip", "uninstall", *inside, "torchrl", "tensordict")
            installed = uv("pip", "install", *inside, f"torchrl=={torchrl}", f"torch=={torch}")
            if installed.returncode:
                said = " ".join(installed.stderr.split())
                row |= {"Import": f"not installed: {said}"}
            else:
                row |= {"tensordict": version_of("tensordict", uv("pip", "freeze", *inside).stdout)}
                row |= asked(inside[1])
            yield row


def machine_of(python):
    """The version of an interpreter, and what a wheel for it has to be built for."""
    code = (
        "import json, platform as p; print(json.dumps({'Python': p.python_version(), 'Platform':"
        "' '.join([p.system(), p.machine(), *p.libc_ver()]).strip()}))"
    )
    return json.loads(subprocess.check_output([python, "-c", code], text=True))


def read():
    with TARGET.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def by_pair(rows):
    return {(row["TorchRL"], row["torch"]): row for row in rows}


def differences(rows, found):
    """Lines on how *found* differs from *rows* of the table, with what to do; none if it agrees."""
    table, stale = by_pair(rows), {}
    for pair, row in by_pair(found).items():
        name = "TorchRL {} with torch {}".format(*pair)
        if pair not in table:
            lines = [f"{name} is not in the table. It answers {verdict(row)}."]
        else:
            said = table[pair]
            changed = [column for column in COMPARED if row[column] != said[column]]
            lines = [
                f"{name}, {column}: the table has {said[column]!r}, this run {row[column]!r}."
                for column in changed
            ]
        if lines:
            yield from lines
            stale.setdefault(pair[1], []).append(pair[0])
    if stale:
        yield "Take these rows again, which writes them into docs/reference/torch_pairs*.csv:"
        for torch, releases in stale.items():
            yield f"  python tools/torch_pairs.py --torchrl {' '.join(releases)} --torch {torch}"
        yield (
            "Then run tests/pages/reference/test_torch_versions.py: it names the sentences of"
            " docs/reference/torch_versions.rst that no longer hold."
        )


def works(row):
    return tuple(row[column] for column in COLUMNS[4:8]) == WORKS


def matrix(rows):
    """A line for each release of TorchRL and a column for each torch, newest first."""
    tried = by_pair(rows)
    torches = newest_first({row["torch"] for row in rows})
    yield ["TorchRL", "tensordict", *(f"torch {torch}" for torch in torches)]
    for torchrl in newest_first({row["TorchRL"] for row in rows}):
        found = [tried.get((torchrl, torch)) for torch in torches]
        beside = newest_first({row["tensordict"] for row in found if row and row["tensordict"]})
        verdicts = [NOT_TRIED if not row else verdict(row) for row in found]
        yield [torchrl, " or ".join(beside), *verdicts]


def verdict(row):
    if works(row):
        return "**loads**"
    if not row["tensordict"]:
        return "not installed"
    return "does not load" if row["Import"] == "works" else "import fails"


def messages(rows):
    """A line for each thing that fails and each message, with the pairs that have it."""
    said = {}
    for row in rows:
        for column, healthy in zip(COLUMNS[4:8], WORKS, strict=True):
            if row[column] != healthy:
                by_torchrl = said.setdefault((column, row[column]), {})
                by_torchrl.setdefault(row["TorchRL"], []).append(row["torch"])
    yield ["What", "Pairs", "First line of the message"]
    for (what, message), by_torchrl in sorted(said.items()):
        pairs = [f"{one} with {', '.join(torches)}" for one, torches in by_torchrl.items()]
        yield [what, "; ".join(pairs), f"``{message}``"]


def where(rows):
    """Where and when the pairs were tried."""
    for column in ("Python", "Platform", "Date"):
        yield [column, ", ".join(sorted({row[column] for row in rows}))]


TABLES = {
    REFERENCE / "torch_pairs_matrix.csv": matrix,
    REFERENCE / "torch_pairs_messages.csv": messages,
    REFERENCE / "torch_pairs_run.csv": where,
}


def newest_first(versions):
    return sorted(versions, key=Version, reverse=True)


def write(path, lines):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


def check(rows, options):
    """Try pairs again; exit with how they differ from *rows*."""
    newest = released("torchrl", "--python", options.python)
    releases, torches = (
        chosen or newest_first({row[column] for row in rows} | {one})
        for chosen, column, one in zip(
            (options.torchrl, options.torch), ("TorchRL", "torch"), newest, strict=True
        )
    )
    found = []
    for torch in torches:
        for row in rows_of(torch, releases, options.python):
            print(*row.values(), sep=" | ", flush=True)
            found.append(row)
    if lines := list(differences(rows, found)):
        sys.exit("\n".join(lines))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--torchrl", nargs="+", help="releases of TorchRL")
    parser.add_argument("--torch", nargs="+", help="releases of torch")
    parser.add_argument("--python", default=sys.executable, help="interpreter to install for")
    parser.add_argument(
        "--check", action="store_true", help="compare with the table, write nothing"
    )
    options = parser.parse_args(arguments)
    known = read() if TARGET.is_file() else []
    if options.check:
        check(known, options)
        return
    if not (options.torchrl and options.torch):
        parser.error("without --check, name releases with --torchrl and --torch")
    rows = by_pair(known)
    for torch in options.torch:
        for row in rows_of(torch, options.torchrl, options.python):
            rows[row["TorchRL"], row["torch"]] = row
            print(*row.values(), sep=" | ", flush=True)
            order = sorted(rows, key=lambda pair: tuple(map(Version, pair)), reverse=True)
            ordered = [rows[pair] for pair in order]
            write(TARGET, [COLUMNS, *([one[key] for key in COLUMNS] for one in ordered)])
            for path, made in TABLES.items():
                write(path, made(ordered))


if __name__ == "__main__":
    main()
