"""The first question and the place to go, for each way in which a run goes wrong; for triage."""

import io
import json
from itertools import pairwise

import matplotlib as mpl

mpl.use("agg")

import matplotlib.pyplot as plt

FLOW = [
    ("It crashes", "Is the message\nin the error\nindex?", "yes: its symptom\nno: shrink it"),
    (
        "It hangs",
        "Before the first\nbatch, later,\nor at the end?",
        "how workers start,\nwait and end",
    ),
    ("It is slow", "Which part costs\nmost of a step?", "the record or\nthe symptom of\nthat part"),
    (
        "Memory grows",
        "Does it stop when\nthe buffer is full?",
        "yes: bytes per step\nno: kept batches",
    ),
    ("It learns nothing", "Does the doctor\nname a symptom?", "yes: its page\nno: data, then loss"),
    (
        "Results differ\nbetween runs",
        "Is everything\nseeded in time?",
        "no: table of seeds\nyes: processes",
    ),
]
HEADS = ("What you see", "First question", "Then")
SIZE = (4.3, 5.28)  # inches; its text stays legible on a phone
LEFT, WIDTH, HEIGHT = (0.005, 0.35, 0.695), 0.30, 0.117
LINE = 0.0275  # from one line of text to the next
INK = "#010203"  # the color of the page's text
BOX = {"boxstyle": "round,pad=0,rounding_size=0.02", "facecolor": "none", "edgecolor": INK}


def draw():
    """One row of three boxes for each way, as an SVG document."""
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "triage", "font.size": 9.1})
    figure = plt.figure(figsize=SIZE)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 1), ylim=(0.037, 1))
    axes.axis("off")
    for left, head in zip(LEFT, HEADS, strict=True):
        axes.text(left + WIDTH / 2, 0.975, head, ha="center", va="center", color=INK, weight="bold")
    for number, texts in enumerate(FLOW):
        middle = 0.883 - 0.154 * number
        for left, text in zip(LEFT, texts, strict=True):
            corner = (left, middle - HEIGHT / 2)
            axes.add_patch(mpl.patches.FancyBboxPatch(corner, WIDTH, HEIGHT, **BOX))
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


def main():
    print(json.dumps({"figure": draw()}))


if __name__ == "__main__":
    main()
