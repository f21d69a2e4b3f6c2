"""The head of a tutorial: what it says of time and packages, and where it stands on the site."""

import re

import pytest
from docutils.core import publish_doctree

from docs._ext.gallery.order import read_order
from docs._ext.site.tutorial_head import WORDS_PER_MINUTE, minutes_to_read, packages
from tests.support import ROOT, SITE

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
