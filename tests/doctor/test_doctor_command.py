"""The command line: what it takes, which checks it runs, and what it prints where."""

import io
import json
import logging
import os
import runpy
import sys
import time
from importlib.metadata import EntryPoint
from pathlib import Path
from unittest import mock

import jsonschema
import pytest
import torchrl_doctor
from torchrl_doctor import CHECKS, SCHEMA, applies, check, clear, diagnose
from torchrl_doctor import choice as choice_of_checks
from torchrl_doctor.__main__ import main
from torchrl_doctor.progress import DOING, shown_progress

from tests.support import ROOT
from tests.support.claims import guards
from tests.support.programs import run_python

PIPELINE = """
import torch
from tensordict import TensorDict

def make():
    return {"batch": TensorDict({"next": {"reward": torch.ones(2, 1)}}, batch_size=[2])}
"""


@pytest.fixture
def checks():
    """Three checks alone."""
    with mock.patch.dict(CHECKS, clear=True):
        yield registered()


def registered():
    """Register the checks; the list of those that have run."""
    ran = []

    def register(slug, verdict):
        def look(batch):
            ran.append(slug)
            return verdict

        check(slug, f"The title of {slug}")(look)

    register("reward_is_one", applies("it is 1"))
    register("reward_is_two", clear("it is 1"))
    register("other_thing", clear("fine"))
    return ran


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    Path(tmp_path, "pipeline.py").write_text(PIPELINE, encoding="utf-8")
    return tmp_path


@guards("doctor-only-and-ignore")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["reward_is_one", "reward_is_two", "other_thing"]),
        (["--only", "other_thing"], ["other_thing"]),
        (["--only", "other_thing", "--only", "reward_is_two"], ["reward_is_two", "other_thing"]),
        (["--ignore", "reward_is_one"], ["reward_is_two", "other_thing"]),
        (["--only", "other_thing", "--ignore", "other_thing"], []),
    ],
)
def test_checks_are_chosen_by_name(checks, folder, capsys, options, expected):
    code = main(["pipeline.py:make", *options])
    assert checks == expected
    assert code == int("reward_is_one" in expected)
    checks_run = "1 check: " if len(expected) == 1 else f"{len(expected)} checks: "
    assert checks_run in capsys.readouterr().out


