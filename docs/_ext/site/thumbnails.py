"""Cards of the gallery: code in its face, and no letters in pictures too small to read them.

Switch on: ``"docs._ext.site"`` in ``extensions``. No markup. The gallery's thumbnails are figures
of lessons, whole, and what it says of a lesson is bare text.

What it writes: the code of a lesson's first paragraph as ``code`` in its card; and a rule into each
thumbnail, by which a browser that draws it on less than READABLE pixels draws no text. What the
gallery puts in place of a missing figure, which no card shows (``html_fixes``), goes.
"""

import ast
import re
from html import escape
from pathlib import Path

from docs._ext.support import galleries

READABLE = 260  # pixels of the width of a figure
RULE = f"<style>@media (max-width: {READABLE}px) {{ text {{ display: none; }} }}</style>"
CARD = re.compile(r'(?s)(?<=thumbcontainer" tooltip=")([^"]*)(?=">.*?href="([^"]*)\.html")')


def with_code(text, script):
    """*text* of a card, in which what is code in the first paragraph of *script* is marked."""
    docstring = ast.get_docstring(ast.parse(script))
    first = [part for part in docstring.split("\n\n") if not part.startswith("..")][1]
    names = sorted({escape(name) for name in re.findall("``(.+?)``", first)}, key=len, reverse=True)
    if not names:
        return text
    return re.sub("|".join(map(re.escape, names)), r"<code>\g<0></code>", text)


def mark_code(app, pagename, templatename, context, doctree):
    """html-page-context: the cards of an index of a gallery."""
    gallery, _, page = pagename.partition("/")
    if gallery in galleries.NAMES and page == "index":
        folder = Path(app.srcdir).parent / gallery

        def marked(card):
            return with_code(card[1], folder.joinpath(f"{card[2]}.py").read_text("utf-8"))

        context["body"] = CARD.sub(marked, context["body"])


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
    images = Path(app.outdir, app.builder.imagedir)
    for path in images.glob("sphx_glr_*_thumb.png"):
        path.unlink()
    for path in sorted(images.glob("sphx_glr_*_thumb.svg")):
        path.write_text(without_letters(path.read_text("utf-8")), "utf-8")


def setup(app):
    app.connect("html-page-context", mark_code)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
