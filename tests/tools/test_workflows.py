"""The workflows: pinned, with least permissions, and what their helper scripts report."""

import json
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support import ROOT
from tools import ci_issue, move_pins, torch_pairs

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PIN = re.compile(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
TRIGGERS = {
    "links.yml": {"schedule", "workflow_dispatch"},
    "main.yml": {"push", "workflow_dispatch"},
    "nightly.yml": {"schedule", "workflow_dispatch"},
    "pull-request.yml": {"pull_request"},
}


def complaints(text):
    """What our own rules find in a workflow; zizmor knows more, these name the cure."""
    workflow = yaml.safe_load(text)
    if workflow.get("permissions") != {}:
        yield "write 'permissions: {}' at the top"
    if "group" not in workflow.get("concurrency", {}):
        yield "give the workflow a concurrency group"
    for name, job in workflow["jobs"].items():
        if "timeout-minutes" not in job:
            yield f"job {name} has no timeout-minutes"
        if not isinstance(job.get("permissions"), dict):
            yield f"job {name} does not list its permissions"
        for step in job["steps"]:
            if "checkout@" in step.get("uses", "") and step.get("with", {}).get(
                "persist-credentials", True
            ):
                yield f"job {name}: checkout keeps its credentials"
    for line in text.splitlines():
        if "uses:" in line and not PIN.search(line):
            yield f"pin by full commit, with the version as comment: {line.strip()}"


def test_the_workflows_are_the_ones_we_know_and_start_when_they_should():
    # YAML 1.1 reads the key `on` as true.
    assert {
        path.name: set(yaml.safe_load(path.read_text())[True]) for path in WORKFLOWS
    } == TRIGGERS


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_keeps_our_rules(path):
    assert list(complaints(path.read_text())) == []


BROKEN = [
    ("permissions: {}\n\n", "permissions: {contents: write}\n\n", "'permissions: {}' at the top"),
    ("  group: links\n", "", "concurrency group"),
    ("    timeout-minutes: 30\n", "", "job links has no timeout-minutes"),
    ("    permissions:\n", "    env2:\n", "job links does not list its permissions"),
    ("persist-credentials: false", "persist-credentials: true", "keeps its credentials"),
    (
        "          persist-credentials: false\n",
        "          fetch-depth: 1\n",
        "keeps its credentials",
    ),
    (" # v7.0.0", "", "pin by full commit"),
    ("@9c091bb21b7c1c1d1991bb908d89e4e9dddfe3e0", "@v7", "pin by full commit"),
]


@pytest.mark.parametrize(("old", "new", "complaint"), BROKEN)
def test_a_broken_rule_is_named(old, new, complaint):
    text = (ROOT / ".github" / "workflows" / "links.yml").read_text()
    assert old in text
    assert any(complaint in found for found in complaints(text.replace(old, new, 1)))


def zizmor(folder):
    command = Path(sys.executable).parent / "zizmor"
    return subprocess.run(
        [command, "--offline", "--no-progress", "--persona=pedantic", folder],
        capture_output=True,
        text=True,
    )


def test_zizmor_finds_nothing():
    run = zizmor(ROOT / ".github")
    assert run.returncode == 0, run.stdout


def test_zizmor_would_find_something(tmp_path):
    shutil.copytree(ROOT / ".github", tmp_path / ".github")
    path = tmp_path / ".github" / "workflows" / "links.yml"
    path.write_text(path.read_text().replace("$RUNNER_TEMP", "${{ github.event.issue.title }}"))
    run = zizmor(tmp_path / ".github")
    assert run.returncode != 0
    assert "template-injection" in run.stdout


def test_workflows_call_what_exists():
    text = "\n".join(path.read_text() for path in WORKFLOWS)
    scripts = set(re.findall(r"tools/\w+\.py|\.ci/\w+", text))
    assert scripts == {"tools/ci_issue.py", "tools/move_pins.py", "tools/torch_pairs.py", ".ci/run"}
    for script in scripts:
        assert (ROOT / script).is_file(), script
    assert (ROOT / ".ci" / "run").stat().st_mode & stat.S_IXUSR
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"\bmake ([\w-]+)", text)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_nightly_run_takes_what_make_test_leaves_out():
    nightly = (ROOT / ".github" / "workflows" / "nightly.yml").read_text()
    assert re.search(r"run: .*\.ci/run && make mutation-test && make notebook-test\b", nightly)


def test_the_nightly_run_tries_the_table_of_pairs_with_its_python():
    """Messages of the table name the version of Python; the job fails where a pair differs."""
    nightly = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text())
    job = nightly["jobs"]["pairs"]
    steps = {step["name"]: step for step in job["steps"]}
    (python,) = {row["Python"] for row in torch_pairs.read()}
    assert python.startswith(steps["Set up Python"]["with"]["python-version"] + ".")
    check = steps["Try the pairs"]
    assert "tools/torch_pairs.py --check" in check["run"]
    assert check["continue-on-error"], "else nothing reports the difference"
    last = job["steps"][-1]
    assert (last["if"], last["run"]) == (f"steps.{check['id']}.outcome != 'success'", "exit 1")


# -- tools/move_pins.py ----------------------------------------------------------