@guards("doctor-unknown-check")
@pytest.mark.parametrize("option", ["--only", "--ignore"])
def test_an_unknown_check_is_a_usage_error_with_a_proposal(checks, folder, capsys, option):
    assert main(["pipeline.py:make", option, "rewards_is_two"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "no check 'rewards_is_two' (did you mean reward_is_two or reward_is_one?)" in said.err
    assert checks == []


def test_an_unknown_check_raises_in_a_session(checks):
    for name in ("only", "ignore"):
        with pytest.raises(ValueError, match=r"no check 'other' .did you mean other_thing"):
            diagnose(batch=None, **{name: "other"})


def test_a_list_of_all_checks(capsys):
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(CHECKS)
    known = dict(line.split(maxsplit=1) for line in lines)
    title = "The LSTM forgets everything between steps"
    assert known["lstm_forgets_every_step"] == f"silent  {title}"


def test_markdown_and_json(checks, folder, capsys):
    assert main(["pipeline.py:make", "--markdown"]) == 1
    assert capsys.readouterr().out.startswith("### torchrl-doctor\n\n3 checks: 1 applies, 2 clear.")
    assert main(["pipeline.py:make", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    assert (document["status"], document["error"]) == (1, None)


# -- What is looked at ---------------------------------------------------------


@pytest.fixture
def package(folder):
    inner = folder / "some_package" / "parts"
    inner.mkdir(parents=True)
    for one in (inner.parent, inner):
        Path(one, "__init__.py").touch()
    Path(inner, "rows.py").write_text(PIPELINE, encoding="utf-8")
    Path(inner, "pipe.py").write_text("from .rows import make\n", encoding="utf-8")
    return folder


@guards("doctor-module-target", "doctor-relative-imports")
@pytest.mark.parametrize(
    ("start", "target"),
    [
        (".", "some_package/parts/pipe.py:make"),
        ("some_package/parts", "pipe.py:make"),
        (".", "some_package.parts.pipe:make"),
    ],
)
def test_a_module_of_a_package_imports_relatively(checks, package, monkeypatch, start, target):
    monkeypatch.chdir(package / start)
    assert main([target]) == 1
    assert "some_package.parts.rows" in sys.modules


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("some_package.parts.pip:make", "some_package.parts.pip: no such module, seen from "),
        ("absent.module:make", "for a file write absent/module.py"),
        ("some_package.parts.pipe:mak", "no function 'mak'; it defines none"),
        ("some_package.parts.rows:mak", "no function 'mak' (did you mean make?); it defines make"),
        ("pipeline.py:", "write it as pipeline.py:make or package.module:make"),
    ],
)
def test_a_target_that_is_none_ends_with_2(checks, package, capsys, target, said):
    assert main([target]) == 2
    assert said in capsys.readouterr().err


def test_no_target_is_a_usage_error(capsys):
    assert main([]) == 2
    assert "which pipeline? Write torchrl-doctor pipeline.py:make" in capsys.readouterr().err


# -- What is printed while it runs ---------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


@guards("doctor-progress-line")
def test_a_terminal_shows_what_takes_long_and_is_as_before_at_the_end():
    stream = Terminal()
    DOING[0] = "collecting a batch"
    with shown_progress(stream, delay=0.05):
        deadline = time.monotonic() + 30
        while "collecting a batch" not in stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "\r0 s: collecting a batch" in stream.getvalue()
    assert stream.getvalue().endswith(f"\r{'':79}\r")


def test_what_is_quick_and_what_is_no_terminal_shows_nothing():
    for stream in (Terminal(), io.StringIO()):
        with shown_progress(stream, delay=60 if stream.isatty() else 0):
            time.sleep(0.02)
        assert stream.getvalue() == ""


def test_a_check_is_named_while_it_runs(checks, folder):
    at = []
    check("looks", "What it is at")(lambda batch: at.append(DOING[0]))
    main(["pipeline.py:make", "--only", "looks"])
    assert at == ["What it is at"]


def test_no_library_reports_success_into_the_output(capfd, caplog):
    """`check_env_specs`, which a check calls, logs that it succeeded."""
    from torchrl.envs import GymEnv

    level = logging.getLogger("torchrl").level
    report = diagnose(env=GymEnv("CartPole-v1"), only="specs_and_data_disagree", seconds=60)
    assert [one.state for one in report] == ["clear"]
    assert caplog.text == ""
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("torchrl").level == level


# -- Checks of others ----------------------------------------------------------


@pytest.fixture
def of_others(monkeypatch, folder, checks):
    """Install packages that name modules with checks."""
    Path(folder, "their_checks.py").write_text(
        "from torchrl_doctor import Row, applies, check\n"
        "@check('theirs', 'Theirs', 'https://their.example/x', Row('loud', 'A cause.', 'A fix.'))\n"
        "def theirs(batch):\n    return applies('seen')\n",
        encoding="utf-8",
    )
    Path(folder, "their_fault.py").write_text("1 / 0\n", encoding="utf-8")
    sys.path.insert(0, str(folder))
    points = [
        EntryPoint(name, name, choice_of_checks.GROUP) for name in ("their_fault", "their_checks")
    ]
    asked = []

    def entry_points(group):
        asked.append(group)
        return points

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    choice_of_checks.checks_of_others.cache_clear()
    yield
    choice_of_checks.checks_of_others.cache_clear()
    assert asked == ["torchrl_doctor.checks"]


@guards("doctor-checks-of-others")
def test_checks_of_others_are_run_and_a_failing_module_is_a_note(of_others, capsys):
    assert main(["pipeline.py:make", "--only", "theirs"]) == 1
    out = capsys.readouterr().out
    assert "applies: Theirs (loud)\n  seen   seen\n  cause  A cause.\n  fix    A fix.\n" in out
    assert "\n  page   https://their.example/x\n" in out
    assert "The checks of their_fault are left out: ZeroDivisionError: division by zero" in out


# -- The environment -----------------------------------------------------------


def test_the_environment_has_what_a_maintainer_asks_for(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = torchrl_doctor.environment()
    import tensordict
    import torch
    import torchrl

    assert found["Versions"]["torch"] == torch.__version__
    assert found["Versions"]["torchrl"] == torchrl.__version__.split("+")[0]
    assert found["Versions"]["tensordict"] == tensordict.__version__.split("+")[0]
    assert found["Versions"]["torchrl-doctor"] == torchrl_doctor.__version__
    assert found["Imports"] == {"torch": "loads", "extension of torchrl": "loads"}
    assert found["Processes"]["threads of torch"].startswith(f"{torch.get_num_threads()}, ")
    assert found["Machine"]["cores"].startswith(f"{os.cpu_count()}, ")
    assert found["GPUs"]["seen by torch"] == torch.cuda.device_count()
    assert found["Variables"]["OMP_NUM_THREADS"] == "1"
    assert not torch.cuda.is_initialized()
    assert json.loads(found.to_json()) == found
    assert f"| torch | {torch.__version__} |\n" in found.to_markdown()
    assert "\n  torch  " in str(found)


@guards("doctor-env-without-torch")
@pytest.mark.parametrize("as_one_file", [False, True])
def test_the_environment_is_printed_without_torch(tmp_path, as_one_file):
    """``-S`` leaves out what is installed."""
    source = ROOT / "doctor" / "src"
    if as_one_file:
        run_python(ROOT / "doctor" / "single_file.py", tmp_path / "torchrl_doctor.py")
        source = tmp_path
    done = run_python("-S", "-m", "torchrl_doctor", "env", "--json", path=[source])
    document = json.loads(done.stdout)
    assert document["Imports"]["torch"] == "torch is not installed"
    assert document["Versions"]["torch"] == "not installed"
    assert document["Imports"]["extension of torchrl"].startswith("does not load")
    if not as_one_file:
        command = ("-S", "-m", "torchrl_doctor", "pipeline.py:make")
        done = run_python(*command, path=[source], status=2)
        assert f"{sys.executable} has no torch; install the doctor beside" in done.stderr
        assert "Traceback" not in done.stderr


def test_the_reason_why_the_extension_does_not_load_is_said(tmp_path):
    for name in ("torch", "torchrl"):
        Path(tmp_path, name).mkdir()
    torch = "__version__ = '9'\ndef get_num_threads(): return 1\nget_num_interop_threads = "
    torch += "get_num_threads\nclass version: cuda = None\nclass cuda:\n device_count = "
    torch += "staticmethod(lambda: 0)\nclass backends:\n class mps:\n  is_available = "
    torch += "staticmethod(lambda: False)\n"
    Path(tmp_path, "torch", "__init__.py").write_text(torch, encoding="utf-8")
    warns = (
        "import warnings\nwarnings.warn('no extension')\nwarnings.warn('old', DeprecationWarning)\n"
    )
    Path(tmp_path, "torchrl", "__init__.py").write_text(warns, encoding="utf-8")
    said = "raise ImportError('undefined symbol: _ZN5torch')"
    Path(tmp_path, "torchrl", "_torchrl.py").write_text(said, encoding="utf-8")
    done = run_python("-m", "torchrl_doctor", "env", path=[tmp_path, ROOT / "doctor" / "src"])
    assert "does not load: ImportError: undefined symbol: _ZN5torch\n" in done.stdout
    assert "UserWarning: no extension\n" in done.stdout
    assert "DeprecationWarning" not in done.stdout + done.stderr


def test_an_option_of_env_that_is_none_ends_with_2(capsys):
    assert main(["env", "--yaml"]) == 2
    assert "usage: torchrl-doctor env [--json | --markdown]" in capsys.readouterr().err


def test_gpus_are_named_without_starting_cuda(tmp_path, monkeypatch):
    tool = Path(tmp_path, "nvidia-smi")
    tool.write_text(
        "#!/bin/sh\necho 'NVIDIA H100, 81559 MiB, 570.1'\necho 'NVIDIA H100, 1 MiB, 2'\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = torchrl_doctor.environment()["GPUs"]
    assert found["GPU 0"] == "NVIDIA H100, 81559 MiB, 570.1"
    assert found["GPU 1"] == "NVIDIA H100, 1 MiB, 2"
    tool.write_text("#!/bin/sh\nexit 9\n")
    found = torchrl_doctor.environment()["GPUs"]
    assert "GPU 0" not in found
    assert found["nvidia-smi"].endswith("exit status 9.")


def test_the_environment_names_no_folder_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", f"{tmp_path}/cache")
    found = torchrl_doctor.environment()
    assert found["Variables"]["TORCHINDUCTOR_CACHE_DIR"] == "~/cache"
    assert str(tmp_path) not in str(found)


def test_the_single_file_has_all_names_of_the_package():
    made = runpy.run_path(str(ROOT / "doctor" / "single_file.py"))
    assert set(torchrl_doctor.__all__) <= set(made["names_of"](made["single_file"]()))
    assert set(torchrl_doctor.__all__) <= set(dir(torchrl_doctor))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        torchrl_doctor.nothing  # noqa: B018
