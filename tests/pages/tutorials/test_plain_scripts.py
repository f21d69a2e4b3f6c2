"""Each tutorial as readers run it: a plain script, which prints what its page shows.

What a lesson leaves out to be short is in ``proofs/<its name>.py``: assertions on its variables.
They run after its last line and print nothing.
"""

import itertools
import os
import re
import subprocess
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from docs._ext.support import galleries
from tests.support import ROOT, symptom_pages
from tests.support.symptom_pages import SHARED
from tests.support.tutorial_script import run_page

LESSONS = [script for script in galleries.scripts(ROOT) if script.parent.name != "debugging"]
SHOWN = re.compile(
    r"^\.\. rst-class:: sphx-glr-script-out\n\n \.\. code-block:: none\n\n((?: {4}.*\n|\n)+)",
    re.MULTILINE,
)


def shown(script):
    """What the gallery captured, another process with another hash seed, less empty lines."""
    page = ROOT / "docs" / script.relative_to(ROOT).with_suffix(".rst")
    assert page.is_file(), f"no {page.relative_to(ROOT)}; run `make html` first"
    blocks = "".join(SHOWN.findall(page.read_text(encoding="utf-8")))
    return [line[4:].rstrip() for line in blocks.splitlines() if line.strip()]


@pytest.mark.slow
@pytest.mark.site
@pytest.mark.parametrize("script", LESSONS, ids=lambda script: script.stem)
def test_plain_script_prints_what_its_page_shows(script, tmp_path):
    proofs = Path(__file__).parent / "proofs" / script.name
    if proofs.is_file():
        text = script.read_text(encoding="utf-8") + proofs.read_text(encoding="utf-8")
        script_and_proofs = tmp_path / script.name
        script_and_proofs.write_text(text, encoding="utf-8")
    else:
        script_and_proofs = script
    printed = run_page(script_and_proofs, tmp_path, hash_seed="1").splitlines()
    lines = shown(script)
    assert len(lines) > 2
    assert [line.rstrip() for line in printed if line.strip()] == lines


def test_proofs_belong_to_lessons():
    names = {script.name for script in LESSONS}
    assert {path.name for path in (Path(__file__).parent / "proofs").glob("*.py")} <= names


# What a process of its own would show: a warning of the script, what its end says, its status.
FAULTS = {
    "import torchrl\nimport warnings\nwarnings.warn('old', DeprecationWarning)\n": b"old",
    "import torchrl\nimport atexit\natexit.register(lambda: 1 / 0)\n": b"ZeroDivisionError",
    "import torchrl\ntorchrl.envs.GymEnv\n": b"has no attribute 'envs'",
    "import torchrl\nopen('left', 'w').close()\n": b"",
}


@pytest.mark.slow
@pytest.mark.site
@pytest.mark.parametrize("text", FAULTS)
def test_a_script_that_could_not_stand_alone_is_found(tmp_path, text):
    script = tmp_path / "script.py"
    script.write_text(text)
    with pytest.raises(AssertionError) as said:
        run_page(script, tmp_path, hash_seed="1")
    assert FAULTS[text].decode() in str(said.value)


@pytest.mark.slow
@pytest.mark.site
@pytest.mark.skipif(not SHARED.is_dir(), reason="the system does not say")
def test_a_script_that_leaves_shared_memory_is_found(tmp_path):
    script, left = tmp_path / "script.py", SHARED / f"left_by_{os.getpid()}"
    script.write_text(f"import torchrl\nopen({str(left)!r}, 'w').close()\n")
    with pytest.raises(AssertionError, match=left.name):
        run_page(script, tmp_path, hash_seed="1")
    left.unlink()


def test_shared_memory_that_comes_and_goes_is_not_left(monkeypatch):
    """As that of a browser beside it: at each look there is another."""
    monkeypatch.setattr(symptom_pages, "GRACE_S", 0.2)
    names = itertools.count()
    monkeypatch.setattr(symptom_pages, "shared_files", lambda: {"stays", f"one {next(names)}"})
    assert symptom_pages.new_shared_files({"stays"}) == set()
    assert symptom_pages.new_shared_files(set()) == {"stays"}


@pytest.mark.skipif(not SHARED.is_dir(), reason="the system does not say")
def test_what_was_there_before_is_not_left(monkeypatch):
    """Not even where a process that has the number in its name has ended since."""
    monkeypatch.setattr(symptom_pages, "GRACE_S", 0)
    with subprocess.Popen(["sleep", "600"]) as other:
        there = SharedMemory(f"torch_{other.pid}_1_1", create=True, size=1)
        try:
            known = symptom_pages.shared_files()
            assert there.name not in symptom_pages.new_shared_files(set())
            other.kill()
            other.wait()
            assert there.name in symptom_pages.new_shared_files(set())
            assert there.name not in symptom_pages.new_shared_files(known)
        finally:
            other.kill()
            there.close()
            there.unlink()


@pytest.mark.slow
@pytest.mark.site
@pytest.mark.skipif(not SHARED.is_dir(), reason="the system does not say")
def test_shared_memory_that_another_process_uses_is_not_of_the_script(monkeypatch):
    monkeypatch.setattr(symptom_pages, "GRACE_S", 0)
    known = symptom_pages.shared_files()
    used = SharedMemory(create=True, size=1)
    try:
        ours = symptom_pages.new_shared_files(known)
        of_another = symptom_pages.new_shared_files(known, session=-1)
    finally:
        used.close()
        used.unlink()
    assert used.name in ours
    assert used.name not in of_another
