"""What is imported once for many forks says nothing that a script would show."""

import subprocess
import sys

import pytest

from tests.support import ROOT


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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is (said is None), done.stderr
    assert said is None or said in done.stderr
