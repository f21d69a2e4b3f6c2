"""Number the figures of a page, and set the stamp of each below it.

Switch on: ``"docs._ext.site"`` in ``extensions`` and the rules for ``.plate`` in a style sheet. No
markup: it finds the figures of records, of evidence scripts and of tutorials.

What it writes: "Plate 2." before the caption of the second figure of a page (that of a tutorial's
figure is its alternative text, which says the finding; the link to its values ends the stamp),
whose address is ``#plate-2``, and around figure and stamp a ``div`` of class ``plate``. Of tables
and outputs that follow each other with the same stamp, the last keeps it. The number is that of the
present page: it is no address that lasts (``tools/addresses.py``). A page of figures with values to
point at loads ``chart-points.js``, by which they are had without a mouse.
"""

import re

from docutils import nodes

from docs._ext.site.page_stamp import run_in_short

KINDS = {"record-plot", "evidence-figure"}
STAMPS = {"record-stamp", "evidence-origin"}
SHARING = (nodes.table, nodes.literal_block)
OF_TUTORIAL = '<figure class="gallery-figure"'
LABEL = re.compile(r' aria-label="([^"]*)"')


def is_figure(node):
    if isinstance(node, nodes.raw):
        return node.astext().startswith(OF_TUTORIAL)
    return isinstance(node, nodes.figure) and not KINDS.isdisjoint(node["classes"])


def numbered(app, doctree):
    """doctree-read: every figure gets its number, and its stamp as neighbor."""
    for number, figure in enumerate(list(doctree.findall(is_figure)), 1):
        place, parent = figure.parent.index(figure), figure.parent
        if isinstance(figure, nodes.raw):
            after = parent[place + 1 : place + 2]
            values = [one for one in after if "figure-values" in one.get("classes", ())]
            for one in values:
                parent.remove(one)
            run = run_in_short(app, app.env.docname)
            parent[place : place + 1] = of_tutorial(figure.astext(), number, run, values)
        else:
            caption(figure, number)
            stamp = taken(following(figure))
            parent[place] = nodes.container("", figure, *stamp, classes=["plate"])


def stamped_once(app, doctree):
    """doctree-read, after the figures have their stamps: one stamp for neighbors that share it."""
    for stamp in list(doctree.findall(is_stamp)):
        parent = stamp.parent
        for node in parent[parent.index(stamp) + 1 :]:
            if is_stamp(node) and str(node) == str(stamp):
                parent.remove(stamp)
            if not isinstance(node, SHARING):
                break


def is_stamp(node):
    return isinstance(node, nodes.paragraph) and not STAMPS.isdisjoint(node["classes"])


def caption(figure, number):
    """Put the number into the caption of *figure*, which has one from then on."""
    figure["ids"] = [f"plate-{number}"]
    said = next(iter(figure.findall(nodes.caption)), None)
    if said is None:
        said = nodes.caption()
        figure += said
    said.insert(0, [nodes.strong("", f"Plate {number}."), nodes.Text(" ")])


def following(figure):
    """The nodes after *figure* up to its stamp; none where there is no stamp."""
    after = figure.parent[figure.parent.index(figure) + 1 :][:4]  # three are a folded table
    for count, node in enumerate(after, 1):
        if is_stamp(node):
            return after[:count]
    return []


def taken(found):
    """*found* out of their place, with the last, the stamp, in front."""
    for node in found:
        node.parent.remove(node)
    return found[-1:] + found[:-1]


def of_tutorial(html, number, run, values=()):
    """The figure of a tutorial with number and stamp, which ends with the link to its *values*.

    The stamp says when and on what the tutorial's *run* was; it is None for one that did not run.
    """
    head = html.replace("<figure ", f'<figure id="plate-{number}" ', 1)
    link = f'<a class="headerlink" href="#plate-{number}" title="Link to this image">#</a>'
    label = LABEL.search(html)[1]
    said = f"<p><strong>Plate {number}.</strong> {label}{link}</p>"
    head = head.replace("</figure>", f"<figcaption>{said}</figcaption>\n</figure>", 1)
    mark, rest = ("Executed", run) if run else ("Not executed", "in this build")
    stamp = nodes.paragraph("", "", nodes.strong("", mark), nodes.Text(f" {rest}."))
    stamp["classes"].append("evidence-origin")
    for one in values:
        stamp += [nodes.Text(" "), *(child.deepcopy() for child in one), nodes.Text(".")]
    parts = [f'<div class="plate">\n{head}', "</div>\n"]
    before, behind = (nodes.raw("", part, format="html") for part in parts)
    return [before, stamp, behind]


def walk_points(app, pagename, templatename, context, doctree):
    """html-page-context: the script of pages whose figures have values."""
    if "<g><title>" in context.get("body", ""):
        app.add_js_file("chart-points.js", loading_method="defer")


def setup(app):
    app.connect("html-page-context", walk_points)
    app.connect("doctree-read", numbered, priority=600)  # after what looks at a tutorial's figures
    app.connect("doctree-read", stamped_once, priority=610)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
