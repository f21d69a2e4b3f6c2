"""Each tutorial as readers run it: a plain script, which prints what its page shows."""

import re
import textwrap

import pytest

from tests.support import ROOT
from tests.support.tutorial_script import run_page

LESSONS = [
    script
    for script in sorted((ROOT / "tutorials").glob("*/*.py"))
    if script.parent.name != "debugging"
]
SHOWN = re.compile(
    r"^\.\. rst-class:: sphx-glr-script-out\n\n \.\. code-block:: none\n\n((?: {4}.*\n|\n)+)",
    re.MULTILINE,
)


def shown(script):
    """What the gallery captured, another process with another hash seed, less empty lines."""
    page = ROOT / "docs" / script.relative_to(ROOT).with_suffix(".rst")
    assert page.is_file(), f"no {page.relative_to(ROOT)}; run `make html` first"
    blocks = map(textwrap.dedent, SHOWN.findall(page.read_text(encoding="utf-8")))
    return [line.rstrip() for line in "".join(blocks).splitlines() if line.strip()]


@pytest.mark.slow
@pytest.mark.site
@pytest.mark.parametrize("script", LESSONS, ids=lambda script: script.stem)
def test_plain_script_prints_what_its_page_shows(script, tmp_path):
    printed = run_page(script, tmp_path, hash_seed="1").splitlines()
    lines = shown(script)
    assert len(lines) > 5
    assert [line.rstrip() for line in printed if line.strip()] == lines
