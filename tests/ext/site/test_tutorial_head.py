"""The head of a tutorial: what it says of time and packages, and where it stands on the site."""

import json
import re
from types import SimpleNamespace

import pytest
from docutils.core import publish_doctree

from docs._ext.gallery.order import read_order
from docs._ext.site.tutorial_head import (
    RUN_TIMES,
    WORDS_PER_MINUTE,
    code_digest,
    minutes_to_read,
    packages,
    time_to_run,
)
from tests.support import ROOT, SITE
from tools import run_times

LESSONS = [
    f"{topic}/{name}"
    for topic in read_order(ROOT / "tutorials")
    if topic != "debugging"
    for name in read_order(ROOT / "tutorials" / topic)
]


def test_packages_are_those_that_the_script_imports(tmp_path):
    script = tmp_path / "lesson.py"
    script.write_text("import json\nimport numpy as np\nfrom torchrl.envs import GymEnv\n")
    assert packages(script) == ["Gymnasium", "NumPy", "TorchRL"]
    script.write_text("from torch import nn\n")
    assert packages(script) == ["PyTorch"]


@pytest.mark.parametrize(("words", "minutes"), [(1, 1), (WORDS_PER_MINUTE, 1), (201, 2)])
def test_words_of_text_and_code_are_read_and_output_is_not(words, minutes):
    text = (
        f"{'word ' * (words - 1)}\n\n::\n\n   code\n\n.. code::\n   :class: sphx-glr-script-out\n\n"
    )
    drawing = "\n\n.. raw:: html\n\n   " + "line " * 500
    doctree = publish_doctree(text + "   " + "out " * 500 + drawing)
    assert minutes_to_read(doctree) == minutes


LESSON = '"""Text."""\n\n# %%\n# More.\nx = 1  # one\n'


@pytest.fixture
def lesson(tmp_path):
    """A checkout with a lesson and a symptom, as a build that ran both leaves it."""
    for name, seconds in {"tutorials/a/lesson": 2.6, "tutorials/debugging/symptom": 1.0}.items():
        for path in (tmp_path / f"{name}.py", tmp_path / f"docs/{name}.stamp.json"):
            path.parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.py").write_text(LESSON)
        path.write_text(json.dumps({"cpu_seconds": seconds}))
    return tmp_path / "tutorials" / "a" / "lesson.py"


def test_the_time_to_run_is_that_of_the_record_until_the_code_changes(lesson, monkeypatch):
    monkeypatch.setattr(run_times, "machine", lambda: "a machine, 2 cores")
    read = []
    env = SimpleNamespace(docname="tutorials/a/lesson", note_dependency=read.append)
    budgets = SimpleNamespace(tutorial_cpu_budget=15, tutorial_cpu_budgets={})
    root = lesson.parents[2]
    app = SimpleNamespace(env=env, config=budgets, confdir=root)
    assert time_to_run(app, lesson) == "within 15 s of processor time"
    run_times.main(root)
    assert time_to_run(app, lesson) == "3 s of processor time, after imports (a machine)"
    assert read == [root / RUN_TIMES]
    lesson.write_text(LESSON.replace("Text", "Other text").replace("one", "1"))
    assert time_to_run(app, lesson) == "3 s of processor time, after imports (a machine)"
    lesson.write_text(LESSON.replace("x = 1", "x = 2"))
    assert time_to_run(app, lesson) == "within 15 s of processor time"
    (root / "docs/tutorials/a/lesson.stamp.json").write_text('{"cpu_seconds": 0.9}')
    run_times.main(root)
    assert time_to_run(app, lesson).startswith("less than 1 s of processor time")


def test_the_machine_is_called_what_people_call_it(lesson, monkeypatch):
    monkeypatch.setattr(run_times, "machine", lambda: "Intel(R) Xeon(R) Processor, 2 cores")
    env = SimpleNamespace(docname="tutorials/a/lesson", note_dependency=print)
    root = lesson.parents[2]
    run_times.main(root)
    app = SimpleNamespace(env=env, config=None, confdir=root)
    assert time_to_run(app, lesson).endswith("after imports (Intel Xeon)")


def test_a_lesson_that_did_not_run_has_no_time(lesson):
    root = lesson.parents[2]
    assert run_times.taken(root) == {"tutorials/a/lesson.py": [code_digest(lesson), 2.6]}
    (root / "docs/tutorials/a/lesson.stamp.json").unlink()
    with pytest.raises(SystemExit, match=r"did not run tutorials/a/lesson\.py"):
        run_times.main(root)
    assert not (root / RUN_TIMES).exists()


@pytest.mark.site
@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_starts_with_what_it_takes_and_its_downloads(lesson):
    html = (SITE / "tutorials" / f"{lesson}.html").read_text(encoding="utf-8")
    marks = ["<h1>", "To read", "To run", "Needs", ".ipynb", "<h2>"]
    places = [html.index(mark, html.index("<article")) for mark in marks]
    assert places == sorted(places)
    assert html.count('class="sphx-glr-footer ') == 1
    assert "to download the full example" not in html
    assert re.search(r"<p>\d+ min</p>", html)


@pytest.mark.site
def test_a_symptom_keeps_its_downloads_at_the_end():
    slug = read_order(ROOT / "tutorials" / "debugging")[0]
    html = (SITE / "tutorials" / "debugging" / f"{slug}.html").read_text(encoding="utf-8")
    assert "tutorial-facts" not in html
    assert html.index(".ipynb") > html.index("symptom-foot") > html.rindex("<h2>")
