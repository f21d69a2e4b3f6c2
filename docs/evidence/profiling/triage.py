"""From what is long in a trace to the page about it; for the page on profiling."""

import io
import json
from itertools import pairwise

import matplotlib as mpl

mpl.use("agg")

import matplotlib.pyplot as plt

FLOW = [
    ("collect", "environment", "Is the simulator\nslow, or Python?", "environments"),
    ("collect", "policy", "One call per frame\nor per batch?", "environments,\nnetworks"),
    ("collect", "its own work", "Are there casts\nand syncs?", "device placement"),
    ("collect", "the driver waits", "Are all workers\nbusy?", "yes: collectors\nno: weight sync"),
    ("update", "sample", "Does it grow with\nthe buffer?", "replay buffers"),
    ("update", "advantage", "A loop over steps,\nor vectorized?", "advantages\nand losses"),
    ("update", "loss, backward", "Many short\noperators?", "yes: compile\nno: networks"),
    ("update", "an LSTM or GRU", "One call per step?", "recurrent"),
    ("once", "first iteration", "Does it compile?", "compile"),
]
HEADS = ("What is long", "Ask", "Go to")
SIZE = (4.3, 6.3)  # inches; its text stays legible on a phone
LEFT, WIDTH, HEIGHT = (0.005, 0.345, 0.695), 0.30, 0.072
STEP, FIRST = 0.103, 0.915
LINE = 0.023  # from one line of text to the next
INK = "#010203"  # the color of the page's text
COLORS = {"collect": "#1f80c4", "update": "#d1661f", "once": "#2f9458"}
BOX = {"boxstyle": "round,pad=0,rounding_size=0.012", "facecolor": "none"}


def draw():
    """One row of three boxes for each part of a trace, as an SVG document."""
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "triage", "font.size": 9.1})
    figure = plt.figure(figsize=SIZE)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 1), ylim=(0.045, 1))
    axes.axis("off")
    for left, head in zip(LEFT, HEADS, strict=True):
        axes.text(left + WIDTH / 2, 0.98, head, ha="center", va="center", color=INK, weight="bold")
    for number, (half, part, question, page) in enumerate(FLOW):
        middle = FIRST - STEP * number
        for left, text in zip(LEFT, (f"{half}:\n{part}", question, page), strict=True):
            corner = (left, middle - HEIGHT / 2)
            color = COLORS[half] if left == LEFT[0] else INK
            axes.add_patch(
                mpl.patches.FancyBboxPatch(corner, WIDTH, HEIGHT, edgecolor=color, **BOX)
            )
            lines = text.split("\n")  # each centered by itself, in the font of the page
            for line, own in enumerate(lines):
                place = left + WIDTH / 2, middle + LINE * ((len(lines) - 1) / 2 - line)
                axes.text(*place, own, ha="center", va="center", color=INK)
        for left, right in pairwise(LEFT):
            ends = (right - 0.005, middle), (left + WIDTH + 0.005, middle)
            axes.annotate("", *ends, arrowprops={"arrowstyle": "->", "color": INK})
    target = io.StringIO()
    figure.savefig(target, format="svg", transparent=True, metadata={"Date": None})
    return target.getvalue()


if __name__ == "__main__":
    print(json.dumps({"figure": draw()}))
