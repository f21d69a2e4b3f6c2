"""Tell ``tools/build_site.py`` how far a build got.

Switch on with ``"docs._ext.gallery"`` in ``extensions``. Where the environment variable
``MANUAL_RUN_DIR`` names a folder, it holds ``running.json`` while a tutorial runs (its name, its
limit in seconds and the time it started) and ``complete.json`` once everything is written (the
address of every document). A build that leaves the first, or does not write the second, was ended
by a tutorial.
"""

import json
import os
import time
from pathlib import Path


def tutorial_starts(name, limit):
    """Say which tutorial runs now."""
    _write("running.json", {"script": name, "limit": limit, "since": time.time()})


def tutorial_ended():
    """Say that no tutorial runs."""
    if "MANUAL_RUN_DIR" in os.environ:
        Path(os.environ["MANUAL_RUN_DIR"], "running.json").unlink(missing_ok=True)


def write_completion(app, exception):
    """build-finished, last: Sphinx got this far, and these are its pages."""
    if exception is None:
        pages = {}
        if app.builder.format == "html":
            pages = {d: app.builder.get_target_uri(d) for d in sorted(app.env.found_docs)}
        _write("complete.json", {"pages": pages})


def _write(name, content):
    if "MANUAL_RUN_DIR" in os.environ:
        path = Path(os.environ["MANUAL_RUN_DIR"], name)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(content, indent=1), encoding="utf-8")
        part.replace(path)


def setup(app):
    app.connect("build-finished", write_completion, priority=999)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
