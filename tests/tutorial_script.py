"""Run a tutorial as readers do, or a driver that runs it with a changed torchrl."""

import json
import os
import subprocess
import sys

TIMEOUT_S = 600  # a bound for a hung child, not an expectation


def environment(tmp_path, **extra):
    """Of a child whose temporary files land in *tmp_path*."""
    temporary = tmp_path / "tmp"
    temporary.mkdir(exist_ok=True)
    return {**os.environ, "TMPDIR": str(temporary), "MPLBACKEND": "agg", **extra}


def run_page(page, tmp_path, hash_seed):
    """The text that the script *page* prints in a folder of its own, where it leaves nothing."""
    folder = tmp_path / f"cwd{hash_seed}"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, str(page)],
        cwd=folder,
        env=environment(tmp_path, PYTHONHASHSEED=hash_seed),
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    assert list(folder.iterdir()) == []
    return done.stdout.decode()


def run_driver(driver, page, tmp_path):
    """The JSON object in the last line that the Python text *driver* prints about *page*."""
    done = subprocess.run(
        [sys.executable, "-c", driver, str(page)],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
