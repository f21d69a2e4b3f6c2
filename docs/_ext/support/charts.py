"""What all drawings of the site share: colors, text, and how an SVG becomes part of a page.

Text and axes take the font and the color of the surrounding text, so one image reads in light and
in dark; names of code have code letters (``identifiers``). No switch, no markup; in Python::

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(charts.settings())
        ...
        svg = charts.part_of_page(charts.render(figure), name, label)

It writes nothing.
"""

import re
from xml.sax.saxutils import escape, quoteattr, unescape

from docs._ext.support import identifiers

# At least 3:1 to white and to the dark background. Gray is what others are compared with.
COLORS = {
    "blue": "#1f80c4",
    "orange": "#d1661f",
    "green": "#2f9458",
    "purple": "#b0589f",
    "olive": "#8a7a2f",
    "violet": "#7d6bd0",
    "red": "#c4504a",
    "teal": "#2c8f99",
    "gray": "#7a828c",
}
MARKS = {
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "D",
    "wedge": "v",
    "plus": "P",
    "cross": "X",
    "star": "*",
}
# Two series of a panel may share a color, but not the line as well.
LINES = {
    "solid": "solid",
    "dashed": (0, (5, 2)),
    "dotted": (0, (1.2, 1.8)),
    "broken": (0, (6, 2, 1.2, 2)),
}
INK = "#010203"  # stands for the color of the text, and is no color of a series
MINUS = "\N{MINUS SIGN}"
# A phone shows this width with 342 pixels, and so a letter of this size with 9.
WIDTH, LETTER = 394, 10.5  # points


def settings():
    """What makes matplotlib's text and axes part of the page; every color else is a series'."""
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": "records",
        "font.family": "sans-serif",
        "font.size": LETTER,
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), INK),
        **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    }


def render(figure):
    from io import StringIO

    output = StringIO()
    figure.savefig(output, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return output.getvalue()


def part_of_page(svg, name, label, hovers=None):
    """Turn a whole SVG document into an element that shares a page with others.

    *name* prefixes every id in it, *label* is its alternative text. *hovers* has by gid of an
    artist what a pointer on it shows.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*"/>\s*| transform="rotate\(-0 [^)]*\)"', "", body)
    # A style sheet inside a page applies to the whole page.
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.DOTALL)
    for gid, text in (hovers or {}).items():
        body = body.replace(
            f'<g id="{gid}">', f"<g><title>{escape(identifiers.curled(text))}</title>", 1
        )
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', body)
    body = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", body)
    body = re.sub(r'font-family: [^;"]+', "font-family: inherit", body)
    # A line may be paler than a letter: a label in the color of its series is nearer to the ink.
    body = re.sub(
        rf"(<text\b[^>]*\bfill: )({'|'.join(COLORS.values())})",
        r"\1color-mix(in srgb, \2 60%, currentColor)",
        body,
    )
    body = re.sub(r"(?<=>)([^<>]+)(?=</text>)", _code_in_code_letters, body)
    body = body.replace(INK, "currentColor")
    style = "max-width:100%;height:auto;stroke-linejoin:round;stroke-linecap:butt"
    head = f'<svg role="img" aria-label={quoteattr(identifiers.curled(label))} style="{style}"'
    return body.replace("<svg", head, 1).strip()


# -- Text ------------------------------------------------------------------------

CODE = 0.6  # of its size: the width of each letter of code


def _code_in_code_letters(match):
    """A quoted word keeps the letters of the text, which its drawing has room for."""
    style = "font-family: var(--pst-font-family-monospace)"
    return "".join(
        f'<tspan style="{style}">{escape(part)}</tspan>'
        if code and part[0] not in "\"'(["
        else escape(part)
        for part, code in identifiers.split(unescape(match[0]))
    )


_SCALES = {
    "B": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")),
    "kB": ((1e6, "GB"), (1e3, "MB"), (1, "kB")),
    "s": ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
}


def written(unit, value, digits=3):
    """*value* as people write it: ``64 k``, ``1 M``, ``0.60×``, ``10 ms``, ``52.1 %``.

    The unit ``×`` is a ratio, ``1`` a count, which is written whole. *digits* are those that count
    in a measured value; None takes what there is, as a tick does. What is a text stays one.
    """
    if isinstance(value, str):
        return value
    if value < 0:
        return f"{MINUS}{written(unit, -value, digits)}"
    if unit == "1":
        steps = ((1e6, "M"), (1e3, "k"))
        parts = 10 if value >= 1e4 else 1  # 12.5 k, and 2048 as it is
        round_in = (step for step in steps if value % (step[0] / parts) == 0)
        factor, name = next((step for step in round_in if value >= step[0]), (1, ""))
        return f"{_grouped(value / factor)}\u00a0{name}".strip()
    if value == 0:
        return "0"
    scales = _SCALES.get(unit, ((1, unit),))
    factor, name = next((step for step in scales if value >= step[0] * 0.9999), scales[-1])
    value = value / factor
    if digits is None or value >= 10**digits:
        text = _grouped(value if digits is None else round(value))
    else:
        text = f"{value:#.{digits}g}".removesuffix(".")
    return text + (name if name == "×" else f"\u00a0{name}")


def with_unit(title, value):
    """``advantage [reward]`` and ``-2`` give ``advantage \N{MINUS SIGN}2 reward``."""
    name, _, unit = title.removesuffix("]").partition(" [")
    return f"{name} {value.replace('-', MINUS)} {unit}".strip()


def _grouped(value):
    return f"{value:,.10g}" if value >= 10_000 else f"{value:.10g}"


def width_of(text, size=LETTER, weight="normal"):
    """The width of the longest line of *text*, in points, in a wide font."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family="DejaVu Sans", size=size, weight=weight)

    def width(part, code):
        wide = text_to_path.get_text_width_height_descent(part, font, ismath=False)[0]
        return max(wide, len(part) * CODE * size) if code else wide

    return max(
        sum(width(part, code) for part, code in identifiers.split(line))
        for line in text.split("\n")
    )


def apart(wanted, heights, low, high):
    """Where to center labels of *heights* so that none covers another, near *wanted*.

    All are distances on one line, and the result lies between *low* and *high* if that has room.
    """
    order = sorted(range(len(wanted)), key=lambda index: (wanted[index], index))
    groups = []  # of neighbors that touch: members, their height, and the low end of the first
    for index in order:
        group = [[index], heights[index], wanted[index] - heights[index] / 2]
        group[2] = min(max(group[2], low), high - group[1])
        while groups and groups[-1][2] + groups[-1][1] > group[2]:
            below = groups.pop()
            count = len(below[0]) + len(group[0])
            # the mean of where each would like the group to start
            start = (below[2] * len(below[0]) + (group[2] - below[1]) * len(group[0])) / count
            group = [below[0] + group[0], below[1] + group[1], start]
            group[2] = max(min(group[2], high - group[1]), low)
        groups.append(group)
    centers = [0.0] * len(wanted)
    for members, _, start in groups:
        for index in members:
            centers[index] = start + heights[index] / 2
            start += heights[index]
    return centers
