"""At home: what the machine needs and lacks, how large it is, and the commands to give it.

The machine has Python, a torch with CUDA and Triton, and no network. The other packages travel as
wheels of the versions in ``requirements-bench.txt``; ``--has`` names a list of what is there.
"""

import re
import subprocess
import sys
import zipfile
from email.parser import Parser

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks import __main__ as main
from benchmarks.kit import state

LOCK = main.ROOT / "requirements-bench.txt"
FOLDER = main.ROOT / "build" / "kit"  # ignored by git; it is what travels beside the tree
TRAVELS = 64 * 2**20  # bytes of tree, wheels and state
COMMAND = 2000  # characters
INSTALL_S = 40  # before the kit starts: unpacking the wheels
ROOTS = ["torchrl", "tensordict", "gymnasium", "pytest", "psutil"]
ROOTS += ["jsonschema", "numpy", "ale-py", "stable-baselines3", "mujoco-mjx"]
# Too large to travel. Where the machine has none, what needs them is skipped with the reason.
LEFT_BEHIND = {"matplotlib", "opencv-python-headless", "pandas"}
WITH_TORCH = ["torch", "triton", "filelock", "fsspec", "jinja2", "markupsafe", "mpmath"]
WITH_TORCH += ["networkx", "setuptools", "sympy", "typing-extensions"]
PLATFORMS = ["manylinux1_x86_64", "manylinux2014_x86_64"]
PLATFORMS += [f"manylinux_2_{minor}_x86_64" for minor in range(17, 40)]


def machine_environment(python):
    """What markers in a lock file ask, for the machine."""
    return {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
        "os_name": "posix",
        "extra": "",
    }


def pins(environment):
    """Name -> ``name==version`` for the machine."""
    found = {}
    for line in LOCK.read_text("utf-8").splitlines():
        if re.match(r"[A-Za-z0-9]", line):
            one = Requirement(line)
            if one.marker is None or one.marker.evaluate(environment):
                found[canonicalize_name(one.name)] = f"{one.name}{one.specifier}"
    return found


def wheels(folder, has, python):
    """Download what is missing into *folder*; leave nothing else there."""
    environment = machine_environment(python)
    locked = pins(environment)
    wanted, queue = {}, [name for name in ROOTS if name not in has]
    while queue:
        pip_download(folder, [locked[name] for name in queue], python)
        there = {canonicalize_name(path.name.split("-")[0]): path for path in folder.glob("*.whl")}
        wanted |= {name: there[name] for name in queue}
        needed = {name for one in queue for name in requirements(there[one], environment)}
        queue = sorted(needed - wanted.keys() - has - LEFT_BEHIND)
    for path in folder.glob("*.whl"):
        if path not in wanted.values():
            path.unlink()
    return list(wanted.values())


def pip_download(folder, pinned, python):
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    command += [word for name in PLATFORMS for word in ("--platform", name)]
    done = subprocess.run([*command, "--dest", folder, *pinned], check=False)
    if done.returncode:
        raise state.StateError(f"pip has no wheel for one of {', '.join(pinned)}: see above")


def requirements(wheel, environment):
    with zipfile.ZipFile(wheel) as opened:
        path = next(name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        text = opened.read(path).decode("utf-8")
    for line in Parser().parsestr(text, headersonly=True).get_all("Requires-Dist", []):
        one = Requirement(line)
        if one.marker is None or one.marker.evaluate(environment):
            yield canonicalize_name(one.name)


def size(paths):
    return sum(path.stat().st_size for path in paths if path.is_file())


def prepare(options, plan):
    """Download, then print what travels and what to do; the exit status is 1 if it is too much."""
    commit, dirty = main.state_of_tree(None)
    if dirty:
        raise state.StateError("the tree differs from its commit: commit first, records name it")
    has = {*WITH_TORCH}
    if options.has:
        lines = options.has.read_text("utf-8").split()
        has |= {canonicalize_name(re.split("[=@]", line)[0]) for line in lines}
    (FOLDER / "wheels").mkdir(parents=True, exist_ok=True)
    found = wheels(FOLDER / "wheels", has, options.python)
    tracked = main.git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    parts = {
        "tree": size(main.ROOT / name for name in tracked if name),
        f"{len(found)} wheels": size(found),
        "state": size((FOLDER / "state").glob("*")),
    }
    for name, number in parts.items():
        print(f"{number / 2**20:8.1f} MiB  {name}")
    total = sum(parts.values())
    print(f"{total / 2**20:8.1f} MiB  of {TRAVELS / 2**20:.0f} travel: the tree and build/kit\n")
    limit = options.limit - INSTALL_S
    for piece in plan.pieces:
        print(f"piece {piece.number}, {piece.seconds} s: {piece.title}")
    print(f"\nIn the root of the tree, {options.limit} s each, N = 1, 2, ...:\n")
    line = command(commit, limit)
    print(line)
    print(
        "\nThen put what came back in $OUT/kit into build/kit/state, and run this command again\n"
        "before the next one. At the end: python -m benchmarks.kit records --state build/kit/state"
    )
    return 1 if total > TRAVELS or len(line) > COMMAND else 0


def command(commit, limit):
    """One line for a shell on the machine; ``$OUT`` is the folder that it sends back."""
    goes_on = " --state build/kit/state" if (FOLDER / "state" / state.NAME).is_file() else ""
    return (
        "python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade "
        "--target /tmp/site build/kit/wheels/*.whl && PYTHONPATH=/tmp/site python3 -m "
        f"benchmarks.kit run --commit {commit} --limit {limit}{goes_on} --out $OUT/kit --piece N"
    )