PYPROJECT = """\
[dependency-groups]
stack = [
    # why: torch==2.15.0
    "torch==2.15.0",
    "gymnasium",
    "triton==3.9.0; sys_platform == 'linux'",
]
docs = ["sphinx>=9.0,<9.1"]
"""
PINNED = "gymnasium==1.4.0\ntorch==2.15.0\nnumpy==2 ; python_version < '3.12'\n"
NEWEST = "gymnasium==1.4.0\ntorch==2.16.0\nnumpy==3\nnew==1\n"
LOG = "noise\nFAILED tests/test_x.py::test_y - AssertionError\nFAILED tests/test_x.py::test_z\n"


def test_unpin_loosens_the_stack_and_nothing_else(tmp_path, capsys):
    path = tmp_path / "pyproject.toml"
    path.write_text(PYPROJECT)
    move_pins.main(["unpin", "--pyproject", str(path)])
    assert capsys.readouterr().out.split()[1::2] == ["torch", "gymnasium", "triton"]
    assert path.read_text() == PYPROJECT.replace('"torch==2.15.0"', '"torch"').replace(
        "triton==3.9.0;", "triton;"
    )


def test_pin_moves_what_it_names_and_nothing_else(tmp_path, capsys):
    path = tmp_path / "pyproject.toml"
    path.write_text(PYPROJECT)
    move_pins.main(["pin", "torch==2.14.1", "triton", "--pyproject", str(path)])
    assert capsys.readouterr().out.split()[1::2] == ["torch", "triton"]
    assert path.read_text() == PYPROJECT.replace('"torch==2.15.0"', '"torch==2.14.1"').replace(
        "triton==3.9.0;", "triton;"
    )
    with pytest.raises(SystemExit, match="numpy: not in the stack, which is torch, gymnasium"):
        move_pins.move(path, {"numpy": "==1"})


def test_the_nightly_run_moves_packages_of_our_stack(tmp_path):
    """With a torch that pyproject.toml says torchrl loads with, and that is not the pinned one."""
    path = tmp_path / "pyproject.toml"
    nightly = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text())
    stacks = nightly["jobs"]["drift"]["strategy"]["matrix"]["include"]
    assert len(stacks) == 2
    for stack in stacks:
        shutil.copy(ROOT / "pyproject.toml", path)
        move_pins.main([*stack["move"].split(), "--pyproject", str(path)])
        assert path.read_text() != (ROOT / "pyproject.toml").read_text()
    (older,) = re.findall(r'"torch==([\d.]+)"', path.read_text())
    assert older in stack["stack"]
    assert re.search(rf"# .*\b{re.escape(older)}\b", path.read_text())


def test_unpin_understands_our_pyproject(tmp_path):
    path = tmp_path / "pyproject.toml"
    shutil.copy(ROOT / "pyproject.toml", path)
    assert {"torch", "torchrl", "tensordict"} <= set(move_pins.move(path))
    assert not re.search(r'"(torch|torchrl|tensordict)==', path.read_text())


def test_unpin_without_a_stack_says_so(tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_text("[dependency-groups]\n")
    with pytest.raises(SystemExit, match="no dependency group 'stack"):
        move_pins.move(path)


def test_report_names_what_moved_and_what_failed():
    text = move_pins.report("failure", PINNED, NEWEST, LOG)
    assert text.startswith("**Drift**")
    assert "| torch | 2.15.0 | 2.16.0 |" in text
    assert "| numpy | 2 (python_version < '3.12') | 3 |" in text
    assert "| new | none | 1 |" in text
    assert "gymnasium" not in text
    assert "test_y" in text
    assert "test_z" in text
    assert "noise" not in text


@pytest.mark.parametrize(
    ("outcome", "newest", "sentence"),
    [
        ("success", NEWEST, "No drift: every test passes on the newest releases"),
        ("success", PINNED, "No drift: the pins are the newest releases"),
        ("failure", PINNED, "this is no drift, main itself is broken"),
        ("cancelled", NEWEST, "No verdict: the test run was cancelled"),
    ],
)
def test_verdict(outcome, newest, sentence):
    assert sentence in move_pins.report(outcome, PINNED, newest, LOG)


def test_failure_without_a_known_line_shows_the_end_of_the_log():
    assert "Segmentation fault" in move_pins.report("failure", PINNED, NEWEST, "Segmentation fault")


def test_lock_without_pins_is_refused():
    with pytest.raises(SystemExit, match="make lock"):
        move_pins.report("success", "", NEWEST, LOG)


# -- tools/ci_issue.py -------------------------------------------------------


@pytest.fixture
def gh(monkeypatch):
    """Commands given to gh, while issue 7 is open."""
    given = []

    def answer(*arguments):
        given.append(arguments)
        return json.dumps([{"number": 6, "title": "T and more"}, {"number": 7, "title": "T"}])

    monkeypatch.setattr(ci_issue, "gh", answer)
    return given


@pytest.mark.parametrize(
    ("title", "outcome", "commands"),
    [
        ("T", "failure", [("issue", "list"), ("issue", "edit", "7")]),
        ("U", "failure", [("issue", "list"), ("issue", "create", "--title")]),
        ("T", "success", [("issue", "list"), ("issue", "close", "7")]),
        ("U", "success", [("issue", "list")]),
        ("T", "cancelled", []),
    ],
)
def test_one_issue_is_kept(gh, title, outcome, commands):
    ci_issue.main(["--title", title, "--body-file", "report.md", "--outcome", outcome])
    assert len(gh) == len(commands)
    for given, wanted in zip(gh, commands, strict=True):
        assert given[: len(wanted)] == wanted
