"""What the axes of a tutorial's figure get on the site, as a record's plot has them.

Used by ``figures``, before it saves a figure; it has no switch and no markup. A tutorial names its
axes with matplotlib's own functions, the unit in brackets::

    axes.set(xlabel="frames", ylabel="return of an episode [reward]")

Here the title of the y axis becomes a line above its axes, below the title of these; where axes
share y and one of them has the title, it is above the first. Ticks are 1, 2 or 5 times a power of
ten apart, and are written by ``charts.written``: ``64 k``, ``0.5``, a minus sign. What a tutorial
chose itself, such as names of ticks, stays. It writes nothing.
"""

from docs._ext.support.charts import LETTER, written

PAD = 9  # points between axes and the line above
LINE = 1.3 * LETTER


def plain(log):
    """A formatter of numbers; the ticks of a linear axis are all in thousands, or none is."""
    from matplotlib.ticker import Formatter

    class Plain(Formatter):
        def __call__(self, value, position=None):
            return written("1", float(f"{value:.6g}"), None)

        def format_ticks(self, values):
            wide = max(map(abs, values), default=0)
            values = [0 if abs(value) < 1e-9 * wide else value for value in values]
            texts = list(map(self, values))
            mixed = len({text[-1:].isalpha() for text in texts if text != "0"}) > 1
            if mixed and not log:
                texts = [written("", float(f"{value:.6g}"), None).strip() for value in values]
            return texts

    return Plain()


def restyle(figure):
    """Set ticks and titles of all axes, at the places that the layout gives them."""
    from matplotlib.ticker import AutoLocator, LogFormatter, MaxNLocator, ScalarFormatter

    for axes in figure.axes:
        _share_title(axes)
        for axis in (axes.xaxis, axes.yaxis):
            if isinstance(axis.get_major_locator(), AutoLocator):
                axis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10]))
            if isinstance(axis.get_major_formatter(), ScalarFormatter | LogFormatter):
                axis.set_major_formatter(plain(axis.get_scale() == "log"))
    above = {axes: _level(axes) for axes in figure.axes}
    figure.draw_without_rendering()
    for axes, title in above.items():
        left = min(map(_left, _below_each_other(axes))) - axes.bbox.x0
        title.set_position((left * 72 / figure.dpi, PAD))
        axes.set_title(axes.get_title("left"), loc="left", pad=_pad(axes), x=left / axes.bbox.width)


def _below_each_other(axes):
    return [one for one in axes.figure.axes if abs(one.bbox.x0 - axes.bbox.x0) < 1]


def _left(axes):
    """Where the names of the ticks of y begin, in pixels; there are some beyond the axes, too."""
    names = (label.get_window_extent() for label in axes.get_yticklabels())
    shown = (box.x0 for box in names if box.y1 > axes.bbox.y0 and box.y0 < axes.bbox.y1)
    return min(shown, default=axes.bbox.x0)


def _share_title(axes):
    shared = [one for one in axes.figure.axes if axes.get_shared_y_axes().joined(axes, one)]
    titled = [one for one in shared if one.get_ylabel()]
    if len(titled) == 1 and titled != shared[:1]:
        shared[0].set_ylabel(titled[0].get_ylabel())
        titled[0].set_ylabel("")


def _level(axes):
    """The title of y as a text above *axes*: a layout makes no room for a label that is there."""
    axes.set_title(axes.get_title("left"), loc="left", pad=_pad(axes))
    axes.yaxis.label.set_visible(False)
    place = {"xycoords": "axes fraction", "xytext": (0, PAD), "textcoords": "offset points"}
    return axes.annotate(axes.get_ylabel(), (0, 1), annotation_clip=False, **place)


def _pad(axes):
    return PAD + (LINE if axes.get_ylabel() else 0)
