"""Leave the letters out of pictures that are too small to read them.

Switch on: ``"docs._ext.site"`` in ``extensions``. No markup. The gallery's thumbnails are figures
of lessons, whole. What it writes: a rule into each of these files, by which a browser that draws
one on less than READABLE pixels draws no text.
"""

from pathlib import Path

READABLE = 260  # pixels of the width of a figure
RULE = f"<style>@media (max-width: {READABLE}px) {{ text {{ display: none; }} }}</style>"


def without_letters(svg):
    """*svg* with the rule, behind its opening tag."""
    if RULE in svg:  # the file of the last build
        return svg
    start = svg.index(">", svg.index("<svg")) + 1
    return svg[:start] + RULE + svg[start:]


def write(app, exception):
    """build-finished: the thumbnails of the site."""
    if exception or app.builder.format != "html":
        return
    for path in sorted(Path(app.outdir, app.builder.imagedir).glob("sphx_glr_*_thumb.svg")):
        path.write_text(without_letters(path.read_text("utf-8")), "utf-8")


def setup(app):
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
