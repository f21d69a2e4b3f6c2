"""A small site of a few pages, built in a fresh process as the real one is."""

import os
import subprocess
import sys


def write(folder, pages, conf):
    """The sources in ``folder/src``: *pages*, name -> RST, and the text of ``conf.py``."""
    for name, text in pages.items():
        path = folder / "src" / f"{name}.rst"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "src" / "conf.py").write_text(conf)


def build(folder, address=""):
    """Build into ``folder/out`` without cleaning up first; the finished process."""
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "-nWq", "-b", "html", "src", "out"],
        cwd=folder,
        env=os.environ | {"SITE_URL": address},
        capture_output=True,
        text=True,
        check=False,
    )
