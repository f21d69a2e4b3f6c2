"""A copy of the tiny site in ``tests/support/site``, built as ``make html`` builds the real one."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support import ROOT, sphinx_forks

SCRIPTS = [
    "how-to/count.py",
    "tutorials/basics/figure.py",
    "tutorials/basics/sums.py",
    "tutorials/more/words.py",
]
EPOCH = "1700000000"
LIMIT_S = 600  # a bound for a hung build, not an expectation


class Site:
    """A copy in a folder of its own, with extensions and templates of the repository beside it."""

    def __init__(self, folder):
        self.root = Path(folder)
        shutil.copytree(ROOT / "tests" / "support" / "site", self.root)
        for name in ("_ext", "_templates"):
            shutil.copytree(
                ROOT / "docs" / name,
                self.root / "docs" / name,
                ignore=shutil.ignore_patterns("__pycache__"),
            )

    @property
    def public(self):
        """The published site."""
        return self.root / "build" / "html"

    @property
    def generated(self):
        """What sphinx-gallery writes."""
        return self.root / "docs" / "tutorials"

    def copy(self, folder):
        """A copy of this site with all it has built."""
        other = Site.__new__(Site)
        other.root = Path(folder)
        shutil.copytree(self.root, other.root)
        return other

    def write(self, path, text):
        """Replace or add a file."""
        (self.root / path).write_text(text, encoding="utf-8")

    def append(self, path, text):
        """Add to the end of a file."""
        with (self.root / path).open("a", encoding="utf-8") as file:
            file.write(text)

    def tutorial(self, name, code, folder="tutorials/basics"):
        """Add a script with this code, listed in the order of its folder."""
        self.write(f"{folder}/{name}.py", f'"""\n{name}\n{"=" * len(name)}\n\nA.\n"""\n{code}\n')
        self.append(f"{folder}/order.txt", f"{name}\n")

    def command(self, *options):
        """The command that builds the site."""
        script = ROOT / "tools" / "build_site.py"
        return [sys.executable, str(script), "--site", str(self.root), *options]

    def build(self, *options, **environment):
        """Build; return the status and everything that was printed.

        In a fork, unless the environment is to change what an interpreter does when it starts.
        """
        env = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH, **environment}
        if not {"PYTHONPATH", "PYTHONHASHSEED"} & environment.keys():
            with tempfile.TemporaryDirectory() as folder:
                printed = Path(folder, "printed")
                status = sphinx_forks.fork(self.command(*options), self.root, env, [printed])
                return status, printed.read_text(encoding="utf-8")
        done = subprocess.run(
            self.command(*options),
            env=env,
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        return done.returncode, done.stdout

    def log_runs(self):
        """Make every script say when it runs; it runs in its own folder."""
        for name in SCRIPTS:
            log = f"{'../' * name.count('/')}ran.txt"
            code = f"with open('{log}', 'a') as log:\n    print('{name}', file=log)"
            self.append(name, f"\n{code}\n")

    def runs(self):
        """The scripts that ran since the last call."""
        log = self.root / "ran.txt"
        names = log.read_text(encoding="utf-8").split() if log.exists() else []
        log.unlink(missing_ok=True)
        return sorted(names)


def tree(folder):
    """``{relative path: bytes}`` of every file."""
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }
