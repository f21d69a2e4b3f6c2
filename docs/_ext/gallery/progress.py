"""Tell ``tools/build_site.py`` how far a build got.

Switch on with ``"docs._ext.gallery"`` in ``extensions``. Where the environment variable
``MANUAL_RUN_DIR`` names a folder, it holds ``complete.json`` once everything is written (the
address of every document). A build that does not write it ended early.
"""

import json
import os
from pathlib import Path


def write_completion(app, exception):
    """build-finished, last: Sphinx got this far, and these are its pages."""
    if exception is None:
        pages = {}
        if app.builder.format == "html":
            pages = {d: app.builder.get_target_uri(d) for d in sorted(app.env.found_docs)}
        if "MANUAL_RUN_DIR" in os.environ:
            path = Path(os.environ["MANUAL_RUN_DIR"], "complete.json")
            part = path.with_suffix(".part")
            part.write_text(json.dumps({"pages": pages}, indent=1), encoding="utf-8")
            part.replace(path)


def setup(app):
    app.connect("build-finished", write_completion, priority=999)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
