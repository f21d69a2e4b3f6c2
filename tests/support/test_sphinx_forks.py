"""A build in a fork is what `python -m sphinx` is in a process of its own."""

import os

from tests.support import ROOT, sphinx_forks

CONF = """\
import os, sys
sys.path.insert(0, os.getcwd())
extensions = ["docs._ext.support.fork"]
html_theme = "basic"
print("in", os.path.basename(os.getcwd()), "with", os.environ.get("OF_THE_BUILD"))
"""
OWN = "def setup(app):\n    print('extension of', __file__.split('/')[-5])\n"


def build(folder, text="", **environment):
    """Build a site with an extension that has the name of what the forks come from."""
    package = folder / "docs" / "_ext" / "support"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "fork.py").write_text(OWN)
    (folder / "conf.py").write_text(CONF)
    (folder / "index.rst").write_text(f"Home\n====\n\n{text}\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return sphinx_forks.run("-qW", "-E", ".", "html", cwd=folder, env=environment)


def test_a_fork_writes_what_a_process_of_its_own_writes(tmp_path):
    found = []
    for name, environment in (("fork", {}), ("fresh", {"PYTHONHASHSEED": "1"})):
        done = build(tmp_path / name, OF_THE_BUILD=name, **environment)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"in {name} with {name}\nextension of {name}\n"
        files = (tmp_path / name / "html").glob("*.html")
        found.append({file.name: file.read_text() for file in files})
    assert found[0]
    assert found[0] == found[1]


def test_a_build_leaves_nothing_to_the_next(tmp_path):
    assert build(tmp_path / "first", OF_THE_BUILD="1").returncode == 0
    assert build(tmp_path / "second").stdout == "in second with None\nextension of second\n"


def test_a_failed_build_says_why(tmp_path):
    done = build(tmp_path / "site", ":nowhere:`x`")
    assert done.returncode == 1
    assert 'index.rst:4: ERROR: Unknown interpreted text role "nowhere"' in done.stderr
    assert sphinx_forks.run("--no-such-option").returncode == 2
    assert build(tmp_path / "next").returncode == 0
