"""tools/bootstrap.py: what a reader with the wrong machine is told, and when .venv is refreshed."""

import builtins
import importlib.util
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from tests.support import ROOT

VersionInfo = namedtuple("VersionInfo", "major minor micro releaselevel serial")


@pytest.fixture
def bootstrap(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "tools" / "bootstrap.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    lock = tmp_path / "requirements-docs.txt"
    lock.write_text("nvidia-cublas==1\ncuda-bindings==2\ntorch==3\nuv==4\n")
    monkeypatch.setattr(module, "LOCK", lock)
    node_lock = tmp_path / "site" / "package-lock.json"
    node_lock.parent.mkdir()
    for path in (node_lock, node_lock.with_name("package.json")):
        path.write_text("{}")
    monkeypatch.setattr(module, "NODE_LOCK", node_lock)
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", "--venv", str(tmp_path / "venv")])
    return module


@pytest.fixture
def calls(bootstrap, monkeypatch):
    """Commands that the module would run, with their input; none is run."""
    made = []

    def run(command, **options):
        made.append((command, options.get("input", b"").decode()))
        (Path(sys.argv[2]) / "bin").mkdir(parents=True, exist_ok=True)
        return subprocess.CompletedProcess(command, 0, stdout=b"")

    monkeypatch.setattr(bootstrap.subprocess, "run", run)
    return made


@pytest.mark.parametrize("version", [(3, 10, 9), (3, 14, 0)])
def test_wrong_python_is_told_which_to_install(bootstrap, monkeypatch, version):
    monkeypatch.setattr(sys, "version_info", VersionInfo(*version, "final", 0))
    with pytest.raises(SystemExit, match=r"need Python 3\.11 to 3\.13.*\n.*PYTHON=python3\.13"):
        bootstrap.main()


@pytest.mark.parametrize("missing", ["ensurepip", "venv"])
def test_missing_venv_module_is_told_the_package(bootstrap, monkeypatch, missing):
    real_import = builtins.__import__

    def without(name, *args, **kwargs):
        if name == missing:
            raise ImportError(f"No module named {name!r}", name=name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SystemExit, match=rf"no {missing} module.*\n.*python3-venv"):
        bootstrap.main()


def test_current_environment_is_left_alone(bootstrap, calls):
    bootstrap.main()
    assert calls
    calls.clear()
    bootstrap.main()
    assert calls == []


def test_packages_come_with_bytecode(bootstrap, calls):
    """Or each process compiles torch anew, where Python is told not to write bytecode."""
    bootstrap.main()
    assert any("--compile-bytecode" in command for command, _ in calls)


def test_changed_lock_and_changed_torch_build_reinstall(bootstrap, calls, monkeypatch):
    bootstrap.main()
    calls.clear()
    with bootstrap.LOCK.open("a") as lock:
        lock.write("sphinx==5\n")
    bootstrap.main()
    assert any("sphinx==5" in wanted for _, wanted in calls)
    calls.clear()
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--torch-backend", "cpu"])
    bootstrap.main()
    command, wanted = calls[-2]
    assert command[-2:] == ["--torch-backend", "cpu"]
    assert wanted == "torch==3\nuv==4\nsphinx==5\n"


def test_changed_node_lock_reinstalls(bootstrap, calls):
    bootstrap.main()
    command, _ = calls[-1]
    assert command[3] == "ci"
    copied = Path(sys.argv[2]) / "node"
    assert sorted(path.name for path in copied.iterdir()) == ["package-lock.json", "package.json"]
    calls.clear()
    bootstrap.NODE_LOCK.write_text('{"lockfileVersion": 3}')
    bootstrap.main()
    assert calls[-1][0] == command
    assert (copied / "package-lock.json").read_text() == bootstrap.NODE_LOCK.read_text()


def test_another_lock_makes_another_environment(bootstrap, calls, monkeypatch, tmp_path):
    lock = tmp_path / "requirements-bench.txt"
    lock.write_text("torch==3\nuv==5\nray==6\n")
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--lock", str(lock)])
    bootstrap.main()
    assert any("uv==5" in part for command, _ in calls for part in command)
    assert calls[-1][1] == lock.read_text()


def test_failed_install_is_not_taken_for_a_finished_one(bootstrap, monkeypatch, tmp_path):
    def fail(command, **options):
        raise subprocess.CalledProcessError(2, command)

    monkeypatch.setattr(bootstrap.subprocess, "run", fail)
    with pytest.raises(SystemExit, match=r"(?s)failed at: .*again once it is mended"):
        bootstrap.main()
    assert not (tmp_path / "venv" / ".ready").exists()


def test_lock_without_the_installer_names_the_cure(bootstrap, calls, tmp_path):
    bootstrap.LOCK.write_text("torch==3\n")
    with pytest.raises(SystemExit, match="pins no uv: run make lock"):
        bootstrap.main()


def test_makefile_says_which_python_is_missing(tmp_path):
    made = subprocess.run(
        ["make", "html", "PYTHON=python-that-is-not-there"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode != 0
    assert "No python-that-is-not-there on the PATH" in made.stdout
