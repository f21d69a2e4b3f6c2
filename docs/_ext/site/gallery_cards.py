"""Cards of the gallery: words alone, code in its face, and how long a page takes to read.

Switch on: ``"docs._ext.site"`` in ``extensions``. The gallery puts a thumbnail on the card of a
page, which is a figure too small to read or, where a page has none, a logo; and what it says of
the page is bare text. Cards of a gallery without topics come in groups where its ``order.txt`` has
titles::

    ## Store and sample data
    size_a_replay_buffer
    pixel_replay

What it does: it makes each group a section, which the side bar names too, takes the thumbnails
away, marks the code of a page's first paragraph as ``code``, and adds the minutes that
``tutorial_head`` counts. When a page takes longer or shorter to read than before, pages with cards
are written again, without being read again.
"""

import ast
import re
from html import escape, unescape
from pathlib import Path
from posixpath import dirname, join, normpath

from docutils import nodes

from docs._ext.site.tutorial_head import MINUTES
from docs._ext.support import galleries, identifiers
from docs._ext.support.page_state import page_state

SHOWN = "gallery cards"  # the pages with cards
WRITTEN = "gallery cards: minutes"  # "": those of every page in the last build
THUMBNAIL = re.compile(r"/images/thumb/sphx_glr_\w+_thumb\.\w+")
CARD = re.compile(r'(?s)(?<=thumbcontainer" tooltip=")([^"]*)(?=">.*?href="([^"#]*)\.html[#"])')
GROUP = "## "  # a comment for docs._ext.gallery.order
OPEN = """\
.. raw:: html

    <div class="sphx-glr-thumbnails">

"""
CLOSE = """\
.. raw:: html

    </div>

"""
TOCTREE = ".. toctree::\n   :hidden:\n"
START = '.. raw:: html\n\n    <div class="sphx-glr-thumbcontainer"'


def grouped(text, order):
    """The RST *text* of an index, with a section and a caption for each title that *order* has."""
    titles, title = {}, None
    for line in order.splitlines():
        if line.startswith(GROUP):
            title = line.removeprefix(GROUP).strip()
        elif title and (name := line.partition("#")[0].strip()):
            titles[name], title = title, None
    if not titles:
        return text
    head, *cards = text.split(START)
    for place, card in enumerate(cards):
        name = re.search(r":doc:`[^`]*?(\w+)`", card)[1]
        if name in titles:
            heading = f"{titles[name]}\n{'-' * len(titles[name])}\n\n{OPEN}"
            cards[place] = f"{CLOSE if place else ''}{heading}{START}{card}"
        else:
            cards[place] = START + card
    text = "".join([head.replace(OPEN, ""), *cards]).replace(f"{TOCTREE}\n", "")
    for name, title in titles.items():
        tree = f"\n{TOCTREE}   :caption: {title}\n\n   "
        text = re.sub(rf"^   (?=/\S+/{name}$)", tree, text, flags=re.MULTILINE)
    return text


def group(app, docname, source):
    """source-read: the index of a gallery."""
    gallery, _, page = docname.rpartition("/")
    order = Path(app.srcdir).parent / gallery / "order.txt"
    if gallery in galleries.NAMES and page == "index" and order.is_file():
        app.env.note_dependency(order)
        source[0] = grouped(source[0], order.read_text(encoding="utf-8"))


def with_code(text, script):
    """*text* of a card, in which what is code in the first paragraph of *script* is marked."""
    text = escape(identifiers.curled(unescape(text)))
    docstring = ast.get_docstring(ast.parse(script))
    first = [part for part in docstring.split("\n\n") if not part.startswith("..")][1]
    names = sorted({escape(name) for name in re.findall("``(.+?)``", first)}, key=len, reverse=True)
    if not names:
        return text
    return re.sub("|".join(map(re.escape, names)), r"<code>\g<0></code>", text)


def drop_thumbnails(app, doctree):
    """doctree-read, before images are collected."""
    for image in list(doctree.findall(nodes.image)):
        if THUMBNAIL.search(image["uri"]):
            image.parent.remove(image)
            page_state(app.env, SHOWN)[app.env.docname] = True


def rewrite(app, env):
    """env-updated: the pages with cards, when a page takes another time to read."""
    written, now = page_state(env, WRITTEN), dict(page_state(env, MINUTES))
    if written.get("") == now:
        return []
    written[""] = now
    return sorted(page_state(env, SHOWN))


def fill(app, pagename, templatename, context, doctree):
    """html-page-context: the words of each card."""
    if pagename not in page_state(app.env, SHOWN):
        return
    minutes = page_state(app.env, MINUTES)

    def filled(card):
        page = normpath(join(dirname(pagename), card[2]))
        script = Path(app.srcdir).parent / f"{page}.py"
        text = with_code(card[1], script.read_text("utf-8"))
        return f"{text} <small>{minutes[page]} min to read</small>" if page in minutes else text

    context["body"] = CARD.sub(filled, context["body"])


def setup(app):
    app.setup_extension("docs._ext.support.page_state")
    app.connect("source-read", group)
    app.connect("doctree-read", drop_thumbnails, priority=100)
    app.connect("env-updated", rewrite)
    app.connect("html-page-context", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
