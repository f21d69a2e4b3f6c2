"""Check what a diff touches: ``make test-changed``, or ``make test-changed BASE=HEAD~3``.

    python tools/changed.py [--base origin/main] [--dry-run]

The diff is that of the working tree, new files included, against where it left BASE. Lint and the
tests of the whole tree (``tests/repository``) always run. Beside them, for each changed file:

* the file itself, where pytest collects it (a test, a page with examples), and the tests of the
  same layout: ``docs/performance/x.rst`` has ``tests/pages/performance/test_x.py``,
  ``docs/_ext/site/x.py`` has ``tests/ext/site``, ``tools/x.py`` has ``tests/tools/test_x.py``;
* every test file that names it: by its path, its module, the id of a claim on it, or, for an
  evidence script and a record, by page and name;
* a tutorial, a guide, an evidence script: one run of it; of a symptom, the doctor's verdict too.

Tests marked ``slow`` run where they stand in a changed file or in one of the same layout and name.
Those marked ``mutation``, which `make test` leaves out, run there as well, where a file names what
changed, and all of them where the stack changed. What this leaves out is `make test`, which says
whether a commit is right, and `make mutation-test`.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a script finds its own folder
from docs._ext.support import galleries

ROOT = Path(__file__).resolve().parent.parent
ALWAYS = ["tests/repository", "tests/tools/test_typed_numbers.py"]
WHOLE = "not site and not browser and not notebook"
FAST = f"not slow and not mutation and {WHOLE}"
MUTATION = re.compile(r"^(?:@|pytestmark = .*)pytest\.mark\.mutation\b", re.MULTILINE)
STACK = {"pyproject.toml", "requirements-docs.txt", "tests/pages/upstream_sources.toml"}
DOCTOR_NAMES = (
    "tests/pages/symptoms/test_doctor_names_the_row.py"
    "::test_the_doctor_names_what_is_broken_and_nothing_that_is_fixed"
)
ENVIRONMENT = {  # as the Makefile has it
    "OMP_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "MPLBACKEND": "agg",
}
SOURCES = ("docs/", *(f"{name}/" for name in galleries.NAMES))
EXECUTED = re.compile(rf"(?:{'|'.join(galleries.NAMES)}|docs/evidence/\w+)/(?:\w+/)?\w+\.py")
CLAIM = re.compile(r":claim:`([\w-]+)`")
# (a changed path, the tests of the same layout and name, others of the same layout)
LAYOUT = [
    (r"docs/_ext/(\w+)/(\w+)\.py", r"tests/ext/\1/test_\2.py", r"tests/ext/\1"),
    (r"docs/_ext/support/.*", None, "tests/ext"),
    (r"docs/(\w+)/(?:recipes/)?(\w+)\.rst", r"tests/pages/\1/test_\2*.py", None),
    (r"docs/evidence/(\w+)/\w+\.py", r"tests/pages/*/test_\1*.py", None),
    (
        r"tutorials/debugging/\w+\.py",
        "tests/pages/symptoms/test_repairs.py",
        "tests/ext/symptoms",
    ),
    (r"tutorials/debugging/\w+\.py", None, "tests/tools/test_doctor_rows.py"),
    (r"tutorials/recurrent/triton_kernels\.py", "tests/pages/tutorials/test_backends.py", None),
    (r"tutorials/\w+/(\w+)\.py", r"tests/pages/tutorials/test_\1.py", None),
    (r"how-to/(\w+)\.py", r"tests/pages/how_to/test_\1*.py", None),
    (r"tests/pages/tutorials/proofs/.*", r"tests/pages/tutorials/test_plain_scripts.py", None),
    (
        r"benchmarks/(?:suites/|recipes/)?(\w+)\.py",
        r"tests/benchmarks/test_\1.py",
        "tests/benchmarks",
    ),
    (r"benchmarks/kit/.*", r"tests/benchmarks/test_kit.py", None),
    (r"benchmarks/replicates/.*", r"tests/benchmarks/test_benchmarks.py", None),
    (r"tests/pages/symptoms/repairs/.*", r"tests/pages/symptoms/test_repairs.py", None),
    (r"benchmarks/results/(\w+)/.*", r"tests/pages/performance/test_\1.py", None),
    (r"tests/(.*/)?(\w+)\.(toml|txt)", r"tests/\1test_\2.py", None),
    (r"tools/(\w+)\.py", r"tests/tools/test_\1.py", None),
    (r"doctor/.*", None, "tests/doctor"),
    (r"(\.github|\.ci)/.*|pyproject\.toml", r"tests/tools/test_workflows.py", None),
    (r"conf\.py|tests/support/site/.*", None, "tests/tools/test_build_site.py"),
]


def changed_files(base, root=ROOT):
    """Paths that differ from where the working tree left *base*, deleted ones included."""

    def git(*arguments):
        command = ["git", *arguments]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)

    start = git("merge-base", base, "HEAD")
    if start.returncode:
        sys.exit(f"{start.stderr.strip()}\nName what to compare with: make test-changed BASE=main")
    known = git("diff", "--name-only", "-z", "--no-renames", start.stdout.strip()).stdout
    new = git("ls-files", "--others", "--exclude-standard", "-z").stdout
    return sorted({*known.split("\0"), *new.split("\0")} - {""})


def names_of(path, root=ROOT):
    """What a test says that is about the file *path*."""
    stem = re.sub(r"\.\w+$", "", path)
    module = stem.removesuffix("/__init__")
    if "/" not in path:
        return set()
    # as the path, the module, and what is joined to the root of the repository
    names = {path, module.replace("/", "."), '" / "'.join(path.split("/")[-2:])}
    for prefix in ("docs/evidence/", "benchmarks/results/", "docs/", "tutorials/debugging/"):
        if stem.startswith(prefix) and not path.endswith(".txt"):
            names.add(stem.removeprefix(prefix))
            break
    if record := re.match(r"benchmarks/results/(\w+)/", path):
        names.add(f'"{record[1]}"')
    if path.endswith((".rst", ".py", ".toml")) and path.startswith(SOURCES):
        file = root / path
        names |= set(CLAIM.findall(file.read_text(encoding="utf-8")) if file.is_file() else ())
    return names


def imports(path):
    """Regular expression of the import of a module below a package, by its parts."""
    package, _, name = re.sub(r"\.py$", "", path).replace("/", ".").rpartition(".")
    return rf"from {re.escape(package)} import [^\n]*\b{name}\b" if package else r"(?!)"


def naming_tests(paths, root=ROOT):
    """Test files that name one of *paths*."""
    names = set().union(*(names_of(path, root) for path in paths))
    said = [rf"(?<![\w./-]){re.escape(name)}(?![\w/-])" for name in sorted(names)]
    said += [imports(path) for path in paths if path.endswith(".py")]
    if not said:
        return set()
    pattern = re.compile("|".join(said))
    return {
        file.relative_to(root).as_posix()
        for file in root.glob("tests/**/test_*.py")
        if pattern.search(file.read_text(encoding="utf-8"))
    }


def selection_of_rule(rule, path, root):
    """What one rule of LAYOUT has for *path*: tests of its name, and others beside them."""
    pattern, own, others = rule
    match = re.fullmatch(pattern, path)
    if match is None:
        return set(), set()
    found = root.glob(match.expand(own)) if own else ()
    return {file.relative_to(root).as_posix() for file in found}, {match.expand(others or "")} - {
        ""
    }


def mutation_tests(paths, root=ROOT):
    """Test files that change what they speak of, and name one of *paths* or rest on the stack."""
    found = {
        file.relative_to(root).as_posix()
        for file in root.glob("tests/**/test_*.py")
        if MUTATION.search(file.read_text(encoding="utf-8"))
    }
    return found if STACK & set(paths) else found & naming_tests(paths, root)


def selection(paths, root=ROOT):
    """(test files that run whole, those that run without slow tests, scripts that run)."""
    whole, fast, scripts = set(), set(ALWAYS), set()
    for path in paths:
        there = (root / path).is_file()
        if re.fullmatch(r"tests/.*/test_\w+\.py|docs/.*\.rst", path) and there:
            whole.add(path)
        if EXECUTED.fullmatch(path) and there:
            scripts.add(path)
        if there and path.startswith("tutorials/debugging/") and path.endswith(".py"):
            whole.add(f"{DOCTOR_NAMES}[{Path(path).stem}]")
        if path.endswith("conftest.py"):
            fast.add(str(Path(path).parent))
        for rule in LAYOUT:
            own, others = selection_of_rule(rule, path, root)
            whole |= own
            fast |= others
    fast |= naming_tests(paths, root)
    fast = {path for path in fast - whole if (root / path).exists()}
    fast = {path for path in fast if not fast & {str(folder) for folder in Path(path).parents}}
    return sorted(whole), sorted(fast), sorted(scripts)


def commands(paths, root=ROOT):
    """What to run for these changed files."""
    whole, fast, scripts = selection(paths, root)
    yield ["make", "lint"]
    yield from ([sys.executable, str(root / script)] for script in scripts)
    pytest = [sys.executable, "-m", "pytest", "-q", "--durations", "10", "-m"]
    yield [*pytest, FAST, *fast]
    if whole:
        yield [*pytest, WHOLE, *whole]
    if mutation := sorted(mutation_tests(paths, root) - set(whole)):
        yield [*pytest, "mutation", *mutation]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", default="origin/main")
    parser.add_argument("--dry-run", action="store_true", help="say what would run")
    arguments = parser.parse_args(argv)
    failed = []
    for command in commands(changed_files(arguments.base)):
        said = " ".join(command).replace(sys.executable, "python").replace(f"{ROOT}/", "")
        print(f"$ {said}", flush=True)
        if not arguments.dry_run:
            environment = {**os.environ, **ENVIRONMENT}
            status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
            # 5: nothing was left to run, as for a page without examples
            failed += [said] if status not in (0, 5) else []
    sys.exit("\n".join(["Failed:", *failed]) if failed else 0)


if __name__ == "__main__":
    main()
