"""Refuse what a tutorial must not print, because it differs from machine to machine.

Switch on with ``"docs._ext.gallery"`` in ``extensions``. Every captured output on a generated page
is searched for an absolute path, a log line with a time, the address of an object and an exception
that Python could only report. A find is a warning (``gallery_output.leak``) at the tutorial; print
a size, a name or a relative path instead.
"""

import re
from pathlib import Path

from docutils import nodes
from sphinx.util import logging

logger = logging.getLogger(__name__)

LEAKS = {
    "an absolute path": re.compile(
        r"(?<![\w.:/])/(?:home|root|tmp|usr|opt|var|etc|private|Users|mnt|dev/shm)/[^\s'\"]+"
    ),
    "a log line with a time": re.compile(r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}:\d{2}.*"),
    "the address of an object": re.compile(r"\b0x[0-9a-f]{6,}\b"),
    "an exception that was ignored": re.compile(r"Exception ignored in.*"),
}


def find_leaks(text, root):
    """Yield ``(what, excerpt)`` for everything in ``text`` that ties it to this machine."""
    for what, pattern in LEAKS.items():
        if match := pattern.search(text):
            yield what, match.group()
    if (at := text.find(f"{root}/")) >= 0 and not LEAKS["an absolute path"].search(text):
        yield "an absolute path", text[at:].split()[0]


def captured_outputs(doctree):
    """The texts that a tutorial printed; tracebacks have failed the build already."""
    for block in doctree.findall(nodes.literal_block):
        if "sphx-glr-script-out" in block["classes"] and block.get("language") != "pytb":
            yield block.astext()
    for block in doctree.findall(nodes.raw):
        if isinstance(block.parent, nodes.container) or "output_html" in block.astext():
            yield block.astext()


def check_outputs(app, doctree):
    """doctree-read: warn about each leak on a generated tutorial page."""
    docname = app.env.docname
    if not Path(app.srcdir, docname).with_suffix(".py").is_file():
        return
    for text in captured_outputs(doctree):
        for what, excerpt in find_leaks(text, Path(app.confdir).as_posix()):
            name = f"{docname}.py"
            logger.warning(
                "%s prints %s: %r; print something that is the same on every machine",
                name,
                what,
                excerpt[:120],
                type="gallery_output",
                subtype="leak",
            )


def setup(app):
    app.connect("doctree-read", check_outputs)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
