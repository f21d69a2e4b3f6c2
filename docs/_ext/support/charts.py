"""What all drawings of the site share: colors, text, and how an SVG becomes part of a page.

Text and axes take the font and the color of the surrounding text, so one image reads in light and
in dark. No switch, no markup; in Python::

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(charts.settings())
        ...
        svg = charts.part_of_page(charts.render(figure), name, label)

It writes nothing.
"""

import re
from xml.sax.saxutils import quoteattr

# Told apart by shape too; each has at least 3:1 contrast to white and to the dark background.
STYLES = (
    ("#1f80c4", "o"),
    ("#d1661f", "s"),
    ("#2f9458", "^"),
    ("#b0589f", "D"),
    ("#8a7a2f", "v"),
    ("#7d6bd0", "P"),
    ("#c4504a", "X"),
    ("#2c8f99", "*"),
)
INK = "#010203"  # stands for the color of the text, and is no color of a series


def settings():
    """What makes matplotlib's text and axes part of the page; every color else is a series'."""
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": "records",
        "font.family": "sans-serif",
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), INK),
        **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    }


def render(figure):
    from io import StringIO

    output = StringIO()
    figure.savefig(output, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return output.getvalue()


def part_of_page(svg, name, label):
    """Turn a whole SVG document into an element that shares a page with others."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    # A style sheet inside a page applies to the whole page.
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', body)
    body = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", body)
    body = re.sub(r'font-family: [^;"]+', "font-family: inherit", body)
    body = body.replace(INK, "currentColor")
    style = "max-width:100%;height:auto;stroke-linejoin:round;stroke-linecap:butt"
    head = f'<svg role="img" aria-label={quoteattr(label)} style="{style}"'
    return body.replace("<svg", head, 1).strip()
