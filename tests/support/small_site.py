"""A small site of a few pages, built by Sphinx as the real one is."""

import os

from tests.support import sphinx_forks


def write(folder, pages, conf):
    """The sources in ``folder/src``: *pages*, name -> RST, and the text of ``conf.py``."""
    for name, text in pages.items():
        path = folder / "src" / f"{name}.rst"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "src" / "conf.py").write_text(conf)


def build(folder, address=""):
    """Build into ``folder/out`` without cleaning up first; the finished process."""
    environment = os.environ | {"SITE_URL": address}
    return sphinx_forks.run("-nWq", "-b", "html", "src", "out", cwd=folder, env=environment)


def built(folder, pages, conf):
    """The folder with a site that was written and built without a warning."""
    write(folder, pages, conf)
    done = build(folder)
    assert (done.returncode, done.stderr) == (0, "")
    return folder
