"""Forks: what is imported once for many, and that none of them runs what its parent has to."""

import subprocess
import sys

import pytest

from docs._ext.support.fork import Fork
from tests.support import ROOT
from tests.support.programs import run_python


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import warnings\nwarnings.warn('too old')", "importing odd warns: UserWarning: too old"),
        ("import warnings\nwarnings.warn('later', DeprecationWarning)", None),
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=[3]).start()",
            "threads",
        ),
        ("X = 1", None),
    ],
)
def test_a_module_that_warns_is_refused(tmp_path, text, said):
    (tmp_path / "odd.py").write_text(text)
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]\n"
    code += "from docs._ext.support.fork import preload\npreload(['odd'])"
    done = run_python("-c", code, status=1 if said else 0)
    assert (said or "") in done.stderr


def test_filters_of_a_module_stay(tmp_path):
    """As a script that imports it has them; torchrl shows its own deprecations once."""
    (tmp_path / "odd.py").write_text(
        "import warnings\nwarnings.filterwarnings('error', 'a b', UserWarning, 'odd', 3)\n"
        "warnings.simplefilter('once', FutureWarning)\n"
    )
    here = f"import sys, warnings; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]\n"
    loads = "from docs._ext.support.fork import preload\npreload(['odd'])\n"
    shown = [
        subprocess.check_output([sys.executable, "-c", f"{here}{how}print(warnings.filters[:2])"])
        for how in ("import odd\n", loads)
    ]
    assert shown[0] == shown[1]
    assert b"FutureWarning" in shown[0]


def test_a_fork_that_closes_its_output_ends(capfd):
    def close():
        sys.stdout.close()
        return 3

    assert Fork(close).wait(30) == 3


def test_a_fork_without_a_status_ends(capfd):
    assert Fork(lambda: "no number").wait(30) == 1
