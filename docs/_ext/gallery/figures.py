"""Draw the figures of a tutorial in the style of the site, as SVG that is part of its page.

Switch on with ``"docs._ext.gallery"`` in ``extensions`` and, in ``sphinx_gallery_conf``::

    "image_scrapers": ["docs._ext.gallery.figures.save"],
    "reset_modules": ["matplotlib", "docs._ext.gallery.figures.use_style", ...],

A tutorial draws with matplotlib and needs no style. It gives every figure its alternative text, one
or two sentences that say what the figure shows::

    figure.set_label(f"The saving grows with the observation, to {saving:.0%}.")

Text, axes and what is drawn in black take the color of the text around the figure, white that of
the page, and ``C0``, ``C1`` and so on the colors of the site's charts. The title of y is a line
above its axes, and ticks are plain (``figure_axes``). A figure is at most WIDTH wide: a wider one
would have smaller letters on a phone. Images of arrays have the pixels of a screen of high density.
sphinx-gallery's own SVG is a file beside the page, which takes neither the page's colors nor its
font (its `matplotlib_scraper` with ``format="svg"``).

Written, beside the page of the tutorial: ``images/sphx_glr_<name>_001.html``, which the page
includes, the same figure as a file, ``..._001.svg``, for the gallery's thumbnails, and its values,
``..._001.csv``, which the page links (``figure_values``). A page with values to point at loads
``chart-points.js``. A figure without an alternative text is the warning ``gallery_figures.alt``, in
every build until it is cured.
"""

from pathlib import Path

from docutils import nodes
from sphinx.util import logging

from docs._ext.gallery import figure_axes, figure_values
from docs._ext.support import charts

logger = logging.getLogger(__name__)

WIDTH = charts.WIDTH / 72  # inches
DENSITY = 288  # pixels of an inch, for images of arrays: three for each of the page
ON_WHITE = "#222222"
INCLUDED = """
.. raw:: html
   :file: {}

"""
LINKED = """
.. rst-class:: figure-values

:download:`CSV of this chart <{}>`

"""


def use_style(gallery_conf, fname, when):
    """reset_modules hook, after matplotlib's: what a tutorial draws looks like other charts."""
    import matplotlib as mpl

    if when == "after":
        return
    mpl.rcParams.update(
        charts.settings()
        | {
            "axes.axisbelow": True,
            "axes.grid": True,
            "axes.grid.axis": "y",
            "axes.prop_cycle": mpl.cycler(color=list(charts.COLORS.values())),
            **dict.fromkeys((f"axes.spines.{side}" for side in ("left", "right", "top")), False),
            "axes.titlelocation": "left",
            "axes.titlesize": "medium",
            "axes.titleweight": "bold",
            "figure.figsize": (WIDTH, 3.6),
            "figure.titlesize": "medium",
            "grid.alpha": 0.2,
            "grid.color": charts.INK,
            "legend.fontsize": "medium",
            "legend.frameon": False,
            "savefig.dpi": DENSITY,
            **{f"{axis}tick.{kind}.size": 0 for axis in "xy" for kind in ("major", "minor")},
            **{f"{axis}tick.major.pad": 5 for axis in "xy"},
        }
    )


def save(block, block_vars, gallery_conf):
    """image_scrapers hook: write every open figure, and return the reST that shows them."""
    import matplotlib.pyplot as plt

    shown = []
    for number in plt.get_fignums():
        figure = plt.figure(number)
        width, height = figure.get_size_inches()
        if width > WIDTH:
            figure.set_size_inches(WIDTH, height * WIDTH / width)
        figure_axes.restyle(figure)
        path = Path(block_vars["image_path_iterator"].next()).with_suffix(".svg")
        svg = charts.render(figure).replace("#000000", charts.INK)
        path.write_text(svg.replace(charts.INK, ON_WHITE), encoding="utf-8")
        label = " ".join(figure.get_label().split())
        values = figure_values.series_of(figure)
        included, data = path.with_suffix(".html"), path.with_suffix(".csv")
        page = of_page(svg, path.stem[-3:], label, figure_values.to_point_at(values))
        included.write_text(page, encoding="utf-8")
        shown.append(INCLUDED.format(f"{path.parent.name}/{included.name}"))
        if values:
            data.write_text(figure_values.as_csv(values), encoding="utf-8")
            shown.append(LINKED.format(f"{path.parent.name}/{data.name}"))
    plt.close("all")
    return "".join(shown)


def of_page(svg, number, label, points=""):
    """The figure as an element of the page; what has no fill in *svg* is black."""
    svg = charts.part_of_page(svg, f"drawing{number}", label)
    svg = svg.replace("#ffffff", "var(--pst-color-background)")
    svg = svg.removesuffix("</svg>") + points + "</svg>"
    return f'<figure class="gallery-figure" style="fill:currentColor">\n{svg}\n</figure>\n'


def ask_for_alternative_texts(app, doctree):
    """doctree-read: warn about each figure of a tutorial that says nothing."""
    drawn = (node.astext() for node in doctree.findall(nodes.raw))
    figures = [text for text in drawn if text.startswith('<figure class="gallery-figure"')]
    for number, text in enumerate(figures, 1):
        if ' aria-label=""' in text.partition(">\n")[2].partition(">")[0]:
            logger.warning(
                "%s.py: figure %d has no alternative text; say what it shows, before it is drawn: "
                'figure.set_label("...")',
                app.env.docname,
                number,
                type="gallery_figures",
                subtype="alt",
            )


def setup(app):
    app.connect("doctree-read", ask_for_alternative_texts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
